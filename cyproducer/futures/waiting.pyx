"""Threads that wait for an outcome.

Owns: the line in front of a delivery, the locks that deliveries share, and which threads may not wait. Does
not own: the outcome (``delivery``), nor sending meanwhile (``network/loop_ownership``).

Threads that wait for records of one batch are woken one by one, each by the one before it: whoever comes
back from a wait asks for the GIL, of which there is one. Woken all at once, they would meet there, and most
of them go to sleep again. A thread wakes the next one before it asks for the GIL, so that a thread that
computes does not hold up the line for 5 ms at each place.

A sender's thread never waits for a record: it would wait for itself, or hold up its own producer's records
for another's. No user's code is called there, but the garbage collector may run a finalizer there, too.

Every ``nogil`` function runs without the GIL.
"""

from cyproducer.futures.delivery cimport PENDING
from cyproducer.base.sync cimport (
    FAR_NS,
    cyp_cond_init,
    cyp_cond_wait_until,
    cyp_exact_timers,
    cyp_load32,
    cyp_mutex_init,
    pthread_cond_destroy,
    pthread_cond_signal,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)

import threading

from cyproducer.errors import IllegalStateError

cdef extern from *:
    """
    static _Thread_local int cyp_sends = 0;
    """
    int sends "cyp_sends"     # whether the thread is a sender's

# A lock for each delivery would cost 40 bytes and a constructor a batch. They share these, by address.
cdef enum:
    STRIPES = 64

cdef pthread_mutex_t stripes[STRIPES]


def renew_locks():
    """Makes the locks that all deliveries share; again in a forked child, where some may be held by threads
    that exist in the parent only."""
    cdef int i
    for i in range(STRIPES):
        cyp_mutex_init(&stripes[i])


renew_locks()


def begin_sending():
    """Notes that the calling thread is a sender's, until it ends, and lets it linger exactly."""
    global sends
    sends = 1
    cyp_exact_timers()


def refuse_wait_of_sender(str what not None):
    """Raises ``IllegalStateError`` on a sender's thread, where ``what`` would wait."""
    refuse_on_sender(what)


cdef int refuse_on_sender(str what) except -1:
    if sends:
        raise IllegalStateError(
            f"{what} on {threading.current_thread().name!r}, the thread that sends, would keep it from "
            "sending; it is called by what the garbage collector runs there, a __del__ perhaps: call it from "
            "another thread"
        )
    return 0


cdef pthread_mutex_t* lock_of(Delivery* d) noexcept nogil:
    """Guards who waits for a delivery, and the callbacks it lists."""
    return &stripes[(<size_t>d >> 7) % STRIPES]


cdef void wake_waiters(Delivery* d) noexcept nogil:
    """Wakes the first in line, who wakes the next. The state was stored, and the delivery's lock is held."""
    d.waking = 1
    pass_on(d.first_sleeper)


cdef inline void pass_on(Sleeper* s) noexcept nogil:
    if s != NULL:
        s.awake = True
        pthread_cond_signal(&s.woken)


cdef void sleep_until_settled(Delivery* d, int64_t until) noexcept nogil:
    """Waits in line until the delivery is no longer PENDING, or ``until``. A reference is held.

    A race that the lock settles: a waiter's time runs out while the outcome arrives. Either it leaves the
    line before that is woken, or it stays until its turn, which is near: those before it wait for nothing.
    """
    cdef pthread_mutex_t* lock = lock_of(d)
    cdef Sleeper me
    pthread_mutex_lock(lock)
    if cyp_load32(&d.state) != PENDING:
        pthread_mutex_unlock(lock)
        return
    cyp_cond_init(&me.woken)
    me.awake = False
    me.next = NULL
    me.previous = d.last_sleeper
    if d.last_sleeper == NULL:
        d.first_sleeper = &me
    else:
        d.last_sleeper.next = &me
    d.last_sleeper = &me
    while not me.awake:
        if cyp_cond_wait_until(&me.woken, lock, until):
            if not d.waking:
                break
            until = FAR_NS
    if me.awake:
        pass_on(me.next)
    else:
        leave(d, &me)
    pthread_mutex_unlock(lock)
    pthread_cond_destroy(&me.woken)


cdef void leave(Delivery* d, Sleeper* s) noexcept nogil:
    """Takes a waiter whose time is over out of the line."""
    if s.previous == NULL:
        d.first_sleeper = s.next
    else:
        s.previous.next = s.next
    if s.next == NULL:
        d.last_sleeper = s.previous
    else:
        s.next.previous = s.previous
