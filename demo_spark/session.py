"""Starts a local Spark for the demo, and for the drivers that it kills.

Owns the session's settings and the environment of Spark's processes. Runs on the main thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo_spark import pipeline, summaries
from tools.harness.spark_session import OURS, spark_session

ROOT = Path(__file__).resolve().parents[1]
DRIVER_MEMORY = "2g"


def environment(directory: Path) -> dict[str, str]:
    """Returns the variables that Spark's processes need, to import this package and to keep summaries in
    ``directory``."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    return {
        "PYTHONPATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1",
        summaries.FILE_VARIABLE: str(directory / "summaries"),
    }


def driver_environment(directory: Path) -> dict[str, str]:
    """Returns the whole environment of a driver process: it imports the same packages as this one, and writes
    temporary files below ``directory`` only, where they go with it if it is killed."""
    own = environment(directory)
    own["PYTHONPATH"] = os.pathsep.join([str(OURS), own["PYTHONPATH"]])
    return {**os.environ, **own, "PYTHONSAFEPATH": "1", "TMPDIR": str(directory)}


@contextlib.contextmanager
def local_spark(directory: Path) -> Iterator[Any]:
    """Runs a local Spark on all cores, below ``directory``."""
    settings = {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.ui.showConsoleProgress": "false",
        **pipeline.SCAN_SETTINGS,
    }
    named = {name.replace(".", "__"): value for name, value in settings.items()}
    with spark_session(directory, "local[*]", **named) as spark:
        yield spark


@contextlib.contextmanager
def quiet_spark(directory: Path, log: Path) -> Iterator[Any]:
    """As `local_spark`, and its processes write to ``log``, so that they do not disturb the progress bar."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(environment(directory)))
        with _stderr_to(log):
            spark = stack.enter_context(local_spark(directory))
        yield spark


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Processes that are started in the block write their standard error to ``path``."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(path, "ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
