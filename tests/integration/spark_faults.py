"""The shared parts of tests that inject faults while Spark tasks write: distinguishable rows, events between
processes, and code that runs beside a job.

Does not own the faults; tests do. `Signals`, `value` and `arrow` also run in Spark's workers, where they are
pickled by value.
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
from tools.harness.spark_session import spark_session
from tools.harness.until import looks

PARTITIONS = 3
BATCH = 200
PATIENCE_S = 240.0
PADDING = "." * 100
"""Makes rows large enough to fill the buffers between Spark and its workers, so that early rows are passed
on."""


@contextmanager
def by_value(module: str) -> Iterator[None]:
    """Within the block, functions of ``module`` and of this module are pickled by value, because workers
    can't import the tests."""
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
    """Runs a session whose workers get the test's functions by value. With small batches, so that rows reach
    the sink while the task still runs."""
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH)}
    with by_value(module), spark_session(directory, master, **small) as session:
        yield session


class Signals:
    """Events between processes, as files in a directory."""

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
                raise TimeoutError(f"signal {name!r} was not given in {PATIENCE_S:.0f} s, or the test failed")
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
    """Returns how often each row is in a topic: task to row number to count."""
    rows: dict[int, Counter[int]] = {}
    for record in read_all(bootstrap, topic, least):
        task, number, padding = (record.value or b"").decode().split()
        assert padding == PADDING
        rows.setdefault(int(task), Counter())[int(number)] += 1
    return rows


def records_in(bootstrap: str, topic: str, partitions: Iterable[int] = range(PARTITIONS)) -> int:
    """Returns the sum of the high watermarks of all partitions that have a leader: the replicated records,
    those of open transactions included."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "watermarks",
            # Otherwise it gets the last stable offsets.
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
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
    """Waits until a topic's partitions have ``least`` records in total. Fails if the job ends before."""
    there = 0
    for _ in looks(PATIENCE_S, 0.1):
        if signals.given("ended") or signals.given("broken"):
            raise AssertionError("the job ended too early")
        there = records_in(bootstrap, topic, partitions)
        if there >= least:
            return
    raise AssertionError(f"{topic!r} has {there} records after {PATIENCE_S} s, not {least}")


@contextmanager
def meanwhile(signals: Signals, trouble: Callable[[], None]) -> Iterator[None]:
    """Runs ``trouble`` in a thread while the block runs a job. The job needs the main thread, which has
    Spark's active session."""

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


def exactly_once(prefix: str) -> dict[str, str]:
    """Returns the options of exactly-once, but for the name of what is written."""
    return {
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": prefix,
        "kafka.transaction.timeout.ms": "120000",
    }


def write(df: Any, bootstrap: str, topic: str, **more: str) -> None:
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **more}
    df.write.format("cyproducer").mode("append").options(**given).save()
