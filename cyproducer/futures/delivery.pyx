"""The future that ``send()`` returns, and the outcome it reports.

Owns ``Delivery``, the outcome of a batch, shared by the futures of all its records, and ``RecordFuture``,
which is only (delivery, index) plus the sizes that the metadata reports. Completing a batch takes one store
and, if a thread waits, one wake-up: a record's offset is computed when it is read. Does not own the batches
or the thread that runs callbacks (``futures/callback_thread``).

Threads: the sender thread completes deliveries without the GIL; any thread can wait, query or add callbacks.

How a waiter and the completer synchronize, without a lock on the common path:

    waiter                               completer
    interested += 1                      state = ACKNOWLEDGED
    take the delivery's lock             is interested > 0?
    is state still PENDING? -> wait          take the lock, wake, take the callbacks

All four accesses to ``interested`` and ``state`` are sequentially consistent, so at least one thread sees the
other's change: either the completer sees the interest and takes the lock, or the waiter sees the state.
"""

import logging

from cpython.object cimport PyObject, PyTypeObject, destructor
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

cimport cython

from cyproducer.futures.completion cimport CompletionQueue
from cyproducer.futures.invoke_callback cimport (
    ON_BOTH,
    ON_FAILURE,
    ON_SUCCESS,
    any_callbacks,
    bound,
    run_callback,
    run_callbacks,
    with_callback,
)
from cyproducer.base.clock cimport deadline_in
from cyproducer.base.forks cimport own_process
from cyproducer.base.free_threading cimport FREE_THREADED
from cyproducer.base.greenlets cimport after_slice, in_greenlet, slice_end
from cyproducer.base.named_tuples cimport new_named, set_field
from cyproducer.base.sync cimport (
    cyp_add32,
    cyp_add64,
    cyp_clear,
    cyp_load32,
    cyp_load64,
    cyp_monotonic_ns,
    cyp_store32,
    pthread_cond_signal,
    cyp_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.futures.loop_inbox cimport Announcement, announce, announcements_free
from cyproducer.futures.waiting cimport (
    list_greenlet,
    lock_of,
    refuse_on_sender,
    sleep_until_settled,
    wake_waiters,
)

from cyproducer.base.removed_attribute import Missing, without_missing
from cyproducer.errors import IllegalStateError, KafkaTimeoutError, copied, told
from cyproducer.structs import RecordMetadata, TopicPartition

cdef extern from "<Python.h>":
    unsigned long PyThread_get_thread_ident() nogil

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* data, size_t size)

log = logging.getLogger("cyproducer")

# The last place, and the last timestamp, that metadata was made for. The GIL guards them: without one they
# are not used.
cdef tuple last_place = (None, None)
cdef int32_t last_partition = -1
cdef object last_timestamp = -1
cdef int64_t last_timestamp_ms = -1

# As C variables: looking up the classes takes longer than filling their instances.
cdef type metadata_kind = RecordMetadata
cdef type place_kind = TopicPartition


def renew_lock():
    """Initializes the lock that all futures share; called again in a forked child, because a thread that
    exists only in the parent may hold it."""
    cyp_mutex_init(&forward_lock)


renew_lock()


cdef Delivery* delivery_new(int32_t partition, CompletionList* queue) noexcept nogil:
    """A pending delivery with one reference, the batch's; NULL if there is no memory."""
    cdef Delivery* d = <Delivery*>malloc(sizeof(Delivery))
    if d != NULL:
        delivery_renew(d, partition, queue)
    return d


cdef void delivery_renew(Delivery* d, int32_t partition, CompletionList* queue) noexcept nogil:
    """Makes ``d``, to which no reference is left (``delivery_spent``), what ``delivery_new`` returns."""
    cyp_clear(d, sizeof(Delivery))
    d.refs = 1
    d.partition = partition
    d.base_offset = -1
    d.log_append_ms = -1
    d.queue = queue


cdef void delivery_ref(Delivery* d) noexcept nogil:
    cyp_add32(&d.refs, 1)


