from cyproducer.accumulator.record_accumulator cimport RecordAccumulator
from cyproducer.accumulator.structures cimport Batch

cdef int split(RecordAccumulator acc, Batch* b) except -1
cdef int exclude(RecordAccumulator acc, Batch* b, dict errors) except -1
