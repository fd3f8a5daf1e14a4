from libc.stdint cimport int64_t


cdef class Clock:
    cdef int64_t manual_ns        # the time of a manual clock; -1: read the system's clock
    cdef int64_t manual_wall_ms   # the same for the wall clock
    cdef int64_t now_ns(self) noexcept nogil
    cdef int64_t wall_ms(self) noexcept nogil
    cdef int64_t ticked_wall_ms(self) noexcept nogil


cdef class ManualClock(Clock):
    pass


cdef double duration_of(str name, object value, str unit) except -1
cdef int64_t deadline_in(str name, object seconds) except -1
