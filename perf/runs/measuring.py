"""The shared parts of runs: arguments, clock and CPU measurement, values to send. For the main thread.

A run takes ``Args`` and returns a dict of figures. ``comparison/cases.py`` puts them in columns and has their
names and units. This module imports no client.
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
    """This run is not possible here. The message has the reason."""


CURVE = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999]
"""The percentiles of a latency distribution, as shares of the records."""
PR_SET_TIMERSLACK = 29
MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of ``max.message.bytes``."""
RECORD_BYTES = 10
"""What a record of 1 kB without a key takes besides its value."""
SLICES = 20
"""Number of parts of a run under pressure, whose rates are reported."""


@dataclass(frozen=True)
class Args:
    """The arguments of a run."""

    bootstrap: str
    topic: str = "perf"
    records: int = 1_000_000
    size: int = 100
    """Bytes per value."""
    defaults: bool = False
    """Whether the client uses its own defaults instead of the settings that all clients share."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the client."""
    module: str = ""
    """The producer's module, in runs for clients with the same API. Empty: that of the run's own client."""
    threads: int = 1
    rate: float = 0
    """Records per second."""
    topics: int = 1
    """Number of topics, which are named ``TOPIC-0`` and so on."""
    partitions: int = 3
    """Partitions per topic."""
    even: bool = False
    """Whether records go to each partition in turn. Otherwise the partitioner chooses."""
    seconds: float = 60
    """Duration of runs that last for a fixed time."""
    per_transaction: int = 1
    """Records of a transaction."""
    offsets: bool = False
    """Whether each transaction commits an offset, too."""
    way: str = "send"
    """The method that sends: send, send_many or send_arrow."""
    answer_ms: int = 0
    """Time after which a far broker answers."""


Figures = dict[str, Any]
RunFunction = Callable[[Args], Figures]


def cpu_s() -> float:
    """Returns user plus system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Measured:
    """Measures wall and CPU seconds of a ``with`` block."""

    def __enter__(self) -> "Measured":
        self.cpu, self.wall = cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, cpu_s() - self.cpu


def figures(measured: Measured, records: int, **more: Any) -> Figures:
    """Returns the figures that every run with records has."""
    return {
        "records": records,
        "records_per_s": records / measured.wall,
        "cpu_s_per_million": measured.cpu / records * 1e6,
        **more,
    }


def values(size: int) -> list[bytes]:
    """Returns a few different values, so that a codec has work to do. They are built before the
    measurement."""
    return [os.urandom(size // 2) + b"x" * (size - size // 2) for _ in range(64)]


def json_values(size: int, count: int = 256) -> list[bytes]:
    """Returns typical JSON records of this size, the same ones each time."""
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


def far_bound(args: Args) -> float:
    """Returns the records per second to a far broker with five requests in flight, each of which has a batch
    of ``MAX_MESSAGE_BYTES`` for every partition."""
    return 5 * args.partitions * MAX_MESSAGE_BYTES / (args.size + RECORD_BYTES) / args.answer_ms * 1e3


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the smallest value that is not exceeded by this share of the values, which must be sorted."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def round_trips(count: int, once: Callable[[], object]) -> Figures:
    """Calls ``once`` ``count`` times, one after the other, and returns the figures."""
    taken = []
    clock = time.perf_counter_ns
    with Measured() as measured:
        for _ in range(count):
            began = clock()
            once()
            taken.append(clock() - began)
    return figures(measured, count, **trip_times([ns / 1e3 for ns in taken]))


def trip_times(taken_us: list[float]) -> Figures:
    """Returns p50 and p99, in microseconds."""
    taken_us.sort()
    return {"p50_us": percentile(taken_us, 0.5), "p99_us": percentile(taken_us, 0.99)}


def paced(args: Args, send: Callable[[float], object], pause: Callable[[float], object] = time.sleep) -> None:
    """Calls ``send`` ``args.rate`` times per second, with the time at which the call was due (perf_counter).

    Latency counts from the due time: if a client blocks the caller, the following records are late, and that
    counts as the client's latency. Late calls follow without a pause. ``pause`` is called with the seconds
    until the next call is due.
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
    """Makes the calling thread's sleeps exact: by default Linux may extend them by 50 us (timer slack).

    That would be most of a latency that counts from a record's due time.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1), *(ctypes.c_ulong(0),) * 3)


def latencies(
    args: Args,
    send: Callable[[], object],
    send_timed: Callable[[Callable[..., None]], object],
    flush: Callable[[float], object],
    pause: Callable[[float], object] = time.sleep,
) -> Figures:
    """Sends records as ``paced``. Returns percentiles of the time from a record's due time to its
    acknowledgement, in milliseconds, of about a thousand records per second.

    ``send_timed`` sends one of these, and gets the function to call when it is acknowledged.
    """
    every = max(1, int(args.rate / 1000))
    taken_s: list[float] = []
    number = 0

    def once(due: float) -> None:
        nonlocal number
        number += 1
        if number % every:
            send()
        else:
            send_timed(lambda *_: taken_s.append(time.perf_counter() - due))

    with Measured() as measured:
        paced(args, once, pause)
        flush(FLUSH_S)
    taken_s.sort()
    shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
    found = {name: percentile(taken_s, share) * 1e3 for name, share in shares.items()}
    curve = [[share, percentile(taken_s, share) * 1e3] for share in CURVE]
    return figures(measured, args.records, **found, distribution=curve)


def under_pressure(
    args: Args, send: Callable[[], int], settle: Callable[[], object], **more: Callable[[], float]
) -> Figures:
    """Calls ``send``, which returns the number of records it sent, for ``args.seconds``. Returns the rates.

    ``settle`` then waits for all records, which is measured but belongs to no quarter. ``more``: functions
    that return further figures, called at the end.
    """
    clock = time.perf_counter
    length = args.seconds / SLICES
    counts = [0] * (SLICES + 1)
    with Measured() as measured:
        began = clock()
        while not counts[SLICES]:
            done = send()
            # A call may block for longer than a slice.
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
        measured, sent, first_quarter=rates[0], second_quarter=rates[1], last_quarter=rates[3],
        steady=rates[3] / rates[1], course=course, **found,
    )  # fmt: skip
