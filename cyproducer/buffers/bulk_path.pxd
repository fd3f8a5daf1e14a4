from libc.stdint cimport int32_t, int64_t

from cyproducer.buffers.bulk cimport BulkFuture
from cyproducer.buffers.bulk_append cimport Sending
from cyproducer.buffers.segments cimport Segments
from cyproducer.buffers.send_path cimport SendPath
from cyproducer.buffers.topology cimport TopicState
from cyproducer.records.row_source cimport RowSource


cdef class BulkPath(SendPath):
    cdef BulkFuture _pinned(self, TopicState state, RowSource source, bint given)
    cdef BulkFuture _send_rows(self, TopicState state, RowSource source, bint given)
    cdef int _check(self, TopicState state, RowSource source, int32_t partitions, bint given) except -1
    cdef int _append_all(self, TopicState state, RowSource source, Segments segments, Sending* s) except -1
    cdef int _cope(
        self, int result, TopicState state, Segments segments, Sending* s, int64_t deadline
    ) except -1
    cdef bint _wait_for_others(self, int64_t size, int64_t deadline) except -1
    cdef int32_t _known_partitions(self, TopicState state, int64_t deadline) except -1
