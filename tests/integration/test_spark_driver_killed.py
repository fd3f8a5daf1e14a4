"""Tests a stream whose driver (Python process and JVM) is killed repeatedly: it continues from its
checkpoint, loses nothing, and writes only those micro-batches twice that were not in the checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.forked import needs_module, needs_proc
from tests.integration.process_table import below, of_session, until_none
from tests.integration.spark_faults import PARTITIONS, Signals, found, until_written, value
from tests.programs import ROOT, Program
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_module("pyspark"),
    needs_proc,
]

BATCHES = 4
FILES = 2
"""Files, and so tasks, per micro-batch."""
ROWS = 4_000
"""Rows per file."""

DRIVER = """
import atexit, os, sys, time
from pathlib import Path

directory, root, bootstrap, topic, life = Path(sys.argv[1]), *sys.argv[2:]
# Not reached if the driver is killed. Otherwise, makes the test stop waiting for this driver.
atexit.register((directory / "broken").touch)
# At the end: an installed package comes before the sources.
sys.path.append(root)
from tools.harness.spark_session import spark_session

# For the callback's module.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))


def rows(batches):
    # The sleeps wait to be killed.
    for batch in batches:
        first = batch.column(0)[0].as_py().split() if batch.num_rows else ("", "")
        if life == "planned" and first[0] == "2":
            (directory / f"planned-{first[1]}").touch()
            time.sleep(600)
        yield batch
        if life == "midway" and first[0] == "1" and first[1] == "6000":
            # The second task stops here. The rows before these fill the buffers in between.
            time.sleep(600)


more = {"summaryCallback": "hold:before_note"} if life == "before-note" else {}
# Small Arrow batches, so that the first rows are written while the task runs. Incomplete Kafka batches are
# only sent at the end of the task.
more |= {"kafka.batch.size": "16384", "kafka.linger.ms": "300000", "kafka.delivery.timeout.ms": "400000"}
with spark_session(directory / "spark", **{"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}) as spark:
    query = (
        spark.readStream.format("text").option("maxFilesPerTrigger", FILES).load(str(directory / "in"))
        .mapInArrow(rows, "value string")
        .writeStream.format("cyproducer")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}, **more)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("ended well", flush=True)
"""

HOLD = """
import time
from pathlib import Path

def before_note(summary):
    # The first micro-batch of this driver: its rows are acknowledged, but Spark has not committed it.
    Path(DIRECTORY, "all-written").touch()
    time.sleep(600)
"""


def kill_driver(driver: Program) -> None:
    """Kills the driver's Python process and its JVM, and checks that the workers exit by themselves."""
    (jvm,) = (each for each in below(driver.pid) if "org.apache.spark.deploy.SparkSubmit" in each.command)
    workers = [each for each in of_session(driver.pid) if each.pid not in (driver.pid, jvm.pid)]
    assert any("pyspark.daemon" in each.command for each in workers), workers
    for pid in (jvm.pid, driver.pid):
        os.kill(pid, signal.SIGKILL)
    until_none(lambda: of_session(driver.pid), "the driver was killed, and its processes are")


def noted(directory: Path, what: str) -> list[int]:
    """Returns the micro-batches in a part of the checkpoint: ``offsets`` (planned) or ``commits``
    (completed)."""
    return sorted(int(path.name) for path in (directory / "checkpoint" / what).glob("[0-9]*"))


def test_a_stream_loses_nothing_when_its_driver_is_killed_again_and_again(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic, signals, each = "spark-driver-killed", Signals(tmp_path), FILES * ROWS
    kafka.create_topic(topic, PARTITIONS)
    (tmp_path / "in").mkdir()
    (tmp_path / "hold.py").write_text(HOLD.replace("DIRECTORY", repr(str(tmp_path))))
    for number in range(BATCHES * FILES):
        batch, start = number // FILES, number % FILES * ROWS
        file = tmp_path / "in" / f"{number}.txt"
        file.write_text("".join(f"{value(batch, row)}\n" for row in range(start, start + ROWS)))
        # The stream reads the oldest files first.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    script = DRIVER.replace("FILES", str(FILES))
    told = (str(tmp_path), str(ROOT), kafka.bootstrap_servers, topic)

    # Killed while the second micro-batch is written: one task may have ended, the other never does.
    with Program(script, *told, "midway") as driver:
        until_written(kafka.bootstrap_servers, topic, each + ROWS + 1, signals)
        kill_driver(driver)
    assert (noted(tmp_path, "offsets"), noted(tmp_path, "commits")) == ([0, 1], [0])

    # Killed when the second one is written, but not in the checkpoint.
    with Program(script, *told, "before-note") as driver:
        signals.wait("all-written")
        kill_driver(driver)
    assert (noted(tmp_path, "offsets"), noted(tmp_path, "commits")) == ([0, 1], [0])

    # Killed when the second one is in the checkpoint, and the tasks of the third have begun.
    with Program(script, *told, "planned") as driver:
        for row in range(0, each, ROWS):
            signals.wait(f"planned-{row}")
        kill_driver(driver)
    assert (noted(tmp_path, "offsets"), noted(tmp_path, "commits")) == ([0, 1, 2], [0, 1])

    with Program(script, *told, "to its end") as driver:
        driver.hear("ended well")
        assert driver.end() == 0
    assert noted(tmp_path, "commits") == list(range(BATCHES))

    there = found(kafka.bootstrap_servers, topic, BATCHES * each)
    assert sorted(there) == list(range(BATCHES))
    for times in there.values():
        assert sorted(times) == list(range(each))
    # The second one was written completely twice, and its first rows once more before that.
    assert set(there.pop(1).values()) == {2, 3}
    assert {batch: set(times.values()) for batch, times in there.items()} == {0: {1}, 2: {1}, 3: {1}}
