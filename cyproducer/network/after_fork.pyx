"""What a forked child does with the runtime it has inherited: lets go of it.

Owns: closing the child's copies of descriptors, and leaving everything else where it lies. Does not own:
which runtime there is and what comes instead (``producer.py``). Runs in the child, on its only thread,
before anything else of the child's.

The state is that of an instant in the middle of other threads' work. Any mutex may be held by one of them,
which in this process never lets it go, and any list may be half linked. So nothing here takes a lock, walks a
C structure or frees one. The memory is lost to the child: copies that cost nothing until they are written to.
"""

import os
from contextlib import suppress

from cpython.ref cimport Py_INCREF

from cyproducer.accumulator.record_accumulator cimport RecordAccumulator
from cyproducer.base.sync cimport cyp_cond_init, cyp_store32, cyp_mutex_init
from cyproducer.network.sender cimport Sender


def disown(Sender sender not None):
    """Closes what the child has of the parent's sockets, selector and wake-up descriptor, none of which the
    parent notices, and makes the accumulator empty and closed for good.
    """
    cdef RecordAccumulator accumulator = sender.accumulator
    # Never given back: not even at exit may the structures be freed.
    Py_INCREF(sender)
    sender.stopping = 1
    # Whoever forked may come back to them: from a signal's handler in flush(), say. It must find them free.
    cyp_mutex_init(&sender.loop_lock)
    cyp_mutex_init(&accumulator.c.lock)
    cyp_cond_init(&accumulator.c.progress)
    cyp_mutex_init(&accumulator.pool.lock)
    accumulator.wake_function = NULL
    cyp_store32(&accumulator.c.closed, 1)
    accumulator.c.oldest = NULL
    accumulator.c.newest = NULL
    accumulator.c.incomplete = 0
    accumulator.c.parked = 0
    accumulator.c.parked_bytes = 0
    accumulator.c.first_waiting = NULL
    accumulator.c.last_waiting = NULL
    accumulator.completions.disown()
    # Only the child's descriptor of it. Unregistering a socket would reach into the epoll instance itself,
    # which is the parent's too.
    with suppress(Exception):
        sender.poller.selector.close()
    for connection in sender.connections:
        # Not shutdown(), which would end the parent's connection as well.
        close_quietly(connection.sock.detach())
    for fd in {sender.wake_read_fd, sender.waker.fd}:
        close_quietly(fd)
    sender.wake_read_fd = sender.waker.fd = -1


cdef object close_quietly(int fd):
    if fd >= 0:
        with suppress(OSError):
            os.close(fd)
    return None
