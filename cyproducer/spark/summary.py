"""What was written: by a task, and by all tasks of a batch.

Owns: ``WrittenRange``, ``WriteSummary``, adding them up, and telling of them. Does not own: counting rows
(``sending``). Immutable, pickled from the tasks to the driver.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

log: Final = logging.getLogger("cyproducer.spark")


@dataclass(frozen=True)
class WrittenRange:
    """What one partition got. Records of others may lie between the first offset and the last one."""

    topic: str
    partition: int
    first_offset: int
    """-1 under acks=0, where nobody says; likewise the last one."""
    last_offset: int
    records: int

    def merged(self, other: "WrittenRange") -> "WrittenRange":
        """Both, of the same partition."""
        return WrittenRange(
            self.topic,
            self.partition,
            min(self.first_offset, other.first_offset),
            max(self.last_offset, other.last_offset),
            self.records + other.records,
        )


@dataclass(frozen=True)
class WriteSummary:
    """What a batch has written, or a task of it."""

    rows: int = 0
    """Acknowledged rows, dead letters not among them."""
    bytes: int = 0
    """Of their keys and values, before compression."""
    dead_letters: int = 0
    ranges: tuple[WrittenRange, ...] = ()
    """Sorted by topic and partition."""
    retries: int = 0
    """Records that were sent again, each time."""
    p99_ms: float = 0.0
    """What 99 % of the producer's batches did not exceed from their first record to their acknowledgement; of
    several tasks the largest."""
    tasks: int = 0

    def __str__(self) -> str:
        where = "; ".join(
            f"{r.topic}-{r.partition} {r.first_offset}..{r.last_offset} ({r.records})" for r in self.ranges
        )
        dead = f", {self.dead_letters} dead letters" if self.dead_letters else ""
        return (
            f"{self.rows} rows, {self.bytes} bytes{dead}, {self.retries} retries, p99 {self.p99_ms:.1f} ms, "
            f"{self.tasks} tasks: {where or 'nowhere'}"
        )


def merge_ranges(ranges: Iterable[WrittenRange]) -> tuple[WrittenRange, ...]:
    """One for each partition, sorted."""
    found: dict[tuple[str, int], WrittenRange] = {}
    for each in ranges:
        place = (each.topic, each.partition)
        found[place] = found[place].merged(each) if place in found else each
    return tuple(found[place] for place in sorted(found))


def merge(summaries: Iterable[WriteSummary]) -> WriteSummary:
    """What several tasks have written together."""
    of = list(summaries)
    return WriteSummary(
        rows=sum(each.rows for each in of),
        bytes=sum(each.bytes for each in of),
        dead_letters=sum(each.dead_letters for each in of),
        ranges=merge_ranges(r for each in of for r in each.ranges),
        retries=sum(each.retries for each in of),
        p99_ms=max((each.p99_ms for each in of), default=0.0),
        tasks=sum(each.tasks for each in of),
    )


def tell(summary: WriteSummary, batch: str, callback: str | None) -> None:
    """Logs a batch's summary, and calls ``module:function`` with it.

    Spark has its rows by then: what the callback raises is logged and fails nothing.
    """
    log.info("%s: %s", batch, summary)
    if callback is None:
        return
    try:
        function_named(callback)(summary)
    except Exception:
        log.exception("summaryCallback %s failed; the rows are written", callback)


def function_named(name: str) -> Callable[[WriteSummary], object]:
    """The function ``module:function``.

    Raises:
        ImportError, AttributeError: there is none.
    """
    module, _, function = name.partition(":")
    found: Callable[[WriteSummary], object] = getattr(importlib.import_module(module), function)
    return found


def show_info() -> None:
    """Spark's helper process has no logging of anybody's: what is logged there goes to the driver's
    stderr."""
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
