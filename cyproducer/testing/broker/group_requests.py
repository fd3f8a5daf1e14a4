"""Consumer groups of an embedded cluster: the requests of their members and administrators.

Owns authorization, the differences between versions, and the responses. Does not own the meaning of the
requests (``groups``), the offsets (``group_offsets``) or TxnOffsetCommit (``transaction_requests``).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.base_group import STABLE, BaseGroup
from cyproducer.testing.broker.group_offsets import Group, Offset
from cyproducer.testing.broker.groups import DEAD, Join, Joined, Synced
from cyproducer.testing.broker.homes import GROUP
from cyproducer.testing.broker.metadata import NO_OPERATIONS, place_refusal
from cyproducer.testing.broker.server import LATER, Call
from cyproducer.testing.broker.transactions import Place
from cyproducer.wire.messages import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
)

NO_OFFSET: Final = -1


def _misplaced(call: Call, name: str) -> int:
    """Returns the error code if this node cannot act as the coordinator of a group, or NO_ERROR."""
    homes = call.cluster.homes
    return homes.code(call.node.id, homes.home(GROUP, name))


def group_refusal(call: Call, name: str, operation: str = "READ") -> int:
    """Returns the error code if a request to a group's coordinator is refused, or NO_ERROR."""
    if not call.allowed(operation, "group", name):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return call.fault() or _misplaced(call, name)


def _member_refusal(call: Call, name: str) -> int:
    """Like ``group_refusal``, for a request of a member: the group must have a name."""
    return group_refusal(call, name) or (ErrorCode.NO_ERROR if name else ErrorCode.INVALID_GROUP_ID)


# Members


def join_group(call: Call) -> Any:
    request, response = call.request, JOIN_GROUP.response

    def told(joined: Joined) -> None:
        metadata = [
            response.JoinGroupResponseMember(
                member.id, member.instance, member.protocols.get(joined.protocol or "", b"")
            )
            for member in joined.members
        ]
        protocol = joined.protocol
        if protocol is None and call.version < 7:
            protocol = ""
        call.answer(
            response(
                0, joined.code, joined.generation, joined.protocol_type, protocol, joined.leader,
                joined.skips, joined.member, metadata,
            )
        )  # fmt: skip

    if code := _member_refusal(call, request.group_id):
        told(Joined(code, request.member_id))
        return LATER
    call.cluster.groups.join(
        request.group_id,
        Join(
            request.member_id,
            request.group_instance_id,
            request.session_timeout_ms,
            request.rebalance_timeout_ms if call.version >= 1 else request.session_timeout_ms,
            request.protocol_type,
            {each.name: each.metadata for each in request.protocols},
            call.header.client_id or "",
            f"/{call.connection.transport.peer}",
            id_first=call.version >= 4,
            can_skip=call.version >= 9,
        ),
        told,
    )
    return LATER


