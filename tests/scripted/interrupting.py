"""A signal in the middle of a wait, whose handler raises, as Ctrl-C's does."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from tools.harness.until import PATIENCE_S


class InterruptedWaitError(Exception):
    pass


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise InterruptedWaitError


@contextmanager
def interrupted() -> Iterator[None]:
    """A block that waits for up to ``PATIENCE_S``, and that a signal must end after 50 ms."""
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    began = time.monotonic()
    try:
        with pytest.raises(InterruptedWaitError):
            yield
        assert time.monotonic() - began < PATIENCE_S / 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
