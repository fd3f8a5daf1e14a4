"""Tests leaders that die, hang and move while records are sent with acks=all to three nodes.

Duplicates are allowed: a retry may repeat records that a leader wrote before it died. Losses are not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cyproducer import KafkaProducer
from tests.integration.traffic import Traffic
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    # kafka-python reads its message definitions this way.
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

Reassign = Callable[[str, list[list[int]]], None]
PARTITIONS = 6
TWO_IN_SYNC = {"min.insync.replicas": "2"}


@pytest.fixture(autouse=True)
def whole_again(kafka_cluster: KafkaCluster) -> Iterator[None]:
    """Restores all nodes for the next test, even if a test fails half-way."""
    yield
    for node in kafka_cluster.node_ids:
        if kafka_cluster.pid(node) is None:
            kafka_cluster.restart(node)
        kafka_cluster.resume(node)


@pytest.fixture
def admin(kafka_cluster: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers, "log_level": 0})


@pytest.fixture
def producer(kafka_cluster: KafkaCluster) -> Iterator[KafkaProducer]:
    with KafkaProducer(
        bootstrap_servers=kafka_cluster.bootstrap_servers, acks="all", request_timeout_ms=2_000
    ) as producer:
        yield producer


def create_on(
    admin: AdminClient, topic: str, replicas: list[list[int]], configs: dict[str, str] | None = None
) -> None:
    """Creates a topic with the given replicas per partition. The first replica is the preferred leader."""
    new = NewTopic(topic, len(replicas), replica_assignment=replicas, config=configs or {})
    admin.create_topics([new])[topic].result(30)


@pytest.fixture
def reassign(kafka_cluster: KafkaCluster) -> Iterator[Reassign]:
    """Returns a function that starts to reassign partitions. librdkafka's admin client can't do that."""
    # Imported here, within the warnings filter above.
    import kafka  # type: ignore[import-untyped]

    client = kafka.KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers)

    def begin(topic: str, replicas: list[list[int]]) -> None:
        wanted = {kafka.TopicPartition(topic, index): nodes for index, nodes in enumerate(replicas)}
        assert set(client.alter_partition_reassignments(wanted).values()) == {None}

    yield begin
    client.close()


def await_leader(cluster: KafkaCluster, topic: str, partition: int, wanted: int) -> None:
    leader = -1
    for _ in looks(30):
        leader = cluster.leader(topic, partition)
        if leader == wanted:
            return
    raise AssertionError(f"{topic}-{partition} is led by {leader}, not by {wanted}")


def test_nothing_is_lost_when_a_leader_is_killed_and_other_partitions_continue(
    kafka_cluster: KafkaCluster, admin: AdminClient, producer: KafkaProducer
) -> None:
    victim, one, other = kafka_cluster.node_ids
    create_on(admin, "killed", [[victim, one, other], [victim, other, one]], TWO_IN_SYNC)
    create_on(admin, "elsewhere", [[one, other], [other, one]], TWO_IN_SYNC)
    for partition in (0, 1):
        producer.send("elsewhere", b"before", partition=partition).get(60)

    with Traffic(producer, "killed", 2) as traffic:
        traffic.pass_by()
        kafka_cluster.kill(victim)
        # The node's partitions have no leader until its session times out, which takes seconds.
        stalled = producer.send("killed", b"for the dead", partition=0)
        for number in range(5):
            for partition in (0, 1):
                told = producer.send("elsewhere", b"meanwhile", partition=partition).get(10)
                assert told.offset == 1 + number
        assert not stalled.is_done
        assert stalled.get(60).partition == 0
        assert {kafka_cluster.leader("killed", partition) for partition in (0, 1)} == {one, other}
        traffic.pass_by()
        kafka_cluster.restart(victim)
        traffic.pass_by()

    traffic.assert_nothing_lost(kafka_cluster)


def test_nothing_is_lost_when_a_leader_hangs(kafka_cluster: KafkaCluster, producer: KafkaProducer) -> None:
    kafka_cluster.create_topic("hung", PARTITIONS, configs=TWO_IN_SYNC)
    victim = kafka_cluster.leader("hung", 0)

    with Traffic(producer, "hung", PARTITIONS) as traffic:
        traffic.pass_by()
        kafka_cluster.pause(victim)
        # Its connections stay open: only request_timeout_ms ends the wait for its responses.
        traffic.pass_by()
        kafka_cluster.resume(victim)
        traffic.pass_by()

    traffic.assert_nothing_lost(kafka_cluster)


def test_nothing_is_lost_when_the_preferred_leader_is_elected(
    kafka_cluster: KafkaCluster, admin: AdminClient, producer: KafkaProducer, reassign: Reassign
) -> None:
    first, second, third = kafka_cluster.node_ids
    create_on(admin, "elected", [[first, second, third]])
    await_leader(kafka_cluster, "elected", 0, first)

    with Traffic(producer, "elected", 1) as traffic:
        traffic.pass_by()
        # A new preferred leader alone moves nothing, because the current leader is in sync.
        reassign("elected", [[second, third, first]])
        traffic.pass_by()
        assert kafka_cluster.leader("elected", 0) == first
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("elected", 0)]).result(30)
        await_leader(kafka_cluster, "elected", 0, second)
        traffic.pass_by()

    traffic.assert_nothing_lost(kafka_cluster)


def test_nothing_is_lost_when_partitions_move_to_other_nodes(
    kafka_cluster: KafkaCluster, admin: AdminClient, producer: KafkaProducer, reassign: Reassign
) -> None:
    first, second, third = kafka_cluster.node_ids
    create_on(admin, "moved", [[first], [second], [third]])

    with Traffic(producer, "moved", 3) as traffic:
        traffic.pass_by()
        reassign("moved", [[second], [third], [first]])
        for partition, node in enumerate((second, third, first)):
            await_leader(kafka_cluster, "moved", partition, node)
        traffic.pass_by()

    traffic.assert_nothing_lost(kafka_cluster)
