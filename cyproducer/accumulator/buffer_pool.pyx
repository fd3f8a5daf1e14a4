"""The bound on memory: ``buffer_memory`` bytes, lent out and taken back.

Owns: the count of bytes in use, the free lists, and the queue of threads that wait for memory.
Does not own: what is written into a buffer, nor when a batch is done with it.

Two things are kept apart. A *reservation* is a number: bytes taken from the budget. A *buffer* is
memory of exactly that many bytes, from a free list or from malloc. So a thread waits for numbers,
first come first served, and memory itself is touched outside the wait.

Every buffer's size is a power of two from 512 bytes up (``buffer_capacity``), so that a returned
buffer fits the next batch of its class. Bytes in free lists count as available: a reservation
trims them when the total would pass the budget.

Small buffers are no better kept here than with malloc, which may give their pages back: one record for each
of ten thousand partitions must not leave as many buffers.

Any thread may call anything here, with or without the GIL.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from cyproducer.base.clock cimport deadline_in
from cyproducer.base.sync cimport (
    SIGNAL_SLICE_NS,
    cyp_add32,
    cyp_cond_init,
    cyp_cond_wait_until,
    cyp_load32,
    cyp_monotonic_ns,
    pthread_cond_destroy,
    pthread_cond_signal,
    pthread_mutex_destroy,
    cyp_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)


cdef extern from "<Python.h>":
    int PyErr_CheckSignals()

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* data, size_t size)


cdef int check_signals() noexcept nogil:
    """Runs pending signal handlers; nonzero, and the exception is set, where one raised."""
    with gil:
        return PyErr_CheckSignals()


cdef enum:
    SMALL = 8192
    MOST_CACHED_SMALL = 1 << 20


cdef inline int size_class(int64_t capacity) noexcept nogil:
    """The free list of a capacity, or -1 where it is too large to be kept."""
    cdef int k = 0
    while (<int64_t>1 << (MIN_SHIFT + k)) < capacity:
        k += 1
        if k == CLASSES:
            return -1
    return k


cdef int64_t buffer_capacity(int64_t size) noexcept nogil:
    """The size of the buffer that holds ``size`` bytes: the next power of two, at least 512.

    Above 64 KiB, the next multiple of 64 KiB: doubling a large record would waste the budget.
    """
    cdef int64_t capacity = 1 << MIN_SHIFT
    if size > 65536:
        return (size + 65535) & ~<int64_t>65535
    while capacity < size:
        capacity <<= 1
    return capacity


cdef FreeBuffer* chained(FreeBuffer* rest, uint8_t* data, int64_t size) noexcept nogil:
    """A buffer in front of others that are to be released with it."""
    cdef FreeBuffer* item = <FreeBuffer*>data
    item.next = rest
    item.size = size
    return item


cdef class BufferPool:
    """``total_bytes`` of memory for records that were accepted and are not yet acknowledged.

    Thread-safe. Counted in bytes of buffers, that is with the unused rest of open batches.
    """

    def __cinit__(self, int64_t total_bytes):
        if total_bytes < 0:
            raise ValueError(f"total_bytes={total_bytes}: must be >= 0")
        cyp_mutex_init(&self.lock)
        self.total_bytes = total_bytes

    def __dealloc__(self):
        cdef FreeBuffer* item
        for k in range(CLASSES):
            while self.free_lists[k] != NULL:
                item = self.free_lists[k]
                self.free_lists[k] = item.next
                free(item)
        pthread_mutex_destroy(&self.lock)

    cdef bint try_reserve(self, int64_t size) noexcept nogil:
        """Takes ``size`` bytes from the budget if they are there and nobody waits; never blocks."""
        cdef bint ok = False
        pthread_mutex_lock(&self.lock)
        if self.first_waiter == NULL and self.in_use + size <= self.total_bytes:
            self.in_use += size
            if self.in_use > self.peak:
                self.peak = self.in_use
            ok = True
        pthread_mutex_unlock(&self.lock)
        return ok

    cdef void reserve_now(self, int64_t size) noexcept nogil:
        """Takes ``size`` bytes even beyond the budget.

        For bytes that change their place, not their amount: a parked record that moves into a
        batch, a batch that is split. Waiting there would be waiting on oneself.
        """
        pthread_mutex_lock(&self.lock)
        self.in_use += size
        if self.in_use > self.peak:
            self.peak = self.in_use
        pthread_mutex_unlock(&self.lock)

    cdef int reserve(self, int64_t size, int64_t deadline_ns) except -1 nogil:
        """Takes ``size`` bytes, waiting in line until ``deadline_ns``; 0 when the time ran out.

        Ctrl-C ends the wait with its exception, on the main thread.

        A race that the hand-over settles: the waiter's time runs out while another thread is
        granting it. Both happen under the lock, so either ``granted`` is set when the waiter wakes
        and the bytes are its own, or it has left the queue and is never granted.
        """
        cdef Waiter me
        cdef bint granted
        cdef bint interrupted = False
        cdef int64_t began
        cdef int64_t now
        if self.try_reserve(size):
            return 1
        began = cyp_monotonic_ns()
        cyp_cond_init(&me.ready)
        me.need = size
        me.notify_fd = -1
        pthread_mutex_lock(&self.lock)
        self._join(&me)
        while not me.granted and not interrupted:
            now = cyp_monotonic_ns()
            if now >= deadline_ns:
                break
            if cyp_cond_wait_until(&me.ready, &self.lock, min(deadline_ns, now + SIGNAL_SLICE_NS)):
                # The place in line is kept: only the lock is given up while signals are looked at.
                pthread_mutex_unlock(&self.lock)
                interrupted = check_signals() != 0
                pthread_mutex_lock(&self.lock)
        granted = me.granted
        if granted and interrupted:
            self.in_use -= size
            self._grant()
        elif not granted:
            self.exhausted += not interrupted
            self._leave(&me)
        cyp_add32(&self.waiting, -1)
        self.waited_ns += cyp_monotonic_ns() - began
        pthread_mutex_unlock(&self.lock)
        pthread_cond_destroy(&me.ready)
        return -1 if interrupted else granted

    cdef void _join(self, Waiter* me) noexcept nogil:
        """Puts a waiter at the end of the line, and gives it what it needs if it can. The lock is held."""
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
        """Takes a waiter that was not granted anything out of the line. The lock is held."""
        cdef Waiter* at = self.first_waiter
        if at == me:
            self.first_waiter = me.next
            if me.next == NULL:
                self.last_waiter = NULL
        else:
            # NULL only in a forked child, whose line is the parent's.
            while at != NULL and at.next != me:
                at = at.next
            if at == NULL:
                return
            at.next = me.next
            if self.last_waiter == me:
                self.last_waiter = at
        # The next in line may ask for less than this one did.
        self._grant()

    cdef void _grant(self) noexcept nogil:
        """Gives what is available to the threads that wait longest. The lock is held."""
        cdef Waiter* first
        cdef uint64_t one = 1
        while self.first_waiter != NULL:
            first = self.first_waiter
            if self.in_use + first.need > self.total_bytes:
                return
            self.in_use += first.need
            if self.in_use > self.peak:
                self.peak = self.in_use
            self.first_waiter = first.next
            if first.next == NULL:
                self.last_waiter = NULL
            first.granted = True
            if first.notify_fd >= 0:
                c_write(first.notify_fd, &one, 8)
            else:
                pthread_cond_signal(&first.ready)

    cdef void unreserve(self, int64_t size) noexcept nogil:
        """Gives ``size`` bytes back to the budget, and to whoever waits for them."""
        pthread_mutex_lock(&self.lock)
        self.in_use -= size
        self._grant()
        pthread_mutex_unlock(&self.lock)

    cdef void _trim(self) noexcept nogil:
        """Frees cached buffers, large ones first, until all fits the total. The lock is held."""
        cdef int k
        cdef FreeBuffer* item
        for k in range(CLASSES - 1, -1, -1):
            while self.free_lists[k] != NULL and self.in_use + self.cached > self.total_bytes:
                item = self.free_lists[k]
                self.free_lists[k] = item.next
                self.cached -= <int64_t>1 << (MIN_SHIFT + k)
                free(item)

    cdef void make_room(self) noexcept nogil:
        """Frees cached buffers for a reservation whose memory does not come from ``allocate``."""
        pthread_mutex_lock(&self.lock)
        self._trim()
        pthread_mutex_unlock(&self.lock)

    cdef uint8_t* allocate(self, int64_t size) noexcept nogil:
        """Memory of ``size`` bytes that were reserved before; NULL where the machine has none left."""
        cdef int k = size_class(size)
        cdef FreeBuffer* item = NULL
        pthread_mutex_lock(&self.lock)
        if k >= 0 and (<int64_t>1 << (MIN_SHIFT + k)) == size:
            item = self.free_lists[k]
        if item != NULL:
            self.free_lists[k] = item.next
            self.cached -= size
        else:
            # The reservation counted what lies in free lists as available: now it is needed.
            self._trim()
        pthread_mutex_unlock(&self.lock)
        if item != NULL:
            return <uint8_t*>item
        return <uint8_t*>malloc(size)

    cdef void release(self, uint8_t* data, int64_t size) noexcept nogil:
        """Takes a buffer of ``size`` bytes back, and its reservation with it."""
        self.release_all(chained(NULL, data, size))

    cdef void release_all(self, FreeBuffer* first) noexcept nogil:
        """Takes buffers back that are ``chained``, and their reservations with them."""
        cdef FreeBuffer* item
        cdef FreeBuffer* useless = NULL
        pthread_mutex_lock(&self.lock)
        while first != NULL:
            item = first
            first = item.next
            self.in_use -= item.size
            useless = self._keep(item, useless)
        self._grant()
        pthread_mutex_unlock(&self.lock)
        while useless != NULL:
            item = useless
            useless = item.next
            free(item)

    cdef FreeBuffer* _keep(self, FreeBuffer* item, FreeBuffer* useless) noexcept nogil:
        """Puts a buffer into the free list of its size, or in front of the useless ones, which it returns.

        The lock is held, and the buffer's bytes are not in use any more.
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
        """Takes a buffer back whose bytes moved into another one; its reservation goes on for that one."""
        cdef FreeBuffer* useless
        pthread_mutex_lock(&self.lock)
        useless = self._keep(chained(NULL, data, size), NULL)
        pthread_mutex_unlock(&self.lock)
        free(useless)

    # What tests and metrics see.

    @property
    def used_bytes(self):
        """Bytes that are lent out."""
        return self.in_use

    @property
    def available_bytes(self):
        """Bytes that a new record could have."""
        return max(0, self.total_bytes - self.in_use)

    @property
    def cached_bytes(self):
        """Bytes of the available ones that lie ready in free lists."""
        return self.cached

    @property
    def peak_bytes(self):
        """The most that was ever lent out at once."""
        return self.peak

    @property
    def waiting_threads(self):
        """Threads that wait for memory now."""
        return cyp_load32(&self.waiting)

    @property
    def exhausted_total(self):
        """Waits for memory that ended with their time."""
        return self.exhausted

    @property
    def wait_time_ns(self):
        """Time that threads have spent waiting for memory, added up."""
        return self.waited_ns

    def acquire(self, int64_t size, timeout_s=0.0):
        """Lends a buffer of at least ``size`` bytes, waiting in line up to ``timeout_s`` seconds.

        Returns a ``Lease``, or None when the time ran out. For tests and tools: the producer's own
        path calls the C functions.
        """
        cdef Lease lease
        cdef int64_t capacity = buffer_capacity(size)
        cdef int64_t deadline = deadline_in("timeout_s", timeout_s)
        cdef int ok
        with nogil:
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
    """A place in the line for ``size`` bytes of a pool, without a thread that waits there.

    ``notify_fd``, an eventfd or the end of a pipe, is written to once the bytes are the ticket's. It may be
    closed once the ticket was cancelled, or its bytes were taken. For any one thread with the GIL.
    """

    def __cinit__(self, BufferPool pool not None, int64_t size, int notify_fd):
        if size > pool.total_bytes or notify_fd < 0:
            raise ValueError(f"size={size}, notify_fd={notify_fd}: a pool of {pool.total_bytes} bytes")
        self.pool = pool
        self.waiter.need = size
        self.waiter.notify_fd = notify_fd
        pthread_mutex_lock(&pool.lock)
        pool._join(&self.waiter)
        pthread_mutex_unlock(&pool.lock)
        self.open = True

    @property
    def granted(self):
        """Whether the bytes are the ticket's."""
        return self.open and self.waiter.granted

    cdef int64_t take(self) noexcept:
        """Hands the bytes over, whose reservation is the caller's then; 0 where they are not there."""
        if not self.granted:
            return 0
        self.open = False
        cyp_add32(&self.pool.waiting, -1)
        return self.waiter.need

    def cancel(self):
        """Gives the place, or the bytes, to whoever is next. A ticket that is over is left as it is."""
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
    """A buffer on loan; ``release()`` gives it back, once."""

    cdef BufferPool pool
    cdef uint8_t* data
    cdef readonly int64_t capacity

    def release(self):
        """Gives the buffer back. A second call is an error: the bytes may be another's by then."""
        if self.data == NULL:
            raise ValueError("this buffer was released before")
        cdef uint8_t* data = self.data
        self.data = NULL
        self.pool.release(data, self.capacity)

    def __dealloc__(self):
        if self.data != NULL:
            self.pool.release(self.data, self.capacity)
