from libc.stdint cimport int32_t, int64_t

from cyproducer.buffers.delivery cimport Delivery
from cyproducer.buffers.sync cimport cyp_add32

# Rows of one call that lie side by side in one batch.
cdef struct Segment:
    Delivery* delivery        # a reference is held
    int32_t first             # the place of the first of them in the batch
    int32_t count
    int32_t partition
    int32_t next              # the partition's next segment; -1: this is the last


# Of one record's key and value, as its metadata tells them; -1: null.
cdef struct Sizes:
    int32_t key
    int32_t value


cdef class Segments:
    cdef Segment* items
    cdef int32_t used
    cdef int32_t room
    cdef int32_t settled           # all before this one have an outcome
    cdef int32_t* partitions       # of each row
    cdef int64_t rows              # rows that were accepted
    cdef int32_t* first            # of each partition: its first segment, -1: none
    cdef int32_t* last
    cdef int32_t partition_count

    cdef int prepare(self, int64_t rows) except -1
    cdef int widen(self, int32_t partitions) except -1
    cdef bint make_room(self, int32_t more) noexcept nogil
    cdef int finish(self) except -1
    cdef Delivery* first_pending(self, int32_t* index) except? NULL
    cdef int expand(self, Segment* s) noexcept nogil
    cdef list ranges(self)
    cdef tuple offsets(self)
    cdef list failures(self)
    cdef list metadata(self, str topic, const Sizes* sizes, object timestamp_ms)
    cdef int32_t* _cursor(self) except NULL
    cdef int32_t _segment_of(self, int64_t row, int32_t* cursor, const int32_t* taken) noexcept nogil


cdef inline void note(
    Segments s, int32_t partition, Delivery* d, int32_t first, int32_t count, bint counted
) noexcept nogil:
    """Enters ``count`` rows that were appended one behind the other; there is room for a segment more.

    ``counted``: the caller has a reference, which is taken over.
    """
    cdef int32_t last = s.last[partition]
    cdef Segment* at = s.items + last
    cdef int64_t i
    for i in range(s.rows, s.rows + count):
        s.partitions[i] = partition
    s.rows += count
    if last >= 0 and at.delivery == d and at.first + at.count == first:
        at.count += count
        if counted:
            # Not the last reference: the segment has one.
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
        s.first[partition] = s.used
    s.last[partition] = s.used
    s.used += 1


cdef inline void add_reference(Delivery* d) noexcept nogil:
    cyp_add32(&d.refs, 1)


cdef inline void drop_reference(Delivery* d) noexcept nogil:
    cyp_add32(&d.refs, -1)
