"""Runs the workloads in valgrind and reads callgrind's counts. Linux only. Blocks for about 15 s.

Owns the command, its environment and its files. Does not own the workloads (``workloads``) or the comparison
(``bounds``).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from perf.compile_c import CompileError, compiled, compiler

HERE = Path(__file__).parent
TIMEOUT_S = 600.0
_TRIGGER = re.compile(r"^desc: Trigger: Client Request: (.+)\|(\d+)$", re.MULTILINE)
_TOTAL = re.compile(r"^totals: (\d+)$", re.MULTILINE)


class CountingError(Exception):
    """valgrind or the program that it ran failed. The message has their output."""


@dataclass
class Counts:
    """The counts of one run."""

    per_record: dict[str, float] = field(default_factory=dict)
    """Workload -> instructions."""
    skipped: list[str] = field(default_factory=list)
    """``workload: reason`` for workloads that could not be run."""


def unavailable() -> str | None:
    """Returns why this machine can't count, or None."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed"
    if compiler() is None:
        return "there is no C compiler: cc, gcc, clang, or one named by $CC"
    try:
        compiled(HERE / "callgrind.c", shared=True)
    except CompileError as error:
        return f"valgrind's header callgrind.h is missing or does not compile: {error}"
    return None


def count() -> Counts:
    """Runs all workloads once.

    Raises:
        CountingError: valgrind is not available, or it or the workloads failed.
    """
    if problem := unavailable():
        raise CountingError(problem)
    library = compiled(HERE / "callgrind.c", shared=True)
    # A fixed environment: hash order and the size of the environment on the stack affect the counts.
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith("CYPRODUCER_")},
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C",
        # Keeps freed memory in per-size lists. Otherwise the cost of malloc and free depends on neighbouring
        # blocks, and so on the length of any string in any module: 5% of a batch.
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=60000",
    }
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
            f"--callgrind-out-file={directory}/out",
            *(sys.executable, "-P", str(HERE / "workloads.py"), str(library)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise CountingError(f"still running after {TIMEOUT_S:.0f} s: {' '.join(command)}") from error
        if done.returncode:
            raise CountingError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
        dumps = [path.read_text() for path in Path(directory).iterdir()]
    return Counts(per_record(dumps), done.stdout.splitlines())


def per_record(dumps: Iterable[str]) -> dict[str, float]:
    """Returns instructions per record by workload, from callgrind's files.

    Each workload has a file for N records and one for 2 N. Their difference is the cost of N records, without
    one-time costs such as a ctypes call or a batch that was already open.

    Raises:
        CountingError: a workload does not have exactly two files, or the larger one is not for 2 N records.
    """
    found: dict[str, dict[int, int]] = {}
    for text in dumps:
        named, total = _TRIGGER.search(text), _TOTAL.search(text)
        if named and total:
            found.setdefault(named[1], {})[int(named[2])] = int(total[1])
    counts = {}
    for name, by_size in found.items():
        sizes = sorted(by_size)
        if len(sizes) != 2 or sizes[1] != 2 * sizes[0]:
            raise CountingError(f"{name} was counted with {sizes} records, not with N and 2 N")
        counts[name] = (by_size[sizes[1]] - by_size[sizes[0]]) / sizes[0]
    return counts
