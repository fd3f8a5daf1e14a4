from libc.stdint cimport int32_t, int64_t, uint32_t

from cyproducer.futures.delivery cimport Delivery
from cyproducer.base.sync cimport cyp_add32

# A run of rows of one call that are adjacent in one batch.
cdef struct Segment:
    Delivery* delivery        # a reference is held
    int32_t first             # the index of the first row in the batch
    int32_t count
    int32_t partition
    int32_t next              # the partition's next segment; -1: this is the last one


# A partition that has rows, and one of its segments: the last one while rows are appended, later the current
# one of a walk.
cdef struct Chain:
    int32_t partition         # -1: a free slot
    int32_t at                # -1: none


# The chains by partition: a hash table with linear probing, so its size depends on the partitions that have
# rows, not on how many the topic has.
cdef struct Chains:
    Chain* slots              # 2 ** n slots, at least half of them free
    int32_t mask              # 2 ** n - 1
    int32_t shift             # 32 - n
    int32_t used


# Sizes of one record's key and value in bytes, as its metadata reports them; -1: null.
cdef struct Sizes:
    int32_t key
    int32_t value


cdef class Segments:
    cdef Segment* items
    cdef int32_t used
    cdef int32_t room
    cdef int32_t settled           # all segments before this one have an outcome
    cdef int32_t* partitions       # of each row
    cdef int64_t rows              # rows that were accepted
    cdef Chains chains             # while rows are appended; only ``used`` is kept afterwards
    cdef Chain few[4]              # its slots, if four are enough

    cdef int prepare(self, int64_t rows) except -1
    cdef bint make_room(self, int32_t more) noexcept nogil
    cdef bint make_chains(self, int32_t more) noexcept nogil
    cdef void _free_chains(self) noexcept nogil
    cdef int finish(self, int64_t prepared) except -1
    cdef Delivery* first_pending(self, int32_t* index) except? NULL
    cdef int expand(self, Segment* s) noexcept nogil
    cdef list ranges(self)
    cdef tuple offsets(self)
    cdef list failures(self)
    cdef list metadata(self, str topic, const Sizes* sizes, object timestamp_ms)
    cdef int32_t* _begin_walk(self, Chains* cursor) except NULL
    cdef int32_t _segment_of(self, int64_t row, Chains* cursor, const int32_t* taken) noexcept nogil


cdef inline Chain* chain_of(const Chains* c, int32_t partition) noexcept nogil:
    """The partition's slot, or the free slot where it belongs."""
    # Fibonacci hashing also spreads partitions that are multiples of a power of two.
    cdef uint32_t at = (<uint32_t>partition * <uint32_t>2654435769) >> c.shift
    while c.slots[at].partition != partition and c.slots[at].partition >= 0:
        at = (at + 1) & c.mask
    return &c.slots[at]


cdef inline void note(
    Segments s, int32_t partition, Delivery* d, int32_t first, int32_t count, bint counted
) noexcept nogil:
    """Notes ``count`` rows that were appended consecutively. There must be room for one more segment and
    partition.

    ``counted``: the caller holds a reference to the delivery and passes it on.
    """
    cdef Chain* chain = chain_of(&s.chains, partition)
    cdef int32_t last = chain.at
    cdef Segment* at = s.items + last
    cdef int64_t i
    for i in range(s.rows, s.rows + count):
        s.partitions[i] = partition
    s.rows += count
    if last >= 0 and at.delivery == d and at.first + at.count == first:
        at.count += count
        if counted:
            # Never the last reference: the segment holds one.
            drop_reference(d)
        return
    if not counted:
        add_reference(d)
    at = s.items + s.used
    at.delivery = d
    at.first = first
    at.count = count
    at.partition = partition
    at.next = -1
    if last >= 0:
        s.items[last].next = s.used
    else:
        chain.partition = partition
        s.chains.used += 1
    chain.at = s.used
    s.used += 1


cdef inline void add_reference(Delivery* d) noexcept nogil:
    cyp_add32(&d.refs, 1)


cdef inline void drop_reference(Delivery* d) noexcept nogil:
    cyp_add32(&d.refs, -1)
