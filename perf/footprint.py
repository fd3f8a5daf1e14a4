"""What this process occupies: memory, threads, descriptors. Linux, since it tells in /proc. Any thread."""

import ctypes
import gc
import os
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

LEFT_BYTES = 200_000
LEFT_BLOCKS = 3000
"""How much more the C heap, and Python's, may hold after a producer than before it: what is loaded late."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most that this process's program occupied so far.

    Not getrusage's, which begins with what the process that started this one occupied.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


class _Mallinfo2(ctypes.Structure):
    # By malloc.h: all of the same type.
    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


class Held(NamedTuple):
    """What is allocated, to the byte: resident memory also has what allocators keep for later."""

    bytes: int
    blocks: int
    """Python's objects."""

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        return cls(heap_bytes(), sys.getallocatedblocks())

    def grew(self, after: "Held") -> bool:
        return after.bytes - self.bytes > LEFT_BYTES or after.blocks - self.blocks > LEFT_BLOCKS


def heap_bytes() -> int:
    """What malloc has given out, where the C library is glibc and tells; else 0."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def descriptors() -> int:
    # The listing's own one is among them, always.
    return len(os.listdir("/proc/self/fd"))


def threads(at_most: int = 0) -> int:
    """The process's, as the system counts them: those of libraries too.

    One that was joined may still be on its way out: up to two seconds are given to come down to ``at_most``.
    """
    deadline = time.monotonic() + 2
    while (count := len(os.listdir("/proc/self/task"))) > at_most > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    return count


class Medians(NamedTuple):
    """Of the samples of some part of a run; NaN where there are none."""

    resident: float
    """Bytes of this process in memory."""
    heap: float
    """See ``heap_bytes``."""
    pool: float
    """Of the heap, what buffers for records occupy."""
    rest: float
    """Of the heap, all else: the median of the differences."""


class Memory(threading.Thread):
    """Takes samples of memory, each with how many records were sent by then, and what a pool occupies."""

    def __init__(self, sent: Callable[[], int], every_s: float, pool: Callable[[], int] = int) -> None:
        super().__init__(name="soak-memory", daemon=True)
        self.sent, self.of_pool, self.every_s = sent, pool, every_s
        self.at, self.resident, self.heap, self.pool = array("q"), array("q"), array("q"), array("q")
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self.every_s):
            self.at.append(self.sent())
            self.resident.append(resident_bytes())
            self.heap.append(heap_bytes())
            self.pool.append(self.of_pool())

    def stop(self) -> None:
        self._over.set()
        self.join()
        # And the pool with it, which is to be freed when its producer is.
        del self.of_pool

    def medians(self, first: float, last: float) -> Medians:
        """Of the samples taken between these numbers of records."""
        rest = [heap - pool for heap, pool in zip(self.heap, self.pool, strict=True)]
        taken = [number for number, at in enumerate(self.at) if first <= at <= last]
        if not taken:
            return Medians(*[float("nan")] * len(Medians._fields))
        kinds = (self.resident, self.heap, self.pool, rest)
        return Medians(*(statistics.median(kind[n] for n in taken) for kind in kinds))

    def course(self, points: int) -> list[tuple[int, int, int, int]]:
        """So many of the samples at most, evenly: records, resident bytes, the heap's, the pool's."""
        samples = list(zip(self.at, self.resident, self.heap, self.pool, strict=True))
        return samples[:: max(1, len(samples) // points)]
