"""What the tests of transactions share: producers, topics, and what readers see of them.

Owns the check that nothing is left open: after each test no transaction of its ids is open, and readers get
to the end of its topics. Does not start or break the cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import admin as untyped_admin
from confluent_kafka.admin import AdminClient

import cyproducer
from cyproducer import KafkaProducer
from tests.integration.consume import Fetched, read_all
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import Transactions
from tools.harness.until import looks

SETTLING_S = 90.0
"""More than a consumer's default session timeout, 45 s: if the LeaveGroup of a member was lost, brokers know
only after that time that it has gone."""
Isolation = Literal["read_committed", "read_uncommitted"]


class TransactionRig:
    """A test's transactional ids and topics, and what is in them. A context manager. Not thread-safe.

    Args:
        cluster: A cluster with the properties `TRANSACTION_PROPERTIES`.
        name: The prefix of all ids and topics, so that tests can share a cluster.
    """

    def __init__(self, cluster: KafkaCluster, name: str) -> None:
        self.cluster = cluster
        self.transactions = Transactions(cluster)
        self.name = name
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        self._partitions: dict[str, int] = {}

    def __enter__(self) -> TransactionRig:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.assert_settled()

    def id(self, name: str = "") -> str:
        """Returns a transactional id that no other test uses."""
        return f"{self.name}.{name}"

    def producer(self, name: str = "", **options: Any) -> KafkaProducer:
        """Returns a producer with the transactional id ``id(name)``, before ``init_transactions``."""
        return producer(self.cluster.bootstrap_servers, self.id(name), **options)

    def ready(self, name: str = "", **options: Any) -> KafkaProducer:
        """Returns a producer that can begin a transaction."""
        made = self.producer(name, **options)
        try:
            made.init_transactions()
        except BaseException:
            made.close(timeout=0)
            raise
        return made

    def topic(
        self, name: str = "records", partitions: int = 2, configs: Mapping[str, str] | None = None
    ) -> str:
        """Creates a topic with three replicas, two of which must have a record before it is acknowledged."""
        topic = f"{self.name}.{name}"
        replicas = min(3, len(self.cluster.node_ids))
        in_sync = {"min.insync.replicas": str(min(2, replicas))}
        self.cluster.create_topic(topic, partitions, replicas, in_sync | dict(configs or {}))
        self._partitions[topic] = partitions
        return topic

    def settle(self) -> None:
        """Waits until no transaction of this test is open, and all markers are written."""
        found: dict[str, str] = {}
        for _ in looks(SETTLING_S, 0.02):
            found = self._open()
            if not found:
                return
        states = {name: self.transactions.describe(name) for name in found}
        raise AssertionError(f"transactions are open after {SETTLING_S} s: {states}")

    def committed(self, topic: str, expected: int = 0) -> list[list[bytes]]:
        """Returns the values that a reader of committed records gets, by partition and in order, once no
        transaction of this test is open.

        Raises:
            TimeoutError: There are fewer than ``expected``.
        """
        self.settle()
        return self.read(topic, expected)

    def read(
        self, topic: str, expected: int = 0, isolation: Isolation = "read_committed"
    ) -> list[list[bytes]]:
        """Returns the values that a reader gets now, by partition and in order."""
        values: list[list[bytes]] = [[] for _ in range(self._partitions[topic])]
        for record in read_all(self.cluster.bootstrap_servers, topic, expected, isolation=isolation):
            values[record.partition].append(record.value or b"")
        return values

    def records(self, topic: str) -> list[Fetched]:
        """Returns the committed records, once no transaction of this test is open."""
        self.settle()
        return read_all(self.cluster.bootstrap_servers, topic, 0)

    def configs(self, topic: str) -> dict[str, str]:
        """Returns a topic's configuration."""
        # Its types lack ConfigResource.
        resources: Any = untyped_admin
        resource = resources.ConfigResource(resources.ResourceType.TOPIC, topic)
        entries = self._admin.describe_configs([resource])[resource].result(SETTLING_S)
        return {name: entry.value for name, entry in entries.items()}

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Deletes the records below an offset."""
        place = TopicPartition(topic, partition, before)
        self._admin.delete_records([place])[place].result(SETTLING_S)

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic, and waits until no node knows it."""
        self._admin.delete_topics([topic], operation_timeout=SETTLING_S)[topic].result(SETTLING_S)
        self._partitions.pop(topic, None)
        for _ in looks(SETTLING_S):
            if topic not in self._admin.list_topics(timeout=10).topics:
                return
        raise AssertionError(f"topic {topic} is still there after {SETTLING_S} s")

    def offsets(self, group: str, topic: str) -> list[int]:
        """Returns a group's committed offset of each partition of a topic, -1001 for none, once no
        transaction of this test is open."""
        self.settle()
        return group_offsets(self._admin, group, topic, self._partitions[topic])

    def assert_settled(self) -> None:
        """Checks that no transaction is open, and that readers of committed records get to each end."""
        self.settle()
        for topic, partitions in self._partitions.items():
            stable, ends = (
                end_offsets(self._admin, topic, partitions, level)
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            assert stable == ends, f"readers of {topic} stop at {stable}, and the ends are {ends}"

    def _open(self) -> dict[str, str]:
        mine = f"{self.name}."
        return {name: state for name, state in self.transactions.open().items() if name.startswith(mine)}


def producer(bootstrap_servers: str, transactional_id: str, **options: Any) -> KafkaProducer:
    """Returns a transactional producer with timeouts short enough for tests."""
    usual: dict[str, Any] = {
        "request_timeout_ms": 5_000,
        "retry_backoff_ms": 20,
        "retry_backoff_max_ms": 200,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 200,
        "transaction_timeout_ms": 30_000,
        "allow_auto_create_topics": False,
    }
    # Through the module, where development may put another producer.
    return cyproducer.KafkaProducer(
        bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, **usual | options
    )


def group_offsets(admin: AdminClient, group: str, topic: str, partitions: int) -> list[int]:
    """Returns the committed offset of each partition, without those of transactions that are open."""
    wanted = [TopicPartition(topic, partition) for partition in range(partitions)]

    def ask() -> list[int]:
        asked = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, wanted)], require_stable=True
        )
        found = asked[group].result(SETTLING_S).topic_partitions
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return [each.offset for each in sorted(found, key=lambda each: each.partition)]

    return _answer(admin, ask)


