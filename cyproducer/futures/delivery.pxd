from libc.stdint cimport int32_t, int64_t

from cyproducer.base.sync cimport pthread_cond_t, pthread_mutex_t
from cyproducer.futures.loop_inbox cimport Announcement
from cyproducer.futures.waiting cimport Sleeper

cdef enum DeliveryState:
    PENDING = 0
    ACKNOWLEDGED = 1
    FAILED = 2
    FORWARDED = 3         # its records moved to other batches; see Forward

# Where one record of a forwarded delivery is now.
cdef struct Forward:
    Delivery* to          # a reference is held
    int32_t index         # the record's index in that batch

# The outcome of the records of one batch, shared by all their futures.
cdef struct Delivery:
    int32_t refs          # the batch's, each future's, each Forward's
    int32_t state         # a DeliveryState; written once, by the completer
    int32_t interested    # threads and callbacks that wait for the completion
    int32_t count         # records
    int32_t partition
    int32_t waiting       # threads in get(); `interested` also counts them
    int32_t waking        # the first waiter was woken, each wakes the next; no waiter leaves the queue now
    Sleeper* first_sleeper
    Sleeper* last_sleeper
    int64_t base_offset   # -1 if the broker did not report it (acks=0)
    int64_t log_append_ms  # the broker's timestamp; -1 if the records keep their own
    void* error           # FAILED: the exception, a strong reference
    Forward* forward      # FORWARDED: `count` entries
    void* first_callback  # RecordFutures with callbacks, strong references, linked through `listed`
    void* last_callback
    int32_t callbacks     # how many futures are in that list
    Announcement* announcements  # the loops that follow its records
    int64_t due_ns        # when it was added to `queue`
    CompletionList* queue  # runs the callbacks; outlives every pending delivery
    Delivery* next        # in `queue`

# Sends and receives on the calling thread until `state` is no longer 0, at most until the monotonic time
# `until` (ns). Returns 0 at once if another thread is already doing that. A waiting `get()` runs the sender's
# loop through it, because this layer must not know the sender.
ctypedef int (*DriveFunction)(void* context, const int32_t* state, int64_t until) except -1 nogil


# Completed deliveries whose callbacks have not run yet.
cdef struct CompletionList:
    pthread_mutex_t lock  # guards the fields below
    pthread_cond_t filled
    pthread_cond_t ran    # the callbacks of a delivery have run
    int64_t handed_in     # deliveries that were ever added
    int64_t handled       # deliveries whose callbacks have run
    int64_t backlog       # records whose callbacks are due and have not run; atomic
    int64_t most          # the backlog at which send() waits
    int64_t running_due_ns    # when the callbacks that are running became due; 0: none are running
    int32_t waiting       # threads that wait for the backlog to shrink
    int64_t waited_ns     # time that threads have spent waiting for that
    pthread_cond_t room   # the backlog has shrunk
    int64_t runner        # the thread that is running callbacks; 0: none. Atomic, written by that thread
    Delivery* first
    Delivery* last
    int32_t closed
    int32_t started       # whether a thread runs callbacks
    int32_t foreign       # in a forked child: the records are the parent's, and do not complete here
    int32_t wake_fd       # 8 bytes are written to it when the queue is no longer empty; -1: none
    void* owner           # the CompletionQueue this is part of, borrowed
    DriveFunction drive   # NULL if no sender thread runs
    void* drive_context   # a Python object that the CompletionQueue keeps alive while `drive` is set


cdef class RecordFuture:
    # NULL only if the record was refused before it had a batch. The next two are those of the batch that the
    # record is in, with a GIL; without one, those of its first batch: read them with `delivery_of`.
    cdef Delivery* delivery
    cdef int32_t index            # the record's index in that batch
    cdef int32_t key_size         # bytes, -1 for None; the same for the next two
    cdef int32_t value_size
    cdef int32_t header_size
    cdef void* listed             # NULL, or the next future in its delivery's list; the last points to itself
    cdef int64_t timestamp_ms     # the record's own
    cdef readonly object topic    # str
    cdef object callbacks         # None, or a list of (kind, function)
    cdef object refusal           # None, or the exception the record was refused with
    cdef int _state(self) noexcept
    cdef int _wait(self, int64_t deadline) except -1
    cdef int _refuse_foreign(self) except -1
    cdef object _error(self)
    cdef object _metadata(self)
    cdef object _add(self, int kind, object function)
    cdef object _run_callbacks(self)
    cdef object _outcome(self, bint succeeded)


cdef Delivery* delivery_of(RecordFuture future, int32_t* index) noexcept
cdef Delivery* delivery_new(int32_t partition, CompletionList* queue) noexcept nogil
cdef void delivery_renew(Delivery* d, int32_t partition, CompletionList* queue) noexcept nogil
cdef void delivery_ref(Delivery* d) noexcept nogil
cdef void delivery_unref(Delivery* d) noexcept nogil
cdef void delivery_release(Delivery* d, int32_t count) noexcept nogil
cdef bint delivery_spent(Delivery* d, int32_t count) noexcept nogil
cdef void delivery_acknowledge(Delivery* d, int64_t base_offset, int64_t log_append_ms) noexcept nogil
cdef void delivery_forward(Delivery* d, Forward* targets) noexcept
cdef void delivery_fail(Delivery* d, object error)
cdef list take_callbacks(Delivery* d)
cdef object fresh(object error)
cdef object as_int(int64_t timestamp_ms)
cdef object place_of(object topic, int32_t partition)
cdef object record_metadata(
    const Delivery* d,
    object place,
    int32_t index,
    int64_t timestamp_ms,
    int32_t key_size,
    int32_t value_size,
    int32_t header_size,
)
cdef RecordFuture refused_future(object topic, object error, int64_t timestamp_ms)
cdef bint list_callback(Delivery* d, RecordFuture future) noexcept
cdef int wait_slice(Delivery* d, int64_t deadline) except -1
cdef int refuse_wait(Delivery* d, str what, object future) except -1
cdef int refuse_foreign(Delivery* d, object future) except -1
cdef str why_pending(Delivery* d)
# Guards moving futures and segments from a forwarded delivery to those it was forwarded to. Held for a few
# instructions, never while acquiring the GIL.
cdef pthread_mutex_t forward_lock
