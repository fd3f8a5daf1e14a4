"""Rows that can't be written, written elsewhere with the cause.

Owns: the records of the dead letter topic. Does not own: which rows are dead (``sending``). One thread uses
it.

A dead letter has the row's key, value and headers, and five headers more: ``cyproducer.error.topic`` and
``.partition`` (where it was to go; absent where that is not known), ``.class``, ``.message`` and, where key
or value had to be cut to what a request may have, ``.bytes`` (theirs, before).
"""

from typing import Any, Final

import pyarrow as pa

from cyproducer.producer import KafkaProducer
from cyproducer.spark.columns import Columns

PREFIX: Final = "cyproducer.error."
_MOST_MESSAGE: Final = 1000
_OVERHEAD: Final = 1024
"""Bytes of a request and a batch around one record, at most; of the headers' own lengths too."""


class DeadLetters:
    """Sends them; ``finish()`` waits for all."""

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        self._producer = producer
        self.topic = topic
        self._sent: list[Any] = []

    def send(
        self,
        topic: str | None,
        partition: int | None,
        rows: pa.RecordBatch,
        columns: Columns,
        cause: BaseException,
    ) -> None:
        """Sends rows that ``cause`` kept from ``topic``."""
        about: list[tuple[str, bytes]] = [
            (f"{PREFIX}class", type(cause).__name__.encode()),
            (f"{PREFIX}message", str(cause).encode()[:_MOST_MESSAGE]),
        ]
        if topic is not None:
            about.insert(0, (f"{PREFIX}topic", topic.encode()))
        if partition is not None:
            about.append((f"{PREFIX}partition", b"%d" % partition))
        for row in rows.to_pylist():
            self._send_row(row, columns, about)

    def finish(self) -> int:
        """How many there were, all of them acknowledged; raises the first one's error otherwise."""
        for future in self._sent:
            future.get()
        return len(self._sent)

    def _send_row(self, row: dict[str, Any], columns: Columns, about: list[tuple[str, bytes]]) -> None:
        key = _bytes(row[columns.key]) if columns.key is not None else None
        value = _bytes(row[columns.value])
        headers = [*_headers(row, columns), *about]
        room = self._producer.config.max_request_size - _OVERHEAD
        room -= sum(len(name) + len(content or b"") + 10 for name, content in headers)
        size = len(key or b"") + len(value or b"")
        if size > room:
            headers.append((f"{PREFIX}bytes", b"%d" % size))
            key = key[: max(0, room // 2)] if key is not None else None
            value = value[: max(0, room - len(key or b""))] if value is not None else None
        if key is None and value is None:
            # Something must be there.
            value = b""
        self._sent.append(self._producer.send(self.topic, value, key, headers))


def _headers(row: dict[str, Any], columns: Columns) -> list[tuple[str, bytes | None]]:
    found = row[columns.headers] if columns.headers is not None else None
    pairs = [tuple(each.values()) for each in found or () if each is not None]
    return [(name, _bytes(content)) for name, content in pairs if name is not None]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
