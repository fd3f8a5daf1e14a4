from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from cyproducer.accumulator.structures cimport Accumulator, Node, Topic, TopicSettings


cdef class TopicInfo:
    cdef Topic c
    cdef int32_t pins         # bulk calls that use it now: a pinned topic is not forgotten
    cdef readonly str name
    cdef bytes utf8               # the memory of c.name

# What is kept when a topic is forgotten: the next sequence of each partition.
cdef struct Sequences:
    int64_t producer_id
    int16_t producer_epoch
    int32_t next[1]           # variable length: one per partition

cdef TopicInfo make_topic(
    Accumulator* a, str name, int32_t key_hash, int32_t keyless, TopicSettings* settings
)
cdef Node* find_node(Accumulator* a, int32_t node_id) noexcept nogil
cdef Node* make_node(Accumulator* a, int32_t node_id) except NULL
cdef int assign_leader(Accumulator* a, Topic* t, int32_t index, Node* node) noexcept nogil
cdef void take_id(Accumulator* a, Topic* t, const uint8_t* topic_id) noexcept nogil
cdef int widen(Accumulator* a, Topic* t, int32_t count) noexcept nogil
cdef int list_available(Topic* t, int32_t count) noexcept nogil
cdef void join_waiting(Accumulator* a, Topic* t) noexcept nogil
cdef void leave_waiting(Accumulator* a, Topic* t) noexcept nogil
cdef bint drop_topic(Accumulator* a, Topic* t) noexcept nogil
cdef bint copy_sequences(const Accumulator* a, const Topic* t, Sequences* out) noexcept nogil
cdef void restore_sequences(Topic* t, const Sequences* kept, int32_t count) noexcept nogil
