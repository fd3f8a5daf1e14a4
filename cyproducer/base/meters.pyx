"""Counts events for ``metrics()``; ``meters.pxd`` explains the windows.

Owns the meters' memory, beginning new windows, and what each event adds. The accumulator and the sender call
it, once per batch or request. Does not own the metrics' names and units (``observability``) or reading them
(``metric_snapshot``). Every function runs without the GIL, under the accumulator's lock.
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from cyproducer.base.histogram cimport OCTAVE, OCTAVES, count_time, counts_of, free_histograms
from cyproducer.base.sync cimport cyp_after, cyp_load64


cdef int make_meter(
    const Meters* ms, Meter* m, int first, int sums, int first_peak, int peaks
) noexcept nogil:
    """Returns -1 if there is no memory. Each meter is one block: a topic or a broker costs one allocation."""
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
    """Makes a topic's meter; returns -1 if there is no memory."""
    return make_meter(ms, m, 0, BATCHES_SPLIT, 0, 0)


cdef int node_meter(const Meters* ms, Meter* m) noexcept nogil:
    """Makes a broker's meter; returns -1 if there is no memory."""
    return make_meter(
        ms, m, PRODUCE_RESPONSES, SUMS - PRODUCE_RESPONSES, LATENCY_NS_PEAK, PEAKS - LATENCY_NS_PEAK
    )


cdef void meter_free(Meter* m) noexcept nogil:
    free(m.total)


cdef int meters_init(
    Meters* ms, int32_t samples, int64_t window_ns, int64_t now, const int64_t* exhausted,
    const int64_t* memory_wait_ns
) noexcept nogil:
    """Makes a producer's meters, with ``samples`` windows of ``window_ns`` each; -1 if there is no memory."""
    ms.began_ns = now
    ms.length_ns = window_ns
    ms.ends_ns = cyp_after(now, window_ns)
    ms.answered_ns = now
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
    free_histograms(ms.times, HISTOGRAMS)
    free_histograms(ms.times_begun, <int64_t>ms.samples * HISTOGRAMS)


cdef void meter_roll(const Meters* ms, Meter* m) noexcept nogil:
    """Begins the windows since the meter was last updated. Nothing was counted in them."""
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
    """Takes over the pool's own counts."""
    ms.all.total[EXHAUSTED] = cyp_load64(ms.exhausted)
    ms.all.total[MEMORY_WAIT_NS] = cyp_load64(ms.memory_wait_ns)


cdef void begin_times(Meters* ms, int64_t window) noexcept nogil:
    """Copies the histograms as those at the beginning of a window.

    Without memory for an octave the window has none: its percentiles then count all times since the start.
    """
    cdef Histogram* to = ms.times_begun + (window % ms.samples) * HISTOGRAMS
    cdef int64_t* counts
    cdef int32_t i
    cdef int32_t k
    for i in range(HISTOGRAMS):
        for k in range(OCTAVES):
            if ms.times[i].octaves[k] != NULL:
                counts = counts_of(&to[i], k)
                if counts != NULL:
                    memcpy(counts, ms.times[i].octaves[k], OCTAVE * sizeof(int64_t))


cdef void meters_roll(Meters* ms, int64_t now) noexcept nogil:
    """Begins the windows that have started since the last one; see ``meters_turn``."""
    cdef int64_t window
    take_pool(ms)
    ms.window = (now - ms.began_ns) // ms.length_ns
    ms.ends_ns = cyp_after(ms.began_ns + ms.window * ms.length_ns, ms.length_ns)
    ms.page = ms.window % ms.samples
    window = max(ms.all.window + 1, ms.window - ms.samples + 1)
    while window <= ms.window:
        begin_times(ms, window)
        window += 1
    meter_roll(ms, &ms.all)


# Counting. Pointers are kept in local variables: otherwise the compiler would reload them at each addition.

cdef inline int64_t* turn_both(Meters* ms, Meter* part, int64_t now) noexcept nogil:
    """Begins the windows that have started since the last one, for the producer and ``part``; returns the
    producer's sums."""
    meters_turn(ms, now)
    if part != NULL and part.window != ms.window:
        meter_roll(ms, part)
    return ms.all.total


cdef inline int64_t* peaks_now(const Meters* ms, const Meter* m) noexcept nogil:
    """The peaks of the current window, indexed by their enum values."""
    return m.peak + ms.page * m.peaks - m.first_peak


