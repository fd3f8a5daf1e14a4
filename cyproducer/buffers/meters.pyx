"""Counting for ``metrics()``: see ``meters.pxd`` for how windows work.

Owns: the meters' memory, turning windows, and what each event adds. Does not own: when something happens (the
accumulator and the sender call this, once a batch or a request), names and units (``observability``), nor
reading (``readings``). Without the GIL, under the accumulator's lock.
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from cyproducer.buffers.histogram cimport count_time
from cyproducer.buffers.sync cimport cyp_load64


cdef int make_meter(
    const Meters* ms, Meter* m, int first, int sums, int first_peak, int peaks
) noexcept nogil:
    """-1: no memory. One block: a topic or a broker more costs one allocation."""
    cdef size_t pages = <size_t>ms.samples
    m.first = first
    m.sums = sums
    m.first_peak = first_peak
    m.peaks = peaks
    m.window = ms.window
    m.total = <int64_t*>calloc(sums + pages * (sums + peaks), sizeof(int64_t))
    if m.total == NULL:
        return -1
    m.begun = m.total + sums
    m.peak = m.begun + pages * sums
    if peaks:
        memset(m.peak, 0xFF, pages * peaks * sizeof(int64_t))
    return 0


cdef int topic_meter(const Meters* ms, Meter* m) noexcept nogil:
    """Makes a topic's meter; -1: no memory."""
    return make_meter(ms, m, 0, SUMS_OF_TOPIC, 0, 0)


cdef int node_meter(const Meters* ms, Meter* m) noexcept nogil:
    """Makes a broker's meter; -1: no memory."""
    return make_meter(
        ms, m, FIRST_OF_NODE, SUMS - FIRST_OF_NODE, FIRST_PEAK_OF_NODE, PEAKS - FIRST_PEAK_OF_NODE
    )


cdef void meter_free(Meter* m) noexcept nogil:
    free(m.total)


cdef int meters_init(
    Meters* ms, int32_t samples, int64_t window_ns, int64_t now, const int64_t* exhausted,
    const int64_t* memory_wait_ns
) noexcept nogil:
    """Makes a producer's meters, with ``samples`` windows of ``window_ns`` each; -1: no memory."""
    ms.began_ns = now
    ms.length_ns = window_ns
    ms.ends_ns = now + window_ns
    ms.samples = samples
    ms.exhausted = exhausted
    ms.memory_wait_ns = memory_wait_ns
    ms.times = <Histogram*>calloc(HISTOGRAMS, sizeof(Histogram))
    ms.times_begun = <Histogram*>calloc(<size_t>samples * HISTOGRAMS, sizeof(Histogram))
    if ms.times == NULL or ms.times_begun == NULL:
        return -1
    return make_meter(ms, &ms.all, 0, SUMS, 0, PEAKS)


cdef void meters_free(Meters* ms) noexcept nogil:
    meter_free(&ms.all)
    free(ms.times)
    free(ms.times_begun)


cdef void meter_roll(const Meters* ms, Meter* m) noexcept nogil:
    """Begins the windows that have come since the meter was last counted on; nothing happened in them."""
    cdef int64_t window = max(m.window + 1, ms.window - ms.samples + 1)
    cdef int64_t page
    while window <= ms.window:
        page = window % ms.samples
        memcpy(m.begun + page * m.sums, m.total, m.sums * sizeof(int64_t))
        if m.peaks:
            memset(m.peak + page * m.peaks, 0xFF, m.peaks * sizeof(int64_t))
        window += 1
    m.window = ms.window


cdef void take_pool(Meters* ms) noexcept nogil:
    ms.all.total[EXHAUSTED] = cyp_load64(ms.exhausted)
    ms.all.total[MEMORY_WAIT_NS] = cyp_load64(ms.memory_wait_ns)


cdef void meters_roll(Meters* ms, int64_t now) noexcept nogil:
    """Begins the windows that have come since; see ``meters_turn``."""
    cdef int64_t window
    take_pool(ms)
    ms.window = (now - ms.began_ns) // ms.length_ns
    ms.ends_ns = ms.began_ns + (ms.window + 1) * ms.length_ns
    window = max(ms.all.window + 1, ms.window - ms.samples + 1)
    while window <= ms.window:
        memcpy(
            ms.times_begun + (window % ms.samples) * HISTOGRAMS, ms.times, HISTOGRAMS * sizeof(Histogram)
        )
        window += 1
    meter_roll(ms, &ms.all)


