"""Queues completed batches and runs their callbacks.

Owns the queue, its limit, and running the callbacks in order. Does not own the callback thread
(``futures/callback_thread``) or when a batch completes (``delivery``). The sender thread fills the queue
without the GIL; one thread at a time empties it.

``buffer_memory`` is freed when a batch is acknowledged, but the futures with callbacks stay alive. So the
queue has its own limit, in records: at that limit ``send()`` waits. Records that are already accepted still
enter the queue above the limit; ``buffer_memory`` bounds them.
"""

from libc.stdint cimport int64_t

from cyproducer.base.clock cimport deadline_in
from cyproducer.base.greenlets cimport after_slice, broadcast, slice_end, wait_on
from cyproducer.futures.delivery cimport Delivery, RecordFuture, delivery_of, delivery_unref, take_callbacks
from cyproducer.base.sync cimport (
    cyp_add32,
    cyp_add64,
    cyp_cond_init,
    cyp_cond_wait_until,
    cyp_load32,
    cyp_load64,
    cyp_monotonic_ns,
    cyp_store32,
    cyp_store64,
    cyp_swap32,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_mutex_destroy,
    cyp_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)

import logging

cdef extern from "<Python.h>":
    unsigned long PyThread_get_thread_ident() nogil

log = logging.getLogger("cyproducer")

cdef enum:
    ROOM = 64                 # how far the backlog must shrink before waiting threads continue


