"""The counters behind ``metrics()``, and how values of a window come out of totals.

A meter has *sums*, which only grow, and *peaks*, the greatest values. Time is cut into windows of
``metrics_sample_window_ms``, of which the latest ``metrics_num_samples`` are kept: of each window, what the
sums were when it began, and its own peaks. So counting is an addition, as it would be without windows, and a
rate is the difference of two sums.

Nobody ticks: whoever counts or reads first in a new window turns the pages (``meters_turn``), with whatever
time it has at hand. Meters of topics and brokers turn theirs when they are next counted on or read.

Guarded by ``Accumulator.lock``, but for ``Traffic``, which is the sender's own until it is added here.
"""

from libc.stdint cimport int32_t, int64_t

from cyproducer.base.histogram cimport Histogram

# Each list here is the only one: metric_snapshot takes the names that metrics are read by from it. A new sum
# takes a line, and a place that counts it.

# A topic has the sums in front of BATCHES_SPLIT, a broker those from PRODUCE_RESPONSES on.
cpdef enum:
    RECORDS_SENT              # acknowledged
    RECORDS_FAILED
    RECORDS_RETRIED
    BATCHES_SENT              # acknowledged
    BATCH_BYTES               # of these, as they went
    RAW_BYTES                 # the same before compression
    BATCHES_SPLIT
    ACKNOWLEDGED_NS           # from creation to acknowledgement, of acknowledged batches
    BATCHES_QUEUED            # put into their first request
    QUEUE_NS                  # from creation till then
    RECORDS_REQUESTED         # in Produce requests, each time
    PRODUCE_REQUESTS
    CONNECTED
    DISCONNECTED
    FLUSH_NS                  # time of application threads in flush()
    METADATA_WAIT_NS          # and waiting for a topic's metadata
    EXHAUSTED                 # waits for memory that ran out of time; the pool's count
    MEMORY_WAIT_NS            # time in such waits; the pool's count
    PRODUCE_RESPONSES
    LATENCY_NS                # of Produce requests that were answered
    THROTTLE_MS
    REQUESTS                  # of every kind, written whole
    REQUEST_BYTES             # of these
    OUT_BYTES                 # written
    RESPONSES
    IN_BYTES                  # read
    SUMS                      # how many there are; stays the last line

# A broker has the peaks from LATENCY_NS_PEAK on, a topic none.
cpdef enum:
    BATCH_BYTES_PEAK
    RECORD_BYTES_PEAK
    QUEUE_NS_PEAK
    ACKNOWLEDGED_NS_PEAK
    LATENCY_NS_PEAK
    THROTTLE_MS_PEAK
    REQUEST_BYTES_PEAK
    PEAKS                     # how many there are; stays the last line

# What there are histograms of. Each has a peak of the same name, which no percentile exceeds.
cpdef enum:
    QUEUE_NS_TIMED
    LATENCY_NS_TIMED
    ACKNOWLEDGED_NS_TIMED
    HISTOGRAMS                # how many there are; stays the last line

cdef struct Meter:
    int64_t window            # what its latest page belongs to
    int32_t first             # the number of its first sum
    int32_t sums              # how many it has
    int32_t first_peak
    int32_t peaks
    int64_t* total            # the sums, from the first one on; owned, with everything below
    int64_t* begun            # for each of the latest windows: the sums when it began
    int64_t* peak             # for each of the latest windows: its peaks; -1: none

# Bytes and messages of a connection that have not been added to the meters yet.
cdef struct Traffic:
    int64_t requests
    int64_t request_bytes
    int64_t request_peak
    int64_t out_bytes
    int64_t responses
    int64_t in_bytes

cdef struct Meters:
    int64_t began_ns
    int64_t length_ns         # of a window
    int64_t ends_ns           # of the current one
    int64_t window            # the current one's number, from 0 on
    int64_t page              # where its pages are
    int64_t answered_ns       # when a request was answered last, or given up; its batches end then
    int32_t samples           # windows that are kept
    Meter all
    Histogram* times          # [HISTOGRAMS]; owned, as is the next
    Histogram* times_begun    # [samples * HISTOGRAMS]: what they were when each window began
    const int64_t* exhausted  # the pool's own counts, which it guards itself
    const int64_t* memory_wait_ns

cdef int meters_init(
    Meters* ms, int32_t samples, int64_t window_ns, int64_t now, const int64_t* exhausted,
    const int64_t* memory_wait_ns
) noexcept nogil
cdef void meters_free(Meters* ms) noexcept nogil
cdef int topic_meter(const Meters* ms, Meter* m) noexcept nogil
cdef int node_meter(const Meters* ms, Meter* m) noexcept nogil
cdef void meter_free(Meter* m) noexcept nogil
cdef void meters_roll(Meters* ms, int64_t now) noexcept nogil
cdef void meter_roll(const Meters* ms, Meter* m) noexcept nogil
cdef void count_records(Meters* ms, Meter* topic, int which, int64_t records, int64_t now) noexcept nogil
cdef void count_acknowledged(
    Meters* ms, Meter* topic, int64_t records, int64_t size, int64_t raw_size, int64_t record_peak,
    int64_t created_ns
) noexcept nogil
cdef void count_answer(Meters* ms, Meter* node, int64_t latency_ns, int64_t throttle_ms) noexcept nogil
cdef void count_traffic(Meters* ms, Meter* node, Traffic* t, int64_t now) noexcept nogil
cdef void count_queued(Meters* ms, int64_t ns) noexcept nogil


cdef inline void meters_turn(Meters* ms, int64_t now) noexcept nogil:
    """To be called before counting what happens now, and before reading."""
    if now >= ms.ends_ns:
        meters_roll(ms, now)
