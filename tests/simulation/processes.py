"""Several clients' processes in one simulated world, each with its own sender loop.

Owns which process runs when. Does not own what their programs do (``transaction_program``) or the world's
events.

Each sender loop runs in a greenlet that is suspended where a real thread would sleep: inside of ``select()``.
So records are sent while a sender sleeps, and one that sleeps too long, or is not woken up, is detected. All
processes have one clock. One that is frozen or killed is not resumed.
"""

import selectors
from collections.abc import Callable

from greenlet import greenlet  # type: ignore[import-untyped]

from tests.simulation.world import NS_PER_MS, NS_PER_STEP, Idleness, OrderedSelector, World

FOREVER_NS = 1 << 62


class ProcessSelector(OrderedSelector):
    """A selector that suspends its process."""

    def __init__(self, process: "Process") -> None:
        super().__init__()
        self._process = process

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return self._process.wait(timeout or 0.0)


class Process:
    """A client's process: its sender loop, and what it waits for.

    ``step``: runs one step of the sender, which may sleep as long as it wants. Set before ``start()``.
    """

    def __init__(self, world: World, step_ms: float = 0.0) -> None:
        """``step_ms``: how long the client's own work takes at most between two waits."""
        self.world = world
        self.selector = ProcessSelector(self)
        self.step: Callable[[], object] = lambda: None
        self.alive = False
        #: It does not run before this time.
        self.frozen_until_ns = 0
        self._step_ms = step_ms
        self._wakes_at_ns = 0
        self._idleness = Idleness(world)
        self._greenlet: greenlet | None = None

    def start(self) -> None:
        self.alive = True
        self._greenlet = greenlet(self._run)

    def _run(self) -> None:
        while self.alive:
            self.step()

    @property
    def is_frozen(self) -> bool:
        return self.world.now_ns < self.frozen_until_ns

    @property
    def wakes_at_ns(self) -> int:
        """When it runs next, unless a socket becomes ready."""
        if not self.alive:
            return FOREVER_NS
        return max(self._wakes_at_ns, self.frozen_until_ns)

    def is_due(self) -> bool:
        if not self.alive or self.is_frozen:
            return False
        return self.world.now_ns >= self._wakes_at_ns or bool(self.selector.look())

    def resume(self) -> None:
        """Runs it until it waits again."""
        assert self._greenlet is not None
        self._greenlet.switch()

    def end(self) -> None:
        """Ends the loop without another step. Not from within the process."""
        self.alive = False
        if self._greenlet:
            self._greenlet.switch()

    def wait(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        world = self.world
        if self._step_ms and world.chance(0.2):
            self._wakes_at_ns = world.now_ns + int(world.between((0.0, self._step_ms)) * NS_PER_MS)
            self._suspend()
        until_ns = world.now_ns + round(timeout * 1e9)
        if timeout:
            self._idleness.end()
        else:
            self._idleness.step()
            # Each step takes a little time.
            until_ns += NS_PER_STEP
        while self.alive:
            if ready := self.selector.look():
                self._idleness.end()
                return ready
            if world.now_ns >= until_ns:
                return []
            self._wakes_at_ns = until_ns
            self._suspend()
        return []

    def _suspend(self) -> None:
        own = self._greenlet
        assert own is not None
        assert own.parent is not None
        own.parent.switch()


class Processes:
    """All processes, and the loop that runs them and the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.processes: list[Process] = []

    def run(self) -> None:
        """Runs until the world is over."""
        world = self.world
        while not world.over:
            if self._run_due():
                for act in world.after_step:
                    act()
                continue
            times = [process.wakes_at_ns for process in self.processes]
            if world.next_ns is not None:
                times.append(world.next_ns)
            when_ns = min(times, default=FOREVER_NS)
            assert when_ns < FOREVER_NS, "nothing will ever happen"
            world.move_to(when_ns)
            if world.run_due():
                for act in world.after_events:
                    act()

    def _run_due(self) -> bool:
        due = [process for process in self.processes if process.is_due()]
        for process in due:
            if process.alive:
                process.resume()
        self.processes = [process for process in self.processes if process.alive]
        return bool(due)
