"""Tracks incomplete batches, those without an outcome, and gives them their outcome.

Owns the accumulator's state; completing, failing, abandoning and re-enqueueing batches; and waiting until all
of them are complete. Does not own appending records (``record_accumulator``) or the decision on an outcome
(``control/batch_fate``).

Threads: ``flush`` and ``close`` run on application threads, the rest on the sender. The accumulator's mutex
guards all state; see ``record_accumulator``.
"""

from libc.stdlib cimport free

from cyproducer.accumulator.buffer_pool cimport FreeBuffer, chained
from cyproducer.base.clock cimport deadline_in
from cyproducer.base.greenlets cimport after_slice, broadcast, slice_end, wait_on
from cyproducer.futures.delivery cimport delivery_acknowledge, delivery_fail, delivery_release, delivery_spent
from cyproducer.base.meters cimport RECORDS_FAILED, RECORDS_RETRIED, count_acknowledged, count_records
from cyproducer.accumulator.ready_partitions cimport (
    dequeue,
    enqueue_sorted,
    hurry,
    refresh,
    stop_appends,
    withdraw,
)
from cyproducer.accumulator.sequences cimport settle, take_off_wire
from cyproducer.accumulator.batch_limit cimport probe_acknowledged
from cyproducer.accumulator.structures cimport NOWHERE, OPEN, SEALED, SEALING, Accumulator, Partition, Topic
from cyproducer.base.sync cimport (
    cyp_change32,
    cyp_change64,
    cyp_load32,
    cyp_monotonic_ns,
    cyp_peek32,
    cyp_peek64,
    cyp_note32,
    cyp_store32,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)


cdef enum:
    BLOCK = 32                # batches accounted for under one hold of the lock
    MOST_SPARE = 4096         # completed batches that are kept for reuse, with their deliveries 1.5 MB


cdef void note_offsets(Accumulator* a, const Batch* b, int64_t base_offset) noexcept nogil:
    """Records the offsets that the transaction has written to the batch's partition. Runs on the sender."""
    cdef Partition* p = b.partition
    if base_offset < 0:
        return
    if p.written_in != a.transaction:
        p.written_in = a.transaction
        p.first_offset = base_offset
    p.last_offset = base_offset + b.count - 1


cdef void free_spares(Batch* b) noexcept nogil:
    """Frees a list of batches that no one uses any more, with the deliveries that they keep for reuse."""
    cdef Batch* following
    while b != NULL:
        following = b.next
        free(b.delivery)
        free(b)
        b = following