cdef void delivery_unref(Delivery* d) noexcept nogil:
    """Drops a reference; see ``delivery_release``."""
    delivery_release(d, 1)


cdef void delivery_release(Delivery* d, int32_t count) noexcept nogil:
    """Drops references; the last one frees the delivery. Hold no lock: dropping the error needs the GIL."""
    if cyp_add32(&d.refs, -count) == 0:
        delivery_free(d)


cdef bint delivery_spent(Delivery* d, int32_t count) noexcept nogil:
    """Drops references; returns whether none is left and the caller owns the memory: see ``delivery_renew``.

    Hold no lock: a delivery that has an error is freed as in ``delivery_release``, and False is returned.
    """
    if cyp_add32(&d.refs, -count) != 0:
        return False
    if d.error == NULL and d.forward == NULL and d.announcements == NULL:
        return True
    delivery_free(d)
    return False


cdef void delivery_free(Delivery* d) noexcept nogil:
    cdef int32_t i
    if d.error != NULL:
        with gil:
            Py_DECREF(<object>d.error)
    if d.forward != NULL:
        for i in range(d.count):
            if d.forward[i].to != NULL:
                delivery_unref(d.forward[i].to)
        free(d.forward)
    announcements_free(d.announcements)
    free(d)


cdef Delivery* delivery_of(RecordFuture future, int32_t* index) noexcept:
    """The delivery that holds the record now, and the record's index there; call ``future._state()`` first.

    With a GIL, ``_state`` has moved the future to that delivery. Without one, another thread may be reading
    the future, which therefore stays where it was: its first delivery keeps those alive that follow it.
    """
    cdef Delivery* d = future.delivery
    cdef Forward* target
    index[0] = future.index
    if FREE_THREADED and d != NULL:
        while cyp_load32(&d.state) == FORWARDED:
            target = &d.forward[index[0]]
            d = target.to
            index[0] = target.index
    return d


cdef void settled(Delivery* d, int32_t state) noexcept nogil:
    """Publishes the outcome, wakes waiting threads and loops, and passes callbacks to the queue that runs
    them."""
    cdef uint64_t one = 1
    cdef pthread_mutex_t* lock
    cdef Announcement* announcements
    cdef CompletionList* queue
    cdef int32_t listed
    cyp_store32(&d.state, state)
    if cyp_load32(&d.interested) == 0:
        return
    lock = lock_of(d)
    pthread_mutex_lock(lock)
    wake_waiters(d)
    listed = d.callbacks
    announcements = d.announcements
    d.announcements = NULL
    pthread_mutex_unlock(lock)
    announce(announcements)
    if listed == 0:
        return
    delivery_ref(d)
    queue = d.queue
    d.due_ns = cyp_monotonic_ns()
    pthread_mutex_lock(&queue.lock)
    cyp_add64(&queue.backlog, listed)
    d.next = NULL
    if queue.last == NULL:
        queue.first = d
        if queue.wake_fd >= 0:
            # If the descriptor is full, its reader is already being woken.
            c_write(queue.wake_fd, &one, sizeof(one))
    else:
        queue.last.next = d
    queue.last = d
    queue.handed_in += 1
    pthread_cond_signal(&queue.filled)
    pthread_mutex_unlock(&queue.lock)


cdef void delivery_acknowledge(Delivery* d, int64_t base_offset, int64_t log_append_ms) noexcept nogil:
    """Completes a delivery: the broker has the records, from ``base_offset`` on (-1: not reported)."""
    d.base_offset = base_offset
    d.log_append_ms = log_append_ms
    settled(d, ACKNOWLEDGED)


cdef void delivery_fail(Delivery* d, object error):
    """Fails a delivery: this producer does not deliver the records, for the reason in ``error``.

    Does not release the GIL: thousands of deliveries may fail in a row, and next to a thread that computes,
    each release of the GIL can cost milliseconds.
    """
    Py_INCREF(error)
    d.error = <void*>error
    settled(d, FAILED)


