"""Batches that turn out too large for a topic: each is cut in two, with order and futures kept.

Owns: cutting, and what a topic learns from it. Does not own: how large batches may grow otherwise, and the
estimate of compression (``accumulator``), nor the decision to split (``network/deliveries``). On the sender,
with the GIL, which a compressed batch needs anyway.

Halves, not ``batch_size``: that is what the batch was allowed to have, and it was too large. Every cut makes
progress, and the topic's next batches start from what is left, so a topic with a small limit costs a few
requests once and not one a batch.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cyproducer.buffers.buffer_pool cimport buffer_capacity
from cyproducer.buffers.delivery cimport (
    Forward,
    delivery_forward,
    delivery_new,
    delivery_ref,
)
from cyproducer.buffers.readiness cimport enqueue_sorted, refresh, withdraw
from cyproducer.buffers.sequencing cimport settle, take_off_wire
from cyproducer.buffers.structures cimport SEALED, Accumulator, Partition, Topic
from cyproducer.buffers.sync cimport pthread_mutex_lock, pthread_mutex_unlock
from cyproducer.records.record_batch cimport BATCH_HEADER
from cyproducer.records.varint cimport put_varint, varint_size

# One record of an encoded batch, by the places of what splitting must know or change.
cdef struct Encoded:
    const uint8_t* start
    const uint8_t* rest       # what follows the offset delta
    const uint8_t* end
    int64_t timestamp_delta
    int64_t offset_delta


cdef const uint8_t* read_varint(const uint8_t* p, int64_t* v) noexcept nogil:
    """Reads a varint that this producer wrote."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    while p[0] >= 0x80:
        raw |= <uint64_t>(p[0] & 0x7F) << shift
        shift += 7
        p += 1
    raw |= <uint64_t>p[0] << shift
    v[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    return p + 1


cdef void read_record(const uint8_t* p, Encoded* r) noexcept nogil:
    cdef int64_t length
    r.start = p
    p = read_varint(p, &length)
    r.end = p + length
    p = read_varint(p + 1, &r.timestamp_delta)   # behind the attributes
    r.rest = read_varint(p, &r.offset_delta)


cdef uint8_t* put_moved(uint8_t* to, const Encoded* r, int32_t offset_delta) noexcept nogil:
    """Writes a record again with a smaller offset delta: it never takes more bytes than before."""
    cdef int64_t rest = r.end - r.rest
    to = put_varint(to, 1 + varint_size(r.timestamp_delta) + varint_size(offset_delta) + rest)
    to[0] = 0
    to = put_varint(to + 1, r.timestamp_delta)
    to = put_varint(to, offset_delta)
    memcpy(to, r.rest, rest)
    return to + rest


cdef Batch* new_part(RecordAccumulator acc, const Batch* b, int64_t size) noexcept nogil:
    """An empty closed batch in the place of ``b``, with room for ``size`` bytes; NULL: no memory."""
    cdef Batch* part = <Batch*>calloc(1, sizeof(Batch))
    if part == NULL:
        return NULL
    part.capacity = buffer_capacity(size)
    # Not to be waited for: the sender, which makes memory free, is who asks.
    acc.pool.reserve_now(part.capacity)
    part.data = acc.pool.allocate(part.capacity)
    part.delivery = delivery_new(b.partition.index, acc.c.completions)
    if part.data == NULL or part.delivery == NULL:
        acc.pool.unreserve(part.capacity)
        free(part.data)
        free(part.delivery)
        free(part)
        return NULL
    part.partition = b.partition
    part.state = SEALED
    part.id = b.id
    part.created_ns = b.created_ns
    part.base_timestamp = b.base_timestamp
    part.max_timestamp = b.base_timestamp
    part.size = BATCH_HEADER
    part.base_sequence = -1
    part.producer_id = -1
    part.producer_epoch = -1
    return part


cdef int learn(RecordAccumulator acc, const Batch* b) noexcept nogil:
    """The topic takes smaller batches than this one. The lock is held."""
    cdef Topic* t = b.partition.topic
    cdef int64_t half = max(b.size // 2, BATCH_HEADER + 1)
    if t.batch_limit == 0 or half < t.batch_limit:
        t.batch_limit = half
    if acc.c.codec:
        t.compression_ratio = max(1.0, <double>(b.size - BATCH_HEADER) / max(1, b.raw_size - BATCH_HEADER))
    acc.c.batches_split += 1
    return 0


cdef int split(RecordAccumulator acc, Batch* b) except -1:
    """Puts two halves of a batch that is in a request in its place, without sequences; frees it.

    The halves go before everything younger. Their records' futures and callbacks follow. Raises MemoryError
    with the batch as it was. The batch has at least two records.
    """
    cdef Accumulator* a = &acc.c
    cdef Partition* p = b.partition
    cdef Batch* parts[2]
    cdef Batch* part
    cdef Forward* targets
    cdef const uint8_t* start = b.data + BATCH_HEADER
    cdef const uint8_t* at
    cdef int64_t size = b.size - BATCH_HEADER
    cdef Encoded r
    cdef uint8_t* to
    cdef int32_t first = 0
    cdef int32_t i
    cdef int32_t k
    cdef bytes raw
    if b.codec:
        from cyproducer.records.compression import decompress

        raw = decompress(b.codec, PyMemoryView_FromMemory(<char*>start, size, PyBUF_READ), b.raw_size)
        start = <const uint8_t*>PyBytes_AS_STRING(raw)
        size = len(raw)
    at = start
    while first < b.count - 1 and (first == 0 or at - start < size // 2):
        read_record(at, &r)
        at = r.end
        first += 1
    parts[0] = new_part(acc, b, BATCH_HEADER + (at - start))
    parts[1] = new_part(acc, b, BATCH_HEADER + size - (at - start))
    targets = <Forward*>calloc(b.count, sizeof(Forward))
    if parts[0] == NULL or parts[1] == NULL or targets == NULL:
        for k in range(2):
            if parts[k] != NULL:
                acc._free(parts[k])
        free(targets)
        raise MemoryError(f"no memory to split a batch of {b.count} records")
    at = start
    for i in range(b.count):
        part = parts[i >= first]
        read_record(at, &r)
        to = part.data + part.size
        part.size += put_moved(to, &r, part.count) - to
        part.max_timestamp = max(part.max_timestamp, b.base_timestamp + r.timestamp_delta)
        targets[i].to = part.delivery
        targets[i].index = part.count
        delivery_ref(part.delivery)
        part.count += 1
        part.delivery.count = part.count
        at = r.end
    for k in range(2):
        parts[k].raw_size = parts[k].size
        if b.codec:
            acc.compress(parts[k])
    delivery_forward(b.delivery, targets)
    pthread_mutex_lock(&a.lock)
    learn(acc, b)
    p.recovering = 1
    take_off_wire(a, b)
    settle(b)
    withdraw(a, p)
    for k in range(2):
        enqueue_sorted(p, parts[k])
        parts[k].newer = b
        parts[k].older = b.older
        if b.older != NULL:
            b.older.newer = parts[k]
        else:
            a.oldest = parts[k]
        b.older = parts[k]
        a.incomplete += 1
    acc._forget(b)
    refresh(a, p)
    pthread_mutex_unlock(&a.lock)
    acc._free(b)
    return 0
