"""Parks records in a queue of their topic until its metadata arrives, then appends them to partitions.

Owns parking records whose topic has no metadata, applying a topic's partitions and leaders to the
accumulator, and appending or failing parked records. Does not own the metadata (``control/metadata``).
``park`` and ``await_parking`` run in ``send()``, everything else on the sender thread, with the
GIL.

The future of a parked record has a delivery of its own. ``designate`` appends the record to its partition's
batch and forwards that delivery to the batch's, so the future needs no update.

A record must not overtake a parked one that was sent before it to the same partition. So while records are
parked, ``append`` sees no partitions of the topic, and later records park behind them. The partitions become
visible in the same critical section that finds the queue empty.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cyproducer.accumulator.compression_thread cimport hand_over
from cyproducer.accumulator.ready_partitions cimport stop_appends
from cyproducer.accumulator.record_accumulator cimport (
    APPENDED,
    IS_CLOSED,
    NO_SUCH_PARTITION,
    OUT_OF_MEMORY,
    TOO_MANY_PARKED,
    TOPIC_GONE,
    TOPIC_UNKNOWN,
    Appended,
)
from cyproducer.futures.delivery cimport (
    Forward,
    delivery_fail,
    delivery_forward,
    delivery_new,
    delivery_ref,
    delivery_unref,
)
from cyproducer.base cimport forks
from cyproducer.base.meters cimport RECORDS_FAILED, count_records
from cyproducer.accumulator.structures cimport Accumulator, Node, Parked, Topic
from cyproducer.base.greenlets cimport broadcast, wait_on
from cyproducer.base.sync cimport FAR_NS, cyp_add64, cyp_store32, pthread_mutex_lock, pthread_mutex_unlock
from cyproducer.accumulator.partition_table cimport (
    Sequences,
    assign_leader,
    copy_sequences,
    drop_topic,
    join_waiting,
    leave_waiting,
    list_available,
    make_node,
    restore_sequences,
    take_id,
    widen,
)

from cyproducer.errors import UnknownTopicOrPartitionError


cdef int64_t parked_size(const RecordView* r) noexcept nogil:
    """The bytes that a parked record reserves in the pool: its data and its structures."""
    return (
        <int64_t>(sizeof(Parked) + sizeof(Delivery))
        + (r.key_size if r.key_size > 0 else 0)
        + (r.value_size if r.value_size > 0 else 0)
        + r.headers_size
    )


cdef int park(
    RecordAccumulator acc, Topic* t, int32_t partition, const RecordView* r, int64_t reserved,
    int64_t deadline_ns, Delivery** out
) noexcept nogil:
    """Puts a record into its topic's queue of parked records until the topic has partitions.

    Returns an ``AppendResult``; APPENDED means parked. The caller has reserved ``reserved`` bytes in the
    pool, which is the record's ``parked_size``.
    """
    cdef Accumulator* a = &acc.c
    cdef Parked* k
    cdef uint8_t* at
    cdef int result = APPENDED
    cdef bint first = False
    acc.pool.make_room()
    k = <Parked*>calloc(1, reserved)
    if k == NULL:
        return OUT_OF_MEMORY
    k.delivery = delivery_new(partition, a.completions)
    if k.delivery == NULL:
        free(k)
        return OUT_OF_MEMORY
    k.delivery.count = 1
    k.reserved = reserved
    k.deadline_ns = deadline_ns
    k.partition = partition
    k.record = r[0]
    at = <uint8_t*>(k + 1)
    if r.key_size > 0:
        memcpy(at, r.key, r.key_size)
        k.record.key = at
        at += r.key_size
    if r.value_size > 0:
        memcpy(at, r.value, r.value_size)
        k.record.value = at
        at += r.value_size
    memcpy(at, r.headers, r.headers_size)
    k.record.headers = at
    pthread_mutex_lock(&a.lock)
    if a.refusing:
        result = IS_CLOSED
    elif t.gone:
        result = TOPIC_GONE
    elif t.partition_count > 0:
        # The metadata arrived between append() and here: the caller appends again.
        result = TOPIC_UNKNOWN
    elif crowded(a, t, reserved):
        result = TOO_MANY_PARKED
    else:
        # A sleeping sender does not know the deadline of the first parked record: wake it up.
        first = a.parked == 0
        if first:
            a.parked_anew = 1
        k.id = a.next_id
        a.next_id += 1
        if t.last_parked == NULL:
            t.first_parked = k
            join_waiting(a, t)
        else:
            t.last_parked.next = k
        t.last_parked = k
        a.parked += 1
        a.parked_bytes += reserved
        t.parked_bytes += reserved
        t.last_used_ns = acc.clock.now_ns()
        delivery_ref(k.delivery)
        out[0] = k.delivery
    pthread_mutex_unlock(&a.lock)
    if first:
        acc.wake()
    if result != APPENDED:
        delivery_unref(k.delivery)
        free(k)
    return result


cdef inline bint crowded(const Accumulator* a, const Topic* t, int64_t size) noexcept nogil:
    """Whether parking ``size`` more bytes would exceed the limits on parked bytes. The lock is held.

    Without limits, a thread that floods a missing topic would take all memory, and threads that send to other
    topics would wait for memory. If no record is parked, a record of any size can be parked.
    """
    return (t.first_parked != NULL and t.parked_bytes + size > a.most_parked_bytes // 2) or (
        a.parked > 0 and a.parked_bytes + size > a.most_parked_bytes
    )


cdef bint await_parking(RecordAccumulator acc, Topic* t, int64_t size, int64_t until) noexcept nogil:
    """Waits until the monotonic time ``until`` at most; returns whether a record of ``size`` bytes can be
    parked, or no longer needs to be.

    The caller is counted in ``Accumulator.crowded``, unless ``until`` is 0: then it does not wait.
    """
    cdef bint may
    pthread_mutex_lock(&acc.c.lock)
    while True:
        may = acc.c.refusing or t.gone or t.partition_count > 0 or not crowded(&acc.c, t, size)
        if may or wait_on(&acc.c.progress, &acc.c.lock, until):
            break
    pthread_mutex_unlock(&acc.c.lock)
    return may


cdef int apply_topic(
    RecordAccumulator acc, TopicInfo state, bytes topic_id, list leaders, object in_rack=()
) except -1:
    """Sets a topic's partitions and leaders: ``leaders[i]`` is the broker id for partition i, or -1.

    ``topic_id``: 16 bytes, or empty if the cluster has none. ``in_rack``: those of the leaders in the
    client's rack; empty unless the partitioner is rack-aware. If it raises MemoryError, nothing has changed
    except that some structures were allocated.
    """
    cdef Topic* t = &state.c
    cdef int count = len(leaders)
    cdef bytes kept = acc.sequences.get(state.name)
    cdef int kept_count = 0 if kept is None else sequences_in(kept)
    cdef Node** nodes = <Node**>calloc(max(1, count), sizeof(Node*))
    cdef uint8_t* flags = <uint8_t*>calloc(max(1, count), 1)
    cdef bint wake = False
    cdef int failed
    cdef int leader
    cdef int i
    if nodes == NULL or flags == NULL:
        free(nodes)
        free(flags)
        raise MemoryError(f"no memory for the leaders of topic {state.name!r}")
    try:
        for i in range(count):
            leader = leaders[i]
            if leader >= 0:
                nodes[i] = make_node(&acc.c, leader)
                flags[i] = leader in in_rack
        # One critical section: the partitioner relies on available partitions having a leader.
        pthread_mutex_lock(&acc.c.lock)
        # At least as many as before the topic was forgotten: if there are fewer partitions now, the next
        # metadata may contain the others again.
        failed = widen(&acc.c, t, max(count, kept_count))
        if not failed:
            if kept is not None:
                restore_sequences(t, <const Sequences*><const char*>kept, kept_count)
            for i in range(count):
                if nodes[i] != NULL:
                    nodes[i].in_rack = flags[i]
                wake |= assign_leader(&acc.c, t, i, nodes[i])
            # The others no longer exist.
            for i in range(count, t.partition_room):
                assign_leader(&acc.c, t, i, NULL)
            list_available(t, count)
            if len(topic_id) == 16:
                take_id(&acc.c, t, <const uint8_t*><const char*>topic_id)
            if t.partition_count > 0:
                cyp_store32(&t.partition_count, count)
        pthread_mutex_unlock(&acc.c.lock)
    finally:
        free(nodes)
        free(flags)
    if failed:
        raise MemoryError(f"no memory for the {count} partitions of topic {state.name!r}")
    if kept is not None:
        del acc.sequences[state.name]
    if t.partition_count == 0:
        designate(acc, state, count)
    if wake:
        acc.wake()
    return 0


cdef int designate(RecordAccumulator acc, TopicInfo state, int count) except -1:
    """Appends every parked record of a topic to its partition's batch, then makes the partitions visible."""
    cdef Topic* t = &state.c
    cdef Parked* k
    cdef Appended out
    cdef Forward* target
    cdef int64_t grant
    cdef int result
    pthread_mutex_lock(&acc.c.lock)
    t.designating = count
    pthread_mutex_unlock(&acc.c.lock)
    while True:
        pthread_mutex_lock(&acc.c.lock)
        k = t.first_parked
        if k == NULL:
            cyp_store32(&t.partition_count, count)
            broadcast(&acc.c.progress)
            pthread_mutex_unlock(&acc.c.lock)
            return 0
        pthread_mutex_unlock(&acc.c.lock)
        out.sealing = NULL
        result = OUT_OF_MEMORY
        # Allocate before the append: once the record is in a batch, nothing must fail. Otherwise the record
        # would both fail and be sent.
        target = <Forward*>calloc(1, sizeof(Forward))
        if target != NULL:
            grant = 0
            result = acc.append(t, k.partition, &k.record, &grant, True, &out)
        if result == APPENDED:
            target.to = out.delivery
            target.index = out.index
            delivery_forward(k.delivery, target)
        else:
            free(target)
            pthread_mutex_lock(&acc.c.lock)
            count_records(&acc.c.meters, &t.meter, RECORDS_FAILED, 1, acc.clock.now_ns())
            pthread_mutex_unlock(&acc.c.lock)
            acc.unplaced = why_not_placed(result, state, k.partition, count)
            delivery_fail(k.delivery, acc.unplaced)
        discard(acc, t)
        # Even if the append failed: it may have closed the full batch and then found no memory for a new one.
        if out.sealing == NULL:
            continue
        if acc.c.compression.wanted and t.settings.native != NULL:
            # There may be many such batches, and this is the sender thread, which has other work.
            pthread_mutex_lock(&acc.c.lock)
            hand_over(&acc.c, out.sealing)
            pthread_mutex_unlock(&acc.c.lock)
        else:
            acc.seal(out.sealing)


