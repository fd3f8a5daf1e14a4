"""``BatchBuilder``: collects records that ``send_batch()`` sends to one partition.

Owns the records until they are sent, and the size of the batch that they form. Does not own sending them
(``producer``). Not thread-safe: use it on one thread at a time.

Sizes are those of record format v2 (KIP-98), without compression.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cyproducer.aio.structs import AppendedRecord
from cyproducer.base.clock import unix_ms
from cyproducer.records.record_batch import HEADER_BYTES

Serializer = Callable[[Any], Any]
Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record of a batch, with key, value and headers as bytes."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]


class BatchBuilder:
    """Records for one partition, up to ``max_batch_size`` bytes; made by ``create_batch()``.

    The first record is accepted whatever its size.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> None:
        self._limit: Final = batch_size
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._size = HEADER_BYTES
        self._closed = False
        self._records: list[Record] = []
        #: The size of the largest record, in bytes.
        self._largest = 0

    def append(
        self,
        *,
        timestamp: int | None,
        key: Any,
        value: Any,
        headers: Headers | None = (),
    ) -> AppendedRecord | None:
        """Adds a record. If it does not fit, closes the batch and returns None. Returns None if the batch is
        closed.

        Args:
            timestamp: in milliseconds since the epoch; None: now.
            key: bytes or None, or what ``key_serializer`` accepts.
            value: bytes or None, or what ``value_serializer`` accepts.
            headers: (name, bytes or None) pairs.

        Raises:
            TypeError: the key, the value, the timestamp or a header has another type.
            ValueError: both key and value are None, or the timestamp is negative.
        """
        if self._closed:
            return None
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        if key is None and value is None:
            raise ValueError("a record needs a value or a key: a tombstone is a key with value=None")
        if timestamp is None:
            timestamp = unix_ms()
        elif not isinstance(timestamp, int) or isinstance(timestamp, bool):
            raise TypeError(f"timestamp: must be milliseconds as an int, or None, not {timestamp!r}")
        elif timestamp < 0:
            raise ValueError(f"timestamp={timestamp}: must be >= 0")
        record = Record(_bytes(key, "key"), _bytes(value, "value"), timestamp, _pairs(headers or ()))
        index = len(self._records)
        first = self._records[0].timestamp_ms if self._records else timestamp
        size = _record_size(record, index, timestamp - first)
        if index and self._size + size > self._limit:
            self.close()
            return None
        self._records.append(record)
        self._size += size
        self._largest = max(self._largest, size)
        return AppendedRecord(index, size, timestamp)

    def close(self) -> None:
        """Closes the batch: it accepts no more records. A batch can't be reopened."""
        self._closed = True

    def closed(self) -> bool:
        """Returns whether the batch is closed."""
        return self._closed

    def record_count(self) -> int:
        """Returns the number of records."""
        return len(self._records)

    def size(self) -> int:
        """Returns the size of the batch in bytes, including its header, before compression."""
        return self._size


def _bytes(data: Any, what: str) -> bytes | None:
    """Returns a copy, unless the data can't change: the caller may change a buffer before the batch is
    sent."""
    if data is None or isinstance(data, bytes):
        return data
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise TypeError(
            f"{what}: must be bytes, another buffer or None, not {type(data).__name__}; other types need a "
            "serializer"
        ) from None


def _pairs(headers: Headers) -> list[tuple[str, bytes | None]]:
    pairs = []
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2 or not isinstance(header[0], str):
            raise TypeError(f"headers: each must be a (str, bytes or None) pair, not {header!r}")
        pairs.append((header[0], _bytes(header[1], "the value of a header")))
    return pairs


def _record_size(record: Record, index: int, timestamp_delta: int) -> int:
    """Returns the size of a record in a batch, in bytes. Source: KIP-98."""
    size = 1 + _varint(timestamp_delta) + _varint(index) + _sized(record.key) + _sized(record.value)
    size += _varint(len(record.headers))
    for name, value in record.headers:
        size += _sized(name.encode()) + _sized(value)
    return _varint(size) + size


def _sized(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """Returns the size of a number as a zigzag varint, in bytes."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    return max(1, (zigzag.bit_length() + 6) // 7)
