"""Counts failed records by cause. Writes no output itself. Only one thread at a time uses it."""

from __future__ import annotations

from collections.abc import Callable

from cyproducer.cli.console import one_line
from cyproducer.cli.line_format import LineError

MOST_CAUSES = 20
"""The maximum number of causes that are counted separately. The text of a cause may come from the input."""
OTHERS = "other causes"


class Failures:
    """The number of failed records and, for each cause, its count and the location of its first record.

    Args:
        show: Called immediately with one line of text for the first record of each cause.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._causes: dict[str, tuple[int, str]] = {}
        self.count = 0

    def add(self, place: str, error: BaseException, records: int = 1) -> None:
        """Count ``records`` that failed with ``error``. ``place`` is the location of the first one, such as
        ``stdin:17``."""
        self.count += records
        cause = error.cause if isinstance(error, LineError) else type(error).__name__
        if cause not in self._causes and len(self._causes) >= MOST_CAUSES:
            cause = OTHERS
        known = self._causes.get(cause)
        if known is None:
            self._show(f"{place}: {error if isinstance(error, LineError) else one_line(error)}")
        count, first = known or (0, place)
        self._causes[cause] = count + records, first

    def summary(self) -> list[str]:
        """One line for each cause, in the order of their first records."""
        return [f"{count:,} x {cause}, first at {first}" for cause, (count, first) in self._causes.items()]
