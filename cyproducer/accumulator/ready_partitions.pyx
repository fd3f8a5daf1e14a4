"""Keeps track of the partitions that have a batch to send, and drains batches for the next request.

Owns the lists that a partition moves through. Does not read the clock (the sender passes the time) and does
not send. All functions run under the accumulator's lock, with or without the GIL, in ``send()`` or on the
sender.

A partition is in at most one list, so finding work never requires a scan of all partitions:

    NOWHERE     nothing is queued, it has no leader or is backing off, its oldest batch is being compressed,
                or order and sequences do not allow sending now (may_send)
    LINGERING   linger_ms > 0, or records stream in, and its only batch is open and young. Sorted by the
                batches' age: there is one list for each linger_ms, see TopicSettings
    GATHERING   linger_ms = 0 and its only batch is open. The batch is sent when the requests that were in
                flight to its broker when it was created are answered: at once on an idle connection; under
                load it gathers records until then. FIFO
    SENDABLE    its oldest batch is full, has grown (far_brokers) or has lingered, or a thread flushes, closes
                or waits for memory
    JOINING     the partition is not in the open transaction yet; the control plane takes it from this list,
                once per transaction, and has it added

A request takes one batch of each partition from the head of SENDABLE; a partition with more batches moves to
the tail. So every partition gets its turn, no matter how many batches the others have.

A broker that answers within microseconds would get a request for every few records, and the requests would
cost both sides more than the records. So with linger_ms = 0 an open batch also lingers if records stream:
about STREAM_FLOW of them were sent to the broker in the last FLOW_NS, and no thread was in ``get()`` for a
record of the last acknowledged batch. It lingers for up to three quarters of a millisecond, in proportion to
the flow up to FULL_FLOW: a slower stream would gather too few records to be worth that latency.

Batches of many partitions are created at different times. Without coordination, each would end its linger at
a different time, and each would need its own request and wake-up of the sender. So when one batch has
lingered, batches in the last quarter of their linger are sent with it, and all batches if they linger because
records stream: that is for fewer requests, while linger_ms asks for larger batches.
"""

from libc.stdint cimport int16_t, uint32_t

from cyproducer.base.meters cimport PRODUCE_REQUESTS, RECORDS_REQUESTED, count_queued, meters_turn
from cyproducer.base.sync cimport (
    FAR_NS,
    cyp_after,
    cyp_load32,
    cyp_peek8,
    cyp_spin_lock,
    cyp_spin_unlock,
    cyp_store32,
    cyp_store_pointer,
)
from cyproducer.accumulator.compression_thread cimport hand_over
from cyproducer.accumulator.structures cimport (
    ASLEEP,
    AWAKE,
    GATE_OPEN,
    GATE_SHUT,
    GATHERING,
    JOINING,
    LEFT_ALONE,
    LINGERING,
    MOST_UNSETTLED,
    NOWHERE,
    OPEN,
    SEALED,
    SEALING,
    SENDABLE,
    STANDING_BY,
    PartitionList,
    TopicSettings,
    prefetch_batch,
    prefetch_partition,
)


# Brokers forget idle producers after producer.id.expiration.ms, one day by default. Assuming this earlier
# costs one round trip after a pause.
cdef int64_t FORGOTTEN_NS = 60_000_000_000


cdef enum:
    FLOW_NS = 4_000_000
    STREAM_FLOW = 256
    FULL_FLOW = 1024
    MOST_INLINE = 16384           # maximum bytes of a batch that the sender itself compresses
    LINGER_PARTS = 4              # in the last part of its linger, a batch is sent together with another


cdef inline int64_t linger_of(const Accumulator* a, const TopicSettings* s) noexcept nogil:
    return s.linger_ns if s.linger_ns > 0 else a.stream_linger_ns


cdef inline PartitionList* list_of(Accumulator* a, Partition* p) noexcept nogil:
    if p.membership == LINGERING:
        return &p.topic.settings.lingering
    if p.membership == GATHERING:
        return &p.node.gathering
    if p.membership == JOINING:
        return &a.joining
    return &p.node.sendable


cdef inline void look_ahead(const Partition* p) noexcept nogil:
    """Prefetches what a walk along a list needs after ``p``: partitions, and the batches of the nearer ones.

    Another thread has written most of it, so it is in no cache of this thread's core. Following ``next``
    would wait for one partition after the other; ``skip`` leads to one that is needed later.
    """
    cdef const Partition* following = p.next
    prefetch_partition(p.skip)
    if following != NULL and following.next != NULL:
        prefetch_batch(following.next.first)


