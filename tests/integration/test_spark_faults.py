"""Tests the sink's guarantees while tasks and workers fail.

Exactly-once has no duplicates. At-least-once has them only if ``docs/spark.md`` allows them: a task that runs
once writes its rows once. Tasks fail at defined moments, which the test and the tasks signal to each other
with files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import needs_module, needs_proc
from tests.integration.spark_faults import (
    BATCH,
    PARTITIONS,
    Signals,
    arrow,
    attempt,
    exactly_once,
    faults_session,
    found,
    meanwhile,
    until_written,
    value,
    write,
)
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600), needs_module("pyspark")]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # Three attempts per task.
    with faults_session(tmp_path_factory.mktemp("spark"), "local[2, 3]", __name__) as session:
        yield session


@pytest.fixture
def signals(tmp_path: Path) -> Signals:
    return Signals(tmp_path)


def kills_writers() -> None:
    """Kills this executor's other Python workers that have loaded the producer."""

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    me = os.getpid()
    executor = parent(parent(me))
    killed = 0
    for name in os.listdir("/proc"):
        try:
            if not name.isdecimal() or int(name) == me or parent(parent(int(name))) != executor:
                continue
            if "cyproducer" in Path(f"/proc/{name}/maps").read_text():
                os.kill(int(name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    if not killed:
        raise AssertionError("no worker has loaded the producer")


def raises() -> None:
    raise RuntimeError("this attempt must fail")


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class FailsOnce:
    """Generates each task's rows. The first attempt of task 1 fails after half of its rows, once the signal
    ``written`` reports that rows of it are in the topic.
    """

    def __init__(self, signals: Signals, rows: int, fail: Callable[[], None]) -> None:
        self._signals = signals
        self._rows = rows
        self._fail = fail

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for values in self.of_task(task):
                    yield arrow(values)

    def of_elements(self, tasks: Iterator[int]) -> Iterator[str]:
        for task in tasks:
            for values in self.of_task(task):
                yield from values

    def of_task(self, task: int) -> Iterator[list[str]]:
        for start in range(0, self._rows, BATCH):
            yield [value(task, number) for number in range(start, start + BATCH)]
            if task == 1 and attempt() == 0 and start + BATCH == self._rows // 2:
                self._signals.give("halfway")
                self._signals.wait("written")
                self._fail()


def by_format(spark: Any, rows: FailsOnce, tasks: list[int], bootstrap: str, topic: str) -> None:
    ids = spark.range(tasks[0], tasks[-1] + 1, 1, len(tasks))
    write(ids.mapInArrow(rows, "value string"), bootstrap, topic)


def in_transactions(spark: Any, rows: FailsOnce, tasks: list[int], bootstrap: str, topic: str) -> None:
    ids = spark.range(tasks[0], tasks[-1] + 1, 1, len(tasks))
    more = exactly_once(topic) | {"txnAppId": "job", "txnVersion": "1"}
    write(ids.mapInArrow(rows, "value string"), bootstrap, topic, **more)


def by_partitions(spark: Any, rows: FailsOnce, tasks: list[int], bootstrap: str, topic: str) -> None:
    from cyproducer.spark import produce_partitions

    produce = produce_partitions(topic, bootstrap_servers=bootstrap)
    ids = spark.sparkContext.parallelize(tasks, len(tasks))
    ids.mapPartitions(rows.of_elements).mapPartitions(produce).count()


Job = Callable[[Any, FailsOnce, list[int], str, str], None]


@pytest.mark.parametrize(
    ("name", "job", "fail", "tasks"),
    [
        ("raised", by_format, raises, [0, 1, 2, 3]),
        ("raised-rows", by_partitions, raises, [0, 1, 2, 3]),
        ("killed-source", by_format, kills_itself, [0, 1, 2, 3]),
        # Only one task: the workers of others can't be distinguished from its own.
        pytest.param("killed-writer", by_format, kills_writers, [1], marks=needs_proc),
        ("killed-rows", by_partitions, kills_itself, [0, 1, 2, 3]),
        ("raised-once", in_transactions, raises, [0, 1, 2, 3]),
        ("killed-source-once", in_transactions, kills_itself, [0, 1, 2, 3]),
        pytest.param("killed-writer-once", in_transactions, kills_writers, [1], marks=needs_proc),
    ],
)
def test_a_task_that_fails_midway_is_run_again_and_loses_nothing(
    spark: Any,
    kafka: KafkaCluster,
    signals: Signals,
    name: str,
    job: Job,
    fail: Callable[[], None],
    tasks: list[int],
) -> None:
    topic = f"spark-fault-{name}"
    rows = 20 * BATCH
    kafka.create_topic(topic, PARTITIONS)

    def let_fail() -> None:
        # More than all rows of the other tasks, so at least one row of the failing task.
        until_written(kafka.bootstrap_servers, topic, (len(tasks) - 1) * rows + 1, signals)
        signals.give("written")

    with meanwhile(signals, let_fail):
        job(spark, FailsOnce(signals, rows, fail), tasks, kafka.bootstrap_servers, topic)
    assert signals.given("halfway")
    there = found(kafka.bootstrap_servers, topic, len(tasks) * rows)
    assert sorted(there) == tasks
    for task, times in there.items():
        assert sorted(times) == list(range(rows))
        assert max(times.values()) == (2 if task == 1 and job is not in_transactions else 1)
    # The first attempt wrote only rows of the first half.
    assert not [number for number, times in there[1].items() if times == 2 and number >= rows // 2]
