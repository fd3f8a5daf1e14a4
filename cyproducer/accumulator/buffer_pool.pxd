from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.base.sync cimport pthread_cond_t, pthread_mutex_t

cdef enum:
    CLASSES = 24          # size classes: 2**MIN_SHIFT .. 2**(MIN_SHIFT + CLASSES - 1)
    MIN_SHIFT = 9         # the smallest buffer has 512 bytes
    MOST_KEPT = 8 << 20   # a pool that never had more in use than this returns nothing to the system
    WINDOW_NS = 2_000_000_000   # memory that was not needed for a whole window is returned to the system

# A buffer that is in a free list, or is being released: its first bytes hold the link.
cdef struct FreeBuffer:
    FreeBuffer* next
    int64_t size          # meaningless once the buffer is in the free list of its size

# A waiter for memory: a thread or a greenlet in reserve(), or a Ticket.
cdef struct Waiter:
    Waiter* next
    int64_t need          # requested bytes
    int32_t granted       # set by the thread that released the memory; the bytes are already reserved
    int notify_fd         # of a ticket: written to when it is granted; -1: `ready` is signalled
    pthread_cond_t ready


cdef class BufferPool:
    cdef pthread_mutex_t lock         # guards everything below
    cdef readonly int64_t total_bytes     # buffer_memory
    cdef int64_t in_use               # reserved bytes; above total_bytes only by reserve_now()
    cdef int64_t cached               # bytes in the free lists
    cdef FreeBuffer* free_lists[CLASSES]
    cdef Waiter* first_waiter
    cdef Waiter* last_waiter
    cdef int32_t waiting              # waiting threads and open tickets; read without the lock
    cdef int64_t exhausted            # waits that timed out
    cdef int64_t waited_ns            # total time spent waiting
    cdef int64_t peak                 # highest in_use before this window
    cdef int64_t recent               # highest in_use in this window
    cdef int64_t before               # highest in_use in the last window
    cdef int64_t turned_ns            # when this window began
    cdef int64_t held                 # the most that was needed since memory was last returned

    cdef bint try_reserve(self, int64_t size) noexcept nogil
    cdef bint _fits(self, int64_t size) noexcept nogil
    cdef void _use(self, int64_t size) noexcept nogil
    cdef void reserve_now(self, int64_t size) noexcept nogil
    cdef int reserve(self, int64_t size, int64_t deadline_ns) except -1
    cdef bint _end_wait(self, Waiter* me, int64_t began, bint interrupted) noexcept
    cdef void unreserve(self, int64_t size) noexcept nogil
    cdef void make_room(self) noexcept nogil
    cdef uint8_t* obtain(self, int64_t size, bint* reserved) noexcept nogil
    cdef uint8_t* allocate(self, int64_t size) noexcept nogil
    cdef FreeBuffer* _pop(self, int64_t size) noexcept nogil
    cdef void take_back(self, uint8_t* data, int64_t size) noexcept nogil
    cdef void release(self, uint8_t* data, int64_t size) noexcept nogil
    cdef FreeBuffer* _keep(self, FreeBuffer* item, FreeBuffer* useless) noexcept nogil
    cdef void release_all(self, FreeBuffer* first) noexcept nogil
    cdef void _join(self, Waiter* me) noexcept nogil
    cdef void _leave(self, Waiter* me) noexcept nogil
    cdef void _grant(self) noexcept nogil
    cdef void _trim(self) noexcept nogil
    cdef FreeBuffer* _shed(self, int64_t limit) noexcept nogil
    cdef int64_t _needed(self) noexcept nogil

# A place in the pool's queue of waiters that no thread blocks on.
cdef class Ticket:
    cdef BufferPool pool
    cdef Waiter waiter
    cdef bint open        # it is in the queue, or owns granted bytes
    cdef int64_t take(self) noexcept


cdef FreeBuffer* chained(FreeBuffer* rest, uint8_t* data, int64_t size) noexcept nogil
cdef int64_t buffer_capacity(int64_t size) noexcept nogil