cdef void withdraw(Accumulator* a, Partition* p) noexcept nogil:
    """Removes the partition from the list it is in, if any."""
    cdef PartitionList* members
    if p.membership == NOWHERE:
        return
    members = list_of(a, p)
    if p.prev != NULL:
        p.prev.next = p.next
    else:
        members.first = p.next
    if p.next != NULL:
        p.next.prev = p.prev
    else:
        members.last = p.prev
    members.count -= 1
    p.prev = NULL
    p.next = NULL
    p.membership = NOWHERE


cdef void join(Accumulator* a, Partition* p, int membership) noexcept nogil:
    cdef PartitionList* members
    cdef Partition* before
    p.membership = membership
    members = list_of(a, p)
    before = members.last
    if membership == LINGERING:
        # A batch that waited behind another batch or for a leader is older than the last ones in the list.
        while before != NULL and before.first.created_ns > p.first.created_ns:
            before = before.prev
    p.prev = before
    if before != NULL:
        p.next = before.next
        before.next = p
    else:
        p.next = members.first
        members.first = p
    if p.next != NULL:
        p.next.prev = p
    else:
        members.last = p
        # Its predecessors have just joined: they are in the cache.
        if members.count >= 4:
            before.prev.prev.prev.skip = p
    members.count += 1


cdef bint may_send(Accumulator* a, Partition* p) noexcept nogil:
    """Whether order and sequences allow sending the partition's oldest batch now."""
    cdef Batch* b = p.first
    if p.in_flight > 0 and (p.recovering or a.one_in_flight):
        return False
    if not a.idempotent:
        return True
    if a.adds_partitions and p.joined != a.transaction:
        return False
    if b.base_sequence >= 0:
        return p.gate != GATE_SHUT and (p.known or p.in_flight == 0)
    if p.gate != GATE_OPEN or p.unsettled_count == MOST_UNSETTLED:
        return False
    if a.producer_id < 0:
        # Ready while there is no connection, so that the connection is made before the id is known.
        return p.node.transport == NULL
    return p.unsettled_count == 0 or (
        p.known and p.producer_id == a.producer_id and p.producer_epoch == a.producer_epoch
    )


cdef inline bint streams(const Accumulator* a, const Partition* p) noexcept nogil:
    """Whether enough records stream in that the partition's open batch should linger."""
    return (
        a.stream_linger_ns > 0
        and p.node.flow >= STREAM_FLOW
        and p.first.created_ns - p.node.flow_ns < FLOW_NS
        and not cyp_peek8(&p.awaited)
    )


cdef bint refresh(Accumulator* a, Partition* p) noexcept nogil:
    """Moves the partition to the right list for its queue; returns whether to wake a sleeping sender."""
    cdef Batch* b = p.first
    cdef int want = NOWHERE
    if b != NULL and p.retry_at_ns == 0 and p.node != NULL and b.state != SEALING and may_send(a, p):
        if b.state == SEALED or b.grown or a.flushing or a.closed or cyp_load32(a.waiting):
            want = SENDABLE
        elif p.topic.settings.linger_ns > 0 or (p.membership != GATHERING and streams(a, p)):
            want = LINGERING
        else:
            want = GATHERING
    elif b != NULL and a.adds_partitions and p.joining != a.transaction and p.node != NULL:
        want = JOINING
    # A batch that was made sendable does not linger again.
    if p.membership == want or (p.membership == SENDABLE and want != NOWHERE):
        return False
    withdraw(a, p)
    if want == NOWHERE:
        return False
    p.mark = p.node.sent
    join(a, p, want)
    if want == JOINING:
        return True
    if want == LINGERING:
        return cyp_after(b.created_ns, linger_of(a, p.topic.settings)) < a.sleeping_until_ns
    return p.node.takes and (want == SENDABLE or p.node.answered >= p.mark)


cdef bint note_work(Accumulator* a) noexcept nogil:
    """Notes that there is new work; returns whether the sender must be woken.

    One wake-up is enough for everything that is appended until the sender looks for work again.
    """
    cdef int32_t sleep = cyp_load32(&a.sleeping)
    cyp_store32(&a.sleeping, LEFT_ALONE if sleep == STANDING_BY else AWAKE)
    return sleep == ASLEEP or sleep == LEFT_ALONE


