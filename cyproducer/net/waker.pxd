from libc.stdint cimport int32_t

# Lets other threads wake up the sender while it waits for events.
cdef struct Waker:
    int32_t fd                    # the descriptor to write to; -1: the sender has ended. Atomic
    int32_t users                 # threads that are writing to it right now. Atomic

cdef void wake_sender(void* waker) noexcept nogil
cdef int32_t retire(Waker* w) noexcept nogil
