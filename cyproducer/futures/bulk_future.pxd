from libc.stdint cimport int32_t

from cyproducer.futures.bulk_segments cimport Segments


cdef class BulkFuture:
    cdef Segments segments
    cdef readonly str topic
    cdef object callbacks          # None, or a list of (kind, function)
    cdef bint followed             # whether a batch will call _follow, or has called it
    cdef int32_t learnt            # atomic: the next two are set, and do not change
    cdef object metadata
    cdef object error              # None, or the exception
    cdef bint _settled(self) except -1
    cdef object _learn(self)
    cdef object _add(self, int kind, object function)
    cdef object _run_callbacks(self)


cdef BulkFuture bulk_future(str topic, Segments segments)
