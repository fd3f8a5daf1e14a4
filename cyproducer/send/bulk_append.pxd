from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.accumulator.record_accumulator cimport Appended, RecordAccumulator
from cyproducer.futures.bulk_segments cimport Segments
from cyproducer.accumulator.structures cimport RecordView, Topic
from cyproducer.records.row_source cimport Rows

cdef enum BulkResult:
    # In addition to the values of AppendResult.
    OTHER_PARTITIONS = 100        # the topic's partition count has changed since the call began
    PAUSE = 101                   # a batch must be compressed, or signals must be checked

cdef enum:
    READY_ROWS = 256              # rows that are read before the lock is taken
    FEW_ROWS = 8                  # up to this many rows are appended with the GIL held

# A row that was read.
cdef struct Ready:
    RecordView record
    int32_t partition             # -1: keyless, to be chosen by the partitioner
    int32_t chosen                # the partitioner, not the caller, chooses: by the key or a keyless policy

# The progress of a call.
cdef struct Sending:
    const Rows* rows              # the current batch of rows
    int64_t row                   # the next row in it
    int64_t now_ms                # timestamp of rows that have none
    int64_t timestamp_ms          # of all rows; -1: from the column, or now
    int32_t partition             # of all rows; -1: from the column, or to be chosen
    int32_t partitions            # partition count of the topic
    int32_t ready_count
    int32_t ready_room            # capacity of ``ready``, at most READY_ROWS
    Ready* ready
    uint8_t* headers              # buffer for the encoded headers of the rows in ``ready``
    int64_t headers_room          # its size in bytes
    int64_t headers_most          # the most bytes that the headers of one row take
    int64_t grant                 # bytes reserved for a new batch
    int64_t left_over             # bytes of the pool that the call leaves to other threads; 0: none
    Appended out                  # sealing: a batch to be sealed; need: bytes to reserve, on NEED_MEMORY


cdef int append_rows(RecordAccumulator acc, Topic* t, Segments segments, Sending* s) noexcept nogil