cdef int delivery_await(Delivery* d, int64_t until) except -1:
    """Waits for an outcome, at most until ``until``. The caller holds the GIL and a reference.

    The waiting thread sends and receives itself if no other thread does: this saves two thread wake-ups.
    """
    cdef DriveFunction drive
    cdef void* context
    cdef object _kept = None
    cdef bint drove = False
    # Together, and with the reference: take_back() may run on another thread.
    pthread_mutex_lock(&d.queue.lock)
    drive = d.queue.drive
    context = d.queue.drive_context
    if drive != NULL:
        # Without this reference, the sender could be destroyed meanwhile.
        _kept = <object>context
    pthread_mutex_unlock(&d.queue.lock)
    if drive != NULL:
        try:
            with nogil:
                drove = drive(context, &d.state, until)
        except Exception:
            # The sender thread runs into the same problem, and fails the records when it ends.
            log.exception("sending on a waiting thread failed; the sender thread continues")
    if drove:
        return 0
    with nogil:
        cyp_add32(&d.interested, 1)
        cyp_add32(&d.waiting, 1)
        sleep_until_settled(d, until)
        cyp_add32(&d.waiting, -1)
        cyp_add32(&d.interested, -1)
    return 0


cdef int await_in_greenlet(Delivery* d, int64_t until) except -1:
    """``delivery_await`` for a greenlet. Not counted in ``Delivery.waiting``: the sender never relies on a
    greenlet to send.
    """
    cyp_add32(&d.interested, 1)
    try:
        if not list_greenlet(d, until):
            raise MemoryError("no memory to wait for a record")
        after_slice()
    finally:
        cyp_add32(&d.interested, -1)
    return 0


cdef void enlist(Delivery* d, RecordFuture future) noexcept:
    """Appends a future to the delivery's callback list, and takes its reference. The delivery's lock is held.

    The futures themselves are the links: nothing is allocated, so an accepted callback is never lost.
    """
    future.listed = <void*>future
    if d.last_callback == NULL:
        d.first_callback = <void*>future
    else:
        (<RecordFuture>d.last_callback).listed = <void*>future
    d.last_callback = <void*>future
    d.callbacks += 1


cdef bint list_callback(Delivery* d, RecordFuture future) noexcept:
    """Makes sure that a future is in the delivery's callback list; False if the outcome is already known."""
    cdef pthread_mutex_t* lock = lock_of(d)
    cdef bint pending
    cyp_add32(&d.interested, 1)
    pthread_mutex_lock(lock)
    pending = cyp_load32(&d.state) == PENDING
    if pending and future.listed == NULL:
        Py_INCREF(future)
        enlist(d, future)
    pthread_mutex_unlock(lock)
    return pending


cdef void* next_listed(RecordFuture future) noexcept:
    """The next future in the delivery's callback list; NULL at the end."""
    return future.listed if future.listed != <void*>future else NULL


cdef list take_callbacks(Delivery* d):
    """Empties the callback list of a completed delivery, and returns its futures."""
    cdef list taken = []
    cdef RecordFuture future
    while d.first_callback != NULL:
        future = <RecordFuture>d.first_callback
        taken.append(future)
        d.first_callback = next_listed(future)
        future.listed = NULL
        Py_DECREF(future)
    d.last_callback = NULL
    d.callbacks = 0
    return taken


