"""Defines the counters behind ``metrics()``, and how the values of a window are derived from totals.

A meter has *sums*, which only grow, and *peaks*, the greatest values. Time is divided into windows of
``metrics_sample_window_ms``, and the latest ``metrics_num_samples`` are kept. A *page* holds what is kept for
one window: the sums at its start, and its own peaks. So counting is one addition, as it would be without
windows, and a rate is the difference of two sums.

There is no timer: the first caller that counts or reads in a new window begins its page (``meters_turn``),
with the time that the caller already has. The meters of topics and brokers begin their pages when they are
next updated or read.

Guarded by ``Accumulator.lock``, except ``Traffic``, which only the sender uses until it is added here.
"""

from libc.stdint cimport int32_t, int64_t

from cyproducer.base.histogram cimport Histogram

# Each counter is listed only here: metric_snapshot takes the names of the metrics from these enums. A new sum
# needs one line here and the code that counts it.

# A topic has the sums before BATCHES_SPLIT, a broker those from PRODUCE_RESPONSES on.
cpdef enum:
    RECORDS_SENT              # acknowledged
    RECORDS_FAILED
    RECORDS_RETRIED
    BATCHES_SENT              # acknowledged
    BATCH_BYTES               # of acknowledged batches, as sent
    RAW_BYTES                 # of the same batches, before compression
    BATCHES_SPLIT
    ACKNOWLEDGED_NS           # from creation to acknowledgement, of acknowledged batches
    BATCHES_QUEUED            # put into their first request
    QUEUE_NS                  # from creation until then
    RECORDS_REQUESTED         # in Produce requests, each time
    PRODUCE_REQUESTS
    CONNECTED
    DISCONNECTED
    FAILED_AUTHENTICATIONS    # of connections that were not ready yet; includes TLS handshakes
    FLUSH_NS                  # time that application threads spent in flush()
    METADATA_WAIT_NS          # time that they spent waiting for a topic's metadata
    TXN_INIT_NS               # time that they spent in init_transactions(), and so on
    TXN_BEGIN_NS
    TXN_SEND_OFFSETS_NS
    TXN_COMMIT_NS
    TXN_ABORT_NS
    EXHAUSTED                 # waits for memory that timed out; the pool's count
    MEMORY_WAIT_NS            # time spent waiting for memory; the pool's count
    PRODUCE_RESPONSES
    LATENCY_NS                # of Produce requests that were answered
    THROTTLE_MS
    REQUESTS                  # of every kind, written completely
    REQUEST_BYTES             # of these requests
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

# The times that have histograms. Each has a peak of the same name, which no percentile exceeds.
cpdef enum:
    QUEUE_NS_TIMED
    LATENCY_NS_TIMED
    ACKNOWLEDGED_NS_TIMED
    HISTOGRAMS                # how many there are; stays the last line

cdef struct Meter:
    int64_t window            # the window of its latest page
    int32_t first             # the number of its first sum
    int32_t sums              # how many sums it has
    int32_t first_peak
    int32_t peaks
    int64_t* total            # the sums, from the first one on; owned: one block with the next two
    int64_t* begun            # for each of the latest windows: the sums when it began
    int64_t* peak             # for each of the latest windows: its peaks; -1: none

# Bytes and messages of a connection that are not yet added to the meters.
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
    int64_t page              # the index of its page
    int64_t answered_ns       # when the last request was answered or failed; its batches end at this time
    int32_t samples           # how many windows are kept
    Meter all
    Histogram* times          # [HISTOGRAMS]; owned, as is the next, with their octaves
    Histogram* times_begun    # [samples * HISTOGRAMS]: the histograms when each window began
    const int64_t* exhausted  # the pool's own counts, which the pool guards
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
cdef void take_pool(Meters* ms) noexcept nogil
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
    """Begins a new window if ``now`` is past the current one. Call it before counting, and before reading."""
    if now >= ms.ends_ns:
        meters_roll(ms, now)
