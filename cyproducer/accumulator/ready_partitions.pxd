from libc.stdint cimport int32_t, int64_t

from cyproducer.accumulator.structures cimport Accumulator, Batch, Node, Partition

cdef bint may_send(Accumulator* a, Partition* p) noexcept nogil
cdef bint refresh(Accumulator* a, Partition* p) noexcept nogil
cdef void withdraw(Accumulator* a, Partition* p) noexcept nogil
cdef bint note_work(Accumulator* a) noexcept nogil
cdef void hurry(Accumulator* a) noexcept nogil
cdef void expire_linger(Accumulator* a, int64_t now) noexcept nogil
cdef int64_t first_linger_end(const Accumulator* a) noexcept nogil
cdef int32_t drain(
    Accumulator* a, Node* n, int64_t max_bytes, Batch** out, int32_t room, int64_t now
) noexcept nogil
cdef bint has_work(Node* n) noexcept nogil
cdef void stop_appends(Accumulator* a, Partition* p) noexcept nogil
cdef void close_batch(Accumulator* a, Batch* b) noexcept nogil
cdef void enqueue(Accumulator* a, Partition* p, Batch* b) noexcept nogil
cdef void enqueue_sorted(Accumulator* a, Partition* p, Batch* b) noexcept nogil
cdef bint dequeue(Accumulator* a, Partition* p, Batch* b) noexcept nogil
