"""Records the faults injected into a cluster and its connections during a test, and the producer's log
messages.

Owns one list of lines with times, for the message of a failed test. Any thread may add lines.
"""

from __future__ import annotations

import logging
import time


class FaultLog(logging.Handler):
    """Lines with the seconds since the log was created. Within ``with``, also collects cyproducer's
    messages."""

    def __init__(self, seed: str) -> None:
        super().__init__(logging.INFO)
        self.seed = seed
        self._began = time.monotonic()
        # list.append() is atomic, so it needs no lock.
        self._usual_level = logging.NOTSET
        self._lines: list[tuple[float, str]] = []

    def now_s(self) -> float:
        """Returns the seconds since the log was created."""
        return time.monotonic() - self._began

    def add(self, what: str) -> None:
        self._lines.append((self.now_s(), what))

    def emit(self, record: logging.LogRecord) -> None:
        self.add(f"    {record.levelname} {record.getMessage()}")

    def __enter__(self) -> FaultLog:
        logger = logging.getLogger("cyproducer")
        self._usual_level = logger.level
        # New epochs and lost connections are logged below WARNING.
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *raised: object) -> None:
        logger = logging.getLogger("cyproducer")
        logger.removeHandler(self)
        logger.setLevel(self._usual_level)

    def count(self, part: str) -> int:
        """Returns the number of lines that contain ``part``."""
        return sum(part in line for _, line in self._lines)

    def __str__(self) -> str:
        lines = [f"{when:9.3f} s  {line}" for when, line in self._lines]
        return "\n".join([f"seed {self.seed!r}; what happened:", *lines])
