"""Compares what a micro-batch takes with both guarantees, and the 95th percentile: rows are few, steps many.

    python perf/spark_batches.py                      # 5 pairs of streams of 40 batches of 1,000 rows
    python perf/spark_batches.py --pairs 3 --batches 20

A stream of files, one file per micro-batch, two tasks, three partitions. The time is Spark's own,
``addBatch`` of each batch's progress: planning, tasks and commit of the sink. The first batches, in which
Spark starts its Python processes and the JVM compiles, are left out. The streams of a pair follow each other
in one session, in reverse order every other time. Needs Java and Maven.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from perf.comparison.brokers import Brokers
from perf.comparison.figures import Spread, met, table

WARM_UP = 8
GOAL_MS = 150
KINDS = ("at-least-once", "exactly-once")


def durations_ms(spark: Any, source: Path, place: Path, options: dict[str, str]) -> list[float]:
    """Streams all files and returns the time of each micro-batch but the first ones."""
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([StructField("value", StringType())])
    query = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .text(str(source))
        .repartition(2)
        .writeStream.format("cyproducer")
        .options(checkpointLocation=str(place), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [float(each["durationMs"]["addBatch"]) for each in query.recentProgress if each["numInputRows"]]
    return found[WARM_UP:]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1000, help="of a micro-batch")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    from tools.harness.spark_session import spark_session

    medians: dict[str, list[float]] = {kind: [] for kind in KINDS}
    lasts: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch, Brokers(None) as brokers:
        directory = Path(scratch)
        (directory / "in").mkdir()
        for number in range(given.batches + WARM_UP):
            lines = "".join(f"{number} {row} {'x' * 90}\n" for row in range(given.rows))
            (directory / "in" / f"{number}.txt").write_text(lines)
        settings = {
            "spark__driver__extraJavaOptions": "",
            "spark__sql__streaming__numRecentProgressUpdates": "1000",
        }
        with spark_session(directory / "spark", **settings) as spark:
            for pair in range(given.pairs):
                for kind in KINDS if pair % 2 == 0 else KINDS[::-1]:
                    topic = f"{kind}-{pair}"
                    options = {
                        "kafka.bootstrap.servers": brokers.bootstrap("real", {topic: 3}),
                        "topic": topic,
                        "deliveryGuarantee": kind,
                    }
                    if kind == "exactly-once":
                        options["transactionalIdPrefix"] = "perf"
                    times = durations_ms(spark, directory / "in", directory / topic, options)
                    medians[kind].append(statistics.median(times))
                    lasts[kind].append(statistics.quantiles(times, n=20)[-1])
                    print(
                        f"pair {pair + 1}/{given.pairs}: {kind}: {medians[kind][-1]:.0f} ms", file=sys.stderr
                    )

    def text(values: list[float]) -> str:
        spread = Spread.of(values)
        return spread.text() if spread else "-"

    more = [once - least for least, once in zip(*medians.values(), strict=True)]
    print(table(["guarantee", "p50, ms", "p95, ms"], [[k, text(medians[k]), text(lasts[k])] for k in KINDS]))
    verdict = met(statistics.median(more), at_least=None, at_most=GOAL_MS)
    print(
        "\n"
        + table(["goal", "", "measured", ""], [["more, p50, ms", f"at most {GOAL_MS}", text(more), verdict]])
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