cdef object why_not_placed(int result, TopicInfo state, int partition, int count):
    """The error of a parked record that could not be appended. Never raises: the record needs some error."""
    try:
        if result == NO_SUCH_PARTITION:
            error = UnknownTopicOrPartitionError(
                f"topic {state.name!r} has no partition {partition}: it has {count}, 0 to {count - 1}"
            )
        else:
            error = MemoryError("no memory to place a record")
        error.maybe_written = False
        return error
    except MemoryError as error:
        return error


cdef int discard(RecordAccumulator acc, Topic* t) except -1:
    """Frees a topic's oldest parked record, after it was appended to a batch or has failed.

    Not earlier: a concurrent flush would find the record neither parked nor in a batch, and return.
    """
    cdef Accumulator* a = &acc.c
    cdef Parked* k = t.first_parked
    pthread_mutex_lock(&a.lock)
    leave_waiting(a, t)
    t.first_parked = k.next
    if k.next == NULL:
        t.last_parked = NULL
    else:
        join_waiting(a, t)
    a.parked -= 1
    a.parked_bytes -= k.reserved
    t.parked_bytes -= k.reserved
    if a.crowded > 0:
        broadcast(&a.progress)
    pthread_mutex_unlock(&a.lock)
    acc.pool.unreserve(k.reserved)
    delivery_unref(k.delivery)
    free(k)
    return 0


