"""The scripted broker's codec for requests other than Produce: ApiVersions, Metadata, InitProducerId, SASL.

``scripted_transactions`` has those of transactions, ``scripted_reading`` those of reading.
Written from the Kafka protocol guide; shares no code with the package. Strict like ``reference_wire``, whose
primitive types it uses. Does no I/O and has no state.
"""

import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.harness.reference_wire import (
    MalformedError,
    Reader,
    encode_array,
    encode_string,
    encode_tags,
    encode_uvarint,
)

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
FIND_COORDINATOR, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 10, 24, 25, 26, 28
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
FETCH, LIST_OFFSETS, CREATE_TOPICS, DESCRIBE_CONFIGS = 1, 2, 19, 32
VERSIONS = {
    PRODUCE: (3, 13, 9),
    METADATA: (0, 13, 9),
    API_VERSIONS: (0, 4, 3),
    INIT_PRODUCER_ID: (0, 5, 2),
    SASL_HANDSHAKE: (0, 1, 1 << 15),
    SASL_AUTHENTICATE: (0, 2, 2),
    FIND_COORDINATOR: (0, 6, 3),
    ADD_PARTITIONS_TO_TXN: (0, 5, 3),
    ADD_OFFSETS_TO_TXN: (0, 4, 3),
    END_TXN: (0, 5, 3),
    TXN_OFFSET_COMMIT: (0, 5, 3),
    DESCRIBE_TRANSACTIONS: (0, 0, 0),
    LIST_TRANSACTIONS: (0, 2, 0),
    FETCH: (4, 12, 12),
    LIST_OFFSETS: (1, 7, 6),
    CREATE_TOPICS: (2, 7, 5),
    DESCRIBE_CONFIGS: (1, 4, 4),
}
"""API key -> the lowest and the highest version of the brokers, and the first one that is flexible."""
NO_ID = uuid.UUID(int=0)


@dataclass(frozen=True)
class Header:
    """The header of any request, and a reader positioned after it."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Reader = field(repr=False, compare=False)

    @property
    def flexible(self) -> bool:
        return self.version >= VERSIONS[self.api_key][2]

    def text(self) -> str:
        """Reads a text that may not be null."""
        text = self.body.string(self.flexible)
        if text is None:
            raise MalformedError("a text is null")
        return text

    def int64(self) -> int:
        return int.from_bytes(self.body.take(8), signed=True)

    def end(self, what: str) -> None:
        """Reads the end of a request: tags, none of which is known."""
        self.body.no_tags(self.flexible)
        self.body.expect_end(what)


def read_header(payload: bytes) -> Header:
    """Reads the header of a request; ``payload`` is the request without its size prefix of four bytes."""
    reader = Reader(payload)
    api_key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    if api_key not in VERSIONS:
        raise MalformedError(f"API key {api_key} is not used by a producer")
    header = Header(api_key, version, correlation_id, reader.string(flexible=False), reader)
    reader.no_tags(header.flexible)
    return header


def read_api_versions(header: Header) -> tuple[str | None, str | None]:
    """Returns the client's software name and version, which requests contain from version 3 on."""
    software: tuple[str | None, str | None] = (None, None)
    if header.version >= 3:
        software = header.body.string(True), header.body.string(True)
        if header.version >= 5:
            # The cluster and the node that the client expects.
            header.body.string(True)
            header.body.int32()
        header.body.no_tags(True)
    header.body.expect_end("ApiVersions request")
    return software


def read_metadata(header: Header) -> tuple[list[str] | None, bool, bool]:
    """Returns the requested topics (None: all), whether missing ones may be created, and whether the
    authorized operations are asked for."""
    reader, version, flexible = header.body, header.version, header.flexible

    def topic() -> str:
        if version >= 10 and reader.uuid() != NO_ID:
            raise MalformedError("a topic is requested by id")
        name = header.text()
        reader.no_tags(flexible)
        return name

    count = reader.uvarint() - 1 if flexible else reader.int32()
    topics = None if count == -1 else [topic() for _ in range(count)]
    create = bool(reader.int8()) if version >= 4 else True
    if 8 <= version <= 10:
        reader.int8()
    operations = version >= 8 and bool(reader.int8())
    header.end("Metadata request")
    return topics, create, operations


def read_init_producer_id(header: Header) -> tuple[str | None, int, int, int]:
    """Returns the transactional id, timeout in ms, producer id and epoch; -1 if the version has none."""
    reader = header.body
    transactional_id, timeout_ms = reader.string(header.flexible), reader.int32()
    producer_id, epoch = -1, -1
    if header.version >= 3:
        producer_id, epoch = reader.unpack(struct.Struct(">qh"))
    header.end("InitProducerId request")
    return transactional_id, timeout_ms, producer_id, epoch


def read_sasl_handshake(header: Header) -> str:
    """Returns the mechanism."""
    mechanism = header.text()
    header.end("SaslHandshake request")
    return mechanism


def read_sasl_authenticate(header: Header) -> bytes:
    """Returns the mechanism's message."""
    message = header.body.bytes_(header.flexible)
    header.end("SaslAuthenticate request")
    assert message is not None
    return message


@dataclass(frozen=True)
class PartitionAnswer:
    index: int
    leader: int
    epoch: int = 0
    error: int = 0