cdef inline void reach(int64_t* peak, int64_t value) noexcept nogil:
    """Raises a window's peak to ``value`` if that is greater."""
    if value > peak[0]:
        peak[0] = value


cdef void count_records(Meters* ms, Meter* topic, int which, int64_t records, int64_t now) noexcept nogil:
    """Counts records of a topic; ``which``: RECORDS_FAILED or RECORDS_RETRIED."""
    cdef int64_t* all = turn_both(ms, topic, now)
    all[which] += records
    topic.total[which] += records


cdef void count_acknowledged(
    Meters* ms, Meter* topic, int64_t records, int64_t size, int64_t raw_size, int64_t record_peak,
    int64_t created_ns
) noexcept nogil:
    """Counts a topic's batch that was acknowledged by the response counted last."""
    cdef int64_t age_ns = ms.answered_ns - created_ns
    cdef int64_t* all = turn_both(ms, topic, ms.answered_ns)
    cdef int64_t* part = topic.total
    cdef int64_t* peaks = peaks_now(ms, &ms.all)
    cdef Histogram* times = ms.times
    all[RECORDS_SENT] += records
    all[BATCHES_SENT] += 1
    all[BATCH_BYTES] += size
    all[RAW_BYTES] += raw_size
    all[ACKNOWLEDGED_NS] += age_ns
    part[RECORDS_SENT] += records
    part[BATCHES_SENT] += 1
    part[BATCH_BYTES] += size
    part[RAW_BYTES] += raw_size
    reach(&peaks[BATCH_BYTES_PEAK], size)
    reach(&peaks[RECORD_BYTES_PEAK], record_peak)
    reach(&peaks[ACKNOWLEDGED_NS_PEAK], age_ns)
    count_time(&times[ACKNOWLEDGED_NS_TIMED], age_ns)


cdef void count_queued(Meters* ms, int64_t ns) noexcept nogil:
    """Counts a batch that is added to its first request. The caller has called ``meters_turn``."""
    cdef int64_t* all = ms.all.total
    cdef Histogram* times = ms.times
    all[BATCHES_QUEUED] += 1
    all[QUEUE_NS] += ns
    reach(&peaks_now(ms, &ms.all)[QUEUE_NS_PEAK], ns)
    count_time(&times[QUEUE_NS_TIMED], ns)


cdef void count_answer(Meters* ms, Meter* node, int64_t latency_ns, int64_t throttle_ms) noexcept nogil:
    """Counts a broker's response to a Produce request, received at ``answered_ns``."""
    cdef int64_t* all = turn_both(ms, node, ms.answered_ns)
    cdef int64_t* part = node.total - PRODUCE_RESPONSES
    cdef int64_t* peaks = peaks_now(ms, &ms.all)
    cdef int64_t* part_peaks = peaks_now(ms, node)
    cdef Histogram* times = ms.times
    all[PRODUCE_RESPONSES] += 1
    all[LATENCY_NS] += latency_ns
    all[THROTTLE_MS] += throttle_ms
    part[PRODUCE_RESPONSES] += 1
    part[LATENCY_NS] += latency_ns
    part[THROTTLE_MS] += throttle_ms
    reach(&peaks[LATENCY_NS_PEAK], latency_ns)
    reach(&peaks[THROTTLE_MS_PEAK], throttle_ms)
    reach(&part_peaks[LATENCY_NS_PEAK], latency_ns)
    reach(&part_peaks[THROTTLE_MS_PEAK], throttle_ms)
    count_time(&times[LATENCY_NS_TIMED], latency_ns)


cdef inline void add_traffic(int64_t* sums, int64_t* peaks, const Traffic* t) noexcept nogil:
    sums[REQUESTS] += t.requests
    sums[REQUEST_BYTES] += t.request_bytes
    sums[OUT_BYTES] += t.out_bytes
    sums[RESPONSES] += t.responses
    sums[IN_BYTES] += t.in_bytes
    if t.requests:
        reach(&peaks[REQUEST_BYTES_PEAK], t.request_peak)


cdef void count_traffic(Meters* ms, Meter* node, Traffic* t, int64_t now) noexcept nogil:
    """Adds a connection's traffic and clears it; ``node`` is NULL if it has no broker's meter (yet)."""
    add_traffic(turn_both(ms, node, now), peaks_now(ms, &ms.all), t)
    if node != NULL:
        add_traffic(node.total - PRODUCE_RESPONSES, peaks_now(ms, node), t)
    t[0] = Traffic(0, 0, 0, 0, 0, 0)
