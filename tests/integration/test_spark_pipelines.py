"""Tests Spark's declarative pipelines: the page's pipeline, which runs twice, with both guarantees.

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
from tests.pages import blocks, programs
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

PAGE = "docs/spark.md"


def files_of_page(directory: Path, bootstrap: str, topic: str, options: str) -> None:
    """Writes the page's files, for this directory, broker and topic, and with more options of the sink."""
    (specification,) = (block.text for block in blocks(PAGE, "yaml"))
    (flows,) = (text for text in programs(PAGE) if "create_sink(" in text)
    for text, name in ((specification, "spark-pipeline.yml"), (flows, "flows.py")):
        for was, becomes in (
            ("/data/", f"{directory}/"),
            ("localhost:9092", bootstrap),
            ('"topic": "orders"', f'"topic": "{topic}"{options}'),
        ):
            text = text.replace(was, becomes)
        (directory / name).write_text(text)


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


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("", id="at-least-once", marks=pytest.mark.nightly),
        pytest.param(
            ', "deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "spark-pipeline"',
            id="exactly-once",
        ),
    ],
)
def test_each_row_is_written_once_though_the_location_of_the_checkpoint_is_spelled_anew(
    kafka: KafkaCluster, tmp_path: Path, options: str
) -> None:
    topic = f"spark-pipeline-{len(options)}"
    kafka.create_topic(topic, 2)
    files_of_page(tmp_path, kafka.bootstrap_servers, topic, options)
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
        run(tmp_path)
    found = [record.value for record in read_all(kafka.bootstrap_servers, topic, 2)]
    assert sorted(value or b"" for value in found) == [b"0", b"1"]
