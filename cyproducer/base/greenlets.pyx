"""Lets greenlets of gevent and eventlet wait without blocking the other greenlets of their thread.

Owns the list of waiting greenlets, waking them from any thread, and the locks and events that this package
uses in a patched process. Does not own how a hub switches greenlets (``greenlet_hubs``) or the conditions.

Waiting for a POSIX condition would block the whole thread. So a greenlet is listed under the condition's
address, with the condition's mutex held, and switches to its hub. The thread that signals the condition also
holds the mutex. It finds the greenlet in the list and rings the hub's bell: it writes to a descriptor that
the hub watches.

    greenlet (mutex held)                  other thread (mutex held), with or without the GIL
    not done: listed under the address     done
    releases the mutex, hub runs           resume(address): to the bell's list, writes to the descriptor
                                           hub: take(), switches to the greenlet, which looks again

In a process that is not patched, a thread that is about to wait reads one flag, and a thread that wakes
others reads one count.

Lock order: the table's mutex is acquired after all others, and held for a few instructions.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from cyproducer.base.clock cimport deadline_in
from cyproducer.base.forks cimport own_process
from cyproducer.base.sync cimport (
    FAR_NS,
    SIGNAL_SLICE_NS,
    cyp_add32,
    cyp_cond_init,
    cyp_cond_wait_until,
    cyp_load32,
    cyp_monotonic_ns,
    cyp_mutex_init,
    cyp_note64,
    cyp_peek64,
    cyp_store32,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_mutex_destroy,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)

import os
import sys

from cyproducer.base.wakeup_fd import channel
from cyproducer.base.durations import waitable
from cyproducer.base.unpatched import allocate_lock

cdef extern from "<Python.h>":
    unsigned long PyThread_get_thread_ident() nogil

cdef extern from "<unistd.h>" nogil:
    ssize_t c_read "read"(int fd, void* data, size_t size)
    ssize_t c_write "write"(int fd, const void* data, size_t size)

cdef extern from *:
    """
    #include "thread_local.h"
    static CYP_THREAD_LOCAL void* cyp_here = NULL;
    static CYP_THREAD_LOCAL void* cyp_listed = NULL;
    """
    void* here "cyp_here"        # the Bell of this thread's hub, if one of its greenlets is about to wait
    void* listed "cyp_listed"    # the Suspended that after_slice() waits for

cdef enum:
    BUCKETS = 64

cdef pthread_mutex_t table_lock
cdef Suspended* buckets[BUCKETS]
cdef int32_t suspended           # how many greenlets are listed; atomic
cdef int32_t generation          # grows with each fork
cdef int32_t patched             # whether gevent or eventlet has patched this process
cyp_mutex_init(&table_lock)


def look_for_hubs():
    """Checks whether the process is patched, which can happen at any time. Returns whether it is."""
    global patched
    if not patched and ("gevent.monkey" in sys.modules or "eventlet.patcher" in sys.modules):
        from cyproducer.base import greenlet_hubs

        patched = greenlet_hubs.is_patched()
    return bool(patched)


def renew():
    """In a forked child: forgets all waits, and replaces the hubs' descriptors, which are also the parent's.

    The child has no other thread. It has copies of the greenlets that waited in the thread that forked. These
    copies continue, and find that what they wait for belongs to the parent.
    """
    global suspended, generation
    cyp_mutex_init(&table_lock)
    memset(buckets, 0, sizeof(buckets))
    suspended = 0
    generation += 1
    if patched:
        from cyproducer.base import greenlet_hubs

        greenlet_hubs.renew()


cdef int64_t slice_end(int64_t deadline) except -1:
    """When the next wait ends if nothing happens: in a greenlet at the deadline, else after a slice."""
    global here
    cdef object bell
    own_process()
    here = NULL
    if patched:
        from cyproducer.base import greenlet_hubs

        bell = greenlet_hubs.current()
        if bell is not None:
            here = &(<Doorbell>bell).bell
            return deadline
    return min(deadline, cyp_monotonic_ns() + SIGNAL_SLICE_NS)


cdef bint in_greenlet() noexcept nogil:
    """Whether the caller of ``slice_end`` is a greenlet."""
    return here != NULL


cdef bint wait_on(pthread_cond_t* cond, pthread_mutex_t* mutex, int64_t until) noexcept nogil:
    """Waits for ``broadcast`` until ``until``, or lists the greenlet; returns whether the slice is over."""
    if here == NULL:
        return cyp_cond_wait_until(cond, mutex, until)
    if cyp_monotonic_ns() < until and not suspend_on(cond, until):
        # No memory: block the hub for at most a slice.
        return cyp_cond_wait_until(cond, mutex, min(until, cyp_monotonic_ns() + SIGNAL_SLICE_NS))
    return True


cdef bint suspend_on(const void* address, int64_t until) noexcept nogil:
    """Lists the greenlet for ``resume(address)``; ``after_slice`` waits. False if there is no memory."""
    global listed
    cdef Suspended* s = <Suspended*>calloc(1, sizeof(Suspended))
    if s == NULL:
        return False
    s.address = address
    s.until = until
    s.bell = <Bell*>here
    s.generation = generation
    pthread_mutex_lock(&table_lock)
    enter(s, bucket_of(address))
    cyp_add32(&suspended, 1)
    pthread_mutex_unlock(&table_lock)
    listed = s
    return True


cdef int after_slice() except -1:
    """After a slice: runs signal handlers, or, in a greenlet, waits."""
    global listed
    cdef Suspended* s = <Suspended*>listed
    listed = NULL
    if s != NULL:
        wait_in_hub(s)
    else:
        PyErr_CheckSignals()
        look_for_hubs()
    return 0


cdef int wait_in_hub(Suspended* s) except -1:
    """Switches to the hub until the greenlet is woken or ``s.until`` is reached. Frees ``s``."""
    cdef object bell = <object>s.bell.owner
    cdef object waiter = None
    cdef object seconds = None
    try:
        waiter = bell.waiter()
        s.waiter = <void*>waiter
        if s.until != FAR_NS:
            seconds = max(<int64_t>0, s.until - cyp_monotonic_ns()) / 1e9
        if not cyp_load32(&s.woken):
            bell.pause(waiter, seconds)
    finally:
        forget(s)
    return 0


cdef void forget(Suspended* s) noexcept nogil:
    pthread_mutex_lock(&table_lock)
    # After a fork, the child's lists do not contain it.
    if s.generation == generation:
        leave(s)
        cyp_add32(&suspended, -1)
    pthread_mutex_unlock(&table_lock)
    free(s)


cdef void broadcast(pthread_cond_t* cond) noexcept nogil:
    """Wakes all threads and greenlets that wait for the condition. The caller holds its mutex."""
    pthread_cond_broadcast(cond)
    resume(cond)


cdef void resume(const void* address) noexcept nogil:
    """Wakes the greenlets listed under an address. The caller holds the mutex with which they were listed."""
    cdef Suspended* s
    cdef Suspended* following
    cdef uint64_t one = 1
    if cyp_load32(&suspended) == 0:
        return
    pthread_mutex_lock(&table_lock)
    s = bucket_of(address)[0]
    while s != NULL:
        following = s.next
        if s.address == address:
            leave(s)
            cyp_store32(&s.woken, 1)
            enter(s, &s.bell.woken)
            if not s.bell.rung:
                s.bell.rung = True
                c_write(s.bell.write_fd, &one, 8)
        s = following
    pthread_mutex_unlock(&table_lock)


cdef inline Suspended** bucket_of(const void* address) noexcept nogil:
    return &buckets[((<size_t>address >> 4) ^ (<size_t>address >> 10)) % BUCKETS]


cdef inline void enter(Suspended* s, Suspended** list) noexcept nogil:
    s.list = list
    s.previous = NULL
    s.next = list[0]
    if s.next != NULL:
        s.next.previous = s
    list[0] = s


cdef inline void leave(Suspended* s) noexcept nogil:
    if s.list == NULL:
        return
    if s.previous == NULL:
        s.list[0] = s.next
    else:
        s.previous.next = s.next
    if s.next != NULL:
        s.next.previous = s.previous
    s.list = NULL


cdef class Doorbell:
    """Base class of a hub's side: the descriptor to watch, and the greenlets to switch to when it is rung."""

    cdef Bell bell
    cdef readonly int fd

    def __cinit__(self, *args):
        self.fd = self.bell.write_fd = -1
        self.bell.owner = <void*>self
        self.fd, self.bell.write_fd = channel()

    def __dealloc__(self):
        self._close()

    cdef void _close(self):
        if self.fd >= 0:
            os.close(self.fd)
            if self.bell.write_fd != self.fd:
                os.close(self.bell.write_fd)

    def reopen(self):
        """In a forked child: replaces the descriptors, which are also the parent's."""
        self._close()
        self.fd = self.bell.write_fd = -1
        self.fd, self.bell.write_fd = channel()
        self.bell.rung = False
        self.bell.woken = NULL

    def take(self):
        """Returns the waiters of the greenlets that were woken. Call it only on the hub's thread."""
        cdef char data[4096]
        cdef Suspended* s
        cdef list found = []
        c_read(self.fd, data, sizeof(data))
        pthread_mutex_lock(&table_lock)
        self.bell.rung = False
        pthread_mutex_unlock(&table_lock)
        while True:
            # One at a time: appending may trigger a garbage collection, which may run code that wakes
            # greenlets.
            pthread_mutex_lock(&table_lock)
            s = self.bell.woken
            if s != NULL:
                leave(s)
            pthread_mutex_unlock(&table_lock)
            if s == NULL:
                return found
            if s.waiter != NULL:
                found.append(<object>s.waiter)


