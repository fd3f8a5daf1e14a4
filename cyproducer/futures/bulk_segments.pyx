"""Tracks where the rows of one call are: four bytes per row, and one segment per run of rows in a batch.

Owns recording rows as they are appended, checking whether all have an outcome, and walking the rows: each
row's partition is stored, and its offset is found with one cursor per partition that has rows. Does not own
the outcomes (``delivery``) or waiting for them (``bulk_future``).

Threads: one thread appends, without the GIL and under the accumulator's lock, and passes the object on. After
that, any thread with the GIL can read it. Segments change again only if a batch is split: its delivery is
*forwarded*, and its segment is replaced by segments of the parts, under the forward lock.
"""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

cimport cython

from cyproducer.futures.delivery cimport (
    ACKNOWLEDGED,
    FAILED,
    FORWARDED,
    PENDING,
    Forward,
    delivery_ref,
    delivery_unref,
    forward_lock,
    fresh,
    record_metadata,
)
from cyproducer.base.sync cimport cyp_load32, pthread_mutex_lock, pthread_mutex_unlock

from cyproducer.structs import FailedRows, OffsetRange, TopicPartition


# A free list, because each call allocates one.
@cython.freelist(8)
cdef class Segments:
    """See the module docstring. Only ``bulk_path`` creates it."""

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.used):
            delivery_unref(self.items[i].delivery)
        free(self.items)
        free(self.partitions)
        self._free_chains()

    # While appending

    cdef int prepare(self, int64_t rows) except -1:
        """Allocates the partitions of up to ``rows`` rows."""
        self.partitions = <int32_t*>malloc(max(1, rows) * sizeof(int32_t))
        if self.partitions == NULL:
            raise MemoryError(f"cannot allocate memory for the partitions of {rows} rows")
        return 0

    cdef bint make_room(self, int32_t more) noexcept nogil:
        """Makes room for ``more`` segments; returns False if there is no memory."""
        cdef Segment* grown
        cdef int64_t room
        if self.room - self.used >= more:
            return True
        room = 2 * <int64_t>self.room + more
        if room > 0x7FFFFFFF:
            return False
        grown = <Segment*>realloc(self.items, room * sizeof(Segment))
        if grown == NULL:
            return False
        self.items = grown
        self.room = <int32_t>room
        return True

    cdef bint make_chains(self, int32_t more) noexcept nogil:
        """Makes room for the chains of ``more`` new partitions; returns False if there is no memory."""
        cdef Chains grown
        cdef Chain* chain
        cdef int32_t i
        if 2 * (<int64_t>self.chains.used + more) <= self.chains.mask + 1 and self.chains.slots != NULL:
            return True
        if self.chains.slots == NULL and more <= 2:
            clear_chains(&self.chains, self.few, 4)
            return True
        if not new_chains(&grown, self.chains.used + more):
            return False
        if self.chains.slots != NULL:
            for i in range(self.chains.mask + 1):
                chain = &self.chains.slots[i]
                if chain.partition >= 0:
                    chain_of(&grown, chain.partition)[0] = chain[0]
        grown.used = self.chains.used
        self._free_chains()
        self.chains = grown
        return True

    cdef void _free_chains(self) noexcept nogil:
        if self.chains.slots != self.few:
            free(self.chains.slots)

    cdef int finish(self, int64_t prepared) except -1:
        """Frees the unused part of the room for ``prepared`` rows, and memory that is no longer needed."""
        cdef Segment* less
        cdef int32_t* fewer
        if self.used < self.room:
            less = <Segment*>realloc(self.items, max(1, self.used) * sizeof(Segment))
            if less != NULL:
                self.items = less
                self.room = max(1, self.used)
        if self.rows < prepared and self.partitions != NULL:
            fewer = <int32_t*>realloc(self.partitions, max(1, self.rows) * sizeof(int32_t))
            if fewer != NULL:
                self.partitions = fewer
        self._free_chains()
        self.chains.slots = NULL
        return 0

    # Outcomes

    cdef Delivery* first_pending(self, int32_t* index) except? NULL:
        """The first delivery that has no outcome yet, with a reference for the caller; NULL if all have one.

        ``index``: set to the index in that batch of one of these rows. Raises MemoryError.
        """
        cdef Delivery* found = NULL
        cdef Delivery* old
        cdef int state
        cdef int expanded
        while True:
            expanded = 1
            old = NULL
            pthread_mutex_lock(&forward_lock)
            while self.settled < self.used:
                state = cyp_load32(&self.items[self.settled].delivery.state)
                if state == PENDING:
                    found = self.items[self.settled].delivery
                    index[0] = self.items[self.settled].first
                    delivery_ref(found)
                    break
                if state == FORWARDED:
                    old = self.items[self.settled].delivery
                    expanded = self.expand(&self.items[self.settled])
                    break
                self.settled += 1
            pthread_mutex_unlock(&forward_lock)
            if not expanded:
                raise MemoryError("cannot allocate memory for the parts of a split batch")
            if old == NULL:
                return found
            # Freeing may need the GIL, which must not be acquired while a lock is held.
            delivery_unref(old)

    cdef int expand(self, Segment* s) noexcept nogil:
        """Replaces a segment of a split batch with segments of the parts; returns 0 if there is no memory.

        The caller drops the reference to the segment's old delivery.
        """
        cdef Forward* targets = s.delivery.forward + s.first
        cdef int32_t at = <int32_t>(s - self.items)
        cdef int32_t count = s.count
        cdef int32_t parts = 1
        cdef int32_t i
        for i in range(1, count):
            parts += targets[i].to != targets[i - 1].to or targets[i].index != targets[i - 1].index + 1
        if not self.make_room(parts):
            return 0
        s = &self.items[at]
        # The first part takes the segment's place. The others are appended to the array, and follow the first
        # part in the partition's chain.
        s.delivery = targets[0].to
        s.first = targets[0].index
        s.count = 1
        delivery_ref(s.delivery)
        for i in range(1, count):
            if targets[i].to == targets[i - 1].to and targets[i].index == targets[i - 1].index + 1:
                s.count += 1
                continue
            self.items[self.used] = s[0]
            s.next = self.used
            s = &self.items[self.used]
            self.used += 1
            s.delivery = targets[i].to
            s.first = targets[i].index
            s.count = 1
            delivery_ref(s.delivery)
        return 1

    # Once all have an outcome

    cdef list ranges(self):
        """An ``OffsetRange`` per run of acknowledged rows, sorted, with adjacent ranges joined."""
        cdef Segment* s
        cdef int32_t i
        found = []
        for i in range(self.used):
            s = &self.items[i]
            if s.delivery.state == ACKNOWLEDGED:
                offset = s.delivery.base_offset + s.first if s.delivery.base_offset >= 0 else -1
                found.append((s.partition, offset, s.count))
        found.sort()
        joined = []
        last = None
        for partition, offset, count in found:
            if last is not None and last[0] == partition:
                unknown = last[1] == offset == -1
                if unknown or 0 <= last[1] == offset - last[2]:
                    last[2] += count
                    continue
            last = [partition, offset, count]
            joined.append(last)
        return [OffsetRange(*each) for each in joined]

    cdef tuple offsets(self):
        """Each row's partition (int32) and offset (int64) as bytes, a bitmap of the rows that have an offset,
        and the number of rows that have none.

        The bitmap is None if no row failed. With ``acks=0`` an offset is -1.
        """
        cdef Chains cursor
        cdef int32_t* taken = self._begin_walk(&cursor)
        cdef int64_t i
        cdef int64_t nulls = 0
        cdef int64_t* offset
        cdef uint8_t* valid
        cdef Segment* s
        cdef int32_t at
        try:
            partitions = PyBytes_FromStringAndSize(<char*>self.partitions, self.rows * sizeof(int32_t))
            numbers = PyBytes_FromStringAndSize(NULL, self.rows * sizeof(int64_t))
            bitmap = PyBytes_FromStringAndSize(NULL, (self.rows + 7) // 8)
            offset = <int64_t*>PyBytes_AS_STRING(numbers)
            valid = <uint8_t*>PyBytes_AS_STRING(bitmap)
            with nogil:
                memset(valid, 0xFF, (self.rows + 7) // 8)
                for i in range(self.rows):
                    at = self._segment_of(i, &cursor, taken)
                    s = &self.items[at]
                    offset[i] = -1
                    if s.delivery.state == FAILED:
                        valid[i >> 3] &= ~(<uint8_t>1 << (i & 7))
                        nulls += 1
                    elif s.delivery.base_offset >= 0:
                        offset[i] = s.delivery.base_offset + s.first + taken[at]
                    taken[at] += 1
        finally:
            free(cursor.slots)
            free(taken)
        return partitions, numbers, bitmap if nulls else None, nulls

    cdef list metadata(self, str topic, const Sizes* sizes, object timestamp_ms):
        """Each row's ``RecordMetadata``, None for a row that failed.

        ``sizes``: one entry per row. ``timestamp_ms``: one for all rows, or a list.
        """
        cdef list timestamps = timestamp_ms if isinstance(timestamp_ms, list) else None
        cdef Chains cursor
        cdef int32_t* taken = self._begin_walk(&cursor)
        cdef dict places = {}
        cdef list found = []
        cdef int64_t row
        cdef int32_t at
        cdef int32_t partition
        cdef Segment* s
        try:
            for row in range(self.rows):
                at = self._segment_of(row, &cursor, taken)
                s = &self.items[at]
                if s.delivery.state == FAILED:
                    found.append(None)
                else:
                    partition = self.partitions[row]
                    if partition not in places:
                        places[partition] = TopicPartition(topic, partition)
                    found.append(
                        record_metadata(
                            s.delivery,
                            places[partition],
                            s.first + taken[at],
                            timestamp_ms if timestamps is None else timestamps[row],
                            sizes[row].key,
                            sizes[row].value,
                            -1,
                        )
                    )
                taken[at] += 1
        finally:
            free(cursor.slots)
            free(taken)
        return found

    cdef int32_t* _begin_walk(self, Chains* cursor) except NULL:
        """Begins a walk through the rows: fills ``cursor``, and returns the number of rows passed in each
        segment, all 0. The caller frees both."""
        cdef int32_t* taken = <int32_t*>calloc(max(1, self.used), sizeof(int32_t))
        cdef Chain* chain
        cdef int32_t i
        if taken == NULL or not new_chains(cursor, self.chains.used):
            free(taken)
            raise MemoryError(f"cannot allocate memory to walk the partitions of {self.rows} rows")
        # A partition's first segment precedes its others in the array: the later parts of a split segment
        # were appended.
        for i in range(self.used):
            chain = chain_of(cursor, self.items[i].partition)
            if chain.at < 0:
                chain.partition = self.items[i].partition
                chain.at = i
        return taken

    cdef int32_t _segment_of(self, int64_t row, Chains* cursor, const int32_t* taken) noexcept nogil:
        """The segment of ``row``, the next row of the walk; ``taken``: rows passed so far in each segment."""
        cdef Chain* chain = chain_of(cursor, self.partitions[row])
        if taken[chain.at] == self.items[chain.at].count:
            chain.at = self.items[chain.at].next
        return chain.at

    cdef list failures(self):
        """One ``FailedRows`` per batch that failed, ordered by their first rows; empty if none failed."""
        cdef Chains cursor
        cdef int32_t* taken
        cdef int64_t row
        cdef int32_t at
        cdef bint any_failed = False
        cdef dict of_delivery = {}
        for at in range(self.used):
            any_failed |= self.items[at].delivery.state == FAILED
        if not any_failed:
            return []
        taken = self._begin_walk(&cursor)
        try:
            for row in range(self.rows):
                at = self._segment_of(row, &cursor, taken)
                taken[at] += 1
                if self.items[at].delivery.state == FAILED:
                    which = <size_t>self.items[at].delivery
                    if which not in of_delivery:
                        of_delivery[which] = FailedRows(
                            self.items[at].partition,
                            fresh(<object>self.items[at].delivery.error),
                            array("q"),
                        )
                    of_delivery[which].rows.append(row)
        finally:
            free(cursor.slots)
            free(taken)
        return list(of_delivery.values())


cdef bint new_chains(Chains* c, int32_t partitions) noexcept nogil:
    """Creates an empty table for this many partitions; returns False if there is no memory."""
    cdef int64_t slots = 4
    while slots < 2 * <int64_t>partitions:
        slots *= 2
    c.slots = <Chain*>malloc(slots * sizeof(Chain))
    if c.slots == NULL:
        return False
    clear_chains(c, c.slots, <int32_t>slots)
    return True


cdef void clear_chains(Chains* c, Chain* slots, int32_t count) noexcept nogil:
    c.slots = slots
    c.mask = count - 1
    c.used = 0
    c.shift = 32
    while count > 1:
        count >>= 1
        c.shift -= 1
    memset(slots, 0xFF, (c.mask + 1) * sizeof(Chain))
