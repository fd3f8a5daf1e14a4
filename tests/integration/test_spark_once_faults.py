"""Tests exactly-once from Spark on three nodes: drivers that stall, that are started again after the brokers'
timeout, nodes that die and come back, and sinks that write at the same time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import pytest
from confluent_kafka import admin as untyped_admin
from confluent_kafka.admin import AdminClient

from cyproducer.spark.exactly_once.names import STREAM, Sink
from tests.forked import needs_module, needs_proc
from tests.integration.spark_once import Stream
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import Transactions
from tools.harness.until import PATIENCE_S, looks

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    needs_module("pyspark"),
    needs_proc,
]

BATCHES = 3


def nightly(*values: object) -> Any:
    """A case that is too long for each run of all tests."""
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.fixture
def transactions(transactional_kafka: KafkaCluster) -> Transactions:
    transactions = Transactions(transactional_kafka)
    transactions.set_level(2)
    return transactions


@pytest.fixture
def stream(
    transactional_kafka: KafkaCluster,
    transactions: Transactions,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Stream:
    name = f"spark-once-{crc32(request.node.nodeid.encode()):x}"
    transactional_kafka.create_topic(name, 3, configs={"min.insync.replicas": "2"})
    return Stream(tmp_path, transactional_kafka, name, BATCHES)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        nightly("before take_over", "BatchOrderError"),
        nightly("before a task writes", "another driver has taken over"),
        ("before the decision", "another driver has taken over"),
        nightly("between two commits", "was decided and is not complete"),
        nightly("after done", "CONCURRENT_STREAM_LOG_UPDATE"),
    ],
)
def test_a_driver_that_stalls_until_another_has_written_all_fails_and_writes_nothing_twice(
    stream: Stream, step: str, error: str
) -> None:
    with stream.start(step) as stalled:
        stalled.hold_at(step)
        stalled.stall()
        with stream.start() as other:
            other.ends_well()
        stream.check()
        stalled.go_on()
        stalled.wake()
        said = stalled.fails()
    assert error in said, said
    stream.check()


@pytest.mark.parametrize(
    ("step", "next_step"),
    [("after the decision", "after copying"), nightly("between two commits", "before copying")],
)
def test_a_driver_that_comes_back_after_the_timeout_of_what_was_decided_writes_it_once(
    stream: Stream, transactions: Transactions, step: str, next_step: str
) -> None:
    stream.timeout_ms = 10_000
    assert (stream.life(step) or "").endswith(step)
    left = open_of(stream, transactions)
    assert len(left) == (2 if step == "after the decision" else 1)
    for name in left:
        transactions.await_state(name, "CompleteAbort")
    stream.timeout_ms = 60_000
    # Copies, and is killed before or after they are there.
    assert (stream.life(next_step) or "").endswith(next_step)
    with stream.start() as life:
        life.ends_well()
        assert ("before copying" in life.steps) == (next_step == "before copying")
    stream.check()


@pytest.mark.parametrize(
    ("step", "error"),
    [
        nightly("while a task writes", "the broker aborts it after transaction_timeout_ms=10000"),
        nightly("before not_open", "can't be committed any more"),
    ],
)
def test_a_batch_whose_transactions_time_out_before_the_decision_is_written_by_its_next_run(
    stream: Stream, transactions: Transactions, step: str, error: str
) -> None:
    stream.timeout_ms = 10_000
    with stream.start(step) as life:
        life.hold_at(step)
        for name in begun(stream, transactions):
            transactions.await_state(name, "CompleteAbort")
        life.go_on()
        said = life.fails()
    assert error in said, said
    stream.timeout_ms = 60_000
    with stream.start() as life:
        life.ends_well()
    stream.check()


@pytest.mark.nightly
def test_transactions_that_time_out_between_their_check_and_the_decision_are_copied_at_once(
    stream: Stream, transactions: Transactions
) -> None:
    stream.timeout_ms = 10_000
    with stream.start("before the decision") as life:
        life.hold_at("before the decision")
        for name in begun(stream, transactions):
            transactions.await_state(name, "CompleteAbort")
        life.go_on()
        life.ends_well()
        assert "after copying" in life.steps
    stream.check()


def open_of(stream: Stream, transactions: Transactions) -> list[str]:
    """Returns the transactional ids of a stream's tasks whose transactions are open."""
    # Others that are not over have their end decided.
    states = transactions.open()
    return [name for name, state in states.items() if state == "Ongoing" and sink(stream).owns(name)]


