"""The parts of record batches that a broker reads and writes, as bytes.

Owns the batch header (protocol guide, "Record Batch", magic 2), its checks, recompression, and transaction
markers. Does not own the rules for sequences (``partitions``) or the search for a timestamp (``fetch``).
"""

import struct
from typing import NamedTuple

from cyproducer.records.codecs import BY_NAME
from cyproducer.records.crc32c import crc32c
from cyproducer.testing.broker.partitions import Header

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
_PLACE = struct.Struct(">qii")
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
ABORT, COMMIT = 0, 1
LARGEST_PLAIN = 100 << 20
"""The most bytes that one batch may have decompressed."""
_IDS = {codec.codec_id for codec in BY_NAME.values()}


class Damaged(ValueError):
    """The records of a batch cannot be decompressed."""


class Batch(NamedTuple):
    """The header of a batch; times in milliseconds."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_delta: int
    first_ms: int
    max_ms: int
    producer_id: int
    epoch: int
    first_sequence: int
    records: int

    @property
    def header(self) -> Header:
        """The header fields that the rules of a partition need."""
        transactional = bool(self.attributes & TRANSACTIONAL)
        return Header(self.records, self.producer_id, self.epoch, self.first_sequence, transactional)


def read(data: bytes) -> Batch:
    """Returns the header of a batch. Raises ``struct.error`` if it is too short."""
    return Batch._make(_HEADER.unpack_from(data))


def problem_of(data: bytes | None) -> str:
    """Returns the problem with the records of a partition in a Produce request; "" if there is none."""
    if data is None or len(data) < HEADER_BYTES:
        return "there is no whole batch"
    batch = read(data)
    if batch.magic != 2:
        return f"magic is {batch.magic}, it must be 2"
    if batch.length != len(data) - 12:
        return f"the batch has {batch.length} bytes of {len(data) - 12}: one batch is allowed"
    if batch.records < 1 or batch.last_delta != batch.records - 1:
        return f"{batch.records} records have the last offset delta {batch.last_delta}"
    if batch.attributes & CONTROL:
        return "a client may not write control records"
    return ""


def has_right_checksum(data: bytes) -> bool:
    """Whether the CRC-32C matches the bytes that it covers."""
    return bool(read(data).crc == crc32c(memoryview(data)[21:]))


def stamped(data: bytes, now_ms: int) -> bytes:
    """Returns the batch with the append time instead of the client's timestamps (``LogAppendTime``)."""
    changed = bytearray(data)
    (attributes,) = struct.unpack_from(">h", data, 21)
    struct.pack_into(">h", changed, 21, attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", changed, 35, now_ms)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


def recompressed(data: bytes, codec: str, level: int | None) -> bytes:
    """Returns the batch compressed with another codec, as a topic's ``compression.type`` wants it.

    Args:
        data: A whole batch.
        codec: A name of ``records/codecs``.
        level: The codec's level; None for its default.

    Raises:
        Damaged: The records cannot be decompressed.
    """
    (attributes,) = struct.unpack_from(">h", data, 21)
    wanted, now = BY_NAME[codec].codec_id, attributes & CODEC
    if now == wanted:
        return data
    payload = memoryview(data)[HEADER_BYTES:]
    if now not in _IDS:
        raise Damaged(f"codec {now} is unknown")
    # Imported here: the libraries of the codecs take long, and most topics keep the producer's codec.
    from cyproducer.records.compression import DecompressionError, compressor_for, decompress_any

    try:
        plain = decompress_any(now, payload, LARGEST_PLAIN)
    except DecompressionError as error:
        raise Damaged(str(error)) from error
    body = compressor_for(codec, level).compress(plain) if wanted else plain
    changed = bytearray(data[:HEADER_BYTES]) + body
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">h", changed, 21, attributes - now + wanted)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


def placed(data: bytes, offset: int, leader_epoch: int) -> bytes:
    """Returns the batch with its offset and leader epoch in the log, which the checksum does not cover."""
    return _PLACE.pack(offset, len(data) - 12, leader_epoch) + data[16:]


def marker(offset: int, leader_epoch: int, header: Header, commits: bool, term: int, now_ms: int) -> bytes:
    """Returns the control batch that ends a transaction."""
    key = struct.pack(">hh", 0, COMMIT if commits else ABORT)
    value = struct.pack(">hi", 0, max(0, term))
    # Attributes, timestamp delta, offset delta, key and value with their lengths, no headers. All varints
    # have one byte.
    body = bytes((0, 0, 0, len(key) * 2)) + key + bytes((len(value) * 2,)) + value + b"\0"
    record = bytes((len(body) * 2,)) + body
    rest = struct.pack(
        ">hiqqqhii", TRANSACTIONAL | CONTROL, 0, now_ms, now_ms, header.producer_id, header.epoch, -1, 1
    )
    rest += record
    return struct.pack(">qiibI", offset, len(rest) + 9, leader_epoch, 2, crc32c(rest)) + rest
