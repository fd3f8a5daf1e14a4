"""Encodes and decodes the requests of programs that read a partition, or look at topics and create them.

Owns the byte layout of Fetch, ListOffsets, CreateTopics and DescribeConfigs, for one topic or partition each,
in the one version of each that the package implements. Otherwise as ``protocol``: pure functions, with the
GIL, callable from any thread. Layouts follow Apache Kafka's message schemas.
"""

from collections.abc import Mapping

from cyproducer.control.apis import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
    CreateTopicsResponse,
    DescribeConfigsResponse,
    FetchResponse,
    ListOffsetsResponse,
)
from cyproducer.network.primitives import Reader, Writer
from cyproducer.network.protocol import Frame, request, response

EARLIEST, LATEST = -2, -1
"""Timestamps of ListOffsets that ask for the log's start, and for the high watermark."""
_CONSUMER = -1
_READ_UNCOMMITTED = 0
_TOPIC = 2
_FETCH_BYTES = 4 << 20


def encode_fetch(
    version: int, correlation_id: int, client_id: str | None, topic: str, partition: int, offset: int
) -> bytes:
    """Encodes a Fetch request v12 as a whole frame: from an offset on, without waiting for more, with the
    records of open and aborted transactions (KIP-74, KIP-98)."""
    writer = request(FETCH, version, correlation_id, client_id)
    writer.int32(_CONSUMER)
    writer.int32(0)  # max_wait_ms
    writer.int32(1)  # min_bytes
    writer.int32(_FETCH_BYTES)
    _int8(writer, _READ_UNCOMMITTED)
    writer.int32(0)  # no session (KIP-227)
    writer.int32(-1)
    writer.count(1)
    writer.string("topic", topic)
    writer.count(1)
    writer.int32(partition)
    writer.int32(-1)  # current_leader_epoch: unknown
    writer.int64(offset)
    writer.int32(-1)  # last_fetched_epoch
    writer.int64(-1)  # log_start_offset: of followers
    writer.int32(_FETCH_BYTES)
    writer.no_tags()
    writer.no_tags()
    writer.count(0)  # forgotten topics
    writer.string("rack_id", "")
    writer.no_tags()
    return writer.finish()


