"""Limits a topic's batch size after a broker has refused a batch as too large, and lifts the limit again.

Owns lowering and raising the limit, and the probes that raise it. Does not own cutting refused batches
(``splitting``) or the estimate of how many records fit (``record_accumulator``). Everything runs under the
accumulator's lock.

Each refusal halves the limit (``splitting``). It rises in steps of ``batch_size`` / 16. A *probe* is a batch
that may be one step larger than the limit. A topic has one probe at a time:

    refused          it is cut into parts that fit. The limit stays; the next probe waits 5, 10, 20, 20 s
    acknowledged     the limit rises by one step, and the next batch is a probe
    not that large   the limit stays; the next probe is due after the same wait

So a limit that the broker no longer has is lifted after 20 s and 16 batches. A limit that it still has costs
one refusal every 20 s.

A limit above ``batch_size`` comes from batches that had grown (``far_brokers``). It is lifted in the same
steps, by batches that grow again.
"""

cdef enum:
    STEPS = 16                # from zero to batch_size

cdef int64_t FIRST_WAIT_NS = 5_000_000_000
cdef int64_t LONGEST_WAIT_NS = 20_000_000_000


cdef int64_t step(const Accumulator* a) noexcept nogil:
    return max(a.batch_size // STEPS, <int64_t>1)


cdef void lower_limit(Topic* t, int64_t limit, int64_t now) noexcept nogil:
    """Sets a new limit after the broker refused a batch that was no larger than the old limit."""
    t.batch_limit = limit
    t.probe_wait_ns = FIRST_WAIT_NS
    t.probe_at_ns = now + FIRST_WAIT_NS


cdef int64_t probe(const Accumulator* a, Topic* t, int64_t now) noexcept nogil:
    """Schedules the next probe, and returns the maximum size of the new batch, which is a probe."""
    t.probe_at_ns = now + t.probe_wait_ns
    return min(t.batch_limit + step(a), a.batch_size)


cdef bint was_probe(const Batch* b) noexcept nogil:
    """Whether the batch is a probe that has grown larger than the topic's limit."""
    return b.probes and b.partition.topic.batch_limit > 0 and b.size > b.partition.topic.batch_limit


cdef void probe_refused(Topic* t, int64_t now) noexcept nogil:
    t.probe_wait_ns = min(2 * t.probe_wait_ns, LONGEST_WAIT_NS)
    t.probe_at_ns = now + t.probe_wait_ns


cdef void probe_acknowledged(const Accumulator* a, const Batch* b) noexcept nogil:
    """Raises the limit by one step if the acknowledged probe was larger than the limit."""
    cdef Topic* t = b.partition.topic
    cdef bint below
    if not was_probe(b):
        return
    below = t.batch_limit < a.batch_size
    t.batch_limit = min(t.batch_limit + step(a), a.batch_size if below else a.most_grown)
    if t.batch_limit >= a.most_grown:
        t.batch_limit = 0
    t.probe_wait_ns = FIRST_WAIT_NS
    t.probe_at_ns = 0
