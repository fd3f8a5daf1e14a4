"""Producer ids and transactions of an embedded cluster.

Owns authorization, the differences between versions, and the responses. Does not own the meaning of the
requests (``transactions``, ``group_offsets``) or Produce (``produce``).
"""

from typing import Any, Final

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker import patterns
from cyproducer.testing.broker.group_offsets import Offset, TxnOffsetCommit
from cyproducer.testing.broker.homes import ID
from cyproducer.testing.broker.metadata import located, place_refusal
from cyproducer.testing.broker.server import LATER, Call
from cyproducer.testing.broker.transactions import ONGOING, Place, State
from cyproducer.testing.broker.world import NS_PER_MS
from cyproducer.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
)
from cyproducer.wire.schema import Api

#: API -> the first version that can return PRODUCER_FENCED; older versions return INVALID_PRODUCER_EPOCH.
HAS_FENCED: Final[dict[Api, int]] = {
    INIT_PRODUCER_ID: 4,
    ADD_PARTITIONS_TO_TXN: 2,
    ADD_OFFSETS_TO_TXN: 2,
    END_TXN: 2,
    TXN_OFFSET_COMMIT: 1 << 15,
}
BY_TOPIC_ID: Final = 6
"""From this version on, TxnOffsetCommit has topic ids instead of names."""
STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
)  # fmt: skip


