from libc.stdint cimport int16_t, int32_t, int64_t

from cyproducer.accumulator.record_accumulator cimport RecordAccumulator
from cyproducer.base.clock cimport Clock
from cyproducer.futures.driving cimport Driver
from cyproducer.accumulator.structures cimport Accumulator, Batch, Node, Partition
from cyproducer.base.sync cimport pthread_mutex_t
from cyproducer.network.connection cimport Connection
from cyproducer.network.transport cimport Transport
from cyproducer.network.poller cimport Poller, Ready
from cyproducer.network.produce_codec cimport Endpoints, Outcome, ProduceSettings, Request

cdef enum:
    MOST_BATCHES = 1024           # batches in one request
    COMPRESSING_NS = 20_000_000   # when to look again for an overdue batch that a thread compresses

# How other threads end the sender's wait.
cdef struct Waker:
    int32_t fd                    # what is written to; -1: the sender has come to its end. Atomic
    int32_t users                 # threads that write to it right now. Atomic

cdef void wake_sender(void* waker) noexcept nogil
cdef int32_t retire(Waker* w) noexcept nogil


cdef class SendLoop(Driver):
    cdef pthread_mutex_t turn     # held by whoever runs a step
    cdef readonly RecordAccumulator accumulator
    cdef readonly Clock clock
    cdef readonly Poller poller
    cdef readonly object control  # decides what is not a matter of course
    cdef int wake_read_fd         # what the selector watches for wake-ups
    cdef Waker waker
    cdef ProduceSettings settings
    cdef bytes client_id          # what settings.client_id points to
    cdef int32_t max_in_flight
    cdef int64_t max_request_size
    cdef int64_t request_timeout_ns
    cdef int64_t delivery_timeout_ns
    cdef int64_t receive_max
    cdef int32_t attention        # somebody asked for the control plane; any thread sets it
    cdef int32_t stopping         # run() returns; any thread sets it
    cdef int32_t driven           # by a thread in get(), not by the sender's; atomic
    cdef bint left_over           # that thread leaves the next step to the sender's; see _leave()
    cdef int32_t lone             # completions in a row that left nothing, and that a thread waited for
    cdef int64_t next_control_ns  # when the control plane wants its next tick
    cdef int64_t next_expiry_ns   # when the oldest batch is overdue
    cdef list connections
    cdef Transport** transports             # of `connections`, in that order
    cdef int transport_count
    cdef list backing_off         # a heap of (retry_at_ns, number, address of a Partition)
    cdef int64_t backoff_number
    cdef Batch* drained[MOST_BATCHES]
    cdef Outcome outcomes[MOST_BATCHES]
    # for metrics(); what else there is, is in Accumulator.meters
    cdef int64_t wakeups

    cdef int step(self, int64_t max_wait_ns) except -1 nogil
    cdef int _control(self, int64_t now) except -1
    cdef int _fill(self, Transport* transport, int64_t now) except -1 nogil
    cdef int _write(self, Transport* transport, int64_t now) except -1 nogil
    cdef int _read(self, Transport* transport, int64_t now) except -1 nogil
    cdef int _broken(self, Transport* transport, int64_t failure) except -1 nogil
    cdef void _leave(self, Transport* transport) noexcept nogil
    cdef int _go_on(self, int64_t now) except -1 nogil
    cdef int64_t _sleep_until(self, int64_t until, int64_t now) noexcept nogil
    cdef int _learn_leaders(self, Transport* transport, Request* r, const Endpoints* endpoints) except -1
    cdef int _progress(self, Partition* p, int64_t acknowledged_id) except -1
    cdef int _resolve(
        self, Batch* b, int error_code, object message, object cause, bint written, object named=*
    ) except -1
    cdef int _give_up(self, Request* r, object cause) except -1
    cdef Transport* _transport_of(self, int fd) noexcept nogil
    cdef int _tell(self, object method, Connection connection, tuple arguments) except -1
    cdef int _expire(self, int64_t now) except -1 nogil
    cdef int _answered(self, Transport* transport, int64_t latency_ns, int64_t throttle_ms, int64_t now) noexcept nogil
    cpdef object close_connection(self, Connection connection, object cause)
