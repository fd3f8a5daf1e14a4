"""Appends records to batches: one batch queue per partition.

Owns appending, sealing (compression), and the bytes that batches reserve in the pool. Completing, failing and
re-enqueueing batches is inherited (``batch_outcomes``). Does not own the records of topics without
metadata (``parked_records``), the lists of ready partitions (``ready_partitions``), the choice of a partition
(``builtin_partitioner``), topics and brokers (``partition_table``), or sending.

Threads: ``append`` runs on any application thread, usually with the GIL; the rest runs on the sender. One
mutex guards everything. An append holds it for tens of nanoseconds. No thread holds it while compressing,
sending, waiting or acquiring the GIL.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

cimport cython

from cyproducer.accumulator.buffer_pool cimport BufferPool, buffer_capacity
from cyproducer.base.clock cimport Clock
from cyproducer.futures.completion cimport CompletionQueue
from cyproducer.futures.delivery cimport Delivery, delivery_new, delivery_renew
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
    SUMS,
    TXN_ABORT_NS,
    TXN_BEGIN_NS,
    TXN_COMMIT_NS,
    TXN_INIT_NS,
    TXN_SEND_OFFSETS_NS,
    meter_free,
    meters_free,
    meters_init,
    meters_turn,
)
from cyproducer.accumulator.builtin_partitioner cimport STICKY, keyless_number, keyless_partition
from cyproducer.accumulator.ready_partitions cimport (
    close_batch,
    enqueue,
    hurry,
    note_work,
    refresh,
    stop_appends,
)
from cyproducer.accumulator.batch_limit cimport probe
from cyproducer.accumulator.batch_outcomes cimport free_spares
from cyproducer.accumulator.compression_thread cimport stop_compressing
from cyproducer.accumulator.far_brokers cimport enlarge, grown_limit, is_far, most_grown
from cyproducer.accumulator.structures cimport (
    OPEN,
    SEALED,
    SEALING,
    Accumulator,
    Node,
    Parked,
    Topic,
    TopicSettings,
    prefetch_batch,
    prefetch_partition,
)
from cyproducer.base.sync cimport (
    cyp_add_roughly64,
    cyp_change32,
    cyp_change64,
    cyp_clear,
    cyp_cond_init,
    cyp_load32,
    cyp_load_pointer,
    cyp_lock_queued,
    cyp_ms_ns,
    cyp_mutex_init,
    cyp_peek32,
    cyp_peek64,
    cyp_prefetch,
    cyp_spin_lock,
    cyp_spin_unlock,
    cyp_store32,
    cyp_store_pointer,
    pthread_cond_destroy,
    pthread_mutex_destroy,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.accumulator.partition_table cimport TopicInfo, make_topic
from cyproducer.records.hashing cimport partition_of, rule_number
from cyproducer.records.native_codec cimport NativeCodec
from cyproducer.records.record_batch cimport BATCH_HEADER, USUAL_SLACK, record_bound

import os

from cyproducer.errors import IllegalStateError, ProducerClosedError, copied
from cyproducer.base.log import Log

log = Log("cyproducer")

cdef dict TRANSACTION_TIMES = {
    "init": TXN_INIT_NS,
    "begin": TXN_BEGIN_NS,
    "send-offsets": TXN_SEND_OFFSETS_NS,
    "commit": TXN_COMMIT_NS,
    "abort": TXN_ABORT_NS,
}

cdef double RATIO_MARGIN = 1.05   # the estimate is an average: with this margin most batches fit

cdef enum:
    FIRST_CAPACITY = 512      # of a partition's first batch; later ones start at the size of the last batch
    # The maximum ratio of a batch's raw size to its size limit on the wire. Highly compressible records would
    # otherwise make raw batches of megabytes: a few would fill the pool, and the thread that fills one would
    # compress all of it in one send().
    MOST_RAW = 8
    PARKED_PART = 4           # records without metadata may take 1 / PARKED_PART of buffer_memory
    # A new batch takes this many references to its delivery. It hands out one per record, under the lock that
    # is held anyway, and drops the rest at the end: one atomic operation per batch, not per record.
    MOST_HELD = 1 << 30


cdef inline int64_t sent_limit(const Accumulator* a, const Topic* t) noexcept nogil:
    """The maximum size of a topic's next batch on the wire, in bytes, unless it grows (``far_brokers``)."""
    return min(t.batch_limit, a.batch_size) if t.batch_limit > 0 else a.batch_size


