"""Compares sinks that write a DataFrame to Kafka: this one, Spark's own, and one that goes nowhere.

    python perf/spark.py                       # 5 million rows, five rounds of all: an hour
    python perf/spark.py --rows 1000000 --rounds 1 --sinks ours "spark, tuned"

Each run has a process, a JVM and workers of its own; the sinks take turns within a round, and every other
round goes backwards. Each row has a key of 16 bytes and a value of 100; three partitions, acks=all. Needs
Java, Maven and ``pip install '.[perf,spark]'``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from perf.comparison.brokers import Brokers
from perf.spark_sinks.run import SINKS, TO_KAFKA

HERE = Path(__file__).parent
TIMEOUT_S = 900

GOALS = (
    ("rows/s, ours by Spark's at its defaults", "rows_per_s", "ours", "spark", "at least", 2.0),
    ("rows/s, ours by Spark's, tuned", "rows_per_s", "ours", "spark, tuned", "at least", 1.3),
    (
        "rows/s, both lz4, ours by Spark's, tuned",
        "rows_per_s",
        "ours, lz4",
        "spark, tuned, lz4",
        "at least",
        1.3,
    ),
    ("time, ours by a sink that goes nowhere", "wall_s", "ours", "nowhere", "at most", 1.6),
    (
        "time of foreachPartition, ours by nothing",
        "wall_s",
        "foreach, ours",
        "foreach, nothing",
        "at most",
        1.15,
    ),
    (
        "rows/s of foreachPartition, ours by confluent-kafka's",
        *("rows_per_s", "foreach, ours", "foreach, confluent-kafka", "at least", 1.2),
    ),
)


def write_rows(path: Path, rows: int) -> None:
    """A parquet file of keys and values that compress as identifiers and short texts do."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    path.mkdir()
    # Two files, for as many tasks.
    for part in range(2):
        with pq.ParquetWriter(path / f"{part}.parquet", schema, compression="snappy") as writer:
            for first in range(part * rows // 2, (part + 1) * rows // 2, 100_000):
                numbers = range(first, min(first + 100_000, (part + 1) * rows // 2))
                keys = [b"%016d" % n for n in numbers]
                values = [
                    (b"%d:" % (n * 2654435761 % 2**32)).ljust(100, b"abcdefghij"[n % 10 : n % 10 + 1])
                    for n in numbers
                ]
                writer.write_table(pa.table([keys, values], schema=schema))


def run(sink: str, args: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        given = json.dumps({**args, "sink": sink, "directory": directory})
        done = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", str(HERE / "spark_sinks" / "run.py"), given],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{sink} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def records_in(bootstrap: str, topic: str, partitions: int) -> int:
    """What a topic's partitions hold, by their offsets."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count"})
    try:
        marks = [
            consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30) for p in range(partitions)
        ]
    finally:
        consumer.close()
    return sum(high - low for low, high in marks)


def median_and_spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def report(found: dict[str, list[dict[str, float]]]) -> list[str]:
    lines = [
        "| sink | rows/s, M | client CPU us/row | JVM | Python |",
        "| --- | --- | --- | --- | --- |",
    ]
    for sink, runs in found.items():
        cells = [
            median_and_spread([each["rows_per_s"] / 1e6 for each in runs], 2),
            *(
                median_and_spread([each[name] for each in runs], 2)
                for name in ("cpu_us", "jvm_us", "python_us")
            ),
        ]
        lines.append(f"| {sink} | {' | '.join(cells)} |")
    lines += ["", "| goal | | measured | |", "| --- | --- | --- | --- |"]
    for text, name, ours, theirs, word, bound in GOALS:
        if ours not in found or theirs not in found:
            continue
        ratios = [a[name] / b[name] for a, b in zip(found[ours], found[theirs], strict=True)]
        middle = statistics.median(ratios)
        met = middle >= bound if word == "at least" else middle <= bound
        lines.append(
            f"| {text} | {word} {bound} | {median_and_spread(ratios, 2)} | {'met' if met else 'missed'} |"
        )
    if "ours" in found:
        cpu = [each["cpu_us"] for each in found["ours"]]
        met = statistics.median(cpu) <= 0.65
        lines.append(
            "| client CPU us/row | at most 0.65 | "
            f"{median_and_spread(cpu, 2)} | {'met' if met else 'missed'} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=list(SINKS), metavar="SINK")
    parser.add_argument("--bootstrap", help="a broker's address, instead of a Kafka of its own")
    given = parser.parse_args()
    from tests.integration.kafka_install import classpath

    jar_directory = Path(classpath(HERE / "spark_sinks" / "pom.xml")).parent
    jars = ",".join(str(path) for path in sorted(jar_directory.glob("*.jar")))
    found: dict[str, list[dict[str, float]]] = {sink: [] for sink in given.sinks}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, Brokers(given.bootstrap) as brokers:
        data = Path(directory) / "rows"
        print(f"writing {given.rows:,} rows", file=sys.stderr)
        write_rows(data, given.rows)
        for number in range(given.rounds):
            order = given.sinks if number % 2 == 0 else given.sinks[::-1]
            for sink in order:
                name = f"spark-{number}-{given.sinks.index(sink)}"
                print(
                    f"round {number + 1}/{given.rounds}: {sink} ({time.monotonic() - began:.0f} s gone)",
                    file=sys.stderr,
                )
                bootstrap = brokers.bootstrap("real", {name: 3, f"{name}-warm": 3})
                args = {
                    "rows": given.rows,
                    "data": str(data),
                    "bootstrap": bootstrap,
                    "topic": name,
                    "warm_topic": f"{name}-warm",
                    "jars": jars,
                }
                found[sink].append(run(sink, args))
                if sink in TO_KAFKA and (count := records_in(bootstrap, name, 3)) != given.rows:
                    raise SystemExit(f"{sink}: {count} records for {given.rows} rows")
    print("\n".join(report(found)))
    print(f"\nEach row a key of 16 bytes and a value of 100; {given.rows:,} rows, {given.rounds} rounds.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
