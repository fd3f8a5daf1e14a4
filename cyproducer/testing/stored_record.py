"""``StoredRecord``: what ``EmbeddedBroker.records()`` returns."""

from typing import NamedTuple


class StoredRecord(NamedTuple):
    """A record in the log of an ``EmbeddedBroker``. ``timestamp`` is in milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
