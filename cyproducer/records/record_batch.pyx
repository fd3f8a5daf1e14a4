"""Encodes record batches v2 (magic 2): records and the batch header.

Owns the layout. Records are written once, in ``send()``, directly after the space for the header
(``put_record``, inlined into the accumulator). The header is written when the batch is put into a request,
because the producer's epoch and the sequence are known only then. Does not own the memory, and does not
decide when a batch is full.

Source: Kafka protocol guide, "Record Batch" and "Record"; KIP-98 for the producer's fields.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memset

from cyproducer.records.big_endian cimport put_u16, put_u32, put_u64
from cyproducer.records.crc32c cimport crc32c

HEADER_BYTES = BATCH_HEADER


cdef void put_batch_header(
    uint8_t* data,
    int64_t size,
    int16_t attributes,
    int32_t count,
    int64_t base_timestamp,
    int64_t max_timestamp,
    int64_t producer_id,
    int16_t producer_epoch,
    int32_t base_sequence,
) noexcept nogil:
    """Writes the batch header, checksum last. ``size``: bytes of the whole batch, header included."""
    put_u64(data + AT_BASE_OFFSET, 0)   # the broker assigns offsets
    put_u32(data + AT_LENGTH, <int32_t>(size - AT_LEADER_EPOCH))
    put_u32(data + AT_LEADER_EPOCH, <int32_t>-1)
    data[AT_MAGIC] = 2
    put_u16(data + AT_ATTRIBUTES, attributes)
    put_u32(data + AT_LAST_OFFSET_DELTA, count - 1)
    put_u64(data + AT_BASE_TIMESTAMP, base_timestamp)
    put_u64(data + AT_MAX_TIMESTAMP, max_timestamp)
    put_u64(data + AT_PRODUCER_ID, producer_id)
    put_u16(data + AT_PRODUCER_EPOCH, producer_epoch)
    put_u32(data + AT_BASE_SEQUENCE, base_sequence)
    put_u32(data + AT_COUNT, count)
    put_u32(data + AT_CRC, crc32c(0, data + AT_ATTRIBUTES, size - AT_ATTRIBUTES))


def encode_batch(
    records,
    *,
    int16_t attributes=0,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
    int32_t base_sequence=-1,
):
    """Returns a complete uncompressed batch as ``bytes``, encoded by the functions that ``send()`` uses.

    ``records``: a list of (timestamp_ms, key or None, value or None, headers as encoded bytes) tuples. For
    tests and tools; raises ValueError for an empty list.
    """
    cdef int64_t room = BATCH_HEADER
    cdef int64_t base = 0, latest = 0
    cdef int32_t count = 0
    cdef bytes k, v, h
    cdef uint8_t* start
    cdef uint8_t* p
    if not records:
        raise ValueError("records: a batch needs at least one record")
    for _, key, value, headers in records:
        room += record_bound(len(key or b""), len(value or b""), len(headers))
    out = PyBytes_FromStringAndSize(NULL, room)
    start = <uint8_t*>PyBytes_AS_STRING(out)
    memset(start, 0, BATCH_HEADER)
    p = start + BATCH_HEADER
    base = latest = records[0][0]
    for timestamp, key, value, headers in records:
        k, v, h = key or b"", value or b"", headers
        p = put_record(
            p,
            <int64_t>timestamp - base,
            count,
            <const uint8_t*>PyBytes_AS_STRING(k),
            -1 if key is None else len(k),
            <const uint8_t*>PyBytes_AS_STRING(v),
            -1 if value is None else len(v),
            <const uint8_t*>PyBytes_AS_STRING(h),
            len(h),
        )
        latest = max(latest, <int64_t>timestamp)
        count += 1
    put_batch_header(
        start, p - start, attributes, count, base, latest, producer_id, producer_epoch, base_sequence
    )
    return out[: p - start]
