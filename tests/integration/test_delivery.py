"""Tests the results that a caller gets from a real broker: metadata, futures, awaitables and callbacks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections import Counter
from typing import Any

import pytest

from cyproducer import KafkaProducer
from tests.integration.consume import Fetched, read_all
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.either_broker

LONG_AGO_MS = 1_000_000_000_000


def values(records: list[Fetched]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.smoke
def test_a_record_is_acknowledged_with_partition_and_offset(kafka: KafkaCluster) -> None:
    kafka.create_topic("place", partitions=2)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        told = [producer.send("place", b"%d" % i, key=b"k", partition=1).get(30) for i in range(3)]

    assert [(t.topic, t.partition, t.offset) for t in told] == [("place", 1, offset) for offset in range(3)]
    assert values(read_all(kafka.bootstrap_servers, "place", 3)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("acks", [1, "all"])
def test_acknowledged_records_have_their_offsets(kafka: KafkaCluster, acks: Any) -> None:
    topic = f"acks-{acks}"
    kafka.create_topic(topic)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks=acks) as producer:
        futures = [producer.send(topic, b"%d" % i) for i in range(1_000)]
        offsets = [future.get(30).offset for future in futures]

    assert offsets == list(range(1_000))
    assert values(read_all(kafka.bootstrap_servers, topic, 1_000)) == [b"%d" % i for i in range(1_000)]


def test_without_acknowledgement_offsets_are_unknown_and_the_records_arrive(kafka: KafkaCluster) -> None:
    kafka.create_topic("acks-0")
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks=0) as producer:
        # With acks=0 a refusal is not reported, so the new topic's leader must be ready first.
        with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as other:
            assert other.send("acks-0", b"first").get(30).offset == 0
        futures = [producer.send("acks-0", b"%d" % i) for i in range(1_000)]
        told = [future.get(30) for future in futures]

    assert {(t.partition, t.offset) for t in told} == {(0, -1)}
    found = values(read_all(kafka.bootstrap_servers, "acks-0", 1_001))
    assert found == [b"first", *(b"%d" % i for i in range(1_000))]


def test_with_log_append_time_the_metadata_has_the_brokers_time(kafka: KafkaCluster) -> None:
    kafka.create_topic("append-time", configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=50) as producer:
        futures = [producer.send("append-time", b"%d" % i, timestamp_ms=LONG_AGO_MS + i) for i in range(3)]
        told = [future.get(30).timestamp for future in futures]
    after = int(time.time() * 1000)

    found = read_all(kafka.bootstrap_servers, "append-time", 3)
    assert [record.timestamp_type for record in found] == ["LogAppendTime"] * 3
    assert told == [record.timestamp_ms for record in found]
    assert all(before <= timestamp <= after for timestamp in told)


def test_with_create_time_the_metadata_has_the_callers_time_or_that_of_send(kafka: KafkaCluster) -> None:
    kafka.create_topic("create-time", configs={"message.timestamp.type": "CreateTime"})
    before = int(time.time() * 1000)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=50) as producer:
        given = producer.send("create-time", b"given", timestamp_ms=LONG_AGO_MS)
        chosen = producer.send("create-time", b"chosen")
        accepted = int(time.time() * 1000)
        told = [given.get(30).timestamp, chosen.get(30).timestamp]

    found = read_all(kafka.bootstrap_servers, "create-time", 2)
    assert [record.timestamp_type for record in found] == ["CreateTime"] * 2
    assert told == [record.timestamp_ms for record in found]
    assert told[0] == LONG_AGO_MS
    assert before <= told[1] <= accepted


def test_records_can_be_awaited(kafka: KafkaCluster) -> None:
    kafka.create_topic("awaited")

    async def produce(producer: KafkaProducer) -> list[int]:
        first = await producer.send("awaited", b"0")
        more = await asyncio.gather(*(_offset(producer, b"%d" % i) for i in range(1, 500)))
        return [first.offset, *more]

    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        offsets = asyncio.run(asyncio.wait_for(produce(producer), 60))

    assert offsets == list(range(500))
    assert values(read_all(kafka.bootstrap_servers, "awaited", 500)) == [b"%d" % i for i in range(500)]


async def _offset(producer: KafkaProducer, value: bytes) -> int:
    offset: int = (await producer.send("awaited", value)).offset
    return offset


def test_records_can_be_waited_for_with_concurrent_futures(kafka: KafkaCluster) -> None:
    kafka.create_topic("concurrent")
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        futures = [producer.send("concurrent", b"%d" % i).as_concurrent() for i in range(500)]
        done, pending = concurrent.futures.wait(futures, timeout=30)

    assert not pending
    assert len(done) == 500
    assert [future.result().offset for future in futures] == list(range(500))


def test_callbacks_run_in_the_order_of_the_log(kafka: KafkaCluster) -> None:
    kafka.create_topic("callbacks")
    told: list[tuple[int, int]] = []
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for i in range(500):
            producer.send("callbacks", b"%d" % i).add_callback(
                lambda number, metadata: told.append((number, metadata.offset)), i
            )
        # flush() waits for callbacks as well.
        producer.flush(30)

    assert told == [(i, i) for i in range(500)]


def test_sixty_four_threads_share_a_producer(kafka: KafkaCluster) -> None:
    kafka.create_topic("threads", partitions=3)
    rounds = 25

    def produce(thread: int) -> list[tuple[int, int, bytes]]:
        sent = []
        for number in range(rounds):
            value = b"%d-%d" % (thread, number)
            told = producer.send("threads", value, key=b"%d" % thread).get(60)
            sent.append((told.partition, told.offset, value))
        return sent

    with (
        KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer,
        concurrent.futures.ThreadPoolExecutor(64) as threads,
    ):
        told = [place for places in threads.map(produce, range(64)) for place in places]

    found = read_all(kafka.bootstrap_servers, "threads", 64 * rounds)
    assert sorted(told) == [(record.partition, record.offset, record.value) for record in found]
    assert Counter(record.key for record in found) == {b"%d" % thread: rounds for thread in range(64)}
