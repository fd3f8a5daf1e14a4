"""Tests the sink with three nodes and min.insync.replicas=2, without faults and while nodes fail.

No task gets a second attempt here. So if a job succeeds, each row is written once: idempotence keeps retries
of the producer from writing it twice. Faults begin when rows are in the topic, and end while more rows
arrive, so that rows are written before, during and after the faults.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from tests.forked import needs_module
from tests.integration.consume import read_all
from tests.integration.spark_faults import (
    BATCH,
    PARTITIONS,
    PATIENCE_S,
    Signals,
    arrow,
    faults_session,
    meanwhile,
    until_written,
    value,
    write,
)
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300), needs_module("pyspark")]

TASKS = 2
TWO_IN_SYNC = {"min.insync.replicas": "2"}
REQUEST_TIMEOUT_S = 2
SUMMARIES = """
import json
def keep(summary):
    with open(FILE, "a") as file:
        file.write(json.dumps([summary.rows, summary.retries]) + "\\n")
"""


class Summaries(NamedTuple):
    """The sink's summaries since the start of the test."""

    file: Path
    callback: str = "summaries_of_cluster:keep"

    def told(self) -> list[tuple[int, int]]:
        """Returns rows and retries of each batch."""
        return [(rows, retries) for rows, retries in map(json.loads, self.file.read_text().splitlines())]


@pytest.fixture(scope="module")
def summary_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("summaries") / "told"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, summary_file: Path) -> Iterator[Any]:
    module = summary_file.with_name("summaries_of_cluster.py")
    module.write_text(SUMMARIES.replace("FILE", repr(str(summary_file))))
    # One attempt per task.
    with faults_session(tmp_path_factory.mktemp("spark"), f"local[{TASKS}]", __name__) as session:
        session.sparkContext.addPyFile(str(module))
        yield session


@pytest.fixture
def summaries(summary_file: Path) -> Summaries:
    summary_file.write_text("")
    return Summaries(summary_file)


@pytest.fixture
def signals(tmp_path: Path) -> Signals:
    return Signals(tmp_path)


