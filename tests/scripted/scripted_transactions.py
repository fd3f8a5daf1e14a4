"""The scripted broker's codec for the requests of transactions.

Written from the Kafka protocol guide; shares only the tuples of its public API with the package. Strict like
``scripted_wire``. Does no I/O and has no state.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata
from tests.scripted.scripted_wire import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
    Header,
    framed,
    read_init_producer_id,
)
from tools.harness.reference_wire import MalformedError, encode_array, encode_string

Place = tuple[str, int]
"""Topic and partition."""

_IDENTITY = struct.Struct(">qh")
_INT64 = struct.Struct(">q")
GROUP, TRANSACTION = 0, 1


class FindCoordinator(NamedTuple):
    key_type: int
    key: str


class InitProducerId(NamedTuple):
    """The identity is -1 if the request has none."""

    transactional_id: str | None
    timeout_ms: int
    producer_id: int
    epoch: int


class AddPartitions(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    partitions: list[Place]


class AddOffsets(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    group_id: str


class CommitOffsets(NamedTuple):
    """Before version 3 the group has nothing but its id, before version 2 leader epochs are -1."""

    transactional_id: str
    producer_id: int
    epoch: int
    group: ConsumerGroupMetadata
    offsets: dict[Place, OffsetAndMetadata]


class EndTxn(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    committed: bool


class DescribeTransactions(NamedTuple):
    transactional_ids: list[str]


class ListTransactions(NamedTuple):
    """The duration is -1 before version 1, the pattern None before version 2."""

    states: list[str]
    producer_ids: list[int]
    duration_ms: int
    pattern: str | None


Request = (
    FindCoordinator
    | InitProducerId
    | AddPartitions
    | AddOffsets
    | CommitOffsets
    | EndTxn
    | DescribeTransactions
    | ListTransactions
)


def _identity(header: Header) -> tuple[str, int, int]:
    transactional_id = header.text()
    producer_id, epoch = header.body.unpack(_IDENTITY)
    return transactional_id, producer_id, epoch


def _find_coordinator(header: Header) -> FindCoordinator:
    reader, version = header.body, header.version
    key = header.text() if version < 4 else ""
    key_type = reader.int8() if version >= 1 else GROUP
    if version >= 4:
        keys = reader.array(True, header.text)
        if len(keys) != 1:
            raise MalformedError(f"a producer asks for one coordinator, not {len(keys)}")
        key = keys[0]
    return FindCoordinator(key_type, key)


def _add_partitions(header: Header) -> AddPartitions:
    if header.version >= 4:
        raise MalformedError(f"AddPartitionsToTxn version {header.version} is for brokers")
    reader = header.body
    partitions: list[Place] = []

    def topic() -> None:
        name = header.text()
        partitions.extend((name, index) for index in reader.array(header.flexible, reader.int32))
        reader.no_tags(header.flexible)

    identity = _identity(header)
    reader.array(header.flexible, topic)
    return AddPartitions(*identity, _distinct(partitions))


def _distinct(places: list[Place]) -> list[Place]:
    if len(set(places)) < len(places):
        raise MalformedError(f"a partition is named twice: {places}")
    return places


def _add_offsets(header: Header) -> AddOffsets:
    return AddOffsets(*_identity(header), header.text())


def _commit_offsets(header: Header) -> CommitOffsets:
    reader, version = header.body, header.version
    offsets: list[tuple[Place, OffsetAndMetadata]] = []

    def partition(topic: str) -> None:
        index, offset = reader.int32(), header.int64()
        leader_epoch = reader.int32() if version >= 2 else -1
        metadata = reader.string(header.flexible)
        reader.no_tags(header.flexible)
        offsets.append(((topic, index), OffsetAndMetadata(offset, metadata, leader_epoch)))

    def topic() -> None:
        name = header.text()
        reader.array(header.flexible, lambda: partition(name))
        reader.no_tags(header.flexible)

    transactional_id, group = header.text(), ConsumerGroupMetadata(header.text())
    producer_id, epoch = reader.unpack(_IDENTITY)
    if version >= 3:
        group = ConsumerGroupMetadata(
            group.group_id, reader.int32(), header.text(), reader.string(header.flexible)
        )
    reader.array(header.flexible, topic)
    _distinct([place for place, _ in offsets])
    return CommitOffsets(transactional_id, producer_id, epoch, group, dict(offsets))


def _end_txn(header: Header) -> EndTxn:
    identity, committed = _identity(header), header.body.int8()
    if committed not in (0, 1):
        raise MalformedError(f"a boolean is {committed}")
    return EndTxn(*identity, committed == 1)


def _describe_transactions(header: Header) -> DescribeTransactions:
    return DescribeTransactions(header.body.array(header.flexible, header.text))


def _list_transactions(header: Header) -> ListTransactions:
    reader, version = header.body, header.version
    return ListTransactions(
        reader.array(header.flexible, header.text),
        reader.array(header.flexible, header.int64),
        header.int64() if version >= 1 else -1,
        reader.string(header.flexible) if version >= 2 else None,
    )


_READERS: dict[int, Callable[[Header], Request]] = {
    FIND_COORDINATOR: _find_coordinator,
    ADD_PARTITIONS_TO_TXN: _add_partitions,
    ADD_OFFSETS_TO_TXN: _add_offsets,
    TXN_OFFSET_COMMIT: _commit_offsets,
    END_TXN: _end_txn,
    DESCRIBE_TRANSACTIONS: _describe_transactions,
    LIST_TRANSACTIONS: _list_transactions,
}
API_KEYS = (INIT_PRODUCER_ID, *_READERS)


def read_request(header: Header) -> Request:
    """Returns what a request asks for; its API key is one of ``API_KEYS``."""
    if header.api_key == INIT_PRODUCER_ID:
        return InitProducerId(*read_init_producer_id(header))
    request = _READERS[header.api_key](header)
    header.end(f"{type(request).__name__} request")
    return request


# Responses


def _framed(header: Header, body: bytes) -> bytes:
    tags = b"\x00" if header.flexible else b""
    return framed(header.correlation_id, body + tags, tagged_header=header.flexible)


def write_find_coordinator(
    header: Header,
    key: str,
    broker: tuple[int, str, int],
    error: int = 0,
    message: str | None = None,
    throttle_ms: int = 0,
) -> bytes:
    """``broker``: node id, host, port."""
    flexible = header.flexible
    node_id, host, port = broker
    place = struct.pack(">i", node_id) + encode_string(host, flexible) + struct.pack(">i", port)
    text = encode_string(message, flexible) if header.version >= 1 else b""
    body = struct.pack(">i", throttle_ms) if header.version >= 1 else b""
    if header.version >= 4:
        entry = encode_string(key, True) + place + struct.pack(">h", error) + text + b"\x00"
        body += encode_array([entry], True, bytes)
    else:
        body += struct.pack(">h", error) + text + place
    return _framed(header, body)


def write_partition_errors(header: Header, errors: Mapping[Place, int], throttle_ms: int = 0) -> bytes:
    """The response of AddPartitionsToTxn and TxnOffsetCommit."""
    flexible = header.flexible
    tags = b"\x00" if flexible else b""
    topics: dict[str, list[tuple[int, int]]] = {}
    for (topic, index), error in errors.items():
        topics.setdefault(topic, []).append((index, error))

    def one(topic: tuple[str, list[tuple[int, int]]]) -> bytes:
        name, partitions = topic
        parts = encode_array(partitions, flexible, lambda each: struct.pack(">ih", *each) + tags)
        return encode_string(name, flexible) + parts + tags

    return _framed(header, struct.pack(">i", throttle_ms) + encode_array(list(topics.items()), flexible, one))


def write_error(header: Header, error: int = 0, throttle_ms: int = 0) -> bytes:
    """The response of AddOffsetsToTxn, and of EndTxn before version 5."""
    return _framed(header, struct.pack(">ih", throttle_ms, error))


def write_identity(header: Header, identity: tuple[int, int], error: int = 0, throttle_ms: int = 0) -> bytes:
    """The response of InitProducerId, and of EndTxn from version 5 on."""
    return _framed(header, struct.pack(">ihqh", throttle_ms, error, *identity))


class Description(NamedTuple):
    """A transactional id in the response of DescribeTransactions."""

    error: int
    transactional_id: str
    state: str
    timeout_ms: int
    start_time_ms: int
    producer_id: int
    epoch: int
    partitions: Mapping[str, Sequence[int]]


def write_descriptions(header: Header, descriptions: Sequence[Description], throttle_ms: int = 0) -> bytes:
    """The response of DescribeTransactions."""

    def topic(entry: tuple[str, Sequence[int]]) -> bytes:
        name, indexes = entry
        parts = encode_array(indexes, True, lambda index: struct.pack(">i", index))
        return encode_string(name, True) + parts + b"\x00"

    def one(each: Description) -> bytes:
        out = struct.pack(">h", each.error) + encode_string(each.transactional_id, True)
        out += encode_string(each.state, True)
        out += struct.pack(">iqqh", each.timeout_ms, each.start_time_ms, each.producer_id, each.epoch)
        return out + encode_array(list(each.partitions.items()), True, topic) + b"\x00"

    return _framed(header, struct.pack(">i", throttle_ms) + encode_array(descriptions, True, one))


def write_listing(
    header: Header,
    listing: Sequence[tuple[str, int, str]],
    unknown_states: Sequence[str] = (),
    error: int = 0,
    throttle_ms: int = 0,
) -> bytes:
    """The response of ListTransactions: transactional id, producer id and state of each."""

    def one(each: tuple[str, int, str]) -> bytes:
        transactional_id, producer_id, state = each
        out = encode_string(transactional_id, True) + _INT64.pack(producer_id)
        return out + encode_string(state, True) + b"\x00"

    unknown = encode_array(unknown_states, True, lambda state: encode_string(state, True))
    body = struct.pack(">ih", throttle_ms, error) + unknown + encode_array(listing, True, one)
    return _framed(header, body)
