"""The function for ``foreachBatch`` with exactly-once, with a model of a cluster and a fake PySpark: in a
program with a classic session, and in a process of Spark Connect's server."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark import BatchOrderError, WriteSummary, foreach_batch
from cyproducer.spark.exactly_once import each_batch, task
from cyproducer.spark.exactly_once.decisions import decode
from cyproducer.spark.sending import Target
from cyproducer.spark.summary import WrittenRange
from cyproducer.structs import PreparedTransaction
from tests.spark import fake_pyspark as spark
from tests.spark.exactly_once.model_cluster import Broker, ModelCluster, write_task
from tests.spark.fake_pyspark import fake_pyspark, schema

CONNECT_WORKER = "SPARK_CONNECT_LOCAL_URL"


class Frame:
    """A DataFrame of one partition, in a query's run or without one."""

    schema = schema(value=spark.StringType())

    def __init__(self, *rows: str, properties: dict[str, str] | None = None) -> None:
        self._rows = rows
        # A session of Spark Connect has no context.
        context = None if properties is None else SimpleNamespace(getLocalProperty=properties.get)
        self.sparkSession = SimpleNamespace(_sc=context)
        self._of_tasks = properties or {}

    def mapInArrow(self, function: Callable[[Any], Iterator[pa.RecordBatch]], schema: str) -> Any:
        of_tasks = task._task_context().properties
        of_tasks.clear()
        of_tasks.update(self._of_tasks)
        function = pickle.loads(pickle.dumps(function))
        batches = list(function(iter([pa.record_batch({"value": list(self._rows)})])))
        rows = [SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: rows)


def in_run(run: str, *rows: str, query: str = "q") -> Any:
    """A DataFrame of a classic query."""
    return Frame(*rows, properties={"spark.jobGroup.id": run, "sql.streaming.queryId": query})


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    broker = Broker()
    attempts = iter(range(1000))
    properties: dict[str, str] = {}

    def model(config: object, sink: Any, topic: str, timeout_ms: int) -> Any:
        cluster: Any = ModelCluster(broker, sink)
        cluster.close = lambda: None
        broker.clusters += 1
        return cluster

    def write(target: Target, name: str, timeout_ms: int, batches: Any) -> Any:
        rows = [value for batch in batches for value in batch["value"].to_pylist()]
        written = write_task(broker, name, rows)
        assert written is not None
        written_to = WrittenRange(str(target.topic), 0, 0, len(rows) - 1, len(rows))
        summary = WriteSummary(rows=len(rows), ranges=(written_to,))
        return summary, PreparedTransaction(name, *written.identity, 2, False, {})

    def context() -> Any:
        attempt = next(attempts)
        return SimpleNamespace(
            partitionId=lambda: 0,
            attemptNumber=lambda: 0,
            taskAttemptId=lambda: attempt,
            getLocalProperty=properties.get,
            properties=properties,
        )

    monkeypatch.setattr(each_batch, "KafkaCluster", model)
    monkeypatch.setattr(each_batch, "_written", {})
    monkeypatch.setattr(task, "_write", write)
    monkeypatch.setattr(task, "_task_context", context)
    monkeypatch.delenv(CONNECT_WORKER, raising=False)
    with fake_pyspark():
        yield broker


def function(app: str | None = None, topic: str = "t") -> Callable[[Any, int], None]:
    return foreach_batch(
        topic,
        bootstrap_servers="127.0.0.1:1",
        delivery_guarantee="exactly-once",
        transactional_id_prefix="app",
        txn_app_id=app,
    )


def test_a_batch_that_runs_again_is_written_once(broker: Broker) -> None:
    write = function()
    for run in ("r1", "r2"):
        write(in_run(run, "a", "b"), 0)
    write(in_run("r2", "c"), 1)
    assert broker.checked == [["t"]] * 3
    assert broker.visible == ["a", "b", "c"]
    assert broker.open_ids == []


def test_a_name_that_another_query_has_written_is_refused(broker: Broker) -> None:
    function("orders")(in_run("r1", "a"), 0)
    # The checkpoint is a new one, so its batch 0 has other rows.
    with pytest.raises(BatchOrderError, match=r"by query q, and this is query q2: .*needs a new name"):
        function("orders")(in_run("r2", "b", query="q2"), 0)
    function("others")(in_run("r2", "b", query="q2"), 0)
    assert broker.visible == ["a", "b"]
    assert broker.open_ids == []


