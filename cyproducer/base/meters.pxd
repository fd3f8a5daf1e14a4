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

# The sums. A topic has the first six of them, a broker those from FIRST_OF_NODE on.
cdef enum:
    RECORDS_SENT = 0          # acknowledged
    RECORDS_FAILED = 1
    RECORDS_RETRIED = 2
    BATCHES_SENT = 3          # acknowledged
    BATCH_BYTES = 4           # of these, as they went
    RAW_BYTES = 5             # the same before compression
    SUMS_OF_TOPIC = 6
    BATCHES_SPLIT = 6
    ACKNOWLEDGED_NS = 7       # from creation to acknowledgement, of acknowledged batches
    BATCHES_QUEUED = 8        # put into their first request
    QUEUE_NS = 9              # from creation till then
    RECORDS_REQUESTED = 10    # in Produce requests, each time
    PRODUCE_REQUESTS = 11
    CONNECTED = 12
    DISCONNECTED = 13
    FLUSH_NS = 14             # time of application threads in flush()
    METADATA_WAIT_NS = 15     # and waiting for a topic's metadata
    EXHAUSTED = 16            # waits for memory that ran out of time; the pool's count
    MEMORY_WAIT_NS = 17       # time in such waits; the pool's count
    FIRST_OF_NODE = 18
    PRODUCE_RESPONSES = 18
    LATENCY_NS = 19           # of Produce requests that were answered
    THROTTLE_MS = 20
    REQUESTS = 21             # of every kind, written whole
    REQUEST_BYTES = 22        # of these
    OUT_BYTES = 23            # written
    RESPONSES = 24
    IN_BYTES = 25             # read
    SUMS = 26

cdef enum:
    BATCH_BYTES_PEAK = 0
    RECORD_BYTES_PEAK = 1
    QUEUE_PEAK = 2            # ns
    ACKNOWLEDGED_PEAK = 3     # ns
    FIRST_PEAK_OF_NODE = 4
    LATENCY_PEAK = 4          # ns
    THROTTLE_PEAK = 5         # ms
    REQUEST_PEAK = 6          # bytes
    PEAKS = 7

cdef enum:
    HISTOGRAMS = 3

cdef enum:                    # what there are histograms of
    QUEUE_TIMES = 0
    LATENCIES = 1
    ACKNOWLEDGEMENTS = 2

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
