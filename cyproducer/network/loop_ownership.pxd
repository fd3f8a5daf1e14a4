from libc.stdint cimport int32_t

from cyproducer.network.batch_errors cimport Outcomes


cdef class Turns(Outcomes):
    cdef int32_t standing_by      # the sender's thread leaves the turn to whoever waits for a record
    cdef int32_t drives           # turns that waiting threads took and gave back
    cdef int32_t left_alone       # times that a record came while it stood by, and nobody to wait for it
    cdef bint _stand_by(self) except -1 nogil
    cdef bint _settle_down(self) noexcept nogil
