from cyproducer.buffers.delivery cimport CompletionList, Delivery


cdef class CompletionQueue:
    cdef CompletionList entries
    cdef object start             # called once, when the first callback is registered
    cdef int _run(self, Delivery* d) except -1
