"""Updates the C state of idempotence: a partition's unsettled batches, its gate, and the producer's identity.

Owns the changes when a request ends, when a batch gets its outcome, and when the control plane orders them
(``control/idempotence`` has the rules). Does not own assigning sequences and holding batches back, which are
part of draining (``ready_partitions``). Runs on the sender; ``take_off_wire`` and ``settle`` run under the
accumulator's lock, the others take it.
"""

from libc.stdint cimport int32_t

from cyproducer.accumulator.ready_partitions cimport refresh
from cyproducer.accumulator.structures cimport Topic
from cyproducer.base.sync cimport pthread_mutex_lock, pthread_mutex_unlock


cdef void take_off_wire(Accumulator* a, Batch* b) noexcept nogil:
    """Notes that a batch's request has ended. Its partition may be ready to send again: call ``refresh`` once
    the batch is in its new place.
    """
    cdef Partition* p = b.partition
    if b.in_request:
        b.in_request = 0
        p.in_flight -= 1
        a.on_wire -= 1
        if p.in_flight == 0:
            p.recovering = 0


cdef void settle(Batch* b) noexcept nogil:
    """Removes a batch that has its outcome, or is replaced, from the unsettled batches."""
    cdef Partition* p = b.partition
    cdef int32_t i = 0
    if b.base_sequence < 0:
        return
    while i < p.unsettled_count and p.unsettled[i] != b:
        i += 1
    if i == p.unsettled_count:
        return
    p.unsettled_count -= 1
    while i < p.unsettled_count:
        p.unsettled[i] = p.unsettled[i + 1]
        i += 1


cdef void note_gap(const Batch* b, bint moves) noexcept nogil:
    """In a transaction, notes a batch that is certainly not in the log, and is about to be replaced or to
    fail alone.

    ``moves``: not all of its records are sent again, so the records behind it get different sequences.
    """
    cdef Partition* p = b.partition
    if not p.has_gap or b.first_record < p.gap_record:
        p.gap_record = b.first_record
        p.gap_sequence = b.base_sequence
    p.gap_moves |= moves
    p.has_gap = 1


cdef bint strip_sequences(Accumulator* a, Partition* p, int64_t from_record) noexcept nogil:
    """Removes the sequences of the batches from ``from_record`` on, which are certainly not in the log.

    None of them is in flight. In a transaction, the epoch stays, and the records get the sequences from the
    gap on. If all records are sent again, each gets its old sequence, so a late request with the old batches
    is a duplicate. Returns True if sequences change although a late request may still contain one of these
    batches.
    """
    cdef bint late = False
    cdef int32_t kept = 0
    cdef int32_t i
    cdef Batch* b
    pthread_mutex_lock(&a.lock)
    for i in range(p.unsettled_count):
        b = p.unsettled[i]
        if b.first_record >= from_record:
            late |= b.ambiguous and p.gap_moves
            b.base_sequence = -1
            # In a transaction, the broker appends a late request if the records before it arrive first.
            # Outside a transaction, the broker refuses a late request because of the new epoch.
            b.ambiguous &= p.has_gap
        else:
            p.unsettled[kept] = b
            kept += 1
    p.unsettled_count = kept
    if p.has_gap:
        p.next_sequence = p.gap_sequence
    forget_gap(p)
    refresh(a, p)
    pthread_mutex_unlock(&a.lock)
    return late


cdef void forget_gap(Partition* p) noexcept nogil:
    p.has_gap = 0
    p.gap_moves = 0


cdef void set_gate(Accumulator* a, Partition* p, int gate) noexcept nogil:
    """Sets which batches of a partition may be sent: a ``Gate``."""
    pthread_mutex_lock(&a.lock)
    p.gate = <signed char>gate
    refresh(a, p)
    pthread_mutex_unlock(&a.lock)


cdef void set_identity(Accumulator* a, int64_t producer_id, int16_t producer_epoch) noexcept nogil:
    """Sets the producer id and epoch of new sequences; with -1 new batches wait. Each partition switches when
    its unsettled batches allow it.
    """
    pthread_mutex_lock(&a.lock)
    a.producer_id = producer_id
    a.producer_epoch = producer_epoch
    refresh_all(a)
    pthread_mutex_unlock(&a.lock)


cdef void refresh_all(Accumulator* a) noexcept nogil:
    """Moves every partition to the right list. The lock is held."""
    cdef Topic* t = a.topics
    cdef int32_t i
    while t != NULL:
        for i in range(t.partition_room):
            refresh(a, t.partitions[i])
        t = t.next