def _refusal(call: Call, transactional_id: str) -> int:
    """Returns the error code if a request to an id's coordinator is refused, or NO_ERROR."""
    if not call.allowed("WRITE", "transactional_id", transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if code := call.fault():
        return code
    homes = call.cluster.homes
    return homes.code(call.node.id, homes.home(ID, transactional_id))


def _sayable(call: Call, code: int) -> int:
    """Translates an error code to one that the version of the request supports."""
    if code == ErrorCode.PRODUCER_FENCED and call.version < HAS_FENCED.get(call.api, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def init_producer_id(call: Call) -> Any:
    request = call.request

    def told(code: int, producer_id: int = -1, epoch: int = -1) -> None:
        call.answer(INIT_PRODUCER_ID.response(0, _sayable(call, code), producer_id, epoch))

    if request.transactional_id is None:
        if code := call.fault():
            told(code)
        else:
            told(ErrorCode.NO_ERROR, call.cluster.topics.new_producer_id(), 0)
    elif code := _refusal(call, request.transactional_id):
        told(code)
    else:
        call.cluster.transactions.init_producer_id(
            request.transactional_id,
            request.transaction_timeout_ms,
            request.producer_id,
            request.producer_epoch,
            told,
        )
    return LATER


def add_partitions(call: Call) -> Any:
    request, response = call.request, ADD_PARTITIONS_TO_TXN.response
    places = [(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions]

    def answer(codes: dict[Place, int]) -> None:
        topics = [
            response.AddPartitionsToTxnTopicResult(
                topic.name,
                [
                    response.AddPartitionsToTxnPartitionResult(index, codes[topic.name, index])
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        call.answer(response(0, ErrorCode.NO_ERROR, [], topics))

    def told(code: int) -> None:
        answer(dict.fromkeys(places, _sayable(call, code)))

    transactional_id = request.v3_and_below_transactional_id
    if code := _refusal(call, transactional_id):
        told(code)
        return LATER
    codes = {place: place_refusal(call, "WRITE", *place) for place in places}
    if any(codes.values()):
        # No partition is added.
        answer({place: code or ErrorCode.OPERATION_NOT_ATTEMPTED for place, code in codes.items()})
    else:
        call.cluster.transactions.add(
            transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            places,
            False,
            told,
        )
    return LATER


def add_offsets(call: Call) -> Any:
    request = call.request

    def told(code: int) -> None:
        call.answer(ADD_OFFSETS_TO_TXN.response(0, _sayable(call, code)))

    if code := _refusal(call, request.transactional_id):
        told(code)
    elif not call.allowed("READ", "group", request.group_id):
        told(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    else:
        place = call.cluster.offsets.group(request.group_id).place
        call.cluster.transactions.add(
            request.transactional_id, request.producer_id, request.producer_epoch, [place], False, told
        )
    return LATER


def end_txn(call: Call) -> Any:
    request = call.request

    def told(code: int, producer_id: int = -1, epoch: int = -1) -> None:
        call.answer(END_TXN.response(0, _sayable(call, code), producer_id, epoch))

    if code := _refusal(call, request.transactional_id):
        told(code)
    else:
        call.cluster.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            call.version >= 5,
            told,
        )
    return LATER


def _name_of(call: Call, topic: Any) -> str | None:
    """Returns the name of a topic of TxnOffsetCommit; None if version 6 gives an unknown id (KIP-1319)."""
    if call.version < BY_TOPIC_ID:
        return str(topic.name)
    found = call.cluster.topic(topic.topic_id)
    return None if found is None else found.name


def txn_offset_commit(call: Call) -> Any:
    request, response = call.request, TXN_OFFSET_COMMIT.response
    named = [(topic, _name_of(call, topic)) for topic in request.topics]
    offsets = {
        (name, each.partition_index): Offset(
            each.committed_offset,
            each.committed_leader_epoch,
            each.committed_metadata,
            call.world.now_ns,
        )
        for topic, name in named
        if name is not None
        for each in topic.partitions
    }
    codes = {place: place_refusal(call, "READ", *place) for place in offsets}

    def told(code: int) -> None:
        final = {place: _sayable(call, known or code) for place, known in codes.items()}
        topics = []
        for topic, name in named:
            made = [
                response.TxnOffsetCommitResponsePartition(
                    each.partition_index,
                    ErrorCode.UNKNOWN_TOPIC_ID if name is None else final[name, each.partition_index],
                )
                for each in topic.partitions
            ]
            topics.append(response.TxnOffsetCommitResponseTopic(topic.name, topic.topic_id, made))
        call.answer(response(0, topics))

    allowed = {place: offset for place, offset in offsets.items() if not codes[place]}
    if not call.allowed("WRITE", "transactional_id", request.transactional_id):
        told(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not call.allowed("READ", "group", request.group_id):
        told(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    elif code := call.fault():
        told(code)
    elif not allowed:
        told(ErrorCode.NO_ERROR)
    else:
        call.cluster.offsets.commit(
            call.node.id,
            call.version,
            TxnOffsetCommit(
                request.transactional_id,
                request.group_id,
                request.producer_id,
                request.producer_epoch,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
                allowed,
            ),
            told,
        )
    return LATER


# Descriptions


def describe_transactions(call: Call) -> Any:
    response = DESCRIBE_TRANSACTIONS.response
    return response(0, [_description(call, each) for each in call.request.transactional_ids])


def _description(call: Call, transactional_id: str) -> Any:
    make = DESCRIBE_TRANSACTIONS.response.TransactionState
    homes, code = call.cluster.homes, 0
    if not call.allowed("DESCRIBE", "transactional_id", transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    code = code or call.fault() or homes.code(call.node.id, homes.home(ID, transactional_id))
    state = code or call.cluster.transactions.describe(transactional_id)
    if not isinstance(state, State):
        return make(state, transactional_id, "", 0, -1, -1, -1, [])
    topics: dict[str, list[int]] = {}
    for name, index in sorted(state.places):
        topics.setdefault(name, []).append(index)
    return make(
        ErrorCode.NO_ERROR,
        transactional_id,
        state.name,
        state.timeout_ms,
        -1 if state.started_ns < 0 else state.started_ns // NS_PER_MS,
        state.producer_id,
        state.epoch,
        [DESCRIBE_TRANSACTIONS.response.TopicData(name, indexes) for name, indexes in topics.items()],
    )


def list_transactions(call: Call) -> Any:
    request, response = call.request, LIST_TRANSACTIONS.response
    if code := call.fault():
        return response(0, code, [], [])
    unknown = [name for name in request.state_filters if name not in STATES]
    pattern = None
    try:
        if call.version >= 2 and request.transactional_id_pattern:
            pattern = patterns.compiled(request.transactional_id_pattern)
    except ValueError:
        return response(0, ErrorCode.INVALID_REGULAR_EXPRESSION, [], [])
    found = []
    for txn in call.cluster.transactions.ids.values():
        state = txn.state
        if state is None or txn.home.leader != call.node.id:
            continue
        if not call.allowed("DESCRIBE", "transactional_id", txn.id):
            continue
        if request.state_filters and state.name not in request.state_filters:
            continue
        if request.producer_id_filters and state.producer_id not in request.producer_id_filters:
            continue
        if call.version >= 1 and request.duration_filter >= 0:
            age_ms = (call.world.now_ns - state.started_ns) // NS_PER_MS
            if state.name != ONGOING or age_ms < request.duration_filter:
                continue
        if pattern and not pattern.matches(txn.id):
            continue
        found.append(response.TransactionState(txn.id, state.producer_id, state.name))
    return response(0, ErrorCode.NO_ERROR, unknown, found)


def describe_producers(call: Call) -> Any:
    response = DESCRIBE_PRODUCERS.response
    topics = []
    for topic in call.request.topics:
        parts = []
        for index in topic.partition_indexes:
            partition = located(call, topic.name, index)
            if isinstance(partition, int):
                parts.append(response.PartitionResponse(index, partition, None, []))
                continue
            producers = [
                response.ProducerState(
                    producer_id,
                    state.epoch,
                    state.batches[-1].last if state.batches else -1,
                    state.last_ns // NS_PER_MS,
                    state.term,
                    -1 if state.started is None else state.started,
                )
                for producer_id, state in partition.producers.items()
            ]
            parts.append(response.PartitionResponse(index, ErrorCode.NO_ERROR, None, producers))
        topics.append(response.TopicResponse(topic.name, parts))
    return response(0, topics)


HANDLERS: Final = {
    INIT_PRODUCER_ID: init_producer_id,
    ADD_PARTITIONS_TO_TXN: add_partitions,
    ADD_OFFSETS_TO_TXN: add_offsets,
    END_TXN: end_txn,
    TXN_OFFSET_COMMIT: txn_offset_commit,
    DESCRIBE_TRANSACTIONS: describe_transactions,
    LIST_TRANSACTIONS: list_transactions,
    DESCRIBE_PRODUCERS: describe_producers,
}
