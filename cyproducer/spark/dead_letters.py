"""Writes rows to a dead letter topic, with the cause, if they can't be written to their own topic.

Owns the records of the dead letter topic. Does not decide which rows are sent there (``sending``). Not
thread-safe: use it from one thread.

A dead letter has the row's key, value and headers, and up to five more headers: ``cyproducer.error.topic``
and ``.partition`` (the row's destination; absent if it is not known), ``.class``, ``.message`` and, if key,
value or headers were cut to fit, ``.bytes`` (the original size of key and value).
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from cyproducer.errors import KafkaError, MessageSizeTooLargeError
from cyproducer.producer import KafkaProducer
from cyproducer.spark.columns import Columns
from cyproducer.spark.sharing import await_outcomes
from cyproducer.spark.summary import WrittenRange, merge_ranges

PREFIX: Final = "cyproducer.error."
CUT_BYTES: Final = 65536
"""Size to which a dead letter is cut if its topic's size limit is lower than ``max_request_size``."""
_MOST_MESSAGE: Final = 1000
_OVERHEAD: Final = 1024
"""Upper bound of the bytes around one record in a request: request, batch and the lengths of the headers."""
_UNDER_WAY: Final = 10_000

Headers = list[tuple[str, bytes | None]]


class DeadLetterError(KafkaError):
    """A dead letter could not be written either; ``__cause__`` is the reason."""


class _Letter(NamedTuple):
    future: Any
    key: bytes | None
    value: bytes | None
    headers: Headers
    about: Headers
    most: int


class DeadLetters:
    """Sends dead letters. ``finish()`` waits for all of them.

    Raises:
        DeadLetterError: the topic does not exist. Raised before any row is sent.
    """

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        self._producer = producer
        self.topic = topic
        self._letters: deque[_Letter] = deque()
        self._count = 0
        self._ranges: list[WrittenRange] = []
        try:
            producer.partitions_for(topic)
        except KafkaError as error:
            raise DeadLetterError(f"deadLetterTopic {topic!r}: {error}") from error

    def send(
        self,
        topic: str | None,
        partition: int | None,
        rows: pa.RecordBatch,
        columns: Columns,
        causes: Iterable[BaseException],
    ) -> None:
        """Sends rows that can't be written to ``topic``; ``causes`` has one exception per row."""
        place: Headers = [(f"{PREFIX}topic", topic.encode())] if topic is not None else []
        if partition is not None:
            place.append((f"{PREFIX}partition", b"%d" % partition))
        nothing = pa.nulls(rows.num_rows, pa.binary())
        keys = rows.column(columns.key).cast(pa.binary()) if columns.key is not None else nothing
        given = [None] * rows.num_rows
        if columns.headers is not None:
            given = _as_bytes(rows.column(columns.headers)).to_pylist()
        values = rows.column(columns.value).cast(pa.binary())
        most = self._producer.config.max_request_size - _OVERHEAD
        last: BaseException | None = None
        about: Headers = []
        columns_of_rows = keys.to_pylist(), values.to_pylist(), given, causes
        for key, value, headers, cause in zip(*columns_of_rows, strict=True):
            if cause is not last:
                about = [
                    *place,
                    (f"{PREFIX}class", type(cause).__name__.encode()),
                    (f"{PREFIX}message", str(cause).encode()[:_MOST_MESSAGE]),
                ]
                last = cause
            self._send(key, value, _pairs(headers), about, most)
            if len(self._letters) >= _UNDER_WAY:
                self._settle()

    def finish(self) -> int:
        """Waits until all dead letters are acknowledged, and returns their number.

        Raises:
            DeadLetterError: a dead letter could not be written.
        """
        while self._letters:
            await_outcomes(self._producer)
            # A dead letter that is cut and sent again needs another round.
            for _ in range(len(self._letters)):
                self._settle()
        return self._count

    @property
    def ranges(self) -> tuple[WrittenRange, ...]:
        """The ranges of the acknowledged dead letters."""
        return merge_ranges(self._ranges)

    def _send(
        self, key: bytes | None, value: bytes | None, headers: Headers, about: Headers, most: int
    ) -> None:
        size = len(key or b"") + len(value or b"")
        room = most - _bytes_of(about)
        kept, cut_key, cut_value = headers, key, value
        told = about
        if size + _bytes_of(headers) > room:
            told = [*about, (f"{PREFIX}bytes", b"%d" % size)]
            kept = headers if _bytes_of(headers) < room // 2 else []
            room -= _bytes_of(kept) + 64
            cut_key = key[: room // 2] if key is not None else None
            cut_value = value[: room - len(cut_key or b"")] if value is not None else None
        # A record needs a key or a value.
        sent_value = b"" if cut_key is None and cut_value is None else cut_value
        try:
            future = self._producer.send(self.topic, sent_value, cut_key, [*kept, *told])
        except KafkaError as error:
            raise DeadLetterError(f"deadLetterTopic {self.topic!r}: {error}") from error
        self._letters.append(_Letter(future, key, value, headers, about, most))

    def _settle(self) -> None:
        letter = self._letters.popleft()
        try:
            written = letter.future.get()
        except MessageSizeTooLargeError as error:
            # The topic's limit is lower than max_request_size. The broker does not report the limit.
            if letter.most <= CUT_BYTES:
                raise DeadLetterError(f"deadLetterTopic {self.topic!r}: {error}") from error
            self._send(letter.key, letter.value, letter.headers, letter.about, CUT_BYTES)
        except KafkaError as error:
            raise DeadLetterError(f"deadLetterTopic {self.topic!r}: {error}") from error
        else:
            self._count += 1
            offset = written.offset
            self._ranges.append(WrittenRange(written.topic, written.partition, offset, offset, 1))
            if len(self._ranges) >= _UNDER_WAY:
                self._ranges = list(merge_ranges(self._ranges))


def _as_bytes(headers: pa.Array) -> pa.Array:
    """Casts the headers to binary: strings may be invalid UTF-8, as in keys and values, and a dead letter
    must be written anyway."""
    pair = pa.struct([(field.name, pa.binary()) for field in headers.type.value_type])
    return headers.cast(pa.list_(pair))


def _pairs(headers: list[dict[str, Any] | None] | None) -> Headers:
    pairs = [tuple(each.values()) for each in headers or () if each is not None]
    return [(name.decode(errors="replace"), content) for name, content in pairs if name is not None]


def _bytes_of(headers: Headers) -> int:
    return sum(len(name.encode()) + len(content or b"") + 10 for name, content in headers)
