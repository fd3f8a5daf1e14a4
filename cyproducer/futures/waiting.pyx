"""Queues and wakes the threads that wait for an outcome.

Owns the queue of waiters of a delivery, the locks that deliveries share, and which threads must not wait.
Does not own the outcome (``delivery``) or sending while a thread waits (``sender/loop_ownership``).

Threads that wait for records of one batch are woken one by one, each by the one before it. Every woken thread
needs the GIL: if all were woken at once, they would contend for it, and most would sleep again. A thread
wakes the next one before it acquires the GIL, so a thread that computes does not delay each waiter by 5 ms.

A sender thread never waits for a record: it would wait for itself, or delay its own producer's records while
it waits for another producer's. It calls no user code, but the garbage collector may run a finalizer on it.

Every ``nogil`` function can run without the GIL.
"""

from cyproducer.futures.delivery cimport PENDING
from cyproducer.base.greenlets cimport resume, suspend_on
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

from cyproducer.base.threads import current_name
from cyproducer.errors import IllegalStateError

cdef extern from *:
    """
    #include "thread_local.h"
    static CYP_THREAD_LOCAL int cyp_sends = 0;
    """
    int sends "cyp_sends"     # whether the calling thread is a sender thread

# A lock per delivery would cost 40 bytes and an initialization per batch. Deliveries share these locks, by
# address.
cdef enum:
    STRIPES = 64

cdef pthread_mutex_t stripes[STRIPES]


def renew_locks():
    """Initializes the locks that all deliveries share; called again in a forked child, because threads that
    exist only in the parent may hold some."""
    cdef int i
    for i in range(STRIPES):
        cyp_mutex_init(&stripes[i])


renew_locks()


def begin_sending():
    """Marks the calling thread as a sender thread until it ends, and makes its timed waits exact (linger)."""
    global sends
    sends = 1
    cyp_exact_timers()


def refuse_wait_of_sender(str what not None):
    """Raises ``IllegalStateError`` on a sender thread, which must not wait in ``what``."""
    refuse_on_sender(what)


cdef int refuse_on_sender(str what) except -1:
    if sends:
        raise IllegalStateError(
            f"{what} on {current_name()!r}, the sender thread, would stop it from sending. "
            "A finalizer that the garbage collector ran on this thread, perhaps a __del__, called it: call "
            "it from another thread"
        )
    return 0


cdef pthread_mutex_t* lock_of(Delivery* d) noexcept nogil:
    """The lock that guards a delivery's waiters and its callback list."""
    return &stripes[(<size_t>d >> 7) % STRIPES]


cdef void wake_waiters(Delivery* d) noexcept nogil:
    """Wakes the first waiter, which wakes the next, and all greenlets.

    The state is already stored. The delivery's lock is held.
    """
    d.waking = 1
    resume(d)
    pass_on(d.first_sleeper)


cdef inline void pass_on(Sleeper* s) noexcept nogil:
    if s != NULL:
        s.awake = True
        pthread_cond_signal(&s.woken)


cdef void sleep_until_settled(Delivery* d, int64_t until) noexcept nogil:
    """Waits in the queue until the delivery is no longer PENDING, or until ``until``. The caller holds a
    reference.

    The lock resolves a race: a waiter times out while the outcome arrives. Either the waiter leaves the queue
    before the first waiter is woken, or it stays until it is woken. That is soon, because the waiters before
    it no longer wait for anything.
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


cdef bint list_greenlet(Delivery* d, int64_t until) noexcept nogil:
    """Lists the calling greenlet, which then waits in ``after_slice``, unless the delivery has an outcome.

    Returns False if there is no memory.
    """
    cdef pthread_mutex_t* lock = lock_of(d)
    cdef bint listed = True
    pthread_mutex_lock(lock)
    if cyp_load32(&d.state) == PENDING:
        listed = suspend_on(d, until)
    pthread_mutex_unlock(lock)
    return listed


cdef void leave(Delivery* d, Sleeper* s) noexcept nogil:
    """Removes a waiter that timed out from the queue."""
    if s.previous == NULL:
        d.first_sleeper = s.next
    else:
        s.previous.next = s.next
    if s.next == NULL:
        d.last_sleeper = s.previous
    else:
        s.next.previous = s.previous
