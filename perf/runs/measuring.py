"""What runs share: their arguments, the clock and the CPU, values to send. The process's main thread.

A run gets ``Args`` and returns a dict of figures; which names there are, and their units, stands in
``comparison/cases.py`` where they are put in columns. Nothing of a client is imported here.
"""

import ctypes
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

WARM_UP_S = 30
FLUSH_S = 300


class SkippedError(Exception):
    """This run can't be done here; the message says why, for people."""


CURVE = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999]
"""Shares of the records of which a distribution tells the latency."""
PR_SET_TIMERSLACK = 29
SLICES = 20
"""Parts of a run under pressure whose rates are told."""


@dataclass(frozen=True)
class Args:
    """What a run is told."""

    bootstrap: str
    topic: str = "perf"
    records: int = 1_000_000
    size: int = 100
    """Bytes of a value."""
    defaults: bool = False
    """The client at its own default settings, where it is else set alike with the others."""
    options: dict[str, str] = field(default_factory=dict)
    """More of the client's options."""
    threads: int = 1
    rate: float = 0
    """Records a second."""
    topics: int = 1
    """Topics named ``TOPIC-0`` and so on."""
    partitions: int = 3
    """Of each topic."""
    even: bool = False
    """To each partition in turn, and not where the partitioner likes it."""
    seconds: float = 60
    """How long runs take that take a time."""
    way: str = "send"
    """How records are handed over: send, send_many or send_arrow."""


Figures = dict[str, Any]
RunFunction = Callable[[Args], Figures]


def cpu_s() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Measured:
    """Wall and CPU seconds of a ``with`` block."""

    def __enter__(self) -> "Measured":
        self.cpu, self.wall = cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, cpu_s() - self.cpu


def figures(measured: Measured, records: int, **more: Any) -> Figures:
    """What every run with records tells."""
    return {
        "records": records,
        "records_per_s": records / measured.wall,
        "cpu_s_per_million": measured.cpu / records * 1e6,
        **more,
    }


def values(size: int) -> list[bytes]:
    """A few different values, so that a codec has something to do; none of them is built while measuring."""
    return [os.urandom(size // 2) + b"x" * (size - size // 2) for _ in range(64)]


def json_values(size: int, count: int = 256) -> list[bytes]:
    """JSON records of this size, such as programs send: the same ones each time."""
    rng = random.Random(1)
    made = []
    for number in range(count):
        fields: dict[str, Any] = {"id": rng.randrange(10**9), "ts": 1_700_000_000_000 + number}
        while len(json.dumps(fields)) < size:
            name = f"{rng.choice(['user', 'event', 'price', 'session', 'place'])}_{len(fields)}"
            fields[name] = rng.choice(
                [f"user-{rng.randrange(20_000):05}", round(rng.random() * 100, 2), f"{rng.getrandbits(64):x}"]
            )
        made.append(json.dumps(fields).encode()[:size])
    return made


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of the values does not exceed; of ordered ones."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def round_trips(count: int, once: Callable[[], object]) -> Figures:
    """Calls ``once`` so many times, one after the other."""
    taken = []
    clock = time.perf_counter_ns
    with Measured() as measured:
        for _ in range(count):
            began = clock()
            once()
            taken.append(clock() - began)
    return figures(measured, count, **trip_times([ns / 1e3 for ns in taken]))


def trip_times(taken_us: list[float]) -> Figures:
    """p50 and p99, in microseconds."""
    taken_us.sort()
    return {"p50_us": percentile(taken_us, 0.5), "p99_us": percentile(taken_us, 0.99)}


def paced(args: Args, send: Callable[[float], object], pause: Callable[[float], object] = time.sleep) -> None:
    """Calls ``send`` at ``args.rate`` a second, with the time at which it was due (perf_counter).

    Latency counts from there: a client that holds the caller up makes the records behind it late, and that
    belongs to it. Who is late catches up at once. ``pause``: what is done in the seconds until the next one.
    """
    sleep_exactly()
    clock, between = time.perf_counter, 1 / args.rate
    began = clock()
    for number in range(args.records):
        due = began + number * between
        while (left := due - clock()) > 0:
            pause(left)
        send(due)


def sleep_exactly() -> None:
    """Has sleeps of the calling thread end when they are due: Linux lets them run on for 50 us (timer slack).

    That would be the greater part of a latency that counts from when a record was due.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1), *(ctypes.c_ulong(0),) * 3)


def latency_figures(args: Args, taken_s: list[float], measured: Measured) -> Figures:
    """Percentiles of the time from when a record was due to its acknowledgement, in milliseconds."""
    taken_s.sort()
    shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
    found = {name: percentile(taken_s, share) * 1e3 for name, share in shares.items()}
    curve = [[share, percentile(taken_s, share) * 1e3] for share in CURVE]
    return figures(measured, args.records, **found, distribution=curve)


def under_pressure(
    args: Args, send: Callable[[], int], settle: Callable[[], object], **more: Callable[[], float]
) -> Figures:
    """Calls ``send``, which returns how many records it sent, for ``args.seconds``; the rate of each quarter.

    ``settle`` waits for everything afterwards, which is measured too, but is in no quarter. ``more``: figures
    to be asked for at the end.
    """
    clock = time.perf_counter
    length = args.seconds / SLICES
    counts = [0] * (SLICES + 1)
    with Measured() as measured:
        began = clock()
        while not counts[SLICES]:
            done = send()
            # A call may wait for longer than a slice takes.
            counts[min(SLICES, int((clock() - began) / length))] += done
        settle()
    sent = sum(counts)
    course = [[(number + 1) * length, count / length] for number, count in enumerate(counts[:SLICES])]
    quarter = SLICES // 4
    rates = [
        sum(rate for _, rate in course[first : first + quarter]) / quarter
        for first in range(0, SLICES, quarter)
    ]
    found = {name: ask() for name, ask in more.items()}
    return figures(
        measured, sent, second_quarter=rates[1], last_quarter=rates[3], steady=rates[3] / rates[1],
        course=course, **found,
    )  # fmt: skip