# Counting

cdef inline void add(const Meters* ms, Meter* m, int which, int64_t amount) noexcept nogil:
    m.total[which - m.first] += amount


cdef inline void reach(const Meters* ms, Meter* m, int which, int64_t value) noexcept nogil:
    """A value that may be a window's greatest."""
    cdef int64_t* peak = m.peak + (ms.window % ms.samples) * m.peaks + which - m.first_peak
    if value > peak[0]:
        peak[0] = value


cdef inline void turn_both(Meters* ms, Meter* part, int64_t now) noexcept nogil:
    meters_turn(ms, now)
    if part != NULL and part.window != ms.window:
        meter_roll(ms, part)


cdef inline void add_both(Meters* ms, Meter* part, int which, int64_t amount) noexcept nogil:
    add(ms, &ms.all, which, amount)
    if part != NULL:
        add(ms, part, which, amount)


cdef inline void reach_both(Meters* ms, Meter* part, int which, int64_t value) noexcept nogil:
    reach(ms, &ms.all, which, value)
    if part != NULL:
        reach(ms, part, which, value)


cdef void count_records(Meters* ms, Meter* topic, int which, int64_t records, int64_t now) noexcept nogil:
    """Records of a topic: RECORDS_FAILED or RECORDS_RETRIED."""
    turn_both(ms, topic, now)
    add_both(ms, topic, which, records)


cdef void count_acknowledged(
    Meters* ms, Meter* topic, int64_t records, int64_t size, int64_t raw_size, int64_t record_peak,
    int64_t age_ns, int64_t now
) noexcept nogil:
    """A batch of a topic was acknowledged ``age_ns`` after it was made."""
    turn_both(ms, topic, now)
    add_both(ms, topic, RECORDS_SENT, records)
    add_both(ms, topic, BATCHES_SENT, 1)
    add_both(ms, topic, BATCH_BYTES, size)
    add_both(ms, topic, RAW_BYTES, raw_size)
    add(ms, &ms.all, ACKNOWLEDGED_NS, age_ns)
    reach(ms, &ms.all, BATCH_BYTES_PEAK, size)
    reach(ms, &ms.all, RECORD_BYTES_PEAK, record_peak)
    reach(ms, &ms.all, ACKNOWLEDGED_PEAK, age_ns)
    count_time(&ms.times[ACKNOWLEDGEMENTS], age_ns)


cdef void count_queued(Meters* ms, int64_t ns) noexcept nogil:
    """A batch goes into its first request; the window was turned."""
    add(ms, &ms.all, BATCHES_QUEUED, 1)
    add(ms, &ms.all, QUEUE_NS, ns)
    reach(ms, &ms.all, QUEUE_PEAK, ns)
    count_time(&ms.times[QUEUE_TIMES], ns)


cdef void count_answer(
    Meters* ms, Meter* node, int64_t latency_ns, int64_t throttle_ms, int64_t now
) noexcept nogil:
    """A broker answered a Produce request."""
    turn_both(ms, node, now)
    add_both(ms, node, PRODUCE_RESPONSES, 1)
    add_both(ms, node, LATENCY_NS, latency_ns)
    reach_both(ms, node, LATENCY_PEAK, latency_ns)
    add_both(ms, node, THROTTLE_MS, throttle_ms)
    reach_both(ms, node, THROTTLE_PEAK, throttle_ms)
    count_time(&ms.times[LATENCIES], latency_ns)


cdef void count_traffic(Meters* ms, Meter* node, Traffic* t, int64_t now) noexcept nogil:
    """Takes over what went through a connection; ``node`` NULL: it has no broker's meter (yet)."""
    turn_both(ms, node, now)
    add_both(ms, node, REQUESTS, t.requests)
    add_both(ms, node, REQUEST_BYTES, t.request_bytes)
    add_both(ms, node, OUT_BYTES, t.out_bytes)
    add_both(ms, node, RESPONSES, t.responses)
    add_both(ms, node, IN_BYTES, t.in_bytes)
    if t.requests:
        reach_both(ms, node, REQUEST_PEAK, t.request_peak)
    t[0] = Traffic(0, 0, 0, 0, 0, 0)
