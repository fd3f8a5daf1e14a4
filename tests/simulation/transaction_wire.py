"""The model's codec for the requests of transactions: decodes requests, encodes responses.

Written from the Kafka protocol guide, KIP-98, KIP-360, KIP-447, KIP-664, KIP-699 and KIP-890; shares no code
with the package. Strict like ``reference_wire``, whose primitive types it uses: a request with an unknown
field, or with bytes left over, is an error. No I/O and no state. Times are milliseconds.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cyproducer.testing.broker.group_offsets import Offset as Offset
from cyproducer.testing.broker.group_offsets import TxnOffsetCommit as TxnOffsetCommit
from tools.harness.reference_wire import MalformedError, Reader, encode_array, encode_string, encode_tags

FIND_COORDINATOR, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, DESCRIBE = 10, 24, 25, 26, 28, 65
#: API key -> the first version with compact types and tagged fields.
FIRST_FLEXIBLE = {
    FIND_COORDINATOR: 3,
    ADD_PARTITIONS: 3,
    ADD_OFFSETS: 3,
    END_TXN: 3,
    TXN_OFFSET_COMMIT: 3,
    DESCRIBE: 0,
}
#: API key -> the versions that clients may use: brokers alone use newer ones of AddPartitionsToTxn.
VERSIONS = {
    FIND_COORDINATOR: (0, 6),
    ADD_PARTITIONS: (0, 3),
    ADD_OFFSETS: (0, 4),
    END_TXN: (0, 5),
    TXN_OFFSET_COMMIT: (0, 5),
    DESCRIBE: (0, 0),
}
SECOND_VERSION = {END_TXN: 5, TXN_OFFSET_COMMIT: 5, ADD_PARTITIONS: 1 << 15, ADD_OFFSETS: 1 << 15}
"""API key -> the first version whose epoch says which transaction is meant (KIP-890)."""
BY_ID, BY_GROUP = 1, 0
"""The types of keys in FindCoordinator: a transactional id, a group."""

Place = tuple[str, int]
"""Topic and partition."""


class FindCoordinator(NamedTuple):
    key_type: int
    keys: list[str]


class AddPartitions(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    partitions: list[Place]


class AddOffsets(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    group: str


class EndTxn(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    commits: bool


class Describe(NamedTuple):
    transactional_ids: list[str]


Request = FindCoordinator | AddPartitions | AddOffsets | EndTxn | TxnOffsetCommit | Describe


class Header(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


def acts_on_any_transaction(frame: bytes) -> bool:
    """Whether a request that is handled late acts on the transaction that is open then."""
    key, version = struct.unpack_from(">hh", frame, 4)
    return bool(version < SECOND_VERSION.get(key, 0))


def read_request(frame: bytes) -> tuple[Header, Request]:
    """Decodes a whole request, including its four length bytes.

    Raises:
        MalformedError: it is not a request of transactions, in a version that clients may use, to the last
        byte.
    """
    reader = Reader(frame)
    length = reader.int32()
    if length != reader.left:
        raise MalformedError(f"frame says {length} bytes and has {reader.left}")
    key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    if key not in VERSIONS or not VERSIONS[key][0] <= version <= VERSIONS[key][1]:
        raise MalformedError(f"API key {key} version {version} is not a client's request of transactions")
    header = Header(key, version, correlation_id, reader.string(flexible=False))
    flexible = version >= FIRST_FLEXIBLE[key]
    reader.no_tags(flexible)
    request = _READERS[key](reader, version, flexible)
    reader.no_tags(flexible)
    reader.expect_end("request")
    return header, request


def _text(reader: Reader, flexible: bool) -> str:
    text = reader.string(flexible)
    if text is None:
        raise MalformedError("a string that must be there is null")
    return text


def _identity(reader: Reader) -> tuple[int, int]:
    producer_id, epoch = reader.unpack(struct.Struct(">qh"))
    return producer_id, epoch


def _find_coordinator(reader: Reader, version: int, flexible: bool) -> FindCoordinator:
    if version >= 4:
        key_type = reader.int8()
        return FindCoordinator(key_type, reader.array(flexible, lambda: _text(reader, flexible)))
    key = _text(reader, flexible)
    return FindCoordinator(reader.int8() if version >= 1 else BY_GROUP, [key])


def _add_partitions(reader: Reader, version: int, flexible: bool) -> AddPartitions:
    transactional_id, identity = _text(reader, flexible), _identity(reader)

    def topic() -> list[Place]:
        name = _text(reader, flexible)
        indexes = reader.array(flexible, reader.int32)
        reader.no_tags(flexible)
        return [(name, index) for index in indexes]

    places = [place for topic in reader.array(flexible, topic) for place in topic]
    if len(set(places)) < len(places):
        raise MalformedError(f"a partition is added twice: {places}")
    return AddPartitions(transactional_id, *identity, places)


def _add_offsets(reader: Reader, version: int, flexible: bool) -> AddOffsets:
    return AddOffsets(_text(reader, flexible), *_identity(reader), _text(reader, flexible))


def _end_txn(reader: Reader, version: int, flexible: bool) -> EndTxn:
    transactional_id, identity, commits = _text(reader, flexible), _identity(reader), reader.int8()
    if commits not in (0, 1):
        raise MalformedError(f"a Boolean is {commits}")
    return EndTxn(transactional_id, *identity, bool(commits))


def _txn_offset_commit(reader: Reader, version: int, flexible: bool) -> TxnOffsetCommit:
    transactional_id, group, identity = _text(reader, flexible), _text(reader, flexible), _identity(reader)
    generation, member, instance = -1, "", None
    if version >= 3:
        generation, member, instance = reader.int32(), _text(reader, flexible), reader.string(flexible)

    def partition() -> tuple[int, Offset]:
        index, (offset,) = reader.int32(), reader.unpack(struct.Struct(">q"))
        leader_epoch = reader.int32() if version >= 2 else -1
        told = Offset(offset, leader_epoch, reader.string(flexible))
        reader.no_tags(flexible)
        return index, told

    def topic() -> list[tuple[Place, Offset]]:
        name = _text(reader, flexible)
        partitions = reader.array(flexible, partition)
        reader.no_tags(flexible)
        return [((name, index), told) for index, told in partitions]

    offsets = [entry for topic in reader.array(flexible, topic) for entry in topic]
    if len(dict(offsets)) < len(offsets):
        raise MalformedError(f"a partition is committed twice: {offsets}")
    return TxnOffsetCommit(transactional_id, group, *identity, generation, member, instance, dict(offsets))


def _describe(reader: Reader, version: int, flexible: bool) -> Describe:
    return Describe(reader.array(flexible, lambda: _text(reader, flexible)))


_READERS: dict[int, Callable[[Reader, int, bool], Request]] = {
    FIND_COORDINATOR: _find_coordinator,
    ADD_PARTITIONS: _add_partitions,
    ADD_OFFSETS: _add_offsets,
    END_TXN: _end_txn,
    TXN_OFFSET_COMMIT: _txn_offset_commit,
    DESCRIBE: _describe,
}


# Responses


class Coordinator(NamedTuple):
    """Where a key's coordinator is, or an error code."""

    key: str
    node: int = -1
    host: str = ""
    port: int = -1
    error: int = 0
    message: str | None = None


