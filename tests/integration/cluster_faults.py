"""Injects faults into a `KafkaCluster` while records flow, and logs each in a `FaultLog`.

Owns the clients that move partitions and create topics. Does not choose the faults; tests do.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.fault_log import FaultLog
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

SETTLING_S = 40


class ClusterFaults:
    """Injects faults into a cluster of three nodes. ``__exit__`` restores the cluster."""

    def __init__(self, cluster: KafkaCluster, log: FaultLog) -> None:
        # Imported here, so that tests can ignore the warnings of kafka-python's import.
        import kafka  # type: ignore[import-untyped]

        self._cluster = cluster
        self._log = log
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        # librdkafka's admin client cannot reassign partitions.
        self._mover = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        self._partition = kafka.TopicPartition

    def __enter__(self) -> ClusterFaults:
        return self

    def __exit__(self, *raised: object) -> None:
        self._mover.close()
        for node in self._cluster.node_ids:
            if self._cluster.pid(node) is None:
                self._cluster.restart(node)
            self._cluster.resume(node)

    def kill(self, node: int) -> None:
        self._log.add(f"node {node}: SIGKILL")
        self._cluster.kill(node)

    def restart(self, node: int) -> None:
        """Restarts a node and waits until it has rejoined the cluster."""
        self._log.add(f"node {node}: start")
        self._cluster.restart(node)
        self._log.add(f"node {node}: is back")

    def pause(self, node: int) -> None:
        self._cluster.pause(node)
        self._log.add(f"node {node}: SIGSTOP")

    def resume(self, node: int) -> None:
        self._log.add(f"node {node}: SIGCONT")
        self._cluster.resume(node)

    def create(self, topic: str, partitions: int) -> None:
        """Creates a topic with three replicas, two of which must have a record before it is acknowledged."""
        self._cluster.create_topic(topic, partitions, 3, {"min.insync.replicas": "2"})
        self._log.add(f"topic {topic}: created")

    def delete(self, topic: str) -> None:
        self._log.add(f"topic {topic}: deletion begins")
        self._admin.delete_topics([topic])[topic].result(30)
        self._log.add(f"topic {topic}: deleted")

    def create_at_once(self, topic: str, partitions: int) -> None:
        """Creates a topic as soon as possible, and returns before its leaders are ready."""
        new = NewTopic(topic, partitions, 3, config={"min.insync.replicas": "2"})
        for _ in looks(SETTLING_S, 0.01):
            try:
                self._admin.create_topics([new])[topic].result(30)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            else:
                self._log.add(f"topic {topic}: created")
                return
        raise AssertionError(f"{topic} is still there after {SETTLING_S} s:\n{self._log}")

    def move(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Starts to reassign each partition to these replicas. The first is the preferred leader."""
        self._log.add(f"topic {topic}: replicas become {replicas}")
        wanted = {self._partition(topic, index): list(nodes) for index, nodes in enumerate(replicas)}
        assert set(self._mover.alter_partition_reassignments(wanted).values()) == {None}

    def elect(self, topic: str, partitions: int) -> None:
        """Makes the preferred replicas the leaders."""
        self._log.add(f"topic {topic}: elect the preferred leaders")
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        self._admin.elect_leaders(ElectionType.PREFERRED, wanted).result(30)

    def leaders(self, topic: str, partitions: int) -> list[int]:
        return [self._cluster.leader(topic, index) for index in range(partitions)]

    def await_in_sync(self, topic: str) -> None:
        """Waits until each partition has a leader and all its replicas are in sync."""
        for _ in looks(SETTLING_S, 0.1):
            found = self._admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
            if found and all(p.leader > 0 and set(p.isrs) == set(p.replicas) for p in found):
                self._log.add(f"topic {topic}: all replicas are in sync")
                return
        raise AssertionError(f"{topic} is not in sync again:\n{self._log}")
