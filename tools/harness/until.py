"""Waits in tests for actions of another thread or process that no event announces."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