cdef class Event:
    """``threading.Event`` without ``clear()``, for both system threads and greenlets."""

    cdef pthread_mutex_t mutex
    cdef pthread_cond_t changed
    cdef int32_t happened         # written with the lock held, read without

    def __cinit__(self):
        cyp_mutex_init(&self.mutex)
        cyp_cond_init(&self.changed)

    def __dealloc__(self):
        pthread_cond_destroy(&self.changed)
        pthread_mutex_destroy(&self.mutex)

    def is_set(self):
        """Whether ``set()`` was called."""
        return cyp_load32(&self.happened) != 0

    def set(self):
        """Wakes all threads and greenlets that wait."""
        pthread_mutex_lock(&self.mutex)
        cyp_store32(&self.happened, 1)
        broadcast(&self.changed)
        pthread_mutex_unlock(&self.mutex)

    def wait(self, timeout=None):
        """Waits for ``set()``, up to ``timeout`` seconds (None: no limit); returns whether it was called."""
        cdef int64_t deadline = deadline_in("timeout", timeout)
        cdef int64_t until
        cdef bint happened
        while True:
            until = slice_end(deadline)
            with nogil:
                pthread_mutex_lock(&self.mutex)
                while not self.happened:
                    if wait_on(&self.changed, &self.mutex, until):
                        break
                happened = self.happened
                pthread_mutex_unlock(&self.mutex)
            if happened:
                return True
            after_slice()
            if cyp_monotonic_ns() >= deadline:
                return self.is_set()


