"""Tests the page's way to send a virtual environment along, to executors that can't see the driver's files.

The driver runs from a virtual environment in a directory that is empty for the workers of the cluster, which
get an archive of it. The broker is embedded.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyproducer.testing import EmbeddedBroker
from tests.forked import needs_module, needs_proc
from tests.integration.consume import read_all
from tests.integration.spark_standalone import StandaloneSpark, missing_hosts, missing_namespaces
from tests.pages import ROOT, blocks
from tools.harness.spark_session import OURS, QUICK_START

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_module("pyspark"),
    needs_proc,
    pytest.mark.skipif(missing_hosts() is not None, reason=str(missing_hosts())),
    pytest.mark.skipif(missing_namespaces() is not None, reason=str(missing_namespaces())),
]

PACKAGES = ("pyarrow", "numpy", "pandas", "pytz", "dateutil", "six", "tzdata", "cramjam", "backports")
"""What the package and Spark's Arrow need; some of it is not there in each version."""

JOB = """
import os, sys
from pyspark.sql import SparkSession

registers, hidden, bootstrap, topic = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
if registers == "True":
    from cyproducer.spark import register
    register(spark)
(
    spark.range(0, 20, 1, 2).selectExpr("cast(id as string) as value")
    .write.format("cyproducer").mode("append")
    .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic})
    .save()
)
seen = spark.sparkContext.parallelize(range(2), 2).map(lambda _: (os.listdir(hidden), sys.prefix)).collect()
for files, prefix in seen:
    print("executor", files, os.path.basename(prefix), flush=True)
spark.stop()
print("ended well", flush=True)
"""


def link_packages(packages: Path, *names: str) -> None:
    """Links packages of this interpreter, and the libraries that come with them, into a directory."""
    for name in names:
        if (found := importlib.util.find_spec(name)) is None:
            continue
        places = found.submodule_search_locations
        # six, once it is imported, is a module with an empty list of places.
        place = Path(next(iter(places or ()), None) or str(found.origin))
        (packages / place.name).symlink_to(place)
        if (libraries := place.with_name(f"{name}.libs")).exists():
            (packages / libraries.name).symlink_to(libraries)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's directory: a virtual environment in ``venv``, its archive, and the job."""
    directory = tmp_path_factory.mktemp("driver")
    environment = directory / "venv"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    link_packages(packages, *PACKAGES)
    for name in ("cyproducer", "pyspark_cyproducer"):
        shutil.copytree(OURS / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    with tarfile.open(directory / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        for part in ("bin", "pyvenv.cfg"):
            archive.add(environment / part, part)
        archive.dereference = True
        archive.add(packages, str(packages.relative_to(environment)))
    link_packages(packages, "pyspark")
    (directory / "job.py").write_text(JOB)
    return directory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, driver: Path) -> Iterator[StandaloneSpark]:
    with StandaloneSpark(tmp_path_factory.mktemp("cluster"), hidden=driver) as running:
        yield running


def submit(
    driver: Path, cluster: StandaloneSpark, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    import pyspark

    home = Path(pyspark.__file__).parent
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.task.maxFailures": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_START,
    }
    # Nothing of the tests' own interpreter.
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return subprocess.run(
        [
            str(home / "bin" / "spark-submit"),
            *("--master", cluster.master, "--archives", "environment.tar.gz#environment"),
            *("--driver-java-options", QUICK_START),
            *(f"--conf={name}={value}" for name, value in settings.items()),
            "job.py",
            *arguments,
        ],
        cwd=driver,
        env={
            **inherited,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(driver / "local"),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("place", "registers"),
    [
        ("a link", False),
        # Two minutes each.
        pytest.param("a link", True, marks=pytest.mark.nightly),
        pytest.param("the archive", False, marks=pytest.mark.nightly),
        pytest.param("the archive", True, marks=pytest.mark.nightly),
    ],
)
def test_executors_write_with_an_environment_that_is_sent_along(
    driver: Path, cluster: StandaloneSpark, place: str, registers: bool
) -> None:
    """``./environment`` on the driver is a link to its own environment, as on a client, or the unpacked
    archive, as in a driver's container in cluster mode. Spark brings itself along."""
    commands = next(b.text for b in blocks(ROOT / "docs" / "spark.md", "sh") if "--archives" in b.text)
    environment = dict(re.findall(r"^export (\w+)=(\S+)", commands, re.MULTILINE))
    here = driver / "environment"
    if place == "a link":
        assert 'ln -s "$VIRTUAL_ENV" environment' in commands
        here.symlink_to(driver / "venv")
    else:
        with tarfile.open(driver / "environment.tar.gz") as archive:
            archive.extractall(here, filter="fully_trusted")
    topic = f"sent-{registers}-{place.split()[1]}"
    try:
        with EmbeddedBroker() as broker:
            broker.create_topic(topic, 1)
            done = submit(
                driver, cluster, environment, str(registers), str(driver), broker.bootstrap_servers, topic
            )
            assert done.returncode == 0, f"{done.stdout}\n{cluster.logs()}"
            found = [int(r.value or b"-1") for r in read_all(broker.bootstrap_servers, topic, 20)]
    finally:
        if here.is_symlink():
            here.unlink()
        else:
            shutil.rmtree(here)
    assert sorted(found) == list(range(20))
    # They see none of the driver's files.
    assert done.stdout.count("executor [] environment") == 2