cdef void hurry(Accumulator* a) noexcept nogil:
    """Makes all lingering and gathering partitions sendable, for a flush, a close, or a lack of memory."""
    cdef Node* n
    cdef Partition* p
    cdef int32_t i
    for i in range(a.settings_count):
        while a.settings[i].lingering.first != NULL:
            p = a.settings[i].lingering.first
            withdraw(a, p)
            join(a, p, SENDABLE)
    n = a.nodes
    while n != NULL:
        while n.gathering.first != NULL:
            p = n.gathering.first
            withdraw(a, p)
            join(a, p, SENDABLE)
        n = n.next


cdef void expire_linger(Accumulator* a, int64_t now) noexcept nogil:
    """Moves partitions whose batch has lingered, or is about to have lingered, to their next list."""
    cdef TopicSettings* s
    cdef Partition* p
    cdef int64_t until
    cdef int32_t i
    for i in range(a.settings_count):
        s = &a.settings[i]
        p = s.lingering.first
        if p == NULL:
            continue
        until = now - linger_of(a, s)
        if p.first.created_ns > until:
            continue
        until += linger_of(a, s) // LINGER_PARTS
        while s.lingering.first != NULL:
            p = s.lingering.first
            if s.linger_ns > 0 and p.first.created_ns > until:
                break
            look_ahead(p)
            withdraw(a, p)
            join(a, p, SENDABLE if s.linger_ns > 0 or p.mark <= p.node.answered else GATHERING)


cdef int64_t first_linger_end(const Accumulator* a) noexcept nogil:
    """When the next batch will have lingered; ``FAR_NS`` if none lingers."""
    cdef const TopicSettings* s
    cdef int64_t end = FAR_NS
    cdef int32_t i
    for i in range(a.settings_count):
        s = &a.settings[i]
        if s.lingering.first != NULL:
            end = min(end, cyp_after(s.lingering.first.first.created_ns, linger_of(a, s)))
    return end


cdef void promote(Accumulator* a, Node* n) noexcept nogil:
    cdef Partition* p
    while n.gathering.first != NULL and n.gathering.first.mark <= n.answered:
        p = n.gathering.first
        look_ahead(p)
        withdraw(a, p)
        join(a, p, SENDABLE)


cdef bint has_work(Node* n) noexcept nogil:
    """Whether the broker has a sendable batch."""
    return n.sendable.first != NULL or (
        n.gathering.first != NULL and n.gathering.first.mark <= n.answered
    )


cdef void stop_appends(Accumulator* a, Partition* p) noexcept nogil:
    """Ends appends to the partition's open batch under ``Partition.lock`` alone.

    From now on only the thread that holds the accumulator's lock appends to it.
    """
    # Only set with the lock held that the caller holds.
    if p.open == NULL:
        return
    cyp_spin_lock(&p.lock)
    cyp_store_pointer(<void**>&p.open, NULL)
    a.records_appended += p.appended
    p.appended = 0
    cyp_spin_unlock(&p.lock)


cdef void close_batch(Accumulator* a, Batch* b) noexcept nogil:
    """Closes a batch for appends. With a codec, it becomes SEALING; the caller must have it compressed."""
    stop_appends(a, b.partition)
    b.state = SEALED if b.partition.topic.settings.codec == 0 else SEALING
    b.raw_size = b.size
    b.partition.hint = b.size


cdef void enqueue(Accumulator* a, Partition* p, Batch* b) noexcept nogil:
    """Appends a new batch to its partition's queue."""
    b.next = NULL
    if p.last != NULL:
        p.last.next = b
    else:
        p.first = b
        a.queues += 1
    p.last = b
    p.queued += 1


cdef void enqueue_sorted(Accumulator* a, Partition* p, Batch* b) noexcept nogil:
    """Inserts a batch that is re-enqueued, or a part of a split batch, before all younger batches."""
    cdef Batch* at = p.first
    if at == NULL or at.first_record > b.first_record:
        b.next = at
        p.first = b
        if at == NULL:
            p.last = b
            a.queues += 1
    else:
        while at.next != NULL and at.next.first_record < b.first_record:
            at = at.next
        b.next = at.next
        at.next = b
        if b.next == NULL:
            p.last = b
    p.queued += 1


