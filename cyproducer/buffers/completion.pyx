"""Completed batches whose callbacks are to be run.

Owns: their queue, and running them in order. Does not own: the thread that does (``network/callbacks``),
nor when a batch completes (``delivery``). The sender fills the queue without the GIL; one thread at a time
empties it.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t

from cyproducer.buffers.delivery cimport Delivery, RecordFuture, delivery_unref, take_callbacks
from cyproducer.buffers.sync cimport (
    SIGNAL_SLICE_NS,
    cyp_cond_init,
    cyp_cond_wait_until,
    cyp_monotonic_ns,
    cyp_swap32,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)

import logging

log = logging.getLogger("cyproducer")


cdef class CompletionQueue:
    """Completed deliveries whose callbacks are to be run, in order of completion.

    ``start`` is called when the first callback is registered: a producer without callbacks needs no
    thread for them. Thread-safe.
    """

    def __cinit__(self, start=None):
        pthread_mutex_init(&self.entries.lock, NULL)
        cyp_cond_init(&self.entries.filled)
        cyp_cond_init(&self.entries.idle)
        self.entries.owner = <void*>self
        self.start = start

    def ensure_started(self):
        """Calls ``start``, the first time."""
        if not cyp_swap32(&self.entries.started, 1) and self.start is not None:
            self.start()

    def __dealloc__(self):
        cdef Delivery* d
        while self.entries.first != NULL:
            d = self.entries.first
            self.entries.first = d.next
            delivery_unref(d)
        pthread_cond_destroy(&self.entries.filled)
        pthread_cond_destroy(&self.entries.idle)
        pthread_mutex_destroy(&self.entries.lock)

    def close(self):
        """Lets ``run_next`` return None once the queue is empty."""
        pthread_mutex_lock(&self.entries.lock)
        self.entries.closed = 1
        pthread_cond_broadcast(&self.entries.filled)
        pthread_mutex_unlock(&self.entries.lock)

    def wait_idle(self, double timeout_s):
        """Waits until nothing is left to run; False when ``timeout_s`` seconds were over first."""
        cdef int64_t deadline = cyp_monotonic_ns() + <int64_t>(min(timeout_s, 1e9) * 1e9)
        cdef bint idle
        cdef int64_t until
        while True:
            until = min(deadline, cyp_monotonic_ns() + SIGNAL_SLICE_NS)
            with nogil:
                pthread_mutex_lock(&self.entries.lock)
                while self.entries.first != NULL or self.entries.running:
                    if cyp_cond_wait_until(&self.entries.idle, &self.entries.lock, until):
                        break
                idle = self.entries.first == NULL and not self.entries.running
                pthread_mutex_unlock(&self.entries.lock)
            if idle or cyp_monotonic_ns() >= deadline:
                return bool(idle)
            PyErr_CheckSignals()

    def run_next(self, double timeout_s=0.0):
        """Runs the callbacks of the next completed batch, waiting for one up to ``timeout_s`` seconds.

        Returns the number of records called back, 0 when the time ran out, None when closed and empty.
        """
        cdef Delivery* d
        cdef int64_t deadline = cyp_monotonic_ns() + <int64_t>(timeout_s * 1e9)
        cdef bint closed
        with nogil:
            pthread_mutex_lock(&self.entries.lock)
            while self.entries.first == NULL and not self.entries.closed:
                if cyp_cond_wait_until(&self.entries.filled, &self.entries.lock, deadline):
                    break
            d = self.entries.first
            if d != NULL:
                self.entries.first = d.next
                if d.next == NULL:
                    self.entries.last = NULL
                self.entries.running = 1
            closed = self.entries.closed
            pthread_mutex_unlock(&self.entries.lock)
        if d == NULL:
            return None if closed else 0
        try:
            return self._run(d)
        finally:
            pthread_mutex_lock(&self.entries.lock)
            self.entries.running = 0
            pthread_cond_broadcast(&self.entries.idle)
            pthread_mutex_unlock(&self.entries.lock)

    cdef int _run(self, Delivery* d) except -1:
        """Runs the callbacks of one delivery, whose reference it takes; returns the number of records."""
        cdef list waiting = take_callbacks(d)
        delivery_unref(d)
        waiting.sort(key=_place_in_batch)
        for future in waiting:
            while True:
                try:
                    (<RecordFuture>future)._run_callbacks()
                    break
                except BaseException:
                    # SystemExit, say: it would end this thread, and with it all callbacks to come.
                    log.exception("a callback of a record for topic %r raised", (<RecordFuture>future).topic)
        return len(waiting)


def _place_in_batch(RecordFuture future):
    """The order in which a batch's callbacks run: that of its records."""
    # A record that was parked learns its place here.
    future._settle()
    return future.index
