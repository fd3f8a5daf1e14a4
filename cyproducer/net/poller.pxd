from libc.stdint cimport int32_t, int64_t

cdef enum:
    MOST_READY = 64

# A ready descriptor; events: 1 readable, 2 writable, 3 both.
cdef struct Ready:
    int32_t fd
    int32_t events


cdef class Poller:
    cdef readonly object selector
    cdef int epoll_fd             # -1: wait through the selector's Python method
    cdef int wait(self, int64_t timeout_ns, Ready* ready) except -1 nogil
    cdef int _select(self, int64_t timeout_ns, Ready* ready) except -1
    cdef int watch_write(self, int fd, bint on) except -1 nogil
