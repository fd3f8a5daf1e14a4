from libc.stdint cimport int64_t

from cyproducer.buffers.accumulator cimport RecordAccumulator
from cyproducer.buffers.structures cimport Batch

cdef int split(RecordAccumulator acc, Batch* b) except -1
cdef int exclude(RecordAccumulator acc, Batch* b, dict errors) except -1
