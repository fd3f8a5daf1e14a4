"""Console output of the commands: progress, tables, amounts. Writes only to the given streams."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

DRAW_EVERY_S = 0.1
BAR_WIDTH = 30


class Progress:
    """A progress line that is redrawn in place. Silent if ``stream`` is not a terminal.

    Args:
        stream: Usually stderr.
        total: The value of `update`'s ``done`` at the end; 0 if it is unknown, for a line without a bar.
    """

    def __init__(self, stream: TextIO, total: int = 0) -> None:
        self._stream = stream
        self._total = total
        self._shown = stream.isatty()
        self._next_s = 0.0
        self._width = 0
        # Not every terminal's encoding has the block characters.
        self._full, self._empty = ("█", "░") if "utf" in (stream.encoding or "").lower() else ("#", ".")

    def update(self, done: int, text: str) -> None:
        """Redraw the line, at most ten times a second."""
        if self._shown and (now := time.monotonic()) >= self._next_s:
            self._next_s = now + DRAW_EVERY_S
            self._draw(f"{self._bar(done)}{text}")

    def close(self) -> None:
        """Clear the line for further output."""
        if self._width:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()
            self._width = 0

    def _bar(self, done: int) -> str:
        if self._total <= 0:
            return ""
        share = min(1.0, done / self._total)
        full = int(share * BAR_WIDTH)
        return f"{self._full * full}{self._empty * (BAR_WIDTH - full)} {share:4.0%}  "

    def _draw(self, line: str) -> None:
        # Blanks overwrite the rest of a longer previous line.
        self._stream.write(f"\r{line:<{self._width}}")
        self._stream.flush()
        self._width = len(line)


def amount(size: float) -> str:
    """Human-readable size in bytes: ``12.3 MB`` (powers of ten)."""
    # Rounded as it is shown: 999,960 bytes are 1.0 MB, not 1000.0 kB.
    if round(size) < 1000:
        return f"{size:.0f} B"
    units = ["kB", "MB", "GB", "TB"]
    while round(size := size / 1000, 1) >= 1000 and len(units) > 1:
        units.pop(0)
    return f"{size:.1f} {units[0]}"


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Two columns: names on the left, values on the right."""
    name_width = max(len(name) for name, _ in rows)
    value_width = max(len(value) for _, value in rows)
    return "\n".join(f"  {name:<{name_width}}  {value:>{value_width}}" for name, value in rows)


def one_line(error: BaseException) -> str:
    """An exception as one line. The class name is added if the text does not contain it."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    if not text:
        return kind
    return text if kind in text else f"{kind}: {text}"
