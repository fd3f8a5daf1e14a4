from libc.stdint cimport int64_t


cdef class Clock:
    cdef int64_t manual_ns        # what a manual clock shows; -1: the system's clock is read
    cdef int64_t manual_wall_ms   # the same for the wall clock
    cdef int64_t now_ns(self) noexcept nogil
    cdef int64_t wall_ms(self) noexcept nogil
    cdef int64_t ticked_wall_ms(self) noexcept nogil


cdef class ManualClock(Clock):
    pass


cdef double duration_of(str name, object value, str unit) except -1
cdef int64_t deadline_in(str name, object seconds) except -1
