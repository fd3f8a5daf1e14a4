"""A slow, strict, pure-Python reference for record batches of version 2.

Written from the Kafka protocol guide, KIP-98 (record batch, attributes) and KIP-110 (zstd). Shares no code
with the package: tests compare the package with it. If the guide leaves only one form, any other is an error
here: a varint longer than needed, a surplus byte, an unknown attribute, offsets with a gap, a base timestamp
that is not the first record's. That is stricter than a broker.

Also exports ``reference_wire`` (primitive types) and ``reference_produce`` (the Produce API). No I/O and no
clock; any thread may use it. Sizes are bytes, times are milliseconds since 1970.
"""

import gzip
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import cramjam
import crc32c

from tools.harness.reference_produce import (
    PartitionResponse,
    ProduceRequest,
    Topic,
    decode_produce_request,
    encode_produce_response,
)
from tools.harness.reference_wire import (
    MalformedError,
    Reader,
    decode_text,
    encode_varint,
    encode_varint_bytes,
)

__all__ = [
    "CONTROL",
    "GZIP",
    "LOG_APPEND_TIME",
    "LZ4",
    "NONE",
    "SNAPPY",
    "TRANSACTIONAL",
    "ZSTD",
    "Batch",
    "MalformedError",
    "PartitionResponse",
    "ProduceRequest",
    "Record",
    "Topic",
    "batch_of",
    "compress",
    "decode_batches",
    "decode_produce_request",
    "decompress",
    "encode_batch",
    "encode_produce_response",
    "encode_record",
    "xerial_blocks",
]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
XERIAL_HEADER = bytes.fromhex("82534e41505059000000000100000001")
MAX_DECOMPRESSED = 256 * 1024 * 1024


@dataclass(frozen=True)
class Record:
    offset_delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batch:
    """All header fields. Two are computed from the rest; decoding sets them."""

    records: tuple[Record, ...]
    base_offset: int = 0
    partition_leader_epoch: int = -1
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = -1
    max_timestamp: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    magic: int = 2
    batch_length: int = field(default=0, compare=False)
    crc: int = field(default=0, compare=False)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


