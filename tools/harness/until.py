"""Waits in tests for actions of another thread or process that no event announces."""

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


def until(condition: Callable[[], object], what: str) -> None:
    """Returns once ``condition()`` holds; fails after ``PATIENCE_S`` seconds and says ``what`` is missing."""
    for _ in looks(PATIENCE_S, 0.0005):
        if condition():
            return
    raise AssertionError(f"never came: {what}")


class NewThreads:
    """The threads that were started since this was made, and run. Others may end meanwhile: those of earlier
    tests."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def __len__(self) -> int:
        return len(set(threading.enumerate()) - self._before)


def until_blocked(thread: threading.Thread) -> None:
    """Returns once a thread is blocked by something other than the GIL, or has ended.

    The GIL is free during each pause here; a thread that ran then shows that by its number of suspensions.
    Without /proc, which only Linux has, it returns after one pause.
    """
    status = Path(f"/proc/self/task/{thread.native_id}/status")
    if not status.exists():
        time.sleep(0.005)
        return
    before: list[str] = []

    def rests() -> bool:
        try:
            lines = status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return True
        now = [line for line in lines if line.startswith(("State", "voluntary_ctxt_switches"))]
        same, before[:] = before == now, now
        return same and "S" in now[0].split()

    until(rests, f"{thread.name} waiting")