cdef class CompletionQueue:
    """Completed deliveries whose callbacks must run, in order of completion.

    ``start`` is called when the first callback is added: a producer without callbacks needs no thread for
    them. ``most``: how many records can wait for their callbacks before ``send()`` waits. Thread-safe.
    """

    def __cinit__(self, start=None, int64_t most=100_000):
        if most < 1:
            raise ValueError(f"most={most}: must be >= 1")
        cyp_mutex_init(&self.entries.lock)
        cyp_cond_init(&self.entries.filled)
        cyp_cond_init(&self.entries.ran)
        cyp_cond_init(&self.entries.room)
        self.entries.most = most
        self.entries.wake_fd = -1
        self.entries.owner = <void*>self
        self.start = start

    cdef void lend(self, object owner, DriveFunction drive):
        """Lets threads that wait for a record run the sender's loop of ``owner``, until ``take_back``."""
        self.lent = owner
        pthread_mutex_lock(&self.entries.lock)
        self.entries.drive_context = <void*>owner
        self.entries.drive = drive
        pthread_mutex_unlock(&self.entries.lock)

    cdef void take_back(self):
        """Reverses ``lend``."""
        pthread_mutex_lock(&self.entries.lock)
        self.entries.drive = NULL
        self.entries.drive_context = NULL
        pthread_mutex_unlock(&self.entries.lock)
        self.lent = None

    def ensure_started(self):
        """Calls ``start`` the first time, and again if it raised, for example because no thread could be
        started."""
        if cyp_swap32(&self.entries.started, 1) or self.start is None:
            return
        try:
            self.start()
        except BaseException:
            cyp_store32(&self.entries.started, 0)
            raise

    def __dealloc__(self):
        cdef Delivery* d
        while self.entries.first != NULL:
            d = self.entries.first
            self.entries.first = d.next
            delivery_unref(d)
        pthread_cond_destroy(&self.entries.filled)
        pthread_cond_destroy(&self.entries.ran)
        pthread_cond_destroy(&self.entries.room)
        pthread_mutex_destroy(&self.entries.lock)

    def wake_through(self, int fd):
        """Sets a non-blocking eventfd or pipe that gets 8 bytes whenever the queue is no longer empty.

        -1: nothing is written once this returns, and the caller can close the descriptor.
        """
        pthread_mutex_lock(&self.entries.lock)
        self.entries.wake_fd = fd
        pthread_mutex_unlock(&self.entries.lock)

    def close(self):
        """Makes ``run_next`` return None once the queue is empty."""
        pthread_mutex_lock(&self.entries.lock)
        self.entries.closed = 1
        pthread_cond_broadcast(&self.entries.filled)
        pthread_mutex_unlock(&self.entries.lock)

    def disown(self):
        """Empties and closes the queue in a forked child: the entries are the parent's, and do not run here.

        Takes no lock, because a thread of the parent may have held it. The thread that forked may be the one
        that runs callbacks: it finds the queue closed and empty.
        """
        cyp_mutex_init(&self.entries.lock)
        cyp_cond_init(&self.entries.filled)
        cyp_cond_init(&self.entries.ran)
        cyp_cond_init(&self.entries.room)
        self.entries.backlog = 0
        self.entries.waiting = 0
        self.entries.running_due_ns = 0
        self.entries.first = NULL
        self.entries.last = NULL
        self.entries.handled = self.entries.handed_in
        self.entries.closed = 1
        self.entries.foreign = 1
        self.entries.wake_fd = -1
        self.take_back()

    def wait_idle(self, timeout_s):
        """Waits until the callbacks of all deliveries queued so far have run.

        Returns False if ``timeout_s`` seconds passed first. Does not wait for later deliveries: under load
        the queue may never be empty.
        """
        cdef int64_t deadline = deadline_in("timeout_s", timeout_s)
        cdef int64_t target
        cdef bint done
        cdef int64_t until
        pthread_mutex_lock(&self.entries.lock)
        target = self.entries.handed_in
        pthread_mutex_unlock(&self.entries.lock)
        while True:
            until = slice_end(deadline)
            with nogil:
                pthread_mutex_lock(&self.entries.lock)
                while self.entries.handled < target:
                    if wait_on(&self.entries.ran, &self.entries.lock, until):
                        break
                done = self.entries.handled >= target
                pthread_mutex_unlock(&self.entries.lock)
            if done:
                return True
            after_slice()
            if cyp_monotonic_ns() >= deadline:
                return False

    cdef Delivery* _pop(self) noexcept nogil:
        """Removes the oldest delivery from the queue; NULL if it is empty. The lock is held."""
        cdef Delivery* d = self.entries.first
        if d != NULL:
            self.entries.first = d.next
            if d.next == NULL:
                self.entries.last = NULL
            self.entries.running_due_ns = d.due_ns
        return d

    def run_next(self, timeout_s=0.0):
        """Runs the callbacks of the next completed batch, waiting for one up to ``timeout_s`` seconds.

        Returns the number of records whose callbacks ran, 0 on timeout, None if closed and empty.
        """
        cdef Delivery* d
        cdef int64_t deadline = deadline_in("timeout_s", timeout_s)
        cdef bint closed
        pthread_mutex_lock(&self.entries.lock)
        d = self._pop()
        closed = self.entries.closed
        pthread_mutex_unlock(&self.entries.lock)
        if d == NULL and not closed and cyp_monotonic_ns() < deadline:
            # The GIL is released only now: next to a thread that computes, acquiring it again takes 5 ms for
            # each batch.
            with nogil:
                pthread_mutex_lock(&self.entries.lock)
                while self.entries.first == NULL and not self.entries.closed:
                    if cyp_cond_wait_until(&self.entries.filled, &self.entries.lock, deadline):
                        break
                d = self._pop()
                closed = self.entries.closed
                pthread_mutex_unlock(&self.entries.lock)
        if d == NULL:
            return None if closed else 0
        cyp_store64(&self.entries.runner, <int64_t>PyThread_get_thread_ident())
        try:
            return self._run(d)
        finally:
            cyp_store64(&self.entries.runner, 0)
            pthread_mutex_lock(&self.entries.lock)
            self.entries.handled += 1
            self.entries.running_due_ns = 0
            broadcast(&self.entries.ran)
            pthread_mutex_unlock(&self.entries.lock)

    cdef int _run(self, Delivery* d) except -1:
        """Runs the callbacks of one delivery and drops its reference; returns the number of records."""
        cdef int64_t left = d.callbacks
        cdef list waiting = in_order(take_callbacks(d))
        cdef RecordFuture future = None
        cdef Py_ssize_t at = 0
        delivery_unref(d)
        try:
            while at < len(waiting):
                try:
                    while at < len(waiting):
                        future = <RecordFuture>waiting[at]
                        future._run_callbacks()
                        at += 1
                        left -= 1
                        self._catch_up(1)
                except BaseException:
                    # SystemExit, for example: it would end this thread, and no later callback would run. The
                    # same future may have more callbacks.
                    log.exception("a callback of a record for topic %r raised", future.topic)
        finally:
            self._catch_up(left)
        return len(waiting)

    # The limit

    cdef void _catch_up(self, int64_t records) noexcept nogil:
        """Subtracts ``records``, whose callbacks have run, from the backlog."""
        # A thread that waits first counts itself in `waiting`, and then reads the backlog.
        if cyp_add64(&self.entries.backlog, -records) > self._low() or not cyp_load32(&self.entries.waiting):
            return
        pthread_mutex_lock(&self.entries.lock)
        broadcast(&self.entries.room)
        pthread_mutex_unlock(&self.entries.lock)

    cdef int64_t _low(self) noexcept nogil:
        """The backlog at which waiting threads continue."""
        return self.entries.most - min(self.entries.most // 2 + 1, <int64_t>ROOM)

    cdef bint in_callback(self) noexcept nogil:
        """Whether the caller is a callback."""
        return cyp_load64(&self.entries.runner) == <int64_t>PyThread_get_thread_ident()

    cdef bint wait_for_room(self, int64_t deadline, const int32_t* closed) except -1:
        """Waits until fewer records wait for their callbacks, or until ``closed``; returns False at the
        monotonic ``deadline``.

        Returns at once in a callback, which would wait for itself.
        """
        cdef int64_t began = cyp_monotonic_ns()
        cdef int64_t until
        cdef bint room = False
        if self.in_callback():
            return True
        pthread_mutex_lock(&self.entries.lock)
        cyp_add32(&self.entries.waiting, 1)
        pthread_mutex_unlock(&self.entries.lock)
        try:
            while True:
                until = slice_end(deadline)
                with nogil:
                    pthread_mutex_lock(&self.entries.lock)
                    while cyp_load64(&self.entries.backlog) > self._low() and not cyp_load32(closed):
                        if wait_on(&self.entries.room, &self.entries.lock, until):
                            break
                    room = cyp_load64(&self.entries.backlog) <= self._low() or cyp_load32(closed)
                    pthread_mutex_unlock(&self.entries.lock)
                if room:
                    return True
                after_slice()
                if cyp_monotonic_ns() >= deadline:
                    return False
        finally:
            pthread_mutex_lock(&self.entries.lock)
            cyp_add32(&self.entries.waiting, -1)
            self.entries.waited_ns += cyp_monotonic_ns() - began
            pthread_mutex_unlock(&self.entries.lock)

    @property
    def backlog(self):
        """Records whose callbacks are due and have not run."""
        return cyp_load64(&self.entries.backlog)

    @property
    def lag_ns(self):
        """How long the oldest waiting callbacks have been due; 0 if none wait."""
        cdef int64_t since
        pthread_mutex_lock(&self.entries.lock)
        since = self.entries.running_due_ns
        if since == 0 and self.entries.first != NULL:
            since = self.entries.first.due_ns
        pthread_mutex_unlock(&self.entries.lock)
        return max(0, cyp_monotonic_ns() - since) if since else 0

    @property
    def wait_time_ns(self):
        """Total time that threads have spent waiting for callbacks to catch up."""
        return self.entries.waited_ns


cdef list in_order(list futures):
    """The futures of one batch, sorted by their records: callbacks run in that order."""
    cdef RecordFuture future
    cdef int32_t last = -1
    cdef int32_t index
    cdef bint sorted_already = True
    for future in futures:
        # A record that was parked gets its index here.
        index = _place_in_batch(future)
        sorted_already = sorted_already and index > last
        last = index
    if not sorted_already:
        futures.sort(key=_place_in_batch)
    return futures


cpdef int32_t _place_in_batch(RecordFuture future) noexcept:
    cdef int32_t index
    future._state()
    delivery_of(future, &index)
    return index