def test_a_name_that_has_written_another_topic_is_refused(broker: Broker) -> None:
    function("orders")(Frame("a"), 0)
    with pytest.raises(BatchOrderError, match="was written to topic 't', and this write is to topic 'u'"):
        function("orders", "u")(Frame("b"), 0)
    assert broker.visible == ["a"]


@pytest.mark.parametrize("connect", [False, True])
def test_a_second_function_under_one_name_is_refused(
    connect: bool, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connect:
        monkeypatch.setenv(CONNECT_WORKER, "sc://localhost:1")

    def frame(*rows: str) -> Any:
        return Frame(*rows) if connect else in_run("r1", *rows)

    # Made for the one call: in many batches, some second one is where the first one was.
    for batch in range(50):
        function("orders")(frame("a"), batch)
        with pytest.raises(
            BatchOrderError, match=rf"two functions write batch {batch} .* its own txn_app_id"
        ):
            function("orders")(frame("b"), batch)
    function("others")(frame("b"), 0)
    assert broker.visible == [*(["a"] * 50), "b"]


@pytest.mark.parametrize("connect", [False, True])
def test_a_second_call_in_a_batch_is_refused_after_the_first_has_succeeded(
    connect: bool, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connect:
        monkeypatch.setenv(CONNECT_WORKER, "sc://localhost:1")
    write = function("orders")
    frame = Frame("a", "b") if connect else in_run("r1", "a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(task, "_write", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(frame, 0)
    write(frame, 0)
    for _ in range(2):
        with pytest.raises(BatchOrderError, match=r"is called twice in batch 0.*for each DataFrame"):
            write(Frame("c", "d") if connect else in_run("r1", "c", "d"), 0)
    assert broker.visible == ["a", "b"]


def test_a_batch_for_which_spark_makes_no_task_is_written(broker: Broker) -> None:
    write = function()
    empty = in_run("r1")
    empty.mapInArrow = lambda function, schema: SimpleNamespace(collect=list)
    write(empty, 0)
    decided = [decode(each.decision) for each in broker.log if each.decision is not None]
    assert [(each.batch, each.rows, each.done, each.query) for each in decided] == [(0, 0, True, "q")]
    write(in_run("r2", "a"), 1)
    assert broker.visible == ["a"]


def test_a_call_while_another_one_writes_the_batch_is_refused(broker: Broker) -> None:
    write = function()
    frame = in_run("r1", "a")
    run = frame.mapInArrow

    def both(*arguments: Any) -> Any:
        with pytest.raises(BatchOrderError, match="is called twice in batch 0"):
            write(in_run("r1", "b"), 0)
        return run(*arguments)

    frame.mapInArrow = both
    write(frame, 0)
    assert broker.visible == ["a"]


def test_the_time_of_the_tasks_is_no_part_of_the_commits(broker: Broker) -> None:
    frame = in_run("r1", "a")
    run = frame.mapInArrow
    views: list[int] = []

    def noted(*arguments: Any) -> Any:
        views.append(broker.clusters)
        return run(*arguments)

    frame.mapInArrow = noted
    function()(frame, 0)
    # The commit has a view, and so a deadline, of its own.
    assert (views, broker.clusters) == ([1], 2)


def test_a_call_outside_of_a_query_may_be_repeated_by_another_function(broker: Broker) -> None:
    for _ in range(2):
        function("orders")(Frame("a"), 7)
    assert broker.visible == ["a"]


def test_spark_connect_needs_a_name_when_the_function_is_made(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.utils", SimpleNamespace(is_remote=lambda: True))
    with pytest.raises(KafkaConfigurationError, match=r"needs txn_app_id.* Spark Connect does not say"):
        function()
    function("orders")(Frame("a"), 0)
    assert broker.visible == ["a"]


def test_a_function_that_was_made_before_the_session_says_so_before_it_writes(broker: Broker) -> None:
    write = function()
    with pytest.raises(KafkaConfigurationError, match=r"needs txn_app_id.* Spark Connect does not say"):
        write(Frame("a"), 0)
    assert broker.log == []
