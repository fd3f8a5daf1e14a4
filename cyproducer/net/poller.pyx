"""Waits for sockets on a ``selectors`` selector, without the GIL if the system supports it.

Owns the wait, and switching a socket's interest in writability. Does not own the selector, which is passed
in, or registration: the code that opens a socket registers it with the selector.

On Linux the selector is an epoll descriptor, and the loop waits on that descriptor from C. With any other
selector (kqueue on macOS, or a simulator's), it calls the selector's own ``select()`` with the GIL.
"""

import selectors

cdef extern from "polling.h" nogil:
    int CYP_HAS_EPOLL
    int cyp_epoll_wait(int epfd, int32_t* ready, int room, int64_t ns)
    int cyp_epoll_modify(int epfd, int fd, int writable)


def _kind(selector):
    """Returns the class name: gevent and eventlet remove the class from its module, but it may be in use."""
    return type(selector).__module__, type(selector).__name__


cdef class Poller:
    """Waits on one selector. ``selector``: of any class in ``selectors``. Used by one thread at a time."""

    def __init__(self, selector):
        self.selector = selector
        self.epoll_fd = -1
        if CYP_HAS_EPOLL and _kind(selector) == ("selectors", "EpollSelector"):
            self.epoll_fd = selector.fileno()

    cdef int wait(self, int64_t timeout_ns, Ready* ready) except -1 nogil:
        """Waits up to ``timeout_ns``; fills ``ready``, of MOST_READY elements, and returns their number."""
        cdef int n
        if self.epoll_fd >= 0:
            timeout_ns = max(0, min(timeout_ns, <int64_t>3_600_000_000_000))
            n = cyp_epoll_wait(self.epoll_fd, <int32_t*>ready, MOST_READY, timeout_ns)
            if n >= 0:
                return n
            with gil:
                raise OSError("waiting on the selector's descriptor failed: was the selector closed?")
        with gil:
            return self._select(timeout_ns, ready)

    cdef int _select(self, int64_t timeout_ns, Ready* ready) except -1:
        """``wait`` through Python. Separate: a function with Python variables takes the GIL to return."""
        cdef int n = 0
        for key, events in self.selector.select(max(0, min(timeout_ns, 3_600_000_000_000)) / 1e9):
            if n == MOST_READY:
                break
            ready[n].fd = key.fd
            ready[n].events = (1 if events & 1 else 0) | (2 if events & 2 else 0)
            n += 1
        return n

    cdef int watch_write(self, int fd, bint on) except -1 nogil:
        """Switches a registered socket's interest in writability; it stays watched for readability."""
        if self.epoll_fd >= 0:
            # The selector object's own record of the events is not updated: only this class changes them
            # after registration, and unregister() does not read them.
            if cyp_epoll_modify(self.epoll_fd, fd, on) == 0:
                return 0
            with gil:
                raise OSError(f"descriptor {fd} is not registered with the selector")
        with gil:
            self.selector.modify(fd, selectors.EVENT_READ | (selectors.EVENT_WRITE if on else 0))
        return 0
