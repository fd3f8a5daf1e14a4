"""Tests leaders that die, hang and move while records are sent with acks=all to three nodes: who leads then,
that others go on meanwhile, and that each record is there once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cyproducer import KafkaProducer
from tests.integration.cluster_faults import ClusterFaults
from tests.integration.delivery_rig import idempotent, settle
from tests.integration.fault_log import FaultLog
from tests.integration.ledger import Writer
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    # kafka-python reads its message definitions this way.
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

PARTITIONS = 6
TWO_IN_SYNC = {"min.insync.replicas": "2"}
WAY = idempotent(None)


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


def await_leader(cluster: KafkaCluster, topic: str, partition: int, wanted: int) -> None:
    leader = -1
    for _ in looks(30):
        leader = cluster.leader(topic, partition)
        if leader == wanted:
            return
    raise AssertionError(f"{topic}-{partition} is led by {leader}, not by {wanted}")


def test_nothing_is_lost_when_a_leader_is_killed_and_other_partitions_continue(
    kafka_cluster: KafkaCluster,
    faults: ClusterFaults,
    log: FaultLog,
    admin: AdminClient,
    producer: KafkaProducer,
) -> None:
    victim, one, other = kafka_cluster.node_ids
    create_on(admin, "killed", [[victim, one, other], [victim, other, one]], TWO_IN_SYNC)
    create_on(admin, "stalled", [[victim, one, other]], TWO_IN_SYNC)
    create_on(admin, "elsewhere", [[one, other], [other, one]], TWO_IN_SYNC)
    for partition in (0, 1):
        producer.send("elsewhere", b"before", partition=partition).get(60)

    producer.send("stalled", b"before").get(60)

    with Writer(producer, "killed", 2, log) as writer:
        writer.pass_by()
        faults.kill(victim)
        # The node's partitions have no leader until its session times out, which takes seconds.
        stalled = producer.send("stalled", b"for the dead")
        for number in range(5):
            for partition in (0, 1):
                told = producer.send("elsewhere", b"meanwhile", partition=partition).get(10)
                assert told.offset == 1 + number
        assert not stalled.is_done
        assert stalled.get(60).partition == 0
        assert {kafka_cluster.leader("killed", partition) for partition in (0, 1)} == {one, other}
        writer.pass_by()
        faults.restart(victim)
        writer.pass_by()

    settle(kafka_cluster, faults, writer, WAY, restarts=True)


def test_nothing_is_lost_when_a_leader_hangs(
    kafka_cluster: KafkaCluster, faults: ClusterFaults, log: FaultLog, producer: KafkaProducer
) -> None:
    kafka_cluster.create_topic("hung", PARTITIONS, configs=TWO_IN_SYNC)
    victim = kafka_cluster.leader("hung", 0)

    with Writer(producer, "hung", PARTITIONS, log) as writer:
        writer.pass_by()
        faults.pause(victim)
        # Its connections stay open: only request_timeout_ms ends the wait for its responses.
        writer.pass_by()
        faults.resume(victim)
        writer.pass_by()

    settle(kafka_cluster, faults, writer, WAY)


def test_nothing_is_lost_when_the_preferred_leader_is_elected(
    kafka_cluster: KafkaCluster,
    faults: ClusterFaults,
    log: FaultLog,
    admin: AdminClient,
    producer: KafkaProducer,
) -> None:
    first, second, third = kafka_cluster.node_ids
    create_on(admin, "elected", [[first, second, third]])
    await_leader(kafka_cluster, "elected", 0, first)

    with Writer(producer, "elected", 1, log) as writer:
        writer.pass_by()
        # A new preferred leader alone moves nothing, because the current leader is in sync.
        faults.move("elected", [[second, third, first]])
        writer.pass_by()
        assert kafka_cluster.leader("elected", 0) == first
        faults.elect("elected", 1)
        await_leader(kafka_cluster, "elected", 0, second)
        writer.pass_by()

    settle(kafka_cluster, faults, writer, WAY)


def test_nothing_is_lost_when_partitions_move_to_other_nodes(
    kafka_cluster: KafkaCluster,
    faults: ClusterFaults,
    log: FaultLog,
    admin: AdminClient,
    producer: KafkaProducer,
) -> None:
    first, second, third = kafka_cluster.node_ids
    create_on(admin, "moved", [[first], [second], [third]])

    with Writer(producer, "moved", 3, log) as writer:
        writer.pass_by()
        faults.move("moved", [[second], [third], [first]])
        for partition, node in enumerate((second, third, first)):
            await_leader(kafka_cluster, "moved", partition, node)
        writer.pass_by()

    settle(kafka_cluster, faults, writer, WAY)