cdef void delivery_forward(Delivery* d, Forward* targets) noexcept:
    """Forwards each record to its target; takes over the array and its references.

    Called before any target can complete, by the thread that completes them. The callbacks also move now. If
    they moved only when due, they could run out of order: some callbacks would find their target pending and
    be listed there, while later ones would find their target complete and run at once.
    """
    cdef pthread_mutex_t* lock = lock_of(d)
    cdef RecordFuture future
    cdef Announcement* announcements
    cdef Delivery* target
    cdef int32_t index
    cdef void* at
    pthread_mutex_lock(lock)
    at = d.first_callback
    d.first_callback = NULL
    d.last_callback = NULL
    d.callbacks = 0
    d.forward = targets
    announcements = d.announcements
    d.announcements = NULL
    cyp_store32(&d.state, FORWARDED)
    wake_waiters(d)
    pthread_mutex_unlock(lock)
    # The loop then follows the targets.
    announce(announcements)
    while at != NULL:
        future = <RecordFuture>at
        # `listed` is never NULL in between: a thread that adds a callback meanwhile must see the future
        # listed.
        at = next_listed(future)
        future._state()
        target = delivery_of(future, &index)
        lock = lock_of(target)
        cyp_add32(&target.interested, 1)
        pthread_mutex_lock(lock)
        enlist(target, future)
        pthread_mutex_unlock(lock)


cdef int wait_slice(Delivery* d, int64_t deadline) except -1:
    """Waits until a delivery has an outcome, until ``deadline``, or until signals must be checked; checks
    them."""
    cdef int64_t until = slice_end(deadline)
    cdef bint pending
    delivery_ref(d)
    try:
        if in_greenlet():
            await_in_greenlet(d, until)
            pending = False
        else:
            delivery_await(d, until)
            pending = cyp_load32(&d.state) == PENDING
    finally:
        delivery_unref(d)
    if pending and until < deadline:
        after_slice()
    return 0


cdef int refuse_wait(Delivery* d, str what, object future) except -1:
    """Raises ``IllegalStateError`` if ``what``, a wait for the pending outcome of ``future`` (a
    ``RecordFuture`` or ``BulkFuture``), would never end, or would block others.
    """
    refuse_foreign(d, future)
    refuse_on_sender(what)
    if cyp_load64(&d.queue.runner) == <int64_t>PyThread_get_thread_ident():
        raise IllegalStateError(
            f"{what} in a callback, for {future._called()} that is pending: it would block every other "
            "callback. Add a callback to the future, or wait in another thread"
        )
    return 0


cdef int refuse_foreign(Delivery* d, object future) except -1:
    own_process()
    if d.queue.foreign:
        raise IllegalStateError(
            f"{future._called()} was sent before a fork and belongs to the parent process: only the parent "
            "learns its outcome"
        )
    return 0


cdef str why_pending(Delivery* d):
    """The end of an error message: the reason why the producer has not completed a delivery; empty if it is
    not known."""
    cdef CompletionQueue queue = <CompletionQueue>d.queue.owner
    cdef object diagnosis = None if queue.diagnosis is None else queue.diagnosis()
    return "" if diagnosis is None else f": {diagnosis()}"


cdef object place_of(object topic, int32_t partition):
    """A ``TopicPartition``. Records of a batch share one if their outcomes are read one after the other."""
    global last_place, last_partition
    cdef tuple place
    if not FREE_THREADED:
        place = last_place
        if last_partition == partition and PyTuple_GET_ITEM(place, 0) == <PyObject*>topic:
            return place
    place = new_named(place_kind, 2)
    set_field(place, 0, topic)
    set_field(place, 1, partition)
    if not FREE_THREADED:
        last_place = place
        last_partition = partition
    return place


cdef object as_int(int64_t timestamp_ms):
    """The timestamp as an int. Adjacent records often have the same timestamp, and share one int."""
    global last_timestamp, last_timestamp_ms
    if FREE_THREADED:
        return timestamp_ms
    if timestamp_ms != last_timestamp_ms:
        last_timestamp = timestamp_ms
        last_timestamp_ms = timestamp_ms
    return last_timestamp


