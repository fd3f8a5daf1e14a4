"""Makes the texts of brokers and other servers fit for messages and logs. Pure; any thread may call it."""

MOST_TEXT = 500


def printable(text: str) -> str:
    """The beginning of a server's text, without control characters."""
    return "".join(each if each.isprintable() else " " for each in text[:MOST_TEXT])
