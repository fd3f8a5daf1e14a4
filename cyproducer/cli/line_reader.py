"""Splits a stream into lines, or reads a whole stream. Does not parse records (`line_format`) or send them.

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
        limit: The maximum length of a line, in bytes. A longer line is reported and skipped, and is not kept
            in memory.
        refuse: Called with the number of a line that is too long, and the error.
        idle: Called every `IDLE_EVERY_S` seconds while the stream has nothing to read, until it returns
            False. It can raise an exception to end reading.
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
        # Returns the available bytes instead of waiting until a buffer is full. CHUNK is larger than the
        # stream's own buffer, so no bytes remain in that buffer, where poll() would not see them.
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
        # In-memory streams have no file descriptor and are never idle.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            descriptor = stream.fileno()
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN)

    @property
    def unfinished(self) -> int:
        """The number of bytes of the last line, if it has not ended yet."""
        return len(self._rest)

    def blocks(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yields the number of the next line, and some lines without their delimiters, until the stream ends.

        Reads in chunks: otherwise, a million lines would enter and leave ``breaking`` a million times.
        """
        rest, delimiter = self._rest, self._delimiter
        skipping = False
        while chunk := self._read():
            self.bytes_read += len(chunk)
            # Search only the new bytes, and a delimiter that begins before them.
            begin = max(0, len(rest) - len(delimiter) + 1)
            rest += chunk
            if rest.find(delimiter, begin) >= 0:
                data = bytes(rest)
                # Searching for one byte is many times faster than searching for two.
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
                # Keep the last bytes: the delimiter may begin there.
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
    """Returns the contents of a whole stream as one value.

    Raises:
        LineError: The stream has more than ``limit`` bytes. No more than that is kept in memory.
    """
    content = bytearray()
    while len(content) <= limit:
        with interrupts.breaking():
            chunk = stream.read(limit + 1 - len(content))
        if not chunk:
            return bytes(content)
        content += chunk
    raise LineError("file too large", f"more than max_request_size={limit} bytes")
