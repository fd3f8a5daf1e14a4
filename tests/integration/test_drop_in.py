"""Compares with other clients: a kafka-python program, and the partition of each key."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer

import cyproducer
from cyproducer import KafkaProducer
from tests.integration.consume import read_all
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.kafka_install import classpath
from tools.harness.kafka_node import java

pytestmark = pytest.mark.either_broker

PROGRAM = Path(__file__).with_name("drop_in_program.py")
OURS = Path(cyproducer.__file__).parents[1]
"""The directory of the package under test, installed or built in place."""


def run_program(module: str, kafka: KafkaCluster, topic: str, directory: Path) -> list[str]:
    """Returns the program's output with the clients of a module."""
    kafka.create_topic(topic, partitions=3)
    text = PROGRAM.read_text()
    changed = text.replace("from kafka", f"from {module}")
    assert changed.count(f"from {module}") == 2
    file = directory / f"{module}_program.py"
    file.write_text(changed)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", file, kafka.bootstrap_servers, topic],
        env={**os.environ, "PYTHONPATH": str(OURS)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.replace(topic, "TOPIC").splitlines()


@pytest.mark.slow
def test_a_kafka_python_program_behaves_the_same_after_its_import_is_changed(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    theirs = run_program("kafka", kafka, "drop-in-theirs", tmp_path)
    ours = run_program("cyproducer", kafka, "drop-in-ours", tmp_path)

    assert ours == theirs
    expected = read_all(kafka.bootstrap_servers, "drop-in-theirs", 304)
    assert read_all(kafka.bootstrap_servers, "drop-in-ours", 304) == expected
    assert len(expected) == 304


# Partitions of keys

PARTITIONS = 7
KEYS = [
    *(f"key-{i}" for i in range(250)),
    # Every length of a last block, and every kind of UTF-8 sequence.
    *("x" * length for length in range(1, 20)),
    *("ü" * length + "日本🚀" for length in range(20)),
    "long" * 1_000,
]


def places(kafka: KafkaCluster, topic: str, producers: Iterable[bytes]) -> dict[bytes, dict[str, int]]:
    """Returns producer name (the value of its records) -> key -> partition."""
    found: dict[bytes, dict[str, int]] = {name: {} for name in producers}
    for record in read_all(kafka.bootstrap_servers, topic, len(KEYS) * len(found)):
        assert record.key is not None
        assert record.value is not None
        found[record.value][record.key.decode()] = record.partition
    return found


def produce_with_java(kafka: KafkaCluster, topic: str) -> None:
    subprocess.run(
        java(
            classpath(),
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", kafka.bootstrap_servers, "--topic", topic),
            *("--property", "parse.key=true", "--property", "key.separator=="),
            options=["-Dlog4j2.level=ERROR"],
        ),
        input="".join(f"{key}=java\n" for key in KEYS).encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )


def produce_with_librdkafka(kafka: KafkaCluster, topic: str, partitioner: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": partitioner})
    for key in KEYS:
        producer.produce(topic, value, key=key)
    assert producer.flush(30) == 0


def produce_with_kafka_python(kafka: KafkaCluster, topic: str) -> None:
    program = (
        "import sys, kafka\n"
        "producer = kafka.KafkaProducer(bootstrap_servers=sys.argv[1])\n"
        "for key in sys.stdin.read().split():\n"
        "    producer.send(sys.argv[2], b'kafka-python', key.encode())\n"
        "producer.close(timeout=30)\n"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-X", "utf8", "-c", program, kafka.bootstrap_servers, topic],
        input="\n".join(KEYS).encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )


def produce_with_ours(kafka: KafkaCluster, topic: str, partitioner: str | None = None) -> None:
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, partitioner=partitioner) as producer:
        for future in [producer.send(topic, b"ours", key.encode()) for key in KEYS]:
            future.get(30)


@pytest.mark.kafka_only("it runs Java's producer")
def test_keys_get_the_partitions_of_java_librdkafka_and_kafka_python(kafka: KafkaCluster) -> None:
    kafka.create_topic("places", PARTITIONS)
    produce_with_ours(kafka, "places")
    produce_with_java(kafka, "places")
    produce_with_librdkafka(kafka, "places", "murmur2_random", "librdkafka")
    produce_with_kafka_python(kafka, "places")

    found = places(kafka, "places", [b"ours", b"java", b"librdkafka", b"kafka-python"])
    ours = found.pop(b"ours")
    assert set(ours) == set(KEYS)
    assert set(ours.values()) == set(range(PARTITIONS))
    for other in found.values():
        assert other == ours


@pytest.mark.parametrize(
    "partitioner",
    ["consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"],
)
def test_keys_get_the_partitions_of_librdkafkas_partitioner_of_that_name(
    kafka: KafkaCluster, partitioner: str
) -> None:
    topic = f"places-{partitioner}"
    kafka.create_topic(topic, PARTITIONS)
    produce_with_ours(kafka, topic, partitioner)
    produce_with_librdkafka(kafka, topic, partitioner, "librdkafka")

    found = places(kafka, topic, [b"ours", b"librdkafka"])
    assert set(found[b"ours"].values()) == set(range(PARTITIONS))
    assert found[b"ours"] == found[b"librdkafka"]
