"""The embedded broker beside a real Kafka: the same programs of four clients, and the same outcomes.

Where the two differ is a table of docs/testing.md.
"""

import asyncio
import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka  # type: ignore[import-untyped]
import kafka as kafka_python  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from cyproducer import KafkaProducer, OffsetAndMetadata, errors
from cyproducer import TopicPartition as Place
from cyproducer.testing import EmbeddedBroker
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.kafka_install import classpath
from tools.harness.kafka_node import java
from tools.harness.until import PATIENCE_S, until

PARTITIONS = 3
JAVA_S = 60
numbers = itertools.count()

pytestmark = pytest.mark.kafka

Outcome = list[Any]
"""What a program has seen, without names and numbers that are new each time."""


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def create(servers: str, name: str) -> None:
    client = admin(servers)
    client.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(PATIENCE_S)


def read_committed(servers: str, topic: str) -> dict[int, list[Any]]:
    """Partition -> (offset, value) of all records, by librdkafka, which verifies checksums."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"reader-{next(numbers)}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: dict[int, list[Any]] = {index: [] for index in range(PARTITIONS)}
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "the reader found no end"
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found[message.partition() or 0].append((message.offset(), message.value()))
    consumer.close()
    return found


# Programs


def by_this_package(servers: str, topic: str) -> Outcome:
    seen: Outcome = []
    with KafkaProducer(bootstrap_servers=servers) as producer:
        futures = [
            producer.send(topic, b"%d" % number, b"k%d" % number, [("h", b"x")], timestamp_ms=number)
            for number in range(9)
        ]
        seen += [(f.get(PATIENCE_S).partition, f.get(0).offset, f.get(0).timestamp) for f in futures]
        refused: list[dict[str, Any]] = [{"value": b"v", "partition": 99}, {"value": bytes(2 << 20)}]
        for wrong in refused:
            try:
                producer.send(topic, **wrong).get(PATIENCE_S)
            except errors.KafkaError as error:
                seen.append(type(error).__name__)
    with KafkaProducer(bootstrap_servers=servers, transactional_id=f"id-{topic}") as producer:
        producer.init_transactions(PATIENCE_S)
        for number, commits in enumerate((True, False, True)):
            producer.begin_transaction()
            producer.send(topic, b"tx%d" % number, partition=0).get(PATIENCE_S)
            producer.send_offsets_to_transaction(
                {Place(topic, 1): OffsetAndMetadata(number)}, f"group-{topic}"
            )
            (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
        with KafkaProducer(bootstrap_servers=servers, transactional_id=f"id-{topic}") as newer:
            newer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
            try:
                producer.send(topic, b"fenced", partition=0).get(PATIENCE_S)
                producer.commit_transaction(PATIENCE_S)
            except errors.KafkaError as error:
                seen.append(type(error).__name__)
    return seen


def by_confluent_kafka(servers: str, topic: str) -> Outcome:
    seen: Outcome = []
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"id-{topic}", "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(PATIENCE_S)
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
    try:
        create(servers, topic)
    except KafkaException as error:
        seen.append(error.args[0].name())
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"group-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    values: list[Any] = []
    while len(values) < 2:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        values.append(message.value())
    consumer.commit(asynchronous=False)
    committed = consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], PATIENCE_S)
    seen += [values, [place.offset for place in committed]]
    consumer.close()
    client = admin(servers)
    deleted = client.delete_consumer_groups([f"group-{topic}"])
    seen.append([future.result(PATIENCE_S) for future in deleted.values()])
    return seen


def by_kafka_python(servers: str, topic: str) -> Outcome:
    seen: Outcome = []
    producer = kafka_python.KafkaProducer(bootstrap_servers=servers)
    for number in range(4):
        metadata = producer.send(topic, b"%d" % number, partition=number % PARTITIONS).get(PATIENCE_S)
        seen.append((metadata.partition, metadata.offset))
    producer.close()
    consumer = kafka_python.KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    places = [kafka_python.TopicPartition(topic, index) for index in range(PARTITIONS)]
    consumer.assign(places)
    seen.append(sorted(consumer.end_offsets(places).values()))
    values: list[bytes] = []
    while len(values) < 4:
        for records in consumer.poll(timeout_ms=1000).values():
            values += [record.value for record in records]
    seen.append(sorted(values))
    consumer.close()
    return seen


def by_aiokafka(servers: str, topic: str) -> Outcome:
    async def main() -> Outcome:
        seen: Outcome = []
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for number in range(4):
                metadata = await producer.send_and_wait(topic, b"%d" % number, partition=number % PARTITIONS)
                seen.append((metadata.partition, metadata.offset))
        async with aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=servers, group_id=f"group-{topic}", auto_offset_reset="earliest"
        ) as consumer:
            values = [(await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value for _ in range(4)]
            seen.append(sorted(values))
        return seen

    return asyncio.run(main())


def by_a_remote_assignor(servers: str, topic: str) -> Outcome:
    """Two static members of a group of KIP-848, whose partitions the broker assigns by range."""
    members = {
        instance: Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"group-{topic}",
                "group.instance.id": instance,
                "group.protocol": "consumer",
                "group.remote.assignor": "range",
                "log_level": 0,
            }
        )
        for instance in ("b", "a")
    }
    try:
        for member in members.values():
            member.subscribe([f"^{topic}$"])

        def ranges() -> dict[str, list[int]]:
            for member in members.values():
                member.poll(0.05)
            return {
                name: sorted(part.partition for part in member.assignment())
                for name, member in members.items()
            }

        until(lambda: sorted(map(len, ranges().values())) == [1, 2], "both to have partitions")
        return [ranges()]
    finally:
        for member in members.values():
            member.close()


def by_java(servers: str, topic: str) -> Outcome:
    def run(main_class: str, *arguments: str, given: str = "") -> str:
        command = java(classpath(), main_class, "--bootstrap-server", servers, *arguments)
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=JAVA_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return re.sub(re.escape(topic), "TOPIC", done.stdout)

    tools = "org.apache.kafka.tools"
    group = f"group-{topic}"
    run(f"{tools}.ConsoleProducer", "--topic", topic, given="a\nb\n")
    read = run(
        f"{tools}.consumer.ConsoleConsumer",
        *("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "2"),
        *("--isolation-level", "read_committed"),
    )
    described = run(f"{tools}.consumer.group.ConsumerGroupCommand", "--describe", "--group", group)
    offsets = run(f"{tools}.GetOffsetShell", "--topic", topic)
    state = run(f"{tools}.consumer.group.ConsumerGroupCommand", "--list", "--state")
    run(f"{tools}.consumer.group.ConsumerGroupCommand", "--delete", "--group", group)
    return [
        read.split(),
        # Not which partition: the producer sticks to one at random.
        sorted(line.split()[3:6] for line in described.splitlines() if "TOPIC" in line),
        sorted(line.rsplit(":", 1)[1] for line in offsets.splitlines()),
        [line.split()[-1] for line in state.splitlines() if "group-TOPIC" in line],
    ]


@pytest.mark.parametrize(
    "program",
    [by_this_package, by_confluent_kafka, by_kafka_python, by_aiokafka, by_java, by_a_remote_assignor],
)
def test_a_program_sees_the_same(
    kafka: KafkaCluster, embedded: EmbeddedBroker, program: Callable[[str, str], Outcome]
) -> None:
    topic = f"same-{program.__name__}"
    outcomes, logs = [], []
    for servers in (kafka.bootstrap_servers, embedded.bootstrap_servers):
        create(servers, topic)
        outcomes.append(program(servers, topic))
        log = read_committed(servers, topic)
        # Java's console producer chooses partitions at random.
        logs.append(sorted(log.values()) if program is by_java else log)
    assert outcomes[1] == outcomes[0]
    assert logs[1] == logs[0]
