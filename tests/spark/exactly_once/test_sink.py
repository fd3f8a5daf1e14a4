"""The sink's exactly-once between Spark's interfaces and a model of a cluster: what each of Spark's processes
does, and what travels between them. Uses a fake PySpark."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import KafkaError
from cyproducer.spark.exactly_once import task
from cyproducer.spark.exactly_once.cluster import NotDecidedError
from cyproducer.spark.exactly_once.rules import BatchOrderError
from cyproducer.spark.sending import Target
from cyproducer.spark.summary import WriteSummary, WrittenRange
from cyproducer.structs import PreparedTransaction
from tests.spark import fake_pyspark as spark
from tests.spark.exactly_once.model_cluster import Broker, ModelCluster, write_task
from tests.spark.fake_pyspark import schema, source_module

VALUES = schema(value=spark.BinaryType())
TOLD: list[WriteSummary] = []


def note(summary: WriteSummary) -> None:
    """The summaryCallback of these tests."""
    TOLD.append(summary)


class Context:
    """A TaskContext."""

    def __init__(self, properties: dict[str, str], partition: int = 0, attempt: int = 0) -> None:
        self._properties = properties
        self._partition = partition
        self._attempt = attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return self._partition

    def attemptNumber(self) -> int:
        return self._attempt

    def taskAttemptId(self) -> int:
        return 7 + self._attempt


class Sparks:
    """Spark's processes, and the broker."""

    def __init__(self, source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = source
        self.broker = Broker()
        self.patch = monkeypatch
        self.timeouts: list[int] = []
        TOLD.clear()

        def model(config: object, sink: Any, topic: str, timeout_ms: int) -> Any:
            self.timeouts.append(timeout_ms)
            assert topic == "app.decisions"
            cluster: Any = ModelCluster(self.broker, sink)
            cluster.close = lambda: None
            return cluster

        def write(target: Target, name: str, timeout_ms: int, batches: Any) -> Any:
            rows = [value.decode() for batch in batches for value in batch["value"].to_pylist()]
            written = write_task(self.broker, name, rows)
            ranges = (WrittenRange(str(target.topic), 0, 0, len(rows) - 1, len(rows)),) if rows else ()
            identity = (0, 0) if written is None else written.identity
            prepared = PreparedTransaction(name, *identity, 2, written is None, {})
            return WriteSummary(rows=len(rows), ranges=ranges, tasks=1), prepared

        monkeypatch.setattr(source, "KafkaCluster", model)
        monkeypatch.setattr(task, "_write", write)

    def stream(self, location: str = "/c") -> Any:
        options = self._options(checkpointLocation=location)
        return self.source.CyproducerDataSource(options).streamWriter(VALUES, False)

    def job(self, version: int) -> Any:
        options = self._options(txnAppId="a", txnVersion=str(version))
        return self.source.CyproducerDataSource(options).writer(VALUES, False)

    def _options(self, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "topic": "t",
            "deadLetterTopic": "dead",
            "checkOnDriver": "false",
            "deliveryGuarantee": "exactly-once",
            "transactionalIdPrefix": "app",
            "summaryCallback": f"{__name__}:note",
            **more,
        }

    def run_task(self, writer: Any, context: Context, *rows: bytes) -> Any:
        """Runs a task in its own process."""
        self.patch.setattr(task, "_task_context", lambda: context)
        message = writer.write(iter([pa.record_batch({"value": pa.array(rows, pa.binary())})]))
        return pickle.loads(pickle.dumps(message))


def of_batch(batch: int, partition: int = 0, attempt: int = 0) -> Context:
    properties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(batch)}
    return Context(properties, partition, attempt)


@pytest.fixture
def sparks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sparks]:
    with source_module() as module:
        yield Sparks(module, monkeypatch)


def planned(writer: Any) -> Any:
    """Pickles a writer twice, as Spark does while planning, and returns a task's copy."""
    pickle.dumps(writer)
    return pickle.loads(pickle.dumps(writer))


def test_a_streams_batch_is_committed_by_another_process(sparks: Sparks) -> None:
    tasks = planned(sparks.stream())
    messages = [sparks.run_task(tasks, of_batch(0, p), b"%d" % p) for p in range(2)]
    assert sparks.broker.visible == []
    sparks.stream().commit(messages, 0)
    assert sparks.broker.visible == ["0", "1"]
    (summary,) = TOLD
    assert summary.rows == 2
    assert len({each.transactional_id for each in summary.transactions}) == 2
    assert all(each.transactional_id.startswith("app.") for each in summary.transactions)
    assert set(sparks.timeouts) == {900_000}


