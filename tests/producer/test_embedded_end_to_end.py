"""End to end over librdkafka's mock cluster; read back by librdkafka's own consumer."""

import itertools
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from cyproducer import errors
from cyproducer.producer import KafkaProducer
from cyproducer.testing import EmbeddedBroker
from tests.reading import read_back as values_of
from tests.scripted.odd_servers import is_silent, odd_server
from tests.scripted.producing import WAIT_S, options

PARTITIONS = 3
numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=3) as broker:
        yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"topic-{next(numbers)}"
    broker.create_topic(name, PARTITIONS)
    return name


def read_back(broker: EmbeddedBroker, topic: str, count: int) -> list[tuple[object, ...]]:
    """(partition, offset, key, value, headers, timestamp in ms) of each record, by partition and offset."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "check.crcs": True}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found: list[tuple[object, ...]] = []
        while len(found) < count:
            messages = consumer.consume(count, WAIT_S)
            assert messages, f"only {len(found)} of {count} records arrived"
            for message in messages:
                assert message.error() is None
                found.append(
                    (
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        message.headers(),
                        message.timestamp()[1],
                    )
                )
        return sorted(found, key=lambda record: record[:2])
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.slow
def test_librdkafka_reads_what_was_sent(broker: EmbeddedBroker, topic: str, codec: str | None) -> None:
    records: list[tuple[int, bytes, bytes | None, list[tuple[str, bytes | None]], int]] = [
        (
            i % PARTITIONS,
            f"key {i % 7}".encode(),
            b"value %d " % i * (1 + i % 50),
            [("n", b"%d" % i)],
            10**12 + i,
        )
        for i in range(2000)
    ]
    records += [(0, b"tombstone", None, [], 10**12), (1, b"", b"", [("empty", b""), ("null", None)], 1)]
    with KafkaProducer(
        **options(bootstrap_servers=broker.bootstrap_servers, compression_type=codec, linger_ms=5)
    ) as producer:
        futures = [producer.send(topic, v, k, h, p, at) for p, k, v, h, at in records]
        offsets = [future.get(WAIT_S).offset for future in futures]
    expected = sorted(
        (p, offset, k, v, h or None, at) for (p, k, v, h, at), offset in zip(records, offsets, strict=True)
    )
    assert read_back(broker, topic, len(records)) == expected
    assert [sum(1 for r in expected if r[0] == p) for p in range(PARTITIONS)] == [
        1 + max(r[1] for r in expected if r[0] == p) for p in range(PARTITIONS)
    ]


@pytest.mark.parametrize("acks", [1, "all"])
def test_offsets_are_acknowledged(broker: EmbeddedBroker, topic: str, acks: object) -> None:
    with KafkaProducer(**options(bootstrap_servers=broker.bootstrap_servers, acks=acks)) as producer:
        metadata = [producer.send(topic, b"%d" % i, partition=0).get(WAIT_S) for i in range(10)]
    assert [m.offset for m in metadata] == list(range(10))
    assert [record[3] for record in read_back(broker, topic, 10)] == [b"%d" % i for i in range(10)]


def test_a_topic_is_created_by_sending_to_it(broker: EmbeddedBroker) -> None:
    with KafkaProducer(**options(bootstrap_servers=broker.bootstrap_servers)) as producer:
        assert producer.send("made-by-sending", b"1").get(WAIT_S).offset == 0
        assert producer.partitions_for("made-by-sending") == {0, 1, 2}


def test_temporary_errors_are_retried_and_final_ones_reported(broker: EmbeddedBroker, topic: str) -> None:
    with KafkaProducer(**options(bootstrap_servers=broker.bootstrap_servers)) as producer:
        producer.send(topic, b"0", partition=0).get(WAIT_S)
        broker.fail_next(0, 6, 19, 7)
        assert producer.send(topic, b"1", partition=0).get(WAIT_S).offset == 1
        assert producer.metrics()["producer-metrics"]["record-retry-total"] == 3
        broker.fail_next(0, 29)
        with pytest.raises(errors.TopicAuthorizationFailedError):
            producer.send(topic, b"2", partition=0).get(WAIT_S)


@pytest.mark.slow
def test_brokers_that_go_down_and_come_back_lose_nothing(topic: str, broker: EmbeddedBroker) -> None:
    with KafkaProducer(**options(bootstrap_servers=broker.bootstrap_servers, linger_ms=1)) as producer:
        futures = []
        gone = threading.Event()

        def feed() -> None:
            for i in range(600):
                futures.append(producer.send(topic, b"%d" % i, partition=i % PARTITIONS))
                if i % 20 == 0:
                    gone.wait(0.01)

        feeder = threading.Thread(target=feed)
        feeder.start()
        for node in (1, 2, 3):
            broker.take_down(node)
            gone.wait(0.05)
            broker.bring_up(node)
        feeder.join(WAIT_S)
        assert all(future.get(WAIT_S).offset >= 0 for future in futures)
    # This broker ignores sequences, so a batch that is resent after a lost response is in the log twice.
    assert values_of(broker, topic, 600).keys() == {b"%d" % i for i in range(600)}


def test_a_silent_bootstrap_server_costs_only_the_delay_of_the_next_attempt(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # random() always chooses the first server. The setup timeout is infinite, so that only attempts in
    # parallel help.
    monkeypatch.setattr("random.random", lambda: 0.0)
    with odd_server(is_silent) as silent:
        servers = [silent, *broker.bootstrap_servers.split(",")]
        given = options(bootstrap_servers=servers, socket_connection_setup_timeout_ms="inf")
        with KafkaProducer(**given) as producer:
            assert producer.send(topic, b"1", partition=0).get(WAIT_S).offset == 0
