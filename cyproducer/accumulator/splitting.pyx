"""Splits batches that the broker refuses as too large, and removes refused records from batches.

Owns splitting and excluding, which keep the order and the futures of the records, and lowering the topic's
limit. Does not own the limit of new batches or the compression estimate otherwise (``record_accumulator``),
or the decision to split (``control/batch_fate``). Runs on the sender, with the GIL, which decompression needs
anyway.

A refused batch is cut in half, not into parts of ``batch_size``: that was its limit, and it was too large.
Each split makes progress, and the topic's next batches are limited to the size of the halves
(``batch_limit``). Batches that were filled before the limit was known are cut into as many parts as needed.
So a small limit costs a few requests once, one for each batch that was queued at that time, and an occasional
probe.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cyproducer.accumulator.buffer_pool cimport buffer_capacity
from cyproducer.futures.delivery cimport (
    Forward,
    delivery_fail,
    delivery_forward,
    delivery_new,
    delivery_ref,
    delivery_unref,
)
from cyproducer.base.meters cimport BATCHES_SPLIT, RECORDS_FAILED, count_records, meters_turn
from cyproducer.accumulator.ready_partitions cimport enqueue_sorted, refresh, withdraw
from cyproducer.accumulator.sequences cimport settle, take_off_wire
from cyproducer.accumulator.batch_limit cimport lower_limit, probe_refused, was_probe
from cyproducer.accumulator.structures cimport SEALED, Accumulator, Partition, Topic
from cyproducer.base.sync cimport cyp_change64, pthread_mutex_lock, pthread_mutex_unlock
from cyproducer.accumulator.partition_table cimport TopicInfo
from cyproducer.records.record_batch cimport BATCH_HEADER
from cyproducer.records.varint cimport put_varint, varint_size

# One record of an encoded batch: the parts that splitting reads or changes.
cdef struct Encoded:
    const uint8_t* start
    const uint8_t* rest       # the bytes after the offset delta
    const uint8_t* end
    int64_t timestamp_delta
    int64_t offset_delta


cdef const uint8_t* read_varint(const uint8_t* p, int64_t* v) noexcept nogil:
    """Reads a varint that this producer has written."""
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


cdef inline int64_t moved_size(
    const Encoded* r, int64_t timestamp_delta, int32_t offset_delta
) noexcept nogil:
    """The length field of a record with new deltas: its size without the length field itself."""
    return 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + (r.end - r.rest)


cdef uint8_t* put_moved(
    uint8_t* to, const Encoded* r, int64_t timestamp_delta, int32_t offset_delta
) noexcept nogil:
    """Copies a record with new deltas; returns the end."""
    cdef int64_t rest = r.end - r.rest
    to = put_varint(to, moved_size(r, timestamp_delta, offset_delta))
    to[0] = 0
    to = put_varint(to + 1, timestamp_delta)
    to = put_varint(to, offset_delta)
    memcpy(to, r.rest, rest)
    return to + rest


cdef Batch* new_part(RecordAccumulator acc, const Batch* b, int64_t size) noexcept nogil:
    """An empty closed batch that replaces ``b``, with room for ``size`` bytes; NULL if malloc fails."""
    cdef Batch* part = <Batch*>calloc(1, sizeof(Batch))
    if part == NULL:
        return NULL
    part.capacity = buffer_capacity(size)
    # Don't wait for memory: this is the sender, which releases it.
    acc.pool.reserve_now(part.capacity)
    part.data = acc.pool.allocate(part.capacity)
    part.delivery = delivery_new(b.partition.index, acc.c.completions)
    part.held = 1
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
    part.size = BATCH_HEADER
    part.base_sequence = -1
    part.producer_id = -1
    part.producer_epoch = -1
    return part


cdef Batch* next_part(
    RecordAccumulator acc, const Batch* b, const uint8_t** at, int32_t most, int64_t target, dict left_out
) except? NULL:
    """The next part of ``b``, from ``at`` on, closed, and compressed with a codec; moves ``at`` behind it.

    The part ends with the record that reaches ``target`` bytes, or with the ``most``-th one. ``left_out`` has
    the indices, counted from ``at``, of records that it does not get; it gets at least one. Returns NULL
    without an exception if malloc fails.
    """
    cdef const uint8_t* p = at[0]
    cdef int64_t size = BATCH_HEADER
    cdef int64_t body
    cdef int64_t base = 0
    cdef int64_t timestamp
    cdef int32_t count = 0
    cdef int32_t read = 0
    cdef int32_t i
    cdef Encoded r
    cdef Batch* part
    while read < most and (read == 0 or p - at[0] < target):
        read_record(p, &r)
        p = r.end
        read += 1
        if read - 1 in left_out:
            continue
        timestamp = b.base_timestamp + r.timestamp_delta
        if count == 0:
            base = timestamp
        # Measured, since a delta to a new base may take more bytes than the old delta.
        body = moved_size(&r, timestamp - base, count)
        size += varint_size(body) + body
        count += 1
    part = new_part(acc, b, size)
    if part == NULL:
        return NULL
    part.base_timestamp = base
    part.max_timestamp = base
    p = at[0]
    for i in range(read):
        read_record(p, &r)
        p = r.end
        if i in left_out:
            continue
        timestamp = b.base_timestamp + r.timestamp_delta
        part.max_timestamp = max(part.max_timestamp, timestamp)
        size = put_moved(part.data + part.size, &r, timestamp - base, part.count) - part.data
        part.largest = max(part.largest, size - part.size)
        part.size = size
        part.count += 1
    part.raw_size = part.size
    part.delivery.count = count
    at[0] = p
    try:
        if b.partition.topic.settings.codec:
            with nogil:
                acc.compress(part)
    except BaseException:
        drop(acc, part)
        raise
    return part


cdef int64_t smaller_limit(const Accumulator* a, const Batch* b) noexcept nogil:
    """The new limit of a topic's batches, after this batch was refused as too large."""
    cdef int64_t limit = b.partition.topic.batch_limit
    if was_probe(b):
        return limit
    if limit == 0:
        # A batch that compressed worse than expected may be larger than batch_size, and so may its half.
        limit = a.most_grown if b.grown else a.batch_size
    return min(limit, max((b.size + 1) // 2, BATCH_HEADER + 1))


cdef void learn(RecordAccumulator acc, const Batch* b, int64_t limit) noexcept nogil:
    """Lowers the topic's limit after this batch was refused as too large. The lock is held."""
    cdef Topic* t = b.partition.topic
    cdef int64_t now = acc.clock.now_ns()
    if was_probe(b):
        probe_refused(t, now)
    else:
        lower_limit(t, limit, now)
        if t.settings.codec:
            t.compression_ratio = max(
                1.0, <double>(b.size - BATCH_HEADER) / max(1, b.raw_size - BATCH_HEADER)
            )
    meters_turn(&acc.c.meters, now)
    acc.c.meters.all.total[BATCHES_SPLIT] += 1


cdef bytes unpacked(const Batch* b):
    """The decompressed records of a compressed batch; None if the batch is not compressed."""
    if b.codec == 0:
        return None
    from cyproducer.records.compression import decompress

    records = PyMemoryView_FromMemory(<char*>b.data + BATCH_HEADER, b.size - BATCH_HEADER, PyBUF_READ)
    return decompress(b.codec, records, b.raw_size)


cdef Batch* cut(RecordAccumulator acc, const Batch* b, int64_t limit) except NULL:
    """Cuts a batch into at least two parts, closed and compressed, in order, chained by ``next``."""
    cdef const uint8_t* at = b.data + BATCH_HEADER
    cdef int64_t size = b.size - BATCH_HEADER
    cdef int64_t parts = max(2, (b.size + limit - 1) // limit)
    cdef int32_t done = 0
    cdef Batch* first = NULL
    cdef Batch* last = NULL
    cdef Batch* part
    cdef bytes raw = unpacked(b)
    if raw is not None:
        at = <const uint8_t*>PyBytes_AS_STRING(raw)
        size = len(raw)
    try:
        while done < b.count:
            part = next_part(acc, b, &at, b.count - max(1, done), (size + parts - 1) // parts, {})
            if part == NULL:
                raise MemoryError(f"no memory to split a batch of {b.count} records")
            part.first_record = b.first_record + done
            done += part.count
            if last == NULL:
                first = part
            else:
                last.next = part
            last = part
    except BaseException:
        drop(acc, first)
        raise
    return first


cdef void drop(RecordAccumulator acc, Batch* part) noexcept:
    """Frees parts that no queue, list or delivery refers to yet."""
    cdef Batch* following
    while part != NULL:
        following = part.next
        acc._free(part)
        part = following


cdef int forward(const Batch* b, Batch* part) except -1:
    """Forwards the delivery of a batch, record by record, to the deliveries of its parts."""
    cdef Forward* targets = <Forward*>calloc(b.count, sizeof(Forward))
    cdef int32_t done = 0
    cdef int32_t i
    if targets == NULL:
        raise MemoryError(f"no memory to split a batch of {b.count} records")
    while part != NULL:
        for i in range(part.count):
            targets[done].to = part.delivery
            targets[done].index = i
            delivery_ref(part.delivery)
            done += 1
        part = part.next
    delivery_forward(b.delivery, targets)
    return 0


cdef int split(RecordAccumulator acc, Batch* b) except -1:
    """Replaces a batch that is in a request with its parts, without sequences, and frees it.

    The parts are queued before all younger batches. The records' futures and callbacks follow the parts. On
    an exception, the batch is unchanged. The exception is MemoryError, or one of the decompression library,
    which also means a lack of memory. The batch must have at least two records.
    """
    cdef Accumulator* a = &acc.c
    cdef int64_t limit = smaller_limit(a, b)
    cdef Batch* part = cut(acc, b, limit)
    try:
        forward(b, part)
    except MemoryError:
        drop(acc, part)
        raise
    pthread_mutex_lock(&a.lock)
    learn(acc, b, limit)
    replace(acc, b, part)
    pthread_mutex_unlock(&a.lock)
    acc._free(b)
    return 0


cdef void replace(RecordAccumulator acc, Batch* b, Batch* part) noexcept nogil:
    """Replaces a batch that is in a request with a chain of batches (``next``). The lock is held."""
    cdef Accumulator* a = &acc.c
    cdef Partition* p = b.partition
    cdef Batch* following
    p.recovering = 1
    take_off_wire(a, b)
    settle(b)
    withdraw(a, p)
    while part != NULL:
        following = part.next
        enqueue_sorted(a, p, part)
        part.newer = b
        part.older = b.older
        if b.older != NULL:
            b.older.newer = part
        else:
            a.oldest = part
        b.older = part
        cyp_change64(&a.incomplete, 1)
        part = following
    acc._forget(b)
    refresh(a, p)


# Excluding refused records


cdef int exclude(RecordAccumulator acc, Batch* b, dict errors) except -1:
    """Fails some records of a batch that is in a request, and replaces it with a batch of the others.

    Frees the old batch. ``errors``: record index in the batch -> error. On an exception (MemoryError, or an
    exception of decompression) the batch is unchanged.
    """
    cdef Accumulator* a = &acc.c
    cdef Batch* rest = NULL
    cdef bytes raw = unpacked(b)
    cdef const uint8_t* records = b.data + BATCH_HEADER
    cdef Forward* targets
    cdef int32_t kept = 0
    cdef int32_t i
    if raw is not None:
        records = <const uint8_t*>PyBytes_AS_STRING(raw)
    if len(errors) < b.count:
        rest = next_part(acc, b, &records, b.count, INT64_MAX, errors)
        if rest == NULL:
            raise MemoryError(
                f"no memory for the {b.count - len(errors)} records of a batch that were not refused"
            )
        rest.first_record = b.first_record
    targets = <Forward*>calloc(b.count, sizeof(Forward))
    if targets == NULL:
        drop(acc, rest)
        raise MemoryError(f"no memory to take records out of a batch of {b.count}")
    for i in range(b.count):
        if i in errors:
            targets[i].to = delivery_new(b.partition.index, a.completions)
            if targets[i].to == NULL:
                while i > 0:
                    i -= 1
                    delivery_unref(targets[i].to)
                free(targets)
                drop(acc, rest)
                raise MemoryError(f"no memory to take records out of a batch of {b.count}")
            targets[i].to.count = 1
        else:
            targets[i].to = rest.delivery
            targets[i].index = kept
            delivery_ref(rest.delivery)
            kept += 1
    delivery_forward(b.delivery, targets)
    # Before the batch is removed from the incomplete ones: when a flush returns, the futures must be done.
    # The batch still holds its delivery, which holds the targets.
    for i in range(b.count):
        if i in errors:
            delivery_fail(targets[i].to, errors[i])
    pthread_mutex_lock(&a.lock)
    count_records(&a.meters, &b.partition.topic.meter, RECORDS_FAILED, b.count - kept, acc.clock.now_ns())
    replace(acc, b, rest)
    pthread_mutex_unlock(&a.lock)
    acc._free(b)
    return 0


def topic_estimates(RecordAccumulator accumulator not None, str name not None):
    """The estimates that limit a topic's new batches. Thread-safe.

    ``compression_ratio``: expected compressed / raw size. ``batch_limit``: maximum batch size on the wire, in
    bytes. A new topic starts with 1.0 and ``batch_size``.
    """
    cdef TopicInfo state = accumulator.topic(name)
    pthread_mutex_lock(&accumulator.c.lock)
    ratio = state.c.compression_ratio
    limit = state.c.batch_limit
    pthread_mutex_unlock(&accumulator.c.lock)
    return {"compression_ratio": ratio, "batch_limit": limit or accumulator.c.batch_size}
