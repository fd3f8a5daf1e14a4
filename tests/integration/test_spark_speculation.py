"""Tests speculative execution, two concurrent attempts of a slow task, and an executor that is killed. Uses a
cluster of two workers, because local Spark has neither.

The job allows no task failure. So a second attempt is a speculative copy, and killing one of both is not a
failure.
"""

from __future__ import annotations

import ast
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import needs_module, needs_proc
from tests.integration.process_table import GONE_S, ProcessInfo, below, processes
from tests.integration.spark_faults import (
    BATCH,
    PARTITIONS,
    PATIENCE_S,
    Signals,
    arrow,
    attempt,
    by_value,
    exactly_once,
    found,
    meanwhile,
    until_written,
    value,
    write,
)
from tests.integration.spark_standalone import HOSTS, StandaloneSpark, missing_hosts
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.spark_session import OURS, QUICK_START, spark_session
from tools.harness.until import looks

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_module("pyspark"),
    needs_proc,
    pytest.mark.skipif(missing_hosts() is not None, reason=str(missing_hosts())),
]

TASKS = 3
ROWS = 20 * BATCH
SLOW = 0
"""The task that runs twice."""
NOBODY = -1
"""As the loser: no attempt."""

SUMMARIES = """
def keep(summary):
    with open(FILE, "a") as file:
        file.write(repr((summary.rows, summary.tasks)))
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.multiplier": "1",
        # Speculation starts when all other tasks have ended.
        "spark.speculation.quantile": str((TASKS - 0.5) / TASKS),
        "spark.speculation.efficiency.enabled": "false",
        "spark.task.maxFailures": "1",
        # One task at a time per executor: its Python workers belong to that task, or are idle.
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_START,
        "spark.executorEnv.PYTHONPATH": str(OURS),
        # Small batches reach the sink while the task still runs.
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH),
    }
    with (
        by_value(__name__),
        StandaloneSpark(directory / "cluster") as cluster,
        spark_session(directory, cluster.master, **settings) as session,
    ):
        for _ in looks(PATIENCE_S, 0.1):
            # The map includes the driver.
            if session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 1 + len(HOSTS):
                break
        else:
            raise AssertionError(f"{len(HOSTS)} executors did not start:\n{cluster.logs()}")
        yield session


class SlowTask:
    """Generates each task's rows. The slow task has two attempts.

    The ``loser`` generates half of its rows, and then waits forever. The other attempt generates all rows
    once ``go`` is given. Each attempt reports its start and its process with a file.
    """

    def __init__(self, signals: Signals, loser: int) -> None:
        self._signals = signals
        self._loser = loser

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                self._signals.give(f"began-{task}-{attempt()}-{os.getpid()}")
                loses = task == SLOW and attempt() == self._loser
                if task == SLOW and not loses:
                    self._signals.wait("go")
                for start in range(0, ROWS // 2 if loses else ROWS, BATCH):
                    yield arrow([value(task, number) for number in range(start, start + BATCH)])
                if loses:
                    self._signals.wait("what never comes")


def attempts(directory: Path, task: int) -> dict[int, int]:
    """Returns the started attempts of a task: number to pid."""
    names = [path.name.split("-")[2:] for path in directory.glob(f"began-{task}-*")]
    return {int(number): int(pid) for number, pid in names}


def executor_of(worker: int) -> ProcessInfo:
    """Returns the executor of a Python worker: the JVM that is its daemon's parent."""
    running = {each.pid: each for each in processes()}
    return running[running[running[worker].parent].parent]


def until_loser_is_gone(executor: int, there: list[ProcessInfo], maker: int) -> None:
    """Waits until the losing attempt's processes are gone: the worker that generated its rows, the one that
    wrote them, and their children. ``there``: the executor's processes while both attempts ran. Idle workers
    and daemons may remain for the next task."""
    ran = {each.pid for each in there}
    daemons = {each.pid for each in there if each.parent == executor}
    workers = {each.pid for each in there if each.parent in daemons}
    others = ran - workers - daemons
    assert maker in workers
    left: list[ProcessInfo] = []
    for _ in looks(GONE_S):
        left = [each for each in processes() if each.pid in ran]
        pids = {each.pid for each in left}
        if maker not in pids and len(workers & pids) <= len(workers) - 2 and not others & pids:
            return
    raise AssertionError(f"of {there}, which ran with the losing attempt, these still run: {left}")


