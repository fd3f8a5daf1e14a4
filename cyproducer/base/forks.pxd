from libc.stdint cimport int32_t, int64_t

from cyproducer.base.sync cimport cyp_load32

cdef int32_t fork_noted          # atomic; not 0: forked, and what a child must not share is not renewed yet
cdef int64_t process             # grows by 1 in each forked child, before any code of the child runs
# Changes in a forked child, and whenever an object that may be borrowed is dropped: borrowed pointers are
# valid while it stays the same.
cdef int64_t borrowing

cdef int renew_all() except -1


cdef inline int own_process() except -1:
    """Ensures that nothing of the parent's is used: the first call in a child renews everything."""
    if cyp_load32(&fork_noted):
        renew_all()
    return 0
