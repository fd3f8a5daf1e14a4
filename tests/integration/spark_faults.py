"""What tests of Spark's side share that do harm while tasks write: rows that can be told apart, events
between processes, and trouble beside a job.

Owns no fault: tests do. `Signals`, `value` and `arrow` are used in Spark's workers too, which get them by
value.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.integration.consume import read_all
from tests.integration.spark_session import spark_session
from tests.until import looks

PARTITIONS = 3
BATCH = 200
PATIENCE_S = 240.0
PADDING = "." * 100
"""So that rows fill the buffers between Spark and its workers, and early ones get through."""


@contextmanager
def by_value(module: str) -> Iterator[None]:
    """What is defined in ``module``, and here, is pickled as a whole meanwhile: workers need not be able to
    import the tests."""
    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    here = [sys.modules[name] for name in (__name__, module)]
    for each in here:
        cloudpickle.register_pickle_by_value(each)
    try:
        yield
    finally:
        for each in here:
            cloudpickle.unregister_pickle_by_value(each)


@contextmanager
def faults_session(directory: Path, master: str, module: str) -> Iterator[Any]:
    """A session whose workers get the test's functions by value. Small batches reach the sink while the task
    still runs."""
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH)}
    with by_value(module), spark_session(directory, master, **small) as session:
        yield session


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


def records_in(bootstrap: str, topic: str, partitions: Iterable[int] = range(PARTITIONS)) -> int:
    """The sum of the partitions' high watermarks, as far as there are leaders: what is written and
    replicated."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks", "log_level": 0})
    there = 0
    try:
        for number in partitions:
            with suppress(KafkaException):
                marks = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=2)
                there += marks[1] if marks is not None else 0
    finally:
        consumer.close()
    return there


def until_written(
    bootstrap: str,
    topic: str,
    least: int,
    signals: Signals,
    partitions: Iterable[int] = range(PARTITIONS),
) -> None:
    """Returns once so many records are in a topic's partitions together, while the job goes on."""
    there = 0
    for _ in looks(PATIENCE_S, 0.1):
        if signals.given("ended") or signals.given("broken"):
            raise AssertionError("the job ended before its time")
        there = records_in(bootstrap, topic, partitions)
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


def write(df: Any, bootstrap: str, topic: str, **more: str) -> None:
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **more}
    df.write.format("cyproducer").mode("append").options(**given).save()
