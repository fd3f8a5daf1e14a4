from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.buffers.accumulator cimport Appended, RecordAccumulator
from cyproducer.buffers.segments cimport Segments
from cyproducer.buffers.structures cimport Topic
from cyproducer.records.row_source cimport Rows

cdef enum BulkResult:
    # Beside the values of AppendResult.
    MORE_PARTITIONS = 100         # the topic has more than there are segments for
    PAUSE = 101                   # a batch is to be compressed, or signals are to be looked for

# How far a call has come.
cdef struct Sending:
    const Rows* rows              # the batch of rows it is at
    int64_t row                   # the next one in it
    int64_t now_ms                # timestamp of rows that have none
    int64_t timestamp_ms          # of every row; -1: the column's, or now
    int32_t partition             # of every row; -1: the column's, or to be chosen
    uint8_t* headers              # room for those of one row, encoded
    int64_t grant                 # bytes reserved for a new batch
    Appended out                  # sealing: a batch to be sealed; need: bytes, where memory is lacking


cdef int append_rows(RecordAccumulator acc, Topic* t, Segments segments, Sending* s) noexcept nogil
