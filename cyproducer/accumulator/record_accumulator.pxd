from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from cyproducer.futures.delivery cimport Delivery
from cyproducer.accumulator.batch_outcomes cimport Incomplete
from cyproducer.accumulator.structures cimport Batch, Partition, RecordView, Topic
from cyproducer.accumulator.partition_table cimport TopicInfo
from cyproducer.base.sync cimport cyp_change32
from cyproducer.records.record_batch cimport put_record

cdef enum AppendResult:
    APPENDED = 0
    NEED_MEMORY = 1       # reserve Appended.need bytes, then append again with them
    TOPIC_UNKNOWN = 2     # no metadata yet: park the record
    NO_SUCH_PARTITION = 3
    IS_CLOSED = 4
    OUT_OF_MEMORY = 5     # malloc failed
    TOO_MANY_PARKED = 6   # parked records have reached the limit of this topic, or of all topics
    TOPIC_GONE = 7        # the topic was forgotten meanwhile: look it up again

cdef enum:
    TICK_MS = 20          # more than the coarse clock can lag between two kernel ticks
    LEAST_WAIT = 16384    # bytes that a thread waits for, even if the partition's batches were smaller

cdef struct Appended:
    Delivery* delivery    # a reference for the caller's future
    int32_t index         # the record's index in the batch
    int64_t timestamp_ms  # the record's timestamp
    int32_t partitions    # 0, or the number of partitions that `chosen` is one of
    int32_t chosen        # the partition that the record's key belongs to; -1: it has none
    int64_t need          # NEED_MEMORY: bytes to reserve
    Batch* sealing        # NULL, or a batch that the caller must pass to seal()
    bint wake             # whether the caller must wake the sender

cdef inline int64_t dated(Batch* b, int64_t now_ms) noexcept nogil:
    """A timestamp for a record that has none: ``now_ms`` of the coarse clock, but not earlier than the
    preceding records, whose timestamps may be those of the exact clock. The lock is held."""
    if b.clock_ms - TICK_MS < now_ms < b.clock_ms:
        return b.clock_ms
    b.clock_ms = now_ms
    return now_ms


cdef inline void put(Partition* p, Batch* b, const RecordView* r, int64_t timestamp) noexcept nogil:
    """Writes a record to the end of an open batch that has room for it."""
    cdef uint8_t* at = b.data + b.size
    cdef int64_t written = put_record(
        at, timestamp - b.base_timestamp, b.count,
        r.key, r.key_size, r.value, r.value_size, r.headers, r.headers_size,
    ) - at
    b.size += written
    if written > b.largest:
        b.largest = written
    if timestamp > b.max_timestamp:
        b.max_timestamp = timestamp
    cyp_change32(&b.count, 1)
    b.delivery.count = b.count
    p.records += 1


cdef class RecordAccumulator(Incomplete):
    cdef readonly object compressor
    cdef list compressors         # of the settings with that index; None: no codec
    cdef object place_of          # None, or returns the index of a topic's settings, given its name
    cdef dict topics                # name -> TopicInfo
    cdef dict sequences             # of forgotten topics: name -> Sequences, as bytes
    cdef list unused_topics         # TopicInfos that are in the list of all topics but not in the dict
    cdef int32_t key_hash           # of new topics: number of the rule that hashes keys
    cdef int32_t keyless            # of new topics: a Keyless
    cdef object unplaced            # None, or the error of the last parked record that was not appended
    cdef object _refusal            # see `refusal`; its critical section is the accumulator's
    cdef public object on_topic_needed   # called with the name of a topic that has no metadata

    cdef int set_settings(self, double linger_ms, int acks, object compressor) except -1
    cdef TopicInfo topic(self, str name)
    cdef int append(
        self, Topic* t, int32_t partition, const RecordView* r, int64_t* grant, bint force, Appended* out
    ) noexcept nogil
    cdef bint _append_open(
        self, Topic* t, int32_t partition, const RecordView* r, Appended* out
    ) noexcept nogil
    cdef int _append(
        self, Topic* t, int32_t partition, const RecordView* r, int64_t* grant, bint force, Appended* out
    ) noexcept nogil
    cdef Batch* _new_batch(
        self, Partition* p, uint8_t* data, int64_t capacity, int64_t least, int64_t now
    ) noexcept nogil
    cdef int64_t _first_capacity(self, const Partition* p, int64_t least, int64_t floor) noexcept nogil
    cdef bint _grow(self, Batch* b, int64_t capacity, int64_t size, bint force) noexcept nogil
    cdef void _shrink(self, Batch* b, int64_t size) noexcept nogil
    cdef int seal(self, Batch* b) except -1
    cdef int compress(self, Batch* b) except -1 nogil
    cdef int _note_uncompressed(self, Batch* b) except -1 with gil
    cdef int _compress_with_gil(self, Batch* b) except -1 with gil
    cdef void _replace(self, Batch* b, const uint8_t* packed, int64_t size) noexcept nogil
    cdef void add(self, int which, int64_t amount) noexcept