NOT_ASKED = -(2**31)


@dataclass(frozen=True)
class TopicAnswer:
    name: str
    id: uuid.UUID = NO_ID
    error: int = 0
    partitions: Sequence[PartitionAnswer] = ()
    operations: int = NOT_ASKED


def framed(correlation_id: int, body: bytes, tagged_header: bool) -> bytes:
    """Returns a whole response, size prefix included."""
    out = struct.pack(">i", correlation_id) + (b"\x00" if tagged_header else b"") + body
    return struct.pack(">i", len(out)) + out


def write_api_versions(
    version: int,
    correlation_id: int,
    ranges: Mapping[int, tuple[int, int]],
    error: int = 0,
    throttle_ms: int = 0,
    features: Mapping[str, int] | None = None,
    features_epoch: int = -1,
) -> bytes:
    """``features``: finalized feature -> level; like their epoch, not in responses before version 3."""
    flexible = version >= 3
    tags = b"\x00" if flexible else b""
    body = struct.pack(">h", error)
    body += encode_array(
        list(ranges.items()), flexible, lambda entry: struct.pack(">hhh", entry[0], *entry[1]) + tags
    )
    if version >= 1:
        body += struct.pack(">i", throttle_ms)
    if flexible:
        body += encode_tags(_features(features or {}, features_epoch))
    # The header of this response has no tags in any version: the client does not know the broker yet.
    return framed(correlation_id, body, tagged_header=False)


def _features(features: Mapping[str, int], epoch: int) -> dict[int, bytes]:
    tags = {}
    if epoch >= 0:
        tags[1] = struct.pack(">q", epoch)
    if features:
        tags[2] = encode_array(
            list(features.items()),
            True,
            # The highest and the lowest level.
            lambda entry: encode_string(entry[0], True) + struct.pack(">hh", entry[1], entry[1]) + b"\x00",
        )
    return tags


def write_metadata(
    version: int,
    correlation_id: int,
    brokers: Sequence[tuple[int, str, int]],
    topics: Sequence[TopicAnswer],
    cluster_id: str,
    error: int = 0,
    throttle_ms: int = 0,
    controller: int | None = None,
) -> bytes:
    """``controller``: its node id; None: the first broker's."""
    flexible = version >= 9
    tags = b"\x00" if flexible else b""

    def broker(node: tuple[int, str, int]) -> bytes:
        node_id, host, port = node
        rack = encode_string(None, flexible) if version >= 1 else b""
        return (
            struct.pack(">i", node_id) + encode_string(host, flexible) + struct.pack(">i", port) + rack + tags
        )

    def partition(answer: PartitionAnswer) -> bytes:
        out = struct.pack(">hii", answer.error, answer.index, answer.leader)
        if version >= 7:
            out += struct.pack(">i", answer.epoch)
        # Replicas, in-sync replicas, and from version 5 on offline replicas.
        for nodes in ([answer.leader], [answer.leader], [])[: 3 if version >= 5 else 2]:
            out += encode_array(nodes, flexible, lambda node: struct.pack(">i", node))
        return out + tags

    def topic(answer: TopicAnswer) -> bytes:
        out = struct.pack(">h", answer.error) + encode_string(answer.name, flexible)
        if version >= 10:
            out += answer.id.bytes
        if version >= 1:
            out += b"\x00"
        out += encode_array(answer.partitions, flexible, partition)
        if version >= 8:
            out += struct.pack(">i", answer.operations)
        return out + tags

    body = struct.pack(">i", throttle_ms) if version >= 3 else b""
    body += encode_array(brokers, flexible, broker)
    if version >= 2:
        body += encode_string(cluster_id, flexible)
    if version >= 1:
        first = brokers[0][0] if brokers else -1
        body += struct.pack(">i", first if controller is None else controller)
    body += encode_array(topics, flexible, topic)
    if 8 <= version <= 10:
        body += struct.pack(">i", -(2**31))
    if version >= 13:
        body += struct.pack(">h", error)
    return framed(correlation_id, body + tags, tagged_header=flexible)


def write_init_producer_id(
    version: int, correlation_id: int, producer_id: int, epoch: int, error: int = 0, throttle_ms: int = 0
) -> bytes:
    flexible = version >= 2
    body = struct.pack(">ihqh", throttle_ms, error, producer_id, epoch) + (b"\x00" if flexible else b"")
    return framed(correlation_id, body, tagged_header=flexible)


def write_sasl_handshake(
    version: int, correlation_id: int, mechanisms: Sequence[str], error: int = 0
) -> bytes:
    body = struct.pack(">h", error) + encode_array(mechanisms, False, lambda name: encode_string(name, False))
    return framed(correlation_id, body, tagged_header=False)


def write_sasl_authenticate(
    version: int,
    correlation_id: int,
    message: bytes,
    lifetime_ms: int = 0,
    error: int = 0,
    error_message: str | None = None,
) -> bytes:
    flexible = version >= 2
    body = struct.pack(">h", error) + encode_string(error_message, flexible)
    body += (encode_uvarint(len(message) + 1) if flexible else struct.pack(">i", len(message))) + message
    if version >= 1:
        body += struct.pack(">q", lifetime_ms)
    return framed(correlation_id, body + (b"\x00" if flexible else b""), tagged_header=flexible)
