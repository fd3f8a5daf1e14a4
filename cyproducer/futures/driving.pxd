from libc.stdint cimport int32_t, int64_t


cdef class Driver:
    cdef bint drive(self, const int32_t* state, int64_t until) except -1 nogil
