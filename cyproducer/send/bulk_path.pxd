from libc.stdint cimport int32_t, int64_t

from cyproducer.futures.bulk_future cimport BulkFuture
from cyproducer.send.bulk_append cimport Sending
from cyproducer.send.extended_rows cimport ExtendedRows
from cyproducer.futures.bulk_segments cimport Segments
from cyproducer.send.send_path cimport SendPath
from cyproducer.accumulator.partition_table cimport TopicInfo
from cyproducer.records.row_source cimport RowSource


cdef class BulkPath(SendPath):
    cdef BulkFuture _send_arrow(
        self, object topic, object data, object key, object value, object headers, object partition,
        object timestamp,
    )
    cdef BulkFuture _send_many(
        self, object topic, object values, object keys, object headers, object partition,
        object timestamp_ms,
    )
    cdef BulkFuture _send_extended_rows(self, ExtendedRows rows)
    cdef bint _pin(self, TopicInfo state, int32_t change) noexcept
    cdef BulkFuture _pinned(self, TopicInfo state, RowSource source, bint given)
    cdef BulkFuture _send_rows(self, TopicInfo state, RowSource source, bint given)
    cdef int _check(self, TopicInfo state, RowSource source, int32_t partitions, bint given) except -1
    cdef int _append_all(self, TopicInfo state, RowSource source, Segments segments, Sending* s) except -1
    cdef int _cope(
        self, int result, TopicInfo state, Segments segments, Sending* s, int64_t deadline
    ) except -1
    cdef bint _wait_for_others(self, int64_t size, int64_t deadline) except -1
    cdef int32_t _known_partitions(self, TopicInfo state, int64_t deadline) except -1