cdef bint dequeue(Accumulator* a, Partition* p, Batch* b) noexcept nogil:
    """Removes a batch from its partition's queue; returns False if it is not in the queue."""
    cdef Batch* before = NULL
    cdef Batch* at = p.first
    while at != NULL and at != b:
        before = at
        at = at.next
    if at == NULL:
        return False
    if before == NULL:
        p.first = b.next
    else:
        before.next = b.next
    if p.last == b:
        p.last = before
    b.next = NULL
    p.queued -= 1
    if p.first == NULL:
        a.queues -= 1
    return True


cdef inline void give_sequence(Accumulator* a, Partition* p, Batch* b, int64_t now) noexcept nogil:
    """Assigns the next sequences of its partition to a batch, from 0 if the producer id or epoch is new.

    A broker that does not know a producer id accepts any first sequence:

    1. Batches 0 and 1 are in flight.
    2. The broker refuses batch 0: it has too few in-sync replicas.
    3. The replicas are back, and the broker accepts batch 1.
    4. Batch 0 is sent again and is out of order.

    So the first batch is sent alone until it is acknowledged.
    """
    if p.producer_id != a.producer_id or (p.unsettled_count == 0 and now - p.sequenced_ns > FORGOTTEN_NS):
        p.known = 0
    p.sequenced_ns = now
    if p.producer_id != a.producer_id or p.producer_epoch != a.producer_epoch:
        p.producer_id = a.producer_id
        p.producer_epoch = a.producer_epoch
        p.next_sequence = 0
    b.producer_id = p.producer_id
    b.producer_epoch = p.producer_epoch
    b.base_sequence = p.next_sequence
    # 31 bits: 2147483647 is followed by 0, also within a batch.
    p.next_sequence = <int32_t>((<uint32_t>p.next_sequence + <uint32_t>b.count) & 0x7FFFFFFF)
    p.unsettled[p.unsettled_count] = b
    p.unsettled_count += 1


cdef int32_t drain(
    Accumulator* a, Node* n, int64_t max_bytes, Batch** out, int32_t room, int64_t now
) noexcept nogil:
    """Takes the oldest batch of each sendable partition of a broker, up to ``max_bytes`` in total.

    Takes at least one batch, however large. Returns the number of batches written to ``out``. They are of
    topics with the same acks, which a request has only once; partitions of other topics keep their places.
    With a codec, a batch that was still open is SEALING: the caller compresses it. A large batch is not
    taken yet: it is passed to the compression thread.
    """
    cdef int32_t count = 0
    cdef int16_t acks = 0
    cdef Partition* following
    cdef const TopicSettings* s
    cdef int64_t total = 0
    cdef int32_t i
    cdef Partition* p
    cdef Batch* b
    cdef int64_t records = 0
    meters_turn(&a.meters, now)
    promote(a, n)
    following = n.sendable.first
    while following != NULL and count < room:
        p = following
        look_ahead(p)
        following = p.next
        b = p.first
        s = p.topic.settings
        if not may_send(a, p):
            withdraw(a, p)
            continue
        if count > 0 and s.acks != acks:
            continue
        stop_appends(a, p)
        if b.state == OPEN and s.native != NULL and a.compression.wanted and b.size > MOST_INLINE:
            withdraw(a, p)
            close_batch(a, b)
            hand_over(a, b)
            continue
        if count > 0 and total + b.size > max_bytes:
            break
        withdraw(a, p)
        dequeue(a, p, b)
        if b.state == OPEN:
            close_batch(a, b)
        if a.idempotent and b.base_sequence < 0:
            give_sequence(a, p, b, now)
        if b.drained_ns == 0:
            count_queued(&a.meters, now - b.created_ns)
        b.attempts += 1
        b.drained_ns = now
        b.in_request = 1
        p.in_flight += 1
        a.on_wire += 1
        total += b.size
        records += b.count
        out[count] = b
        count += 1
        acks = s.acks
    for i in range(count):
        refresh(a, out[i].partition)
    if count > 0:
        a.wrote = 1
        n.sent += 1
        a.meters.all.total[PRODUCE_REQUESTS] += 1
        a.meters.all.total[RECORDS_REQUESTED] += records
        n.waiting_since_ns = 0
        # Linear decay is good enough.
        n.flow = records + n.flow * max(0, FLOW_NS - (now - n.flow_ns)) // FLOW_NS
        n.flow_ns = now
        a.stream_linger_ns = a.longest_stream_ns * min(n.flow, <int64_t>FULL_FLOW) // FULL_FLOW
    return count
