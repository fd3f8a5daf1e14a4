"""Waiting, in tests, for what another thread or process does and no event tells of."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE_S = 20.0


def looks(patience_s: float, pause_s: float = 0.05) -> Iterator[None]:
    """Moments to look whether something is there: one now, others until ``patience_s`` seconds are over."""
    deadline = time.monotonic() + patience_s
    yield
    while time.monotonic() < deadline:
        time.sleep(pause_s)
        yield


def until(condition: Callable[[], object], what: str) -> None:
    """Returns once ``condition()`` holds; fails after ``PATIENCE_S`` seconds, saying ``what`` never came."""
    for _ in looks(PATIENCE_S, 0.0005):
        if condition():
            return
    raise AssertionError(f"never came: {what}")


def until_blocked(thread: threading.Thread) -> None:
    """Returns once a thread waits for something other than its turn to run Python, or is over.

    Its turn comes with each pause here, and a thread that took it shows that by how often it was suspended.
    After one pause where the system does not tell: only Linux does.
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
