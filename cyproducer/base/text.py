"""Text helpers for messages. Pure functions; any thread may call them."""

from __future__ import annotations

MOST_TEXT = 500
"""The maximum number of characters of a server's text in a message."""


def printable(text: str, most: int | None = None) -> str:
    """Returns the first ``most`` characters of a text (None: all), with unprintable characters escaped.

    Use it for every text from a broker, another server or a file: a line break in such a text would forge a
    log line, a control character acts on a terminal, and U+202E reverses the text that follows. Letters of
    all languages are printable. A text that is already escaped is not changed.
    """
    text = text[:most]
    if text.isprintable():
        return text
    # repr() escapes each unprintable character, and otherwise only quotes and backslashes.
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: ``1 record``, ``2 records``, ``1,000 batches``."""
    plural = noun + ("es" if noun.endswith(("ch", "s", "x")) else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def line_prefix(client_id: str) -> str:
    """Returns the beginning of log lines about a producer."""
    return f"[producer {printable(client_id)}] "
