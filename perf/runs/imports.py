"""Measures the cost of importing a package, in new interpreters."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from perf.runs.measuring import Args, Figures

TIMES = 5
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, time
sys.path.append({root!r})
cpu, wall = time.process_time(), time.perf_counter()
import {module}
print([(time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3])
"""


def imported(module: str) -> Figures:
    """Returns the median of several imports, after one that fills the bytecode and file caches."""
    program = PROGRAM.format(root=str(ROOT), module=module)
    # Bytecode must be cached, as it is for installed packages.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken = [
        json.loads(subprocess.check_output([sys.executable, "-P", "-c", program], env=environment))
        for _ in range(TIMES + 1)
    ][1:]
    wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
    return {"import_ms": wall, "import_cpu_ms": cpu}


def own(_args: Args) -> Figures:
    return imported("cyproducer")


def confluent(_args: Args) -> Figures:
    return imported("confluent_kafka")


def kafka_python(_args: Args) -> Figures:
    return imported("kafka")
