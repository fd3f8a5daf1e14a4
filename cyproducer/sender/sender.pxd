from libc.stdint cimport int16_t, int32_t, int64_t

from cyproducer.accumulator.record_accumulator cimport RecordAccumulator
from cyproducer.base.clock cimport Clock
from cyproducer.accumulator.structures cimport Batch, Partition
from cyproducer.base.sync cimport pthread_mutex_t
from cyproducer.net.connection cimport Connection
from cyproducer.net.poller cimport Poller
from cyproducer.wire.produce_codec cimport Outcome, ProduceSettings
from cyproducer.net.transport cimport Transport
from cyproducer.net.waker cimport Waker

cdef enum:
    MOST_BATCHES = 1024           # batches in one request
    FIRST_BATCHES = 64            # room for batches before a request has more
    MOST_BEFORE_READY = 65536     # bytes of a response before a connection is ready
    TRANSACTIONAL = 0x10          # attribute of a batch: it belongs to a transaction
    NO_CAP = 32767                # no limit on the version of Produce requests
    COMPRESSING_NS = 20_000_000   # delay before the next check of an overdue batch that is being compressed

cdef class Sender:
    cdef pthread_mutex_t loop_lock    # held by the thread that runs a step
    cdef readonly RecordAccumulator accumulator
    cdef readonly Clock clock
    cdef readonly Poller poller
    cdef readonly object control  # decides about connections and metadata
    cdef readonly object fates    # decides about batches that did not succeed
    cdef int wake_read_fd         # the descriptor that the selector watches for wake-ups
    cdef Waker waker
    cdef ProduceSettings settings
    cdef bytes client_id          # owns the bytes of settings.client_id
    cdef bytes transactional_id   # owns the bytes of settings.transactional_id; empty: none
    cdef bint unanswered          # some topics have acks=0
    cdef int64_t failed_before    # records that had failed when the transaction began
    cdef int16_t attributes       # of all batches, without the codec
    cdef int16_t highest_produce  # the highest version of Produce requests
    cdef int32_t max_in_flight_requests
    cdef int64_t max_request_size
    cdef int64_t far_request_size     # the same for a far broker
    cdef int64_t request_timeout_ns
    cdef int64_t delivery_timeout_ns
    cdef int64_t receive_max
    cdef int32_t attention        # the next step must call the control plane; any thread sets it
    cdef int32_t stopping         # run() must return; any thread sets it
    cdef int32_t driven           # a thread in get() runs the loop, not the sender thread; atomic
    cdef bint deferred            # that thread leaves the next step to the sender thread; see defer()
    cdef int32_t lone             # consecutive completions that left no batch incomplete and were waited for
    cdef int64_t next_control_ns  # when the control plane's next tick is due
    cdef int64_t next_expiry_ns   # when the oldest batch is overdue
    cdef list connections
    cdef Transport** transports             # of `connections`, in the same order
    cdef int32_t transport_count
    cdef list backing_off         # a heap of (retry_at_ns, number, address of a Partition)
    cdef int64_t backoff_number
    cdef int32_t room             # for batches in one request; never shrinks
    cdef Batch** drained          # [room]; owned
    cdef Outcome* outcomes        # [room], of a response; owned
    cdef int32_t standing_by      # the sender thread leaves the loop to threads that wait for a record
    cdef int32_t drives           # how often a waiting thread took over the loop and returned it
    cdef int64_t left_alone       # how often it stood by, and no thread waited for the record that was sent
    # for metrics(); the other counters are in Accumulator.meters
    cdef int64_t wakeups

    cdef int step(self, int64_t max_wait_ns) except -1 nogil
    cdef int call_tick(self, int64_t now) except -1
    cdef void tick_by(self, int64_t when) noexcept nogil
    cdef bint make_room(self, int32_t wanted) noexcept nogil
    cdef int fill(self, Transport* transport, int64_t now) except -1 nogil
    cdef int write(self, Transport* transport, int64_t now) except -1 nogil
    cdef int connection_broken(self, Transport* transport, int64_t failure) except -1 nogil
    cdef void defer(self, Transport* transport) noexcept nogil
    cdef int64_t sleep_until(self, int64_t until, int64_t now) noexcept nogil
    cdef Transport* transport_of(self, int fd) noexcept nogil
    cdef int call_control(self, object method, Connection connection, tuple arguments) except -1
    cdef int request_done(
        self, Transport* transport, int64_t latency_ns, int64_t throttle_ms, int64_t now
    ) noexcept nogil
    cpdef object close_connection(self, Connection connection, object cause)
    cdef Partition* find_partition(self, str topic, int partition) except NULL
