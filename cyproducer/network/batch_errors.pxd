from libc.stdint cimport int64_t

from cyproducer.accumulator.structures cimport Batch, Partition
from cyproducer.network.produce_response cimport Answers


cdef str topic_name(const Partition* p)


cdef class Outcomes(Answers):
    cdef object _facts(self, const Batch* b, int culprits=*)
    cdef dict _errors_of(self, const Partition* p, int error_code, dict culprits)
    cdef int _overdue(self, Batch* b, int64_t now) except -1
    cdef int _put_back(self, Batch* b, double at_ms, int64_t now) except -1
    cdef Partition* _find(self, str topic, int partition) except NULL