def begun(stream: Stream, transactions: Transactions) -> list[str]:
    """Returns what ``open_of`` does, once there is any: a task's transaction begins when its first records
    are sent, which happens in another thread."""
    for _ in looks(PATIENCE_S):
        if names := open_of(stream, transactions):
            return names
    raise AssertionError("no transaction was begun")


def sink(stream: Stream) -> Sink:
    return Sink(stream.topic, STREAM, str(stream.directory / "checkpoint"))


@contextmanager
def down(kafka: KafkaCluster, node: int) -> Iterator[None]:
    """Kills a node, which is back after the block."""
    kafka.kill(node)
    try:
        yield
    finally:
        kafka.restart(node)


def leader_of_rows(stream: Stream, transactions: Transactions) -> int:
    return stream.kafka.leader(stream.topic, 0)


def leader_of_log(stream: Stream, transactions: Transactions) -> int:
    return stream.kafka.leader(f"{stream.topic}.decisions", 0)


def coordinator_of_log(stream: Stream, transactions: Transactions) -> int:
    return transactions.coordinator(sink(stream).log_id)


def coordinator_of_task(stream: Stream, transactions: Transactions) -> int:
    return transactions.coordinator(begun(stream, transactions)[0])


Victim = Callable[[Stream, Transactions], int]


@pytest.mark.parametrize(
    ("step", "victim", "back_at"),
    [
        ("while a task writes", leader_of_rows, "before the decision"),
        nightly("while a task writes", coordinator_of_task, "before the decision"),
        nightly("before the decision", leader_of_rows, "after done"),
        nightly("before the decision", leader_of_log, "after done"),
        nightly("before the decision", coordinator_of_log, "after done"),
        ("between two commits", coordinator_of_task, "after done"),
    ],
)
def test_a_node_dies_while_a_stream_writes(
    stream: Stream, transactions: Transactions, step: str, victim: Victim, back_at: str
) -> None:
    with stream.start(step) as life:
        life.hold_at(step)
        with down(stream.kafka, victim(stream, transactions)):
            life.go_on(back_at)
            life.hold_at(back_at)
        life.go_on()
        life.ends_well()
    stream.check()


@pytest.mark.parametrize("step", [nightly("while a task writes"), nightly("between two commits")])
def test_a_stream_goes_on_after_two_of_three_nodes_were_down(stream: Stream, step: str) -> None:
    first, second, _ = stream.kafka.node_ids
    with stream.start(step) as life:
        life.hold_at(step)
        # The stream tries all the time: the nodes take seconds to start.
        with down(stream.kafka, first), down(stream.kafka, second):
            life.go_on()
        life.ends_well()
    stream.check()