def together(signals: Signals, tasks: int) -> Any:
    """Returns a function that is a barrier for tasks: it continues when all of them have arrived."""

    def meet(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                signals.give(f"here-{task}")
                for other in range(tasks):
                    signals.wait(f"here-{other}")
                yield arrow([value(task, 0)])

    return meet


@pytest.mark.parametrize(
    ("loser", "name", "once"),
    [(0, "original", False), (1, "copy", False), (0, "original-once", True), (1, "copy-once", True)],
)
def test_only_rows_of_the_task_that_ran_twice_are_written_twice_and_in_transactions_none(
    spark: Any, kafka: KafkaCluster, tmp_path: Path, loser: int, name: str, once: bool
) -> None:
    signals = Signals(tmp_path)
    topic, module = f"spark-slow-{name}", f"slow_{name.replace('-', '_')}"
    kafka.create_topic(topic, PARTITIONS)
    told = tmp_path / "told"
    (tmp_path / f"{module}.py").write_text(SUMMARIES.replace("FILE", repr(str(told))))
    spark.sparkContext.addPyFile(str(tmp_path / f"{module}.py"))
    executors: list[ProcessInfo] = []
    beside: list[ProcessInfo] = []

    def let_both_write() -> None:
        # All rows of the other tasks, and some of the losing attempt.
        until_written(kafka.bootstrap_servers, topic, (TASKS - 1) * ROWS + 1, signals)
        for _ in looks(PATIENCE_S):
            if len(both := attempts(tmp_path, SLOW)) == 2:
                break
        else:
            raise AssertionError(f"no copy of the slow task began: {both}")
        # Both attempts still run.
        executors[:] = [executor_of(both[number]) for number in range(2)]
        beside[:] = below(executors[loser].pid)
        signals.give("go")

    with meanwhile(signals, let_both_write):
        ids = spark.range(0, TASKS, 1, TASKS)
        write(
            ids.mapInArrow(SlowTask(signals, loser), "value string"),
            kafka.bootstrap_servers,
            topic,
            summaryCallback=f"{module}:keep",
            **(exactly_once(topic) | {"txnAppId": "job", "txnVersion": "1"} if once else {}),
        )
    assert attempts(tmp_path, SLOW).keys() == {0, 1}
    assert [attempts(tmp_path, task).keys() for task in range(TASKS) if task != SLOW] == [{0}] * (TASKS - 1)
    # The executors are on different hosts, which their commands show.
    assert sorted(host for each in executors for host in HOSTS if f"--hostname {host}" in each.command) == [
        *HOSTS
    ]
    until_loser_is_gone(executors[loser].pid, beside, attempts(tmp_path, SLOW)[loser])

    there = found(kafka.bootstrap_servers, topic, TASKS * ROWS)
    assert sorted(there) == list(range(TASKS))
    for task, times in there.items():
        assert sorted(times) == list(range(ROWS))
        assert max(times.values()) == (2 if task == SLOW and not once else 1)
    assert not [number for number, times in there[SLOW].items() if times == 2 and number >= ROWS // 2]
    # Each task counts once.
    assert ast.literal_eval(told.read_text()) == (TASKS * ROWS, TASKS)

    # Both executors are free again, and write. Spark may also have started a copy of one of these tasks.
    ids = spark.range(0, len(HOSTS), 1, len(HOSTS))
    write(ids.mapInArrow(together(signals, len(HOSTS)), "value string"), kafka.bootstrap_servers, topic)
    before = sum(sum(times.values()) for times in there.values())
    again = found(kafka.bootstrap_servers, topic, before + len(HOSTS))
    assert [task for task in sorted(there) if again[task][0] > there[task][0]] == list(range(len(HOSTS)))


def test_a_job_whose_executor_is_killed_and_that_runs_again_is_written_once(
    spark: Any, kafka: KafkaCluster, tmp_path: Path
) -> None:
    signals = Signals(tmp_path)
    topic = "spark-executor-killed"
    kafka.create_topic(topic, PARTITIONS)

    def run(loser: int) -> None:
        ids = spark.range(0, TASKS, 1, TASKS)
        once = exactly_once(topic) | {"txnAppId": "job", "txnVersion": "1"}
        write(
            ids.mapInArrow(SlowTask(signals, loser), "value string"), kafka.bootstrap_servers, topic, **once
        )

    def kill_executor() -> None:
        # All rows of the other tasks, and some of the slow one.
        until_written(kafka.bootstrap_servers, topic, (TASKS - 1) * ROWS + 1, signals)
        os.kill(executor_of(attempts(tmp_path, SLOW)[0]).pid, signal.SIGKILL)
        signals.give("go")

    # It may be ended by a copy of the task on the other executor.
    with meanwhile(signals, kill_executor), contextlib.suppress(Exception):
        run(0)
    run(NOBODY)
    there = found(kafka.bootstrap_servers, topic, TASKS * ROWS)
    assert sorted(there) == list(range(TASKS))
    for times in there.values():
        assert sorted(times) == list(range(ROWS))
        assert set(times.values()) == {1}
