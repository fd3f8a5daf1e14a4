"""What was done to a cluster and its connections during a test, and what the producer said to that.

Owns one list of lines with times, for the message of a test that fails. Any thread may add to it.
"""

from __future__ import annotations

import logging
import time
from types import TracebackType


class FaultLog(logging.Handler):
    """Lines with the seconds since the log was made; from ``with`` to its end also what cyproducer logs."""

    def __init__(self, seed: str) -> None:
        super().__init__(logging.INFO)
        self.seed = seed
        self._began = time.monotonic()
        # Appending is one step of the interpreter, so it needs no lock.
        self._usual_level = logging.NOTSET
        self._lines: list[tuple[float, str]] = []

    def now_s(self) -> float:
        """Seconds since the log was made."""
        return time.monotonic() - self._began

    def add(self, what: str) -> None:
        self._lines.append((self.now_s(), what))

    def emit(self, record: logging.LogRecord) -> None:
        self.add(f"    {record.levelname} {record.getMessage()}")

    def __enter__(self) -> FaultLog:
        logger = logging.getLogger("cyproducer")
        self._usual_level = logger.level
        # New epochs and lost connections are no warnings.
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logger = logging.getLogger("cyproducer")
        logger.removeHandler(self)
        logger.setLevel(self._usual_level)

    def count(self, part: str) -> int:
        """How many lines have ``part`` in them."""
        return sum(part in line for _, line in self._lines)

    def __str__(self) -> str:
        lines = [f"{when:9.3f} s  {line}" for when, line in self._lines]
        return "\n".join([f"seed {self.seed!r}; what happened:", *lines])
