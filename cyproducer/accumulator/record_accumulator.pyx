"""Where records gather into batches: a queue of batches a partition, and one a topic before that.

Owns: appending, sealing (compression), completing, failing and re-queueing batches, and the bytes they
take from the pool. Does not own: which partition is ready (``ready_partitions``), where a keyless record goes
(``builtin_partitioner``), what the cluster looks like (``topology``), nor sending.

Threads: ``append`` runs on any application thread, usually with the GIL; the rest on the sender. One mutex
guards it all. It is held for the tens of nanoseconds of an append, never while compressing, sending,
waiting or asking for the GIL.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cimport cython

from cyproducer.accumulator.buffer_pool cimport BufferPool, buffer_capacity
from cyproducer.base.clock cimport Clock
from cyproducer.futures.completion cimport CompletionQueue
from cyproducer.futures.delivery cimport delivery_new
from cyproducer.base.meters cimport (
    BATCH_BYTES,
    BATCHES_SENT,
    BATCHES_SPLIT,
    FLUSH_NS,
    METADATA_WAIT_NS,
    RAW_BYTES,
    RECORDS_FAILED,
    RECORDS_RETRIED,
    RECORDS_SENT,
    meter_free,
    meters_free,
    meters_init,
    meters_turn,
)
from cyproducer.accumulator.builtin_partitioner cimport keyless_number, place
from cyproducer.accumulator.ready_partitions cimport (
    close_batch,
    enqueue,
    hurry,
    note_work,
    refresh,
)
from cyproducer.accumulator.batch_limit cimport probe
from cyproducer.accumulator.structures cimport OPEN, SEALED, SEALING, Accumulator, Node
from cyproducer.base.sync cimport (
    cyp_cond_init,
    cyp_lock_queued,
    cyp_ms_ns,
    pthread_cond_destroy,
    pthread_mutex_destroy,
    cyp_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.accumulator.topology cimport TopicInfo, make_topic
from cyproducer.records.hashing cimport rule_number
from cyproducer.records.record_batch cimport BATCH_HEADER, USUAL_SLACK, put_record, record_bound

import os

from cyproducer.user_thread import Log

log = Log("cyproducer")

cdef double RATIO_MARGIN = 1.05   # the estimate is an average: most batches are to fit

cdef enum:
    FIRST_CAPACITY = 512      # a partition's first batch; later ones start at the size of the last
    # Before compression a batch has at most so many times the bytes that it may have on the wire. Very
    # compressible records would otherwise make raw batches of megabytes: a few fill the pool, and the thread
    # that fills one compresses all of it in one send().
    MOST_RAW = 8
    PARKED_PART = 4           # of buffer_memory, what records without metadata may take
    # References that a batch takes to its delivery at the start. It hands one to each record under the lock
    # it has anyway, and gives back what is left: an atomic operation a batch instead of one a record.
    MOST_HELD = 1 << 30


cdef inline int64_t sent_limit(const Accumulator* a, const Topic* t) noexcept nogil:
    """How many bytes a topic's next batch may have on the wire."""
    return t.batch_limit if t.batch_limit > 0 else a.batch_size


