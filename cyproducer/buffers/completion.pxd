from cyproducer.buffers.delivery cimport CompletionList, Delivery
from cyproducer.buffers.driving cimport Driver


cdef class CompletionQueue:
    cdef CompletionList entries
    cdef object start             # called once, when the first callback is registered
    cdef Driver driver            # what entries.driver points to
    cdef int _run(self, Delivery* d) except -1
