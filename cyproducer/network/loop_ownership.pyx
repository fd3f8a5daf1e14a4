"""Whose turn it is to run the send loop: the sender's thread, or a thread that waits for its record.

Owns: ``run()``, ``run_once()``, and handing the turn over. Does not own: what a step does (``send_loop``).

A round trip of ``send().get()`` costs two switches between threads where the sender does it, one to it and
one back. So after some records that came one by one, each waited for in ``get()``, the sender's thread
*stands by*: it gives up the turn. The waiting thread takes it, sends, waits for the answer and reads it:

    waiting thread                             sender's thread
                                               the last batch is complete, its thread waited
                                               STANDING_BY; gives up the turn, looks each millisecond
    send(): appends, LEFT_ALONE, wakes nobody
    get(): takes the turn, step, step ...
    complete: STANDING_BY again
    gives the turn back

What a record may lose by it, where nobody waits for it after all, is that millisecond, once: the sender takes
over, and is slower to stand by again. It takes over at once where a second batch is begun, where anything is
left when the waiting thread has what it waited for, and where there is something to decide: errors,
connections, timers. None of that is done on an application's thread, where Ctrl-C may break in wherever
Python code runs. The turn is given back in any case: by ``finally``, and at ``until``, which is 50 ms away at
most, since ``get()`` has to look for Ctrl-C.
"""

from libc.stdint cimport int64_t

from cyproducer.base.clock cimport duration_of
from cyproducer.accumulator.structures cimport LEFT_ALONE, STANDING_BY, Accumulator
from cyproducer.base.sync cimport (
    FAR_NS,
    cyp_add32,
    cyp_load32,
    cyp_monotonic_ns,
    cyp_ms_ns,
    cyp_store32,
    pthread_mutex_t,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.network.send_loop cimport wake_sender

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_trylock(pthread_mutex_t* mutex)

cdef extern from "polling.h" nogil:
    int cyp_await_readable(int fd, int ms)

cdef enum:
    ENOUGH = 2                # lone records in a row, waited for, until the sender stands by
    TOO_MANY = -16            # where it begins to count again after one that nobody waited for
    LOOK_MS = 1               # how often it looks while it stands by


cdef class Turns(Outcomes):
    """The loop, and who runs it. See ``SendLoop``."""

    def run(self):
        """Steps until ``stop()``. What a step raises is a bug: it is logged, and ends the loop."""
        cdef bint left_alone = False
        self.accumulator.completions.lend(self)
        try:
            with nogil:
                while not cyp_load32(&self.stopping):
                    pthread_mutex_lock(&self.turn)
                    if left_alone:
                        self.left_alone += 1
                        self.lone = TOO_MANY
                    try:
                        self.step(FAR_NS)
                    finally:
                        pthread_mutex_unlock(&self.turn)
                    left_alone = self.lone >= ENOUGH and self._stand_by()
        finally:
            self.accumulator.completions.lend(None)
            # Whoever drives has seen `stopping`, or will soon; nobody begins any more.
            with nogil:
                pthread_mutex_lock(&self.turn)
                pthread_mutex_unlock(&self.turn)

    def run_once(self, max_wait_ms=0.0):
        """One step, waiting for events up to ``max_wait_ms``."""
        cdef int64_t wait = cyp_ms_ns(duration_of("max_wait_ms", max_wait_ms, "milliseconds"))
        with nogil:
            pthread_mutex_lock(&self.turn)
            try:
                self.step(wait)
            finally:
                pthread_mutex_unlock(&self.turn)

    def stop(self):
        """Lets ``run()`` return after the step under way. Any thread."""
        cyp_store32(&self.stopping, 1)
        self.wake()

    cdef bint _settle_down(self) noexcept nogil:
        """Notes STANDING_BY, if there is no work. One critical section, as in ``_sleep_until``."""
        cdef Accumulator* a = &self.accumulator.c
        cdef bint idle
        pthread_mutex_lock(&a.lock)
        idle = a.oldest == NULL and a.parked == 0
        if idle:
            # Nor does a batch wake it that only begins to linger.
            a.sleeping_until_ns = 0
            cyp_store32(&a.sleeping, STANDING_BY)
        pthread_mutex_unlock(&a.lock)
        return idle and not cyp_load32(&self.attention)

    cdef bint _stand_by(self) except -1 nogil:
        """Leaves the turn to waiting threads for as long as they come; whether a record was left alone."""
        cdef int32_t seen
        # Codecs, and selectors other than epoll, need the GIL.
        if self.accumulator.c.codec != 0 or self.poller.epoll_fd < 0:
            return False
        if not self._settle_down():
            return False
        cyp_store32(&self.standing_by, 1)
        while True:
            seen = cyp_load32(&self.drives)
            if cyp_await_readable(self.wake_read_fd, LOOK_MS) or cyp_load32(&self.stopping):
                break
            if self.clock.now_ns() >= self.next_control_ns:
                break
            if cyp_load32(&self.drives) == seen and not cyp_load32(&self.driven):
                break
        cyp_store32(&self.standing_by, 0)
        return cyp_load32(&self.accumulator.c.sleeping) == LEFT_ALONE

    cdef bint drive(self, const int32_t* state, int64_t until) except -1 nogil:
        """See ``Driver``."""
        cdef int64_t left
        cdef bint idle
        if not cyp_load32(&self.standing_by) or pthread_mutex_trylock(&self.turn) != 0:
            return False
        # Under the lock it counts: the sender may be back, or be at its end.
        if not cyp_load32(&self.standing_by):
            pthread_mutex_unlock(&self.turn)
            return False
        cyp_store32(&self.driven, 1)
        try:
            while not (cyp_load32(state) or self.left_over or cyp_load32(&self.stopping)):
                left = until - cyp_monotonic_ns()
                if left <= 0:
                    break
                self.step(left)
        finally:
            cyp_add32(&self.drives, 1)
            cyp_store32(&self.driven, 0)
            idle = not self.left_over and self._settle_down()
            # Before the turn is given back: the sender could come to its end then, and close the descriptor.
            if not idle:
                wake_sender(&self.waker)
            pthread_mutex_unlock(&self.turn)
        return True