cdef inline int64_t raw_limit(
    const Accumulator* a, const Topic* t, int64_t limit, int64_t buffer_memory
) noexcept nogil:
    """How many bytes a batch may take before compression that may have ``limit`` on the wire.

    No more than a quarter of the pool: a batch that fills all of it is filled, sent and acknowledged in turn,
    never one while another is on its way.
    """
    if a.codec != 0:
        limit = <int64_t>(limit / max(t.compression_ratio * RATIO_MARGIN, 1.0 / MOST_RAW))
    return min(limit, buffer_memory // 4)


cdef void learn_ratio(Accumulator* a, Topic* t, double actual) noexcept nogil:
    """Moves the topic's estimate towards what compression gave, slowly down and faster up.

    Too high an estimate costs some batching, too low a one a batch that the broker refuses.
    """
    pthread_mutex_lock(&a.lock)
    if actual > t.compression_ratio:
        t.compression_ratio = min(actual, t.compression_ratio + 0.05)
    else:
        t.compression_ratio = max(actual, t.compression_ratio - 0.005)
    pthread_mutex_unlock(&a.lock)


@cython.final
@cython.no_gc_clear
cdef class RecordAccumulator(Incomplete):
    """Records that were accepted and are not yet acknowledged. Thread-safe.

    ``options``: a ``ProducerConfig``, or any object with the attributes that are read below.
    ``ordered``: without idempotence a partition has one batch in flight, so that a retry changes no order.
    ``stream_linger_ms``: how long a partition lingers instead where ``linger_ms`` is 0 and records stream in.
    ``compressor``: a ``Compressor`` or None. ``spec``: a ``PartitionerSpec``, which says how keys hash and
    where keyless records go, or None: the default partitioner's. ``seed`` of the choices among partitions;
    None: the system's randomness.
    """

    def __cinit__(
        self,
        options,
        BufferPool pool not None,
        Clock clock not None,
        CompletionQueue completions not None,
        *,
        bint ordered=True,
        double stream_linger_ms=0,
        compressor=None,
        spec=None,
        seed=None,
    ):
        cdef int64_t batch_size = options.batch_size
        cyp_mutex_init(&self.c.lock)
        cyp_cond_init(&self.c.progress)
        self.pool = pool
        self.clock = clock
        self.completions = completions
        self.compressor = compressor
        self.key_hash = rule_number("java" if spec is None else spec.key_hash)
        self.keyless = keyless_number("sticky" if spec is None else spec.keyless)
        self.topics = {}
        self.sequences = {}
        self.unused_topics = []
        self.c.batch_size = max(batch_size, BATCH_HEADER + 1)
        self.c.linger_ns = cyp_ms_ns(options.linger_ms)
        self.c.longest_stream_ns = cyp_ms_ns(stream_linger_ms)
        self.c.stream_linger_ns = self.c.linger_ns or self.c.longest_stream_ns
        self.c.availability_timeout_ns = cyp_ms_ns(options.partitioner_availability_timeout_ms)
        self.c.single_broker_ns = cyp_ms_ns(options.partitioner_single_broker_ms)
        self.c.single_broker_id = -1
        self.c.adaptive_partitioning = options.partitioner_adaptive_partitioning_enable
        self.c.codec = compressor.codec_id if compressor is not None else 0
        self.c.next_id = 1
        self.c.idempotent = options.enable_idempotence
        self.c.one_in_flight = ordered and not options.enable_idempotence
        self.c.producer_id = -1
        self.c.producer_epoch = -1
        self.c.random = (int.from_bytes(os.urandom(8), "big") if seed is None else seed) | 1
        self.c.completions = &completions.entries
        self.c.waiting = &pool.waiting
        self.c.most_parked_bytes = pool.total_bytes // PARKED_PART
        self.wake_function = NULL
        if meters_init(
            &self.c.meters, options.metrics_num_samples, max(1, cyp_ms_ns(options.metrics_sample_window_ms)),
            clock.now_ns(), &pool.exhausted, &pool.waited_ns,
        ):
            raise MemoryError(
                f"no memory for metrics of {options.metrics_num_samples} samples: lower metrics_num_samples"
            )

    def __dealloc__(self):
        # Whoever holds futures of these batches has given up on the producer without closing it.
        cdef Batch* b = self.c.oldest
        cdef Batch* newer
        cdef Node* n = self.c.nodes
        cdef Node* following
        while b != NULL:
            newer = b.newer
            self._free(b)
            b = newer
        while n != NULL:
            following = n.next
            meter_free(&n.meter)
            free(n)
            n = following
        meters_free(&self.c.meters)
        pthread_cond_destroy(&self.c.progress)
        pthread_mutex_destroy(&self.c.lock)

    cdef TopicInfo topic(self, str name):
        """The topic of that name, made without partitions where it is new. Called with the GIL."""
        cdef TopicInfo state = self.topics.get(name)
        cdef TopicInfo made
        if state is None:
            made = make_topic(&self.c, name, self.key_hash, self.keyless)
            # setdefault, not assignment: two threads may meet a new topic at once.
            state = self.topics.setdefault(name, made)
            if state is not made:
                # It is in the accumulator's list already, and stays there.
                self.unused_topics.append(made)
        return state

    # Appending

    cdef int append(
        self, Topic* t, int32_t partition, const RecordView* r, int64_t* grant, bint force, Appended* out
    ) noexcept nogil:
        """Writes a record into its partition's open batch; an ``AppendResult``.

        ``partition`` -1: to be chosen. ``grant``: bytes reserved by the caller for a new batch, set to 0
        when used. ``force``: takes memory beyond the budget, for records that were accounted for before.
        """
        cdef Accumulator* a = &self.c
        cdef int result
        out.sealing = NULL
        out.wake = False
        # Whoever sends one record has the GIL.
        cyp_lock_queued(&a.lock, &a.queued)
        if force:
            # A parked record: it was accepted before any close, and only it sees the partitions yet.
            t.partition_count = t.designating
            result = self._append(t, partition, r, grant, True, out)
            t.partition_count = 0
        elif a.closed:
            result = IS_CLOSED
        elif t.partition_count == 0:
            result = TOPIC_UNKNOWN
        else:
            result = self._append(t, partition, r, grant, False, out)
        if out.wake:
            out.wake = note_work(a)
        pthread_mutex_unlock(&a.lock)
        return result

    cdef inline int _append(
        self, Topic* t, int32_t partition, const RecordView* r, int64_t* grant, bint force, Appended* out
    ) noexcept nogil:
        """``append`` under the lock."""
        cdef Accumulator* a = &self.c
        cdef Partition* p
        cdef Batch* b
        cdef int64_t bound = record_bound(r.key_size, r.value_size, r.headers_size)
        cdef int64_t capacity
        cdef int64_t hint
        cdef int64_t least
        cdef int64_t written
        cdef int64_t timestamp = r.timestamp_ms
        cdef uint8_t* at
        if partition < 0:
            partition = place(a, self.clock, t, r)
            t.sticky_bytes += bound - USUAL_SLACK
        elif partition >= t.partition_count:
            return NO_SUCH_PARTITION
        p = t.partitions[partition]
        b = p.last
        # Not the capacity alone: that is a power of two, and may be well above batch_size.
        if b != NULL and b.state == OPEN and b.size + bound > min(b.capacity, b.limit):
            hint = 0
            if b.size + bound <= b.limit:
                hint = buffer_capacity(min(max(b.size + bound, b.capacity * 2), b.limit))
            if hint == 0 or not self._grow(b, hint, b.size + bound, force):
                close_batch(a, b)
                # A batch that is closed because memory is lacking says nothing about the size of the next
                # one: 1. The pool is full, and batches close early.  2. The next ones begin as small as
                # these, and can't grow either.  3. Requests carry less and less, and the pool stays full.
                p.hint = max(p.hint, hint)
                if b.state == SEALING:
                    out.sealing = b
                out.wake = refresh(a, p)
        if b == NULL or b.state != OPEN:
            least = buffer_capacity(bound + BATCH_HEADER)
            if grant[0] >= least:
                capacity = grant[0]
                grant[0] = 0
            elif force:
                capacity = least
                self.pool.reserve_now(capacity)
            else:
                capacity = self._first_capacity(p, least, FIRST_CAPACITY)
                if not self.pool.try_reserve(capacity):
                    hurry(a)
                    out.wake = True
                    out.need = self._first_capacity(p, least, LEAST_WAIT)
                    return NEED_MEMORY
            b = self._new_batch(p, capacity, bound + BATCH_HEADER, self.clock.now_ns())
            if b == NULL:
                self.pool.unreserve(capacity)
                return OUT_OF_MEMORY
            if timestamp < 0:
                timestamp = self.clock.wall_ms()
                b.clock_ms = timestamp
            b.base_timestamp = timestamp
            b.max_timestamp = timestamp
            t.last_used_ns = b.created_ns
            enqueue(p, b)
            if refresh(a, p):
                out.wake = True
        if timestamp < 0:
            # Reading the exact time would be a tenth of what a record costs. A batch begins with it, and what
            # comes soon behind is not older.
            timestamp = dated(b, self.clock.ticked_wall_ms())
        at = b.data + b.size
        written = put_record(
            at, timestamp - b.base_timestamp, b.count,
            r.key, r.key_size, r.value, r.value_size, r.headers, r.headers_size,
        ) - at
        b.size += written
        if written > b.largest:
            b.largest = written
        if timestamp > b.max_timestamp:
            b.max_timestamp = timestamp
        out.delivery = b.delivery
        out.index = b.count
        out.timestamp_ms = timestamp
        b.held -= 1
        b.count += 1
        b.delivery.count = b.count
        p.records += 1
        a.records_appended += 1
        return APPENDED

    cdef Batch* _new_batch(
        self, Partition* p, int64_t capacity, int64_t least, int64_t now
    ) noexcept nogil:
        """An open batch over a buffer whose bytes are reserved, entered as incomplete; NULL: no memory.

        It takes ``least`` bytes in any case, however small ``batch_size`` is.
        """
        cdef Accumulator* a = &self.c
        cdef int64_t limit
        cdef Batch* b = <Batch*>calloc(1, sizeof(Batch))
        if b == NULL:
            return NULL
        b.delivery = delivery_new(p.index, a.completions)
        b.data = self.pool.allocate(capacity)
        if b.delivery == NULL or b.data == NULL:
            free(b.delivery)
            free(b.data)
            free(b)
            return NULL
        b.delivery.refs = MOST_HELD
        b.held = MOST_HELD
        b.partition = p
        b.capacity = capacity
        b.size = BATCH_HEADER
        limit = sent_limit(a, p.topic)
        if p.topic.batch_limit > 0 and now >= p.topic.probe_at_ns:
            # Without the margin: where that is larger than a step, no probe would pass the limit.
            limit = <int64_t>(probe(a, p.topic, now) * (RATIO_MARGIN if a.codec else 1.0))
            b.probes = 1
        b.limit = max(raw_limit(a, p.topic, limit, self.pool.total_bytes), least)
        b.id = a.next_id
        b.first_record = p.records
        a.next_id += 1
        b.created_ns = now
        b.base_sequence = -1
        b.producer_id = -1
        b.producer_epoch = -1
        b.older = a.newest
        if a.newest != NULL:
            a.newest.newer = b
        else:
            a.oldest = b
        a.newest = b
        a.incomplete += 1
        return b

    cdef int64_t _first_capacity(self, const Partition* p, int64_t least, int64_t floor) noexcept nogil:
        """The size of a new batch's buffer: what the partition's batches reach, and ``floor``, if they may.

        At least ``least``.
        """
        cdef int64_t total = self.pool.total_bytes
        cdef int64_t limit = raw_limit(&self.c, p.topic, sent_limit(&self.c, p.topic), total)
        cdef int64_t capacity = buffer_capacity(min(max(p.hint, floor), limit))
        return least if capacity < least or capacity > total // 2 else capacity

    cdef bint _grow(self, Batch* b, int64_t capacity, int64_t size, bint force) noexcept nogil:
        """Moves an open batch into a buffer of ``capacity``; False where the pool has none, or it is below
        ``size``. ``force``: beyond the budget if need be, see ``append``."""
        cdef int64_t more = capacity - b.capacity
        cdef uint8_t* data
        if capacity < size:
            return False
        if force:
            self.pool.reserve_now(more)
        elif not self.pool.try_reserve(more):
            return False
        data = self.pool.allocate(capacity)
        if data == NULL:
            self.pool.unreserve(more)
            return False
        memcpy(data, b.data, b.size)
        self.pool.take_back(b.data, b.capacity)
        b.data = data
        b.capacity = capacity
        return True

    # Sealing

    cdef int seal(self, Batch* b) except -1:
        """Compresses a batch that an append has filled and lets the sender have it. Called with the GIL,
        which the compressor releases while it works."""
        cdef bint wake
        try:
            self.compress(b)
        finally:
            # Whatever happened, Ctrl-C included: a batch that stays SEALING is never sent nor failed.
            pthread_mutex_lock(&self.c.lock)
            b.state = SEALED
            wake = refresh(&self.c, b.partition) and note_work(&self.c)
            pthread_mutex_unlock(&self.c.lock)
            if wake:
                self.wake()
        return 0

    cdef int compress(self, Batch* b) except -1:
        """Replaces a closed batch's records by their compressed form, where that is shorter.

        Where compressing fails, the batch goes as it is: its records were accepted.
        """
        cdef Py_buffer packed
        try:
            view = PyMemoryView_FromMemory(<char*>b.data + BATCH_HEADER, b.size - BATCH_HEADER, PyBUF_READ)
            PyObject_GetBuffer(self.compressor.compress(view), &packed, PyBUF_SIMPLE)
        except Exception:
            log.exception("compressing a batch of %d records failed; it is sent uncompressed", b.count)
            return 0
        if BATCH_HEADER + packed.len < b.size:
            self._shrink(b, BATCH_HEADER + packed.len)
            memcpy(b.data + BATCH_HEADER, packed.buf, packed.len)
            b.size = BATCH_HEADER + packed.len
            b.codec = <signed char>self.c.codec
        PyBuffer_Release(&packed)
        learn_ratio(
            &self.c, b.partition.topic, <double>(b.size - BATCH_HEADER) / max(1, b.raw_size - BATCH_HEADER)
        )
        return 0

    cdef void _shrink(self, Batch* b, int64_t size) noexcept nogil:
        """Gives a batch whose records are about to be replaced a buffer for ``size`` bytes, if that is
        smaller."""
        cdef int64_t capacity = buffer_capacity(size)
        cdef int64_t less = b.capacity - capacity
        cdef uint8_t* data
        if less <= 0:
            return
        data = self.pool.allocate(capacity)
        if data == NULL:
            return
        self.pool.take_back(b.data, b.capacity)
        self.pool.unreserve(less)
        b.data = data
        b.capacity = capacity

    def opens_batch(self, str name not None, int32_t partition, int64_t bound):
        """Whether a record of at most ``bound`` bytes would begin a new batch: none is open, or has room."""
        cdef TopicInfo state = self.topics.get(name)
        cdef Batch* last = NULL
        if state is None:
            return True
        pthread_mutex_lock(&self.c.lock)
        if 0 <= partition < state.c.partition_count:
            last = state.c.partitions[partition].last
        opens = last == NULL or last.state != OPEN or last.size + bound > last.limit
        pthread_mutex_unlock(&self.c.lock)
        return opens

    def counters(self):
        """What became of records and batches since the start, as a dict; ``metric_snapshot`` has more."""
        cdef const int64_t* total = self.c.meters.all.total
        return {
            "records_sent": total[RECORDS_SENT],
            "records_failed": total[RECORDS_FAILED],
            "records_appended": self.c.records_appended,
            "records_retried": total[RECORDS_RETRIED],
            "batches_sent": total[BATCHES_SENT],
            "batches_split": total[BATCHES_SPLIT],
            "batch_bytes": total[BATCH_BYTES],
            "raw_bytes": total[RAW_BYTES],
        }

    def add_flush_time(self, int64_t ns):
        """Counts time that an application thread has spent in ``flush()``."""
        self._add(FLUSH_NS, ns)

    def add_metadata_wait_time(self, int64_t ns):
        """Counts time that an application thread has waited for a topic's metadata."""
        self._add(METADATA_WAIT_NS, ns)

    cdef void _add(self, int which, int64_t ns) noexcept:
        cdef int64_t now = self.clock.now_ns()
        pthread_mutex_lock(&self.c.lock)
        meters_turn(&self.c.meters, now)
        self.c.meters.all.total[which] += ns
        pthread_mutex_unlock(&self.c.lock)
