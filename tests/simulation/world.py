"""Time, randomness and the order of events in one simulated history.

Owns the manual clock. Does not own the queue of events, chance and the trace (``testing/broker/world``), or
the events' actions. One thread runs everything; nothing here reads a real clock.

``WorldSelector`` connects it to the product: when the sender waits on its selector, the world runs instead,
until a socket is ready or the timeout is over. So events happen while the sender sleeps and between its
steps, as for a real thread, and a sender that sleeps too long, or not at all, is detected.
"""

import itertools
import selectors
from collections.abc import Callable, Sized
from typing import Any

from cyproducer.base.clock import ManualClock
from cyproducer.testing.broker import world as base
from cyproducer.testing.broker.world import NS_PER_MS as NS_PER_MS

START_NS = 1_000_000_000_000
NS_PER_STEP = 1000
MOST_IDLE_STEPS = 1000
"""More consecutive steps without a wait and without an event count as spinning."""


class SpinningError(AssertionError):
    """The sender runs step after step, and nothing happens."""


class World(base.World):
    """Simulated time and its events."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, START_NS, trace)
        self.clock = ManualClock(START_NS)
        #: The client's process does not run before this time.
        self.frozen_until_ns = 0
        #: Called after each step of the client.
        self.after_step: list[Callable[[], None]] = []
        #: Called after events that the client did not cause.
        self.after_events: list[Callable[[], None]] = []

    def move_to(self, when_ns: int) -> None:
        if when_ns > self.now_ns:
            # Half a nanosecond more: the clock truncates the rounding errors of the float milliseconds.
            self.clock.advance_ms((when_ns - self.now_ns + 0.5) / NS_PER_MS)
            self.now_ns = self.clock.monotonic_ns()

    def pass_ms(self, ms: float) -> None:
        """Runs the events of the next milliseconds."""
        until_ns = self.now_ns + int(ms * NS_PER_MS)
        while self.next_ns is not None and self.next_ns <= until_ns:
            self.move_to(self.next_ns)
            self.run_due()
        self.move_to(until_ns)

    def run_until(self, told: Sized) -> None:
        """Runs events until there is something in ``told``."""
        while not told:
            assert self.next_ns is not None
            self.move_to(self.next_ns)
            self.run_due()

    def run_out(self) -> None:
        """Runs all remaining events at their times: network and brokers may still hold bytes and requests."""
        while self._events:
            self.move_to(self._events[0][0])
            self.run_due()


class OrderedSelector(selectors.DefaultSelector):
    """A selector that returns sockets in the order of their registration."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[int, int] = {}
        self._registered = itertools.count()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._order[key.fd] = next(self._registered)
        return key

    def look(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Returns the sockets that are ready now."""
        return sorted(super().select(0), key=lambda entry: self._order[entry[0].fd])


class Idleness:
    """Notices a sender that runs many steps while nothing happens."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps = 0
        self._events_seen = 0

    def end(self) -> None:
        self._steps = 0

    def step(self) -> None:
        """Counts a step without a wait; raises if there were too many."""
        self._steps = self._steps + 1 if self._world.events_run == self._events_seen else 0
        self._events_seen = self._world.events_run
        if self._steps > MOST_IDLE_STEPS:
            raise SpinningError("the sender spins: no events happen between its steps")


class WorldSelector(OrderedSelector):
    """A selector that waits in simulated time."""

    def __init__(self, world: World, step_ms: float = 0.0) -> None:
        """``step_ms``: how long the client's own work takes at most between two waits."""
        super().__init__()
        self._world = world
        self._step_ms = step_ms
        self._idleness = Idleness(world)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        world = self._world
        until_ns = world.now_ns + round((timeout or 0.0) * 1e9)
        if self._step_ms and world.chance(0.2):
            world.move_to(world.now_ns + int(world.between((0.0, self._step_ms)) * NS_PER_MS))
        for act in world.after_step:
            act()
        while True:
            if world.run_due():
                for act in world.after_events:
                    act()
            ready = self.look()
            if world.over:
                return ready
            if world.now_ns < world.frozen_until_ns:
                world.move_to(min(world.frozen_until_ns, world.next_ns or world.frozen_until_ns))
                continue
            if ready:
                self._idleness.end()
                return ready
            if world.now_ns >= until_ns:
                if timeout:
                    self._idleness.end()
                else:
                    self._idleness.step()
                    # Each step takes a little time.
                    world.move_to(world.now_ns + NS_PER_STEP)
                return []
            world.move_to(min(until_ns, world.next_ns or until_ns))
