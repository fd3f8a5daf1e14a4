"""Tests brokers without topic ids and flexible versions: the oldest supported one, and one of 3.x."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cyproducer import KafkaProducer, errors
from cyproducer.transactions import TransactionAdmin
from tests.integration.consume import Fetched, read_all
from tests.integration.old_kafka import OldKafka
from tests.integration.record_shapes import all_shapes
from tools.harness.until import looks

VERSIONS = {
    # The handshake starts with version 4. Since Kafka 2.4, a refusal has the supported versions.
    "2.1.1": {
        ("API_VERSIONS", 4),
        ("API_VERSIONS", 0),
        ("METADATA", 7),
        ("INIT_PRODUCER_ID", 1),
        ("PRODUCE", 7),
    },
    "3.7.2": {
        ("API_VERSIONS", 4),
        ("API_VERSIONS", 3),
        ("METADATA", 12),
        ("INIT_PRODUCER_ID", 4),
        ("PRODUCE", 10),
    },
}
RECORDS = 1_000
# Records from 1970 exceed any retention. Records from the far future need no option in these versions.
KEPT_FOR_EVER = {"retention.ms": "-1", "segment.ms": str(2**63 - 1)}


pytestmark = [
    pytest.mark.either_broker(slow=True),
    pytest.mark.parametrize("old", VERSIONS, indirect=True, scope="module"),
]


@pytest.fixture(scope="module")
def admin(old: OldKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": old.bootstrap_servers, "log_level": 0})


def create(admin: AdminClient, topic: str, partitions: int) -> None:
    new = NewTopic(topic, partitions, 1, config=KEPT_FOR_EVER)
    for _ in looks(30):
        try:
            admin.create_topics([new], operation_timeout=30)[topic].result(30)
            return
        except KafkaException as error:
            # Brokers with ZooKeeper report a topic as deleted before the deletion is complete.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    raise TimeoutError(f"topic {topic!r} is still there")


def test_the_newest_versions_that_a_broker_supports_are_used(old: OldKafka, admin: AdminClient) -> None:
    create(admin, "versions", 1)
    with KafkaProducer(bootstrap_servers=old.bootstrap_servers, client_id="versions") as producer:
        assert producer.send("versions", b"x").get(30).offset == 0

    refused = {("API_VERSIONS", 4)}
    assert old.requests("versions", until="PRODUCE") | refused == VERSIONS[old.version]


def test_a_missing_topic_is_created_by_the_first_record(old: OldKafka) -> None:
    with KafkaProducer(bootstrap_servers=old.bootstrap_servers) as producer:
        futures = [producer.send("made-by-send", b"x", partition=partition) for partition in range(3)]
        assert [future.get(30).offset for future in futures] == [0, 0, 0]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_record_is_read_back_as_it_was_sent(old: OldKafka, admin: AdminClient, codec: Any) -> None:
    topic = f"shapes-{codec}"
    create(admin, topic, 3)
    # In 2.1 the broker's limit for a batch is 1,000,012. The client's limit for a record does not consider
    # it.
    shapes = list(all_shapes(RECORDS, 900_000, 3))
    with KafkaProducer(
        bootstrap_servers=old.bootstrap_servers, compression_type=codec, linger_ms=20
    ) as producer:
        futures = [producer.send(topic, **shape.arguments()) for shape in shapes]
        told = [future.get(60) for future in futures]

    expected = sorted(
        (
            Fetched(t.partition, t.offset, "CreateTime", t.timestamp, s.key, s.value, s.headers or [])
            for s, t in zip(shapes, told, strict=True)
        ),
        key=lambda record: (record.partition, record.offset),
    )
    found = read_all(old.bootstrap_servers, topic, RECORDS)
    assert len(found) == RECORDS
    for record, sent in zip(found, expected, strict=True):
        assert record == sent


def test_a_deleted_and_recreated_topic_is_usable_again(old: OldKafka, admin: AdminClient) -> None:
    create(admin, "phoenix", 2)
    with KafkaProducer(bootstrap_servers=old.bootstrap_servers) as producer:
        assert [producer.send("phoenix", b"old", partition=0).get(30).offset for _ in range(3)] == [0, 1, 2]
        admin.delete_topics(["phoenix"], operation_timeout=30)["phoenix"].result(30)
        create(admin, "phoenix", 3)

        futures = [producer.send("phoenix", b"new", partition=0) for _ in range(3)]
        assert [future.get(30).offset for future in futures] == [0, 1, 2]

    assert [r.value for r in read_all(old.bootstrap_servers, "phoenix", 3)] == [b"new"] * 3


def test_a_batch_too_large_for_its_topic_fails_with_the_brokers_error(old: OldKafka) -> None:
    with KafkaProducer(bootstrap_servers=old.bootstrap_servers, max_request_size=4_000_000) as producer:
        with pytest.raises(errors.MessageSizeTooLargeError, match="too-large"):
            producer.send("too-large", b"x" * 3_000_000).get(30)
        assert producer.send("too-large", b"x").get(30).offset == 0


def test_transactions_need_kafka_2_5(old: OldKafka) -> None:
    with KafkaProducer(bootstrap_servers=old.bootstrap_servers, transactional_id="old") as producer:
        if old.version == "2.1.1":
            with pytest.raises(errors.InvalidSetupError, match=r"2\.5"):
                producer.init_transactions()
        else:
            producer.init_transactions()


READING_VERSIONS = {
    "2.1.1": {("CREATE_TOPICS", 3), ("LIST_OFFSETS", 4), ("DESCRIBE_CONFIGS", 2), ("FETCH", 10)},
    "3.7.2": {("CREATE_TOPICS", 7), ("LIST_OFFSETS", 7), ("DESCRIBE_CONFIGS", 4), ("FETCH", 12)},
}


def test_topics_are_created_and_read(old: OldKafka) -> None:
    def soon() -> tuple[float, float]:
        return time.monotonic() + 30, 30

    with TransactionAdmin({"bootstrap_servers": old.bootstrap_servers, "client_id": "reading"}) as admin:
        reader = admin._reading
        assert reader.topic("read", *soon()) is None
        assert reader.create_topic("read", 1, 1, KEPT_FOR_EVER, *soon()) is True
        assert reader.create_topic("read", 1, 1, KEPT_FOR_EVER, *soon()) is False
        topic = reader.topic("read", *soon(), wait=True)
        assert topic is not None
        assert (topic.leaders, topic.topic_id != bytes(16)) == ({0: 1}, old.version != "2.1.1")
        with KafkaProducer(bootstrap_servers=old.bootstrap_servers, compression_type="lz4") as producer:
            for number in range(100):
                producer.send("read", b"%d" % number)
        assert reader.offsets("read", 0, *soon()) == (0, 100)
        assert KEPT_FOR_EVER.items() <= reader.topic_configs(["read"], *soon())["read"].items()
        found = list(reader.batches("read", 0, 0, 100, *soon()))
    assert [record.value for batch in found for record in batch.records()] == [b"%d" % i for i in range(100)]
    asked = old.requests("reading", until="FETCH")
    assert READING_VERSIONS[old.version] == {
        pair for pair in asked if pair[0] in dict(READING_VERSIONS["2.1.1"])
    }
