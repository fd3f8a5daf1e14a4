"""Appends many rows to batches: the loop of ``send_arrow()`` and ``send_many()``.

Owns writing rows to batches, one block of rows per acquisition of the accumulator's lock. Does not own
opening and closing batches (``record_accumulator``) or waiting for memory (``bulk_path``). Runs on
application threads, without the GIL unless there are few rows.

A block is limited in rows and bytes, so that the sender and ``send()`` on other threads wait no longer than
about ten microseconds for the lock. Columns are read and keys are hashed before the lock is taken. Rows that
have only values, the common and fastest case, are written directly from their column.
"""

from libc.string cimport memcpy
from posix.time cimport nanosleep, timespec

from cyproducer.accumulator.record_accumulator cimport (
    APPENDED,
    IS_CLOSED,
    LEAST_WAIT,
    NEED_MEMORY,
    NO_SUCH_PARTITION,
    OUT_OF_MEMORY,
    TOPIC_UNKNOWN,
    dated,
    put,
)
from cyproducer.accumulator.buffer_pool cimport buffer_capacity
from cyproducer.accumulator.builtin_partitioner cimport STICKY, place
from cyproducer.accumulator.ready_partitions cimport note_work, stop_appends
from cyproducer.futures.bulk_segments cimport note
from cyproducer.accumulator.structures cimport OPEN, Accumulator, Batch, Partition
from cyproducer.base.sync cimport (
    SIGNAL_SLICE_NS,
    cyp_add_roughly64,
    cyp_give_way,
    cyp_load32,
    cyp_lock_queued,
    cyp_monotonic_ns,
    cyp_peek64,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.records.columnar cimport (
    ABSENT,
    FIXED,
    NO_LISTS,
    OFFSETS32,
    OFFSETS64,
    SPANS,
    VIEWS,
    Cells,
    cell,
    cell_of,
    encode_headers_at,
    milliseconds_at,
    number_at,
)
from cyproducer.records.hashing cimport key_hash_rules, partition_of
from cyproducer.records.record_batch cimport BATCH_HEADER, USUAL_SLACK, record_bound
from cyproducer.records.varint cimport put_varint, varint_size

cdef enum:
    BLOCK_ROWS = 512          # maximum rows of a block; segments are allocated for this many
    BLOCK_BYTES = 65536       # maximum bytes of a block
    GIVEN_MOMENTS = 4         # sleeps of about 70 us each, including timer slack

cdef uint8_t NO_HEADERS = 0


cdef int append_rows(RecordAccumulator acc, Topic* t, Segments segments, Sending* s) noexcept nogil:
    """Appends the rows of a batch of rows from ``s.row`` on.

    Returns APPENDED if all were appended, otherwise the reason: an ``AppendResult`` or ``BulkResult``. In
    either case ``s.out.sealing`` may be a batch to be sealed.
    """
    cdef int64_t pause_ns = 0
    cdef int64_t now_ns
    cdef int32_t more
    cdef int result
    while True:
        more = <int32_t>min(BLOCK_ROWS, s.rows.count - s.row)
        if not segments.make_room(more) or not segments.make_chains(min(more, s.partitions)):
            return OUT_OF_MEMORY
        # For few rows, the coarse clock, as in send().
        s.now_ms = acc.clock.ticked_wall_ms() if s.rows.count <= FEW_ROWS else acc.clock.wall_ms()
        result = append_block(acc, t, segments, s)
        if s.out.wake:
            acc.wake()
        if result != APPENDED or s.row == s.rows.count:
            return result
        now_ns = cyp_monotonic_ns()
        if pause_ns == 0:
            pause_ns = now_ns + SIGNAL_SLICE_NS
        if s.out.sealing != NULL or now_ns >= pause_ns:
            return PAUSE


cdef int append_block(RecordAccumulator acc, Topic* t, Segments segments, Sending* s) noexcept nogil:
    """Appends one block of rows."""
    cdef Accumulator* a = &acc.c
    cdef int result
    cdef bint wake = False
    cdef bint plain = is_plain(t, s)
    s.out.sealing = NULL
    if not plain:
        read_rows(t, s)
    if s.rows.count <= FEW_ROWS:
        # This thread holds the GIL: bulk calls give way to it.
        cyp_lock_queued(&a.lock, &a.queued)
    else:
        pthread_mutex_lock(&a.lock)
    if a.refusing:
        result = IS_CLOSED
    elif t.partition_count == 0:
        result = TOPIC_UNKNOWN
    elif t.partition_count != s.partitions:
        result = OTHER_PARTITIONS
    elif plain:
        result = append_plain(acc, t, segments, s, &wake)
    else:
        result = append_ready(acc, t, segments, s, &wake)
    if wake:
        wake = note_work(a)
    pthread_mutex_unlock(&a.lock)
    if s.rows.count > FEW_ROWS:
        give_way(&a.queued)
    s.out.wake = wake
    return result


cdef void give_way(const int32_t* queued) noexcept nogil:
    """Waits until threads that wait for the lock have taken it, for a fraction of a millisecond at most.

    A thread that was asleep first needs a CPU, possibly the CPU of this thread. If that takes longer than the
    yields of ``cyp_give_way``, the thread would find the lock taken again. So this function also sleeps.
    """
    cdef timespec moment
    cdef int _i
    cyp_give_way(queued)
    for _i in range(GIVEN_MOMENTS):
        if cyp_load32(queued) == 0:
            return
        moment.tv_sec = 0
        moment.tv_nsec = 20_000
        nanosleep(&moment, NULL)


# Rows in general

cdef inline int64_t read_row(const Sending* s, int64_t row, RecordView* r, uint8_t* headers) noexcept nogil:
    """Fills ``r``; returns the number of bytes written to ``headers``."""
    cdef const Rows* rows = s.rows
    cdef int64_t used = 0
    r.key_size = cell(&rows.key, row, &r.key)
    r.value_size = cell(&rows.value, row, &r.value)
    r.headers = &NO_HEADERS
    r.headers_size = 1
    if rows.headers.layout != NO_LISTS:
        used = encode_headers_at(&rows.headers, row, headers)
        r.headers = headers
        r.headers_size = used
    r.timestamp_ms = s.timestamp_ms
    if rows.timestamp.data != NULL:
        r.timestamp_ms = milliseconds_at(&rows.timestamp, row)
    return used


cdef void read_rows(const Topic* t, Sending* s) noexcept nogil:
    """Reads the next rows and hashes their keys. Called before the lock is taken."""
    cdef const Rows* rows = s.rows
    cdef int64_t end = min(rows.count, s.row + s.ready_room)
    cdef int64_t headers_used = 0
    cdef int64_t row
    cdef Ready* to = s.ready
    cdef RecordView* r
    cdef bint simple = (
        rows.value.layout == OFFSETS32
        and rows.value.validity == NULL
        and rows.value.indices == NULL
        and rows.key.layout == OFFSETS32
        and rows.key.validity == NULL
        and rows.key.indices == NULL
        and rows.headers.layout == NO_LISTS
        and rows.timestamp.data == NULL
    )
    for row in range(s.row, end):
        r = &to.record
        if simple:
            r.key_size = cell_of(OFFSETS32, &rows.key, row, &r.key)
            r.value_size = cell_of(OFFSETS32, &rows.value, row, &r.value)
            r.headers = &NO_HEADERS
            r.headers_size = 1
            r.timestamp_ms = s.timestamp_ms
        else:
            if rows.headers.layout != NO_LISTS and s.headers_room - headers_used < s.headers_most:
                break
            headers_used += read_row(s, row, r, s.headers + headers_used)
        to.partition = s.partition
        if rows.partition.data != NULL:
            to.partition = <int32_t>number_at(&rows.partition, row)
        to.chosen = to.partition < 0
        if to.chosen:
            to.partition = partition_of(t.key_hash, r.key, r.key_size, s.partitions)
        to += 1
    s.ready_count = <int32_t>(to - s.ready)


cdef int append_ready(
    RecordAccumulator acc, Topic* t, Segments segments, Sending* s, bint* wake
) noexcept nogil:
    """Appends the rows read by ``read_rows``. The lock is held."""
    cdef Accumulator* a = &acc.c
    cdef int64_t bytes_left = BLOCK_BYTES
    cdef int64_t bound
    cdef int32_t _i
    cdef int32_t partition
    cdef int result
    cdef Ready* from_ = s.ready
    cdef const RecordView* r
    cdef Partition* p
    cdef Batch* b
    for _i in range(s.ready_count):
        r = &from_.record
        partition = from_.partition
        bound = record_bound(r.key_size, r.value_size, r.headers_size)
        if from_.chosen:
            if partition < 0:
                partition = place(a, acc.clock, t, r)
                cyp_add_roughly64(&t.sticky_bytes, bound - USUAL_SLACK)
        elif partition >= t.partition_count:
            return NO_SUCH_PARTITION
        p = t.partitions[partition]
        stop_appends(a, p)
        b = p.last
        if b != NULL and b.state == OPEN and b.size + bound <= min(b.capacity, b.limit):
            note(segments, partition, b.delivery, b.count, 1, False)
            put(p, b, r, r.timestamp_ms if r.timestamp_ms >= 0 else dated(b, s.now_ms))
            a.records_appended += 1
        else:
            result = append_slowly(acc, t, segments, s, partition, r, wake)
            if result != APPENDED:
                return result
        from_ += 1
        s.row += 1
        bytes_left -= bound
        if bytes_left <= 0 or s.out.sealing != NULL:
            break
    return APPENDED


cdef int append_slowly(
    RecordAccumulator acc, Topic* t, Segments segments, Sending* s, int32_t partition, const RecordView* r,
    bint* wake,
) noexcept nogil:
    """Appends one row with the accumulator's ``_append``, which opens, enlarges and closes batches."""
    cdef int64_t least
    cdef int result
    s.out.wake = False
    # Read without the pool's lock: a few buffers too many do no harm.
    if s.grant == 0 and s.left_over > 0 and cyp_peek64(&acc.pool.in_use) > acc.pool.total_bytes - s.left_over:
        least = buffer_capacity(record_bound(r.key_size, r.value_size, r.headers_size) + BATCH_HEADER)
        s.out.need = acc._first_capacity(t.partitions[partition], least, LEAST_WAIT)
        return NEED_MEMORY
    result = acc._append(t, partition, r, &s.grant, False, &s.out)
    wake[0] |= s.out.wake
    if result == APPENDED:
        note(segments, partition, s.out.delivery, s.out.index, 1, True)
    return result


# Rows that have only values and go to one partition

cdef inline bint is_plain(const Topic* t, const Sending* s) noexcept nogil:
    """Whether the rows have only values, none of them null, and consecutive rows go to one partition."""
    cdef const Rows* rows = s.rows
    return (
        rows.key.layout == ABSENT
        and rows.value.validity == NULL
        and rows.value.indices == NULL
        and not rows.value.sparse
        and rows.headers.layout == NO_LISTS
        and rows.timestamp.data == NULL
        and rows.partition.data == NULL
        and (
            s.partition >= 0
            or (t.keyless == STICKY and not key_hash_rules[t.key_hash].hashes_missing)
        )
    )


cdef int append_plain(
    RecordAccumulator acc, Topic* t, Segments segments, Sending* s, bint* wake
) noexcept nogil:
    """Appends a block of rows for which ``is_plain`` holds. The lock is held."""
    cdef Accumulator* a = &acc.c
    cdef int64_t end = min(s.rows.count, s.row + BLOCK_ROWS)
    cdef int64_t bytes_left = BLOCK_BYTES
    cdef int64_t bound
    cdef int64_t limit
    cdef int64_t taken
    cdef int64_t timestamp_ms
    cdef int32_t partition
    cdef int32_t count
    cdef int result
    cdef RecordView r
    cdef Partition* p
    cdef Batch* b
    while s.row < end and bytes_left > 0 and s.out.sealing == NULL:
        # The first row is handled separately: the partition is chosen for it, and it may need a new batch.
        read_row(s, s.row, &r, NULL)
        bound = record_bound(-1, r.value_size, 1)
        partition = s.partition
        limit = bytes_left
        if partition < 0:
            partition = place(a, acc.clock, t, &r)
            limit = min(limit, a.batch_size - cyp_peek64(&t.sticky_bytes))
        elif partition >= t.partition_count:
            return NO_SUCH_PARTITION
        p = t.partitions[partition]
        stop_appends(a, p)
        b = p.last
        taken = bound - USUAL_SLACK
        if b != NULL and b.state == OPEN and b.size + bound <= min(b.capacity, b.limit):
            timestamp_ms = r.timestamp_ms if r.timestamp_ms >= 0 else dated(b, s.now_ms)
            count = put_rows(b, &s.rows.value, s.row, end, limit, timestamp_ms, &taken)
            note(segments, partition, b.delivery, b.count, count, False)
            b.count += count
            b.delivery.count = b.count
            p.records += count
            a.records_appended += count
            s.row += count
        else:
            result = append_slowly(acc, t, segments, s, partition, &r, wake)
            if result != APPENDED:
                return result
            s.row += 1
        bytes_left -= taken
        if s.partition < 0:
            cyp_add_roughly64(&t.sticky_bytes, taken)
    return APPENDED


cdef inline int32_t put_rows(
    Batch* b, const Cells* values, int64_t row, int64_t end, int64_t limit, int64_t timestamp_ms,
    int64_t* taken,
) noexcept nogil:
    """Writes rows to a batch that has room for the first one, until row ``end``, the batch's limit or
    ``limit`` bytes.

    Returns the number of rows. Sets ``taken`` to their bytes, as the sticky policy counts them.
    """
    # One loop per layout: the layout is a compile-time constant, not checked per row.
    if values.layout == OFFSETS32:
        return put_rows_of(OFFSETS32, b, values, row, end, limit, timestamp_ms, taken)
    if values.layout == OFFSETS64:
        return put_rows_of(OFFSETS64, b, values, row, end, limit, timestamp_ms, taken)
    if values.layout == VIEWS:
        return put_rows_of(VIEWS, b, values, row, end, limit, timestamp_ms, taken)
    if values.layout == SPANS:
        return put_rows_of(SPANS, b, values, row, end, limit, timestamp_ms, taken)
    return put_rows_of(FIXED, b, values, row, end, limit, timestamp_ms, taken)


cdef inline int32_t put_rows_of(
    int layout, Batch* b, const Cells* values, int64_t row, int64_t end, int64_t limit, int64_t timestamp_ms,
    int64_t* taken,
) noexcept nogil:
    cdef uint8_t* p = b.data + b.size
    cdef uint8_t* full = b.data + min(b.capacity, b.limit)
    cdef int64_t delta = timestamp_ms - b.base_timestamp
    cdef int64_t fixed = 3 + varint_size(delta)   # attributes, the null key, no headers
    cdef int64_t total = 0
    cdef int64_t size
    cdef int64_t largest = b.largest
    cdef uint8_t* start
    cdef int32_t index = b.count
    cdef const uint8_t* at = NULL
    while row < end and total < limit:
        size = cell_of(layout, values, row, &at)
        if p + record_bound(-1, size, 1) > full:
            break
        # Like put_record, specialized for what all these rows have in common.
        start = p
        p = put_varint(p, fixed + varint_size(index) + varint_size(size) + size)
        p[0] = 0
        p = put_varint(p + 1, delta)
        p = put_varint(p, index)
        p[0] = 1
        p = put_varint(p + 1, size)
        memcpy(p, at, size)
        p += size
        p[0] = 0
        p += 1
        if p - start > largest:
            largest = p - start
        total += record_bound(-1, size, 1) - USUAL_SLACK
        index += 1
        row += 1
    if timestamp_ms > b.max_timestamp:
        b.max_timestamp = timestamp_ms
    b.size = p - b.data
    b.largest = largest
    taken[0] = total
    return index - b.count
