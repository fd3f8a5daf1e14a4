"""Implements ``cyproducer produce``: sends the lines of files as records and counts the outcome of each.

Owns sending and counting. Does not read or parse lines (`line_reader`, `line_format`). Does not own options,
exit codes or messages (`produce`). Runs on the main thread, where Python delivers signals.

The lines of one read are sent together. If they have only keys and values, ``send_many`` sends them, which
takes a fraction of the CPU time of one call per line; otherwise, ``send`` does.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

from cyproducer.cli.console import Progress, amount
from cyproducer.cli.failures import Failures
from cyproducer.cli.interrupts import Interrupts, accept, accept_each
from cyproducer.cli.line_format import Format, Header, LineError, Record
from cyproducer.cli.line_reader import LineReader, whole
from cyproducer.errors import (
    AbortableError,
    BulkSendError,
    IllegalArgumentError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    SerializationError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from cyproducer import KafkaProducer

CONNECT_TIMEOUT_S = 15
MOST_PENDING = 100_000
"""The maximum number of calls whose outcome is not known. ``buffer_memory`` bounds the bytes of records, but
the futures of small records that are sent one by one take many times as much memory."""
LINE_LIMIT = 8
"""The maximum length of a line, relative to max_request_size: a JSON escape takes up to six bytes for one."""

RECORD_ERRORS = (
    LineError,
    IllegalArgumentError,
    MessageSizeTooLargeError,
    SerializationError,
    TypeError,
    ValueError,
)
"""Errors that sending raises because of one record. Any other error would also affect the next record."""

_T = TypeVar("_T")

Source = tuple[str, AbstractContextManager[BinaryIO]]
"""The name of a file in messages, and the file, which is opened when the context is entered."""


def connect(settings: dict[str, Any], timeout_s: float = CONNECT_TIMEOUT_S) -> KafkaProducer:
    """Creates a producer and waits until it has reached a broker. Then takes over its transactional id, if it
    has one.

    Raises:
        KafkaConfigurationError: An option is unknown or its value is not allowed.
        KafkaError: No broker responded within ``timeout_s``, no coordinator responded within
            ``max_block_ms``, or the transactional id was refused.
    """
    import cyproducer

    producer = cyproducer.KafkaProducer(**settings)
    try:
        producer.wait_ready(timeout_s)
        if producer.config.transactional_id is not None:
            producer.init_transactions()
    except BaseException:
        producer.close(0)
        raise
    return producer


class Defaults(NamedTuple):
    """The parts of a record that its line does not specify. ``headers`` precede the line's own headers."""

    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


NO_DEFAULTS = Defaults()


class Stopped(Exception):
    """Sending was stopped while the command waited for input."""