def sync_group(call: Call) -> Any:
    request, response = call.request, SYNC_GROUP.response

    def told(synced: Synced) -> None:
        call.answer(response(0, synced.code, synced.protocol_type, synced.protocol, synced.assignment))

    group = call.cluster.groups.find(request.group_id)
    protocols = (request.protocol_type, request.protocol_name)
    if code := _member_refusal(call, request.group_id):
        told(Synced(code))
    elif call.version >= 5 and None in protocols:
        told(Synced(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    elif group is None:
        told(Synced(ErrorCode.UNKNOWN_MEMBER_ID))
    else:
        group.sync(
            request.generation_id,
            request.member_id,
            request.group_instance_id,
            protocols,
            {each.member_id: each.assignment for each in request.assignments},
            told,
        )
    return LATER


def heartbeat(call: Call) -> Any:
    request = call.request
    code = _member_refusal(call, request.group_id)
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and code == _misplaced(call, request.group_id):
        # The coordinator will know the group once it has loaded its log: the member can continue.
        code = ErrorCode.NO_ERROR
    elif not code:
        group = call.cluster.groups.find(request.group_id)
        code = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            code = group.heartbeat(request.generation_id, request.member_id, request.group_instance_id)
    return HEARTBEAT.response(0, code)


def leave_group(call: Call) -> Any:
    request, response = call.request, LEAVE_GROUP.response
    if code := _member_refusal(call, request.group_id):
        return response(0, code, [])
    group = call.cluster.groups.find(request.group_id)

    def left(member: str, instance: str | None) -> int:
        return ErrorCode.UNKNOWN_MEMBER_ID if group is None else group.leave(member, instance)

    if call.version < 3:
        return response(0, left(request.member_id, None), [])
    members = [
        response.MemberResponse(
            each.member_id, each.group_instance_id, left(each.member_id, each.group_instance_id)
        )
        for each in request.members
    ]
    return response(0, ErrorCode.NO_ERROR, members)


# Offsets


def offset_commit(call: Call) -> Any:
    request, response = call.request, OFFSET_COMMIT.response
    most = call.cluster.groups.max_metadata
    retention_ms = None if request.retention_time_ms < 0 else request.retention_time_ms
    refusal = _group_only(call, request.group_id)
    offsets: dict[Place, Offset] = {}
    codes: dict[Place, int] = {}
    for topic in request.topics:
        for each in topic.partitions:
            place, metadata = (topic.name, each.partition_index), each.committed_metadata or ""
            code = refusal or place_refusal(call, "READ", *place)
            if not code and len(metadata) > most:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            codes[place] = code
            if not code:
                offsets[place] = Offset(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    metadata,
                    call.world.now_ns,
                    retention_ms,
                )

    def told(code: int) -> None:
        final = {place: known or code for place, known in codes.items()}
        topic, partition = response.OffsetCommitResponseTopic, response.OffsetCommitResponsePartition
        call.answer(response(0, per_partition(request, topic, partition, final)))

    if not offsets:
        told(ErrorCode.NO_ERROR)
    elif code := _misplaced(call, request.group_id):
        told(code)
    else:
        call.cluster.groups.commit(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            offsets,
            told,
        )
    return LATER


def _group_only(call: Call, name: str) -> int:
    allowed = call.allowed("READ", "group", name)
    return ErrorCode.NO_ERROR if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED


def per_partition(
    request: Any,
    topic: Callable[[str, list[Any]], Any],
    partition: Callable[[int, int], Any],
    codes: Mapping[Place, int],
) -> list[Any]:
    """Returns the topics of a response about offsets: the error code of each partition of the request.

    ``topic`` and ``partition`` make the elements of the response.
    """
    return [
        topic(
            each.name,
            [partition(p.partition_index, codes[each.name, p.partition_index]) for p in each.partitions],
        )
        for each in request.topics
    ]


def offset_fetch(call: Call) -> Any:
    request, response = call.request, OFFSET_FETCH.response
    if call.version >= 8:
        make, part = response.OffsetFetchResponseTopics, response.OffsetFetchResponsePartitions
        groups = []
        for wanted in request.groups:
            code, topics = _offsets(call, wanted.group_id, wanted.topics)
            group = call.cluster.groups.modern(wanted.group_id)
            if not code and group is not None and (wanted.member_id or wanted.member_epoch >= 0):
                code = group.commit_refusal(wanted.member_epoch, wanted.member_id or "")
                topics = [] if code else topics
            found = [make(name, [part(*each) for each in parts]) for name, parts in topics]
            groups.append(response.OffsetFetchResponseGroup(wanted.group_id, found, code))
        return response(0, [], ErrorCode.NO_ERROR, groups)
    make, part = response.OffsetFetchResponseTopic, response.OffsetFetchResponsePartition
    code, topics = _offsets(call, request.group_id, request.topics)
    if code and call.version < 2:
        # Before version 2, only partitions have errors.
        topics = [
            (topic.name, [(index, NO_OFFSET, -1, "", code) for index in topic.partition_indexes])
            for topic in request.topics
        ]
    return response(0, [make(name, [part(*each) for each in parts]) for name, parts in topics], code, [])


Found = tuple[str, list[tuple[int, int, int, str, int]]]
"""A topic, and the index, offset, leader epoch, metadata and error code of each of its partitions."""


def _offsets(call: Call, name: str, topics: Iterable[Any] | None) -> tuple[int, list[Found]]:
    """Returns an error code and a group's offsets. ``topics`` is None for all topics."""
    if not call.allowed("DESCRIBE", "group", name):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, []
    fault = call.fault()
    if fault and fault != ErrorCode.UNSTABLE_OFFSET_COMMIT:
        return fault, []
    if code := _misplaced(call, name):
        return code, []
    log = call.cluster.offsets.groups.get(name)
    wanted: dict[str, list[int]] = {}
    if topics is None:
        for topic, index in sorted(log.committed if log else ()):
            if call.allowed("DESCRIBE", "topic", topic):
                wanted.setdefault(topic, []).append(index)
    else:
        for each in topics:
            wanted.setdefault(each.name, []).extend(each.partition_indexes)
    return ErrorCode.NO_ERROR, [
        (topic, [_offset(call, log, (topic, index)) for index in indexes])
        for topic, indexes in wanted.items()
    ]


def _offset(call: Call, log: Group | None, place: Place) -> tuple[int, int, int, str, int]:
    topic, index = place
    if not call.allowed("DESCRIBE", "topic", topic):
        return index, NO_OFFSET, -1, "", ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if code := call.fault(topic, index):
        return index, NO_OFFSET, -1, "", code
    if log is not None and call.request.require_stable and log.is_unstable(place):
        return index, NO_OFFSET, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT
    found = log.committed.get(place) if log is not None else None
    if found is None:
        return index, NO_OFFSET, -1, "", ErrorCode.NO_ERROR
    return index, found.offset, found.leader_epoch, found.metadata or "", ErrorCode.NO_ERROR


def offset_delete(call: Call) -> Any:
    request, response = call.request, OFFSET_DELETE.response
    places = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    codes = {place: place_refusal(call, "READ", *place) for place in places}

    def told(code: int, found: Mapping[Place, int]) -> None:
        codes.update(found)
        topic, partition = response.OffsetDeleteResponseTopic, response.OffsetDeleteResponsePartition
        topics = per_partition(request, topic, partition, codes)
        call.answer(response(code, 0, [] if code else topics))

    accepted = [place for place, code in codes.items() if not code]
    if not call.allowed("DELETE", "group", request.group_id):
        told(ErrorCode.GROUP_AUTHORIZATION_FAILED, {})
    elif code := call.fault():
        told(code, {})
    elif not accepted:
        told(ErrorCode.NO_ERROR, {})
    elif not request.group_id:
        told(ErrorCode.INVALID_GROUP_ID, {})
    elif code := _misplaced(call, request.group_id):
        told(code, {})
    else:
        call.cluster.groups.delete_offsets(request.group_id, accepted, told)
    return LATER


# Administration


def describe_groups(call: Call) -> Any:
    return DESCRIBE_GROUPS.response(0, [_description(call, name) for name in call.request.groups])


def _description(call: Call, name: str) -> Any:
    response = DESCRIBE_GROUPS.response
    make = response.DescribedGroup
    if code := group_refusal(call, name, "DESCRIBE"):
        return make(code, None, name, "", "", "", [], NO_OPERATIONS)
    operations = NO_OPERATIONS
    if call.request.include_authorized_operations:
        operations = call.cluster.access.operations(call.principal, "group", name)
    group = call.cluster.groups.find(name)
    if group is None:
        code, text = ErrorCode.NO_ERROR, None
        if call.version >= 6:
            code, text = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} not found."
        return make(code, text, name, DEAD, "", "", [], operations)
    # The members' protocols and assignments match only when all members have their assignments.
    is_stable = group.state == STABLE
    protocol = (group.protocol or "") if is_stable else ""
    members = [
        response.DescribedGroupMember(
            member.id,
            member.instance,
            member.client_id,
            member.host,
            member.protocols.get(protocol, b""),
            member.assignment if is_stable else b"",
        )
        for member in group.members.values()
    ]
    return make(
        ErrorCode.NO_ERROR, None, name, group.state, group.protocol_type, protocol, members, operations
    )


def list_groups(call: Call) -> Any:
    request, response = call.request, LIST_GROUPS.response
    if code := call.fault():
        return response(0, code, [])
    groups, is_loading = [], False
    for group in call.cluster.groups:
        code = _misplaced(call, group.name)
        is_loading = is_loading or code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        fits = _fits(group.state, request.states_filter) and _fits(group.kind, request.types_filter)
        if not code and fits and _may_list(call, group):
            groups.append(response.ListedGroup(group.name, group.protocol_type, group.state, group.kind))
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NO_ERROR
    return response(0, code, groups)


def _may_list(call: Call, group: BaseGroup) -> bool:
    return call.allowed("DESCRIBE", "cluster", "kafka-cluster") or call.allowed(
        "DESCRIBE", "group", group.name
    )


def _fits(value: str, wanted: list[str]) -> bool:
    return not wanted or value.lower() in (each.lower() for each in wanted)


def delete_groups(call: Call) -> Any:
    names = list(dict.fromkeys(call.request.groups_names))
    codes: dict[str, int] = {}

    def told(name: str, code: int) -> None:
        codes[name] = code
        if len(codes) == len(names):
            results = [DELETE_GROUPS.response.DeletableGroupResult(each, codes[each]) for each in names]
            call.answer(DELETE_GROUPS.response(0, results))

    if not names:
        return DELETE_GROUPS.response(0, [])
    for name in names:
        if code := group_refusal(call, name, "DELETE"):
            told(name, code)
        else:
            call.cluster.groups.delete(name, partial(told, name))
    return LATER


HANDLERS: Final = {
    OFFSET_COMMIT: offset_commit,
    OFFSET_FETCH: offset_fetch,
    OFFSET_DELETE: offset_delete,
    JOIN_GROUP: join_group,
    SYNC_GROUP: sync_group,
    HEARTBEAT: heartbeat,
    LEAVE_GROUP: leave_group,
    DESCRIBE_GROUPS: describe_groups,
    LIST_GROUPS: list_groups,
    DELETE_GROUPS: delete_groups,
}