class Description(NamedTuple):
    """A transaction as its coordinator describes it."""

    transactional_id: str
    error: int = 0
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = -1
    producer_id: int = -1
    epoch: int = -1
    partitions: Sequence[Place] = ()


def _framed(header: Header, body: bytes) -> bytes:
    out = struct.pack(">i", header.correlation_id)
    out += b"\x00" + body + b"\x00" if _flexible(header) else body
    return struct.pack(">i", len(out)) + out


def _flexible(header: Header) -> bool:
    return header.version >= FIRST_FLEXIBLE[header.api_key]


def _by_topic(places: Mapping[Place, int], flexible: bool) -> bytes:
    """Error codes of partitions, as AddPartitionsToTxn and TxnOffsetCommit return them."""
    tags = b"\x00" if flexible else b""
    topics: dict[str, list[tuple[int, int]]] = {}
    for (name, index), code in places.items():
        topics.setdefault(name, []).append((index, code))

    def topic(entry: tuple[str, list[tuple[int, int]]]) -> bytes:
        name, partitions = entry
        codes = encode_array(partitions, flexible, lambda told: struct.pack(">ih", *told) + tags)
        return encode_string(name, flexible) + codes + tags

    return encode_array(list(topics.items()), flexible, topic)


def write_coordinators(header: Header, found: Sequence[Coordinator], throttle_ms: int = 0) -> bytes:
    flexible, version = _flexible(header), header.version
    body = struct.pack(">i", throttle_ms) if version >= 1 else b""
    if version >= 4:

        def entry(told: Coordinator) -> bytes:
            out = (
                encode_string(told.key, True) + struct.pack(">i", told.node) + encode_string(told.host, True)
            )
            out += struct.pack(">ih", told.port, told.error)
            return out + encode_string(told.message, True) + b"\x00"

        return _framed(header, body + encode_array(found, True, entry))
    (told,) = found
    body += struct.pack(">h", told.error)
    if version >= 1:
        body += encode_string(told.message, flexible)
    body += struct.pack(">i", told.node) + encode_string(told.host, flexible) + struct.pack(">i", told.port)
    return _framed(header, body)


