"""Implements ``python -m cyproducer produce``: reads lines, sends records, counts the outcome of each.

Owns reading, counting and the handling of Ctrl-C. Does not parse lines (`line_format`). Does not own options,
exit codes or messages (`main`). Runs on the main thread, where Python delivers signals.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from cyproducer.cli.console import Progress, amount, one_line
from cyproducer.cli.line_format import Format, Header, LineError
from cyproducer.errors import (
    IllegalArgumentError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    SerializationError,
)

if TYPE_CHECKING:
    from cyproducer import KafkaProducer

CHUNK = 256 * 1024
CONNECT_TIMEOUT_S = 15
SETTLE_EVERY = 1_000
"""Records between two checks of the oldest futures: a compromise between memory and time."""
ERRORS_KEPT = 10

RECORD_ERRORS = (
    LineError,
    IllegalArgumentError,
    MessageSizeTooLargeError,
    SerializationError,
    TypeError,
    ValueError,
)
"""Errors that `send` raises because of one record. Any other error would also affect the next record."""


def connect(settings: dict[str, Any], timeout_s: float = CONNECT_TIMEOUT_S) -> KafkaProducer:
    """Creates a producer and waits until it has reached a broker.

    Raises:
        KafkaConfigurationError: An option is unknown or its value is not allowed.
        KafkaError: No broker responded within ``timeout_s``.
    """
    import cyproducer

    producer = cyproducer.KafkaProducer(**settings)
    try:
        producer.wait_ready(timeout_s)
    except BaseException:
        producer.close(0)
        raise
    return producer


class Interrupts:
    """Handles Ctrl-C for a program that must not stop in the middle of `send`. A context manager.

    The first Ctrl-C is recorded and interrupts only code inside `breaking`. The second raises
    KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.count = 0
        self._breaking = False
        self._previous: Any = None

    def __enter__(self) -> Interrupts:
        self._previous = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    @property
    def requested(self) -> bool:
        return self.count > 0

    @contextlib.contextmanager
    def breaking(self) -> Iterator[None]:
        """A block that may wait forever, and that is safe to interrupt at any point."""
        self._breaking = True
        try:
            # After the line above: an interrupt before that line is noticed here, and one after it raises.
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._breaking = False

    def _interrupt(self, _number: int, _frame: object) -> None:
        self.count += 1
        if self.count > 1 or self._breaking:
            raise KeyboardInterrupt


class LineProducer:
    """Sends the lines of files and counts the outcome of each. Not thread-safe.

    Args:
        producer: Used, not closed.
        topic: The topic of all records.
        parse: Converts a line to a record.
        headers: Put before each record's own headers.
        partition: For records that do not specify one.
        progress: Shows the records and bytes read.
    """

    def __init__(
        self,
        producer: KafkaProducer,
        topic: str,
        parse: Format,
        *,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        progress: Progress,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._parse = parse
        self._headers = list(headers)
        self._partition = partition
        self._progress = progress
        self._pending: deque[tuple[str, int, Any]] = deque()
        self._bytes_read = 0
        self.delivered = 0
        self.failed = 0
        self.unknown = 0
        """Records without an outcome when the drain timed out."""
        self.bytes_sent = 0
        """Bytes of keys and values passed to the producer, without headers and framing."""
        self.errors: list[str] = []
        """The first `ERRORS_KEPT` errors, each with its file and line."""

    def run(self, sources: Iterable[tuple[str, BinaryIO]], interrupts: Interrupts) -> None:
        """Send every line of ``sources``; returns after the last one, or after an interrupt.

        Raises:
            KafkaError: The cluster is unreachable or refuses. Records sent before must still be drained.
        """
        # Over all sources: there may be many, each of a few lines.
        sent = itertools.count(1)
        try:
            for name, stream in sources:
                for number, line in enumerate(self._lines(stream, interrupts), 1):
                    self._send(name, number, line)
                    if next(sent) % SETTLE_EVERY == 0:
                        self._settle(wait=False)
                if interrupts.requested:
                    return
        except KeyboardInterrupt:
            if interrupts.count > 1:
                raise

    def drain(self, timeout_s: float, interrupted_timeout_s: float, interrupts: Interrupts) -> None:
        """Wait for the records that were sent, and count their outcomes.

        Waits at most ``timeout_s`` seconds, or ``interrupted_timeout_s`` after an interrupt.
        """
        deadline_s = time.monotonic() + timeout_s
        hurried = False
        while (left_s := deadline_s - time.monotonic()) > 0:
            if interrupts.requested and not hurried:
                hurried = True
                deadline_s = min(deadline_s, time.monotonic() + interrupted_timeout_s)
                continue
            try:
                # In slices, to notice an interrupt: flush() itself would wait for its whole timeout.
                self._producer.flush(min(left_s, 0.5))
                break
            except KafkaTimeoutError:
                self._settle(wait=False)
                self._progress.update(self._bytes_read, f"waiting for {len(self._pending):,} records")
        self._settle(wait=True)
        self._progress.close()

    def _lines(self, stream: BinaryIO, interrupts: Interrupts) -> Iterator[bytes]:
        """The lines of a stream, without their ``\\n`` or ``\\r\\n``, as soon as they are available.

        Reads in chunks: otherwise a million lines would enter and leave `breaking` a million times.
        """
        read = getattr(stream, "read1", stream.read)
        unfinished: list[bytes] = []
        while True:
            with interrupts.breaking():
                chunk = read(CHUNK)
            if not chunk:
                break
            self._bytes_read += len(chunk)
            head, *rest = chunk.split(b"\n")
            unfinished.append(head)
            if not rest:
                continue
            yield b"".join(unfinished).removesuffix(b"\r")
            unfinished = [rest.pop()]
            for line in rest:
                yield line.removesuffix(b"\r")
            done = self.delivered + self.failed + len(self._pending)
            self._progress.update(self._bytes_read, f"{done:,} records, {amount(self._bytes_read)}")
            if interrupts.requested:
                return
        if last := b"".join(unfinished):
            yield last

    def _send(self, name: str, number: int, line: bytes) -> None:
        try:
            record = self._parse(line)
            if record is None:
                return
            future = self._producer.send(
                self._topic,
                value=record.value,
                key=record.key,
                headers=[*self._headers, *record.headers],
                partition=self._partition if record.partition is None else record.partition,
                timestamp_ms=record.timestamp_ms,
            )
        except RECORD_ERRORS as error:
            self._fail(name, number, error)
            return
        except KafkaError as error:
            self._fail(name, number, error)
            raise
        self.bytes_sent += len(record.value or b"") + len(record.key or b"")
        self._pending.append((name, number, future))

    def _settle(self, *, wait: bool) -> None:
        """Count outcomes up to the first pending record. With ``wait``, count pending records as unknown."""
        pending = self._pending
        while pending:
            name, number, future = pending[0]
            if not future.is_done:
                if not wait:
                    return
                self.unknown += 1
            elif future.exception is None:
                self.delivered += 1
            else:
                self._fail(name, number, future.exception)
            pending.popleft()

    def _fail(self, name: str, number: int, error: BaseException) -> None:
        self.failed += 1
        if len(self.errors) < ERRORS_KEPT:
            text = str(error) if isinstance(error, LineError) else one_line(error)
            self.errors.append(f"{name}:{number}: {text}")
