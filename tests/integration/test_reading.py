"""Reads topics: transactions and their markers, what other clients and the broker compress,
compacted logs, leaders that die; and creates and describes topics.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cyproducer import KafkaProducer, errors
from cyproducer.clients.topic_admin import Reading
from cyproducer.transactions import TransactionAdmin
from cyproducer.wire.record_decoder import ABORT, COMMIT, Batch, Record
from tests.integration.consume import read_all
from tests.integration.transaction_rig import TransactionRig
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import LEVELS, Transactions
from tools.harness.until import looks

pytestmark = pytest.mark.either_broker(slow=True)

CALL_S = 60.0
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def soon() -> tuple[float, float]:
    return time.monotonic() + CALL_S, CALL_S


def reading(cluster: KafkaCluster) -> TransactionAdmin:
    return TransactionAdmin(
        {
            "bootstrap_servers": cluster.bootstrap_servers,
            "retry_backoff_ms": 20,
            "reconnect_backoff_ms": 20,
            "request_timeout_ms": 5_000,
        }
    )


@pytest.fixture
def reader(transactional_kafka: KafkaCluster) -> Iterator[Reading]:
    with reading(transactional_kafka) as admin:
        yield admin._reading


@pytest.fixture(scope="module")
def compacting(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A node that compacts at once."""
    assert broker == "kafka"
    properties = {"log.cleaner.backoff.ms": 100}
    with KafkaCluster(1, properties, directory=tmp_path_factory.mktemp("compacting")) as cluster:
        yield cluster


def all_of(reader: Reading, topic: str, partition: int = 0) -> tuple[int, list[Batch]]:
    """The end of a partition, and its batches."""
    start, end = reader.offsets(topic, partition, *soon())
    return end, list(reader.batches(topic, partition, start, end, *soon()))


def records_of(found: list[Batch]) -> list[Record]:
    return [record for batch in found if not batch.control for record in batch.records()]


def assert_as_librdkafka_reads(cluster: KafkaCluster, reader: Reading, topic: str, count: int) -> None:
    """``count``: of the records in the only partition."""
    _, found = all_of(reader, topic)
    expected = read_all(cluster.bootstrap_servers, topic, count, isolation="read_uncommitted")
    assert [
        (each.offset, each.timestamp, each.key, each.value, list(each.headers)) for each in records_of(found)
    ] == [(each.offset, each.timestamp_ms, each.key, each.value, each.headers) for each in expected]
    assert len(expected) == count


@pytest.mark.parametrize("level", LEVELS, ids="level{}".format)
def test_transactions_are_read_with_their_markers(rig: TransactionRig, reader: Reading, level: int) -> None:
    Transactions(rig.cluster).set_level(level)
    topic = rig.topic(partitions=1)
    with rig.ready() as producer:
        for number, commit in enumerate([True, False, True]):
            producer.begin_transaction()
            for part in range(3):
                producer.send(topic, b"%d-%d" % (number, part), key=b"k", partition=0)
            if commit:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
        producer.begin_transaction()
        future = producer.send(topic, b"open", partition=0)
        producer.flush()
        end, found = all_of(reader, topic)
        # Also what is not decided yet.
        assert records_of(found)[-1].value == b"open"
        assert records_of(found)[-1].offset == future.get(0).offset == end - 1
        producer.abort_transaction()
    rig.settle()

    end, found = all_of(reader, topic)
    kinds = [batch.control_type() for batch in found if batch.control]
    assert kinds == [COMMIT, ABORT, COMMIT, ABORT]
    assert all(batch.transactional for batch in found)
    offset = 0
    for batch in found:
        assert batch.base_offset == offset
        offset = batch.last_offset + 1
    assert offset == end == 3 * 4 + 2
    # A marker is of the transaction before it: with the first protocol in its epoch, with the second in the
    # next one.
    data: Batch | None = None
    for batch in found:
        if not batch.control:
            data = batch
            continue
        assert data is not None
        assert (batch.producer_id, batch.epoch) == (data.producer_id, data.epoch + (level == 2))
    first = next(batch for batch in found if not batch.control)
    assert (first.base_sequence, first.count, first.leader_epoch) == (0, 3, 0)
    values = [record.value for record in records_of(found)]
    assert values == [b"%d-%d" % (number, part) for number in range(3) for part in range(3)] + [b"open"]


@pytest.mark.parametrize("codec", CODECS)
def test_what_librdkafka_writes_is_read(
    transactional_kafka: KafkaCluster, reader: Reading, codec: str
) -> None:
    topic = f"librdkafka-{codec}"
    transactional_kafka.create_topic(topic)
    producer = Producer(
        {
            "bootstrap.servers": transactional_kafka.bootstrap_servers,
            "compression.type": codec,
            "linger.ms": 50,
        }
    )
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("b", None)]
    for number in range(500):
        producer.produce(
            topic,
            value=b"value " * 50,
            key=b"%d" % number if number % 3 else None,
            headers=headers[: number % 3],
            timestamp=1_700_000_000_000 + number,
        )
    assert producer.flush(30) == 0
    _, found = all_of(reader, topic)
    assert {CODECS[batch.codec] for batch in found} == {codec}
    assert_as_librdkafka_reads(transactional_kafka, reader, topic, 500)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
