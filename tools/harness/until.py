"""Calls on other threads, calls that a signal interrupts, and waits for what no event announces."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

PATIENCE_S = 60.0


def looks(patience_s: float, pause_s: float = 0.05) -> Iterator[None]:
    """Yields when to check for something: now, and then until ``patience_s`` seconds are over."""
    deadline = time.monotonic() + patience_s
    yield
    while time.monotonic() < deadline:
        time.sleep(pause_s)
        yield


def until(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Returns once ``condition()`` holds; fails after ``PATIENCE_S`` seconds and says ``what`` is missing.

    ``what``: or a function that then returns it.
    """
    for _ in looks(PATIENCE_S, 0.0005):
        if condition():
            return
    raise AssertionError(f"never came: {what if isinstance(what, str) else what()}")


class Running:
    """A call on a thread of its own."""

    def __init__(self, function: Callable[..., Any], *args: Any, **given: Any) -> None:
        self._result: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._result = function(*args, **given)
            except BaseException as error:
                self._error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    @property
    def running(self) -> bool:
        return self.thread.is_alive()

    def outcome(self, patience_s: float = PATIENCE_S) -> Any:
        """Waits for the end; returns the result or raises the error."""
        self.thread.join(patience_s)
        assert not self.thread.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
        return self._result


class InterruptedWaitError(Exception):
    """Raised by the signal handler of ``interrupted``."""


@contextmanager
def interrupted() -> Iterator[None]:
    """A signal interrupts the block after 50 ms. Fails if that does not end it."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise InterruptedWaitError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        with suppress(InterruptedWaitError):
            yield
            raise AssertionError("nothing has interrupted it")
        assert time.monotonic() - began < PATIENCE_S / 2
    finally:
        signal.signal(signal.SIGALRM, before)


class NewThreads:
    """The threads that were started since this was made, and run. Others may end meanwhile: those of earlier
    tests."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def __len__(self) -> int:
        return len(set(threading.enumerate()) - self._before)


def until_blocked(thread: threading.Thread) -> None:
    """Returns once a thread is blocked by something other than the GIL, or has ended.

    A thread that waits for the GIL wakes up in each switch interval, which its count of suspensions shows.
    So the thread must sleep, with the same number, for several intervals: the GIL's holder can be preempted
    for longer than one pause. Without /proc, which only Linux has, it returns after that time.
    """
    interval_s = 4 * sys.getswitchinterval()
    status = Path(f"/proc/self/task/{thread.native_id}/status")
    if not status.exists():
        time.sleep(interval_s)
        return
    before: list[str] = []
    since = time.monotonic()

    def rests() -> bool:
        nonlocal since
        try:
            lines = status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return True
        now = [line for line in lines if line.startswith(("State", "voluntary_ctxt_switches"))]
        if before != now or "S" not in now[0].split():
            before[:] = now
            since = time.monotonic()
        return time.monotonic() - since > interval_s

    until(rests, f"{thread.name} waiting")
