"""What idempotence keeps in C: the unsettled batches of a partition, its gate, and the producer's identity.

Owns: how these change when a batch leaves the wire or gets its outcome, and when the control plane
(``control/idempotence``, which has the rules) says so. Does not own: giving sequences and holding batches
back, which is part of draining (``ready_partitions``). On the sender; ``take_off_wire`` and ``settle`` run
under the accumulator's lock, the others take it.
"""

from cyproducer.accumulator.ready_partitions cimport refresh
from cyproducer.accumulator.structures cimport Topic
from cyproducer.base.sync cimport pthread_mutex_lock, pthread_mutex_unlock


cdef void take_off_wire(Accumulator* a, Batch* b) noexcept nogil:
    """A batch's request is over. Its partition may send on: refresh it once the batch has its new place."""
    cdef Partition* p = b.partition
    if b.in_request:
        b.in_request = 0
        p.in_flight -= 1
        if p.in_flight == 0:
            p.recovering = 0


cdef void settle(Batch* b) noexcept nogil:
    """A batch has its outcome, or is given up: it is unsettled no more."""
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


cdef int32_t strip_sequences(Accumulator* a, Partition* p, int64_t from_record) noexcept nogil:
    """Takes their sequences from the batches from ``from_record`` on, which are certainly not in the log.

    None of them is on the wire. Returns how many unsettled batches remain.
    """
    cdef int32_t kept = 0
    cdef int32_t i
    cdef Batch* b
    pthread_mutex_lock(&a.lock)
    for i in range(p.unsettled_count):
        b = p.unsettled[i]
        if b.first_record >= from_record:
            b.base_sequence = -1
            b.ambiguous = 0
        else:
            p.unsettled[kept] = b
            kept += 1
    p.unsettled_count = kept
    refresh(a, p)
    pthread_mutex_unlock(&a.lock)
    return kept


cdef void set_gate(Accumulator* a, Partition* p, int gate) noexcept nogil:
    """Says what of a partition may go: a ``Gate``."""
    pthread_mutex_lock(&a.lock)
    p.gate = <signed char>gate
    refresh(a, p)
    pthread_mutex_unlock(&a.lock)


cdef void set_identity(Accumulator* a, int64_t producer_id, int16_t producer_epoch) noexcept nogil:
    """Says whose sequences new batches get; -1: nobody's, they wait. Partitions follow when they can."""
    cdef Topic* t
    cdef int32_t i
    pthread_mutex_lock(&a.lock)
    a.producer_id = producer_id
    a.producer_epoch = producer_epoch
    t = a.topics
    while t != NULL:
        for i in range(t.partition_room):
            refresh(a, t.partitions[i])
        t = t.next
    pthread_mutex_unlock(&a.lock)
