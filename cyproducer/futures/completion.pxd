from libc.stdint cimport int32_t, int64_t

from cyproducer.futures.delivery cimport CompletionList, Delivery
from cyproducer.futures.driving cimport Driver


cdef class CompletionQueue:
    cdef CompletionList entries
    cdef object start             # called once, when the first callback is registered
    cdef Driver driver            # what entries.driver points to
    cdef int _run(self, Delivery* d) except -1
    cdef void _catch_up(self, int64_t records) noexcept nogil
    cdef int64_t _low(self) noexcept nogil
    cdef bint in_callback(self) noexcept nogil
    cdef bint wait_for_room(self, int64_t deadline, const int32_t* closed) except -1
