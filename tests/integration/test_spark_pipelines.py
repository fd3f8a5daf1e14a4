"""Tests Spark's declarative pipelines: a sink of this format, exactly-once, in a pipeline that runs twice.

A pipeline runs under Spark Connect and by ``spark-pipelines``, which needs PyYAML. Sinks came with Spark 4.2.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import needs_module
from tests.integration.consume import read_all
from tests.programs import program_environment
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.spark_session import OURS, QUICK_START

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_module("pyspark"),
    needs_module("yaml"),
    needs_module("grpc"),
]

SPECIFICATION = """
name: lines
storage: file://{directory}/storage
libraries:
  - glob:
      include: flows.py
"""

FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

dp.create_sink(
    "orders",
    "cyproducer",
    {{
        "kafka.bootstrap.servers": "{bootstrap}",
        "topic": "{topic}",
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": "{topic}",
    }},
)


@dp.append_flow(target="orders")
def lines():
    return SparkSession.active().readStream.format("text").load("{directory}/in")
"""


def run(directory: Path) -> str:
    """Runs the pipeline, and returns what it says."""
    home = importlib.util.find_spec("pyspark")
    assert home is not None
    assert home.origin is not None
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": directory / "warehouse",
    }
    environment = {
        **program_environment(),
        "PYTHONPATH": str(OURS),
        "PYTHONSAFEPATH": "1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(home.origin).parent),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        # The server takes a free port.
        "SPARK_TESTING": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    done = subprocess.run(
        [
            str(Path(home.origin).parent / "bin" / "spark-pipelines"),
            *("--driver-java-options", QUICK_START),
            *(f"--conf={name}={value}" for name, value in settings.items()),
            *("run", "--spec", str(directory / "spark-pipeline.yml")),
        ],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_each_row_is_written_once_though_the_location_of_the_checkpoint_is_spelled_anew(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "spark-pipeline"
    kafka.create_topic(topic, 2)
    given = {"directory": tmp_path, "bootstrap": kafka.bootstrap_servers, "topic": topic}
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(**given))
    (tmp_path / "flows.py").write_text(FLOWS.format(**given))
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
        run(tmp_path)
    found = [record.value for record in read_all(kafka.bootstrap_servers, topic, 2)]
    assert sorted(value or b"" for value in found) == [b"0", b"1"]
