"""Runs the workloads in valgrind and reads what callgrind counted. Linux; the caller's thread, about 15 s.

Owns: the command, its environment, and its files. Does not own: what is run (``workloads``), what is made of
it (``bounds``).
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
    """valgrind or what it ran failed; the message has what they said."""


@dataclass
class Counts:
    """What one run found."""

    per_record: dict[str, float] = field(default_factory=dict)
    """Workload -> instructions."""
    skipped: list[str] = field(default_factory=list)
    """``workload: why`` for those that could not be run."""


def unavailable() -> str | None:
    """Why nothing can be counted on this machine, or None."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed"
    if compiler() is None:
        return "there is no C compiler: cc, gcc, clang, or one named by $CC"
    try:
        compiled(HERE / "callgrind.c", shared=True)
    except CompileError as error:
        return f"valgrind's header for programs is missing or does not compile: {error}"
    return None


def count() -> Counts:
    """Runs all workloads once.

    Raises:
        CountingError: see there.
    """
    if problem := unavailable():
        raise CountingError(problem)
    library = compiled(HERE / "callgrind.c", shared=True)
    # The order of sets and dicts of strings, and the sizes of paths on the stack, stay as they are.
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith("CYPRODUCER_")},
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C",
        # Freed memory is kept by size, and comes back as it went. Else what malloc and free take depends on
        # what lies beside it, hence on the length of any text in any module: 5 % of a batch.
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
            raise CountingError(f"no end after {TIMEOUT_S:.0f} s: {' '.join(command)}") from error
        if done.returncode:
            raise CountingError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        dumps = [path.read_text() for path in Path(directory).iterdir()]
    return Counts(per_record(dumps), done.stdout.splitlines())


def per_record(dumps: Iterable[str]) -> dict[str, float]:
    """Instructions per record by workload, of callgrind's files.

    Of each workload there is a file for N records and one for 2 N: their difference is what N records cost,
    and what comes once (a call of ctypes, a batch begun before) is in neither.

    Raises:
        CountingError: a workload has not got its two files, or the larger one is not of twice as many.
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
