"""What Spark's side promises, at least once, while tasks, workers, drivers and brokers fail.

Duplicates are allowed where ``docs/spark.md`` says so, and nowhere else: what was run once is there once.
What is to fail waits for the moment that is to be hit, by files that the test and the tasks leave for each
other.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.forked import needs_module, needs_proc
from tests.integration.consume import read_all
from tests.integration.kafka_cluster import KafkaCluster
from tests.integration.spark_session import spark_session
from tests.until import looks

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300), needs_module("pyspark")]

PARTITIONS = 3
BATCH = 200
PATIENCE_S = 120.0
PADDING = "." * 100
"""So that rows fill the buffers between Spark and its workers, and early ones get through."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    here = sys.modules[__name__]
    # The workers need not be able to import the tests.
    cloudpickle.register_pickle_by_value(here)
    try:
        # Three attempts a task. Small batches reach the sink while the task still runs.
        small = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH)}
        with spark_session(tmp_path_factory.mktemp("spark"), "local[2, 3]", **small) as session:
            yield session
    finally:
        cloudpickle.unregister_pickle_by_value(here)


class Signals:
    """Events that processes leave for each other, as files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def give(self, name: str) -> None:
        (Path(self._directory) / name).touch()

    def given(self, name: str) -> bool:
        return (Path(self._directory) / name).exists()

    def wait(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.given(name):
            if self.given("broken") or time.monotonic() > deadline:
                raise TimeoutError(f"{name!r} was not given in {PATIENCE_S:.0f} s, or never will be")
            time.sleep(0.01)


@pytest.fixture
def signals(tmp_path: Path) -> Signals:
    return Signals(tmp_path)


def value(task: int, number: int) -> str:
    return f"{task} {number} {PADDING}"


def arrow(values: list[str]) -> Any:
    import pyarrow as pa

    return pa.record_batch({"value": pa.array(values, pa.string())})


def attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def found(bootstrap: str, topic: str, least: int) -> dict[int, Counter[int]]:
    """How often each row is in a topic: task to number to times."""
    rows: dict[int, Counter[int]] = {}
    for record in read_all(bootstrap, topic, least):
        task, number, padding = (record.value or b"").decode().split()
        assert padding == PADDING
        rows.setdefault(int(task), Counter())[int(number)] += 1
    return rows


def records_in(bootstrap: str, topic: str) -> int:
    """The sum of the partitions' high watermarks, as far as there are leaders: what is written and
    replicated."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks", "log_level": 0})
    there = 0
    try:
        for number in range(PARTITIONS):
            with suppress(KafkaException):
                marks = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=2)
                there += marks[1] if marks is not None else 0
    finally:
        consumer.close()
    return there


def until_written(bootstrap: str, topic: str, least: int, signals: Signals) -> None:
    there = 0
    for _ in looks(PATIENCE_S, 0.1):
        if signals.given("ended"):
            raise AssertionError("the job ended before its time")
        there = records_in(bootstrap, topic)
        if there >= least:
            return
    raise AssertionError(f"{there} records of {topic!r} are written after {PATIENCE_S} s, not {least}")


@contextmanager
def meanwhile(signals: Signals, trouble: Callable[[], None]) -> Iterator[None]:
    """Makes trouble in a thread while the block runs a job; the job, not the trouble, needs the main thread:
    there Spark has its active session."""

    def make() -> None:
        try:
            trouble()
        except BaseException:
            signals.give("broken")
            raise

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(make)
        try:
            yield
        finally:
            signals.give("ended")
            made.result(PATIENCE_S)


def kills_writers() -> None:
    """Kills this executor's other Python workers in which the producer is loaded."""

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
        raise AssertionError("nobody writes")


def raises() -> None:
    raise RuntimeError("this attempt was to fail")


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class FailsOnce:
    """Makes each task's rows: those of the task 1 in two halves, between which its first attempt fails.

    It does so once rows of it are in the topic, as ``written`` tells.
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


def write(df: Any, bootstrap: str, topic: str, **more: str) -> None:
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **more}
    df.write.format("cyproducer").mode("append").options(**given).save()


def by_format(spark: Any, rows: FailsOnce, tasks: list[int], bootstrap: str, topic: str) -> None:
    ids = spark.range(tasks[0], tasks[-1] + 1, 1, len(tasks))
    write(ids.mapInArrow(rows, "value string"), bootstrap, topic)


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
        # One task: those of others can't be told apart from its own.
        pytest.param("killed-writer", by_format, kills_writers, [1], marks=needs_proc),
        ("killed-rows", by_partitions, kills_itself, [0, 1, 2, 3]),
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
        # More than all of the other tasks' rows: one of those that are to come again, at least.
        until_written(kafka.bootstrap_servers, topic, (len(tasks) - 1) * rows + 1, signals)
        signals.give("written")

    with meanwhile(signals, let_fail):
        job(spark, FailsOnce(signals, rows, fail), tasks, kafka.bootstrap_servers, topic)
    assert signals.given("halfway")
    there = found(kafka.bootstrap_servers, topic, len(tasks) * rows)
    assert sorted(there) == tasks
    for task, times in there.items():
        assert sorted(times) == list(range(rows))
        assert max(times.values()) == (2 if task == 1 else 1)
    # The first attempt got so far.
    assert not [number for number, times in there[1].items() if times == 2 and number >= rows // 2]
