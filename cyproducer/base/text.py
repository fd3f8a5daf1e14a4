"""Words for messages. Pure functions; any thread may call them."""

MOST_TEXT = 500
"""How many characters of a server's text a message has."""


def printable(text: str, most: int | None = None) -> str:
    """Returns the first ``most`` characters of a text, all without one, with what is not printable escaped.

    For every text that comes from a broker, another server or a file: a line break in it would forge a log
    line, a control character acts on a terminal, and U+202E reverses what follows. Letters of all languages
    are printable. A text that is escaped already stays as it is.
    """
    text = text[:most]
    if text.isprintable():
        return text
    # repr() escapes each character that is not printable, and nothing else but quotes and backslashes.
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: ``1 record``, ``2 records``, ``1,000 batches``."""
    plural = noun + ("es" if noun.endswith(("ch", "s", "x")) else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def line_prefix(client_id: str) -> str:
    """Returns the beginning of log lines about a producer."""
    return f"[producer {printable(client_id)}] "
