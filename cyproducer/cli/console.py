"""Console output of the commands: lines, progress, tables, amounts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from cyproducer.base.clock import monotonic_s
from cyproducer.base.text import printable

DRAW_EVERY_S = 0.1
WRITE_EVERY_S = 1.0
BAR_WIDTH = 30


def say(stream: TextIO | None, *lines: str) -> None:
    """Writes and flushes lines, without control characters. Does nothing if the reader of the stream has
    exited, such as ``head`` in a pipeline."""
    _write(stream, "".join(f"{printable(line)}\n" for line in lines))


def complain(text: str, status: int = 1) -> int:
    """Writes to stderr what went wrong; returns the exit code."""
    say(sys.stderr, f"cyproducer: {text}")
    return status


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Discards further output, including the stream's buffered output, which Python flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


class Progress:
    """A progress line that is redrawn in place, at most ten times per second.

    Args:
        stream: Usually stderr.
        total: The value of `update`'s ``done`` at the end; 0 if it is unknown, for a line without a bar.
        asked: Also write to a stream that is not a terminal: a new line each time, at most once per second.
        silent: Write nothing.
    """

    def __init__(
        self, stream: TextIO | None, total: int = 0, *, asked: bool = False, silent: bool = False
    ) -> None:
        self._stream = stream
        self._total = total
        self._redrawn = stream is not None and stream.isatty()
        self._shown = (self._redrawn or asked) and not silent
        self._next_s = 0.0
        self._width = 0
        # Some terminal encodings do not have the block characters.
        encoding = "" if stream is None else (stream.encoding or "").lower()
        self._full, self._empty = ("█", "░") if "utf" in encoding else ("#", ".")

    def update(self, done: int, text: str) -> None:
        """Show how much is done."""
        if self._shown and (now := monotonic_s()) >= self._next_s:
            self._next_s = now + (DRAW_EVERY_S if self._redrawn else WRITE_EVERY_S)
            line = f"{self._bar(done)}{printable(text)}"
            if self._redrawn:
                self._draw(line)
            else:
                say(self._stream, line)

    def close(self) -> None:
        """Clear the line for further output."""
        if self._width:
            self._draw("")
            _write(self._stream, "\r")
            self._width = 0

    def _bar(self, done: int) -> str:
        if self._total <= 0:
            return ""
        share = min(1.0, done / self._total)
        full = int(share * BAR_WIDTH)
        return f"{self._full * full}{self._empty * (BAR_WIDTH - full)} {share:4.0%}  "

    def _draw(self, line: str) -> None:
        # Spaces overwrite the rest of a longer previous line.
        _write(self._stream, f"\r{line:<{self._width}}")
        self._width = len(line)


def amount(size: float) -> str:
    """Human-readable size in bytes: ``12.3 MB`` (powers of ten)."""
    # Compare the rounded size, as it is shown: 999,960 bytes are 1.0 MB, not 1000.0 kB.
    if round(size) < 1000:
        return f"{size:.0f} B"
    units = ["kB", "MB", "GB", "TB"]
    while round(size := size / 1000, 1) >= 1000 and len(units) > 1:
        units.pop(0)
    return f"{size:.1f} {units[0]}"


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """The lines of a two-column table: names on the left, values on the right."""
    rows = [(printable(name), printable(value)) for name, value in rows]
    name_width = max(len(name) for name, _ in rows)
    value_width = max(len(value) for _, value in rows)
    return [f"  {name:<{name_width}}  {value:>{value_width}}" for name, value in rows]


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table with a header row. Each column is as wide as its widest cell."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def one_line(error: BaseException) -> str:
    """An exception as one line. The class name is added if the text does not contain it."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    if not text:
        return kind
    return text if kind in text else f"{kind}: {text}"
