"""Waking the sender: a descriptor that its selector watches, and that any thread may write to.

Owns: writing to the descriptor, and knowing when nobody does so any more. Does not own: the descriptor
itself, which the sender opens and closes.
"""

from libc.stdint cimport uint64_t

from cyproducer.base.sync cimport cyp_add32, cyp_load32, cyp_swap32

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* data, size_t size)

cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef void wake_sender(void* waker) noexcept nogil:
    """Ends the sender's wait for events. Any thread, with or without the GIL.

    ``waker``: the sender's. Counted before the descriptor is read: see ``retire``.
    """
    cdef Waker* w = <Waker*>waker
    cdef uint64_t one = 1
    cdef int32_t fd
    cyp_add32(&w.users, 1)
    fd = cyp_load32(&w.fd)
    if fd >= 0:
        # Never blocks: the descriptor is non-blocking.
        c_write(fd, &one, 8)
    cyp_add32(&w.users, -1)


cdef int32_t retire(Waker* w) noexcept nogil:
    """Has nobody wake the sender any more; returns the descriptor, which may be closed now.

    1. A thread without the GIL reads the descriptor.  2. It is closed.  3. Another thread opens a file, which
    gets its number.  4. The first one writes into that. So what is between 1 and 4 is counted, and waited
    for: a few instructions, unless their thread is suspended.
    """
    cdef int32_t fd = cyp_swap32(&w.fd, -1)
    while cyp_load32(&w.users) > 0:
        sched_yield()
    return fd
