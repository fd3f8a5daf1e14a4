from libc.stdint cimport int32_t, int64_t

from cyproducer.base.sync cimport pthread_cond_t, pthread_mutex_t

# A waiting greenlet. On the heap, because a greenlet's stack is moved elsewhere while another greenlet runs.
cdef struct Suspended:
    Suspended* next
    Suspended* previous
    Suspended** list          # the list that it is in: a bucket, or a bell's `woken`; NULL: none
    const void* address       # what it waits for
    int64_t until
    Bell* bell
    void* waiter              # the hub's object for it, borrowed; NULL until it waits
    int32_t woken             # atomic
    int32_t generation

# How any thread wakes up greenlets of one hub.
cdef struct Bell:
    int write_fd
    bint rung                 # the descriptor was written to, and the hub has not read it yet
    Suspended* woken
    void* owner               # the Doorbell, borrowed

# A loop that waits for a condition in a thread or in a greenlet:
#
#     until = slice_end(deadline)          with the GIL
#     lock the mutex                       from here without the GIL
#     while not done:
#         if wait_on(cond, mutex, until):
#             break
#     unlock the mutex
#     after_slice()                        with the GIL again, unless done: in a greenlet, this is the wait
#
# A thread waits in wait_on(), for a slice of SIGNAL_SLICE_NS. For a greenlet, wait_on() only notes that it
# waits for `cond`, and the mutex is released before other greenlets run.
cdef int64_t slice_end(int64_t deadline) except -1
cdef bint in_greenlet() noexcept nogil
cdef bint wait_on(pthread_cond_t* cond, pthread_mutex_t* mutex, int64_t until) noexcept nogil
cdef bint suspend_on(const void* address, int64_t until) noexcept nogil
cdef int after_slice() except -1
cdef void broadcast(pthread_cond_t* cond) noexcept nogil
cdef void resume(const void* address) noexcept nogil
