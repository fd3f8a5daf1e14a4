"""How large a topic's batches may be after a broker has refused one as too large, and how that ends.

Owns: the limit's fall, its rise, and the probes between them. Does not own: cutting what was refused
(``splitting``), nor how many records give so many bytes (``record_accumulator``). All under the accumulator's
lock.

The limit falls by halves (``splitting``), and rises by one step of ``batch_size`` / 16 at a time. A *probe*
is a batch that may be one step larger than the limit. There is one at a time in a topic:

    refused          it is cut into parts that fit. The limit stays; the next probe waits for 5, 10, 20, 20 s
    acknowledged     the limit rises by a step, and the next batch is a probe
    not that large   it has shown nothing: the next probe is due after the same wait

So a limit that is gone is forgotten after 20 s and 16 batches, and one that is still there costs a refusal
every 20 s.
"""

cdef enum:
    STEPS = 16                # from nothing to batch_size

cdef int64_t FIRST_WAIT_NS = 5_000_000_000
cdef int64_t LONGEST_WAIT_NS = 20_000_000_000


cdef inline int64_t step(const Accumulator* a) noexcept nogil:
    return max(a.batch_size // STEPS, <int64_t>1)


cdef void lower_limit(Topic* t, int64_t limit, int64_t now) noexcept nogil:
    """A batch was refused that was no larger than the limit."""
    t.batch_limit = limit
    t.probe_wait_ns = FIRST_WAIT_NS
    t.probe_at_ns = now + FIRST_WAIT_NS


cdef int64_t probe(const Accumulator* a, Topic* t, int64_t now) noexcept nogil:
    """Makes the batch that is begun now a probe; returns how large it may be."""
    t.probe_at_ns = now + t.probe_wait_ns
    return min(t.batch_limit + step(a), a.batch_size)


cdef bint was_probe(const Batch* b) noexcept nogil:
    """Whether a batch is larger than the topic's limit because it was to be."""
    return b.probes and b.partition.topic.batch_limit > 0 and b.size > b.partition.topic.batch_limit


cdef void probe_refused(Topic* t, int64_t now) noexcept nogil:
    t.probe_wait_ns = min(2 * t.probe_wait_ns, LONGEST_WAIT_NS)
    t.probe_at_ns = now + t.probe_wait_ns


cdef void probe_acknowledged(const Accumulator* a, const Batch* b) noexcept nogil:
    """A probe of any size was acknowledged."""
    cdef Topic* t = b.partition.topic
    if not was_probe(b):
        return
    t.batch_limit += step(a)
    if t.batch_limit >= a.batch_size:
        t.batch_limit = 0
    t.probe_wait_ns = FIRST_WAIT_NS
    t.probe_at_ns = 0
