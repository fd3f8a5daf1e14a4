"""Summarises what a task, or all tasks of a batch, have written.

Owns ``WrittenRange``, ``WriteSummary``, and merging and reporting them. Does not count rows (``sending``).
The objects are immutable; they are pickled and sent from the tasks to the driver.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from cyproducer.base.text import printable

log: Final = logging.getLogger("cyproducer.spark")

SHOWN_RANGES: Final = 12
"""Maximum number of ranges in a summary's log line. The object has all of them."""
SHOWN_TRANSACTIONS: Final = 4
"""Maximum number of transactions in a summary's log line."""


class WrittenTransaction(NamedTuple):
    """A transaction on the brokers, identified as in ``python -m cyproducer transactions``."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True)
class WrittenRange:
    """The records written to one partition. Other producers' records may lie between the first and last
    offset."""

    topic: str
    partition: int
    first_offset: int
    """-1 with acks=0, as the broker does not report it; the same holds for ``last_offset``."""
    last_offset: int
    records: int

    def merged(self, other: "WrittenRange") -> "WrittenRange":
        """Returns both ranges as one. They must be of the same partition."""
        return WrittenRange(
            self.topic,
            self.partition,
            min(self.first_offset, other.first_offset),
            max(self.last_offset, other.last_offset),
            self.records + other.records,
        )


@dataclass(frozen=True)
class WriteSummary:
    """What a batch, or one task of it, has written."""

    rows: int = 0
    """Acknowledged rows, without dead letters."""
    bytes: int = 0
    """Bytes of keys and values, before compression."""
    dead_letters: int = 0
    ranges: tuple[WrittenRange, ...] = ()
    """Sorted by topic and partition."""
    retries: int = 0
    """Number of records sent again; a record counts each time."""
    p99_ms: float = 0.0
    """99th percentile, in ms and accurate to 1.6 %, of the time from the first record of a producer's batch
    to the batch's acknowledgement, over the batches that the producer sent during the task; 0.0 if it sent
    none. For several tasks, the maximum of their values, which is at least the percentile over all of their
    batches. Tasks that share a producer at the same time also count each other's batches."""
    tasks: int = 0
    dead_letter_ranges: tuple[WrittenRange, ...] = ()
    """Where the dead letters are, sorted by partition."""
    transactions: tuple[WrittenTransaction, ...] = ()
    """With ``deliveryGuarantee=exactly-once``: one per task that has written something. In the summary of a
    batch they are committed; in that of a single task, not yet."""

    def __str__(self) -> str:
        """Returns a line for logs, with the first ``SHOWN_RANGES`` ranges: a batch may have thousands."""
        where = "; ".join(
            f"{r.topic}-{r.partition} {r.first_offset}..{r.last_offset} ({r.records})"
            for r in self.ranges[:SHOWN_RANGES]
        )
        if rest := self.ranges[SHOWN_RANGES:]:
            topics = len({r.topic for r in rest})
            where += f"; and {_counted(len(rest), 'more partition')} of {_counted(topics, 'topic')}"
        dead = f", {self.dead_letters} dead letters" if self.dead_letters else ""
        return printable(
            f"{self.rows} rows, {self.bytes} bytes{dead}, {self.retries} retries, p99 {self.p99_ms:.1f} ms, "
            f"{self.tasks} tasks: {where or 'nowhere'}{self._transactions()}"
        )

    def _transactions(self) -> str:
        if not self.transactions:
            return ""
        names = ", ".join(each.transactional_id for each in self.transactions[:SHOWN_TRANSACTIONS])
        rest = len(self.transactions) - SHOWN_TRANSACTIONS
        more = f" and {rest} more" if rest > 0 else ""
        return f"; {_counted(len(self.transactions), 'transaction')}: {names}{more}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def merge_ranges(ranges: Iterable[WrittenRange]) -> tuple[WrittenRange, ...]:
    """Returns one range per partition, sorted."""
    found: dict[tuple[str, int], WrittenRange] = {}
    for each in ranges:
        place = (each.topic, each.partition)
        found[place] = found[place].merged(each) if place in found else each
    return tuple(found[place] for place in sorted(found))


def merge(summaries: Iterable[WriteSummary]) -> WriteSummary:
    """Returns the sum of several tasks' summaries."""
    of = list(summaries)
    return WriteSummary(
        rows=sum(each.rows for each in of),
        bytes=sum(each.bytes for each in of),
        dead_letters=sum(each.dead_letters for each in of),
        ranges=merge_ranges(r for each in of for r in each.ranges),
        retries=sum(each.retries for each in of),
        p99_ms=max((each.p99_ms for each in of), default=0.0),
        tasks=sum(each.tasks for each in of),
        dead_letter_ranges=merge_ranges(r for each in of for r in each.dead_letter_ranges),
        transactions=tuple(each for one in of for each in one.transactions),
    )


def tell(summary: WriteSummary, batch: str, callback: str | None) -> None:
    """Logs a batch's summary, and calls ``module:function`` with it.

    The rows are already written, so an exception of the callback is only logged, and does not fail the batch.
    """
    log.info("%s: %s", batch, summary)
    if callback is None:
        return
    try:
        function_named(callback)(summary)
    except Exception:
        log.exception("summaryCallback %s failed; the rows are written", callback)


def tell_program(
    on_summary: Callable[[int, WriteSummary], object] | None, batch_id: int, summary: WriteSummary
) -> None:
    """Calls the program's ``on_summary``, if any, with a micro-batch's summary. Logs what it raises."""
    if on_summary is None:
        return
    try:
        on_summary(batch_id, summary)
    except Exception:
        log.exception("on_summary failed; micro-batch %d is written", batch_id)


def function_named(name: str) -> Callable[[WriteSummary], object]:
    """Returns the function that is named ``module:function``.

    Raises:
        ImportError, AttributeError: there is no such function.
    """
    module, _, function = name.partition(":")
    found: Callable[[WriteSummary], object] = getattr(importlib.import_module(module), function)
    return found


def show_info() -> None:
    """Logs to standard error, which is the driver's, if logging is not configured. Spark's helper process
    does not configure it."""
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
