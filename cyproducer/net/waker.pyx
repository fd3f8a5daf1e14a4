"""Wakes up the sender: any thread can write to a descriptor that the sender's selector watches.

Owns writing to the descriptor, and tracking when no thread uses it any more. Does not own the descriptor
itself, which the sender opens and closes.
"""

from libc.stdint cimport uint64_t

from cyproducer.base.sync cimport cyp_add32, cyp_load32, cyp_swap32

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* data, size_t size)

cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef void wake_sender(void* waker) noexcept nogil:
    """Wakes up the sender if it waits for events. Any thread, with or without the GIL.

    ``waker``: the sender's ``Waker``. The thread is counted before it reads the descriptor: see ``retire``.
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
    """Disables wake-ups; returns the descriptor, which the caller may close now.

    Without the count of users, this could happen:

    1. A thread without the GIL reads the descriptor.
    2. The descriptor is closed.
    3. Another thread opens a file, which gets the same number.
    4. The first thread writes into that file.

    So threads between steps 1 and 4 are counted, and this function waits for them: a few instructions, unless
    such a thread is suspended.
    """
    cdef int32_t fd = cyp_swap32(&w.fd, -1)
    while cyp_load32(&w.users) > 0:
        sched_yield()
    return fd