@pytest.fixture
def cluster(kafka_cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """Restores all nodes after each test, even if it fails half-way."""
    yield kafka_cluster
    for node in kafka_cluster.node_ids:
        kafka_cluster.resume(node)
        if kafka_cluster.pid(node) is None:
            kafka_cluster.restart(node)


def replicas(cluster: KafkaCluster, topic: str, partition: int) -> list[int]:
    """Returns a partition's nodes: the leader, the next leader if that dies, and the last."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions[partition]
    assert found.leader == found.replicas[0]
    return list(found.replicas)


def log_bytes(cluster: KafkaCluster, node: int, topic: str, partition: int) -> int:
    """Returns the size of a node's copy. Replicas have the same bytes."""
    directory = cluster.log_dir(node) / f"{topic}-{partition}"
    return sum(file.stat().st_size for file in directory.glob("*.log"))


def epochs(cluster: KafkaCluster, node: int, topic: str, partition: int) -> list[int]:
    """Returns the start offset of each leader epoch of a partition, from a node's checkpoint."""
    file = cluster.log_dir(node) / f"{topic}-{partition}" / "leader-epoch-checkpoint"
    # A version, a count, and lines of epoch and offset.
    return [int(line.split()[1]) for line in file.read_text().splitlines()[2:]]


class KeepsComing:
    """Generates each task's rows, batch by batch, until ``over`` is given, and some more afterwards.

    When Spark has taken all rows, the task writes their number to a file.
    """

    AFTER = 10

    def __init__(self, signals: Signals, directory: Path) -> None:
        self._signals = signals
        self._directory = str(directory)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                made = 0
                for made in self._made(task):
                    yield arrow([value(task, number) for number in range(made - BATCH, made)])
                (Path(self._directory) / f"made-{task}").write_text(str(made))

    def _made(self, task: int) -> Iterator[int]:
        """Yields the total number of rows after each batch."""
        after = made = 0
        deadline = time.monotonic() + PATIENCE_S
        while after < self.AFTER:
            made += BATCH
            yield made
            if self._signals.given("over"):
                after += 1
            elif self._signals.given("broken") or time.monotonic() > deadline:
                raise TimeoutError("the fault did not end")
            # A steady flow of rows, but few enough to read them back quickly.
            time.sleep(0.04)

    def expected(self) -> list[int]:
        return [int((Path(self._directory) / f"made-{task}").read_text()) for task in range(TASKS)]


def write_while(
    spark: Any,
    cluster: KafkaCluster,
    topic: str,
    signals: Signals,
    directory: Path,
    summaries: Summaries,
    trouble: Callable[[], None],
) -> Counter[int]:
    """Writes rows while ``trouble`` injects faults; each task writes to the partitions in turn. Checks that
    the job succeeds, that its summary has all rows and some retries, and that each row is written once, in
    order.

    Returns the number of rows in each partition."""
    rows = KeepsComing(signals, directory)
    with meanwhile(signals, trouble):
        made = spark.range(0, TASKS, 1, TASKS).mapInArrow(rows, "value string")
        write(
            made.selectExpr("value", f"cast(split(value, ' ')[1] % {PARTITIONS} as int) as partition"),
            cluster.bootstrap_servers,
            topic,
            summaryCallback=summaries.callback,
            **{"kafka.request.timeout.ms": str(REQUEST_TIMEOUT_S * 1000)},
        )
    expected = rows.expected()
    ((told, retries),) = summaries.told()
    assert told == sum(expected)
    assert retries > 0
    there: dict[tuple[int, int], list[int]] = {}
    for record in read_all(cluster.bootstrap_servers, topic, sum(expected)):
        made_by, number, _ = (record.value or b"").decode().split()
        there.setdefault((record.partition, int(made_by)), []).append(int(number))
    for (partition, task), numbers in there.items():
        wanted = range(partition, expected[task], PARTITIONS)
        lost, again = len(set(wanted).difference(numbers)), len(numbers) - len(wanted)
        in_order = numbers == sorted(numbers)
        # Not the whole lists: they are long.
        assert not lost, f"{lost} rows of task {task} are not in partition {partition}"
        assert not again, f"{again} rows of task {task} are there again in partition {partition}"
        assert in_order, f"rows of task {task} are not in order in partition {partition}"
    assert len(there) == PARTITIONS * TASKS
    return Counter({at: sum(len(there[at, task]) for task in range(TASKS)) for at in range(PARTITIONS)})


def all_handed_over(signals: Signals) -> None:
    """Ends the generation of rows, and waits until the tasks only wait for the brokers."""
    signals.give("over")
    for task in range(TASKS):
        signals.wait(f"made-{task}")


def each_once(cluster: KafkaCluster, topic: str, rows: int) -> None:
    found = Counter(int(r.value or b"-1") for r in read_all(cluster.bootstrap_servers, topic, rows))
    assert len(found) == rows
    assert set(found.values()) == {1}
    assert max(found) == rows - 1


def test_a_batch_is_written_once(spark: Any, cluster: KafkaCluster, summaries: Summaries) -> None:
    topic, rows = "spark-cluster-batch", 50_000
    cluster.create_topic(topic, PARTITIONS, 3, TWO_IN_SYNC)
    df = spark.range(0, rows, 1, 4).selectExpr("cast(id as string) as value")
    write(df, cluster.bootstrap_servers, topic, summaryCallback=summaries.callback)
    assert [told for told, _ in summaries.told()] == [rows]
    each_once(cluster, topic, rows)


def test_a_stream_is_written_once(
    spark: Any, cluster: KafkaCluster, summaries: Summaries, tmp_path: Path
) -> None:
    topic, files, each = "spark-cluster-stream", 3, 5_000
    cluster.create_topic(topic, PARTITIONS, 3, TWO_IN_SYNC)
    (tmp_path / "in").mkdir()
    for number in range(files):
        lines = (f"{row}\n" for row in range(number * each, (number + 1) * each))
        (tmp_path / "in" / f"{number}.txt").write_text("".join(lines))
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(tmp_path / "in"))
        .writeStream.format("cyproducer")
        .options(**{"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic})
        .options(checkpointLocation=str(tmp_path / "checkpoint"), summaryCallback=summaries.callback)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    assert [told for told, _ in summaries.told()] == [each] * files
    each_once(cluster, topic, files * each)


def test_nothing_is_lost_when_a_leader_with_unacknowledged_rows_is_killed(
    spark: Any, cluster: KafkaCluster, signals: Signals, summaries: Summaries, tmp_path: Path
) -> None:
    topic = "spark-cluster-killed"
    cluster.create_topic(topic, PARTITIONS, 3, TWO_IN_SYNC)
    leader, heir, last = replicas(cluster, topic, 0)

    def trouble() -> None:
        until_written(cluster.bootstrap_servers, topic, 1, signals, [0])
        # Rows that the last node does not have are not acknowledged. They are sent again to the next leader,
        # which already has them.
        cluster.pause(last)
        for _ in looks(PATIENCE_S, 0.001):
            if log_bytes(cluster, heir, topic, 0) > log_bytes(cluster, last, topic, 0):
                break
        else:
            raise AssertionError("no more rows are replicated")
        cluster.kill(leader)
        cluster.resume(last)
        for _ in looks(PATIENCE_S):
            # The next leader, unless the machine is so slow that its session times out too.
            if cluster.leader(topic, 0) in (heir, last):
                break
        else:
            raise AssertionError(f"the partition has no leader after the death of node {leader}")
        signals.give("over")

    written = write_while(spark, cluster, topic, signals, tmp_path, summaries, trouble)
    # Both leaders have written.
    began = epochs(cluster, heir, topic, 0)
    assert began[0] == 0
    assert 0 < began[-1] < written[0]


def test_nothing_is_lost_while_too_few_replicas_are_in_sync(
    spark: Any, cluster: KafkaCluster, signals: Signals, summaries: Summaries, tmp_path: Path
) -> None:
    """Leaders refuse rows once the controllers have removed a node from the in-sync replicas. The controllers
    need a majority for that, so only one node dies, and all three replicas are required."""
    topic = "spark-cluster-refused"
    cluster.create_topic(topic, PARTITIONS, 3, {"min.insync.replicas": "3"})
    victim = replicas(cluster, topic, 0)[-1]

    def refusals() -> int:
        logs = [cluster.broker_log(node).read_text(errors="replace") for node in cluster.node_ids]
        return sum(log.count("NotEnoughReplicasException: The size of the current ISR") for log in logs)

    def until_refused() -> None:
        before = refusals()
        for _ in looks(PATIENCE_S, 0.1):
            if refusals() > before:
                return
        raise AssertionError("no leader refuses rows for lack of in-sync replicas")

    def trouble() -> None:
        until_written(cluster.bootstrap_servers, topic, 1, signals)
        cluster.kill(victim)
        until_refused()
        all_handed_over(signals)
        until_refused()
        assert not signals.given("ended")
        cluster.restart(victim)

    write_while(spark, cluster, topic, signals, tmp_path, summaries, trouble)


def test_nothing_is_lost_while_two_of_three_nodes_hang(
    spark: Any, cluster: KafkaCluster, signals: Signals, summaries: Summaries, tmp_path: Path
) -> None:
    """No majority is left to change leaders or to shrink the in-sync replicas. The third node writes to its
    partitions without acknowledging, so requests time out and rows are sent to it again."""
    topic = "spark-cluster-hung"
    cluster.create_topic(topic, PARTITIONS, 3, TWO_IN_SYNC)
    victims = replicas(cluster, topic, 0)[1:]

    def trouble() -> None:
        until_written(cluster.bootstrap_servers, topic, 1, signals)
        for node in victims:
            cluster.pause(node)
        all_handed_over(signals)
        # A timed-out request can't be observed, so wait.
        for _ in looks(2.5 * REQUEST_TIMEOUT_S):
            assert not signals.given("ended")
        for node in victims:
            cluster.resume(node)

    write_while(spark, cluster, topic, signals, tmp_path, summaries, trouble)


def test_a_row_that_a_broker_refuses_fails_the_task_with_topic_partition_and_cause(
    spark: Any, cluster: KafkaCluster
) -> None:
    topic = "spark-cluster-too-large"
    cluster.create_topic(topic, PARTITIONS, 3, {**TWO_IN_SYNC, "max.message.bytes": "10000"})
    df = spark.range(0, 30, 1, 1).selectExpr(
        "repeat('x', cast(if(id = 7, 100000, 1) as int)) as value",
        f"cast(id % {PARTITIONS} as int) as partition",
    )
    says = rf"topic '{topic}', partition {7 % PARTITIONS}: \[Error 10\] MessageSizeTooLargeError"
    with pytest.raises(Exception, match=says):
        write(df, cluster.bootstrap_servers, topic)
