"""Divides a stream into lines, or reads it whole. Knows nothing of records (`line_format`) or of sending.

Runs on the main thread, where signals interrupt it (`interrupts`).
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterator
from typing import BinaryIO

from cyproducer.cli.interrupts import Interrupts
from cyproducer.cli.line_format import LineError

CHUNK = 256 * 1024
IDLE_EVERY_S = 0.2


class LineReader:
    """The lines of one stream, as soon as they are available. Not thread-safe.

    Args:
        stream: Read from its current position; not closed.
        delimiter: Ends a line. ``None``: ``\\n`` or ``\\r\\n``.
        limit: The longest line, in bytes. What is longer is reported and skipped, and not kept in memory.
        refuse: Called with the number of such a line and the error.
        idle: Called while the stream has nothing to read, every `IDLE_EVERY_S` seconds, until it returns
            False. May raise, to end reading.
    """

    def __init__(
        self,
        stream: BinaryIO,
        interrupts: Interrupts,
        *,
        delimiter: bytes | None,
        limit: int,
        refuse: Callable[[int, LineError], None],
        idle: Callable[[], bool],
    ) -> None:
        # Returns what there is instead of waiting until a buffer is full. CHUNK is larger than the stream's
        # own buffer, so nothing stays there, where poll() would not see it.
        self._read_some: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
        self._interrupts = interrupts
        self._strips = delimiter is None
        self._delimiter = delimiter or b"\n"
        self._limit = max(limit, CHUNK)
        self._refuse = refuse
        self._idle = idle
        self._rest = bytearray()
        self.number = 1
        """The number of the next line."""
        self.bytes_read = 0
        self._poll: select.poll | None = None
        # Streams in memory have no descriptor, and are never idle.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            descriptor = stream.fileno()
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN)

    @property
    def unfinished(self) -> int:
        """The bytes of a last line that has not ended yet."""
        return len(self._rest)

    def blocks(self) -> Iterator[tuple[int, list[bytes]]]:
        """Some lines without their delimiters, and the number of the first.

        Reads in chunks: a million lines would otherwise enter and leave ``breaking`` a million times.
        """
        rest, delimiter = self._rest, self._delimiter
        skipping = False
        while chunk := self._read():
            self.bytes_read += len(chunk)
            # Searches only what is new, and the beginning of a delimiter before it.
            begin = max(0, len(rest) - len(delimiter) + 1)
            rest += chunk
            if rest.find(delimiter, begin) >= 0:
                data = bytes(rest)
                # Searching for one byte is many times faster than for two.
                if self._strips and b"\r" in data:
                    data = data.replace(b"\r\n", b"\n")
                lines = data.split(delimiter)
                rest[:] = lines.pop()
                if skipping or len(lines[0]) > self._limit:
                    if not skipping:
                        self._too_long()
                    skipping = False
                    self.number += 1
                    del lines[0]
                if lines:
                    first, self.number = self.number, self.number + len(lines)
                    yield first, lines
            if len(rest) > self._limit or skipping:
                if not skipping:
                    self._too_long()
                skipping = True
                # The delimiter may have begun.
                del rest[: max(0, len(rest) - len(delimiter) + 1)]
        last = b"" if skipping else bytes(rest)
        rest.clear()
        if last:
            self.number += 1
            yield self.number - 1, [last]

    def _too_long(self) -> None:
        self._refuse(
            self.number,
            LineError("line too long", f"more than {self._limit:,} bytes; skipped up to its end"),
        )

    def _read(self) -> bytes:
        if self._poll is not None and not self._poll.poll(0):
            while self._idle():
                with self._interrupts.breaking():
                    if self._poll.poll(IDLE_EVERY_S * 1000):
                        break
        with self._interrupts.breaking():
            return self._read_some(CHUNK)


def whole(stream: BinaryIO, limit: int, interrupts: Interrupts) -> bytes:
    """All of a stream as one value.

    Raises:
        LineError: It has more than ``limit`` bytes; no more than that is kept in memory.
    """
    content = bytearray()
    while len(content) <= limit:
        with interrupts.breaking():
            chunk = stream.read(limit + 1 - len(content))
        if not chunk:
            return bytes(content)
        content += chunk
    raise LineError("file too large", f"more than max_request_size={limit} bytes")