def nap(double seconds):
    """Sleeps, while other greenlets run."""
    Event().wait(seconds)


cdef class RLock:
    """A reentrant lock between system threads, whether or not the process is patched, before or after.

    Not ``_thread.RLock``: when eventlet patches a process, it replaces each of these that it finds with a
    lock that works within one thread only, and reports an error about the others. All greenlets of one thread
    are the same owner: hold the lock while other greenlets run only if those are allowed to acquire it as
    well.
    """

    cdef object lock
    cdef int64_t owner            # a thread's ident; 0: not owned
    cdef int holds

    def __cinit__(self):
        self.lock = allocate_lock()

    def acquire(self, blocking=True, timeout=-1):
        """``threading.RLock.acquire``. Blocks the whole hub, so use it for short times only."""
        # Ctrl-C can interrupt this only before the lock is acquired: no Python code runs after that.
        if not self._is_mine():
            if not self.lock.acquire(blocking, timeout):
                return False
            cyp_note64(&self.owner, <int64_t>PyThread_get_thread_ident())
        self.holds += 1
        return True

    def release(self):
        """``threading.RLock.release``: raises RuntimeError if this thread does not hold the lock."""
        self._refuse_others()
        self.holds -= 1
        if self.holds == 0:
            cyp_note64(&self.owner, 0)
            self.lock.release()

    cdef bint _is_mine(self) noexcept:
        """Whether this thread holds the lock. Reads without it: only this thread writes its own ident."""
        return cyp_peek64(&self.owner) == <int64_t>PyThread_get_thread_ident()

    cdef int _refuse_others(self) except -1:
        if not self._is_mine():
            raise RuntimeError("cannot release a lock that this thread does not hold")
        return 0

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *raised):
        self.release()

    def release_all(self):
        """Releases every hold of this thread; returns the argument for ``acquire_again``."""
        self._refuse_others()
        cdef int holds = self.holds
        self.holds = 0
        cyp_note64(&self.owner, 0)
        self.lock.release()
        return holds

    def acquire_again(self, int holds):
        """Reverses ``release_all``."""
        self.acquire()
        self.holds = holds

    def acquire_patiently(self, timeout_s):
        """``acquire(timeout=timeout_s)`` for a lock that may be held long: other greenlets run meanwhile."""
        cdef int64_t deadline = deadline_in("timeout_s", timeout_s)
        while not self.acquire(blocking=False):
            if cyp_monotonic_ns() >= deadline:
                return False
            slice_end(deadline)
            if here == NULL:
                return self.acquire(timeout=waitable(max(<int64_t>0, deadline - cyp_monotonic_ns()) / 1e9))
            nap(0.01)
        return True
