"""The requests of transactions: encodes them, and decodes the responses.

As in ``protocol``, every function is pure and callable from any thread. Imported only where it is used,
because each type takes 0.1 ms to create.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    LIST_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
)
from cyproducer.wire.protocol import DECODERS, invalid, node_problem
from cyproducer.wire.schema import NO_UUID, Frame


class FindCoordinatorResponse(NamedTuple):
    """The coordinator of a transactional id or a group; the node id is -1 if there is none at the moment.

    ``error_message`` is the broker's own text, or None.
    """

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    node_id: int
    host: str
    port: int


class AddPartitionsToTxnResponse(NamedTuple):
    """The error code of each partition, 0 if the partition is now in the transaction (KIP-98)."""

    throttle_time_ms: int
    #: (topic, partition) -> error code.
    errors: dict[tuple[str, int], int]


class AddOffsetsToTxnResponse(NamedTuple):
    """Whether the group's offsets are now in the transaction (KIP-98)."""

    throttle_time_ms: int
    error_code: int


class TxnOffsetCommitResponse(NamedTuple):
    """The error code of each partition, 0 if its offset will be committed with the transaction (KIP-98)."""

    throttle_time_ms: int
    #: (topic, partition) -> error code.
    errors: dict[tuple[str, int], int]


class EndTxnResponse(NamedTuple):
    """Whether the transaction is decided, and the producer id and epoch for the next one (KIP-98, KIP-890).

    The id and epoch are -1 before version 5, and with an error.
    """

    throttle_time_ms: int
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1


class TransactionDescription(NamedTuple):
    """A transactional id as its coordinator knows it (KIP-664)."""

    error_code: int
    transactional_id: str
    #: The coordinator's name of the state, such as "Ongoing".
    state: str
    timeout_ms: int
    #: Milliseconds since the epoch; -1 without a transaction.
    start_time_ms: int
    producer_id: int
    producer_epoch: int
    #: Topic -> the partitions of the current transaction that have no marker yet.
    partitions: dict[str, list[int]]


class DescribeTransactionsResponse(NamedTuple):
    """One description for each transactional id of the request."""

    throttle_time_ms: int
    transactions: list[TransactionDescription]


