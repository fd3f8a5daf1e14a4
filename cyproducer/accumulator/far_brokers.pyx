"""Lets batches for far brokers grow beyond ``batch_size`` while they can't be sent.

Owns which broker is far, and how large a full batch may grow. Does not own buffers (``record_accumulator``),
the limit that a refusal has taught (``batch_limit``), or the size of requests (``sender``). Everything runs
under the accumulator's lock.

A connection carries ``max_in_flight_requests_per_connection`` requests per round trip. If answers take
300 ms (object storage, another region), batches of ``batch_size`` use a tenth of what the broker would take.
So a batch that is full, and can't be sent yet, doubles its limit instead of being closed, up to
``most_grown``. It counts as full from then on: it does not linger, and goes into the next request as it is.
So batches are as large as the pressure requires, and those of a slow stream never exceed ``batch_size``.

Which broker is far: only one whose fastest answers take ``DISTANT_NS``. A near broker that is busy answers a
request quickly now and then: its batches, and its latency, stay as they are. If answers take much longer
than the fastest (``CROWDED``), the link or the broker is the bottleneck, and larger batches would only fill
its queues. Before a broker's first answer its distance is unknown. Batches grow once the oldest one has
waited for ``FIRST_WAIT_NS``: at 300 ms the memory would otherwise be full of small batches, each of which
takes a place in a request, and it would take seconds until they are sent.

How large: Kafka's default of ``max.message.bytes`` is 1,048,588. A batch is not larger before compression
either, so that its size on the wire needs no estimate. It does not exceed ``max_request_size`` or a limit
that the topic has taught. A partition gets an eighth of its share of ``buffer_memory``, among all partitions
that have batches in their queue: five batches in flight, and three that wait. So with 30 partitions nothing
grows, and no partition takes the memory of another one.
"""

from cyproducer.accumulator.batch_limit cimport step
from cyproducer.accumulator.ready_partitions cimport may_send

cdef enum:
    MOST_BYTES = 1 << 20
    MOST_TIMES = 8                # times batch_size: whoever lowers batch_size gets smaller batches
    BUFFER_STEP = 65536           # of which large buffers have a multiple: see buffer_capacity
    SHARES = 8                    # a partition's batches that fit into its share of the memory
    FIRST_WAIT_NS = 5_000_000     # how long batches wait for a broker's first answer until they grow

cdef double FORGET_NS = 30e9  # how fast `fastest_ns` rises to the time of slower answers


cdef int64_t most_grown(int64_t batch_size, int64_t max_request_size) noexcept nogil:
    """The largest size of a batch for a far broker, in bytes; ``batch_size`` if batches don't grow."""
    return max(batch_size, min(min(MOST_TIMES * batch_size, <int64_t>MOST_BYTES), max_request_size))


cdef void note_answer(Node* n, int64_t latency_ns, int64_t now) noexcept nogil:
    """Notes the time that a broker's answer took.

    ``fastest_ns`` follows faster answers at once, and slower ones with a time constant of ``FORGET_NS``. So a
    broker that is overloaded for some seconds is not taken for a far one.
    """
    cdef double share = min((now - n.latest_at_ns) / FORGET_NS, 1.0)
    if n.fastest_ns == 0 or latency_ns < n.fastest_ns:
        n.fastest_ns = max(latency_ns, <int64_t>1)
    else:
        n.fastest_ns += <int64_t>((latency_ns - n.fastest_ns) * share)
    n.latest_ns = latency_ns
    n.latest_at_ns = now


cdef inline int64_t share(const Accumulator* a, int64_t buffer_memory) noexcept nogil:
    """The maximum size of a batch of each partition that has some, in bytes: that of a buffer."""
    return buffer_memory // (SHARES * max(a.queues, 1)) & ~<int64_t>(BUFFER_STEP - 1)


cdef inline int64_t allowed(const Accumulator* a, const Topic* t) noexcept nogil:
    """The maximum size that the topic's broker is expected to take, in bytes."""
    return t.batch_limit if t.batch_limit > 0 else a.most_grown


cdef int64_t grown_limit(const Accumulator* a, const Topic* t, int64_t buffer_memory) noexcept nogil:
    """The maximum size of a batch that grows, in bytes, before compression."""
    return min(allowed(a, t), share(a, buffer_memory))


cdef inline bint is_slow_to_answer(const Node* n, const Partition* p, int64_t now) noexcept nogil:
    """Whether a broker that has never answered may be far."""
    return n.transport != NULL and now - p.first.created_ns >= FIRST_WAIT_NS


cdef bint enlarge(
    Accumulator* a, Partition* p, Batch* b, int64_t buffer_memory, int64_t now
) noexcept nogil:
    """Doubles the limit of a full batch if it is to grow; returns whether it was raised."""
    cdef const Node* n = p.node
    cdef int64_t limit
    if n == NULL or not (is_far(n) if n.fastest_ns > 0 else is_slow_to_answer(n, p, now)):
        return False
    if n.takes and p.first == b and may_send(a, p):
        return False
    limit = min(2 * b.limit, allowed(a, p.topic) + (step(a) if b.probes else 0))
    limit = min(limit, share(a, buffer_memory))
    if limit <= b.limit:
        return False
    b.limit = limit
    b.grown = 1
    return True