cdef class Incomplete:
    """Base class of ``RecordAccumulator``: handles batches from their last record to their outcome.

    Thread-safe.
    """

    cdef void wake(self) noexcept nogil:
        if self.wake_function != NULL:
            self.wake_function(self.wake_context)

    # Completing

    cdef void _forget(self, Batch* b) noexcept nogil:
        """Removes a batch from the list of incomplete batches. The lock is held."""
        cdef Accumulator* a = &self.c
        if b.older != NULL:
            b.older.newer = b.newer
        else:
            a.oldest = b.newer
        if b.newer != NULL:
            b.newer.older = b.older
        else:
            a.newest = b.older
        b.older = NULL
        b.newer = NULL
        cyp_change64(&a.incomplete, -1)
        if a.flushing:
            broadcast(&a.progress)

    cdef void _free(self, Batch* b) noexcept nogil:
        """Frees a batch and releases its buffer. No lock is held; no queue, request or list contains it."""
        self.pool.release(b.data, b.capacity)
        delivery_release(b.delivery, b.held)
        free(b)

    cdef void complete(self, Batch* b, int64_t base_offset, int64_t log_append_ms) noexcept nogil:
        """Completes an acknowledged batch that was in a request. Runs without the GIL."""
        self.acknowledge(b, base_offset, log_append_ms)
        self.account(&b, 1)

    cdef void acknowledge(self, Batch* b, int64_t base_offset, int64_t log_append_ms) noexcept nogil:
        """Completes the futures of an acknowledged batch. Call ``account`` afterwards, not before: when a
        flush returns, every future must be done.
        """
        if not b.abandoned:
            delivery_acknowledge(b.delivery, base_offset, log_append_ms)
        if self.c.transaction > 0:
            note_offsets(&self.c, b, base_offset)

    cdef void account(self, Batch** batches, int32_t count) noexcept nogil:
        """Removes acknowledged batches from the accumulator's state, and frees them.

        Takes the lock once per BLOCK batches: locking once per batch would contend with every ``send()``. The
        batches, and their deliveries if no future is left, are kept for reuse: if this thread freed what an
        application thread has allocated, and that thread allocated the next batch meanwhile, both would wait
        for malloc's lock.
        """
        cdef Accumulator* a = &self.c
        cdef Batch* b
        cdef Batch* useless = NULL
        cdef FreeBuffer* buffers = NULL
        cdef int32_t i
        cdef int32_t done = 0
        for i in range(count):
            b = batches[i]
            buffers = chained(buffers, b.data, b.capacity)
            if not delivery_spent(b.delivery, b.held):
                b.delivery = NULL
        while done < count:
            pthread_mutex_lock(&a.lock)
            for i in range(done, min(done + BLOCK, count)):
                b = batches[i]
                take_off_wire(a, b)
                settle(b)
                b.partition.known = 1
                if b.probes:
                    probe_acknowledged(a, b)
                if not b.abandoned:
                    count_acknowledged(
                        &a.meters, &b.partition.topic.meter,
                        b.count, b.size, b.raw_size, b.largest, b.created_ns,
                    )
                    self._forget(b)
                if b.partition.first != NULL and b.partition.membership == NOWHERE:
                    refresh(a, b.partition)
                if a.spares < MOST_SPARE:
                    b.next = a.spare
                    a.spare = b
                    cyp_change32(&a.spares, 1)
                else:
                    b.next = useless
                    useless = b
            pthread_mutex_unlock(&a.lock)
            done += BLOCK
        self.pool.release_all(buffers)
        free_spares(useless)

    cdef void _count(self, Batch* b, int which) noexcept nogil:
        """Counts a batch's records in the meter ``which`` (failed or retried). The lock is held."""
        count_records(&self.c.meters, &b.partition.topic.meter, which, b.count, self.clock.now_ns())

    cdef int fail(self, Batch* b, object error) except -1:
        """Fails a batch whose request has ended, or that is still in its partition's queue."""
        cdef Accumulator* a = &self.c
        if not b.abandoned:
            delivery_fail(b.delivery, error)
        pthread_mutex_lock(&a.lock)
        if b.in_request:
            take_off_wire(a, b)
        else:
            withdraw(a, b.partition)
            dequeue(a, b.partition, b)
        settle(b)
        refresh(a, b.partition)
        if not b.abandoned:
            self._count(b, RECORDS_FAILED)
            self._forget(b)
        pthread_mutex_unlock(&a.lock)
        self._free(b)
        return 0

    cdef int abandon(self, Batch* b, object error) except -1:
        """Fails the records of an in-flight batch that timed out; its memory stays until the request ends.

        Its sequences stay in use: the response, if one arrives, shows whether they are in the log.
        """
        delivery_fail(b.delivery, error)
        pthread_mutex_lock(&self.c.lock)
        b.abandoned = 1
        self._count(b, RECORDS_FAILED)
        self._forget(b)
        pthread_mutex_unlock(&self.c.lock)
        return 0

    cdef int requeue(self, Batch* b, int64_t retry_at_ns) except -1:
        """Puts a batch back at the front of its partition's queue, to be sent again at ``retry_at_ns``."""
        cdef Accumulator* a = &self.c
        cdef Partition* p = b.partition
        pthread_mutex_lock(&a.lock)
        # The partition's other in-flight requests end first: a younger batch that the broker appends now must
        # not be followed by this one, and a younger batch that fails is re-enqueued behind this one.
        p.recovering = 1
        take_off_wire(a, b)
        withdraw(a, p)
        enqueue_sorted(a, p, b)
        if retry_at_ns > p.retry_at_ns:
            p.retry_at_ns = retry_at_ns
        refresh(a, p)
        self._count(b, RECORDS_RETRIED)
        pthread_mutex_unlock(&a.lock)
        return 0

    cdef Batch* overdue(self, int64_t created_before_ns) noexcept nogil:
        """The oldest batch created at or before that time, in flight or not; NULL if there is none.

        Closes the batch in the critical section that finds it. If the batch stayed open, an append could fill
        it, and the appending thread would compress it while the caller fails and frees it. A batch that is
        being compressed is skipped until compression has finished.
        """
        cdef Batch* b
        cdef Batch* found = NULL
        pthread_mutex_lock(&self.c.lock)
        b = self.c.oldest
        while b != NULL and b.created_ns <= created_before_ns:
            if b.state != SEALING:
                found = b
                if b.state == OPEN:
                    stop_appends(&self.c, b.partition)
                    b.state = SEALED
                break
            b = b.newer
        pthread_mutex_unlock(&self.c.lock)
        return found

    cdef Batch* unfinished_batch(self, bint queued, bint in_flight, bint* compressing) noexcept nogil:
        """The oldest batch that is in a queue, if ``queued``, or in flight, if ``in_flight``; or NULL.

        Closes it, and skips batches that are being compressed, for the reasons given in ``overdue``. Sets
        ``compressing`` if it skips a batch that would match otherwise. If that were checked in a separate
        critical section, both sections would miss a batch whose compression ends between them.
        """
        cdef Batch* b
        compressing[0] = False
        pthread_mutex_lock(&self.c.lock)
        b = self.c.oldest
        while b != NULL:
            if in_flight if b.in_request else queued:
                if b.state == SEALING:
                    compressing[0] = True
                else:
                    break
            b = b.newer
        if b != NULL and b.state == OPEN:
            stop_appends(&self.c, b.partition)
            b.state = SEALED
        pthread_mutex_unlock(&self.c.lock)
        return b

    # Flushing and closing

    def flush(self, timeout_s):
        """Waits until all records accepted before the call are complete; returns False on timeout."""
        cdef Accumulator* a = &self.c
        cdef int64_t deadline = deadline_in("timeout_s", timeout_s)
        cdef int64_t until
        cdef int64_t target
        cdef bint placed = False
        cdef bint done = False
        cdef bint late = False
        pthread_mutex_lock(&a.lock)
        a.flushing += 1
        hurry(a)
        target = a.next_id
        placed = not self._parked_before(target)
        pthread_mutex_unlock(&a.lock)
        self.wake()
        try:
            while not done and not late:
                until = slice_end(deadline)
                with nogil:
                    pthread_mutex_lock(&a.lock)
                    while True:
                        if not placed and not self._parked_before(target):
                            # The parked records are in batches now, with higher ids than their own.
                            placed = True
                            target = a.next_id
                        done = placed and (a.oldest == NULL or a.oldest.id >= target)
                        if done or wait_on(&a.progress, &a.lock, until):
                            break
                    pthread_mutex_unlock(&a.lock)
                after_slice()
                late = cyp_monotonic_ns() >= deadline
        finally:
            pthread_mutex_lock(&a.lock)
            a.flushing -= 1
            pthread_mutex_unlock(&a.lock)
        return done

    cdef bint _parked_before(self, int64_t id) noexcept nogil:
        """Whether a record with an id below ``id`` is still parked. The lock is held."""
        cdef Topic* t = self.c.first_waiting
        while t != NULL:
            if t.first_parked.id < id:
                return True
            t = t.next_waiting
        return False

    def close(self):
        """Stops accepting records and makes all batches sendable. Idempotent."""
        pthread_mutex_lock(&self.c.lock)
        # Threads that wait for room in the callback queue read ``closed`` without this lock.
        cyp_store32(&self.c.closed, 1)
        cyp_note32(&self.c.refusing, 1)
        hurry(&self.c)
        # Threads in await_parking() stop waiting.
        broadcast(&self.c.progress)
        pthread_mutex_unlock(&self.c.lock)
        self.wake()

    @property
    def closed(self):
        """Whether ``close()`` was called."""
        return bool(cyp_load32(&self.c.closed))

    @property
    def incomplete_batches(self):
        """Number of batches that are queued or in flight."""
        return cyp_peek64(&self.c.incomplete)

    @property
    def spare_batches(self):
        """Number of completed batches that are kept for reuse."""
        return cyp_peek32(&self.c.spares)

    @property
    def parking_bytes(self):
        """Bytes that the records of a single topic without metadata can still take."""
        return max(0, self.c.most_parked_bytes // 2 - self.c.parked_bytes)

    @property
    def parked_records(self):
        """Number of records whose topic has no metadata yet."""
        cdef int64_t parked
        pthread_mutex_lock(&self.c.lock)
        parked = self.c.parked
        pthread_mutex_unlock(&self.c.lock)
        return parked
