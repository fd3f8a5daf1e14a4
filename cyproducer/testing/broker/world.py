"""Time, random decisions and scheduled events of the model of a cluster.

Owns the queue of events. Does not own the clock: a subclass advances ``now_ns``. One thread runs everything.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

NS_PER_MS = 1_000_000


class World:
    """The environment of a cluster."""

    def __init__(self, seed: int, now_ns: int, trace: Callable[[str], None] | None = None) -> None:
        """
        Args:
            seed: the seed of all random decisions.
            now_ns: the time at the start, in nanoseconds.
            trace: called with a line for each event; None: there is no trace.
        """
        self.random = random.Random(seed)
        self.now_ns = now_ns
        #: Scheduled events will not run any more.
        self.over = False
        self.events_run = 0
        #: How often each kind of event has happened.
        self.tally: Counter[str] = Counter()
        self.tracing = trace is not None
        self._trace = trace
        self._start_ns = now_ns
        self._events: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    @property
    def now_ms(self) -> float:
        """Milliseconds since the start."""
        return (self.now_ns - self._start_ns) / NS_PER_MS

    def say(self, text: str) -> None:
        """Writes a line of the trace."""
        if self._trace is not None:
            self._trace(f"{self.now_ms:10.3f}  {text}")

    def count(self, what: str) -> None:
        self.tally[what] += 1

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def between(self, span: tuple[float, float]) -> float:
        low, high = span
        return low if low == high else low + (high - low) * self.random.random()

    def after(self, delay_ms: float, act: Callable[..., object], *args: Any) -> int:
        """Schedules ``act(*args)`` in ``delay_ms`` milliseconds; returns the time in ns."""
        return self.at(self.now_ns + int(delay_ms * NS_PER_MS), act, *args)

    def at(self, when_ns: int, act: Callable[..., object], *args: Any) -> int:
        """Schedules ``act(*args)`` at a time, after events already scheduled for it; returns the time."""
        when_ns = max(when_ns, self.now_ns)
        heapq.heappush(self._events, (when_ns, next(self._numbers), act, args))
        return when_ns

    @property
    def next_ns(self) -> int | None:
        """The time at which the next event is due."""
        return self._events[0][0] if self._events else None

    def run_due(self) -> bool:
        """Runs the events that are due; returns whether there were any."""
        events, ran = self._events, False
        while events and events[0][0] <= self.now_ns:
            _, _, act, args = heapq.heappop(events)
            self.events_run += 1
            act(*args)
            ran = True
        return ran
