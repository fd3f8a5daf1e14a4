"""Consumer groups of the embedded broker, by other clients' consumers; ``broker`` has single requests."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka  # type: ignore[import-untyped]
import kafka  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Consumer, TopicPartition

from cyproducer import ConsumerGroupMetadata, KafkaProducer, OffsetAndMetadata, errors
from cyproducer import TopicPartition as Place
from cyproducer.testing import EmbeddedBroker
from tools.harness.until import PATIENCE_S, until

PARTITIONS, RECORDS = 4, 40


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=2, topics={"t": PARTITIONS}) as broker:
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send("t", b"%d" % number, partition=number % PARTITIONS)
        yield broker


def confluent(broker: EmbeddedBroker, group: str, **options: Any) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **options,
        }
    )
    consumer.subscribe(["t"])
    return consumer


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    def enough() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            found.append(message.value())
        return len(found) >= count

    until(enough, f"{count} records")
    return found


def shared(*consumers: Consumer) -> Callable[[], bool]:
    """Whether the consumers share the partitions; lets them take part in a rebalance."""

    def done() -> bool:
        for consumer in consumers:
            consumer.poll(0.05)
        counts = [len(consumer.assignment()) for consumer in consumers]
        return sum(counts) == PARTITIONS and all(counts)

    return done


def test_kafka_python_reads_and_commits(broker: EmbeddedBroker) -> None:
    consumer = kafka.KafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    found: list[bytes] = []

    def enough() -> bool:
        # kafka-python 3.0 forgets an assignment that arrives just after the end of a poll().
        for records in consumer.poll(timeout_ms=5000).values():
            found.extend(record.value for record in records)
        return len(found) >= RECORDS

    until(enough, f"{RECORDS} records")
    consumer.commit()
    consumer.close()
    assert sorted(map(int, found)) == list(range(RECORDS))
    assert committed(broker, "kafka-python") == [RECORDS // PARTITIONS] * PARTITIONS


def test_aiokafka_reads_and_commits(broker: EmbeddedBroker) -> None:
    async def main() -> None:
        async with aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="aiokafka",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            for _ in range(RECORDS):
                await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            await consumer.commit()

    asyncio.run(main())
    assert committed(broker, "aiokafka") == [RECORDS // PARTITIONS] * PARTITIONS


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_share_partitions_and_take_over(broker: EmbeddedBroker, assignor: str) -> None:
    options = {"partition.assignment.strategy": assignor, "heartbeat.interval.ms": 100}
    first = confluent(broker, f"shared-{assignor}", **options)
    read(first, RECORDS)
    second = confluent(broker, f"shared-{assignor}", **options)
    until(shared(first, second), "a rebalance")
    second.close()
    until(shared(first), "a rebalance")
    first.close()


def committed(broker: EmbeddedBroker, group: str) -> list[int]:
    """Returns the committed offset of each partition; -1001: there is none."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    places = [TopicPartition("t", index) for index in range(PARTITIONS)]
    found = [each.offset for each in reader.committed(places, PATIENCE_S)]
    reader.close()
    return found


# Offsets of transactions


def test_offsets_of_a_transaction_are_there_once_it_is_committed(broker: EmbeddedBroker) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="id") as producer:
        producer.init_transactions()
        for offset, commits in ((5, True), (7, False)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction(
                {Place("t", 0): OffsetAndMetadata(offset)}, ConsumerGroupMetadata("billing")
            )
            (producer.commit_transaction if commits else producer.abort_transaction)()
            until(lambda: committed(broker, "billing")[0] == 5, "the committed offset")
        # A member of another generation has lost its partitions.
        producer.begin_transaction()
        with pytest.raises(errors.AbortableError):
            producer.send_offsets_to_transaction(
                {Place("t", 0): OffsetAndMetadata(9)}, ConsumerGroupMetadata("billing", 3, "nobody")
            )
        producer.abort_transaction()
    assert committed(broker, "billing")[0] == 5
