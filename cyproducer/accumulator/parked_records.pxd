from libc.stdint cimport int32_t, int64_t

from cyproducer.accumulator.record_accumulator cimport RecordAccumulator
from cyproducer.futures.delivery cimport Delivery
from cyproducer.accumulator.structures cimport RecordView, Topic
from cyproducer.accumulator.partition_table cimport TopicInfo

cdef int apply_topic(
    RecordAccumulator acc, TopicInfo state, bytes topic_id, list leaders, object in_rack=*
) except -1
cdef int forget_topic(RecordAccumulator acc, TopicInfo state) except -1
cdef int fail_parked(RecordAccumulator acc, TopicInfo state, object error, int64_t before_ns) except -1
cdef int64_t next_parked_deadline(RecordAccumulator acc) noexcept nogil
cdef int64_t parked_size(const RecordView* r) noexcept nogil
cdef int park(
    RecordAccumulator acc, Topic* t, int32_t partition, const RecordView* r, int64_t reserved,
    int64_t deadline_ns, Delivery** out
) noexcept nogil
cdef bint await_parking(RecordAccumulator acc, Topic* t, int64_t size, int64_t until) noexcept nogil
cdef list fail_overdue(RecordAccumulator acc, object error_of, int64_t before_ns)
cdef list waiting_topics(RecordAccumulator acc)
