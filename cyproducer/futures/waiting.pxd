from libc.stdint cimport int64_t

from cyproducer.futures.delivery cimport Delivery
from cyproducer.base.sync cimport pthread_cond_t, pthread_mutex_t

# A thread that waits for a delivery. Lives on that thread's stack.
cdef struct Sleeper:
    Sleeper* next
    Sleeper* previous
    bint awake            # it was woken, and the waker no longer refers to it
    pthread_cond_t woken

cdef pthread_mutex_t* lock_of(Delivery* d) noexcept nogil
cdef int refuse_on_sender(str what) except -1
cdef void wake_waiters(Delivery* d) noexcept nogil
cdef bint list_greenlet(Delivery* d, int64_t until) noexcept nogil
cdef void sleep_until_settled(Delivery* d, int64_t until) noexcept nogil
