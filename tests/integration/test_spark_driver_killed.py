"""A stream whose driver is killed, Python's process and the JVM, again and again: it goes on from its
checkpoint, loses nothing, and writes only those micro-batches twice that the checkpoint did not know of."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.forked import needs_module, needs_proc
from tests.integration.kafka_cluster import KafkaCluster
from tests.integration.process_table import GONE_S, ProcessInfo, below, processes
from tests.integration.spark_faults import PARTITIONS, Signals, found, until_written, value
from tests.programs import ROOT, Program
from tests.until import looks

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_module("pyspark"),
    needs_proc,
]

BATCHES = 4
FILES = 2
"""In each micro-batch, and so many tasks."""
ROWS = 4_000
"""Of a file."""

DRIVER = """
import atexit, os, sys, time
from pathlib import Path

directory, root, bootstrap, topic, life = Path(sys.argv[1]), *sys.argv[2:]
# Nobody who is killed gets there. Who waits for this driver need not wait on.
atexit.register((directory / "broken").touch)
# At the end: an installed package comes before the sources.
sys.path.append(root)
from tests.integration.spark_session import spark_session

# Where the callback is.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))


def rows(batches):
    # Whoever waits here waits to be killed.
    for batch in batches:
        first = batch.column(0)[0].as_py().split() if batch.num_rows else ("", "")
        if life == "planned" and first[0] == "2":
            (directory / f"planned-{first[1]}").touch()
            time.sleep(600)
        yield batch
        if life == "midway" and first[0] == "1" and first[1] == "6000":
            # The second task gets no further. Rows before these fill the buffers on their way.
            time.sleep(600)


more = {"summaryCallback": "hold:before_note"} if life == "before-note" else {}
# So few in a batch of Arrow's that the first ones are written while the task runs; what is no full batch of
# Kafka's, only as the task ends.
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
    # The first micro-batch of this driver: what was written of it is acknowledged, and Spark does not know.
    Path(DIRECTORY, "all-written").touch()
    time.sleep(600)
"""


def of_session(leader: int) -> list[ProcessInfo]:
    """What a program has started, also where its parent is gone: nobody there leaves the session."""
    return [each for each in processes() if each.session == leader]


def kill_driver(driver: Program) -> None:
    """Kills Python's process and its JVM, nothing else, and asserts that the workers go by themselves."""
    (jvm,) = (each for each in below(driver.pid) if "org.apache.spark.deploy.SparkSubmit" in each.command)
    workers = [each for each in of_session(driver.pid) if each.pid not in (driver.pid, jvm.pid)]
    assert any("pyspark.daemon" in each.command for each in workers), workers
    for pid in (jvm.pid, driver.pid):
        os.kill(pid, signal.SIGKILL)
    left: list[ProcessInfo] = []
    for _ in looks(GONE_S):
        if not (left := of_session(driver.pid)):
            return
    for each in left:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    raise AssertionError(f"{GONE_S:.0f} s after the driver was killed there are still {left}")


def noted(directory: Path, what: str) -> list[int]:
    """The micro-batches in a part of the checkpoint: ``offsets``, that were planned, or ``commits``, that
    ended."""
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
        # The stream takes the oldest ones first.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    script = DRIVER.replace("FILES", str(FILES))
    told = (str(tmp_path), str(ROOT), kafka.bootstrap_servers, topic)

    # While the second micro-batch is being written: one task may have ended, the other one never will.
    with Program(script, *told, "midway") as driver:
        until_written(kafka.bootstrap_servers, topic, each + ROWS + 1, signals)
        kill_driver(driver)
    assert (noted(tmp_path, "offsets"), noted(tmp_path, "commits")) == ([0, 1], [0])

    # When the second one is written, and nobody has noted it.
    with Program(script, *told, "before-note") as driver:
        signals.wait("all-written")
        kill_driver(driver)
    assert (noted(tmp_path, "offsets"), noted(tmp_path, "commits")) == ([0, 1], [0])

    # When the second one is noted, the third one is planned, and its tasks have begun.
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
    # The second one was written to its end twice, and the first of it once more before that.
    assert set(there.pop(1).values()) == {2, 3}
    assert {batch: set(times.values()) for batch, times in there.items()} == {0: {1}, 2: {1}, 3: {1}}
