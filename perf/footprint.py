"""Measures this process's memory, threads and file descriptors. Linux only (/proc). Any thread."""

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
"""How much the C heap and Python's heap may grow over a producer's life: modules and caches that load
late."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Returns the peak resident memory of this process.

    Not from getrusage, whose value starts with the memory of the process that started this one.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")


class _Mallinfo2(ctypes.Structure):
    # As in malloc.h: all fields have the same type.
    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


class Held(NamedTuple):
    """Allocated memory. Unlike resident memory, it does not include what allocators keep for later use."""

    bytes: int
    blocks: int
    """Python objects."""

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        return cls(heap_bytes(), sys.getallocatedblocks())

    def grew(self, after: "Held") -> bool:
        return after.bytes - self.bytes > LEFT_BYTES or after.blocks - self.blocks > LEFT_BLOCKS


def heap_bytes() -> int:
    """Returns the bytes that malloc has allocated. 0 if the C library is not glibc or has no
    ``mallinfo2()``."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def descriptors() -> int:
    # Always includes the descriptor of the listing itself.
    return len(os.listdir("/proc/self/fd"))


def threads(at_most: int = 0) -> int:
    """Returns the number of the process's threads as the system counts them, including those of libraries.

    A joined thread may not have exited yet: waits up to two seconds until there are ``at_most`` threads.
    """
    deadline = time.monotonic() + 2
    while (count := len(os.listdir("/proc/self/task"))) > at_most > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    return count


class Medians(NamedTuple):
    """Medians of the samples of a part of a run. NaN if there are no samples."""

    resident: float
    """Resident bytes of this process."""
    heap: float
    """See ``heap_bytes``."""
    pool: float
    """The part of the heap in record buffers."""
    rest: float
    """The rest of the heap: the median of the differences."""


class Memory(threading.Thread):
    """Samples memory usage, with the number of records sent so far and the size of the buffer pool."""

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
        # Drops the reference to the pool, so that it is freed with its producer.
        del self.of_pool

    def medians(self, first: float, last: float) -> Medians:
        """Returns the medians of the samples between these numbers of records."""
        rest = [heap - pool for heap, pool in zip(self.heap, self.pool, strict=True)]
        taken = [number for number, at in enumerate(self.at) if first <= at <= last]
        if not taken:
            return Medians(*[float("nan")] * len(Medians._fields))
        kinds = (self.resident, self.heap, self.pool, rest)
        return Medians(*(statistics.median(kind[n] for n in taken) for kind in kinds))

    def course(self, points: int) -> list[tuple[int, int, int, int]]:
        """Returns about ``points`` evenly spaced samples: records, resident bytes, heap bytes, pool bytes."""
        samples = list(zip(self.at, self.resident, self.heap, self.pool, strict=True))
        return samples[:: max(1, len(samples) // points)]
