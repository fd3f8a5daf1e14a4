"""Administration of the embedded broker, by confluent-kafka's client and by kafka-python's."""

from collections.abc import Iterator
from typing import Any

import kafka.admin  # type: ignore[import-untyped]
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from cyproducer import KafkaProducer, errors
from cyproducer.testing import EmbeddedBroker
from tools.harness.until import PATIENCE_S


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=2, auto_create=False) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def outcome(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(PATIENCE_S)


def alter(admin: AdminClient, topic: str, name: str, value: str | None, operation: str = "SET") -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType[operation])
    outcome(admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=[entry])]))


def config(admin: AdminClient, topic: str, name: str) -> str:
    return str(outcome(admin.describe_configs([ConfigResource("topic", topic)]))[name].value)


def test_topics_are_created_grown_and_deleted(broker: EmbeddedBroker, admin: AdminClient) -> None:
    outcome(admin.create_topics([NewTopic("made", 2, config={"max.message.bytes": "1000"})]))
    assert broker.topics["made"] == 2
    assert config(admin, "made", "max.message.bytes") == "1000"
    outcome(admin.create_partitions([NewPartitions("made", 5)]))
    assert broker.topics["made"] == 5
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        assert producer.send("made", b"v", partition=4).get(PATIENCE_S).offset == 0
    outcome(admin.delete_topics(["made"]))
    assert "made" not in broker.topics