def test_a_checkpoint_is_the_same_one_in_any_spelling(sparks: Sparks) -> None:
    """A declarative pipeline gives it as ``file:/c`` first, and as ``file:///c`` from its second run on."""
    for batch, place in enumerate(("file:/c", "file:///c", "file:/c/")):
        tasks = planned(sparks.stream(place))
        message = sparks.run_task(tasks, of_batch(batch), b"%d" % batch)
        sparks.stream(place).commit([message], batch)
    assert sparks.broker.visible == ["0", "1", "2"]
    assert len([name for name in sparks.broker.ids if name.endswith(".log")]) == 1


def test_a_writer_plans_once_however_often_it_is_pickled(sparks: Sparks) -> None:
    seen: list[str] = []
    sparks.broker.on_step = seen.append
    planned(sparks.stream())
    assert seen.count("after taking over") == 1
    assert sparks.broker.checked == [["dead", "t"]]


def test_a_batch_that_spark_repeats_is_counted_and_not_told(
    sparks: Sparks, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        tasks = planned(sparks.stream())
        with caplog.at_level(logging.INFO, "cyproducer.spark"):
            sparks.stream().commit([sparks.run_task(tasks, of_batch(0), b"a", b"b")], 0)
    assert sparks.broker.visible == ["a", "b"]
    assert len(TOLD) == 1
    assert "micro-batch 0: its 2 rows were written before, and are not written again" in caplog.text


def test_an_attempt_that_runs_again_has_an_id_of_its_own(sparks: Sparks) -> None:
    tasks = planned(sparks.stream())
    sparks.run_task(tasks, of_batch(0), b"a")
    again = sparks.run_task(tasks, of_batch(0, attempt=1), b"a")
    assert len(sparks.broker.open_ids) == 2
    sparks.stream().commit([again], 0)
    assert sparks.broker.visible == ["a"]
    # The first attempt would hold readers back.
    assert sparks.broker.open_ids == []


def test_a_failed_batch_is_aborted(sparks: Sparks, caplog: pytest.LogCaptureFixture) -> None:
    tasks = planned(sparks.stream())
    message = sparks.run_task(tasks, of_batch(0), b"a")
    sparks.stream().abort([message, None], 0)
    assert sparks.broker.open_ids == []
    assert "its transactions were aborted" in caplog.text
    with pytest.raises(KafkaError):
        sparks.stream().commit([message], 0)
    assert sparks.broker.visible == []


def test_a_failed_stage_is_left_to_the_next_plan(sparks: Sparks, caplog: pytest.LogCaptureFixture) -> None:
    tasks = planned(sparks.stream())
    sparks.run_task(tasks, of_batch(0), b"a")
    sparks.stream().abort([None, None], 0)
    assert "is completed or aborted by the next write" in caplog.text
    assert len(sparks.broker.open_ids) == 1
    planned(sparks.stream())
    assert sparks.broker.open_ids == []


def test_a_commit_without_a_tasks_message_decides_nothing(sparks: Sparks) -> None:
    tasks = planned(sparks.stream())
    message = sparks.run_task(tasks, of_batch(0), b"a")
    with pytest.raises(NotDecidedError, match="1 tasks left no message"):
        sparks.stream().commit([message, None], 0)


def test_a_task_whose_batch_is_not_known_writes_nothing(sparks: Sparks) -> None:
    tasks = planned(sparks.stream())
    with pytest.raises(BatchOrderError, match=r"Spark has not set 'sql\.streaming\.queryId'"):
        sparks.run_task(tasks, Context({}), b"a")
    assert sparks.broker.open_ids == []


def test_a_jobs_version_is_judged_before_its_tasks(sparks: Sparks) -> None:
    tasks = planned(sparks.job(3))
    # A job has no properties of a stream.
    tasks.commit([sparks.run_task(tasks, Context({}), b"a")])
    assert sparks.broker.visible == ["a"]
    with pytest.raises(BatchOrderError, match="txnVersion 2 comes after 3 was written"):
        pickle.dumps(sparks.job(2))


def test_a_job_without_rows_is_decided(sparks: Sparks) -> None:
    tasks = planned(sparks.job(1))
    tasks.commit([sparks.run_task(tasks, Context({}))])
    tasks = planned(sparks.job(1))
    message = sparks.run_task(tasks, Context({}), b"a")
    with pytest.raises(BatchOrderError, match="with 0 rows, and now it has 1"):
        tasks.commit([message])
