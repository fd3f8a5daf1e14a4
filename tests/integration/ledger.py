"""Sends numbered records while a test injects faults, and checks the outcome of each.

Owns the writing thread, the records it sent, their outcomes, and the comparison with the records read back.
Does not know the faults, except for the log that it adds to its complaints.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from cyproducer import KafkaProducer, errors
from tests.integration.consume import Fetched
from tests.integration.fault_log import FaultLog

MOST_UNDELIVERED = 1_000
"""The writer waits while this many records are undelivered, so that a stall does not fill a queue for
seconds."""
MOST_COMPLAINTS = 12
"""Maximum number of complaints of one kind in the message of a failed test."""


class Entry:
    """One record: what was sent, and the result of its future."""

    __slots__ = (
        *("done_s", "error", "key", "maybe_written", "number", "offset", "partition"),
        *("sent_s", "told", "value"),
    )

    def __init__(self, partition: int, number: int, key: bytes | None, value: bytes, sent_s: float) -> None:
        self.partition = partition
        self.number = number
        """Counts from 0 in each partition, in the order of ``send()``."""
        self.key = key
        self.value = value
        self.sent_s = sent_s
        self.done_s: float | None = None
        """When the future completed; ``None``: not yet."""
        self.told: int | None = None
        """The acknowledged partition."""
        self.offset: int | None = None
        self.error: BaseException | None = None
        self.maybe_written: bool | None = None
        """The error's ``maybe_written``; ``None``: there is no error, or it is unknown."""

    def __str__(self) -> str:
        text = f"record {self.number} of partition {self.partition}, sent at {self.sent_s:.3f} s"
        if self.done_s is None:
            return f"{text}, still without an outcome"
        if self.error is None:
            return f"{text}, acknowledged at {self.done_s:.3f} s with offset {self.offset}"
        what = f"{type(self.error).__name__}: {self.error}"[:150]
        return f"{text}, failed at {self.done_s:.3f} s (maybe_written {self.maybe_written}; {what})"


