"""Runs one sink once, in this process and Spark's processes, and prints the measurements as a JSON line.

Not run by hand: ``perf/spark.py`` starts a process, with a JVM, for each run. CPU is that of the whole
process tree, Spark's JVM and Python workers, from ``/proc``.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

TICKS = os.sysconf("SC_CLK_TCK")
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "262144"}
LZ4 = {"kafka.compression.type": "lz4"}


def tree_cpu_s(root: int) -> dict[str, float]:
    """Returns the CPU seconds of the JVM and of Python in all processes below ``root``, ended ones
    included."""
    children: dict[int, list[int]] = {}
    stats: dict[int, tuple[str, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        pid = int(path.parent.name)
        children.setdefault(int(rest[1]), []).append(pid)
        stats[pid] = name, sum(map(int, rest[11:15])) / TICKS
    found = {"jvm": 0.0, "python": 0.0}
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        name, seconds = stats[pid]
        found["jvm" if "java" in name else "python"] += seconds
        waiting += children.get(pid, ())
    return found


def format_sink(name: str, **options: str) -> Callable[[Any, dict[str, Any], str], None]:
    def write(df: Any, args: dict[str, Any], topic: str) -> None:
        df.write.format(name).mode("append").options(
            **{"kafka.bootstrap.servers": args["bootstrap"], "topic": topic, "kafka.acks": "all", **options}
        ).save()

    return write


def exactly_once(df: Any, args: dict[str, Any], topic: str) -> None:
    # Each write of a topic is a version of its own.
    version = args[topic] = args.get(topic, 0) + 1
    once = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "perf"}
    format_sink("cyproducer", **once, txnAppId=topic, txnVersion=str(version))(df, args, topic)


def noop(df: Any, args: dict[str, Any], topic: str) -> None:
    df.write.format("noop").mode("overwrite").save()


def nowhere(df: Any, args: dict[str, Any], topic: str) -> None:
    from perf.spark_sinks.nowhere import NowhereDataSource

    df.sparkSession.dataSource.register(NowhereDataSource)
    df.write.format("nowhere").mode("append").save()


def foreach_nothing(df: Any, args: dict[str, Any], topic: str) -> None:
    def consume(rows: Any) -> None:
        for _ in rows:
            pass

    df.foreachPartition(consume)


def foreach_ours(df: Any, args: dict[str, Any], topic: str) -> None:
    from cyproducer.spark import produce_partitions

    df.foreachPartition(produce_partitions(topic, bootstrap_servers=args["bootstrap"]))


def foreach_confluent(df: Any, args: dict[str, Any], topic: str) -> None:
    bootstrap = args["bootstrap"]

    def send(rows: Any) -> None:
        from confluent_kafka import Producer

        failed: list[object] = []

        def delivered(error: object, _: object) -> None:
            if error:
                failed.append(error)

        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
        for row in rows:
            while True:
                try:
                    producer.produce(topic, row.value, row.key, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush()
        assert not failed, failed[0]

    df.foreachPartition(send)


SINKS: dict[str, Callable[[Any, dict[str, Any], str], None]] = {
    "noop": noop,
    "nowhere": nowhere,
    "ours": format_sink("cyproducer"),
    "ours, lz4": format_sink("cyproducer", **LZ4),
    "ours, exactly once": exactly_once,
    "spark": format_sink("kafka"),
    "spark, lz4": format_sink("kafka", **LZ4),
    "spark, tuned": format_sink("kafka", **TUNED),
    "spark, tuned, lz4": format_sink("kafka", **TUNED, **LZ4),
    "foreach, nothing": foreach_nothing,
    "foreach, ours": foreach_ours,
    "foreach, confluent-kafka": foreach_confluent,
}
ROW_BY_ROW = [name for name in SINKS if name.startswith("foreach")]
TO_KAFKA = [name for name in SINKS if name not in ("noop", "nowhere", "foreach, nothing")]


def main(args: dict[str, Any]) -> dict[str, Any]:
    from tools.harness.spark_session import spark_session

    # Spark's processes import this package, too, if only the product is installed.
    path = [os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[2])]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    # Not the JVM options of the tests, which start faster but compile worse.
    options = {"spark__jars": args["jars"], "spark__driver__extraJavaOptions": ""}
    with spark_session(Path(args["directory"]), **options) as spark:
        sink = SINKS[args["sink"]]
        for _ in range(args["warm_ups"]):
            sink(spark.read.parquet(args["data"]), args, args["warm_topic"])
        before, began = tree_cpu_s(os.getpid()), time.perf_counter()
        for _ in range(args["writes"]):
            sink(spark.read.parquet(args["data"]), args, args["topic"])
        wall = time.perf_counter() - began
        after = tree_cpu_s(os.getpid())
    used = {kind: after[kind] - before[kind] for kind in after}
    rows = args["rows"] * args["writes"]
    return {
        "rows_per_s": rows / wall,
        "wall_s": wall,
        "jvm_us": used["jvm"] / rows * 1e6,
        "python_us": used["python"] / rows * 1e6,
        "cpu_us": sum(used.values()) / rows * 1e6,
    }


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
