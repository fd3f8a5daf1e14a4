"""Tests producers in the Python workers of a real Spark: created before its daemon forks, and sent in a
closure.

The brokers are embedded. The tests have the marker of the tests with a real Kafka because Spark also needs
Java, and is too large to be installed for every Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import cyproducer
from cyproducer.testing import EmbeddedBroker
from tests.forked import needs_module
from tests.reading import PARTITIONS, read_back

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240), needs_module("pyspark")]

OURS = Path(cyproducer.__file__).parents[1]
"""The directory of the package under test, installed or built in place."""

# Records linger for longer than the test may take: they are sent only by flush() or close().
PRELOADED = """
import os
from cyproducer import KafkaProducer
options = dict(
    bootstrap_servers=os.environ["BROKERS"],
    linger_ms=300_000,
    delivery_timeout_ms=600_000,
    close_timeout_ms=30_000,
)
"""

MADE_IN_DAEMON = """
import os
from cyproducer import KafkaProducer
from options import options
made_by = os.getpid()
producer = KafkaProducer(**options)
producer.send("rows", b"daemon's")
producer.flush()
"""

DAEMON = """
import made_in_daemon
from pyspark.daemon import manager
manager()
"""

JOBS = """
import json, os
from pyspark.sql import SparkSession
from cyproducer import KafkaProducer
from options import options

settings = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "preloading_daemon",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def run(numbers, function):
    return spark.sparkContext.parallelize(numbers, 4).mapPartitions(function).collect()

def send_with_the_daemons(rows):
    import made_in_daemon
    for row in rows:
        made_in_daemon.producer.send("rows", b"preloaded %d" % row)
    made_in_daemon.producer.flush()
    # The first task in this worker created the runtime. Later tasks use the same one.
    yield os.getpid(), made_in_daemon.made_by, id(made_in_daemon.producer._running)

first = run(range(20), send_with_the_daemons)
second = run(range(20, 40), send_with_the_daemons)

pickled = KafkaProducer(**options)
pickled.send("rows", b"driver's")

def send_with_the_closures(rows):
    for row in rows:
        pickled.send("rows", b"pickled %d" % row)
    pickled.flush()
    yield os.getpid()

def return_futures(rows):
    for row in rows:
        yield pickled.send("other", b"%d" % row)

closures = run(range(20), send_with_the_closures)
try:
    run(range(4), return_futures)
    error = ""
except Exception as raised:
    error = str(raised)
spark.stop()
print(json.dumps([first, second, closures, os.getpid(), error]))
"""


def run_jobs(broker: EmbeddedBroker, directory: Path) -> Any:
    programs = {
        "options": PRELOADED,
        "made_in_daemon": MADE_IN_DAEMON,
        "preloading_daemon": DAEMON,
        "jobs": JOBS,
    }
    for name, text in programs.items():
        (directory / f"{name}.py").write_text(text)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", directory / "jobs.py"],
        cwd=directory,
        env={
            **os.environ,
            "BROKERS": broker.bootstrap_servers,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(directory), str(OURS)]),
            "SPARK_LOCAL_DIRS": str(directory),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_pyspark_workers_send_with_the_daemons_producer_and_with_a_pickled_one(tmp_path: Path) -> None:
    with EmbeddedBroker(brokers=2) as broker:
        broker.create_topic("rows", PARTITIONS)
        first, second, closures, driver, error = run_jobs(broker, tmp_path)
        values = [b"daemon's", b"driver's"]
        values += [b"preloaded %d" % row for row in range(40)]
        values += [b"pickled %d" % row for row in range(20)]
        assert read_back(broker, "rows", len(values)) == Counter(values)
    workers = {pid for pid, _, _ in first + second}
    # One daemon created the producer, and it is not one of the workers.
    assert len({made_by for _, made_by, _ in first + second}) == 1
    assert not workers & {driver, first[0][1]}
    assert len(first + second) == 8 > len(workers)
    assert len({(pid, runtime) for pid, _, runtime in first + second}) == len(workers)
    assert driver not in closures
    assert "the future of a record for topic 'other' can't be pickled" in error