cdef object record_metadata(
    const Delivery* d,
    object place,
    int32_t index,
    int64_t timestamp_ms,
    int32_t key_size,
    int32_t value_size,
    int32_t header_size,
):
    """The ``RecordMetadata`` of the acknowledged record at ``index`` of its batch.

    ``place``: its ``TopicPartition``; ``timestamp_ms``: the record's own.
    """
    cdef tuple made = new_named(metadata_kind, 9)
    set_field(made, 0, <object>PyTuple_GET_ITEM(place, 0))
    set_field(made, 1, <object>PyTuple_GET_ITEM(place, 1))
    set_field(made, 2, place)
    set_field(made, 3, d.base_offset + index if d.base_offset >= 0 else -1)
    set_field(made, 4, as_int(d.log_append_ms if d.log_append_ms >= 0 else timestamp_ms))
    set_field(made, 5, None)
    set_field(made, 6, key_size)
    set_field(made, 7, value_size)
    set_field(made, 8, header_size)
    return made


cdef RecordFuture refused_future(object topic, object error, int64_t timestamp_ms):
    """A future that has already failed: the record was never appended to a batch."""
    cdef RecordFuture future = RecordFuture.__new__(RecordFuture)
    future.topic = topic
    future.refusal = told(error, False)
    future.timestamp_ms = timestamp_ms
    return future


def failed_future(str topic not None, error not None):
    """A future that has already failed, for a record that was not accepted."""
    return refused_future(topic, error, -1)


cdef object missing(str name):
    """A placeholder for an attribute that the future's metadata has, not the future."""
    return Missing(f"a RecordFuture has no {name}, its metadata has: future.get().{name}")


