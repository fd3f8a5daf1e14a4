"""Tests records of every shape with every codec, read back by librdkafka and by Kafka's own log tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from cyproducer import KafkaProducer
from cyproducer.structs import RecordMetadata
from tests.integration.consume import Fetched, read_all
from tests.integration.log_dump import Dump, dump_partitions
from tests.integration.record_shapes import TOPIC_CONFIG, Shape, all_shapes
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.either_broker

RECORDS = 10_000
PARTITIONS = 3
MAX_REQUEST_SIZE = 1_048_576

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression_type": "gzip"},
    "gzip-1": {"compression_type": "gzip", "compression_gzip_level": 1},
    "snappy": {"compression_type": "snappy"},
    "lz4": {"compression_type": "lz4"},
    "lz4-12": {"compression_type": "lz4", "compression_lz4_level": 12},
    "zstd": {"compression_type": "zstd"},
    "zstd-9": {"compression_type": "zstd", "compression_zstd_level": 9},
}
QUICK = ("none", "snappy", "lz4")
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SETTINGS]


class Written(NamedTuple):
    """The records sent to a topic, and the metadata of their futures."""

    topic: str
    outcomes: list[tuple[Shape, RecordMetadata]]

    def expected(self) -> list[Fetched]:
        """Returns the records that a consumer must find, sorted by partition and offset."""
        records = [
            Fetched(
                told.partition,
                told.offset,
                "CreateTime",
                told.timestamp,
                shape.key,
                shape.value,
                shape.headers or [],
            )
            for shape, told in self.outcomes
        ]
        return sorted(records, key=lambda record: (record.partition, record.offset))


Write = Callable[[str], Written]


@pytest.fixture(scope="module")
def write(kafka: KafkaCluster) -> Write:
    """Returns a function that produces all shapes with a setting of the table, once per setting."""
    done: dict[str, Written] = {}

    def written(setting: str) -> Written:
        if setting not in done:
            done[setting] = _write(kafka, setting)
        return done[setting]

    return written


def _write(kafka: KafkaCluster, setting: str) -> Written:
    topic = f"shapes-{setting}"
    kafka.create_topic(topic, PARTITIONS, configs=TOPIC_CONFIG)
    shapes = list(all_shapes(RECORDS, MAX_REQUEST_SIZE, PARTITIONS))
    with KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        max_request_size=MAX_REQUEST_SIZE,
        # Large batches and linger, so that the log's size depends on the codec and not on chance.
        batch_size=100_000,
        linger_ms=200,
        # Enough for all records: a full buffer would make small batches.
        buffer_memory=128 * 1024 * 1024,
        # One request in flight keeps the order even if a new topic's leader is not ready yet.
        max_in_flight_requests_per_connection=1,
        **SETTINGS[setting],
    ) as producer:
        futures = [producer.send(topic, **shape.arguments()) for shape in shapes]
        return Written(topic, [(s, f.get(60)) for s, f in zip(shapes, futures, strict=True)])


@pytest.fixture(scope="module")
def dump(kafka: KafkaCluster, write: Write) -> Dump:
    """The logs of all settings' topics, from one run of the tool, which takes seconds to start."""
    topics = [write(setting).topic for setting in SETTINGS]
    return dump_partitions(
        kafka.log_dir(1), [(topic, index) for topic in topics for index in range(PARTITIONS)]
    )


@pytest.mark.parametrize("setting", EACH)
def test_every_record_is_read_back_as_it_was_sent(kafka: KafkaCluster, write: Write, setting: str) -> None:
    written = write(setting)

    found = read_all(kafka.bootstrap_servers, written.topic, RECORDS)

    expected = written.expected()
    assert len(found) == RECORDS
    # Compares record by record: a diff of the whole lists would be megabytes.
    for record, sent in zip(found, expected, strict=True):
        assert record == sent


@pytest.mark.parametrize("setting", EACH)
def test_futures_have_partition_offset_timestamp_and_sizes(write: Write, setting: str) -> None:
    last_offset = dict.fromkeys(range(PARTITIONS), -1)
    for shape, told in write(setting).outcomes:
        if shape.partition is not None:
            assert told.partition == shape.partition
        # Records of a partition keep the order of their send() calls.
        assert told.offset == last_offset[told.partition] + 1
        last_offset[told.partition] = told.offset
        if shape.timestamp_ms is not None:
            assert told.timestamp == shape.timestamp_ms
        assert told.serialized_key_size == (-1 if shape.key is None else len(shape.key))
        assert told.serialized_value_size == (-1 if shape.value is None else len(shape.value))


@pytest.mark.kafka_only("there are no files for the tool")
@pytest.mark.parametrize("setting", EACH)
def test_kafkas_own_tool_finds_no_fault_in_the_log(dump: Dump, write: Write, setting: str) -> None:
    written = write(setting)
    for index in range(PARTITIONS):
        log = dump[written.topic, index]
        sent = sorted(told.offset for _, told in written.outcomes if told.partition == index)

        assert log.complaints == []
        assert all(batch.is_valid for batch in log.batches)
        codec = setting.split("-")[0]
        assert codec in {batch.codec for batch in log.batches}
        # A codec is not used for a batch that it would enlarge.
        incompressible = {told.offset for shape, told in written.outcomes if shape.key == b"random"}
        for batch in log.batches:
            # Neither for batches of few records, which may not compress.
            few = batch.record_count < 10
            assert batch.codec == codec or few or incompressible.intersection(batch.offsets)
        assert all(batch.record_count == len(batch.offsets) for batch in log.batches)
        assert log.offsets == sent
        # Batches must have several records, or the checks above would show little.
        assert len(log.batches) < len(sent) / 5


@pytest.mark.kafka_only("there are no files for the tool")
@pytest.mark.parametrize(
    ("larger", "smaller"), [("none", "snappy"), ("gzip-1", "gzip"), ("lz4", "lz4-12"), ("zstd", "zstd-9")]
)
def test_the_compression_level_changes_the_logs_size(
    dump: Dump, write: Write, larger: str, smaller: str
) -> None:
    def size(setting: str) -> int:
        topic = write(setting).topic
        return sum(batch.size for index in range(PARTITIONS) for batch in dump[topic, index].batches)

    assert size(smaller) < size(larger) * 0.99
