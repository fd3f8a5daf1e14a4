"""Bounds the memory for records to ``buffer_memory`` bytes, and hands out buffers within that budget.

Owns the count of bytes in use, the free lists, and the queue of waiters for memory. Does not own the contents
of a buffer or the decision when to release it.

Reservations and buffers are separate. A *reservation* is a number of bytes taken from the budget. A *buffer*
is memory of exactly that many bytes, from a free list or from malloc. A thread waits for a reservation only,
in FIFO order, and allocates the buffer after the wait.

Up to 64 KiB a buffer's size is a power of two, at least 512 bytes (``buffer_capacity``), so that a released
buffer fits the next batch of its size class. Bytes in free lists count as available: ``allocate`` frees them
when the total would exceed the budget.

A small buffer (up to 8 KiB) is kept only while the free lists hold no more than 2 MiB. malloc caches small
buffers just as well and may return their pages to the system: one record for each of ten thousand partitions
must not leave ten thousand buffers behind.

Memory that a backlog leaves behind is returned to the system: memory that records have not needed for a whole
window is freed (``turn``, ``give_back``). Up to ``MOST_KEPT`` bytes are kept. With glibc, freeing alone is
not enough: glibc keeps free blocks that are below a block in use.

All functions can be called by any thread, with or without the GIL.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc

from cyproducer.accumulator.structures cimport prefetch_records
from cyproducer.base.clock cimport deadline_in
from cyproducer.base.greenlets cimport after_slice, resume, slice_end, wait_on
from cyproducer.base.sync cimport (
    cyp_add32,
    cyp_change64,
    cyp_cond_init,
    cyp_load32,
    cyp_monotonic_ns,
    cyp_mutex_init,
    cyp_note32,
    cyp_peek32,
    cyp_peek64,
    pthread_cond_destroy,
    pthread_cond_signal,
    pthread_mutex_destroy,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)


cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* data, size_t size)


cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    #endif
    /* Other C libraries return large blocks when these are freed. */
    static inline void cyp_return_memory(void) {
    #ifdef __GLIBC__
        malloc_trim(0);
    #endif
    }
    """
    void cyp_return_memory() nogil

cdef enum:
    SMALL = 8192
    MOST_CACHED_SMALL = 2 << 20


cdef inline int size_class(int64_t capacity) noexcept nogil:
    """The index of the free list for a capacity; -1 if buffers of that size are not kept."""
    cdef int k = 0
    while (<int64_t>1 << (MIN_SHIFT + k)) < capacity:
        k += 1
        if k == CLASSES:
            return -1
    return k


cdef int64_t buffer_capacity(int64_t size) noexcept nogil:
    """The size of the buffer for ``size`` bytes: the next power of two, at least 512.

    Above 64 KiB, the next multiple of 64 KiB: doubling a large record would waste the budget.
    """
    cdef int64_t capacity = 1 << MIN_SHIFT
    if size > 65536:
        return (size + 65535) & ~<int64_t>65535
    while capacity < size:
        capacity <<= 1
    return capacity


cdef FreeBuffer* chained(FreeBuffer* rest, uint8_t* data, int64_t size) noexcept nogil:
    """Puts a buffer in front of a chain of buffers that are released together; returns the new chain."""
    cdef FreeBuffer* item = <FreeBuffer*>data
    item.next = rest
    item.size = size
    return item


cdef void free_all(FreeBuffer* first) noexcept nogil:
    """Frees a chain of buffers."""
    cdef FreeBuffer* item
    while first != NULL:
        item = first
        first = item.next
        free(item)