def end_offsets(admin: AdminClient, topic: str, partitions: int, isolation: IsolationLevel) -> list[int]:
    """Returns the offset behind the last record that a reader can get, of each partition."""
    # Its types lack OffsetSpec.
    specs: Any = untyped_admin
    latest = specs.OffsetSpec.latest()
    wanted = {TopicPartition(topic, partition): latest for partition in range(partitions)}

    def ask() -> list[int]:
        asked = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=SETTLING_S)
        found = {each.partition: future.result(SETTLING_S).offset for each, future in asked.items()}
        return [found[partition] for partition in range(partitions)]

    return _answer(admin, ask)


def _answer(admin: AdminClient, ask: Callable[[], list[int]]) -> list[int]:
    """Asks until there is an answer: coordinators and leaders move, and offsets are not stable at once."""
    last: KafkaException | None = None
    for _ in looks(SETTLING_S):
        try:
            return ask()
        except KafkaException as error:
            last = error
            # The client may know a former leader.
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=5)
    raise AssertionError(f"no answer within {SETTLING_S} s") from last


def member(
    bootstrap_servers: str, group: str, topic: str, protocol: str = "classic", **options: Any
) -> Consumer:
    """Returns a consumer of committed records that subscribes to a topic and commits nothing by itself."""
    usual: dict[str, Any] = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 50,
        "log_level": 0,
    }
    consumer = Consumer(usual | options)
    consumer.subscribe([topic])
    return consumer


def await_assignment(*consumers: Consumer, partitions: int) -> None:
    """Polls consumers, in turn, until together they have all partitions and each has at least one."""
    for _ in looks(SETTLING_S, 0.01):
        for consumer in consumers:
            consumer.poll(0.05)
        counts = [len(consumer.assignment()) for consumer in consumers]
        if sum(counts) == partitions and all(counts):
            return
    raise AssertionError(f"the members have {counts} of {partitions} partitions after {SETTLING_S} s")
