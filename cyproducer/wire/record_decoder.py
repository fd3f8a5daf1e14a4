"""Reads record batches as they appear in a Fetch response: headers, records, and transaction markers.

Owns reading the layout of version 2 batches, from any client: other clients' framings of the codecs are also
accepted. Does not own what a batch means to a reader, or fetching. Functions without state, callable from any
thread; a ``Batch`` is immutable.

In a compacted log, batches may have lost some or all of their records. Offsets then have gaps, but
``last_offset`` is still that of the batch as it was written.

Sources: Kafka protocol guide (record batch, control batches), KIP-98, KIP-534 (delete horizon).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cyproducer.errors import CorruptRecordError, UnsupportedCodecError, UnsupportedForMessageFormatError
from cyproducer.records.codecs import CODECS
from cyproducer.records.compression import DecompressionError, decompress_any
from cyproducer.records.crc32c import crc32c

MAGIC = 2
MAX_DECOMPRESSED = 1 << 28
"""The maximum size of a batch's decompressed records; a larger batch is treated as damaged. Batches have 1 MB
by default."""
MAX_OFFSET = (1 << 63) - 1
COMMIT, ABORT, OTHER = "commit", "abort", "other"
"""The types of control batches."""

_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
# Base offset and length; then leader epoch, magic and checksum, which covers all fields after it.
_START = struct.Struct(">qi")
_MAGIC_AT = 16
_HEADER = struct.Struct(">ibI hiqqqhii")
_CRC_FROM = 21
_RECORDS_FROM = _START.size + _HEADER.size
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_TYPES = {0: ABORT, 1: COMMIT}


class Record(NamedTuple):
    """One record. ``timestamp`` is in milliseconds since the epoch; the broker sets it if the topic is
    configured so."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """The header of a batch with a valid checksum, and its records, still compressed.

    ``count`` is the number of records that are left: compaction removes records. ``base_timestamp`` is the
    timestamp of the first record, or the delete horizon after a compaction. Producer id, epoch and sequence
    are -1 without an idempotent producer, and the sequence of a control batch is -1.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    epoch: int
    base_sequence: int
    count: int
    payload: bytes = field(repr=False)

    @property
    def codec(self) -> int:
        """The codec's id, see ``records/codecs``."""
        return self.attributes & _CODEC

    @property
    def log_append_time(self) -> bool:
        """Whether the timestamps are the broker's."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether this is a control batch (a marker), which has no application records."""
        return bool(self.attributes & _CONTROL)

    def records(self) -> Iterator[Record]:
        """Yields the records, in the order of their offsets.

        Raises:
            CorruptRecordError: the records do not follow the protocol, or cannot be decompressed.
            UnsupportedCodecError: the codec is unknown.
        """
        if not self.count and not self.payload:
            return
        data = self._decompressed()
        at = 0
        try:
            for _ in range(self.count):
                record, at = self._record(data, at)
                yield record
        except (IndexError, UnicodeDecodeError, _Damaged) as error:
            raise CorruptRecordError(f"{self._name}: the record at byte {at} is damaged: {error}") from error
        if at != len(data):
            raise CorruptRecordError(f"{self._name}: {len(data) - at} bytes follow the last record")

    def control_type(self) -> str | None:
        """Returns ``COMMIT`` or ``ABORT`` for the end of a transaction, otherwise ``OTHER``; None if this is
        not a control batch.

        Raises:
            CorruptRecordError: as for ``records``.
        """
        if not self.control:
            return None
        for record in self.records():
            if record.key is None or len(record.key) < _CONTROL_KEY.size:
                raise CorruptRecordError(f"{self._name}: its key {record.key!r} is too short for a marker")
            _, kind = _CONTROL_KEY.unpack_from(record.key)
            return _CONTROL_TYPES.get(kind, OTHER)
        # Compacted.
        return OTHER

    @property
    def _name(self) -> str:
        return f"the batch of offsets {self.base_offset} to {self.last_offset}"

    def _decompressed(self) -> bytes:
        data, codec = self.payload, self.codec
        if codec >= len(CODECS):
            raise UnsupportedCodecError(f"{self._name} has the codec {codec}, which is not known")
        try:
            return decompress_any(codec, data, MAX_DECOMPRESSED)
        except DecompressionError as error:
            raise CorruptRecordError(f"{self._name}: {error}") from error

    def _record(self, data: bytes, at: int) -> tuple[Record, int]:
        """Returns the record at ``at``, and the position after it."""
        size, at = _varint(data, at)
        end = at + size
        if not at < end <= len(data):
            raise _Damaged(f"its size is {size}")
        # Skips the byte of attributes, none of which is used.
        timestamp, at = _varint(data, at + 1)
        delta, at = _varint(data, at)
        if not 0 <= delta <= self.last_offset - self.base_offset:
            raise _Damaged(f"its offset is {delta:+} from the first one")
        key, at = _bytes(data, at, end)
        value, at = _bytes(data, at, end)
        count, at = _varint(data, at)
        if not 0 <= count <= end - at:
            raise _Damaged(f"it has {count} headers")
        headers = []
        for _ in range(count):
            name, at = _bytes(data, at, end)
            if name is None:
                raise _Damaged("a header has no name")
            content, at = _bytes(data, at, end)
            headers.append((name.decode(), content))
        if at != end:
            raise _Damaged(f"it takes {at - end:+} bytes of its size {size}")
        stamp = self.max_timestamp if self.log_append_time else self.base_timestamp + timestamp
        return Record(self.base_offset + delta, stamp, key, value, tuple(headers)), end