cdef class BufferPool:
    """A pool of ``total_bytes`` for records that are accepted and not yet acknowledged.

    Thread-safe. Counts whole buffers, including the unused space of open batches.
    """

    def __cinit__(self, int64_t total_bytes):
        if total_bytes < 0:
            raise ValueError(f"total_bytes={total_bytes}: must be >= 0")
        cyp_mutex_init(&self.lock)
        self.total_bytes = total_bytes
        self.held = self._needed()

    def __dealloc__(self):
        for k in range(CLASSES):
            free_all(self.free_lists[k])
        pthread_mutex_destroy(&self.lock)

    cdef bint try_reserve(self, int64_t size) noexcept nogil:
        """Reserves ``size`` bytes if they are available and no thread is waiting; never blocks."""
        cdef bint ok
        pthread_mutex_lock(&self.lock)
        ok = self._fits(size)
        if ok:
            self._use(size)
        pthread_mutex_unlock(&self.lock)
        return ok

    cdef inline bint _fits(self, int64_t size) noexcept nogil:
        """Whether ``size`` bytes are available and no thread is waiting. The lock is held."""
        return self.first_waiter == NULL and self.in_use + size <= self.total_bytes

    cdef inline void _use(self, int64_t size) noexcept nogil:
        """Reserves ``size`` bytes. The lock is held."""
        cyp_change64(&self.in_use, size)
        if self.in_use > self.recent:
            self.recent = self.in_use

    cdef void reserve_now(self, int64_t size) noexcept nogil:
        """Reserves ``size`` bytes, beyond the budget if necessary.

        For records that are already accounted for and only move: a parked record that is appended to a
        batch, or a batch that is split. The thread that moves them would otherwise wait for itself.
        """
        pthread_mutex_lock(&self.lock)
        self._use(size)
        pthread_mutex_unlock(&self.lock)

    cdef int reserve(self, int64_t size, int64_t deadline_ns) except -1:
        """Reserves ``size`` bytes, waiting in the queue until ``deadline_ns``; returns 0 on timeout.

        On the main thread, Ctrl-C ends the wait, and the exception of its signal handler is raised.
        """
        cdef Waiter* me
        cdef bint granted
        cdef int64_t began
        cdef int64_t until
        if self.try_reserve(size):
            return 1
        # On the heap: while a greenlet waits, other greenlets use its stack.
        me = <Waiter*>calloc(1, sizeof(Waiter))
        if me == NULL:
            raise MemoryError("no memory to wait for memory")
        began = cyp_monotonic_ns()
        cyp_cond_init(&me.ready)
        me.need = size
        me.notify_fd = -1
        pthread_mutex_lock(&self.lock)
        self._join(me)
        pthread_mutex_unlock(&self.lock)
        try:
            while not cyp_peek32(&me.granted) and cyp_monotonic_ns() < deadline_ns:
                until = slice_end(deadline_ns)
                with nogil:
                    pthread_mutex_lock(&self.lock)
                    while not me.granted:
                        if wait_on(&me.ready, &self.lock, until):
                            break
                    granted = me.granted
                    pthread_mutex_unlock(&self.lock)
                # Signal handlers, and other greenlets, run without the lock. The waiter keeps its place.
                if not granted:
                    after_slice()
        except BaseException:
            self._end_wait(me, began, True)
            raise
        return self._end_wait(me, began, False)

    cdef bint _end_wait(self, Waiter* me, int64_t began, bint interrupted) noexcept:
        """Frees a waiter; returns whether its bytes are reserved.

        The wait can end while another thread grants the bytes. Both happen under the lock: either ``granted``
        is already set, and the bytes are reserved, or the waiter leaves the queue and is never granted.
        """
        cdef bint granted
        pthread_mutex_lock(&self.lock)
        granted = me.granted
        if granted and interrupted:
            cyp_change64(&self.in_use, -me.need)
            self._grant()
        elif not granted:
            cyp_change64(&self.exhausted, not interrupted)
            self._leave(me)
        cyp_add32(&self.waiting, -1)
        cyp_change64(&self.waited_ns, cyp_monotonic_ns() - began)
        pthread_mutex_unlock(&self.lock)
        pthread_cond_destroy(&me.ready)
        free(me)
        return granted

    cdef void _join(self, Waiter* me) noexcept nogil:
        """Appends a waiter to the queue, and grants its bytes if they are available. The lock is held."""
        me.next = NULL
        me.granted = False
        if self.last_waiter == NULL:
            self.first_waiter = me
        else:
            self.last_waiter.next = me
        self.last_waiter = me
        cyp_add32(&self.waiting, 1)
        self._grant()

    cdef void _leave(self, Waiter* me) noexcept nogil:
        """Removes a waiter that was not granted from the queue. The lock is held."""
        cdef Waiter* at = self.first_waiter
        if at == me:
            self.first_waiter = me.next
            if me.next == NULL:
                self.last_waiter = NULL
        else:
            # NULL only in a forked child, whose queue is a copy of the parent's.
            while at != NULL and at.next != me:
                at = at.next
            if at == NULL:
                return
            at.next = me.next
            if self.last_waiter == me:
                self.last_waiter = at
        # The next waiter may need fewer bytes than this one did.
        self._grant()

    cdef void _grant(self) noexcept nogil:
        """Grants available bytes to waiters, in FIFO order. The lock is held."""
        cdef Waiter* first
        cdef uint64_t one = 1
        while self.first_waiter != NULL:
            first = self.first_waiter
            if self.in_use + first.need > self.total_bytes:
                return
            self._use(first.need)
            self.first_waiter = first.next
            if first.next == NULL:
                self.last_waiter = NULL
            cyp_note32(&first.granted, True)
            if first.notify_fd >= 0:
                c_write(first.notify_fd, &one, 8)
            else:
                pthread_cond_signal(&first.ready)
                resume(&first.ready)

    cdef void unreserve(self, int64_t size) noexcept nogil:
        """Returns ``size`` bytes to the budget and grants waiters."""
        pthread_mutex_lock(&self.lock)
        cyp_change64(&self.in_use, -size)
        self._grant()
        pthread_mutex_unlock(&self.lock)

    cdef void _trim(self) noexcept nogil:
        """Frees cached buffers, large ones first, until the total fits the budget. The lock is held."""
        free_all(self._shed(self.total_bytes))

    cdef FreeBuffer* _shed(self, int64_t limit) noexcept nogil:
        """Removes cached buffers, large ones first, until the total is at most ``limit``. The lock is held.

        Returns the removed buffers as a chain, which the caller frees.
        """
        cdef int k
        cdef FreeBuffer* item
        cdef FreeBuffer* useless = NULL
        for k in range(CLASSES - 1, -1, -1):
            while self.free_lists[k] != NULL and self.in_use + self.cached > limit:
                item = self.free_lists[k]
                self.free_lists[k] = item.next
                self.cached -= <int64_t>1 << (MIN_SHIFT + k)
                item.next = useless
                useless = item
        return useless

    cdef void make_room(self) noexcept nogil:
        """Frees cached buffers if the budget requires it, for memory that does not come from ``allocate``."""
        pthread_mutex_lock(&self.lock)
        self._trim()
        pthread_mutex_unlock(&self.lock)

    cdef uint8_t* obtain(self, int64_t size, bint* reserved) noexcept nogil:
        """``try_reserve`` and ``allocate`` under one hold of the lock; sets ``reserved``."""
        cdef FreeBuffer* item = NULL
        pthread_mutex_lock(&self.lock)
        reserved[0] = self._fits(size)
        if reserved[0]:
            self._use(size)
            item = self._pop(size)
        pthread_mutex_unlock(&self.lock)
        return <uint8_t*>malloc(size) if item == NULL and reserved[0] else <uint8_t*>item

    cdef uint8_t* allocate(self, int64_t size) noexcept nogil:
        """Allocates a buffer of ``size`` bytes, which the caller has reserved; NULL if malloc fails."""
        cdef FreeBuffer* item
        pthread_mutex_lock(&self.lock)
        item = self._pop(size)
        pthread_mutex_unlock(&self.lock)
        return <uint8_t*>malloc(size) if item == NULL else <uint8_t*>item

    cdef FreeBuffer* _pop(self, int64_t size) noexcept nogil:
        """A buffer of ``size`` bytes, which are reserved, from a free list, or NULL. The lock is held."""
        cdef int k = size_class(size)
        cdef FreeBuffer* item = NULL
        if k >= 0 and (<int64_t>1 << (MIN_SHIFT + k)) == size:
            item = self.free_lists[k]
        if item != NULL:
            self.free_lists[k] = item.next
            self.cached -= size
            # For the next batch: the thread that released this buffer has used it last.
            prefetch_records(<const uint8_t*>item.next)
        else:
            # The reservation counted cached buffers as available. Free them if they exceed the budget now.
            self._trim()
        return item

    cdef void release(self, uint8_t* data, int64_t size) noexcept nogil:
        """Takes back a buffer of ``size`` bytes and its reservation."""
        self.release_all(chained(NULL, data, size))

    cdef void release_all(self, FreeBuffer* first) noexcept nogil:
        """Takes back a chain of buffers (``chained``) and their reservations."""
        cdef FreeBuffer* item
        cdef FreeBuffer* useless = NULL
        pthread_mutex_lock(&self.lock)
        while first != NULL:
            item = first
            first = item.next
            cyp_change64(&self.in_use, -item.size)
            useless = self._keep(item, useless)
        self._grant()
        pthread_mutex_unlock(&self.lock)
        free_all(useless)

    cdef FreeBuffer* _keep(self, FreeBuffer* item, FreeBuffer* useless) noexcept nogil:
        """Puts a buffer into the free list of its size, or in front of ``useless``, the chain to be freed.

        Returns that chain. The lock is held, and ``in_use`` no longer counts the buffer.
        """
        cdef int64_t size = item.size
        cdef int k = size_class(size)
        if (
            k >= 0
            and (<int64_t>1 << (MIN_SHIFT + k)) == size
            and self.in_use + self.cached + size <= self.total_bytes
            and (size > SMALL or self.cached + size <= MOST_CACHED_SMALL)
        ):
            item.next = self.free_lists[k]
            self.free_lists[k] = item
            self.cached += size
            return useless
        item.next = useless
        return item

    cdef void take_back(self, uint8_t* data, int64_t size) noexcept nogil:
        """Takes back a buffer whose contents moved to another buffer, which keeps the reservation."""
        cdef FreeBuffer* useless
        pthread_mutex_lock(&self.lock)
        useless = self._keep(chained(NULL, data, size), NULL)
        pthread_mutex_unlock(&self.lock)
        free(useless)

    # Giving memory back

    cdef int64_t _needed(self) noexcept nogil:
        """The bytes that records have needed recently, or may need at any time. The lock is held."""
        return max(self.recent, self.before, <int64_t>MOST_KEPT // 2)

    def turn(self, int64_t now_ns):
        """Notes how much memory was needed until ``now_ns``; returns whether to call ``give_back``.

        Returns True once records have needed less for a whole window, by at least half of ``MOST_KEPT``.
        """
        cdef bint due
        pthread_mutex_lock(&self.lock)
        if now_ns - self.turned_ns >= WINDOW_NS:
            self.turned_ns = now_ns
            self.before = self.recent
            self.peak = max(self.peak, self.recent)
            self.recent = self.in_use
        self.held = max(self.held, self._needed())
        due = self.held - self._needed() >= MOST_KEPT // 2
        pthread_mutex_unlock(&self.lock)
        return due

    def next_turn_ns(self):
        """Returns when to call ``turn`` next; None if there is no memory that may become unneeded."""
        cdef int64_t most
        cdef int64_t next_ns
        pthread_mutex_lock(&self.lock)
        most = max(self.held, self.recent)
        next_ns = self.turned_ns + WINDOW_NS
        pthread_mutex_unlock(&self.lock)
        return next_ns if most >= MOST_KEPT else None

    def give_back(self, bint everything=False):
        """Frees the cached buffers that were not needed recently, and returns free memory to the system.

        ``everything``: frees all cached buffers, because the producer is closed. Takes up to a second for
        600 MB, without the GIL. For a part of that time, glibc may block allocations by other threads.
        """
        cdef FreeBuffer* useless
        cdef int64_t needed
        cdef int64_t held
        with nogil:
            pthread_mutex_lock(&self.lock)
            needed = 0 if everything else self._needed()
            held = max(self.held, self._needed())
            useless = self._shed(needed)
            self.held = self._needed()
            pthread_mutex_unlock(&self.lock)
            free_all(useless)
            if held - needed >= MOST_KEPT // 2 and held >= MOST_KEPT:
                cyp_return_memory()

    # For tests and metrics.

    @property
    def used_bytes(self):
        """Reserved bytes."""
        return cyp_peek64(&self.in_use)

    @property
    def available_bytes(self):
        """Bytes that new records can use."""
        return max(0, self.total_bytes - cyp_peek64(&self.in_use))

    @property
    def cached_bytes(self):
        """Bytes in free lists; they are part of ``available_bytes``."""
        return self.cached

    @property
    def peak_bytes(self):
        """The highest number of bytes that were ever reserved at once."""
        cdef int64_t peak
        pthread_mutex_lock(&self.lock)
        peak = max(self.peak, self.recent)
        pthread_mutex_unlock(&self.lock)
        return peak

    @property
    def waiting_threads(self):
        """Threads and tickets that wait for memory now."""
        return cyp_load32(&self.waiting)

    @property
    def exhausted_total(self):
        """Waits for memory that timed out."""
        return cyp_peek64(&self.exhausted)

    @property
    def wait_time_ns(self):
        """Total time that threads have spent waiting for memory."""
        return cyp_peek64(&self.waited_ns)

    def acquire(self, int64_t size, timeout_s=0.0):
        """Allocates a buffer of at least ``size`` bytes, waiting for memory up to ``timeout_s`` seconds.

        Returns a ``Lease``, or None on timeout. For tests and tools: the producer itself calls the C
        functions.
        """
        cdef Lease lease
        cdef int64_t capacity = buffer_capacity(size)
        cdef int64_t deadline = deadline_in("timeout_s", timeout_s)
        cdef int ok
        ok = self.reserve(capacity, deadline)
        if not ok:
            return None
        lease = Lease.__new__(Lease)
        lease.data = self.allocate(capacity)
        if lease.data == NULL:
            self.unreserve(capacity)
            raise MemoryError(f"no memory for a buffer of {capacity} bytes")
        lease.pool = self
        lease.capacity = capacity
        return lease


cdef class Ticket:
    """A place in a pool's queue for ``size`` bytes, without a blocked thread.

    When the bytes are granted, 8 bytes are written to ``notify_fd``, an eventfd or the write end of a pipe.
    The caller can close ``notify_fd`` after ``cancel()``, or after the bytes were taken. A ticket can be used
    from any thread, one at a time, with the GIL.
    """

    def __cinit__(self, BufferPool pool not None, int64_t size, int notify_fd):
        if size > pool.total_bytes or notify_fd < 0:
            raise ValueError(
                f"size={size}, notify_fd={notify_fd}: size must be <= {pool.total_bytes} (total_bytes of the"
                " pool), and notify_fd >= 0"
            )
        self.pool = pool
        self.waiter.need = size
        self.waiter.notify_fd = notify_fd
        pthread_mutex_lock(&pool.lock)
        pool._join(&self.waiter)
        pthread_mutex_unlock(&pool.lock)
        self.open = True

    @property
    def granted(self):
        """Whether the bytes are reserved for the ticket."""
        return self.open and cyp_peek32(&self.waiter.granted) != 0

    cdef int64_t take(self) noexcept:
        """Passes the reservation to the caller; returns its bytes, or 0 if they are not granted."""
        if not self.granted:
            return 0
        self.open = False
        cyp_add32(&self.pool.waiting, -1)
        return self.waiter.need

    def cancel(self):
        """Leaves the queue, or returns the granted bytes to the pool. No effect on a closed ticket."""
        cdef int64_t unused
        if not self.open:
            return
        pthread_mutex_lock(&self.pool.lock)
        if not self.waiter.granted:
            self.open = False
            self.pool._leave(&self.waiter)
        pthread_mutex_unlock(&self.pool.lock)
        if not self.open:
            cyp_add32(&self.pool.waiting, -1)
            return
        unused = self.take()
        self.pool.unreserve(unused)

    def __dealloc__(self):
        if self.pool is not None:
            self.cancel()


cdef class Lease:
    """A buffer that a pool has allocated; a single call of ``release()`` returns it."""

    cdef BufferPool pool
    cdef uint8_t* data
    cdef readonly int64_t capacity

    def release(self):
        """Returns the buffer to the pool. A second call raises ValueError: the buffer may be in use again."""
        if self.data == NULL:
            raise ValueError("this buffer has already been released")
        cdef uint8_t* data = self.data
        self.data = NULL
        self.pool.release(data, self.capacity)

    def __dealloc__(self):
        if self.data != NULL:
            self.pool.release(self.data, self.capacity)
