"""Counts times in buckets of a fixed relative width, for percentiles without keeping the values.

Log-linear: each octave (a doubling of the time) has 32 buckets of equal width. A value is reported as the
middle of its bucket, so the error is 1/64 (1.6 %) at most; below 33 microseconds, where a bucket is 1.024
microseconds wide, it is half a bucket. Times of 73 minutes and more share the last bucket.

The idea is HdrHistogram's. Counting takes a shift, a count of leading zeros and an addition: about five
nanoseconds, no lock of its own (``Accumulator.lock`` guards it).

An octave's counts are allocated with its first time: the times of a producer fall into a few of the 28
octaves, and a process may have a thousand producers.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    """
    static inline int cyp_top_bit(uint64_t v) { return 63 - __builtin_clzll(v); }
    """
    int cyp_top_bit(uint64_t v) noexcept nogil      # of a value above 0

cdef enum:
    UNIT_SHIFT = 10           # 1024 ns: shorter times do not matter here
    SUB_SHIFT = 5             # 32 buckets per octave
    MOST_SHIFT = 26           # the last octave ends at 2**32 units, 73 minutes
    OCTAVES = 28              # MOST_SHIFT + 2
    OCTAVE = 32               # 1 << SUB_SHIFT: buckets
    BUCKETS = 896             # OCTAVES * OCTAVE

# The counts of a window are the differences of two histograms. 64 bits: exporters expose the counts since the
# start, and with 32 bits a bucket that many batches fall into would wrap within days.
cdef struct Histogram:
    int64_t* octaves[OCTAVES]     # [OCTAVE] each; NULL: all 0. Owned


cdef inline int32_t bucket_of(int64_t ns) noexcept nogil:
    cdef uint64_t units
    cdef int shift
    if ns <= 0:
        return 0
    units = <uint64_t>ns >> UNIT_SHIFT
    if units < (1 << SUB_SHIFT):
        return <int32_t>units
    shift = cyp_top_bit(units) - SUB_SHIFT
    if shift > MOST_SHIFT:
        return BUCKETS - 1
    return <int32_t>((<uint64_t>shift << SUB_SHIFT) + (units >> shift))


cdef inline double middle_of(int32_t bucket) noexcept nogil:
    """The middle of a bucket in nanoseconds."""
    cdef int shift = (bucket >> SUB_SHIFT) - 1
    cdef uint64_t width
    if shift < 0:
        shift = 0
    width = <uint64_t>1 << shift
    return (<uint64_t>(bucket - (shift << SUB_SHIFT)) * width + width * 0.5) * (1 << UNIT_SHIFT)


cdef inline int64_t* counts_of(Histogram* h, int32_t octave) noexcept nogil:
    """The counts of an octave, which are allocated if necessary; NULL if there is no memory."""
    if h.octaves[octave] == NULL:
        h.octaves[octave] = <int64_t*>calloc(OCTAVE, sizeof(int64_t))
    return h.octaves[octave]


cdef inline void count_time(Histogram* h, int64_t ns) noexcept nogil:
    """Counts a time. It is lost if it is the first one of its octave and there is no memory."""
    cdef int32_t bucket = bucket_of(ns)
    cdef int64_t* counts = counts_of(h, bucket >> SUB_SHIFT)
    if counts != NULL:
        counts[bucket & (OCTAVE - 1)] += 1


cdef inline void free_histograms(Histogram* first, int64_t count) noexcept nogil:
    """Frees an array of histograms, which may be NULL."""
    cdef int64_t i
    cdef int32_t k
    if first == NULL:
        return
    for i in range(count):
        for k in range(OCTAVES):
            free(first[i].octaves[k])
    free(first)