class MinInSync:
    """All three replicas of a topic must be in sync within the block."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        self._refused = 0

    def __enter__(self) -> Self:
        self._set("3")
        self._refused = self._refusals()
        return self

    def __exit__(self, *raised: object) -> None:
        self._set("2")

    def _set(self, number: str) -> None:
        # Its types lack ConfigResource.
        resources: Any = untyped_admin
        entry = resources.ConfigEntry(
            "min.insync.replicas", number, incremental_operation=resources.AlterConfigOpType.SET
        )
        resource = resources.ConfigResource(
            resources.ResourceType.TOPIC, self._topic, incremental_configs=[entry]
        )
        self._admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def await_unmet(self) -> None:
        """Waits until no partition has enough replicas, after a node was killed."""
        for _ in looks(PATIENCE_S):
            found = self._admin.list_topics(self._topic, timeout=10).topics[self._topic].partitions.values()
            if all(len(each.isrs) == 2 for each in found):
                return
        raise AssertionError(f"replicas of {self._topic} are in sync after {PATIENCE_S} s")

    def await_refusal(self) -> None:
        """Waits until a broker has refused records."""
        for _ in looks(PATIENCE_S):
            if self._refusals() > self._refused:
                return
        raise AssertionError(f"no broker has refused records of {self._topic}")

    def _refusals(self) -> int:
        """Returns how often brokers have logged that they refused records of the topic."""
        of_topic = re.compile(rf"NotEnoughReplicasException: .* partition {re.escape(self._topic)}-\d")
        logs = [self._kafka.broker_log(node).read_text() for node in self._kafka.node_ids]
        return sum(len(of_topic.findall(log)) for log in logs)


@pytest.mark.parametrize(
    ("topic", "step"),
    [
        nightly("{}", "before a task writes"),
        nightly("{}", "before the decision"),
        ("{}.decisions", "before the decision"),
        nightly("__transaction_state", "before the decision"),
        nightly("__transaction_state", "between two commits"),
    ],
)
def test_a_stream_waits_while_too_few_replicas_are_in_sync(stream: Stream, topic: str, step: str) -> None:
    with stream.start(step) as life:
        life.hold_at(step)
        with MinInSync(stream.kafka, topic.format(stream.topic)) as in_sync:
            with down(stream.kafka, stream.kafka.node_ids[-1]):
                in_sync.await_unmet()
                life.go_on()
                in_sync.await_refusal()
            life.ends_well()
    stream.check()


MANY = """
import os, sys
from pathlib import Path

life, root, directory, bootstrap, topic = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]
# At the end: an installed package comes before the sources.
sys.path += [root, str(life)]
from cyproducer.spark import foreach_batch
from tools.harness.spark_session import spark_session

# For the module that holds processes at steps.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(life), os.environ.get("PYTHONPATH")]))
import holding

once = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": topic}


def function(name, **more):
    return foreach_batch(
        f"{topic}-{name}", bootstrap_servers=bootstrap, delivery_guarantee="exactly-once",
        transactional_id_prefix=topic, transaction_timeout_ms=TIMEOUT_MS, **more
    )


with spark_session(life / "spark") as spark:
    spark.dataSource.register(holding.HoldingSource)

    def start(name, writing):
        return (
            writing(spark.readStream.format("text").option("maxFilesPerTrigger", FILES)
            .load(str(directory / "in")).writeStream)
            .option("checkpointLocation", str(directory / name)).trigger(availableNow=True).start()
        )

    def sink(name):
        return start(name, lambda stream: stream.format("holding").options(
            **{"kafka.bootstrap.servers": bootstrap, "kafka.transaction.timeout.ms": "TIMEOUT_MS"},
            topic=f"{topic}-{name}", **once,
        ))

    first, second = function("third"), function("fourth", txn_app_id="fourth")

    def both(df, batch):
        first(df, batch)
        holding.step("between two sinks")
        second(df, batch)

    queries = [sink("first"), sink("second"), start("both", lambda stream: stream.foreachBatch(both))]
    for query in queries:
        query.awaitTermination()
    print("ended well", flush=True)
"""


@pytest.mark.parametrize("step", ["between two sinks", nightly("between two commits")])
def test_queries_and_sinks_of_one_prefix_write_at_the_same_time(
    transactional_kafka: KafkaCluster, transactions: Transactions, tmp_path: Path, step: str
) -> None:
    name = f"spark-once-{step.replace(' ', '-')}"
    topics = [f"{name}-{each}" for each in ("first", "second", "third", "fourth")]
    for topic in topics:
        transactional_kafka.create_topic(topic, 3)
    stream = Stream(tmp_path, transactional_kafka, name, BATCHES, MANY)
    assert (stream.life(step) or "").endswith(step)
    assert stream.life("never") is None
    stream.check(topics)