def test_what_the_broker_compresses_is_read(
    transactional_kafka: KafkaCluster, reader: Reading, codec: str, stamp: str
) -> None:
    topic = f"broker-{codec}-{stamp}"
    configs = {"compression.type": codec, "message.timestamp.type": stamp}
    transactional_kafka.create_topic(topic, configs=configs)
    with KafkaProducer(bootstrap_servers=transactional_kafka.bootstrap_servers, linger_ms=50) as producer:
        for number in range(500):
            producer.send(topic, b"value " * 100, key=b"%d" % number, headers=[("a", b"1")])
    _, found = all_of(reader, topic)
    assert {(CODECS[batch.codec], batch.log_append_time) for batch in found} == {
        (codec, stamp == "LogAppendTime")
    }
    assert_as_librdkafka_reads(transactional_kafka, reader, topic, 500)


@pytest.mark.kafka_only("it compacts nothing")
def test_gaps_of_compacted_logs_are_passed(compacting: KafkaCluster) -> None:
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.0",
        "segment.bytes": "1048576",
        "max.compaction.lag.ms": "1",
        "segment.ms": "1",
    }
    with reading(compacting) as admin:
        reader = admin._reading
        assert reader.create_topic("compacted", 1, 1, configs, *soon())
        with KafkaProducer(bootstrap_servers=compacting.bootstrap_servers) as producer:
            for number in range(200):
                producer.send("compacted", b"%d" % number, key=b"%d" % (number % 3)).get(CALL_S)
            for _ in looks(CALL_S, 0.2):
                end, found = all_of(reader, "compacted")
                if len(found) <= 10:
                    break
                # The last segment is never compacted: there must be a later one.
                producer.send("compacted", b"more", key=b"more").get(CALL_S)
        end, found = all_of(reader, "compacted")
        latest = {record.key: record.value for record in records_of(found)}
        assert {latest[b"%d" % key] for key in range(3)} == {b"197", b"198", b"199"}
        assert found[-1].last_offset == end - 1
        assert len(found) <= 10
        # Each range of the log is read to its end, also those in which nothing is left.
        for first in range(0, end, 7):
            expected = [each for each in found if first <= each.last_offset and each.base_offset < first + 7]
            last = min(first + 7, end)
            assert list(reader.batches("compacted", 0, first, last, *soon())) == [
                each for each in expected if each.base_offset < last
            ]


def test_a_dead_leader_is_followed_by_another(rig: TransactionRig, reader: Reading) -> None:
    topic = rig.topic(partitions=1)
    with KafkaProducer(bootstrap_servers=rig.cluster.bootstrap_servers) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number + bytes(50_000))
    _, end = reader.offsets(topic, 0, *soon())
    leader = rig.cluster.leader(topic, 0)
    found = reader.batches(topic, 0, 0, end, *soon())
    values: list[bytes | None] = [record.value for record in next(found).records()]
    rig.cluster.kill(leader)
    try:
        values += [record.value for batch in found for record in batch.records()]
        assert reader.offsets(topic, 0, *soon()) == (0, end)
    finally:
        rig.cluster.restart(leader)
    assert [int((value or b"")[:-50_000]) for value in values] == list(range(100))


def test_deleted_records_are_out_of_range(rig: TransactionRig, reader: Reading) -> None:
    topic = rig.topic(partitions=1)
    with KafkaProducer(bootstrap_servers=rig.cluster.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    admin = AdminClient({"bootstrap.servers": rig.cluster.bootstrap_servers, "log_level": 0})
    deleted: Any = admin.delete_records([TopicPartition(topic, 0, 4)])
    for outcome in deleted.values():
        outcome.result()
    assert reader.offsets(topic, 0, *soon()) == (4, 10)
    for first in (0, 3, 11):
        with pytest.raises(errors.OffsetOutOfRangeError, match=f"offset {first} of {topic}-0"):
            list(reader.batches(topic, 0, first, 12, *soon()))
    found = list(reader.batches(topic, 0, 4, 10, *soon()))
    assert [each.offset for each in records_of(found) if each.offset >= 4] == list(range(4, 10))


def test_topics_are_created_described_and_looked_up(
    transactional_kafka: KafkaCluster, reader: Reading
) -> None:
    name = "made-by-reading"
    assert reader.topic(name, *soon()) is None
    assert reader.topic_configs([name], *soon()) == {}
    configs = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    assert reader.create_topic(name, 3, -1, configs, *soon()) is True
    assert reader.create_topic(name, 3, -1, configs, *soon()) is False
    topic = reader.topic(name, *soon(), wait=True)
    assert topic is not None
    assert topic.partitions == [0, 1, 2]
    assert set(topic.leaders.values()) <= set(transactional_kafka.node_ids)
    assert topic.topic_id != bytes(16)
    for _ in looks(30):
        # Brokers hear of it one after the other.
        found = reader.topic_configs([name], *soon())
        if name in found:
            break
    assert configs.items() <= found[name].items()
    assert found[name]["compression.type"] == "producer"
    assert [reader.offsets(name, partition, *soon()) for partition in topic.partitions] == [(0, 0)] * 3


def test_refused_topics_have_the_brokers_words(reader: Reading) -> None:
    with pytest.raises(errors.InvalidReplicationFactorError, match=r"CreateTopics of 'refused' .*: .*99"):
        reader.create_topic("refused", 1, 99, {}, *soon())
    with pytest.raises(errors.InvalidConfigurationError, match="no-such-option"):
        reader.create_topic("refused", 1, 1, {"no-such-option": "1"}, *soon())
    with pytest.raises(errors.InvalidTopicError):
        reader.create_topic("not/a/name", 1, 1, {}, *soon())
    with pytest.raises(errors.InvalidTopicError):
        reader.topic("not/a/name", *soon())
    assert reader.topic("refused", *soon()) is None
