"""A driver of its own for a stream, which can be killed while it commits: run as a program by `run`.

    python demo_spark/killed.py DIRECTORY BOOTSTRAP TOPIC GUARANTEE COMPRESSION

Streams the Parquet files in ``DIRECTORY/lines`` to a topic, with the checkpoint ``DIRECTORY/TOPIC``. In its
first life it waits in the middle of a commit until it is killed: with at-least-once when a micro-batch is
written and Spark has not noted it yet; with exactly-once when a micro-batch is decided, and the first of its
transactions is committed. Spark's helper processes import this module, too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# At the end: an installed package comes before the sources.
sys.path.append(str(ROOT))

PLACE_VARIABLE = "DEMO_SPARK_HOLD"
"""The environment variable with a directory. Spark's processes inherit it."""
HELD = "held"
"""The file that says that a process waits to be killed."""
BATCH_VARIABLE = "DEMO_SPARK_HOLD_BATCH"
"""The environment variable with the number of the micro-batch in whose commit it is killed."""
CALLBACK = "demo_spark.killed:summary_told"
FORMAT = "cyproducer_held"
TRANSACTION_TIMEOUT_MS = 60_000


def hold() -> None:
    """Waits, in the first life, until this process is killed, or its parent is."""
    held = Path(os.environ[PLACE_VARIABLE]) / HELD
    if held.exists():
        return
    held.touch()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(1)


def count(name: str) -> int:
    """Counts the calls of all processes of a life; returns how many were before."""
    path = Path(os.environ[PLACE_VARIABLE]) / name
    with open(path, "ab") as file:
        file.write(b".")
        return file.tell() - 1


def held_batch() -> int:
    """Returns the number of the micro-batch in whose commit it is killed, counted from 0."""
    return int(os.environ[BATCH_VARIABLE])


def summary_told(_summary: object) -> None:
    """The summaryCallback: the batch is written, and Spark has not noted it."""
    if count("batches") == held_batch():
        hold()


def held_source() -> type[Any]:
    """Returns the data source whose driver waits between two commits."""
    from cyproducer.spark import source
    from cyproducer.spark.exactly_once.cluster import End
    from cyproducer.spark.exactly_once.decisions import TaskTransaction
    from cyproducer.spark.exactly_once.kafka_cluster import KafkaCluster

    module: Any = source

    class HeldCluster(KafkaCluster):
        def commit(self, transactions: Sequence[TaskTransaction]) -> list[End]:
            if count("batches") != held_batch():
                return super().commit(transactions)
            first = super().commit(transactions[:1])
            hold()
            return first + super().commit(transactions[1:])

    class HeldSource(source.CyproducerDataSource):
        @classmethod
        def name(cls) -> str:
            # Here, as it runs in each process that plans or commits.
            module.KafkaCluster = HeldCluster
            return FORMAT

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            module.KafkaCluster = HeldCluster
            return super().streamWriter(schema, overwrite)

    return HeldSource


def main() -> None:
    directory, bootstrap, topic, guarantee, compression = Path(sys.argv[1]), *sys.argv[2:]
    from cyproducer.spark.options import EXACTLY_ONCE
    from demo_spark import pipeline
    from tools.harness.spark_session import spark_session

    options = pipeline.sink_options(bootstrap, topic, compression)
    options["summaryCallback"] = CALLBACK
    name = "cyproducer"
    if guarantee == EXACTLY_ONCE:
        del options["summaryCallback"]
        options |= {
            "deliveryGuarantee": EXACTLY_ONCE,
            "transactionalIdPrefix": "demo",
            "kafka.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
        }
        name = FORMAT
    place = Path(os.environ[PLACE_VARIABLE])
    settings = {"spark.ui.showConsoleProgress": "false", **pipeline.SCAN_SETTINGS}
    given = {key.replace(".", "__"): value for key, value in settings.items()}
    with spark_session(place / "spark", "local[*]", **given) as spark:
        if guarantee == EXACTLY_ONCE:
            spark.dataSource.register(held_source())
        pipeline.write_stream(spark, directory / "lines", place / "checkpoint", options, name)
    (place / "ended").touch()


if __name__ == "__main__":
    main()