def decode_fetch(version: int, frame: Frame) -> FetchResponse:
    """Decodes a Fetch response v12 of one partition."""
    reader = response(FETCH, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    error_code = reader.int16("error_code")
    reader.int32("session_id")
    found = FetchResponse(throttle_time_ms, error_code, -1, -1, b"")
    for _ in range(reader.count("topics", 3)):
        reader.string("topics.name")
        for _ in range(reader.count("topics.partitions", 28)):
            reader.int32("topics.partitions.partition")
            partition_error = reader.int16("topics.partitions.error_code")
            high_watermark = reader.int64("topics.partitions.high_watermark")
            reader.int64("topics.partitions.last_stable_offset")
            log_start_offset = reader.int64("topics.partitions.log_start_offset")
            for _ in range(_count(reader, "topics.partitions.aborted_transactions", 17)):
                reader.int64("topics.partitions.aborted_transactions.producer_id")
                reader.int64("topics.partitions.aborted_transactions.first_offset")
                reader.skip_tags()
            reader.int32("topics.partitions.preferred_read_replica")
            size = _count(reader, "topics.partitions.records", 1)
            records = reader.raw("topics.partitions.records", size)
            reader.skip_tags()
            found = FetchResponse(
                throttle_time_ms, error_code or partition_error, high_watermark, log_start_offset, records
            )
        reader.skip_tags()
    reader.skip_tags()
    reader.finish()
    return found


def encode_list_offsets(
    version: int, correlation_id: int, client_id: str | None, topic: str, partition: int, timestamp: int
) -> bytes:
    """Encodes a ListOffsets request v7 as a whole frame. ``timestamp``: ``EARLIEST`` or ``LATEST``."""
    writer = request(LIST_OFFSETS, version, correlation_id, client_id)
    writer.int32(_CONSUMER)
    _int8(writer, _READ_UNCOMMITTED)
    writer.count(1)
    writer.string("topic", topic)
    writer.count(1)
    writer.int32(partition)
    writer.int32(-1)  # current_leader_epoch: unknown
    writer.int64(timestamp)
    writer.no_tags()
    writer.no_tags()
    writer.no_tags()
    return writer.finish()


def decode_list_offsets(version: int, frame: Frame) -> ListOffsetsResponse:
    """Decodes a ListOffsets response v7 of one partition."""
    reader = response(LIST_OFFSETS, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    error_code, offset = -1, -1
    for _ in range(reader.count("topics", 3)):
        reader.string("topics.name")
        for _ in range(reader.count("topics.partitions", 27)):
            reader.int32("topics.partitions.partition")
            error_code = reader.int16("topics.partitions.error_code")
            reader.int64("topics.partitions.timestamp")
            offset = reader.int64("topics.partitions.offset")
            reader.int32("topics.partitions.leader_epoch")
            reader.skip_tags()
        reader.skip_tags()
    reader.skip_tags()
    reader.finish()
    return ListOffsetsResponse(throttle_time_ms, error_code, offset)


def encode_create_topic(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topic: str,
    partitions: int,
    replication: int,
    configs: Mapping[str, str],
    timeout_ms: int,
) -> bytes:
    """Encodes a CreateTopics request v7 for one topic as a whole frame. ``replication`` -1: the brokers'
    default."""
    writer = request(CREATE_TOPICS, version, correlation_id, client_id)
    writer.count(1)
    writer.string("topic", topic)
    writer.int32(partitions)
    writer.int16(replication)
    writer.count(0)  # assignments
    writer.count(len(configs))
    for name, value in configs.items():
        writer.string("config", name)
        writer.nullable_string("config value", value)
        writer.no_tags()
    writer.no_tags()
    writer.int32(timeout_ms)
    writer.boolean(False)  # validate_only
    writer.no_tags()
    return writer.finish()


def decode_create_topic(version: int, frame: Frame) -> CreateTopicsResponse:
    """Decodes a CreateTopics response v7 for one topic."""
    reader = response(CREATE_TOPICS, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    found = CreateTopicsResponse(throttle_time_ms, -1, None)
    for _ in range(reader.count("topics", 28)):
        reader.string("topics.name")
        reader.raw("topics.topic_id", 16)
        error_code = reader.int16("topics.error_code")
        message = reader.nullable_string("topics.error_message")
        reader.int32("topics.num_partitions")
        reader.int16("topics.replication_factor")
        for _ in range(_count(reader, "topics.configs", 6)):
            reader.string("topics.configs.name")
            reader.nullable_string("topics.configs.value")
            reader.boolean("topics.configs.read_only")
            _int8_of(reader, "topics.configs.config_source")
            reader.boolean("topics.configs.is_sensitive")
            reader.skip_tags()
        reader.skip_tags()
        found = CreateTopicsResponse(throttle_time_ms, error_code, message)
    reader.skip_tags()
    reader.finish()
    return found


def encode_describe_configs(version: int, correlation_id: int, client_id: str | None, topic: str) -> bytes:
    """Encodes a DescribeConfigs request v4 for one topic as a whole frame (KIP-133)."""
    writer = request(DESCRIBE_CONFIGS, version, correlation_id, client_id)
    writer.count(1)
    _int8(writer, _TOPIC)
    writer.string("resource_name", topic)
    writer.count(-1)  # all configurations
    writer.no_tags()
    writer.boolean(False)  # include_synonyms
    writer.boolean(False)  # include_documentation
    writer.no_tags()
    return writer.finish()


def decode_describe_configs(version: int, frame: Frame) -> DescribeConfigsResponse:
    """Decodes a DescribeConfigs response v4 for one topic."""
    reader = response(DESCRIBE_CONFIGS, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    found = DescribeConfigsResponse(throttle_time_ms, -1, None, {})
    for _ in range(reader.count("results", 8)):
        error_code = reader.int16("results.error_code")
        message = reader.nullable_string("results.error_message")
        _int8_of(reader, "results.resource_type")
        reader.string("results.resource_name")
        values = {}
        for _ in range(reader.count("results.configs", 9)):
            name = reader.string("results.configs.name")
            value = reader.nullable_string("results.configs.value")
            reader.boolean("results.configs.read_only")
            _int8_of(reader, "results.configs.config_source")
            reader.boolean("results.configs.is_sensitive")
            for _ in range(reader.count("results.configs.synonyms", 4)):
                reader.string("results.configs.synonyms.name")
                reader.nullable_string("results.configs.synonyms.value")
                _int8_of(reader, "results.configs.synonyms.source")
                reader.skip_tags()
            _int8_of(reader, "results.configs.config_type")
            reader.nullable_string("results.configs.documentation")
            reader.skip_tags()
            if value is not None:
                values[name] = value
        reader.skip_tags()
        found = DescribeConfigsResponse(throttle_time_ms, error_code, message, values)
    reader.skip_tags()
    reader.finish()
    return found


def _int8(writer: Writer, value: int) -> None:
    writer.raw(value.to_bytes(1, "big"))


def _int8_of(reader: Reader, field: str) -> int:
    return reader.raw(field, 1)[0]


def _count(reader: Reader, field: str, element_size: int) -> int:
    """Reads the count of an array or of bytes that may be null, as none."""
    elements = max(0, reader.uvarint(field) - 1)
    if elements * element_size > reader.left:
        reader.fail(field, f"claims {elements} elements of at least {element_size} bytes")
    return elements
