from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.accumulator.record_accumulator cimport Appended, RecordAccumulator
from cyproducer.futures.segments cimport Segments
from cyproducer.accumulator.structures cimport RecordView, Topic
from cyproducer.records.row_source cimport Rows

cdef enum BulkResult:
    # Beside the values of AppendResult.
    OTHER_PARTITIONS = 100        # the topic has more or fewer than the call reckons with
    PAUSE = 101                   # a batch is to be compressed, or signals are to be looked for

cdef enum:
    READY_ROWS = 256              # that are read before the lock is taken
    FEW_ROWS = 8                  # that are appended with the GIL held

# A row that was read.
cdef struct Ready:
    RecordView record
    int32_t partition             # -1: keyless, to be placed
    int32_t chosen                # whether by its key, or to be

# How far a call has come.
cdef struct Sending:
    const Rows* rows              # the batch of rows it is at
    int64_t row                   # the next one in it
    int64_t now_ms                # timestamp of rows that have none
    int64_t timestamp_ms          # of every row; -1: the column's, or now
    int32_t partition             # of every row; -1: the column's, or to be chosen
    int32_t partitions            # that the topic has
    int32_t ready_count
    int32_t ready_room            # rows that there is room for, of READY_ROWS
    Ready* ready
    uint8_t* headers              # room for those of the rows in ``ready``, encoded
    int64_t headers_room          # bytes of it
    int64_t headers_most          # that any row's headers take
    int64_t grant                 # bytes reserved for a new batch
    int64_t left_over             # bytes of the pool that the call leaves to others; 0: none
    Appended out                  # sealing: a batch to be sealed; need: bytes, where memory is lacking


cdef int append_rows(RecordAccumulator acc, Topic* t, Segments segments, Sending* s) noexcept nogil
