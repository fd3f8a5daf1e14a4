"""Tests the log messages of ``format("cyproducer")`` in the driver's standard error: what was written, and
what may have been written if a job fails. Uses a separate driver, whose whole output is checked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import needs_module
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), needs_module("pyspark")]

ROOT = Path(__file__).parents[2]
DRIVER = """
import sys
from pathlib import Path

servers, directory, root = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
# At the end: an installed package comes before the sources.
sys.path.append(root)
from tools.harness.spark_session import spark_session


def told(name):
    print("---", name, file=sys.stderr, flush=True)


def given(topic):
    checkpoint = str(directory / ("checkpoint-" + topic))
    return {"kafka.bootstrap.servers": servers, "topic": topic, "checkpointLocation": checkpoint}


def batch(df, topic):
    df.write.format("cyproducer").mode("append").options(**given(topic)).save()


def stream(df, topic):
    text = str(directory / "text")
    df.selectExpr("cast(id as string) as value").write.mode("overwrite").text(text)
    read = spark.readStream.format("text").load(text)
    value = "if(value = '7', repeat('x', 2000000), value) as value" if "fails" in topic else "value"
    query = read.selectExpr(value).writeStream.format("cyproducer").options(**given(topic))
    query.trigger(availableNow=True).start().awaitTermination(400)


with spark_session(directory) as spark:
    ids = spark.range(0, 12, 1, 2)
    told("batch")
    batch(ids.selectExpr("cast(id % 2 as int) as partition", "'1234567890' as value"), "spark-log-batch")
    told("stream")
    stream(ids.coalesce(1), "spark-log-stream")
    for run in (batch, stream):
        topic = f"spark-log-{run.__name__}-fails"
        told(topic.removeprefix("spark-log-"))
        try:
            bad = "repeat('x', cast(if(id = 7, 2000000, 1) as int)) as value"
            run(ids.coalesce(1).selectExpr(bad) if run is batch else ids.coalesce(1), topic)
        except Exception as error:
            print("failed:", "RowsFailedError: topic " + repr(topic) in str(error), file=sys.stderr)
    told("end")
"""


def test_the_log_reports_written_rows_and_failed_jobs(kafka: KafkaCluster, tmp_path: Path) -> None:
    for name in ("batch", "stream", "batch-fails", "stream-fails"):
        kafka.create_topic(f"spark-log-{name}", 2 if name == "batch" else 1)
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER, kafka.bootstrap_servers, str(tmp_path), str(ROOT)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    parts = re.split(r"^--- ([\w-]+)\n", ran.stderr, flags=re.MULTILINE)
    told = dict(zip(parts[1::2], parts[2::2], strict=True))

    def line(name: str) -> str:
        (found,) = [each for each in told[name].splitlines() if " cyproducer.spark: " in each]
        return found

    assert re.search(
        r"INFO cyproducer\.spark: batch: 12 rows, 120 bytes, 0 retries, p99 \d+\.\d ms, 2 tasks: "
        r"spark-log-batch-0 0\.\.5 \(6\); spark-log-batch-1 0\.\.5 \(6\)$",
        line("batch"),
    )
    assert re.search(
        r"INFO cyproducer\.spark: micro-batch 0: 12 rows, 14 bytes, 0 retries, p99 \d+\.\d ms, 1 tasks: "
        r"spark-log-stream-0 0\.\.11 \(12\)$",
        line("stream"),
    )
    for name, what in (("batch-fails", "batch"), ("stream-fails", "micro-batch 0")):
        assert "failed: True" in told[name]
        assert re.search(
            rf"WARNING cyproducer\.spark: {what} failed: rows that were acknowledged stay in Kafka, "
            r"and are written again when it is retried$",
            line(name),
        )
