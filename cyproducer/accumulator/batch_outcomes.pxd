from libc.stdint cimport int32_t, int64_t

from cyproducer.accumulator.buffer_pool cimport BufferPool
from cyproducer.base.clock cimport Clock
from cyproducer.futures.completion cimport CompletionQueue
from cyproducer.accumulator.structures cimport Accumulator, Batch

# Wakes the sender. A function pointer, because the accumulator does not know about sockets.
ctypedef void (*WakeFunction)(void* context) noexcept nogil


cdef void free_spares(Batch* b) noexcept nogil


cdef class Incomplete:
    cdef Accumulator c
    cdef readonly BufferPool pool
    cdef readonly Clock clock
    cdef readonly CompletionQueue completions
    cdef WakeFunction wake_function
    cdef void* wake_context

    cdef void wake(self) noexcept nogil
    cdef bint _parked_before(self, int64_t id) noexcept nogil
    cdef void _forget(self, Batch* b) noexcept nogil
    cdef void _free(self, Batch* b) noexcept nogil
    cdef void complete(self, Batch* b, int64_t base_offset, int64_t log_append_ms) noexcept nogil
    cdef void acknowledge(self, Batch* b, int64_t base_offset, int64_t log_append_ms) noexcept nogil
    cdef void account(self, Batch** batches, int32_t count) noexcept nogil
    cdef void _count(self, Batch* b, int which) noexcept nogil
    cdef int fail(self, Batch* b, object error) except -1
    cdef int abandon(self, Batch* b, object error) except -1
    cdef int requeue(self, Batch* b, int64_t retry_at_ns) except -1
    cdef Batch* overdue(self, int64_t created_before_ns) noexcept nogil
    cdef Batch* unfinished_batch(self, bint queued, bint in_flight, bint* compressing) noexcept nogil
