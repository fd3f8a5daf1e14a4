"""Takes snapshots of the meters, from which ``metrics()`` is computed.

Runs on any thread; needs the GIL and does not release it.

Owns the copy of a meter, taken in one critical section, and its rates, averages, maxima and percentiles.
Does not own Kafka's metric names or values that are read elsewhere (``observability``).

Sums are named as in ``meters.pxd``, in lower case. Units are those of ``meters.pxd``: nanoseconds, bytes, and
milliseconds only for ``throttle_ms``.
"""

from libc.math cimport NAN
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from cyproducer.accumulator.record_accumulator cimport RecordAccumulator
from cyproducer.base.histogram cimport BUCKETS, OCTAVE, OCTAVES, Histogram, middle_of
from cyproducer.base.meters cimport HISTOGRAMS, PEAKS, SUMS, Meter, Meters, meter_roll, meters_turn, take_pool
from cyproducer.accumulator.structures cimport Accumulator, Node
from cyproducer.base.sync cimport pthread_mutex_lock, pthread_mutex_unlock
from cyproducer.accumulator.partition_table cimport TopicInfo, find_node

from cyproducer.base import meters


def _names_of(str suffix, int count):
    """The names of the ``meters.pxd`` constants with this suffix, by value, in lower case, without it."""
    found = {
        number: name
        for name, number in vars(meters).items()
        if isinstance(number, int) and name.endswith(suffix)
        if suffix or not name.endswith(("_PEAK", "_TIMED", "SUMS", "PEAKS", "HISTOGRAMS"))
    }
    return tuple(found[number].lower().removesuffix(suffix.lower()) for number in range(count))


SUM_NAMES = _names_of("", SUMS)
PEAK_NAMES = _names_of("_PEAK", PEAKS)
TIMED_NAMES = _names_of("_TIMED", HISTOGRAMS)

cdef dict SUM_OF = dict(zip(SUM_NAMES, range(SUMS)))
cdef dict PEAK_OF = dict(zip(PEAK_NAMES, range(PEAKS)))
cdef dict TIMED_OF = dict(zip(TIMED_NAMES, range(HISTOGRAMS)))


cdef class Reading:
    """A snapshot of one meter. Raises KeyError for sums and peaks that the meter does not have."""

    cdef int64_t totals[SUMS]
    cdef int64_t before[SUMS]         # the sums when the oldest window began
    cdef int64_t peaks[PEAKS]         # -1: none
    # [2 * HISTOGRAMS][BUCKETS]: the counts now, and those when the oldest window began; NULL: none.
    cdef int64_t* times
    cdef int32_t first
    cdef int32_t end
    cdef int32_t first_peak
    cdef int32_t end_peak
    cdef readonly double seconds      # length of the latest windows: the divisor of rates

    def __dealloc__(self):
        free(self.times)

    cdef int _sum(self, name) except -1:
        cdef int which = SUM_OF[name]
        if not self.first <= which < self.end:
            raise KeyError(f"{name}: this meter has {SUM_NAMES[self.first:self.end]}")
        return which

    cdef int _timed(self, name) except -1:
        if self.times == NULL:
            raise KeyError(f"{name}: this meter has no percentiles")
        return TIMED_OF[name]

    def total(self, str name not None):
        """The value of a sum since the start."""
        return self.totals[self._sum(name)]

    def recent(self, str name not None):
        """The increase of a sum over the latest windows."""
        cdef int which = self._sum(name)
        return self.totals[which] - self.before[which]

    def rate(self, str name not None):
        """The increase of a sum per second, over the latest windows."""
        return self.recent(name) / self.seconds

    def average(self, str name not None, str count not None):
        """One sum divided by another, over the latest windows; NaN if ``count`` has not increased."""
        cdef double counted = self.recent(count)
        return self.recent(name) / counted if counted else NAN

    def peak(self, str name not None):
        """The maximum in the latest windows; NaN if there is none."""
        cdef int which = PEAK_OF[name]
        if not self.first_peak <= which < self.end_peak:
            raise KeyError(f"{name}: this meter has {PEAK_NAMES[self.first_peak:self.end_peak]}")
        return <double>self.peaks[which] if self.peaks[which] >= 0 else NAN

    def percentile(self, str name not None, double share):
        """The percentile (``share``: 0 to 1) of the values in the latest windows, accurate to 1.6 %.

        Nearest-rank method; never above the peak. NaN if there are no values.
        """
        cdef int which = self._timed(name)
        cdef const int64_t* now = self.times + which * BUCKETS
        cdef const int64_t* then = now + HISTOGRAMS * BUCKETS
        cdef int64_t count = 0
        cdef int64_t rank
        cdef int32_t i
        for i in range(BUCKETS):
            count += now[i] - then[i]
        if count == 0:
            return NAN
        rank = <int64_t>(share * count)
        if rank < share * count:
            rank += 1
        i = 0
        while i < BUCKETS - 1:
            rank -= now[i] - then[i]
            if rank <= 0:
                break
            i += 1
        return min(middle_of(i), <double>self.peaks[PEAK_OF[name]])

    def buckets(self, str name not None):
        """The histogram's buckets that are not empty, as (middle in nanoseconds, count since the start)."""
        cdef const int64_t* now = self.times + self._timed(name) * BUCKETS
        cdef int32_t i
        return [(middle_of(i), now[i]) for i in range(BUCKETS) if now[i]]