def batch_of(
    records: Iterable[Record],
    *,
    codec: int = NONE,
    transactional: bool = False,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> Batch:
    """Returns the batch that a producer makes of these records, with offsets, times and attributes."""
    records = tuple(records)
    return Batch(
        records=records,
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        attributes=codec | (TRANSACTIONAL if transactional else 0),
        last_offset_delta=records[-1].offset_delta,
        base_timestamp=records[0].timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


# base offset, length | leader epoch, magic, crc | attributes ... record count
_BATCH_START = struct.Struct(">qi")
_BATCH_MIDDLE = struct.Struct(">ibI")
_BATCH_END = struct.Struct(">hiqqqhii")
BATCH_HEADER_SIZE = _BATCH_START.size + _BATCH_MIDDLE.size + _BATCH_END.size


def encode_batch(batch: Batch) -> bytes:
    """Encodes a batch. Writes the fields as they are, valid or not, and computes only length and CRC."""
    records = b"".join(encode_record(record, batch.base_timestamp) for record in batch.records)
    covered = _BATCH_END.pack(
        batch.attributes,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records),
    ) + compress(batch.codec, records)
    middle = _BATCH_MIDDLE.pack(batch.partition_leader_epoch, batch.magic, crc32c.crc32c(covered))
    return _BATCH_START.pack(batch.base_offset, len(middle) + len(covered)) + middle + covered


def encode_record(record: Record, base_timestamp: int) -> bytes:
    body = bytearray(b"\x00")
    body += encode_varint(record.timestamp - base_timestamp)
    body += encode_varint(record.offset_delta)
    body += encode_varint_bytes(record.key) + encode_varint_bytes(record.value)
    body += encode_varint(len(record.headers))
    for name, value in record.headers:
        body += encode_varint_bytes(name.encode()) + encode_varint_bytes(value)
    return encode_varint(len(body)) + bytes(body)


def decode_batches(data: bytes) -> list[Batch]:
    """Decodes every batch in ``data``, which must contain whole batches and nothing else."""
    reader = Reader(data)
    batches = []
    while reader.left:
        batches.append(_decode_batch(reader))
    return batches


def _decode_batch(reader: Reader) -> Batch:
    base_offset, length = reader.unpack(_BATCH_START)
    if length < _BATCH_MIDDLE.size + _BATCH_END.size:
        raise MalformedError(f"batch length {length} is less than its header")
    body = Reader(reader.take(length))
    epoch, magic, crc = body.unpack(_BATCH_MIDDLE)
    if magic != 2:
        raise MalformedError(f"magic is {magic}, not 2")
    computed = crc32c.crc32c(body.rest())
    if crc != computed:
        raise MalformedError(f"crc is {crc:#010x}, the bytes give {computed:#010x}")
    attributes, last_delta, base_time, max_time, *producer, count = body.unpack(_BATCH_END)
    producer_id, producer_epoch, base_sequence = producer
    if attributes & ~(CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL):
        raise MalformedError(f"attributes {attributes:#06x} have an unknown bit")
    inner = Reader(decompress(attributes & CODEC_MASK, body.take(body.left)))
    records = tuple(_decode_record(inner, base_time) for _ in range(count))
    inner.expect_end("record")
    if last_delta != count - 1:
        raise MalformedError(f"last offset delta is {last_delta} for {count} records")
    if [record.offset_delta for record in records] != list(range(count)):
        deltas = [record.offset_delta for record in records]
        raise MalformedError(f"offset deltas {deltas[:10]}... are not 0..{count - 1}, in order")
    if not records:
        raise MalformedError("a batch must have a record")
    if base_time != records[0].timestamp:
        raise MalformedError(f"base timestamp {base_time} is not the first record's, {records[0].timestamp}")
    latest = max(record.timestamp for record in records)
    if max_time != latest and not attributes & LOG_APPEND_TIME:
        raise MalformedError(f"max timestamp {max_time} is not the records', {latest}")
    return Batch(
        records=records,
        base_offset=base_offset,
        partition_leader_epoch=epoch,
        attributes=attributes,
        last_offset_delta=last_delta,
        base_timestamp=base_time,
        max_timestamp=max_time,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_length=length,
        crc=crc,
    )


def _decode_record(batch: Reader, base_timestamp: int) -> Record:
    record = Reader(batch.take(batch.varint()))
    attributes = record.int8()
    if attributes != 0:
        raise MalformedError(f"record attributes are {attributes}, not 0")
    timestamp = base_timestamp + record.varint(64)
    offset_delta = record.varint()
    key = record.varint_bytes("key")
    value = record.varint_bytes("value")
    header_count = record.varint()
    if header_count < 0:
        raise MalformedError(f"header count is {header_count}")
    headers = []
    for _ in range(header_count):
        name = record.varint_bytes("header name")
        if name is None:
            raise MalformedError("a header's name is null")
        headers.append((decode_text(name), record.varint_bytes("header value")))
    record.expect_end("record's header")
    return Record(offset_delta, timestamp, key, value, tuple(headers))


def compress(codec: int, data: bytes) -> bytes:
    """One plain way to compress with each codec. The package's output may differ."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        blocks = [data[at : at + 32768] for at in range(0, len(data), 32768)]
        packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
        return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in packed)
    # lz4 and zstandard have no wheel for some Pythons: only what uses them needs them.
    if codec == LZ4:
        import lz4.frame  # type: ignore[import-untyped]

        return bytes(lz4.frame.compress(data, block_linked=False, store_size=False))
    if codec == ZSTD:
        import zstandard

        return zstandard.ZstdCompressor().compress(data)
    raise MalformedError(f"there is no codec {codec}")


def decompress(codec: int, data: bytes) -> bytes:
    """Accepts only what every Kafka reader accepts: Java's rejects linked lz4 blocks, so this does too."""
    if codec == NONE:
        return data
    try:
        return _DECOMPRESSORS[codec](data)
    except KeyError:
        raise MalformedError(f"there is no codec {codec}") from None
    except (zlib.error, cramjam.DecompressionError, RuntimeError) as error:
        raise MalformedError(f"codec {codec}: {error}") from error


def _gunzip(data: bytes) -> bytes:
    member = zlib.decompressobj(wbits=31)
    result = member.decompress(data, MAX_DECOMPRESSED)
    return _whole(result, member.eof, member.unused_data)


def xerial_blocks(data: bytes) -> list[bytes]:
    """Returns the raw snappy blocks in xerial framing."""
    reader = Reader(data)
    header = reader.take(len(XERIAL_HEADER))
    if header != XERIAL_HEADER:
        raise MalformedError(f"xerial header is {header.hex()}, not {XERIAL_HEADER.hex()}")
    blocks = []
    while reader.left:
        blocks.append(reader.take(reader.int32()))
    return blocks


def _unsnappy(data: bytes) -> bytes:
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in xerial_blocks(data))


def _unlz4(data: bytes) -> bytes:
    if len(data) > 4 and not data[4] & 0x20:
        raise MalformedError("lz4 blocks are linked")
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    result = frame.decompress(data, max_length=min(MAX_DECOMPRESSED, 255 * len(data) + 1))
    return _whole(result, frame.eof, frame.unused_data)


def _unzstd(data: bytes) -> bytes:
    import zstandard

    context = zstandard.ZstdDecompressor()
    try:
        return context.decompress(data, max_output_size=MAX_DECOMPRESSED, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedError(f"codec {ZSTD}: {error}") from error


def _whole(result: bytes, ended: bool, surplus: bytes | None) -> bytes:
    if not ended or surplus:
        raise MalformedError(f"compressed data is truncated or has bytes left over: {surplus!r}")
    return result


_DECOMPRESSORS = {GZIP: _gunzip, SNAPPY: _unsnappy, LZ4: _unlz4, ZSTD: _unzstd}