class Writer:
    """Sends bursts of records of many sizes to the partitions of a topic, within ``with``.

    ``__exit__`` waits until every record is acknowledged or has failed.
    """

    PAUSE_S = 0.02

    def __init__(
        self, producer: KafkaProducer, topic: str, partitions: int, log: FaultLog, largest: int = 8_000
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.entries: list[list[Entry]] = [[] for _ in range(partitions)]
        """Records by partition and number."""
        self.log = log
        self._producer = producer
        self._rng = random.Random(f"{log.seed}/{topic}")
        self._filler = self._rng.randbytes(largest) + b"compressible " * (largest // 13)
        self._largest = largest
        self._sent = 0
        self._done = 0
        self._lock = threading.Lock()  # guards _done
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write, name=f"writer to {topic}")
        self.crash: BaseException | None = None

    def _write(self) -> None:
        try:
            while not self._end.wait(self.PAUSE_S):
                if self._sent - self._done < MOST_UNDELIVERED:
                    partition = self._rng.randrange(self.partitions)
                    for _ in range(self._rng.randint(1, 20)):
                        self._send(partition)
        except BaseException as error:
            self.crash = error
            raise

    def _send(self, partition: int) -> None:
        rng, entries = self._rng, self.entries[partition]
        # Sizes from tens of bytes to the largest, each order of magnitude equally often.
        size = int(10 ** rng.uniform(1, math.log10(self._largest)))
        start = rng.randrange(len(self._filler) - size)
        value = b"%d/%d/" % (partition, len(entries)) + self._filler[start : start + size]
        key = rng.choice((None, b"", b"key %d" % len(entries)))
        entry = Entry(partition, len(entries), key, value, self.log.now_s())
        entries.append(entry)
        self._sent += 1
        try:
            future = self._producer.send(self.topic, value, key=key, partition=partition)
        except errors.KafkaError as error:
            # The record was not accepted, so it is certainly not written.
            self._settle(entry, error)
            entry.maybe_written = False
        else:
            future.add_both(self._settle, entry)

    def _settle(self, entry: Entry, outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            entry.error = outcome
            entry.maybe_written = getattr(outcome, "maybe_written", None)
        else:
            entry.told, entry.offset = outcome.partition, outcome.offset
        entry.done_s = self.log.now_s()
        # Takes the lock, because a future that is already done calls back on the writing thread.
        with self._lock:
            self._done += 1

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end.set()
        self._thread.join()
        if error is None:
            with contextlib.suppress(errors.KafkaTimeoutError):
                self._producer.flush(60)
            self.log.add(f"writer to {self.topic}: ended, {self._sent} sent, {self._done} done")

    def goal(self, records: int = 20) -> list[int]:
        """Returns each partition's number of records, plus ``records``."""
        return [len(entries) + records for entries in self.entries]

    def pass_by(self, goal: list[int] | None = None, timeout_s: float = 60) -> None:
        """Waits until that many records per partition are sent and have an outcome. Default: 20 more than
        now."""
        wanted = goal or self.goal()
        deadline = self.log.now_s() + timeout_s
        while not all(
            len(entries) >= count and entries[count - 1].done_s is not None
            for entries, count in zip(self.entries, wanted, strict=True)
        ):
            if self.crash is not None or self.log.now_s() > deadline:
                waiting = [str(e) for entries in self.entries for e in entries if e.done_s is None][:5]
                raise AssertionError(
                    f"records have no outcome within {timeout_s} s ({self.crash!r}):\n"
                    + "\n".join(waiting)
                    + f"\n{self.log}"
                )
            self._end.wait(self.PAUSE_S)


class Reckoning:
    """Compares the records read from a writer's topic with the outcomes that the writer got.

    Args:
        writer: The only writer of the topic, which has ended.
        found: All records of the topic, sorted by partition and offset.
        twice: Whether a record may be written more than once.
        lost: Whether an acknowledged record may be missing.
        failed_until_s: Records sent before this time may have failed. With ``twice`` they may appear
            anywhere: without idempotence, a request that is still in flight may arrive later.
        since_s: Only acknowledged records sent after this time must be there: the topic was created then.
        restarts: Whether brokers were killed and restarted. From its snapshot a restarted broker knows only a
            producer's newest batch. If the response for an older batch was lost, the broker refuses the retry
            with OUT_OF_ORDER_SEQUENCE_NUMBER. Then its records may fail as maybe written, and are written
            once.
    """

    def __init__(
        self,
        writer: Writer,
        found: Iterable[Fetched],
        *,
        twice: bool = False,
        lost: bool = False,
        failed_until_s: float = 0,
        since_s: float = 0,
        restarts: bool = False,
    ) -> None:
        self._writer = writer
        self._restarts = restarts
        self._complaints: dict[str, list[str]] = defaultdict(list)
        self._places: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._read(found, strays=twice and failed_until_s > 0)
        for entries in writer.entries:
            for entry in entries:
                self._judge(entry, twice=twice, lost=lost, failed_until_s=failed_until_s, since_s=since_s)

    def check(self) -> None:
        """Raises AssertionError with all complaints and the log if any guarantee is broken."""
        if not self._complaints:
            return
        parts = []
        for kind, lines in self._complaints.items():
            shown = "\n".join(f"  {line}" for line in lines[:MOST_COMPLAINTS])
            parts.append(f"{len(lines)} {kind}:\n{shown}")
        raise AssertionError(f"topic {self._writer.topic}: " + "\n".join(parts) + f"\n{self._writer.log}")

    def acknowledged(self) -> int:
        return sum(entry.offset is not None for entries in self._writer.entries for entry in entries)

    def failures(self) -> Mapping[bool, int]:
        """Returns the number of failed records by ``maybe_written``."""
        counts = {True: 0, False: 0}
        for entries in self._writer.entries:
            for entry in entries:
                if entry.maybe_written is not None:
                    counts[entry.maybe_written] += 1
        return counts

    def _read(self, found: Iterable[Fetched], *, strays: bool) -> None:
        newest: dict[int, tuple[int, int]] = {}
        for record in found:
            entry = self._entry(record)
            if entry is None:
                self._complain("records that were never sent", f"{record}"[:300])
                continue
            place = (entry.partition, entry.number)
            first = place not in self._places
            self._places[place].append(record.offset)
            if strays and entry.error is not None:
                continue
            number, offset = newest.get(entry.partition, (-1, -1))
            if first and entry.number < number:
                self._complain(
                    "records out of order", f"{entry}; read at {record.offset}, but {number} at {offset}"
                )
            if entry.number > number:
                newest[entry.partition] = (entry.number, record.offset)

    def _entry(self, record: Fetched) -> Entry | None:
        """Returns the sent record that equals this one; ``None`` if there is none."""
        first, second, *_ = ((record.value or b"") + b"//").split(b"/", 2)
        if not (first.isdigit() and second.isdigit()) or int(first) != record.partition:
            return None
        entries = self._writer.entries[record.partition]
        if int(second) >= len(entries):
            return None
        entry = entries[int(second)]
        return entry if (entry.key, entry.value) == (record.key, record.value) else None

    def _judge(self, entry: Entry, *, twice: bool, lost: bool, failed_until_s: float, since_s: float) -> None:
        offsets = self._places.get((entry.partition, entry.number), [])
        known = f"{entry}; read at {offsets}"
        if entry.done_s is None:
            self._complain("records without an outcome", known)
            return
        if len(offsets) > 1 and not twice:
            self._complain("records written more than once", known)
        if entry.error is not None:
            if entry.sent_s >= failed_until_s and not (self._restarts and self._forgotten(entry, offsets)):
                self._complain("records failed", known)
            if entry.maybe_written is None:
                self._complain("failed records whose maybe_written is unknown", known)
            elif offsets and not entry.maybe_written:
                self._complain("records written that failed as not written", known)
            return
        if entry.told != entry.partition:
            self._complain(f"records acknowledged in partition {entry.told}", known)
        if offsets:
            # If a record is written twice, the acknowledged copy may be lost with its leader.
            if entry.offset not in offsets and not (twice and lost):
                self._complain("records not at their acknowledged offset", known)
        elif entry.sent_s >= since_s and not lost:
            self._complain("records lost", known)

    @staticmethod
    def _forgotten(entry: Entry, offsets: list[int]) -> bool:
        refused = isinstance(entry.error, errors.OutOfOrderSequenceNumberError)
        return refused and entry.maybe_written is True and len(offsets) == 1

    def _complain(self, kind: str, about: str) -> None:
        self._complaints[kind].append(about)
