from libc.stdint cimport int32_t, int64_t

from cyproducer.accumulator.record_accumulator cimport Appended, RecordAccumulator
from cyproducer.accumulator.buffer_pool cimport Ticket
from cyproducer.futures.delivery cimport Delivery, RecordFuture
from cyproducer.accumulator.structures cimport RecordView
from cyproducer.accumulator.topology cimport TopicInfo


cdef class SendPath:
    cdef RecordAccumulator accumulator
    # Of the last send: most programs write one topic in a row. Borrowed, the accumulator keeps it until a
    # topic is forgotten: a counted reference, stored by two threads at once without a GIL, would be counted
    # wrongly.
    cdef void* last_topic
    cdef int64_t forgotten          # the accumulator's topics_forgotten at that time
    cdef bint forked                # the accumulator is the parent process's
    cdef bint plain                 # no serializer, interceptor or partitioner of the user's
    cdef int64_t max_request_size
    cdef int64_t max_block_ns
    cdef object extension           # what _send_extended calls; None where plain

    cdef RecordFuture _send(self, object topic, object value, object key, object headers, object partition,
                            object timestamp_ms, Ticket ticket, bint blocks)
    cdef TopicInfo _topic(self, object name)
    cdef int _append(
        self, TopicInfo state, int32_t partition, const RecordView* r, Appended* out, Ticket ticket,
        bint blocks,
    ) except -1
    cdef int _reserve(self, int64_t size, int64_t deadline, object what) except -1
    cdef int _await_parking(self, TopicInfo state, int64_t size, int64_t deadline) except -1
    cdef int _check_possible(self, int64_t size, object what) except -1
    cdef int _hurry(self) except -1
    cdef int _await_callbacks(self, int64_t deadline, object what) except -1
    cdef object _too_large(self, TopicInfo state, const RecordView* r)


cdef inline TopicInfo topic_of(SendPath path, object name):
    """The topic of that name: without a look into the table where it is that of the last call."""
    cdef void* last = path.last_topic
    if (
        last != NULL
        and path.forgotten == path.accumulator.topics_forgotten
        and (<TopicInfo>last).name is name
    ):
        return <TopicInfo>last
    return path._topic(name)


cdef int32_t wanted_partition(object partition) except -1
cdef int64_t given_timestamp(object timestamp_ms, str name) except? -1