cdef void copy_times(int64_t* to, const Histogram* first) noexcept nogil:
    """Copies the counts of HISTOGRAMS histograms to ``to``, which is zeroed."""
    cdef int32_t i
    cdef int32_t k
    for i in range(HISTOGRAMS):
        for k in range(OCTAVES):
            if first[i].octaves[k] != NULL:
                memcpy(to + i * BUCKETS + k * OCTAVE, first[i].octaves[k], OCTAVE * sizeof(int64_t))


cdef void copy(Reading r, Meters* ms, Meter* m, int64_t now) noexcept:
    """Copies a meter into ``r``. The lock is held; creates no Python objects."""
    cdef int64_t oldest
    cdef int64_t window
    cdef int64_t value
    cdef int32_t i
    meters_turn(ms, now)
    take_pool(ms)
    oldest = max(<int64_t>0, ms.window - ms.samples + 1)
    if m.window != ms.window:
        meter_roll(ms, m)
    memcpy(&r.totals[m.first], m.total, m.sums * sizeof(int64_t))
    memcpy(&r.before[m.first], m.begun + (oldest % ms.samples) * m.sums, m.sums * sizeof(int64_t))
    r.first = m.first
    r.end = m.first + m.sums
    r.first_peak = m.first_peak
    r.end_peak = m.first_peak + m.peaks
    for i in range(m.peaks):
        r.peaks[m.first_peak + i] = -1
    for window in range(oldest, ms.window + 1):
        for i in range(m.peaks):
            value = m.peak[(window % ms.samples) * m.peaks + i]
            if value > r.peaks[m.first_peak + i]:
                r.peaks[m.first_peak + i] = value
    # As in Kafka: all windows but the current one count as full, even before that many have passed. Otherwise
    # a producer that has just started would report huge rates.
    r.seconds = (
        (ms.samples - 1) * <double>ms.length_ns
        + max(now - ms.began_ns - ms.window * ms.length_ns, <int64_t>1_000_000)
    ) / 1e9
    if r.times != NULL:
        copy_times(r.times, ms.times)
        copy_times(r.times + HISTOGRAMS * BUCKETS, ms.times_begun + (oldest % ms.samples) * HISTOGRAMS)


def read_producer(RecordAccumulator accumulator not None):
    """A snapshot of the producer's meter: all records, batches, requests and connections."""
    cdef Reading r = Reading.__new__(Reading)
    cdef Meters* ms = &accumulator.c.meters
    cdef int64_t now = accumulator.clock.now_ns()
    r.times = <int64_t*>calloc(2 * HISTOGRAMS * BUCKETS, sizeof(int64_t))
    if r.times == NULL:
        raise MemoryError("no memory to read the metrics")
    pthread_mutex_lock(&accumulator.c.lock)
    copy(r, ms, &ms.all, now)
    pthread_mutex_unlock(&accumulator.c.lock)
    return r


def read_topic(RecordAccumulator accumulator not None, str name not None):
    """A snapshot of a topic's meter: its records and batches. Raises ``KeyError`` if the topic is unknown."""
    cdef Reading r = Reading.__new__(Reading)
    cdef TopicInfo topic = accumulator.topics[name]
    cdef int64_t now = accumulator.clock.now_ns()
    pthread_mutex_lock(&accumulator.c.lock)
    copy(r, &accumulator.c.meters, &topic.c.meter, now)
    pthread_mutex_unlock(&accumulator.c.lock)
    return r


def read_node(RecordAccumulator accumulator not None, int32_t node_id):
    """A snapshot of a broker's meter: its requests. Raises ``KeyError`` if the broker is unknown."""
    cdef Reading r = Reading.__new__(Reading)
    cdef Node* node
    cdef int64_t now = accumulator.clock.now_ns()
    pthread_mutex_lock(&accumulator.c.lock)
    node = find_node(&accumulator.c, node_id)
    if node != NULL:
        copy(r, &accumulator.c.meters, &node.meter, now)
    pthread_mutex_unlock(&accumulator.c.lock)
    if node == NULL:
        raise KeyError(f"node {node_id}: unknown broker")
    return r


def topic_names(RecordAccumulator accumulator not None):
    """The topics that records were sent to or whose partitions were requested, oldest first."""
    return list(accumulator.topics)


def node_ids(RecordAccumulator accumulator not None):
    """The ids of all brokers known so far, oldest first; bootstrap addresses have negative ids."""
    cdef Accumulator* a = &accumulator.c
    cdef Node* n
    pthread_mutex_lock(&a.lock)
    n = a.nodes
    pthread_mutex_unlock(&a.lock)
    # New nodes are inserted at the front, and none is freed before the accumulator: the list from ``n`` on
    # does not change.
    ids = []
    while n != NULL:
        ids.append(n.id)
        n = n.next
    ids.reverse()
    return ids
