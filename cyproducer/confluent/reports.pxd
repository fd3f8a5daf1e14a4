from libc.stdint cimport int16_t, int32_t, int64_t

from cyproducer.send.send_path cimport SendPath
from cyproducer.futures.completion cimport CompletionQueue
from cyproducer.futures.delivery cimport Delivery, RecordFuture


cdef class Message:
    cdef object _topic
    cdef object _key
    cdef object _value
    cdef object _headers
    cdef object _error
    cdef object callback          # None, or a callable that is called with the outcome
    cdef int32_t _partition       # -1: none
    cdef int64_t _offset          # below 0: none
    cdef int32_t _timestamp_type
    cdef int64_t _timestamp_ms
    cdef int64_t _latency_us      # -1: none
    cdef int64_t began_ns         # when it was produced
    cdef int32_t _leader_epoch
    cdef int16_t _delivery_count
    cdef int settle(self, RecordFuture future, int64_t due_ns, ReportQueue queue) except -1


cdef class ReportQueue(CompletionQueue):
    cdef readonly object due      # a deque of the messages whose callbacks have not run
    cdef object last_cause        # the last exception that was translated, and what it became
    cdef object last_error


cdef class ProducePath:
    # None until the constructor sets it, and kept when the producer is closed: threads in produce() use it.
    cdef SendPath path
    cdef int32_t shut             # atomic: closed
    cdef readonly ReportQueue _queue
    cdef object default_callback  # for records that have none of their own
    cdef int64_t most             # records that may be without a report; 0: any number
    # Changed atomically by any thread.
    cdef int64_t accepted         # records since the queue was created
    cdef int64_t promised         # those of them with a callback
    cdef int64_t reports          # callbacks that have not run
    cdef bint only_errors
    cdef bint only_reports        # poll() reports only deliveries
    cdef int32_t moving           # atomic: a thread moves messages into the queue's `due`
    cdef object __weakref__

    cdef bint is_open(self) noexcept
    cdef bint any_due(self) noexcept
    cdef int64_t unreported(self) noexcept
    cdef int _produce(
        self, object topic, object value, object key, object partition, object callback, object timestamp,
        object headers
    ) except -1
    cdef object refused(self, object error)
