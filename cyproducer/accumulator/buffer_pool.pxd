from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.base.sync cimport pthread_cond_t, pthread_mutex_t

cdef enum:
    CLASSES = 24          # size classes: 2**MIN_SHIFT .. 2**(MIN_SHIFT + CLASSES - 1)
    MIN_SHIFT = 9         # the smallest buffer has 512 bytes

# A buffer that lies in a free list, or is on its way there: its first bytes hold the link.
cdef struct FreeBuffer:
    FreeBuffer* next
    int64_t size          # meaningless once it lies in the list of its size

# Who waits for memory: a thread, on whose stack this lives, or a Ticket.
cdef struct Waiter:
    Waiter* next
    int64_t need          # bytes asked for
    bint granted          # set by the thread that released the memory, with the bytes already taken
    int notify_fd         # a ticket's: written to when it is granted; -1: `ready` is signalled
    pthread_cond_t ready


cdef class BufferPool:
    cdef pthread_mutex_t lock         # guards everything below
    cdef readonly int64_t total_bytes     # buffer_memory
    cdef int64_t in_use               # bytes handed out; above total_bytes only by take_now()
    cdef int64_t cached               # bytes in the free lists
    cdef FreeBuffer* free_lists[CLASSES]
    cdef Waiter* first_waiter
    cdef Waiter* last_waiter
    cdef int32_t waiting              # threads that wait; read without the lock
    cdef int64_t exhausted            # waits that ran out of time
    cdef int64_t waited_ns            # time spent in waits
    cdef int64_t peak                 # highest in_use

    cdef bint try_reserve(self, int64_t size) noexcept nogil
    cdef void reserve_now(self, int64_t size) noexcept nogil
    cdef int reserve(self, int64_t size, int64_t deadline_ns) except -1 nogil
    cdef void unreserve(self, int64_t size) noexcept nogil
    cdef void make_room(self) noexcept nogil
    cdef uint8_t* allocate(self, int64_t size) noexcept nogil
    cdef void take_back(self, uint8_t* data, int64_t size) noexcept nogil
    cdef void release(self, uint8_t* data, int64_t size) noexcept nogil
    cdef FreeBuffer* _keep(self, FreeBuffer* item, FreeBuffer* useless) noexcept nogil
    cdef void release_all(self, FreeBuffer* first) noexcept nogil
    cdef void _join(self, Waiter* me) noexcept nogil
    cdef void _leave(self, Waiter* me) noexcept nogil
    cdef void _grant(self) noexcept nogil
    cdef void _trim(self) noexcept nogil

# A place in the line of those that wait for memory which no thread waits at.
cdef class Ticket:
    cdef BufferPool pool
    cdef Waiter waiter
    cdef bint open        # it is in the line, or has bytes that are its own
    cdef int64_t take(self) noexcept


cdef FreeBuffer* chained(FreeBuffer* rest, uint8_t* data, int64_t size) noexcept nogil
cdef int64_t buffer_capacity(int64_t size) noexcept nogil
