"""Counts the instructions of a record, and those of them that run while a mutex is held.

    python -P perf/micro/locks.py

What threads of different partitions share is behind mutexes: the accumulator's, the pool's, the completion
list's. Their part of a record's instructions is what Amdahl's law calls serial, and limits how many threads
can send side by side without a GIL. Runs itself inside valgrind, in one thread and without a network, as the
gate does (``perf/gate``). Instructions in the kernel, waits, and memory that passes between cores are not
counted. Linux only; takes about 20 s.
"""

import ctypes
import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from perf.compile_c import compiled
from perf.gate.workloads import TOPIC, VALUE, Workload

RECORDS = 40_000
KEYS = [b"k%04d" % number for number in range(1_000)]
WAYS: dict[str, tuple[int, Callable[[Workload], None]]] = {}
"""Name -> the number of partitions, and the function that sends ``RECORDS`` records."""
_TOTAL = re.compile(r"^totals: (\d+)$", re.MULTILINE)


def way(name: str, partitions: int) -> Callable[[Callable[[Workload], None]], Callable[[Workload], None]]:
    def noted(function: Callable[[Workload], None]) -> Callable[[Workload], None]:
        WAYS[name] = partitions, function
        return function

    return noted


@way("one partition, given", 8)
def _given(work: Workload) -> None:
    send = work.rig.path.send
    for _ in repeat(None, RECORDS):
        send(TOPIC, VALUE, partition=3)


@way("keys, 8 partitions", 8)
def _keyed(work: Workload) -> None:
    send = work.rig.path.send
    for _ in repeat(None, RECORDS // len(KEYS)):
        for key in KEYS:
            send(TOPIC, VALUE, key)


@way("no key, 8 partitions", 8)
def _keyless(work: Workload) -> None:
    send = work.rig.path.send
    for _ in repeat(None, RECORDS):
        send(TOPIC, VALUE)


def inside() -> None:
    """Runs in valgrind: writes a file of counts for each way, part and kind."""
    library = ctypes.PyDLL(os.environ["LD_PRELOAD"].rpartition(":")[2])
    gc.disable()
    library.locks_instrument()
    for name, (partitions, function) in WAYS.items():
        work = Workload(partitions)
        function(work)
        work.steps()
        for only in (0, 1):
            library.locks_begin(only)
            function(work)
            locked = library.locks_end()
            library.locks_dump(f"{name}|send|{only}|{locked}".encode())
            # The sender's steps, and the broker's end of the connection, which has no mutex.
            sender = Counted(library, only)
            work.steps(sender)  # type: ignore[arg-type]
            library.locks_dump(f"{name}|sender|{only}|{sender.locked}".encode())


class Counted:
    """Counts the sender's steps, as ``Callgrind`` of the gate does."""

    def __init__(self, library: ctypes.PyDLL, only: int) -> None:
        self.library, self.only, self.locked = library, only, 0

    def counted(self) -> "Counted":
        return self

    def __enter__(self) -> None:
        self.library.locks_begin(self.only)

    def __exit__(self, *_: object) -> None:
        self.locked += self.library.locks_end()


def outside() -> None:
    library = compiled(Path(__file__).with_name("locks.c"), shared=True)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [
                *("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
                f"--callgrind-out-file={directory}/out",
                *(sys.executable, "-P", str(Path(__file__)), "inside"),
            ],
            env={**os.environ, "LD_PRELOAD": str(library), "PYTHONHASHSEED": "0"},
            check=True,
        )
        found: dict[tuple[str, str, int], tuple[float, float]] = {}
        for path in Path(directory).iterdir():
            text = path.read_text()
            named = re.search(r"^desc: Trigger: Client Request: (.+)\|(.+)\|(.)\|(\d+)$", text, re.MULTILINE)
            total = _TOTAL.search(text)
            if named and total:
                found[named[1], named[2], int(named[3])] = int(total[1]) / RECORDS, int(named[4]) / RECORDS
    print(f"{'':24}{'part':8}{'per record':>12}{'under mutexes':>15}{'share':>8}{'locked':>9}")
    for name in WAYS:
        for part in ("send", "sender"):
            every, locked = found[name, part, 0]
            held, _ = found[name, part, 1]
            print(f"{name:24}{part:8}{every:12.1f}{held:15.2f}{held / every:8.2%}{locked:9.4f}")


if __name__ == "__main__":
    inside() if sys.argv[1:] == ["inside"] else outside()