class LineProducer:
    """Sends the lines of files and counts the outcome of each. Not thread-safe.

    Args:
        producer: Used, not closed.
        topic: The topic of all records.
        format: Converts lines to records.
        failures: Counts what failed.
        progress: Shows the records and bytes read.
        interrupts: A signal stops reading, even in the middle of the lines that were read.
        delimiter: Ends a line; ``None``: a line feed, or carriage return and line feed.
        count: Stop after this many records, including failed ones; ``None``: at the end of the input.
        stop_on_error: Stop as soon as a record is known to have failed. A producer with a transactional id
            always stops then, because nothing is committed after a failure.
    """

    def __init__(
        self,
        producer: KafkaProducer,
        topic: str,
        format: Format,
        *,
        defaults: Defaults = NO_DEFAULTS,
        failures: Failures,
        progress: Progress,
        interrupts: Interrupts,
        delimiter: bytes | None = None,
        count: int | None = None,
        stop_on_error: bool = False,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._format = format
        self._defaults = defaults
        self._failures = failures
        self._progress = progress
        self._interrupts = interrupts
        self._delimiter = delimiter
        self._left = count
        self._transactional = producer.config.transactional_id is not None
        self._stop_on_error = stop_on_error or self._transactional
        #: The first record that failed only because the transaction failed.
        self._consequence: tuple[str, int | None, BaseException] | None = None
        #: Accepted records without a known outcome: their source, the numbers of their lines (None: the
        #: source is one record), and their future.
        self._pending: deque[tuple[str, Sequence[int | None], Any]] = deque()
        self._open = 0
        self._bytes_before = 0
        self._stopped = False
        self.accepted = 0
        """Records that the producer accepted, whatever their outcome."""
        self.delivered = 0
        self.unknown = 0
        """Records without an outcome when the drain timed out."""
        self.unsent = 0
        """Lines that were read but not sent, because sending was stopped."""
        self.stopped_at = ""
        """The first line that was not sent because sending was stopped; empty if there is none."""
        self.stopped_by: BaseException | None = None
        """The error that would also have affected all records after it."""
        self.bytes_accepted = 0
        """Bytes of keys and values that the producer accepted, without headers and framing."""

    def run(self, sources: Iterable[Source]) -> None:
        """Send every line of ``sources``; returns after the last one, or once sending was stopped.

        The records that were accepted must still be drained.
        """
        for name, source in sources:
            if self._left == 0:
                return
            if self._stopped:
                self._stop(name, 1, 0)
                return
            try:
                with self._opened(source) as stream:
                    self._run_one(name, stream)
            except KeyboardInterrupt:
                if self._interrupts.count > 1:
                    raise
                self._stop(name, 1, 0)
            except OSError as error:
                self._fail(name, None, error)

    def run_whole(self, sources: Iterable[Source]) -> None:
        """Send each of ``sources`` as one record; otherwise like `run`."""
        for name, source in sources:
            if self._left == 0:
                return
            if self._stopped:
                self._stop(name, None, 0)
                return
            try:
                with self._opened(source) as stream:
                    value = whole(stream, self._producer.config.max_request_size, self._interrupts)
            except KeyboardInterrupt:
                if self._interrupts.count > 1:
                    raise
                self._stop(name, None, 0)
                return
            except (OSError, LineError) as error:
                self._take(1)
                self._fail(name, None, error)
                continue
            self._take(1)
            self._bytes_before += len(value)
            self._send_each(name, [None], [value])
            self._settle()
            self._show_progress("")

    def drain(self, timeout_s: float, interrupted_timeout_s: float) -> None:
        """Wait for the records that were accepted, and count their outcomes.

        Waits at most ``timeout_s`` seconds, or ``interrupted_timeout_s`` after a signal.
        """

        def waiting() -> None:
            self._settle()
            self._show_progress("waiting for ")

        with contextlib.suppress(KafkaTimeoutError):
            self._interrupts.in_slices(self._producer.flush, timeout_s, interrupted_timeout_s, waiting)
        self.give_up()

    def give_up(self) -> None:
        """Count the records that have no outcome yet as unknown."""
        self._settle()
        self.unknown += self._open
        self._forget()

    def let_go(self) -> None:
        """Count the outcomes that are known. The others do not matter, because the transaction is aborted."""
        for name, numbers, future in self._pending:
            if future.is_done:
                self._count(name, numbers, future)
        self._forget()
        if self._consequence is not None and not self._failures.count:
            self._fail(*self._consequence)

    def _forget(self) -> None:
        self._open = 0
        self._pending.clear()
        self._progress.close()

    # Reading

    @contextlib.contextmanager
    def _opened(self, source: AbstractContextManager[BinaryIO]) -> Iterator[BinaryIO]:
        with contextlib.ExitStack() as stack:
            # Opening a named pipe blocks until a writer opens it.
            with self._interrupts.breaking():
                stream = stack.enter_context(source)
            yield stream

    def _run_one(self, name: str, stream: BinaryIO) -> None:
        def refuse(number: int, error: LineError) -> None:
            self._take(1)
            self._fail(name, number, error)

        def idle() -> bool:
            # While records have no outcome yet, show a failure when it happens, not when the next line is
            # read.
            self._settle()
            if self._stopped:
                raise Stopped
            return bool(self._pending)

        lines = LineReader(
            stream,
            self._interrupts,
            delimiter=self._delimiter,
            limit=LINE_LIMIT * self._producer.config.max_request_size,
            refuse=refuse,
            idle=idle,
        )
        try:
            for first, block in lines.blocks():
                self._send_lines(name, first, block)
                self._settle()
                self._show_progress("", lines.bytes_read)
                if self._left == 0 or self._stopped or self._interrupts.requested:
                    break
        except Stopped:
            pass
        except KeyboardInterrupt:
            if self._interrupts.count > 1:
                raise
        finally:
            self._bytes_before += lines.bytes_read
        if self._stopped or self._interrupts.requested:
            self._stop(name, lines.number, 1 if lines.unfinished else 0)

    def _send_lines(self, name: str, first: int, lines: list[bytes]) -> None:
        # In a format for which this returns None, a line need not be a record.
        columns = self._format.columns(lines[: self._left])
        if columns is not None:
            records = len(columns.values)
            self._take(records)
            send = self._send_each if self._defaults.headers else self._send_many
            send(name, range(first, first + records), *columns)
            return
        numbers: list[int] = []
        found: list[Record] = []
        for number, line in enumerate(lines, first):
            try:
                record = self._format.parse(line)
            except LineError as error:
                self._take(1)
                if self._stop_on_error:
                    self._send_records(name, numbers, found)
                    numbers, found = [], []
                self._fail(name, number, error)
            else:
                if record is None:
                    continue
                self._take(1)
                numbers.append(number)
                found.append(record)
            if self._stopped or self._left == 0 or self._interrupts.requested:
                self._send_records(name, numbers, found)
                if self._left != 0:
                    self._stop(name, number + 1, first + len(lines) - number - 1)
                return
        self._send_records(name, numbers, found)

    # Sending

    def _send_records(self, name: str, numbers: list[int], records: list[Record]) -> None:
        if not records:
            return
        values, keys, headers, partitions, timestamps = map(list, zip(*records, strict=True))
        if self._defaults.headers or any(headers) or {*partitions, *timestamps} != {None}:
            self._send_each(name, numbers, values, keys, headers, partitions, timestamps)
        else:
            self._send_many(name, numbers, values, keys)

    def _send_many(
        self,
        name: str,
        numbers: Sequence[int],
        values: list[bytes | None],
        keys: list[bytes | None] | None,
    ) -> None:
        default = self._defaults
        if default.key is not None:
            keys = [default.key if key is None else key for key in keys or [None] * len(values)]
        send_many = partial(
            self._producer.send_many,
            self._topic,
            keys=keys,
            partition=default.partition,
            timestamp_ms=default.timestamp_ms,
        )
        future, accepted, error = accept(send_many, values, len(values), self._interrupts)
        if accepted:
            self._pending.append((name, numbers[:accepted], future))
            self._open += accepted
            self.accepted += accepted
            self.bytes_accepted += _size(values[:accepted]) + _size((keys or ())[:accepted])
        if error is None:
            return
        if isinstance(error, RECORD_ERRORS) and self._transactional:
            # The transaction accepts no more records: report only the record that is not allowed.
            row = accepted + _row(error)
            one = slice(row, row + 1)
            self._send_each(name, numbers[one], values[one], keys and keys[one])
            self._stop(name, numbers[0], len(values) - 1)
            return
        if isinstance(error, RECORD_ERRORS):
            # At least one record is not allowed. Send the records one by one, so that each gets its own
            # outcome.
            self._send_each(name, numbers[accepted:], values[accepted:], keys and keys[accepted:])
            return
        self._stop_for(error, name, numbers[accepted], len(values) - accepted)

    def _send_each(
        self,
        name: str,
        numbers: Sequence[int | None],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[tuple[Header, ...]] | None = None,
        partitions: Sequence[int | None] | None = None,
        timestamps: Sequence[int | None] | None = None,
    ) -> None:
        """Send records one by one: those with headers, or with their own partition or timestamp."""
        count = len(values)
        default = self._defaults
        own_partitions = partitions or [None] * count
        columns: tuple[Sequence[Any], ...] = (
            values,
            _filled(keys, default.key, count),
            _with(default.headers, headers, count),
            _filled(partitions, default.partition, count),
            _filled(timestamps, default.timestamp_ms, count),
        )
        begin = 0
        while begin < count:
            self._await_room()
            end = min(count, begin + max(1, MOST_PENDING - len(self._pending)))
            rows = (repeat(self._topic), *(column[begin:end] for column in columns))
            futures, error = accept_each(self._producer.send, rows, self._interrupts)
            accepted = begin + len(futures)
            self._pending.extend(zip(repeat(name), zip(numbers[begin:accepted]), futures))
            self._open += len(futures)
            self.accepted += len(futures)
            self.bytes_accepted += _size(columns[0][begin:accepted]) + _size(columns[1][begin:accepted])
            begin = accepted
            if error is None or begin == end:
                continue
            if not isinstance(error, RECORD_ERRORS) and (
                own_partitions[begin] is None or not isinstance(error, UnknownTopicOrPartitionError)
            ):
                self._stop_for(error, name, numbers[begin], count - begin)
                return
            self._fail(name, numbers[begin], error)
            begin += 1
            if self._stopped and begin < count:
                self._stop(name, numbers[begin], count - begin)
                return

    def _await_room(self) -> None:
        """Wait until fewer than `MOST_PENDING` calls have no outcome, or until a signal is received."""
        while len(self._pending) >= MOST_PENDING and not self._interrupts.requested:
            try:
                with self._interrupts.breaking():
                    self._pending[0][2].get(0.5)
            except KafkaError:
                # A timeout, or the outcome of the call, which is counted below.
                pass
            except KeyboardInterrupt:
                if self._interrupts.count > 1:
                    raise
                return
            self._settle()
            self._show_progress("")

    def _take(self, records: int) -> None:
        if self._left is not None:
            self._left = max(0, self._left - records)

    # Stopping

    def _stop_for(self, error: BaseException, name: str, number: int | None, unsent: int) -> None:
        """Stop because a call was interrupted, or raised an error that the next records would also raise."""
        if isinstance(error, KeyboardInterrupt):
            self._stop(name, number, unsent)
            return
        if isinstance(error, AbortableError):
            # An earlier record caused the error: report that record.
            self._settle()
            if self._stopped:
                self._stop(name, number, unsent)
                return
        self.stopped_by = error
        self._fail(name, number, error)
        self._stop(name, None if number is None else number + 1, unsent - 1)

    def _stop(self, name: str, number: int | None, unsent: int) -> None:
        self._stopped = True
        self.unsent += unsent
        self.stopped_at = self.stopped_at or _place(name, number)

    def _fail(self, name: str, number: int | None, error: BaseException, records: int = 1) -> None:
        self._progress.close()
        self._failures.add(_place(name, number), error, records)
        if self._stop_on_error:
            self._stopped = True

    # Outcomes

    def _settle(self) -> None:
        """Count the outcomes that are known, up to the first record without one."""
        pending = self._pending
        while pending and pending[0][2].is_done:
            self._count(*pending.popleft())

    def _count(self, name: str, numbers: Sequence[int | None], future: Any) -> None:
        error = future.exception
        records = len(numbers)
        self._open -= records
        if error is None:
            self.delivered += records
        elif isinstance(error, BulkSendError):
            for failed in sorted(error.failures, key=lambda failed: failed.rows[0]):
                self._fail_accepted(name, numbers[failed.rows[0]], failed.error, len(failed.rows))
                records -= len(failed.rows)
            self.delivered += records
        else:
            self._fail_accepted(name, numbers[0], error, records)

    def _fail_accepted(self, name: str, number: int | None, error: BaseException, records: int) -> None:
        if isinstance(error, TransactionAbortedError):
            # Report the record that failed first, even if it was sent after this one.
            self._consequence = self._consequence or (name, number, error)
            self._stopped = True
        else:
            self._fail(name, number, error, records)

    def _show_progress(self, doing: str, bytes_read: int = 0) -> None:
        read = self._bytes_before + bytes_read
        self._progress.update(
            read,
            f"{self.delivered:,} delivered, {self._failures.count:,} failed, {doing}{self._open:,} on their "
            f"way, {amount(read)} read",
        )


def _filled(column: Sequence[_T | None] | None, default: _T | None, count: int) -> Sequence[_T | None]:
    """The column of ``count`` values, with ``default`` for those that are None."""
    if column is None:
        return [default] * count
    return column if default is None else [default if value is None else value for value in column]


def _with(
    before: tuple[Header, ...], column: Sequence[tuple[Header, ...]] | None, count: int
) -> Sequence[tuple[Header, ...]]:
    """The column of the headers of ``count`` records: ``before``, followed by each record's own headers."""
    if column is None:
        return [before] * count
    return [(*before, *own) for own in column] if before else column


def _size(values: Iterable[bytes | None]) -> int:
    return sum(map(len, filter(None, values)))


def _row(error: BaseException) -> int:
    """The index of the value or key that ``send_many`` refused. The message of ``error`` contains it."""
    found = re.search(r"\b(?:values|keys)\[(\d+)\]", str(error))
    return int(found[1]) if found else 0


def _place(name: str, number: int | None) -> str:
    return name if number is None else f"{name}:{number}"
