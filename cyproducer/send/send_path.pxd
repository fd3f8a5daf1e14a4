from libc.stdint cimport int32_t, int64_t

from cyproducer.accumulator.record_accumulator cimport Appended, RecordAccumulator
from cyproducer.accumulator.buffer_pool cimport Ticket
from cyproducer.send.extensions cimport Extensions
from cyproducer.futures.delivery cimport RecordFuture
from cyproducer.accumulator.structures cimport RecordView
from cyproducer.accumulator.partition_table cimport TopicInfo
from cyproducer.base.forks cimport borrowing
from cyproducer.base.free_threading cimport FREE_THREADED


cdef class SendPath:
    cdef RecordAccumulator accumulator
    # The topic of the last send(): most programs send many records in a row to one topic. Borrowed: the
    # accumulator keeps topics alive until one is forgotten. Only with a GIL; else see LastTopic.
    cdef void* last_topic
    cdef int64_t number             # of this path in this process: an address may be used again
    cdef int64_t borrowed           # `borrowing` when last_topic was set
    cdef int64_t process            # the process that the accumulator belongs to
    cdef bint plain                 # the user configured no serializer, interceptor or partitioner
    cdef int64_t max_request_size
    cdef int64_t max_block_ns
    cdef Extensions extensions    # None if plain
    cdef object on_refused          # called with each error that keeps a record out of a transaction; or None
    cdef public bint may_be_empty   # a record can have neither a key nor a value

    cdef RecordFuture _send(self, object topic, object value, object key, object headers, object partition,
                            object timestamp_ms, Ticket ticket, bint blocks)
    cdef RecordFuture _send_extended(self, object topic, object value, object key, object headers,
                                     object partition, object timestamp_ms)
    cdef object _at_once(
        self, object topic, object value, object key, object headers, object partition, object timestamp_ms
    )
    cdef object _send_intercepted(self, object topic, object value, object key, object headers,
                                  object partition, object timestamp_ms, bint blocks,
                                  int* stage)
    cdef bint _opens_batch(self, object topic, object value, object headers, object partition) except -1
    cdef RecordFuture _send_again(self, object topic, object value, object key, object partition)
    cdef int _remember(self, object name, TopicInfo state) except -1
    cdef TopicInfo _topic(self, object name)
    cdef int _append(
        self, TopicInfo state, int32_t partition, const RecordView* r, Appended* out, Ticket ticket,
        bint blocks,
    ) except -1
    cdef int _reserve(self, int64_t size, int64_t deadline, object what) except -1
    cdef int _await_parking(self, TopicInfo state, int64_t size, int64_t deadline) except -1
    cdef void _count_crowded(self, int32_t change) noexcept
    cdef int _check_possible(self, int64_t size, object what) except -1
    cdef int _hurry(self) except -1
    cdef int _await_callbacks(self, int64_t deadline, object what) except -1
    cdef object _too_large(self, TopicInfo state, const RecordView* r)


# Without a GIL: the topic of a thread's last send(). Each thread has one, in its dict of thread state, and
# only that thread uses it. So two threads that send share no reference count.
cdef class LastTopic:
    cdef int64_t number             # of the SendPath
    cdef int64_t borrowed           # `borrowing` when the topic was looked up
    cdef object name                # as the caller passed it
    cdef TopicInfo state


cdef inline TopicInfo topic_of(SendPath path, object name):
    """The topic of that name; skips the lookup if it is the topic of the last call."""
    cdef void* last = path.last_topic
    if FREE_THREADED:
        return path._topic(name)
    if (
        last != NULL
        and path.borrowed == borrowing
        and (<TopicInfo>last).name is name
    ):
        return <TopicInfo>last
    return path._topic(name)


cdef int32_t wanted_partition(object partition) except -1
cdef int64_t given_timestamp(object timestamp_ms, str name) except? -1
