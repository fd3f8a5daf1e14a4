from libc.stdint cimport int64_t

from cyproducer.accumulator.structures cimport Accumulator, Batch, Node, Partition, Topic

cdef enum:
    DISTANT_NS = 50_000_000   # a broker whose fastest answers take this long is far
    CROWDED = 4               # answers that take this many times the fastest come from a slow link or broker


cdef inline bint is_far(const Node* n) noexcept nogil:
    """Whether distance is what delays the broker's answers. False before the first answer."""
    return n.fastest_ns >= DISTANT_NS and n.latest_ns <= CROWDED * n.fastest_ns


cdef int64_t most_grown(int64_t batch_size, int64_t max_request_size) noexcept nogil
cdef void note_answer(Node* n, int64_t latency_ns, int64_t now) noexcept nogil
cdef int64_t grown_limit(const Accumulator* a, const Topic* t, int64_t buffer_memory) noexcept nogil
cdef bint enlarge(
    Accumulator* a, Partition* p, Batch* b, int64_t buffer_memory, int64_t now
) noexcept nogil
