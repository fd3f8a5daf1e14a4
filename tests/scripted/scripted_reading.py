"""What the scripted broker answers to Fetch, ListOffsets, CreateTopics and DescribeConfigs.

Written from the Kafka protocol guide; shares no code with the package. Strict like ``scripted_wire``. Owns
the logs and options that it answers from; ``ScriptedCluster.changed`` guards them. Does no I/O.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.scripted.scripted_wire import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
    Header,
    framed,
)
from tools.harness.reference_wire import (
    MalformedError,
    Reader,
    encode_array,
    encode_string,
    encode_tags,
    encode_uvarint,
)

LATEST, EARLIEST = -1, -2
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, TOPIC_EXISTS = 1, 3, 36
TOPIC = 2


class Fetch(NamedTuple):
    topic: str
    partition: int
    offset: int
    max_bytes: int
    max_wait_ms: int


class ListOffsets(NamedTuple):
    topic: str
    partition: int
    timestamp: int


class CreateTopic(NamedTuple):
    name: str
    partitions: int
    replicas: int
    configs: dict[str, str]
    timeout_ms: int


class DescribeConfigs(NamedTuple):
    topics: list[str]


Request = Fetch | ListOffsets | CreateTopic | DescribeConfigs


def _expect(reader: Reader, form: str, *values: int) -> None:
    found = reader.unpack(struct.Struct(form))
    if found != values:
        raise MalformedError(f"{found} instead of {values}")


def _one(header: Header) -> None:
    """Reads the count of an array that must have one element."""
    count = header.body.uvarint() - 1 if header.flexible else header.body.int32()
    if count != 1:
        raise MalformedError(f"{count} elements instead of one")


def _fetch(header: Header) -> Fetch:
    reader, version = header.body, header.version
    _expect(reader, ">i", -1)
    max_wait_ms = reader.int32()
    _expect(reader, ">i", 1)
    max_bytes = reader.int32()
    _expect(reader, ">b", 0)
    if version >= 7:
        _expect(reader, ">ii", 0, -1)
    _one(header)
    topic = header.text()
    _one(header)
    partition = reader.int32()
    if version >= 9:
        _expect(reader, ">i", -1)
    offset = header.int64()
    if version >= 12:
        _expect(reader, ">i", -1)
    if version >= 5:
        _expect(reader, ">q", -1)
    _expect(reader, ">i", max_bytes)
    reader.no_tags(header.flexible)
    reader.no_tags(header.flexible)
    if version >= 7 and reader.array(header.flexible, reader.int8):
        raise MalformedError("a session without topics forgets some")
    if version >= 11 and header.text():
        raise MalformedError("a rack")
    return Fetch(topic, partition, offset, max_bytes, max_wait_ms)


def _list_offsets(header: Header) -> ListOffsets:
    reader, version = header.body, header.version
    _expect(reader, ">i", -1)
    if version >= 2:
        _expect(reader, ">b", 0)
    _one(header)
    topic = header.text()
    _one(header)
    partition = reader.int32()
    if version >= 4:
        _expect(reader, ">i", -1)
    timestamp = header.int64()
    reader.no_tags(header.flexible)
    reader.no_tags(header.flexible)
    return ListOffsets(topic, partition, timestamp)


def _create_topics(header: Header) -> CreateTopic:
    reader = header.body
    _one(header)
    name, partitions, replicas = header.text(), reader.int32(), reader.int16()
    if reader.array(header.flexible, reader.int8):
        raise MalformedError("replicas are assigned")

    def config() -> tuple[str, str]:
        pair = header.text(), header.text()
        reader.no_tags(header.flexible)
        return pair

    configs = dict(reader.array(header.flexible, config))
    reader.no_tags(header.flexible)
    timeout_ms = reader.int32()
    _expect(reader, ">b", 0)
    return CreateTopic(name, partitions, replicas, configs, timeout_ms)


def _describe_configs(header: Header) -> DescribeConfigs:
    reader = header.body

    def topic() -> str:
        _expect(reader, ">b", TOPIC)
        name = header.text()
        if header.flexible:
            _expect(reader, ">b", 0)
        else:
            _expect(reader, ">i", -1)
        reader.no_tags(header.flexible)
        return name

    topics = reader.array(header.flexible, topic)
    _expect(reader, ">b", 0)
    if header.version >= 3:
        _expect(reader, ">b", 0)
    return DescribeConfigs(topics)


_READERS: dict[int, Callable[[Header], Request]] = {
    FETCH: _fetch,
    LIST_OFFSETS: _list_offsets,
    CREATE_TOPICS: _create_topics,
    DESCRIBE_CONFIGS: _describe_configs,
}
API_KEYS = tuple(_READERS)


def read_request(header: Header) -> Request:
    """Returns what a request asks for; its API key is one of ``API_KEYS``."""
    request = _READERS[header.api_key](header)
    header.end(f"{type(request).__name__} request")
    return request


@dataclass
class Log:
    """A partition's batches, each with its last offset, in order; it may begin later, and grow invisibly."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    start: int = 0
    high_watermark: int = 0
    end: int | None = None
    """The end of the leader's log; None: the high watermark."""

    def fetch(self, offset: int, max_bytes: int) -> tuple[int, bytes]:
        """Returns an error code and records: the batch with the offset, and what fits behind it."""
        if not self.start <= offset <= (self.high_watermark if self.end is None else self.end):
            return OFFSET_OUT_OF_RANGE, b""
        found = [data for last, data in self.batches if offset <= last < self.high_watermark]
        return 0, b"".join(found)[: max(max_bytes, len(found[0]))] if found else b""


