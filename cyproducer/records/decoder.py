"""Decodes record batches of format v2, as brokers return them.

Owns the form of batches and records that are read. Does not fetch them (``network/reading``). Pure functions,
with the GIL; for the few records that the package reads itself, not for consuming topics.

Source: Kafka protocol guide, record batch; KIP-98 for control batches.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from cyproducer.errors import CorruptRecordError
from cyproducer.records.compression import DecompressionError, decompress
from cyproducer.records.crc32c import crc32c

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_SIZE_AT: Final = 12
"""Bytes of a batch's first two fields, behind which the size counts."""
_CRC_AT: Final = 21
_MOST_BYTES: Final = 1 << 30

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One record. ``timestamp`` is in milliseconds since the epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Batch(NamedTuple):
    """One record batch. ``body`` has its records, compressed or not."""

    base_offset: int
    last_offset: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    epoch: int
    base_sequence: int
    record_count: int
    body: bytes

    @property
    def transactional(self) -> bool:
        """Whether it is part of a transaction."""
        return bool(self.attributes & 0x10)

    @property
    def control(self) -> bool:
        """Whether it is a marker that ends a transaction."""
        return bool(self.attributes & 0x20)

    def control_type(self) -> str:
        """Returns "commit", "abort", or another text for a control batch of another kind."""
        (marker,) = self.records()
        if marker.key is None or len(marker.key) < 4:
            raise self._corrupt("a marker has no type")
        number = int.from_bytes(marker.key[2:4], "big")
        return {0: "abort", 1: "commit"}.get(number, f"control type {number}")

    def records(self) -> Iterator[Record]:
        """Yields the records.

        Raises:
            CorruptRecordError: the batch is damaged.
        """
        try:
            body = decompress(self.attributes & 7, self.body, _MOST_BYTES)
        except (DecompressionError, ValueError) as error:
            raise self._corrupt(str(error)) from error
        fields = _Fields(body)
        try:
            for _ in range(self.record_count):
                end = fields.varint()
                end += fields.at
                fields.at += 1  # attributes
                timestamp = self.base_timestamp + fields.varint()
                offset = self.base_offset + fields.varint()
                key, value = fields.bytes(), fields.bytes()
                headers = [
                    ((fields.bytes() or b"").decode(errors="surrogateescape"), fields.bytes())
                    for _ in range(fields.varint())
                ]
                if fields.at != end:
                    raise self._corrupt(f"the record at offset {offset} has surplus bytes")
                if self.attributes & 0x08:
                    # LogAppendTime: all records have the batch's.
                    timestamp = self.max_timestamp
                yield Record(offset, timestamp, key, value, headers)
        except IndexError as error:
            raise self._corrupt("a record is cut off") from error

    def _corrupt(self, problem: str) -> CorruptRecordError:
        return CorruptRecordError(f"the batch at offset {self.base_offset}: {problem}")


def batches(data: bytes) -> Iterator[Batch]:
    """Yields the batches of a Fetch response. The last one may be cut off and is left out then.

    Raises:
        CorruptRecordError: a batch is damaged, or older than format v2 (Kafka 0.11).
    """
    at = 0
    while at + _SIZE_AT <= len(data):
        size = int.from_bytes(data[at + 8 : at + _SIZE_AT], "big", signed=True)
        end = at + _SIZE_AT + size
        if size < _HEADER.size - _SIZE_AT:
            raise CorruptRecordError(f"a batch claims {size} bytes")
        if end > len(data):
            return
        (
            base,
            _,
            _,
            magic,
            crc,
            attributes,
            last_delta,
            first,
            latest,
            producer_id,
            epoch,
            sequence,
            count,
        ) = _HEADER.unpack_from(data, at)
        if magic != 2:
            raise CorruptRecordError(
                f"the batch at offset {base} has format v{magic}: only v2 can be read, which brokers write "
                "since Kafka 0.11"
            )
        if crc32c(data[at + _CRC_AT : end]) != crc:
            raise CorruptRecordError(f"the batch at offset {base} has a wrong checksum")
        yield Batch(
            base,
            base + last_delta,
            attributes,
            first,
            latest,
            producer_id,
            epoch,
            sequence,
            count,
            data[at + _HEADER.size : end],
        )
        at = end


class _Fields:
    """Reads a record's fields. IndexError: the data ends within one."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        """Reads a zigzag varint."""
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def bytes(self) -> bytes | None:
        """Reads bytes with their length; None: null."""
        size = self.varint()
        if size < 0:
            return None
        if self.at + size > len(self.data):
            raise IndexError
        self.at += size
        return self.data[self.at - size : self.at]
