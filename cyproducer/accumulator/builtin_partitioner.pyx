"""Chooses a record's partition if the caller has not set one: by the key's hash, or by a keyless policy.

Owns the keyless policies, which need the accumulator's state: sticky, random, round robin, single broker.
Does not own key hashing (``records/hashing``) or the names of partitioners (``control/partitioners.py``).
Runs in ``send()``, under the accumulator's lock.

Sticky: records without a key go to one partition until it has received ``batch_size`` bytes, so that batches
fill. The next partition is drawn at random, weighted by queue length: the shorter its queue, the more likely
a partition is drawn, so that a slow broker gets no more than it can handle (KIP-480, KIP-794). Up to
``CANDIDATES`` partitions are drawn and weighted when a choice is due, instead of updating a table of all
partitions at each drain: the cost does not grow with the number of partitions.

With ``partitioner_rack_aware`` (KIP-1123) it is drawn among the partitions whose leader is in
the client's rack; among all if there is none, or if none of the rack's brokers is available.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

from cyproducer.accumulator.structures cimport Partition
from cyproducer.base.sync cimport cyp_after, cyp_note32, cyp_note64, cyp_peek64
from cyproducer.records.hashing cimport partition_of

cdef enum:
    CANDIDATES = 8


KEYLESS = ("sticky", "random", "round_robin", "single_broker")


cdef int32_t keyless_number(str name) except -1:
    """The ``Keyless`` of this name in ``KEYLESS``; raises ValueError if there is none."""
    if name not in KEYLESS:
        raise ValueError(
            f"unknown policy {name!r} for records without a key: allowed: {', '.join(KEYLESS)}"
        )
    return KEYLESS.index(name)


cdef uint64_t next_random(uint64_t* state) noexcept nogil:
    """The next number of an xorshift64* generator (Vigna 2016). Its state is never 0."""
    cdef uint64_t x = state[0]
    x ^= x >> 12
    x ^= x << 25
    x ^= x >> 27
    state[0] = x
    return x * <uint64_t>0x2545F4914F6CDD1D


cdef inline int32_t below(Accumulator* a, int32_t bound) noexcept nogil:
    return <int32_t>((next_random(&a.random) >> 32) % <uint64_t>bound)


cdef inline bint answers(Accumulator* a, Partition* p, int64_t now) noexcept nogil:
    """Whether the partition's broker is available (partitioner_availability_timeout_ms)."""
    return (
        p.node != NULL
        and (
            a.availability_timeout_ns <= 0
            or p.node.waiting_since_ns == 0
            or now - p.node.waiting_since_ns <= a.availability_timeout_ns
        )
    )


cdef int32_t random_partition(Accumulator* a, Topic* t) noexcept nogil:
    if t.in_rack_count > 0:
        return t.available[below(a, t.in_rack_count)]
    if t.available_count > 0:
        return t.available[below(a, t.available_count)]
    return below(a, t.partition_count)


cdef int32_t weighed_among(Accumulator* a, Topic* t, int32_t count, int64_t now) noexcept nogil:
    """Draws one of up to CANDIDATES of the first ``count`` available partitions: the shorter its queue, the
    more likely. Returns -1 if no broker of the candidates is available.
    """
    cdef int32_t drawn[CANDIDATES]
    cdef int32_t queued[CANDIDATES]
    cdef int32_t n = 0
    cdef int32_t longest = 0
    cdef int32_t total = 0
    cdef int32_t i
    cdef int32_t index
    cdef bint all_of_them = count <= CANDIDATES
    cdef Partition* p
    for i in range(count if all_of_them else CANDIDATES):
        index = t.available[i if all_of_them else below(a, count)]
        p = t.partitions[index]
        if not answers(a, p, now):
            continue
        drawn[n] = index
        queued[n] = p.queued + p.in_flight
        if queued[n] > longest:
            longest = queued[n]
        n += 1
    if n == 0:
        return -1
    for i in range(n):
        total += longest + 1 - queued[i]
    index = below(a, total)
    for i in range(n):
        index -= longest + 1 - queued[i]
        if index < 0:
            return drawn[i]
    return drawn[n - 1]


cdef int32_t weighed_partition(Accumulator* a, Topic* t, int64_t now) noexcept nogil:
    """Draws an available partition by its load: one in the rack, unless none of its brokers answers."""
    cdef int32_t index = -1
    if t.in_rack_count > 0:
        index = weighed_among(a, t, t.in_rack_count, now)
    if index < 0:
        index = weighed_among(a, t, t.available_count, now)
    return index if index >= 0 else random_partition(a, t)


cdef int32_t on_single_broker(Accumulator* a, Topic* t, int64_t now) noexcept nogil:
    """A partition of the currently chosen broker; any partition if that broker leads none of the topic's."""
    cdef int32_t i
    cdef int32_t index
    cdef int32_t found = -1
    cdef int32_t seen = 0
    if now >= a.single_broker_until_ns and t.available_count > 0:
        a.single_broker_id = t.partitions[random_partition(a, t)].node.id
        a.single_broker_until_ns = cyp_after(now, a.single_broker_ns)
    for i in range(t.available_count):
        index = t.available[i]
        if t.partitions[index].node != NULL and t.partitions[index].node.id == a.single_broker_id:
            # Reservoir sampling: the k-th candidate is taken with probability 1/k. One pass, no list.
            seen += 1
            if below(a, seen) == 0:
                found = index
    return found if found >= 0 else random_partition(a, t)


cdef int32_t keyless_partition(Accumulator* a, Clock clock, Topic* t) noexcept nogil:
    cdef int64_t now
    cdef Partition* p
    cdef int32_t chosen
    if t.keyless == RANDOM:
        return random_partition(a, t)
    if t.keyless == ROUND_ROBIN:
        t.turn += 1
        if t.available_count > 0:
            return t.available[(t.turn - 1) % <uint64_t>t.available_count]
        return <int32_t>((t.turn - 1) % <uint64_t>t.partition_count)
    if t.sticky >= 0 and t.sticky < t.partition_count and cyp_peek64(&t.sticky_bytes) < a.batch_size:
        p = t.partitions[t.sticky]
        if p.node != NULL or t.available_count == 0:
            if t.keyless == STICKY or clock.now_ns() < a.single_broker_until_ns:
                return t.sticky
    now = clock.now_ns()
    cyp_note64(&t.sticky_bytes, 0)
    if t.keyless == SINGLE_BROKER:
        chosen = on_single_broker(a, t, now)
    elif a.adaptive_partitioning:
        chosen = weighed_partition(a, t, now)
    else:
        chosen = random_partition(a, t)
    cyp_note32(&t.sticky, chosen)
    return chosen


cdef int32_t place(Accumulator* a, Clock clock, Topic* t, const RecordView* r) noexcept nogil:
    """Chooses the record's partition. The topic has metadata; the accumulator's lock is held."""
    cdef int32_t index = partition_of(t.key_hash, r.key, r.key_size, t.partition_count)
    if index >= 0:
        return index
    return keyless_partition(a, clock, t)
