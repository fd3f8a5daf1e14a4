"""Limits repeated log lines: one line per second and kind, with a count of the others.

Owns which line is logged now, which is held back, and when the held ones are reported. Does not own the log's
destination or the clock. Not thread-safe: everything runs with the loop lock held.

If a broker rejects a topic, batches of all its partitions fail repeatedly. That is one event, not thousands
of lines, each of which a log handler may write to disk or send over a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cyproducer.base.text import counted

INTERVAL_MS = 1000.0


class _Kind:
    """Lines of one kind; they are held back until ``until_ms``."""

    __slots__ = ("held", "latest", "records", "until_ms")

    def __init__(self, until_ms: float) -> None:
        self.until_ms = until_ms
        self.held = 0
        self.records = 0
        self.latest: tuple[int, int, str, tuple[object, ...]] = (0, 0, "", ())


class LogLimit:
    """Logs one line per second and kind. A kind is a level, a text and the classes of the errors among its
    arguments.

    After that second one line reports the lines held back: the latest of them and the number of the others.
    It is logged with the next line of the kind, or by ``flush``.
    """

    def __init__(self, log: Callable[..., object], on_held: Callable[[], object] = lambda: None) -> None:
        """
        Args:
            log: called with level, text and the text's arguments.
            on_held: called when the first line of a kind is held back, so that ``flush`` gets called later.
        """
        self._log = log
        self._on_held = on_held
        self._kinds: dict[object, _Kind] = {}

    def add(self, level: int, records: int, text: str, args: tuple[object, ...], now_ms: float) -> None:
        """Logs ``text % args``, or holds it back. ``records`` is the number of affected records, or 0."""
        name = level, text, *(type(each) for each in args if isinstance(each, BaseException))
        kind = self._kinds.get(name)
        if kind is None:
            self._kinds[name] = _Kind(now_ms + INTERVAL_MS)
            self._log(level, text, *args)
            return
        kind.held += 1
        kind.records += records
        kind.latest = level, records, text, args
        if now_ms >= kind.until_ms:
            self._report(kind, now_ms)
        elif kind.held == 1:
            self._on_held()

    def flush(self, now_ms: float) -> float:
        """Logs the lines held back for long enough; returns the milliseconds until the next ones are due."""
        due_ms = math.inf
        for name, kind in list(self._kinds.items()):
            if now_ms < kind.until_ms:
                if kind.held:
                    due_ms = min(due_ms, kind.until_ms - now_ms)
            elif kind.held:
                self._report(kind, now_ms)
            else:
                del self._kinds[name]
        return due_ms

    def _report(self, kind: _Kind, now_ms: float) -> None:
        level, records, text, args = kind.latest
        more, of_records = kind.held - 1, kind.records - records
        kind.until_ms = now_ms + INTERVAL_MS
        kind.held = kind.records = 0
        if of_records:
            text += f" (and {more} more like it, of {counted(of_records, 'record')}, in the last second)"
        elif more:
            text += f" (and {more} more in the last second)"
        self._log(level, text, *args)
