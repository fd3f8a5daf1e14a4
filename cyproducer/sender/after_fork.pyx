"""Disowns, in a forked child, the runtime that the child inherited.

Closes the child's copies of the descriptors, marks the accumulator as empty and closed, and leaves everything
else untouched. Does not own the runtime or its replacement (``producer.py``). Runs in the child, on its only
thread, before any other code of the child.

The fork may have happened in the middle of other threads' work. Any mutex may be held by a thread that does
not exist in the child and so never releases it, and any list may be half linked. So this code takes no lock
and neither traverses nor frees a C structure. The child leaks the memory: the pages are shared with the
parent and cost nothing until they are written to.
"""

import os
from contextlib import suppress

from cpython.ref cimport Py_INCREF

from cyproducer.accumulator.record_accumulator cimport RecordAccumulator
from cyproducer.base.sync cimport cyp_cond_init, cyp_store32, cyp_mutex_init
from cyproducer.sender.sender cimport Sender


def disown(Sender sender not None):
    """Closes the child's copies of the parent's sockets, selector and wake-up descriptors, which does not
    affect the parent, and makes the accumulator permanently empty and closed.
    """
    cdef RecordAccumulator accumulator = sender.accumulator
    # Never released: the structures must not be freed, not even at exit.
    Py_INCREF(sender)
    sender.stopping = 1
    # The thread that forked may still use these locks, for example after a fork in a signal handler during
    # flush(), so they must be free.
    cyp_mutex_init(&sender.loop_lock)
    cyp_mutex_init(&accumulator.c.lock)
    cyp_cond_init(&accumulator.c.progress)
    cyp_mutex_init(&accumulator.pool.lock)
    accumulator.wake_function = NULL
    cyp_store32(&accumulator.c.closed, 1)
    cyp_store32(&accumulator.c.refusing, 1)
    accumulator.c.oldest = NULL
    accumulator.c.newest = NULL
    accumulator.c.incomplete = 0
    accumulator.c.parked = 0
    accumulator.c.parked_bytes = 0
    accumulator.c.first_waiting = NULL
    accumulator.c.last_waiting = NULL
    accumulator.completions.disown()
    # Closes only the child's descriptor. Unregistering a socket would change the epoll instance itself, which
    # the parent shares.
    with suppress(Exception):
        sender.poller.selector.close()
    for connection in sender.connections:
        # Not shutdown(), which would also end the parent's connection.
        close_quietly(connection.sock.detach())
    for fd in {sender.wake_read_fd, sender.waker.fd}:
        close_quietly(fd)
    sender.wake_read_fd = sender.waker.fd = -1


cdef object close_quietly(int fd):
    if fd >= 0:
        with suppress(OSError):
            os.close(fd)
    return None
