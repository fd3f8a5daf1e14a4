"""Tests exactly-once from Spark on a real Kafka: a stream whose driver is killed at named steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import needs_module, needs_proc
from tests.integration.consume import read_all
from tests.integration.spark_once import Stream
from tests.programs import ROOT, Program
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), needs_module("pyspark"), needs_proc]


@pytest.mark.slow
def test_a_stream_is_written_once_though_its_driver_is_killed_at_each_kind_of_step(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    kafka.create_topic("spark-once", 3)
    stream = Stream(tmp_path, kafka, "spark-once", batches=6)
    for step in (
        "after a task has prepared",
        "before the decision",
        "after the decision",
        "between two commits",
        "after done",
    ):
        assert (stream.life(step) or "").endswith(step)
    assert stream.life("never") is None
    stream.check()


JOBS = """
import sys
from pathlib import Path

directory, root, bootstrap, topic = Path(sys.argv[1]), *sys.argv[2:]
# At the end: an installed package comes before the sources.
sys.path.append(root)
from cyproducer.spark import foreach_batch
from tools.harness.spark_session import spark_session


def tried(work):
    try:
        work()
    except Exception as error:
        print("raised", " ".join(str(error).split()), flush=True)
    else:
        print("written", flush=True)


with spark_session(directory / "spark") as spark:
    def job(version, rows):
        (
            spark.range(rows).selectExpr(f"concat('job ', {version}, ' ', id) as value")
            .write.format("cyproducer").mode("append")
            .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic})
            .options(deliveryGuarantee="exactly-once", transactionalIdPrefix=topic)
            .options(txnAppId="job", txnVersion=version)
            .save()
        )

    for version, rows in ((1, 100), (1, 100), (3, 50), (2, 100), (3, 60)):
        tried(lambda: job(version, rows))

    def function(**more):
        return foreach_batch(
            topic, bootstrap_servers=bootstrap, delivery_guarantee="exactly-once",
            transactional_id_prefix=topic, **more
        )

    def stream(write):
        def run():
            (
                spark.readStream.format("text").load(str(directory / "in"))
                .writeStream.foreachBatch(write).trigger(availableNow=True)
                .option("checkpointLocation", str(directory / "checkpoint"))
                .start().awaitTermination()
            )
        tried(run)

    once, twice = function(), function()
    failures = [ValueError("after the write")]

    def fails_once(df, batch):
        once(df, batch)
        while failures:
            raise failures.pop()

    stream(fails_once)
    stream(fails_once)
    (directory / "in" / "more.txt").write_text("more\\n")

    def collides(df, batch):
        once(df, batch)
        twice(df, batch)

    stream(collides)
    print("ended well", flush=True)
"""


@pytest.mark.slow
def test_jobs_and_functions_write_a_version_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "spark-once-jobs"
    kafka.create_topic(topic, 2)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "some.txt").write_text("some\n")
    with Program(JOBS, str(tmp_path), str(ROOT), kafka.bootstrap_servers, topic) as program:
        program.hear("ended well")
        assert program.end() == 0
    said = [line for line in program.said.splitlines() if line.startswith(("written", "raised"))]
    assert [line.split()[0] for line in said] == [
        *("written", "written", "written", "raised", "raised"),
        *("raised", "written", "raised"),
    ]
    assert "txnVersion 2 comes after 3 was written" in said[3]
    assert "batch 3 was written with 50 rows, and now it has 60" in said[4]
    assert "after the write" in said[5]
    assert "two functions write batch 1 under this name" in said[7]
    values = sorted((record.value or b"").decode() for record in read_all(kafka.bootstrap_servers, topic, 0))
    wanted = [f"job {version} {row}" for version, rows in ((1, 100), (3, 50)) for row in range(rows)]
    assert values == sorted([*wanted, "some", "more"])