@pytest.mark.parametrize(
    ("topic", "code", "says"),
    [
        (NewTopic("there", 1), "TOPIC_ALREADY_EXISTS", "already exists"),
        (NewTopic("no topic", 1), "TOPIC_EXCEPTION", "no topic"),
        (NewTopic("n", 0), "INVALID_PARTITIONS", "was 0: must be 1 to"),
        (NewTopic("n", 1, 3), "INVALID_REPLICATION_FACTOR", "there are 2 broker"),
        (NewTopic("n", 1, config={"nonsense": "1"}), "INVALID_CONFIG", "Unknown configuration 'nonsense'"),
        (NewTopic("n", 1, config={"retention.ms": "soon"}), "INVALID_CONFIG", "'soon' .* not a long"),
        (NewTopic("n", 1, config={"message.timestamp.type": "x"}), "INVALID_CONFIG", "LogAppendTime"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_topics_that_cannot_be_are_refused(
    broker: EmbeddedBroker, admin: AdminClient, topic: NewTopic, code: str, says: str
) -> None:
    if "there" not in broker.topics:
        broker.create_topic("there")
    with pytest.raises(KafkaException, match=says) as caught:
        outcome(admin.create_topics([topic]))
    assert code in str(caught.value)
    assert "n" not in broker.topics


def test_configurations_change_what_the_broker_does(broker: EmbeddedBroker, admin: AdminClient) -> None:
    broker.create_topic("configured", 1)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        alter(admin, "configured", "message.timestamp.type", "LogAppendTime")
        metadata = producer.send("configured", b"v", timestamp_ms=5).get(PATIENCE_S)
        assert metadata.timestamp > 1_700_000_000_000
        assert broker.records("configured")[0].timestamp == metadata.timestamp
        alter(admin, "configured", "message.timestamp.type", None, "DELETE")
        assert producer.send("configured", b"v", timestamp_ms=5).get(PATIENCE_S).timestamp == 5
        hour_ms = 3_600_000
        with pytest.raises(errors.InvalidTimestampError, match=r"message\.timestamp\.after\.max\.ms=3600000"):
            producer.send("configured", b"v", timestamp_ms=metadata.timestamp + 2 * hour_ms).get(PATIENCE_S)
        alter(admin, "configured", "message.timestamp.before.max.ms", str(hour_ms))
        with pytest.raises(errors.InvalidTimestampError, match=r"message\.timestamp\.before\.max\.ms"):
            producer.send("configured", b"v", timestamp_ms=5).get(PATIENCE_S)
        alter(admin, "configured", "max.message.bytes", "200")
        with pytest.raises(errors.MessageSizeTooLargeError, match=r"max\.message\.bytes is 200"):
            producer.send("configured", bytes(300)).get(PATIENCE_S)
        alter(admin, "configured", "min.insync.replicas", "2")
        broker.take_down(2)
        try:
            broker.move_leader("configured", 0, 1)
            with pytest.raises(errors.KafkaTimeoutError):
                producer.send("configured", b"v").get(1)
        finally:
            broker.bring_up(2)


def test_lists_are_appended_to(broker: EmbeddedBroker, admin: AdminClient) -> None:
    broker.create_topic("lists", 1)
    alter(admin, "lists", "cleanup.policy", "compact", "APPEND")
    assert config(admin, "lists", "cleanup.policy") == "delete,compact"
    alter(admin, "lists", "cleanup.policy", "delete", "SUBTRACT")
    assert config(admin, "lists", "cleanup.policy") == "compact"
    with pytest.raises(KafkaException, match=r"retention\.ms is no list"):
        alter(admin, "lists", "retention.ms", "1", "APPEND")


def test_old_batches_are_deleted_beyond_retention_bytes(broker: EmbeddedBroker, admin: AdminClient) -> None:
    broker.create_topic("short", 1)
    alter(admin, "short", "retention.bytes", "1000")
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(10):
            producer.send("short", b"%d" % number + bytes(300)).get(PATIENCE_S)
    kept = [record.offset for record in broker.records("short")]
    assert kept == [7, 8, 9]
    assert broker.end_offsets("short") == [10]


def test_records_can_be_deleted(broker: EmbeddedBroker, admin: AdminClient) -> None:
    broker.create_topic("trimmed", 1)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(4):
            producer.send("trimmed", b"%d" % number).get(PATIENCE_S)
    deleted = outcome(admin.delete_records([TopicPartition("trimmed", 0, 3)]))
    assert deleted.low_watermark == 3
    assert [record.value for record in broker.records("trimmed")] == [b"3"]
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        outcome(admin.delete_records([TopicPartition("trimmed", 0, 9)]))


def test_brokers_are_described(broker: EmbeddedBroker, admin: AdminClient) -> None:
    described = admin.describe_cluster().result(PATIENCE_S)
    assert [f"{node.host}:{node.port}" for node in described.nodes] == broker.bootstrap_servers.split(",")
    assert admin.list_topics(timeout=PATIENCE_S).cluster_id == described.cluster_id


def test_kafka_python_administers_topics(broker: EmbeddedBroker) -> None:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    client.create_topics([kafka.admin.NewTopic("by-kafka-python", 2, 1)])
    assert broker.topics["by-kafka-python"] == 2
    assert "by-kafka-python" in client.list_topics()
    client.delete_topics(["by-kafka-python"])
    assert "by-kafka-python" not in broker.topics
    client.close()


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_compacted_topic_refuses_records_without_a_key_by_name(
    broker: EmbeddedBroker, admin: AdminClient, codec: Any
) -> None:
    topic = f"compacted-{codec}"
    outcome(admin.create_topics([NewTopic(topic, 1, config={"cleanup.policy": "compact"})]))
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, compression_type=codec, linger_ms=60_000
    ) as producer:
        futures = [producer.send(topic, b"%d" % n, key=b"k" if n != 3 else None) for n in range(9)]
        producer.flush(PATIENCE_S)
        with pytest.raises(errors.InvalidRecordError, match="Compacted topic cannot accept message without"):
            futures.pop(3).get(0)
        assert sorted(future.get(0).offset for future in futures) == list(range(8))
    assert b"3" not in [record.value for record in broker.records(topic)]


def test_configurations_that_kafka_has_are_known(admin: AdminClient) -> None:
    given = {
        "unclean.leader.election.enable": "true",
        "compression.zstd.level": "9",
        "cleanup.policy": "compact,delete",
    }
    outcome(admin.create_topics([NewTopic("known", 1, config=given)]))
    assert {name: config(admin, "known", name) for name in given} == given
    with pytest.raises(KafkaException, match="must be compact, delete or both"):
        outcome(admin.create_topics([NewTopic("wrong", 1, config={"cleanup.policy": "keep"})]))
    (asked,) = admin.describe_configs([ConfigResource("broker", "1")]).values()
    assert asked.result(PATIENCE_S)["transactional.id.expiration.ms"].value == "604800000"