cdef int forget_topic(RecordAccumulator acc, TopicInfo state) except -1:
    """Forgets an idle topic whose metadata was dropped: the next record is parked and requests it again.

    Only the sequences of its partitions are kept: about 150 of 1,200 bytes for a topic of three partitions.
    """
    cdef bint dropped
    cdef bint sequenced = False
    cdef int32_t i
    # Filled in below, before any other code sees it.
    cdef bytes kept = PyBytes_FromStringAndSize(
        NULL, sizeof(Sequences) + max(0, state.c.partition_room - 1) * sizeof(int32_t)
    )
    pthread_mutex_lock(&acc.c.lock)
    cyp_store32(&state.c.partition_count, 0)
    # From now on records are parked, and no later one may get into a batch before them.
    for i in range(state.c.partition_room):
        stop_appends(&acc.c, state.c.partitions[i])
    dropped = state.pins == 0 and drop_topic(&acc.c, &state.c)
    if dropped and acc.c.idempotent:
        sequenced = copy_sequences(&acc.c, &state.c, <Sequences*><char*>kept)
    pthread_mutex_unlock(&acc.c.lock)
    if dropped:
        # A thread that still uses the TopicInfo keeps it alive, and sees that the topic is ``gone``.
        acc.topics.pop(state.name, None)
        # Loops of several producers may do this at once.
        cyp_add64(&forks.borrowing, 1)
        if sequenced:
            acc.sequences[state.name] = kept
    return 0