class TransactionListing(NamedTuple):
    """A transactional id in the response of one of the coordinators (KIP-664)."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResponse(NamedTuple):
    """The transactional ids that this broker coordinates and that pass the filters of the request."""

    throttle_time_ms: int
    error_code: int
    #: The states in the request that the broker does not know.
    unknown_states: list[str]
    transactions: list[TransactionListing]


def encode_find_coordinator(
    version: int, correlation_id: int, client_id: str | None, key_type: int, key: str
) -> bytes:
    """Encodes a FindCoordinator request v1-v6 as a whole frame (KIP-98; KIP-699 for v4).

    Args:
        key_type: 0: ``key`` is a group id; 1: a transactional id.
    """
    keys = {"key": key} if version < 4 else {"coordinator_keys": [key]}
    request = FIND_COORDINATOR.request(key_type=key_type, **keys)
    return FIND_COORDINATOR.encode_request(version, correlation_id, client_id, request)


def encode_add_partitions_to_txn(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Mapping[str, Sequence[int]],
) -> bytes:
    """Encodes an AddPartitionsToTxn request v0-v3 as a whole frame (KIP-98).

    Args:
        partitions: topic -> partitions.
    """
    make = ADD_PARTITIONS_TO_TXN.request.AddPartitionsToTxnTopic
    request = ADD_PARTITIONS_TO_TXN.request(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=[make(topic, list(indexes)) for topic, indexes in partitions.items()],
    )
    return ADD_PARTITIONS_TO_TXN.encode_request(version, correlation_id, client_id, request)


def encode_add_offsets_to_txn(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group_id: str,
) -> bytes:
    """Encodes an AddOffsetsToTxn request v0-v4 as a whole frame (KIP-98)."""
    request = ADD_OFFSETS_TO_TXN.request(transactional_id, producer_id, producer_epoch, group_id)
    return ADD_OFFSETS_TO_TXN.encode_request(version, correlation_id, client_id, request)


def encode_txn_offset_commit(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> bytes:
    """Encodes a TxnOffsetCommit request v0-v5 as a whole frame (KIP-98; KIP-447 for v3).

    Before v2, the leader epochs are omitted.

    Args:
        group: before v3, only the group id can be sent. A member's generation and ids are then an error:
            without them, the broker could not reject the offsets of a former member.
        offsets: the offsets to commit.
    """
    message = TXN_OFFSET_COMMIT.request
    by_topic: dict[str, list[Any]] = {}
    for (topic, index), (committed, metadata, leader_epoch) in offsets.items():
        epoch = -1 if leader_epoch is None else leader_epoch
        by_topic.setdefault(topic, []).append(
            message.TxnOffsetCommitRequestPartition(index, committed, epoch, metadata)
        )
    request = message(
        transactional_id,
        group.group_id,
        producer_id,
        producer_epoch,
        group.generation_id,
        group.member_id,
        group.group_instance_id,
        [message.TxnOffsetCommitRequestTopic(name, NO_UUID, parts) for name, parts in by_topic.items()],
    )
    return TXN_OFFSET_COMMIT.encode_request(version, correlation_id, client_id, request)


def encode_end_txn(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    committed: bool,
) -> bytes:
    """Encodes an EndTxn request v0-v5 as a whole frame (KIP-98; KIP-890 for v5).

    Args:
        committed: True to commit, False to abort.
    """
    request = END_TXN.request(transactional_id, producer_id, producer_epoch, committed)
    return END_TXN.encode_request(version, correlation_id, client_id, request)


def encode_describe_transactions(
    version: int, correlation_id: int, client_id: str | None, transactional_ids: Sequence[str]
) -> bytes:
    """Encodes a DescribeTransactions request v0 as a whole frame (KIP-664)."""
    request = DESCRIBE_TRANSACTIONS.request(list(transactional_ids))
    return DESCRIBE_TRANSACTIONS.encode_request(version, correlation_id, client_id, request)


def encode_list_transactions(
    version: int,
    correlation_id: int,
    client_id: str | None,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> bytes:
    """Encodes a ListTransactions request v0-v2 as a whole frame (KIP-664, KIP-994, KIP-1152).

    The broker lists the transactional ids that pass all filters.

    Args:
        states: the coordinator's names of states, such as "Ongoing"; empty: all states.
        producer_ids: the producer ids; empty: all.
        duration_ms: lists only transactions that have been open for longer; -1: all. Needs v1.
        pattern: a regular expression in RE2's syntax that the whole transactional id matches; None or "": all
            ids. Needs v2.
    """
    if version < 2:
        # Other values that also mean "no filter" would be rejected.
        pattern = pattern or None
        duration_ms = duration_ms if version == 1 else max(duration_ms, -1)
    request = LIST_TRANSACTIONS.request(list(states), list(producer_ids), duration_ms, pattern)
    return LIST_TRANSACTIONS.encode_request(version, correlation_id, client_id, request)


def decode_find_coordinator(version: int, frame: Frame) -> FindCoordinatorResponse:
    """Decodes a FindCoordinator response v1-v6; from v4 on it must have exactly one coordinator.

    Without an error, the coordinator must be a broker with a usable address.
    """
    response = FIND_COORDINATOR.decode_response(version, frame)
    found = response
    message = f"FindCoordinator v{version} response"
    if version >= 4:
        if len(response.coordinators) != 1:
            raise invalid(
                message, f"coordinators has {len(response.coordinators)} elements, but must have one"
            )
        found = response.coordinators[0]
    if found.error_code == 0 and (problem := node_problem(found.node_id, found.host, found.port)):
        raise invalid(message, f"coordinator is invalid: {problem}")
    return FindCoordinatorResponse(
        response.throttle_time_ms,
        found.error_code,
        found.error_message,
        found.node_id,
        found.host,
        found.port,
    )


def _partition_errors(message: str, topics: Sequence[Any]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in topics:
        for index, code in partitions:
            if (topic, index) in found:
                # An entry without an error could hide one with an error.
                raise invalid(message, f"partition {topic!r}-{index} is there twice")
            found[topic, index] = code
    return found


def decode_add_partitions_to_txn(version: int, frame: Frame) -> AddPartitionsToTxnResponse:
    """Decodes an AddPartitionsToTxn response v0-v3."""
    found = ADD_PARTITIONS_TO_TXN.decode_response(version, frame)
    message = f"AddPartitionsToTxn v{version} response"
    codes = _partition_errors(message, found.results_by_topic_v3_and_below)
    return AddPartitionsToTxnResponse(found.throttle_time_ms, codes)


def decode_add_offsets_to_txn(version: int, frame: Frame) -> AddOffsetsToTxnResponse:
    """Decodes an AddOffsetsToTxn response v0-v4."""
    return AddOffsetsToTxnResponse(*ADD_OFFSETS_TO_TXN.decode_response(version, frame))


def decode_txn_offset_commit(version: int, frame: Frame) -> TxnOffsetCommitResponse:
    """Decodes a TxnOffsetCommit response v0-v5."""
    found = TXN_OFFSET_COMMIT.decode_response(version, frame)
    topics = [(topic.name, topic.partitions) for topic in found.topics]
    codes = _partition_errors(f"TxnOffsetCommit v{version} response", topics)
    return TxnOffsetCommitResponse(found.throttle_time_ms, codes)


def decode_end_txn(version: int, frame: Frame) -> EndTxnResponse:
    """Decodes an EndTxn response v0-v5."""
    found = EndTxnResponse(*END_TXN.decode_response(version, frame))
    if found.error_code == 0 and found.producer_id >= 0 > found.producer_epoch:
        problem = f"producer_epoch is {found.producer_epoch}, it must be 0 or more"
        raise invalid(f"EndTxn v{version} response", problem)
    return found


def decode_describe_transactions(version: int, frame: Frame) -> DescribeTransactionsResponse:
    """Decodes a DescribeTransactions response v0."""
    found = DESCRIBE_TRANSACTIONS.decode_response(version, frame)
    described = [
        TransactionDescription(*each._replace(topics=dict(each.topics))) for each in found.transaction_states
    ]
    return DescribeTransactionsResponse(found.throttle_time_ms, described)


def decode_list_transactions(version: int, frame: Frame) -> ListTransactionsResponse:
    """Decodes a ListTransactions response v0-v2."""
    found = LIST_TRANSACTIONS.decode_response(version, frame)
    listed = [TransactionListing(*each) for each in found.transaction_states]
    return ListTransactionsResponse(*found._replace(transaction_states=listed))


DECODERS |= {
    FIND_COORDINATOR: decode_find_coordinator,
    ADD_PARTITIONS_TO_TXN: decode_add_partitions_to_txn,
    ADD_OFFSETS_TO_TXN: decode_add_offsets_to_txn,
    TXN_OFFSET_COMMIT: decode_txn_offset_commit,
    END_TXN: decode_end_txn,
    DESCRIBE_TRANSACTIONS: decode_describe_transactions,
    LIST_TRANSACTIONS: decode_list_transactions,
}
