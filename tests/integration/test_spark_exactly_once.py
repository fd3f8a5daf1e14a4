"""Tests exactly-once from Spark on a real Kafka: a stream whose driver is killed at named steps, jobs and
functions; with a classic session and with Spark Connect, whose server then is what is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import needs_module, needs_proc
from tests.integration.consume import read_all
from tests.integration.spark_once import Stream
from tests.programs import ROOT, Program
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), needs_module("pyspark"), needs_proc]


CLASSIC_AND_CONNECT = [False, pytest.param(True, marks=needs_module("grpc"))]


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


@pytest.mark.slow
@needs_module("grpc")
def test_a_stream_of_spark_connect_is_written_once_though_client_and_server_are_killed(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    kafka.create_topic("spark-connect-once", 3)
    stream = Stream(tmp_path, kafka, "spark-connect-once", batches=3, connect=True)
    for step in ("before the decision", "between two commits"):
        assert (stream.life(step) or "").endswith(step)
    assert stream.life("never") is None
    stream.check()


JOBS = """
import sys
from pathlib import Path

directory, root, bootstrap, topic, connect = Path(sys.argv[1]), *sys.argv[2:]
connect = connect == "True"
# At the end: an installed package comes before the sources.
sys.path.append(root)
from cyproducer.spark import foreach_batch
from tools.harness.spark_session import connect_session, spark_session


def tried(work):
    try:
        work()
    except Exception as error:
        print("raised", " ".join(str(error).split()), flush=True)
    else:
        print("written", flush=True)


with (connect_session if connect else spark_session)(directory / "spark") as spark:
    def job(version, rows, to=topic):
        (
            spark.range(rows).selectExpr(f"concat('job ', {version}, ' ', id) as value")
            .write.format("cyproducer").mode("append")
            .options(**{"kafka.bootstrap.servers": bootstrap, "topic": to})
            .options(deliveryGuarantee="exactly-once", transactionalIdPrefix=topic)
            .options(txnAppId="job", txnVersion=version)
            .save()
        )

    for version, rows in ((1, 100), (1, 100), (3, 50), (2, 100), (3, 60)):
        tried(lambda: job(version, rows))
    tried(lambda: job(3, 50, f"{topic}-other"))

    def function(**more):
        return foreach_batch(
            topic, bootstrap_servers=bootstrap, delivery_guarantee="exactly-once",
            transactional_id_prefix=topic, **more
        )

    def stream(write, checkpoint="checkpoint"):
        def run():
            (
                spark.readStream.format("text").load(str(directory / "in"))
                .writeStream.foreachBatch(write).trigger(availableNow=True)
                .option("checkpointLocation", str(directory / checkpoint))
                .start().awaitTermination()
            )
        tried(run)

    # Spark Connect does not say which query calls it.
    named = {"txn_app_id": "stream"} if connect else {}
    once, twice = function(**named), function(**named)
    # A file: Spark Connect calls a copy in another process.
    failed = directory / "failed"

    def fails_once(df, batch):
        once(df, batch)
        if not failed.exists():
            failed.touch()
            raise ValueError("after the write")

    stream(fails_once)
    stream(fails_once)
    (directory / "in" / "more.txt").write_text("more\\n")

    def collides(df, batch):
        once(df, batch)
        twice(df, batch)

    stream(collides)

    # Spark runs no task for it.
    empty = function(txn_app_id="empty")
    stream(lambda df, batch: empty(df.limit(0), batch), "empty")

    # With Spark Connect, the second would be skipped.
    for checkpoint in () if connect else ("first", "second"):
        stream(function(txn_app_id="named"), checkpoint)

    def at_least_once():
        to = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
        spark.sql("SELECT 'batch' AS value").write.format("cyproducer").mode("append").options(**to).save()
        (
            spark.readStream.format("text").load(str(directory / "in"))
            .selectExpr("concat('again: ', value) AS value")
            .writeStream.format("cyproducer").options(**to).trigger(availableNow=True)
            .option("checkpointLocation", str(directory / "at-least-once"))
            .start().awaitTermination()
        )
    tried(at_least_once)
    try:
        function()
    except ValueError as error:
        print("refused", error, flush=True)
    print("ended well", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("connect", CLASSIC_AND_CONNECT)
def test_jobs_and_functions_write_a_version_once(connect: bool, kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = f"spark-once-jobs-{connect}"
    kafka.create_topic(topic, 2)
    kafka.create_topic(f"{topic}-other", 1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "some.txt").write_text("some\n")
    with Program(JOBS, str(tmp_path), str(ROOT), kafka.bootstrap_servers, topic, str(connect)) as program:
        program.hear("ended well")
        assert program.end() == 0
    said = [line for line in program.said.splitlines() if line.startswith(("written", "raised"))]
    assert [line.split()[0] for line in said] == [
        *("written", "written", "written", "raised", "raised", "raised"),
        *("raised", "written", "raised"),
        "written",
        *(() if connect else ("written", "raised")),
        "written",
    ]
    assert "txnVersion 2 comes after 3 was written" in said[3]
    assert "batch 3 was written with 50 rows, and now it has 60" in said[4]
    assert f"written to topic {topic!r}, and this write is to topic '{topic}-other'" in said[5]
    assert "after the write" in said[6]
    assert "two functions write batch 1 under this name" in said[8]
    assert connect or "a query with a new checkpoint needs a new name" in said[11]
    # Where the default name can't be made, the function says so at once.
    assert ("refused" in program.said) == connect
    values = sorted((record.value or b"").decode() for record in read_all(kafka.bootstrap_servers, topic, 0))
    wanted = [f"job {version} {row}" for version, rows in ((1, 100), (3, 50)) for row in range(rows)]
    wanted += ["some", "more"] * (1 if connect else 2)
    assert values == sorted([*wanted, "batch", "again: some", "again: more"])
