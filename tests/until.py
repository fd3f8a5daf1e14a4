"""Waiting, in tests, for what another thread does and no event tells of."""

import time
from collections.abc import Callable

PATIENCE_S = 20.0


def until(condition: Callable[[], object], what: str) -> None:
    """Returns once ``condition()`` holds; fails after ``PATIENCE_S`` seconds, saying ``what`` never came."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.0005)
