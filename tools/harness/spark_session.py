"""A Spark session for tests: local, two threads, bound to loopback. Its workers can import the package under
test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import cyproducer

OURS = Path(cyproducer.__file__).parents[1]
"""The directory of the package under test, installed or built in place."""

QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
"""JVM options for a short life on few cores."""


def spark_session(directory: Path, master: str = "local[2]", **settings: str) -> AbstractContextManager[Any]:
    """Runs one session, and stops it with its JVM at the end, also if the main thread is interrupted.
    ``settings`` have two underscores for each dot. The JVM's files, which stay if it is killed, are below
    ``directory``."""
    return _session(directory, master, False, settings)


def connect_session(directory: Path, **settings: str) -> AbstractContextManager[Any]:
    """As ``spark_session``, of Spark Connect; its server is in this program's JVM."""
    return _session(directory, "local[2]", True, settings)


@contextmanager
def _session(directory: Path, master: str, connect: bool, settings: Mapping[str, str]) -> Iterator[Any]:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(master) if connect else SparkSession.builder.master(master)
    builder = builder.appName("cyproducer's tests")
    temporary = directory / "temporary"
    temporary.mkdir(parents=True, exist_ok=True)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.defaultJavaOptions": f"-XX:-UsePerfData -Djava.io.tmpdir={temporary}",
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        **({"spark.connect.grpc.binding.address": "127.0.0.1"} if connect else {}),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "4",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        **{name.replace("__", "."): value for name, value in settings.items()},
    }.items():
        builder = builder.config(name, value)
    changed = ("PYTHONPATH", "PYTHONSAFEPATH", "PYSPARK_PYTHON", "SPARK_TESTING")
    before = {name: os.environ.get(name) for name in changed}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(OURS), *filter(None, [before["PYTHONPATH"]])])
    # Spark starts workers with `python -m`, which puts the working directory first on sys.path: in a clone of
    # this project, it has sources without extensions.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if connect:
        # Spark Connect takes a free port only with this variable. Its own port may be in use.
        os.environ["SPARK_TESTING"] = "1"
    try:
        interrupt = signal.getsignal(signal.SIGINT)
        spark = builder.getOrCreate()
        # Spark's handler of SIGINT sends a command to the JVM. The thread that it interrupts may wait for the
        # reply to another command on the same connection, so the handler gets that reply, and each later
        # command gets the reply to the one before it: `stop` can wait for ever.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)
        gateway: Any = SparkContext._gateway
        usable = True
        try:
            yield spark
        except KeyboardInterrupt:
            # For the same reason, no command can be sent now.
            usable = False
            raise
        finally:
            if usable:
                spark.stop()
                gateway.shutdown()
            _wait_for_end(gateway.proc)
            SparkContext._gateway = SparkContext._jvm = None
    finally:
        for name, was in before.items():
            if was is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = was


def _wait_for_end(jvm: subprocess.Popen[bytes]) -> None:
    """Ends a JVM of Spark: it exits at the end of its standard input."""
    assert jvm.stdin is not None
    jvm.stdin.close()
    try:
        jvm.wait(30)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
