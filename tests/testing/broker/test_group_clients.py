"""Other projects' consumers and administrators with consumer groups of the embedded broker."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from cyproducer import KafkaProducer
from cyproducer.errors import TransactionFailedError
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata
from cyproducer.structs import TopicPartition as Place
from cyproducer.testing.broker.cluster import EmbeddedCluster
from tests.testing.broker.group_bench import Bench, G
from tests.testing.broker.group_clients import CLIENTS, TOPIC, Client, KafkaPython
from tools.harness.until import until

EVERYWHERE = {0, 1, 2}
by_client = pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=[pytest.mark.slow] * (each is KafkaPython)) for each in CLIENTS]
)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(nodes=2) as bench:
        yield bench


def write(bench: Bench, values: list[bytes]) -> None:
    """Writes records, one to each partition after the other."""
    with KafkaProducer(bootstrap_servers=bench.addresses) as producer:
        for number, value in enumerate(values):
            producer.send(TOPIC, value, partition=number % len(EVERYWHERE))


def until_assigned(*clients: Client) -> None:
    """Returns once these share the partitions, and each has some."""

    def shared() -> bool:
        for client in clients:
            client.poll()
        parts = [client.assigned() for client in clients]
        return all(parts) and sum(map(len, parts)) == len(EVERYWHERE) == len(set().union(*parts))

    until(shared, "an assignment")


def until_read(client: Client, values: list[bytes]) -> None:
    def read() -> bool:
        client.poll()
        return len(client.values) >= len(values)

    until(read, f"{len(values)} records")
    assert sorted(client.values) == sorted(values)


@by_client
def test_a_group_goes_on_from_what_was_committed(bench: Bench, kind: type[Client]) -> None:
    first, more = [b"%d" % n for n in range(9)], [b"more %d" % n for n in range(6)]
    write(bench, first)
    client = kind(bench.addresses, G)
    until_read(client, first)
    client.commit()
    client.close()
    assert bench.described().group_state == "Empty"

    write(bench, more)
    client = kind(bench.addresses, G)
    until_read(client, more)
    # Without a commit, the next one reads it again.
    client.close()
    client = kind(bench.addresses, G)
    until_read(client, more)
    client.close()
    # Another group begins at the beginning.
    client = kind(bench.addresses, "other")
    until_read(client, first + more)
    client.close()


@by_client
def test_members_share_the_partitions(bench: Bench, kind: type[Client]) -> None:
    one, other = kind(bench.addresses, G), kind(bench.addresses, G)
    until_assigned(one, other)
    write(bench, values := [b"%d" % n for n in range(9)])

    def read() -> bool:
        one.poll()
        other.poll()
        return len(one.values) + len(other.values) >= len(values)

    until(read, "records")
    assert sorted(one.values + other.values) == sorted(values)
    assert one.values
    assert other.values
    one.commit()
    other.commit()
    other.close()
    until_assigned(one)
    one.values = []
    write(bench, [b"a", b"b", b"c"])
    until_read(one, [b"a", b"b", b"c"])
    one.close()


@by_client
def test_a_static_member_starts_again_and_keeps_its_partitions(bench: Bench, kind: type[Client]) -> None:
    one, other = kind(bench.addresses, G, "one"), kind(bench.addresses, G, "other")
    until_assigned(one, other)
    bench.until_state("Stable")
    before, part = by_instance(bench), other.assigned()

    other.close()
    assert by_instance(bench).keys() == {"one", "other"}
    other = kind(bench.addresses, G, "other")
    until_assigned(one, other)
    bench.until_state("Stable")
    after = by_instance(bench)
    assert other.assigned() == part
    assert after["one"] == before["one"]
    assert after["other"].member_id != before["other"].member_id
    assert after["other"].member_assignment == before["other"].member_assignment
    other.close()
    one.close()


def by_instance(bench: Bench) -> dict[str | None, Any]:
    """Returns the members by their instance."""
    return {each.group_instance_id: each for each in bench.described().members}


def generation_of(bench: Bench) -> int:
    def ask(cluster: EmbeddedCluster) -> int:
        group = cluster.groups.find(G)
        assert group is not None
        return group.generation

    return bench.call(ask)


@pytest.mark.slow
def test_members_of_different_projects_share_a_group(bench: Bench) -> None:
    clients = [kind(bench.addresses, G) for kind in CLIENTS]
    until_assigned(*clients)
    left = clients.copy()
    while len(left) > 1:
        left.pop().close()
        until_assigned(*left)
    left[0].close()


@by_client
def test_a_group_survives_its_coordinator(bench: Bench, kind: type[Client]) -> None:
    write(bench, values := [b"a", b"b", b"c"])
    client = kind(bench.addresses, G)
    until_read(client, values)
    (before,) = bench.described().members
    bench.move(3 - bench.coordinator())
    client.commit()
    assert bench.offset() == (1, 0)
    (after,) = bench.described().members
    assert after.member_id == before.member_id
    client.close()


def test_offsets_in_a_transaction(bench: Bench) -> None:
    """A copying program with this package's producer and confluent-kafka's consumer."""
    consumer = Consumer({"bootstrap.servers": bench.addresses, "group.id": G, "log_level": 0})
    consumer.subscribe([TOPIC])

    def assigned() -> bool:
        consumer.poll(0.01)
        return len(consumer.assignment()) == len(EVERYWHERE)

    until(assigned, "an assignment")
    place, described = Place(TOPIC, 0), bench.described()
    who = ConsumerGroupMetadata(G, generation_of(bench), described.members[0].member_id)
    with KafkaProducer(bootstrap_servers=bench.addresses, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(7, "", -1)}, who)
        assert bench.offset(require_stable=True) == (-1, 88)
        producer.commit_transaction()
        assert bench.offset(require_stable=True) == (7, 0)
        found = consumer.committed([TopicPartition(TOPIC, 0)], timeout=10)
        assert [each.offset for each in found] == [7]

        producer.begin_transaction()
        stale = who._replace(generation_id=who.generation_id + 1)
        with pytest.raises(TransactionFailedError, match="IllegalGenerationError"):
            producer.send_offsets_to_transaction({place: OffsetAndMetadata(8, "", -1)}, stale)
        producer.abort_transaction()
    assert bench.offset() == (7, 0)
    consumer.close()


def test_confluents_administrator(bench: Bench) -> None:
    admin = AdminClient({"bootstrap.servers": bench.addresses, "log_level": 0})
    places = ConsumerGroupTopicPartitions(G, [TopicPartition(TOPIC, 1, 9)])
    admin.alter_consumer_group_offsets([places])[G].result()
    (listed,) = admin.list_consumer_groups().result().valid
    assert (listed.group_id, listed.state) == (G, ConsumerGroupState.EMPTY)
    assert admin.describe_consumer_groups([G])[G].result().state == ConsumerGroupState.EMPTY
    wanted = ConsumerGroupTopicPartitions(G)
    found = admin.list_consumer_group_offsets([wanted])[G].result().topic_partitions
    assert [(each.partition, each.offset) for each in found] == [(1, 9)]
    admin.delete_consumer_groups([G])[G].result()
    assert admin.list_consumer_groups().result().valid == []


@pytest.mark.slow
def test_kafka_pythons_administrator(bench: Bench) -> None:
    import kafka  # type: ignore[import-untyped]

    client = KafkaPython(bench.addresses, G)
    until_assigned(client)
    admin = kafka.KafkaAdminClient(bootstrap_servers=bench.addresses)
    assert [each["group_id"] for each in admin.list_groups()] == [G]
    (member,) = admin.describe_groups([G])[G]["members"]
    assert member["member_assignment"]["assigned_partitions"] == [{"topic": TOPIC, "partitions": [0, 1, 2]}]
    client.close()
    admin.delete_groups([G])
    assert admin.list_groups() == []
    admin.close()