def write_partition_codes(header: Header, codes: Mapping[Place, int], throttle_ms: int = 0) -> bytes:
    """The response to AddPartitionsToTxn and to TxnOffsetCommit."""
    return _framed(header, struct.pack(">i", throttle_ms) + _by_topic(codes, _flexible(header)))


def write_added_offsets(header: Header, error: int, throttle_ms: int = 0) -> bytes:
    return _framed(header, struct.pack(">ih", throttle_ms, error))


def write_ended(header: Header, error: int, producer_id: int, epoch: int, throttle_ms: int = 0) -> bytes:
    """``producer_id`` and ``epoch`` are left out before version 5."""
    body = struct.pack(">ih", throttle_ms, error)
    if header.version >= 5:
        body += struct.pack(">qh", producer_id, epoch)
    return _framed(header, body)


def write_descriptions(header: Header, found: Sequence[Description], throttle_ms: int = 0) -> bytes:
    def topic(entry: tuple[str, list[int]]) -> bytes:
        indexes = encode_array(entry[1], True, lambda index: struct.pack(">i", index))
        return encode_string(entry[0], True) + indexes + b"\x00"

    def description(told: Description) -> bytes:
        topics: dict[str, list[int]] = {}
        for name, index in told.partitions:
            topics.setdefault(name, []).append(index)
        out = struct.pack(">h", told.error) + encode_string(told.transactional_id, True)
        out += encode_string(told.state, True)
        out += struct.pack(">iqqh", told.timeout_ms, told.start_ms, told.producer_id, told.epoch)
        return out + encode_array(list(topics.items()), True, topic) + b"\x00"

    return _framed(header, struct.pack(">i", throttle_ms) + encode_array(found, True, description))


def write_api_versions(
    version: int,
    correlation_id: int,
    ranges: Mapping[int, tuple[int, int]],
    features_epoch: int,
    level: int,
) -> bytes:
    """ApiVersions with the features of KIP-584: ``transaction.version`` has this level; 0: it is absent."""
    flexible = version >= 3
    body = struct.pack(">h", 0)
    body += encode_array(
        list(ranges.items()),
        flexible,
        lambda entry: struct.pack(">hhh", entry[0], *entry[1]) + (b"\x00" if flexible else b""),
    )
    if version >= 1:
        body += struct.pack(">i", 0)
    if flexible:

        def feature(entry: tuple[str, int, int]) -> bytes:
            return encode_string(entry[0], True) + struct.pack(">hh", *entry[1:]) + b"\x00"

        # Supported features have (lowest, highest), finalized ones (highest, lowest).
        finalized = [("metadata.version", 27, 27)]
        if level:
            finalized.append(("transaction.version", level, level))
        supported = [("metadata.version", 7, 27)]
        if version >= 4:
            # Version 3 can't say that a feature may be off.
            supported.append(("transaction.version", 0, 2))
        tags = {
            0: encode_array(supported, True, feature),
            1: struct.pack(">q", features_epoch),
            2: encode_array(finalized, True, feature),
        }
        body += encode_tags(tags)
    out = struct.pack(">i", correlation_id) + body
    return struct.pack(">i", len(out)) + out