cdef int sequences_in(bytes kept) except -1:
    """The number of partitions whose sequences are kept."""
    return 1 + (<int>len(kept) - <int>sizeof(Sequences)) // <int>sizeof(int32_t)


cdef list fail_overdue(RecordAccumulator acc, object error_of, int64_t before_ns):
    """Fails all parked records whose deadline is at or before ``before_ns``, with ``error_of(topic_name)``.

    Returns (name, records, error) for each topic with failed records.
    """
    cdef Topic* t
    cdef TopicInfo state
    cdef list failed = []
    while True:
        pthread_mutex_lock(&acc.c.lock)
        t = acc.c.first_waiting
        if t != NULL and t.first_parked.deadline_ns > before_ns:
            t = NULL
        pthread_mutex_unlock(&acc.c.lock)
        if t == NULL:
            return failed
        # The name stays valid without the lock: topics with parked records are not forgotten, and only this
        # thread removes parked records.
        name = t.name[:t.name_size].decode()
        state = acc.topics[name]
        error = error_of(name)
        failed.append((name, fail_parked(acc, state, error, before_ns), error))


cdef list waiting_topics(RecordAccumulator acc):
    """The names of the topics that have parked records."""
    cdef Topic* t
    cdef list names = []
    pthread_mutex_lock(&acc.c.lock)
    t = acc.c.first_waiting
    pthread_mutex_unlock(&acc.c.lock)
    # Other threads only insert into the list: only this thread removes topics from it.
    while t != NULL:
        names.append(t.name[:t.name_size].decode())
        pthread_mutex_lock(&acc.c.lock)
        t = t.next_waiting
        pthread_mutex_unlock(&acc.c.lock)
    return names


cdef int fail_parked(RecordAccumulator acc, TopicInfo state, object error, int64_t before_ns) except -1:
    """Fails a topic's parked records whose deadline is at or before ``before_ns``; returns how many."""
    cdef Parked* k
    cdef int failed = 0
    while True:
        pthread_mutex_lock(&acc.c.lock)
        k = state.c.first_parked
        if k != NULL and k.deadline_ns <= before_ns:
            count_records(&acc.c.meters, &state.c.meter, RECORDS_FAILED, 1, acc.clock.now_ns())
        else:
            k = NULL
            broadcast(&acc.c.progress)
        pthread_mutex_unlock(&acc.c.lock)
        if k == NULL:
            return failed
        delivery_fail(k.delivery, error)
        discard(acc, &state.c)
        failed += 1


cdef int64_t next_parked_deadline(RecordAccumulator acc) noexcept nogil:
    """The earliest deadline of a parked record; ``FAR_NS`` if none is parked."""
    cdef int64_t first = FAR_NS
    pthread_mutex_lock(&acc.c.lock)
    if acc.c.first_waiting != NULL:
        first = acc.c.first_waiting.first_parked.deadline_ns
    pthread_mutex_unlock(&acc.c.lock)
    return first