@dataclass
class Described:
    """What DescribeConfigs says of one topic."""

    configs: Mapping[str, str | None]
    error: int = 0
    message: str | None = None


class Logs:
    """Logs, options, and the topics that were created."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], Log] = {}
        self.topics: dict[str, Described] = {}
        self.created: list[CreateTopic] = []

    def of(self, topic: str, partition: int) -> Log:
        return self.logs.setdefault((topic, partition), Log())

    def answer(
        self, header: Header, request: Request, error: int, message: str | None, throttle_ms: int
    ) -> bytes:
        """``error``: of the only partition, topic or result; 0: as the logs say."""
        flexible = header.flexible
        body = struct.pack(">i", throttle_ms)
        match request:
            case Fetch():
                body += self._fetch(header, request, error)
            case ListOffsets():
                body = (body if header.version >= 2 else b"") + self._list_offsets(header, request, error)
            case CreateTopic():
                body += self._create(header, request, error, message)
            case DescribeConfigs():
                body += self._describe(header, request, error, message)
        return framed(header.correlation_id, body + (b"\0" if flexible else b""), tagged_header=flexible)

    def _fetch(self, header: Header, request: Fetch, error: int) -> bytes:
        version, flexible = header.version, header.flexible
        log = self.of(request.topic, request.partition)
        records, mark, start = b"", -1, -1
        if not error:
            error, records = log.fetch(request.offset, request.max_bytes)
        if not error:
            mark, start = log.high_watermark, log.start
        part = struct.pack(">ihqq", request.partition, error, mark, mark)
        if version >= 5:
            part += struct.pack(">q", start)
        part += b"\0" if flexible else struct.pack(">i", -1)
        if version >= 11:
            part += struct.pack(">i", -1)
        size = encode_uvarint(len(records) + 1) if flexible else struct.pack(">i", len(records))
        part += size + records
        if flexible:
            part += encode_tags({1: struct.pack(">ii", 1, 2) + b"\0"})
        top = struct.pack(">hi", 0, 0) if version >= 7 else b""
        return top + _in_topic(request.topic, part, flexible)

    def _list_offsets(self, header: Header, request: ListOffsets, error: int) -> bytes:
        log = self.of(request.topic, request.partition)
        offset = {LATEST: log.high_watermark, EARLIEST: log.start}[request.timestamp]
        part = struct.pack(">ihqq", request.partition, error, -1, -1 if error else offset)
        if header.version >= 4:
            part += struct.pack(">i", 1)
        return _in_topic(request.topic, part + (b"\0" if header.flexible else b""), header.flexible)

    def _create(self, header: Header, request: CreateTopic, error: int, message: str | None) -> bytes:
        flexible, version = header.flexible, header.version
        if not error:
            if any(each.name == request.name for each in self.created):
                error = TOPIC_EXISTS
            else:
                self.created.append(request)
        out = encode_string(request.name, flexible)
        if version >= 7:
            out += bytes(16)
        out += struct.pack(">h", error) + encode_string(message, flexible)
        if version >= 5:
            out += struct.pack(">ih", request.partitions, request.replicas) + encode_array([], True, bytes)
        return encode_array([out + (b"\0" if flexible else b"")], flexible, bytes)

    def _describe(self, header: Header, request: DescribeConfigs, error: int, message: str | None) -> bytes:
        flexible, version = header.flexible, header.version
        tags = b"\0" if flexible else b""

        def option(pair: tuple[str, str | None]) -> bytes:
            out = encode_string(pair[0], flexible) + encode_string(pair[1], flexible) + b"\0\5\0"
            out += encode_array([], flexible, bytes)
            if version >= 3:
                out += b"\2" + encode_string(None, flexible)
            return out + tags

        def result(name: str) -> bytes:
            found = self.topics.get(name, Described({}, UNKNOWN_TOPIC, "no such topic"))
            if error:
                found = Described({}, error, message)
            out = struct.pack(">h", found.error) + encode_string(found.message, flexible)
            out += struct.pack(">b", TOPIC) + encode_string(name, flexible)
            return out + encode_array(list(found.configs.items()), flexible, option) + tags

        return encode_array(request.topics, flexible, result)


def _in_topic(name: str, part: bytes, flexible: bool) -> bytes:
    topic = encode_string(name, flexible) + encode_array([part], flexible, bytes)
    return encode_array([topic + (b"\0" if flexible else b"")], flexible, bytes)