class _Damaged(Exception):
    pass


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a zigzag varint of at most 64 bits, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise _Damaged("a number has more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    if size == -1:
        return None, at
    if not 0 <= size <= end - at:
        raise _Damaged(f"a field of {size} bytes does not fit")
    return data[at : at + size], at + size


def batches(data: bytes) -> Iterator[Batch]:
    """Yields the batches in a Fetch response's records, each after a check of its CRC-32C.

    A truncated last batch is left out: brokers truncate at the requested size.

    Raises:
        CorruptRecordError: a checksum is wrong, or a header does not follow the protocol.
        UnsupportedForMessageFormatError: a batch is of version 0 or 1, from before Kafka 0.11.
    """
    view = memoryview(data)
    at = 0
    while len(data) - at > _MAGIC_AT:
        base_offset, length = _START.unpack_from(data, at)
        name = f"the batch at offset {base_offset}, byte {at} of the response,"
        end = at + _START.size + length
        # A damaged length must not be treated as a truncated batch.
        if length <= _MAGIC_AT - _START.size:
            raise CorruptRecordError(f"{name} has a length of {length}")
        if end > len(data):
            return
        magic = data[at + _MAGIC_AT]
        if magic < MAGIC:
            raise UnsupportedForMessageFormatError(
                f"{name} has the message format {magic} of Kafka before 0.11, which this client does not "
                "read; it stays in topics that were written then, until it is compacted or deleted"
            )
        if magic > MAGIC or end - at < _RECORDS_FROM:
            raise CorruptRecordError(f"{name} has the message format {magic} and a length of {length}")
        leader_epoch, _, checksum, *rest = _HEADER.unpack_from(data, at + _START.size)
        computed = crc32c(view[at + _CRC_FROM : end])
        if checksum != computed:
            raise CorruptRecordError(f"{name} has the checksum {checksum:#010x}, but it is {computed:#010x}")
        attributes, last_delta, base_time, max_time, producer_id, epoch, sequence, count = rest
        if not 0 <= count <= last_delta + 1 or last_delta < 0:
            raise CorruptRecordError(f"{name} has {count} records, the last one at offset {last_delta:+}")
        if not 0 <= base_offset < MAX_OFFSET - last_delta:
            raise CorruptRecordError(f"{name} ends at offset {base_offset + last_delta}")
        yield Batch(
            base_offset,
            base_offset + last_delta,
            leader_epoch,
            attributes,
            base_time,
            max_time,
            producer_id,
            epoch,
            sequence,
            count,
            data[at + _RECORDS_FROM : end],
        )
        at = end
