"""Consumer groups of the embedded broker: by three other clients' consumers, and by single requests."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka  # type: ignore[import-untyped]
import kafka  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Consumer

from cyproducer import ConsumerGroupMetadata, KafkaProducer, OffsetAndMetadata, errors
from cyproducer import TopicPartition as Place
from cyproducer.testing import EmbeddedBroker
from cyproducer.wire import messages
from cyproducer.wire.schema import Api
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
    assert Client(broker, "kafka-python").committed() == [RECORDS // PARTITIONS] * PARTITIONS


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
    assert Client(broker, "aiokafka").committed() == [RECORDS // PARTITIONS] * PARTITIONS


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


def test_a_silent_member_is_removed_when_its_session_is_over(broker: EmbeddedBroker) -> None:
    gone = Client(broker, "sessions")
    joined = gone.joined()
    gone.sync(joined, [(joined.member_id, b"all")])

    def members() -> int:
        (group,) = gone.ask(messages.DESCRIBE_GROUPS, 5, groups=["sessions"]).groups
        return len(group.members)

    assert members() == 1
    broker.advance(Client.SESSION_MS + 1)
    assert members() == 0


def test_a_static_member_gets_its_partitions_again_without_a_rebalance(broker: EmbeddedBroker) -> None:
    client = Client(broker, "static")
    first = client.joined(group_instance_id="one")
    assert client.sync(first, [(first.member_id, b"all")]).assignment == b"all"
    second = client.join(group_instance_id="one")
    assert (second.error_code, second.generation_id) == (0, first.generation_id)
    assert second.member_id != first.member_id
    # It does not assign again.
    assert second.members == [] or second.skip_assignment
    assert client.sync(second, []).assignment == b"all"
    # The one that it has replaced is told so.
    assert client.beat(first, group_instance_id="one") == errors.FencedInstanceIdError.errno


# Single requests


class Client:
    """A member that sends single requests to the coordinator of a group."""

    SESSION_MS = 20_000

    def __init__(self, broker: EmbeddedBroker, group: str) -> None:
        self.group = group
        found = self._ask(
            broker.bootstrap_servers.split(",")[0], messages.FIND_COORDINATOR, 4, key_type=0,
            coordinator_keys=[group], key="",
        ).coordinators[0]  # fmt: skip
        self.address = f"{found.host}:{found.port}"

    def _ask(self, address: str, api: Api, version: int, **fields: Any) -> Any:
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
            given = {field.name: fields.get(field.name, field.zero()) for field in api.request.root.fields}
            connection.sendall(api.encode_request(version, 1, "test", api.request(**given)))
            with connection.makefile("rb") as stream:
                frame = stream.read(int.from_bytes(stream.read(4), "big"))
        return api.decode_response(version, frame)

    def ask(self, api: Api, version: int, **fields: Any) -> Any:
        return self._ask(self.address, api, version, **{"group_id": self.group, **fields})

    def join(self, version: int = 6, **fields: Any) -> Any:
        protocol = messages.JOIN_GROUP.request.JoinGroupRequestProtocol("range", b"about me")
        given = {"protocols": [protocol], "protocol_type": "consumer", "member_id": ""} | fields
        return self.ask(
            messages.JOIN_GROUP,
            version,
            session_timeout_ms=self.SESSION_MS,
            rebalance_timeout_ms=5000,
            **given,
        )

    def joined(self, **fields: Any) -> Any:
        """Joins; a dynamic member gets its id first."""
        found = self.join(**fields)
        if found.error_code == errors.MemberIdRequiredError.errno:
            found = self.join(**fields, member_id=found.member_id)
        assert found.error_code == 0
        return found

    def sync(self, joined: Any, assignments: list[tuple[str, bytes]], **fields: Any) -> Any:
        make = messages.SYNC_GROUP.request.SyncGroupRequestAssignment
        given = {
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "assignments": [make(*each) for each in assignments],
        }
        return self.ask(messages.SYNC_GROUP, 3, **given | fields)

    def beat(self, joined: Any, **fields: Any) -> int:
        given = {"generation_id": joined.generation_id, "member_id": joined.member_id} | fields
        return int(self.ask(messages.HEARTBEAT, 3, **given).error_code)

    def committed(self) -> list[int]:
        """Returns the committed offset of each partition."""
        topic = messages.OFFSET_FETCH.request.OffsetFetchRequestTopic("t", list(range(PARTITIONS)))
        response = self.ask(messages.OFFSET_FETCH, 5, topics=[topic])
        return [partition.committed_offset for partition in response.topics[0].partitions]


# Offsets of transactions


def test_offsets_of_a_transaction_are_there_once_it_is_committed(broker: EmbeddedBroker) -> None:
    def committed() -> int:
        return Client(broker, "billing").committed()[0]

    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="id") as producer:
        producer.init_transactions()
        for offset, commits in ((5, True), (7, False)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction(
                {Place("t", 0): OffsetAndMetadata(offset)}, ConsumerGroupMetadata("billing")
            )
            (producer.commit_transaction if commits else producer.abort_transaction)()
            until(lambda: committed() == 5, "the committed offset")
        # A member of another generation has lost its partitions.
        producer.begin_transaction()
        with pytest.raises(errors.AbortableError):
            producer.send_offsets_to_transaction(
                {Place("t", 0): OffsetAndMetadata(9)}, ConsumerGroupMetadata("billing", 3, "nobody")
            )
        producer.abort_transaction()
    assert committed() == 5
