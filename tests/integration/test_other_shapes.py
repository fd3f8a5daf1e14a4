"""The producers in aiokafka's and confluent-kafka's shapes against a real Kafka, read back by librdkafka."""

import asyncio

import pytest

from cyproducer.aio import AIOKafkaProducer
from cyproducer.confluent import KafkaError, Message, Producer
from tests.integration.consume import read_all
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.either_broker

RECORDS = 2000


def test_confluents_shape(kafka: KafkaCluster) -> None:
    kafka.create_topic("in-confluents-shape", 3)
    reports: list[tuple[KafkaError | None, Message]] = []
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "compression.type": "lz4"}
    )
    for number in range(RECORDS):
        producer.produce(
            "in-confluents-shape",
            b"%d" % number,
            key=b"%d" % (number % 7),
            headers=[("n", b"%d" % number)],
            on_delivery=lambda error, message: reports.append((error, message)),
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    listed = producer.list_topics("in-confluents-shape", 30)
    assert sorted(listed.topics["in-confluents-shape"].partitions) == [0, 1, 2]
    producer.close()
    assert [error for error, _ in reports if error is not None] == []
    found = read_all(kafka.bootstrap_servers, "in-confluents-shape", RECORDS)
    assert {(m.partition(), m.offset()): m.value() for _, m in reports} == {
        (record.partition, record.offset): record.value for record in found
    }
    assert len(found) == len(reports) == RECORDS
    assert all(record.headers == [("n", record.value)] for record in found)


def test_aiokafkas_shape(kafka: KafkaCluster) -> None:
    kafka.create_topic("in-aiokafkas-shape", 3)

    async def send() -> dict[tuple[int, int], bytes]:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=5) as producer:
            values = [b"%d" % number for number in range(RECORDS)]
            futures = [await producer.send("in-aiokafkas-shape", value, key=value[-1:]) for value in values]
            placed = zip(await asyncio.gather(*futures), values, strict=True)
            return {(where.partition, where.offset): value for where, value in placed if where is not None}

    sent = asyncio.run(send())
    found = read_all(kafka.bootstrap_servers, "in-aiokafkas-shape", RECORDS)
    assert sent == {(record.partition, record.offset): record.value for record in found}
    assert len(found) == len(sent) == RECORDS