cdef inline int64_t raw_limit(const Topic* t, int64_t limit, int64_t buffer_memory) noexcept nogil:
    """The maximum size before compression of a batch that may have ``limit`` bytes on the wire.

    At most a quarter of the pool. If one batch could fill the pool, batches would be filled, sent and
    acknowledged one after the other, and no batch would be filled while another is in flight.
    """
    if t.settings.codec != 0:
        limit = <int64_t>(limit / max(t.compression_ratio * RATIO_MARGIN, 1.0 / MOST_RAW))
    return min(limit, buffer_memory // 4)


cdef void learn_ratio(Accumulator* a, Topic* t, double actual) noexcept nogil:
    """Moves the topic's estimate towards the actual compression ratio, slowly downwards and faster upwards.

    An estimate that is too high makes batches smaller; with one that is too low, the broker refuses a batch.
    """
    pthread_mutex_lock(&a.lock)
    if actual > t.compression_ratio:
        t.compression_ratio = min(actual, t.compression_ratio + 0.05)
    else:
        t.compression_ratio = max(actual, t.compression_ratio - 0.005)
    pthread_mutex_unlock(&a.lock)


cdef inline void put_one(
    Partition* p, Batch* b, const RecordView* r, int64_t timestamp, Appended* out
) noexcept nogil:
    """Writes a record to an open batch, and gives its future one of the batch's references."""
    out.delivery = b.delivery
    out.index = b.count
    out.timestamp_ms = timestamp
    b.held -= 1
    put(p, b, r, timestamp)


@cython.final
@cython.no_gc_clear
cdef class RecordAccumulator(Incomplete):
    """Records that are accepted and not yet acknowledged. Thread-safe.

    ``options``: a ``ProducerConfig``, or any object with the attributes that are read below.
    ``ordered``: without idempotence, at most one batch per partition is in flight, so that a retry does not
    change the order. ``stream_linger_ms``: the longest linger if ``linger_ms`` is 0 and records stream in.
    ``compressor``: a ``Compressor`` or None. ``topics``: the settings of single topics, each as
    (linger_ms, acks, compressor). ``place_of``: None, or returns the number of a topic's settings, given its
    name: from 1, or 0 for the producer's own. ``compression_thread``: whether a separate thread compresses
    large batches that are due before they are full. ``spec``: a ``PartitionerSpec``, which sets key hashing
    and the policy for keyless records; None: those of the default partitioner. ``seed``: seeds the random
    choice of partitions; None: seeded by the system.
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
        topics=(),
        place_of=None,
        bint compression_thread=True,
        spec=None,
        seed=None,
    ):
        cdef int64_t batch_size = options.batch_size
        cdef int32_t settings = 1 + <int32_t>len(topics)
        cyp_mutex_init(&self.c.lock)
        cyp_cond_init(&self.c.progress)
        self.pool = pool
        self.clock = clock
        self.completions = completions
        self.compressor = compressor
        self.compressors = []
        self.place_of = place_of
        self.c.settings = <TopicSettings*>calloc(settings, sizeof(TopicSettings))
        if self.c.settings == NULL:
            raise MemoryError("no memory for the settings of topics")
        self.set_settings(options.linger_ms, options.acks, compressor)
        for linger_ms, acks, codec in topics:
            self.set_settings(linger_ms, acks, codec)
        self.key_hash = rule_number("java" if spec is None else spec.key_hash)
        self.keyless = keyless_number("sticky" if spec is None else spec.keyless)
        self.topics = {}
        self.sequences = {}
        self.unused_topics = []
        self.c.batch_size = max(batch_size, BATCH_HEADER + 1)
        self.c.most_grown = most_grown(self.c.batch_size, options.max_request_size)
        self.c.longest_stream_ns = cyp_ms_ns(stream_linger_ms)
        self.c.stream_linger_ns = self.c.longest_stream_ns
        self.c.availability_timeout_ns = cyp_ms_ns(options.partitioner_availability_timeout_ms)
        self.c.single_broker_ns = cyp_ms_ns(options.partitioner_single_broker_ms)
        self.c.single_broker_id = -1
        self.c.adaptive_partitioning = options.partitioner_adaptive_partitioning_enable
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
        cyp_cond_init(&self.c.compression.filled)
        self.c.compression.wanted = compression_thread and self.c.compresses_without_gil
        self.c.compression.compress = compress_aside
        self.c.compression.wake = wake_aside
        self.c.compression.context = <void*>self
        if meters_init(
            &self.c.meters, options.metrics_num_samples, max(1, cyp_ms_ns(options.metrics_sample_window_ms)),
            clock.now_ns(), &pool.exhausted, &pool.waited_ns,
        ):
            raise MemoryError(
                f"no memory for metrics of {options.metrics_num_samples} samples: lower metrics_num_samples"
            )

    def __dealloc__(self):
        # Batches are left only if the producer was dropped without being closed.
        cdef Batch* b = self.c.oldest
        cdef Batch* newer
        cdef Node* n = self.c.nodes
        cdef Node* following
        with nogil:
            stop_compressing(&self.c)
        while b != NULL:
            newer = b.newer
            self._free(b)
            b = newer
        free_spares(self.c.spare)
        while n != NULL:
            following = n.next
            meter_free(&n.meter)
            free(n)
            n = following
        free(self.c.settings)
        meters_free(&self.c.meters)
        pthread_cond_destroy(&self.c.progress)
        pthread_cond_destroy(&self.c.compression.filled)
        pthread_mutex_destroy(&self.c.lock)

    cdef int set_settings(self, double linger_ms, int acks, object compressor) except -1:
        """Adds the settings of an entry of ``topic_options``; the first are the producer's own."""
        cdef TopicSettings* s = &self.c.settings[self.c.settings_count]
        s.linger_ns = cyp_ms_ns(linger_ms)
        s.acks = <int16_t>acks
        s.compressor = self.c.settings_count
        self.compressors.append(compressor)
        self.c.settings_count += 1
        if compressor is not None and compressor.codec_id != 0:
            s.codec = <signed char>compressor.codec_id
            native = getattr(compressor, "native", None)
            if native is None:
                self.c.compresses_with_gil = 1
            else:
                s.native = <void*>(<NativeCodec?>native)
                self.c.compresses_without_gil = 1
        return 0

    cdef TopicInfo topic(self, str name):
        """The topic of that name; a new topic is created without partitions. Called with the GIL."""
        cdef TopicInfo state = self.topics.get(name)
        cdef TopicInfo made
        cdef TopicSettings* settings = self.c.settings
        if state is None:
            if self.place_of is not None:
                settings += <int32_t>self.place_of(name)
            made = make_topic(&self.c, name, self.key_hash, self.keyless, settings)
            # setdefault, not assignment: two threads may use a new topic at once.
            state = self.topics.setdefault(name, made)
            if state is not made:
                # It is already in the accumulator's list of topics, and stays there.
                self.unused_topics.append(made)
        return state

    # Appending

    cdef int append(
        self, Topic* t, int32_t partition, const RecordView* r, int64_t* grant, bint force, Appended* out
    ) noexcept nogil:
        """Appends a record to its partition's open batch; returns an ``AppendResult``.

        ``partition``: -1 to choose one. ``grant``: bytes that the caller has reserved for a new batch; set
        to 0 when used. ``force``: reserves memory beyond the budget, for a parked record, whose memory is
        already accounted for.
        """
        cdef Accumulator* a = &self.c
        cdef int result
        out.sealing = NULL
        out.wake = False
        out.partitions = 0
        if not force and self._append_open(t, partition, r, out):
            return APPENDED
        # A thread that sends one record holds the GIL: bulk calls give way to it.
        cyp_lock_queued(&a.lock, &a.queued)
        if force:
            # A parked record: it was accepted before any close(), and the partitions are visible to it only.
            cyp_store32(&t.partition_count, t.designating)
            result = self._append(t, partition, r, grant, True, out)
            cyp_store32(&t.partition_count, 0)
        elif a.refusing:
            result = IS_CLOSED
        elif t.partition_count == 0:
            result = TOPIC_UNKNOWN
        else:
            result = self._append(t, partition, r, grant, False, out)
        if out.wake:
            out.wake = note_work(a)
        pthread_mutex_unlock(&a.lock)
        return result

    cdef inline bint _append_open(
        self, Topic* t, int32_t partition, const RecordView* r, Appended* out
    ) noexcept nogil:
        """Appends to the partition's open batch under the partition's lock alone; False if it can't.

        It can if ``Partition.open`` has room, unless choosing the partition needs the accumulator's lock. So
        threads that send to different partitions do not meet.
        """
        cdef Accumulator* a = &self.c
        cdef int64_t bound = record_bound(r.key_size, r.value_size, r.headers_size)
        cdef int64_t timestamp = r.timestamp_ms
        cdef int32_t count = cyp_load32(&t.partition_count)
        cdef bint keyless = False
        cdef Partition* p
        cdef Batch* b
        # Read without the lock: a record that comes while another thread closes may still be accepted.
        if count == 0 or cyp_peek32(&a.refusing):
            return False
        if partition < 0:
            partition = partition_of(t.key_hash, r.key, r.key_size, count)
            out.chosen = partition
            out.partitions = count
            if partition < 0:
                partition = cyp_peek32(&t.sticky)
                keyless = True
                if t.keyless != STICKY or partition < 0 or cyp_peek64(&t.sticky_bytes) >= a.batch_size:
                    return False
        if partition >= count:
            return False
        p = (<Partition**>cyp_load_pointer(<void**>&t.partitions))[partition]
        prefetch_partition(p)
        if cyp_load_pointer(<void**>&p.open) == NULL:
            return False
        if keyless and cyp_load_pointer(<void**>&p.node) == NULL:
            return False
        if timestamp < 0:
            timestamp = self.clock.ticked_wall_ms()
        cyp_spin_lock(&p.lock)
        # Acquired: the thread that set it, and wrote what it points to, held the accumulator's lock instead.
        b = <Batch*>cyp_load_pointer(<void**>&p.open)
        if b == NULL or b.size + bound > min(b.capacity, b.limit):
            cyp_spin_unlock(&p.lock)
            return False
        if r.timestamp_ms < 0:
            timestamp = dated(b, timestamp)
        put_one(p, b, r, timestamp, out)
        p.appended += 1
        if keyless:
            cyp_add_roughly64(&t.sticky_bytes, bound - USUAL_SLACK)
        cyp_spin_unlock(&p.lock)
        return True

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
        cdef uint8_t* data
        cdef bint reserved = False
        cdef int64_t timestamp = r.timestamp_ms
        # Any other choice of a partition needs the accumulator's lock.
        cdef bint alone = not force
        if partition < 0:
            partition = out.chosen
            if out.partitions != t.partition_count:
                partition = partition_of(t.key_hash, r.key, r.key_size, t.partition_count)
            if partition < 0:
                partition = keyless_partition(a, self.clock, t)
                cyp_add_roughly64(&t.sticky_bytes, bound - USUAL_SLACK)
                alone = alone and t.keyless == STICKY
        elif partition >= t.partition_count:
            return NO_SUCH_PARTITION
        p = t.partitions[partition]
        stop_appends(a, p)
        b = p.last
        # The limit is also checked: the capacity is a power of two and may be well above batch_size.
        if b != NULL and b.state == OPEN and b.size + bound > min(b.capacity, b.limit):
            if b.size + bound > b.limit and enlarge(
                a, p, b, self.pool.total_bytes, self.clock.now_ns()
            ):
                out.wake = refresh(a, p)
            # Its buffer may have room for the new limit.
            if b.size + bound > min(b.capacity, b.limit):
                hint = 0
                if b.size + bound <= b.limit:
                    hint = buffer_capacity(min(max(b.size + bound, b.capacity * 2), b.limit))
                if hint == 0 or not self._grow(b, hint, b.size + bound, force):
                    close_batch(a, b)
                    # A batch that is closed for lack of memory must not lower the hint:
                    # 1. The pool is full, and batches close early.
                    # 2. The next batches start as small as these, and can't grow either.
                    # 3. Requests carry fewer and fewer records, and the pool stays full.
                    p.hint = max(p.hint, hint)
                    if b.state == SEALING:
                        out.sealing = b
                    out.wake = refresh(a, p)
        if b == NULL or b.state != OPEN:
            least = buffer_capacity(bound + BATCH_HEADER)
            if grant[0] >= least:
                capacity = grant[0]
                grant[0] = 0
                data = self.pool.allocate(capacity)
            elif force:
                capacity = least
                self.pool.reserve_now(capacity)
                data = self.pool.allocate(capacity)
            else:
                capacity = self._first_capacity(p, least, FIRST_CAPACITY)
                data = self.pool.obtain(capacity, &reserved)
                if not reserved:
                    hurry(a)
                    out.wake = True
                    out.need = self._first_capacity(p, least, LEAST_WAIT)
                    return NEED_MEMORY
            b = NULL
            if data != NULL:
                b = self._new_batch(p, data, capacity, bound + BATCH_HEADER, self.clock.now_ns())
            if b == NULL:
                free(data)
                self.pool.unreserve(capacity)
                return OUT_OF_MEMORY
            if timestamp < 0:
                timestamp = self.clock.wall_ms()
                b.clock_ms = timestamp
            b.base_timestamp = timestamp
            b.max_timestamp = timestamp
            t.last_used_ns = b.created_ns
            enqueue(a, p, b)
            if refresh(a, p):
                out.wake = True
        if timestamp < 0:
            # Reading the exact clock would be a tenth of the cost of a record. Only the first record of a
            # batch has the exact time; ``dated`` makes sure that the next records are not older.
            timestamp = dated(b, self.clock.ticked_wall_ms())
        put_one(p, b, r, timestamp, out)
        a.records_appended += 1
        if alone:
            cyp_store_pointer(<void**>&p.open, b)
        return APPENDED

    cdef Batch* _new_batch(
        self, Partition* p, uint8_t* data, int64_t capacity, int64_t least, int64_t now
    ) noexcept nogil:
        """Creates an open batch and adds it to the incomplete batches; NULL if malloc fails.

        ``data`` is its buffer of ``capacity`` bytes, reserved in the pool. The batch takes at least ``least``
        bytes, however small ``batch_size`` is.
        """
        cdef Accumulator* a = &self.c
        cdef int64_t limit
        cdef Delivery* delivery = NULL
        cdef Batch* b = a.spare
        if b != NULL:
            a.spare = b.next
            cyp_change32(&a.spares, -1)
            delivery = b.delivery
            # The sender has used these last. They are fetched for the next records.
            if b.next != NULL:
                cyp_prefetch(b.next.delivery, 2)
                prefetch_batch(b.next.next)
        else:
            b = <Batch*>malloc(sizeof(Batch))
            if b == NULL:
                return NULL
        cyp_clear(b, sizeof(Batch))
        if delivery != NULL:
            delivery_renew(delivery, p.index, a.completions)
        else:
            delivery = delivery_new(p.index, a.completions)
        if delivery == NULL:
            free(b)
            return NULL
        b.delivery = delivery
        b.data = data
        b.delivery.refs = MOST_HELD
        b.held = MOST_HELD
        b.partition = p
        b.capacity = capacity
        b.size = BATCH_HEADER
        limit = sent_limit(a, p.topic)
        if p.topic.batch_limit > 0 and now >= p.topic.probe_at_ns:
            # Undoes the margin of raw_limit: if the margin is larger than a step, no probe would exceed the
            # limit.
            limit = <int64_t>(probe(a, p.topic, now) * (RATIO_MARGIN if p.topic.settings.codec else 1.0))
            b.probes = 1
        b.limit = max(raw_limit(p.topic, limit, self.pool.total_bytes), least)
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
        cyp_change64(&a.incomplete, 1)
        return b

    cdef int64_t _first_capacity(self, const Partition* p, int64_t least, int64_t floor) noexcept nogil:
        """The size of a new batch's buffer: the usual size of the partition's batches, at least ``floor``
        bytes, and within the batch limit. Never below ``least``.
        """
        cdef int64_t total = self.pool.total_bytes
        cdef int64_t limit = raw_limit(p.topic, sent_limit(&self.c, p.topic), total)
        cdef int64_t capacity
        if p.node != NULL and is_far(p.node):
            limit = max(limit, grown_limit(&self.c, p.topic, total))
        capacity = buffer_capacity(min(max(p.hint, floor), limit))
        return least if capacity < least or capacity > total // 2 else capacity

    cdef bint _grow(self, Batch* b, int64_t capacity, int64_t size, bint force) noexcept nogil:
        """Moves an open batch to a buffer of ``capacity`` bytes. Returns False if the pool has no memory, or
        if ``capacity`` is below ``size``. ``force``: reserves memory beyond the budget, see ``append``."""
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

    @property
    def refusal(self):
        """None, or the reason why no more records are accepted."""
        with cython.critical_section(self):
            refusal = self._refusal
        return refusal

    @refusal.setter
    def refusal(self, value):
        with cython.critical_section(self):
            self._refusal = value

    def why_refused(self, str closed_text not None):
        """The error for a record that is not accepted; ``closed_text`` is for a closed producer."""
        refusal = self.refusal
        if refusal is not None:
            error = copied(refusal)
        elif self.c.closed:
            error = ProducerClosedError(closed_text)
        else:
            # Another thread has begun a transaction in the meantime.
            error = IllegalStateError("send(): no transaction was open when the record came")
        # For SendPath._note_refused.
        error.without_transaction = True
        return error

    # Sealing

    cdef int seal(self, Batch* b) except -1:
        """Compresses a batch that an append has filled, and passes it to the sender. Called with the GIL,
        which is released during compression."""
        cdef bint wake
        try:
            with nogil:
                self.compress(b)
        finally:
            # After any exception, including Ctrl-C: a batch that stays SEALING would never be sent or failed.
            pthread_mutex_lock(&self.c.lock)
            b.state = SEALED
            wake = refresh(&self.c, b.partition) and note_work(&self.c)
            pthread_mutex_unlock(&self.c.lock)
            if wake:
                self.wake()
        return 0

    cdef int compress(self, Batch* b) except -1 nogil:
        """Replaces a closed batch's records with their compressed form, if that is smaller.

        If compression fails, the batch is sent uncompressed, since its records are already accepted.
        """
        cdef int64_t room
        cdef int64_t made = -1
        cdef uint8_t* to
        cdef void* native = b.partition.topic.settings.native
        # Separate functions acquire the GIL: a function with a ``with gil`` block always acquires the GIL
        # when it returns.
        if native == NULL:
            return self._compress_with_gil(b)
        room = (<NativeCodec>native).most(b.size - BATCH_HEADER)
        to = <uint8_t*>malloc(room)
        if to != NULL:
            made = (<NativeCodec>native).compress(b.data + BATCH_HEADER, b.size - BATCH_HEADER, to, room)
        if made >= 0:
            self._replace(b, to, made)
        free(to)
        return 0 if made >= 0 else self._note_uncompressed(b)

    cdef int _note_uncompressed(self, Batch* b) except -1 with gil:
        log.error("no memory to compress a batch of %d records: it is sent uncompressed", b.count)
        return 0

    cdef int _compress_with_gil(self, Batch* b) except -1 with gil:
        cdef Py_buffer packed
        try:
            view = PyMemoryView_FromMemory(<char*>b.data + BATCH_HEADER, b.size - BATCH_HEADER, PyBUF_READ)
            compressor = self.compressors[b.partition.topic.settings.compressor]
            PyObject_GetBuffer(compressor.compress(view), &packed, PyBUF_SIMPLE)
        except Exception:
            log.exception("compressing a batch of %d records failed; it is sent uncompressed", b.count)
            return 0
        self._replace(b, <const uint8_t*>packed.buf, packed.len)
        PyBuffer_Release(&packed)
        return 0

    cdef void _replace(self, Batch* b, const uint8_t* packed, int64_t size) noexcept nogil:
        """Replaces a batch's records with their compressed form, if that is smaller."""
        if BATCH_HEADER + size < b.size:
            self._shrink(b, BATCH_HEADER + size)
            memcpy(b.data + BATCH_HEADER, packed, size)
            b.size = BATCH_HEADER + size
            b.codec = b.partition.topic.settings.codec
        learn_ratio(
            &self.c, b.partition.topic, <double>(b.size - BATCH_HEADER) / max(1, b.raw_size - BATCH_HEADER)
        )

    cdef void _shrink(self, Batch* b, int64_t size) noexcept nogil:
        """Replaces the buffer of a batch with one for ``size`` bytes, if that is smaller. Does not copy the
        records: the caller replaces them."""
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
        """Returns whether no open batch has room for a record of up to ``bound`` bytes."""
        cdef TopicInfo state = self.topics.get(name)
        cdef Batch* last = NULL
        if state is None:
            return True
        pthread_mutex_lock(&self.c.lock)
        if 0 <= partition < state.c.partition_count:
            stop_appends(&self.c, state.c.partitions[partition])
            last = state.c.partitions[partition].last
        opens = last == NULL or last.state != OPEN or last.size + bound > last.limit
        pthread_mutex_unlock(&self.c.lock)
        return opens

    def unfinished(self):
        """Returns topic -> number of its records that have no outcome yet, for the topics that have any.

        Reads the whole queue once per topic: call it when a producer ends, not for each record.
        """
        cdef dict found = {}
        cdef TopicInfo state
        cdef Topic* t
        cdef int64_t count
        cdef Batch* b
        cdef Parked* r
        for name, state in list(self.topics.items()):
            count = 0
            t = &state.c
            # No Python object is made or freed with the lock held: that may release the GIL.
            with nogil:
                pthread_mutex_lock(&self.c.lock)
                b = self.c.oldest
                while b != NULL:
                    if b.partition.topic == t:
                        count += cyp_peek32(&b.count)
                    b = b.newer
                r = t.first_parked
                while r != NULL:
                    count += 1
                    r = r.next
                pthread_mutex_unlock(&self.c.lock)
            if count:
                found[name] = count
        return found

    def counters(self):
        """Counts of records, batches and bytes since the start, as a dict; ``metric_snapshot`` has more."""
        cdef int64_t[SUMS] total
        cdef int64_t appended
        with nogil:
            pthread_mutex_lock(&self.c.lock)
            appended = counted_appends(&self.c)
            memcpy(total, self.c.meters.all.total, sizeof(total))
            pthread_mutex_unlock(&self.c.lock)
        return {
            "records_sent": total[RECORDS_SENT],
            "records_failed": total[RECORDS_FAILED],
            "records_appended": appended,
            "records_retried": total[RECORDS_RETRIED],
            "batches_sent": total[BATCHES_SENT],
            "batches_split": total[BATCHES_SPLIT],
            "batch_bytes": total[BATCH_BYTES],
            "raw_bytes": total[RAW_BYTES],
        }

    def add_flush_time(self, int64_t ns):
        """Adds time that an application thread has spent in ``flush()``."""
        self.add(FLUSH_NS, ns)

    def add_metadata_wait_time(self, int64_t ns):
        """Adds time that an application thread has spent waiting for a topic's metadata."""
        self.add(METADATA_WAIT_NS, ns)

    def add_transaction_time(self, str step not None, int64_t ns):
        """Adds time that an application thread has spent in a transaction call.

        ``step``: init, begin, send-offsets, commit or abort.
        """
        self.add(TRANSACTION_TIMES[step], ns)

    cdef void add(self, int which, int64_t amount) noexcept:
        """Adds to a sum of the producer's meter."""
        cdef int64_t now = self.clock.now_ns()
        pthread_mutex_lock(&self.c.lock)
        meters_turn(&self.c.meters, now)
        self.c.meters.all.total[which] += amount
        pthread_mutex_unlock(&self.c.lock)


cdef int64_t counted_appends(Accumulator* a) noexcept nogil:
    """Records that were ever appended. The lock is held."""
    cdef Topic* t = a.topics
    cdef int32_t i
    while t != NULL:
        for i in range(t.partition_room):
            stop_appends(a, t.partitions[i])
        t = t.next
    return a.records_appended


# The functions that the compression thread calls. That thread ends before the accumulator is freed.
cdef void compress_aside(void* accumulator, Batch* b) noexcept nogil:
    (<RecordAccumulator>accumulator).compress(b)


cdef void wake_aside(void* accumulator) noexcept nogil:
    (<RecordAccumulator>accumulator).wake()
