from cyproducer.send.extensions cimport Extensions
from cyproducer.send.send_path cimport SendPath
from cyproducer.futures.bulk_future cimport BulkFuture


cdef class ExtendedRows:
    cdef Extensions extensions
    cdef object topic
    # The arguments of send_many(), changed by each step: lists, if they have one item per row and `valid`.
    cdef object values
    cdef object keys              # or None
    cdef object headers           # or None, or one list of pairs for all rows
    cdef object partition         # or None, or an int for all rows
    cdef object timestamp_ms      # or None, or an int for all rows
    # The arguments before the serializers and the partitioner.
    cdef tuple given
    cdef bint valid               # all lists have the same length
    cdef bint acknowledges        # the interceptors get the outcomes of the rows
    cdef bint of_each             # the headers are one list of pairs per row
    cdef int _make_lists(self) except -1
    cdef int intercept(self) except -1
    cdef int serialize(self) except -1
    cdef int choose(self, SendPath path) except -1
    cdef int follow(self, BulkFuture future) except -1
    cdef int refuse(self, object error) except -1
