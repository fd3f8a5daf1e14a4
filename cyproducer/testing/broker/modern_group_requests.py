"""ConsumerGroupHeartbeat and ConsumerGroupDescribe of an embedded cluster (KIP-848).

Owns the checks of the requests, and the responses. Does not own what they mean (``modern_groups``).
"""

from collections.abc import Iterable
from typing import Any, Final

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker import patterns
from cyproducer.testing.broker.group_requests import group_refusal
from cyproducer.testing.broker.metadata import NO_OPERATIONS
from cyproducer.testing.broker.modern_groups import ASSIGNORS, LEAVES_FOR_NOW, Part, Refused, Subscriber
from cyproducer.testing.broker.server import LATER, Call
from cyproducer.wire.messages import CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_HEARTBEAT

HEARTBEAT_MS: Final = 500
"""``group.consumer.heartbeat.interval.ms``; Kafka's default is 5 seconds."""
CONSUMER_MEMBER: Final = 1


def heartbeat(call: Call) -> Any:
    request, response = call.request, CONSUMER_GROUP_HEARTBEAT.response
    try:
        if code := group_refusal(call, request.group_id):
            raise Refused(code, "")
        _check(call)
        groups = call.cluster.groups
        group = groups.modernized(request.group_id) if request.member_epoch == 0 else None
        group = group or groups.modern(request.group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
        if not request.member_id:
            request = request._replace(member_id=groups.new_id("member"))
        client_id, host = call.header.client_id or "", f"/{call.connection.transport.peer}"
        member, shows = group.heartbeat(request, client_id, host)
    except Refused as error:
        return response(0, error.code, error.text or None, None, 0, 0, None)
    epoch = request.member_epoch if request.member_epoch < 0 else member.generation
    parts = [response.TopicPartitions(*each) for each in _by_topic(member.assigned)]
    interval_ms = 0 if epoch < 0 else HEARTBEAT_MS
    assignment = response.Assignment(parts) if shows else None
    answer = response(0, ErrorCode.NO_ERROR, None, member.id, epoch, interval_ms, assignment)

    def told(code: int) -> None:
        call.answer(answer if not code else response(0, code, None, None, 0, 0, None))

    call.cluster.homes.write(group.log.home, lambda: ErrorCode.NO_ERROR, told)
    return LATER


def _check(call: Call) -> None:
    """Raises ``Refused`` for a heartbeat that makes no sense."""
    request = call.request
    joins, pattern = request.member_epoch == 0, request.subscribed_topic_regex
    for is_wrong, text in (
        (not request.group_id, "GroupId can't be empty."),
        (not request.member_id and (call.version >= 1 or not joins), "MemberId can't be empty."),
        (request.instance_id == "", "InstanceId can't be empty."),
        (request.rack_id == "", "RackId can't be empty."),
        (request.member_epoch < LEAVES_FOR_NOW, f"MemberEpoch is {request.member_epoch}."),
        (request.member_epoch == LEAVES_FOR_NOW and not request.instance_id, "InstanceId can't be null."),
        (joins and request.rebalance_timeout_ms < 0, "RebalanceTimeoutMs must be provided in first request."),
        (joins and request.topic_partitions != [], "TopicPartitions must be empty when (re-)joining."),
        (joins and request.subscribed_topic_names is None and pattern is None, "A subscription is needed."),
    ):
        if is_wrong:
            raise Refused(ErrorCode.INVALID_REQUEST, text)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        text = (
            f"ServerAssignor {request.server_assignor} is not supported, only {' and '.join(ASSIGNORS)} are."
        )
        raise Refused(ErrorCode.UNSUPPORTED_ASSIGNOR, text)
    for name in request.subscribed_topic_names or ():
        if not call.allowed("DESCRIBE", "topic", name):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "")
    try:
        patterns.compiled(pattern or "")
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None


def _by_topic(parts: Iterable[Part]) -> list[tuple[bytes, list[int]]]:
    found: dict[bytes, list[int]] = {}
    for topic, index in sorted(parts):
        found.setdefault(topic, []).append(index)
    return list(found.items())


def describe(call: Call) -> Any:
    return CONSUMER_GROUP_DESCRIBE.response(0, [_description(call, name) for name in call.request.group_ids])


def _description(call: Call, name: str) -> Any:
    make = CONSUMER_GROUP_DESCRIBE.response.DescribedGroup
    code, text = group_refusal(call, name, "DESCRIBE"), None
    group = None if code else call.cluster.groups.modern(name)
    if group is None:
        if not code:
            code, text = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} is not a consumer group."
        return make(code, text, name, "", 0, 0, "", [], NO_OPERATIONS)
    operations = NO_OPERATIONS
    if call.request.include_authorized_operations:
        operations = call.cluster.access.operations(call.principal, "group", name)
    members = [_member(call, each, group.target.get(each.id, ())) for each in group.members.values()]
    epochs = group.epoch, group.target_epoch
    return make(ErrorCode.NO_ERROR, None, name, group.state, *epochs, group.assignor, members, operations)


def _member(call: Call, member: Subscriber, target: Iterable[Part]) -> Any:
    response = CONSUMER_GROUP_DESCRIBE.response

    def assignment(parts: Iterable[Part]) -> Any:
        named = [(topic, call.cluster.topic(topic), indexes) for topic, indexes in _by_topic(parts)]
        return response.Assignment(
            [
                response.TopicPartitions(topic_id, topic.name, indexes)
                for topic_id, topic, indexes in named
                if topic
            ]
        )

    return response.Member(
        member.id,
        member.instance,
        member.rack,
        member.generation,
        member.client_id,
        member.host,
        sorted(member.topics),
        member.pattern or None,
        assignment(member.assigned),
        assignment(target),
        CONSUMER_MEMBER,
    )


HANDLERS: Final = {CONSUMER_GROUP_HEARTBEAT: heartbeat, CONSUMER_GROUP_DESCRIBE: describe}
