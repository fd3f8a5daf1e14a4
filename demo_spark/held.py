"""Holds a stream while it commits a micro-batch, so that the demo can kill its driver at that step.

Owns the two steps, and the file that says that a process waits. Runs in Spark's helper processes, which
import `HeldSource` and `keep` by name. `held` runs on the demo's main thread.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cyproducer.spark import WriteSummary, source
from cyproducer.spark.exactly_once.cluster import End
from cyproducer.spark.exactly_once.decisions import Decision, Identity, TaskTransaction
from cyproducer.spark.exactly_once.kafka_cluster import KafkaCluster
from demo_spark import summaries

BATCH_VARIABLE = "DEMO_SPARK_HOLD_BATCH"
"""The environment variable with the micro-batch to hold. Not set: none. Spark's processes inherit it."""
FILE_VARIABLE = "DEMO_SPARK_HELD"
"""The environment variable with the path of the file for `Held`."""
CALLBACK = "demo_spark.held:keep"
FORMAT = "held"
LOOK_S = 0.05


class Held(NamedTuple):
    """A process that waits at a step."""

    pid: int
    rows: int
    """The rows of this micro-batch and of those before it."""
    step: str


def held(path: Path) -> Held | None:
    """Returns the process that waits, if there is one."""
    return Held(*json.loads(path.read_text())) if path.exists() else None


def _is_held(batch: int) -> bool:
    return os.environ.get(BATCH_VARIABLE) == str(batch)


def _wait(rows: int, step: str) -> None:
    """Says that this process waits at a step, and waits to be killed. Ends the process with its parent, so
    that it is never left behind."""
    path, parent = Path(os.environ[FILE_VARIABLE]), os.getppid()
    # Whoever looks for the file must not see half of it.
    new = path.with_suffix(".new")
    new.write_text(json.dumps(Held(os.getpid(), rows, step)))
    new.rename(path)
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def _rows_so_far() -> list[int]:
    return [each.rows for each in summaries.so_far(Path(os.environ[summaries.FILE_VARIABLE]))]


def keep(summary: WriteSummary) -> None:
    """The ``summaryCallback`` of a stream that writes at least once: each row of the micro-batch is
    acknowledged, and Spark has not noted that in the checkpoint."""
    summaries.keep(summary)
    rows = _rows_so_far()
    if _is_held(len(rows) - 1):
        _wait(sum(rows), f"its {summary.rows:,} rows are acknowledged, and Spark has not noted it")


class HeldCluster(KafkaCluster):
    """Waits after the first transaction of a decided micro-batch is committed."""

    _decision: Decision | None = None

    def write(self, identity: Identity, decision: Decision) -> Identity:
        self._decision = decision
        return super().write(identity, decision)

    def commit(self, transactions: Sequence[TaskTransaction]) -> list[End]:
        decision = self._decision
        if decision is not None and _is_held(decision.batch):
            super().commit(transactions[:1])
            tasks = len(transactions)
            _wait(
                sum(_rows_so_far()) + decision.rows,
                f"its commit is decided, and 1 of its {tasks} transactions is committed",
            )
        return super().commit(transactions)


class HeldSource(source.CyproducerDataSource):
    """The sink, whose processes use `HeldCluster`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT


# The process that commits gets the data source from Spark, and so imports this module.
source.KafkaCluster = HeldCluster  # type: ignore[attr-defined]
