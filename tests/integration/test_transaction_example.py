"""Runs the example of docs/transactions.md on a real Kafka: killed half-way, it copies each record once."""

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from cyproducer import KafkaProducer
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.either_broker

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "copy_exactly_once.py"
RECORDS = 20_000
WITHIN_S = 120


@contextmanager
def committed(kafka: KafkaCluster, topic: str) -> Iterator[Consumer]:
    """A reader of committed records, from the beginning of all partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"reader-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: Consumer, count: int) -> list[bytes]:
    """Reads until there are ``count`` records."""
    found: list[bytes] = []
    deadline = time.monotonic() + WITHIN_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        for message in consumer.consume(1000, timeout=0.5):
            assert message.error() is None
            found.append(message.value() or b"")
    return found


@contextmanager
def copier(kafka: KafkaCluster, *names: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-P", str(EXAMPLE), kafka.bootstrap_servers, *names])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_example_copies_each_record_once_although_it_is_killed(kafka: KafkaCluster) -> None:
    source, target, group = (f"example-{what}-{uuid.uuid4()}" for what in ("source", "target", "group"))
    kafka.create_topic(source, 3)
    kafka.create_topic(target, 3)
    names = source, target, group, f"id-{group}"

    def write(numbers: range) -> None:
        with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for number in numbers:
                producer.send(source, b"record %d" % number)

    write(range(RECORDS // 2))
    with committed(kafka, target) as reader:
        with copier(kafka, *names):
            found = read(reader, 1)
        with copier(kafka, *names) as process:
            # What only this one can copy, so that it runs when it is asked to end.
            write(range(RECORDS // 2, RECORDS))
            found += read(reader, RECORDS - len(found))
            process.send_signal(signal.SIGTERM)
            assert process.wait(WITHIN_S) == 0
        with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for partition in range(3):
                producer.send(target, b"end", partition=partition)
        found += read(reader, 3)
    assert sorted(found) == sorted([*(b"RECORD %d" % number for number in range(RECORDS)), *[b"end"] * 3])
