from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from cyproducer.records.varint cimport put_varint, varint_size

# Offsets of the fields of a record batch v2. Source: Kafka protocol guide, "Record Batch"; KIP-98.
cdef enum:
    AT_BASE_OFFSET = 0
    AT_LENGTH = 8             # of everything after this field
    AT_LEADER_EPOCH = 12
    AT_MAGIC = 16
    AT_CRC = 17               # CRC-32C of everything after this field
    AT_ATTRIBUTES = 21
    AT_LAST_OFFSET_DELTA = 23
    AT_BASE_TIMESTAMP = 27
    AT_MAX_TIMESTAMP = 35
    AT_PRODUCER_ID = 43
    AT_PRODUCER_EPOCH = 51
    AT_BASE_SEQUENCE = 53
    AT_COUNT = 57
    BATCH_HEADER = 61         # bytes before the first record
    RECORD_OVERHEAD = 36      # length 5, attributes 1, timestamp 10, offset 5, two lengths of 5, and slack 5
    USUAL_SLACK = 30          # how much record_bound() usually exceeds the record's size


cdef inline int64_t record_bound(int64_t key_size, int64_t value_size, int64_t headers_size) noexcept nogil:
    """Returns the largest encoded size of a record, for any timestamp and index in the batch."""
    return (
        RECORD_OVERHEAD
        + (key_size if key_size > 0 else 0)
        + (value_size if value_size > 0 else 0)
        + headers_size
    )


cdef inline int64_t record_length(int64_t key_size, int64_t value_size, int64_t headers_size) noexcept nogil:
    """Returns the encoded size of a record if it is the first of its batch."""
    cdef int64_t body = (
        3 + varint_size(key_size) + max(key_size, 0) + varint_size(value_size) + max(value_size, 0)
        + headers_size
    )
    return body + varint_size(body)


cdef inline uint8_t* put_record(
    uint8_t* p,
    int64_t timestamp_delta,
    int32_t offset_delta,
    const uint8_t* key,
    int64_t key_size,
    const uint8_t* value,
    int64_t value_size,
    const uint8_t* headers,
    int64_t headers_size,
) noexcept nogil:
    """Writes one record at ``p``, where ``record_bound`` bytes are free; returns the end.

    A size of -1 means a null key or value. ``headers`` holds the encoded headers, count included.
    """
    cdef int64_t body = (
        1
        + varint_size(timestamp_delta)
        + varint_size(offset_delta)
        + varint_size(key_size)
        + (key_size if key_size > 0 else 0)
        + varint_size(value_size)
        + (value_size if value_size > 0 else 0)
        + headers_size
    )
    p = put_varint(p, body)
    p[0] = 0   # attributes: none are defined
    p = put_varint(p + 1, timestamp_delta)
    p = put_varint(p, offset_delta)
    p = put_varint(p, key_size)
    if key_size > 0:
        memcpy(p, key, key_size)
        p += key_size
    p = put_varint(p, value_size)
    if value_size > 0:
        memcpy(p, value, value_size)
        p += value_size
    if headers_size == 1:
        p[0] = headers[0]
    else:
        memcpy(p, headers, headers_size)
    return p + headers_size


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
) noexcept nogil
