"""Words for messages. Pure functions; any thread may call them."""


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: ``1 record``, ``2 records``, ``1,000 batches``."""
    plural = noun + ("es" if noun.endswith(("ch", "s", "x")) else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def line_prefix(client_id: str) -> str:
    """Returns the beginning of log lines about a producer."""
    return f"[producer {client_id}] "
