"""Compares what a micro-batch takes with both guarantees, and with other sinks: rows are few, steps many.

    python perf/spark_batches.py                      # 5 rounds of streams of 40 batches of 1,000 rows
    python perf/spark_batches.py --rounds 3 --batches 20 --sinks at-least-once nowhere

A stream of files, one file per micro-batch, two tasks, three partitions. The time is Spark's own,
``addBatch`` of each batch's progress: planning, tasks and commit of the sink. ``first`` is the whole time of
the first batch, in which Spark starts Python processes; the first batches, in which the JVM compiles, are
left out of the other figures. CPU is that of Spark's JVM and of its Python processes. ``nowhere`` is a sink
in Python that discards the rows. The streams of a round follow each other in one session, in reverse order
every other time. Needs Java and Maven.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from perf.comparison.brokers import Brokers
from perf.comparison.figures import Spread, met, table
from perf.spark_sinks.run import tree_cpu_s

WARM_UP = 8
GOAL_MS = 150
GOAL_CPU_MS = 100
GUARANTEES = ("at-least-once", "exactly-once")
SINKS = (*GUARANTEES, "spark", "nowhere")
LOOKS_PER_S = 50


@dataclass(frozen=True)
class Stream:
    """The figures of one stream, in ms of a micro-batch."""

    first: float
    p50: float
    p95: float
    jvm_cpu: float
    python_cpu: float


def measured(spark: Any, source: Path, place: Path, name: str, options: dict[str, str]) -> Stream:
    """Streams all files to the format of this name."""
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([StructField("value", StringType())])
    query = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .text(str(source))
        .repartition(2)
        .writeStream.format(name)
        .options(checkpointLocation=str(place), **options)
        .trigger(availableNow=True)
        .start()
    )
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < WARM_UP - 1):
        time.sleep(1 / LOOKS_PER_S)
    before, began = tree_cpu_s(os.getpid()), query.lastProgress["batchId"]
    query.awaitTermination()
    after = tree_cpu_s(os.getpid())
    found = [each for each in query.recentProgress if each["numInputRows"]]
    times = [float(each["durationMs"]["addBatch"]) for each in found[WARM_UP:]]
    batches = found[-1]["batchId"] - began
    return Stream(
        first=float(found[0]["durationMs"]["triggerExecution"]),
        p50=statistics.median(times),
        p95=statistics.quantiles(times, n=20)[-1],
        jvm_cpu=(after["jvm"] - before["jvm"]) / batches * 1000,
        python_cpu=(after["python"] - before["python"]) / batches * 1000,
    )


def write(spark: Any, sink: str, source: Path, place: Path, bootstrap: str, topic: str) -> Stream:
    if sink == "nowhere":
        from perf.spark_sinks.nowhere import NowhereDataSource

        spark.dataSource.register(NowhereDataSource)
        return measured(spark, source, place, "nowhere", {})
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    if sink == "spark":
        return measured(spark, source, place, "kafka", options)
    options["deliveryGuarantee"] = sink
    if sink == "exactly-once":
        options["transactionalIdPrefix"] = "perf"
    return measured(spark, source, place, "cyproducer", options)


def report(found: dict[str, list[Stream]]) -> list[str]:
    def text(values: list[float]) -> str:
        spread = Spread.of(values)
        return spread.text(digits=0) if spread else "-"

    names = ("p50", "p95", "python_cpu", "jvm_cpu", "first")
    heads = ["sink", "p50, ms", "p95, ms", "CPU of Python, ms", "CPU of the JVM, ms", "first, ms"]
    rows = [
        [sink, *(text([getattr(each, name) for each in streams]) for name in names)]
        for sink, streams in found.items()
    ]
    goals = []
    for what, name, more, less, most in (
        ("p50, ms, exactly once - at least once", "p50", *GUARANTEES[::-1], GOAL_MS),
        (
            "CPU of Python, ms, ours - a sink that discards rows",
            "python_cpu",
            SINKS[0],
            "nowhere",
            GOAL_CPU_MS,
        ),
    ):
        if more in found and less in found:
            values = [
                getattr(a, name) - getattr(b, name) for a, b in zip(found[more], found[less], strict=True)
            ]
            verdict = met(statistics.median(values), at_least=None, at_most=most)
            goals.append([what, f"at most {most}", text(values), verdict])
    return [table(heads, rows), table(["goal", "", "measured", ""], goals)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1000, help="of a micro-batch")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=list(SINKS), metavar="SINK")
    given = parser.parse_args()
    from tools.harness.kafka_install import classpath
    from tools.harness.spark_session import spark_session

    here = Path(__file__).resolve().parent
    # Spark's processes import this package, too, if only the product is installed.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(here.parent)]))
    jars = sorted(Path(classpath(here / "spark_sinks" / "pom.xml")).parent.glob("*.jar"))
    found: dict[str, list[Stream]] = {sink: [] for sink in given.sinks}
    with tempfile.TemporaryDirectory() as scratch, Brokers(None) as brokers:
        directory = Path(scratch)
        (directory / "in").mkdir()
        for number in range(given.batches + WARM_UP):
            lines = "".join(f"{number} {row} {'x' * 90}\n" for row in range(given.rows))
            (directory / "in" / f"{number}.txt").write_text(lines)
        settings = {
            "spark__driver__extraJavaOptions": "",
            "spark__jars": ",".join(map(str, jars)),
            "spark__sql__streaming__numRecentProgressUpdates": "1000",
        }
        with spark_session(directory / "spark", **settings) as spark:
            for number in range(given.rounds):
                for sink in given.sinks if number % 2 == 0 else given.sinks[::-1]:
                    topic = f"{sink}-{number}"
                    bootstrap = brokers.bootstrap("real", {topic: 3})
                    stream = write(spark, sink, directory / "in", directory / topic, bootstrap, topic)
                    found[sink].append(stream)
                    print(
                        f"round {number + 1}/{given.rounds}: {sink}: {stream.p50:.0f} ms, CPU of Python "
                        f"{stream.python_cpu:.0f} ms",
                        file=sys.stderr,
                    )
    print("\n\n".join(report(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