cdef object fresh(object error):
    """A copy to raise: the batch's records share one exception, and each raise sets its traceback."""
    return None if error is None else copied(error)


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class RecordFuture:
    """The outcome of one record, which may still be pending.

    Has the API of kafka-python's ``FutureRecordMetadata`` (``get``, ``add_callback``, ``add_errback``,
    ``add_both``, ``chain``, ``succeeded``, ``failed``, ``retriable``, ``is_done``, ``value``, ``exception``),
    and more: it can be awaited or converted with ``as_concurrent()``, and has the record's ``topic`` and
    ``partition``. Thread-safe.

    Not tracked by the cyclic garbage collector: a cycle through a callback ends when its record completes.
    """

    topic_partition = missing("topic_partition")
    offset = missing("offset")
    timestamp = missing("timestamp")
    checksum = missing("checksum")
    serialized_key_size = missing("serialized_key_size")
    serialized_value_size = missing("serialized_value_size")
    serialized_header_size = missing("serialized_header_size")
    result = Missing("a RecordFuture has no result(): call get(), or as_concurrent().result()")
    add_done_callback = Missing(
        "a RecordFuture has no add_done_callback(): call add_both(), whose callbacks get the metadata or the "
        "error, or as_concurrent().add_done_callback()"
    )

    def __dir__(self):
        return without_missing(self, object.__dir__(self))

    def __reduce__(self):
        # A worker's results are pickled, and a task that sends may try to return its future.
        raise TypeError(
            f"the future of a record for topic {self.topic!r} can't be pickled: it is valid only in the "
            f"process that sent the record. Return the result of its get() instead"
        )

    cdef int _state(self) noexcept:
        """The state, after following forwards to the delivery that holds this record now."""
        cdef Delivery* old
        cdef Forward* target
        cdef int state
        cdef int32_t index
        if self.delivery == NULL:
            return FAILED
        if FREE_THREADED:
            return cyp_load32(&delivery_of(self, &index).state)
        state = cyp_load32(&self.delivery.state)
        while state == FORWARDED:
            pthread_mutex_lock(&forward_lock)
            old = NULL
            if self.delivery.state == FORWARDED:
                old = self.delivery
                target = &old.forward[self.index]
                delivery_ref(target.to)
                self.delivery = target.to
                self.index = target.index
            pthread_mutex_unlock(&forward_lock)
            if old != NULL:
                delivery_unref(old)
            state = cyp_load32(&self.delivery.state)
        return state

    cdef object _error(self):
        cdef int32_t index
        cdef Delivery* d = delivery_of(self, &index)
        if d == NULL:
            return self.refusal
        return None if d.error == NULL else <object>d.error

    cdef object _metadata(self):
        cdef int32_t index
        cdef Delivery* d = delivery_of(self, &index)
        cdef object place = place_of(self.topic, d.partition)
        return record_metadata(
            d, place, index, self.timestamp_ms, self.key_size, self.value_size, self.header_size
        )

    # Queries

    @property
    def partition(self):
        """The record's partition; None if it is not chosen yet, or the record was refused before that."""
        cdef int32_t index
        cdef Delivery* d
        self._state()
        d = delivery_of(self, &index)
        return d.partition if d != NULL and d.partition >= 0 else None

    @property
    def is_done(self):
        """Whether the outcome is known; does not block."""
        return self._state() != PENDING

    def is_complete(self):
        """The same as ``is_done``, as a method (the producer API proposal's name)."""
        return self._state() != PENDING

    def done(self):
        """The same as ``is_done``, under the name that asyncio and concurrent.futures use."""
        return self._state() != PENDING

    def succeeded(self):
        """Whether the broker acknowledged the record."""
        return self._state() == ACKNOWLEDGED

    def failed(self):
        """Whether the record has permanently failed."""
        return self._state() == FAILED

    def retriable(self):
        """Whether the record failed, and sending it again, as a new record, may succeed."""
        if self._state() != FAILED:
            return False
        return bool(getattr(self._error(), "retriable", False))

    @property
    def value(self):
        """The ``RecordMetadata``, or None while pending or after a failure."""
        return self._metadata() if self._state() == ACKNOWLEDGED else None

    @property
    def exception(self):
        """The exception that the record failed with, or None."""
        return fresh(self._error()) if self._state() == FAILED else None

    def get(self, timeout=None):
        """Waits for the outcome, up to ``timeout`` seconds (None: no limit).

        Returns the ``RecordMetadata``. Raises the record's own error, or ``KafkaTimeoutError`` if ``timeout``
        expires first: the record stays accepted and may still be delivered. The wait is always bounded by
        ``delivery_timeout_ms``. Raises ``IllegalStateError`` instead of waiting in a callback of the same
        producer, and in a forked child for a record that the parent sent; ``ValueError`` for a ``timeout``
        that is negative or NaN.
        """
        cdef int64_t deadline = deadline_in("timeout", timeout)
        cdef int32_t index
        cdef int state = self._state()
        if state == PENDING:
            self._refuse_wait("get()")
            state = self._wait(deadline)
            if state == PENDING:
                raise KafkaTimeoutError(
                    f"a record for topic {self.topic!r} was not acknowledged within {timeout} s; "
                    f"it stays accepted and may still be delivered{why_pending(delivery_of(self, &index))}"
                )
        if state == ACKNOWLEDGED:
            return self._metadata()
        raise fresh(self._error())

    def _called(self):
        return f"a record for topic {self.topic!r}"

    def _refuse_wait(self, str what not None):
        """Raises ``IllegalStateError`` if waiting for this record would never end, or would block others."""
        cdef int32_t index
        if self._state() == PENDING:
            refuse_wait(delivery_of(self, &index), what, self)

    cdef int _refuse_foreign(self) except -1:
        return refuse_foreign(self.delivery, self)

    cdef int _wait(self, int64_t deadline) except -1:
        cdef int32_t index
        cdef int state = self._state()
        while state == PENDING:
            wait_slice(delivery_of(self, &index), deadline)
            state = self._state()
            if state == PENDING:
                if cyp_monotonic_ns() >= deadline:
                    break
                # A signal handler may have forked.
                self._refuse_foreign()
        return state

    # Callbacks

    def add_callback(self, f, *args, **kwargs):
        """Calls ``f(*args, metadata, **kwargs)`` once the record is acknowledged; returns this future.

        Callbacks run on their own thread, in the order of a partition's records, or on the calling thread if
        the outcome is already known. An exception in a callback is logged and does not stop the others. A
        future can have several callbacks.
        """
        return self._add(ON_SUCCESS, bound(f, args, kwargs))

    def add_errback(self, f, *args, **kwargs):
        """Calls ``f(*args, exception, **kwargs)`` once the record has failed; see ``add_callback``."""
        return self._add(ON_FAILURE, bound(f, args, kwargs))

    def add_both(self, f, *args, **kwargs):
        """Calls ``f(*args, metadata_or_exception, **kwargs)`` either way; see ``add_callback``."""
        return self._add(ON_BOTH, bound(f, args, kwargs))

    def chain(self, future):
        """Passes the outcome to another future, of kafka-python or ``concurrent.futures``."""
        if hasattr(future, "set_result"):
            self.add_callback(future.set_result)
            self.add_errback(future.set_exception)
        else:
            self.add_callback(future.success)
            self.add_errback(future.failure)
        return self

    cdef object _add(self, int kind, object function):
        cdef Delivery* d
        cdef int32_t index
        cdef bint others = False
        cdef bint stored = False
        cdef object before
        cdef object after
        if self._state() == PENDING:
            self._refuse_foreign()
        # With a GIL, an allocation may run the garbage collector, and so other threads: the callback thread
        # may have taken a single callback meanwhile. Storing `after` would add that callback again, and it
        # would run twice. Without a GIL, the critical section keeps _run_callbacks out.
        while not stored:
            with cython.critical_section(self):
                before = self.callbacks
                # If there are other callbacks, the callback thread runs this one after them: flush() would
                # not wait for a callback that runs here.
                others = any_callbacks(before)
                after = with_callback(before, kind, function)
                stored = self.callbacks is before
                if stored:
                    self.callbacks = after
        while self._state() == PENDING:
            d = delivery_of(self, &index)
            if not list_callback(d, self):
                continue
            if not cyp_load32(&d.queue.started):
                (<object>d.queue.owner).ensure_started()
            return self
        if not others:
            self._run_callbacks()
        return self

    cdef object _run_callbacks(self):
        cdef object callbacks
        cdef bint succeeded
        cdef int kind = ON_SUCCESS
        with cython.critical_section(self):
            callbacks = self.callbacks
            if type(callbacks) is not list:
                self.callbacks = None
        if not any_callbacks(callbacks):
            return None
        succeeded = self._state() == ACKNOWLEDGED
        if type(callbacks) is list:
            run_callbacks(self, callbacks, succeeded, self._outcome(succeeded), self.topic)
            return None
        if type(callbacks) is tuple:
            kind, callbacks = <tuple>callbacks
        if kind & (ON_SUCCESS if succeeded else ON_FAILURE):
            run_callback(callbacks, self._outcome(succeeded), self.topic)
        return None

    cdef object _outcome(self, bint succeeded):
        return self._metadata() if succeeded else fresh(self._error())

    def as_concurrent(self):
        """The outcome as a ``concurrent.futures.Future``, for ``wait()`` and ``as_completed()``.

        It is running from the start (``cancel()`` has no effect): an accepted record can't be cancelled.
        """
        # Imported here: asyncio and concurrent.futures would double the package's import time.
        from cyproducer.futures.concurrent_future import concurrent

        return concurrent(self)

    def __await__(self):
        """Awaits the outcome in asyncio, on the running event loop."""
        from cyproducer.futures.concurrent_future import awaited

        return awaited(self).__await__()

    def __repr__(self):
        state = ("pending", "acknowledged", "failed")[self._state()]
        return f"<RecordFuture topic={self.topic!r} {state}>"


# Cython saves and restores the thread's exception around a __dealloc__, which is a twentieth of the cost of a
# record. So this function runs before the type's own deallocation instead.
cdef extern from *:
    """
    static destructor cyp_rest_of_future;
    """
    destructor cyp_rest_of_future


cdef void free_future(PyObject* future) noexcept:
    cdef Delivery* d = (<RecordFuture>future).delivery
    if d != NULL:
        delivery_unref(d)
    cyp_rest_of_future(future)


cyp_rest_of_future = (<PyTypeObject*>RecordFuture).tp_dealloc
(<PyTypeObject*>RecordFuture).tp_dealloc = free_future
