"""Manages the accumulator's structures of topics, partitions and brokers.

Owns the lifetime of the structures and the assignment of partitions to brokers. Does not own the metadata
that determines them (``control/metadata``). Runs under the accumulator's lock, on the sender.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from cyproducer.futures.delivery cimport delivery_unref
from cyproducer.base.meters cimport meter_free, node_meter, topic_meter
from cyproducer.accumulator.ready_partitions cimport refresh, withdraw
from cyproducer.accumulator.structures cimport GATE_OPEN, NODE_BUCKETS, Parked, Partition
from cyproducer.base.sync cimport (
    CACHE_LINE,
    cyp_note32,
    cyp_store_pointer,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** memory, size_t alignment, size_t size)


cdef class TopicInfo:
    """Owns a topic's C structure and keeps it alive. Only the accumulator creates it."""

    def __dealloc__(self):
        cdef void* block
        cdef Parked* k
        while self.c.first_parked != NULL:
            k = self.c.first_parked
            self.c.first_parked = k.next
            delivery_unref(k.delivery)
            free(k)
        while self.c.blocks != NULL:
            block = self.c.blocks
            self.c.blocks = (<void**>block)[0]
            free(block)
        free_arrays(self.c.partitions)
        free(self.c.available)
        meter_free(&self.c.meter)


cdef void free_arrays(Partition** partitions) noexcept nogil:
    """Frees a topic's array of partitions, and those that it has outgrown."""
    cdef void** array
    while partitions != NULL:
        array = <void**>partitions - 1
        partitions = <Partition**>array[0]
        free(array)


cdef TopicInfo make_topic(
    Accumulator* a, str name, int32_t key_hash, int32_t keyless, TopicSettings* settings
):
    """Creates a topic without partitions and adds it to the accumulator's list."""
    cdef TopicInfo state = TopicInfo.__new__(TopicInfo)
    cdef char* text
    cdef int failed
    state.name = name
    state.utf8 = name.encode()
    text = state.utf8
    state.c.name = text
    state.c.name_size = <int32_t>len(state.utf8)
    state.c.settings = settings
    state.c.key_hash = key_hash
    state.c.keyless = keyless
    state.c.sticky = -1
    state.c.compression_ratio = 1.0
    pthread_mutex_lock(&a.lock)
    failed = topic_meter(&a.meters, &state.c.meter)
    if not failed:
        state.c.number = a.topics_made
        a.topics_made += 1
        state.c.next = a.topics
        if a.topics != NULL:
            a.topics.prev = &state.c
        a.topics = &state.c
    pthread_mutex_unlock(&a.lock)
    if failed:
        raise MemoryError(f"no memory for the structures of topic {name!r}")
    return state


cdef Node* find_node(Accumulator* a, int32_t node_id) noexcept nogil:
    """The broker with that id, or NULL. Called with the lock held, or on the sender thread."""
    cdef Node* n = a.node_buckets[<uint32_t>node_id % NODE_BUCKETS]
    while n != NULL and n.id != node_id:
        n = n.next_in_bucket
    return n


cdef Node* make_node(Accumulator* a, int32_t node_id) except NULL:
    """The broker with that id; creates it if it is new."""
    cdef Node** bucket = &a.node_buckets[<uint32_t>node_id % NODE_BUCKETS]
    cdef Node* n
    pthread_mutex_lock(&a.lock)
    n = find_node(a, node_id)
    if n == NULL:
        n = <Node*>calloc(1, sizeof(Node))
        if n != NULL and node_meter(&a.meters, &n.meter):
            free(n)
            n = NULL
        if n != NULL:
            n.id = node_id
            n.takes = 1   # its first batch must wake the sender, which then connects to the broker
            n.next = a.nodes
            a.nodes = n
            n.next_in_bucket = bucket[0]
            bucket[0] = n
    pthread_mutex_unlock(&a.lock)
    if n == NULL:
        raise MemoryError("no memory for a broker's structure")
    return n


cdef int widen(Accumulator* a, Topic* t, int32_t count) noexcept nogil:
    """Gives a topic room for ``count`` partitions; returns -1 if malloc fails. The lock is held.

    Partitions are never freed before the topic: batches in flight point to them. Nor are arrays of them,
    which appends read without the lock: in front of each is the address of the one that it replaced.
    """
    cdef void** grown
    cdef int32_t* available
    cdef void* block
    cdef Partition* p
    cdef int64_t size
    cdef int32_t i
    if count <= t.partition_room:
        return 0
    grown = <void**>calloc(1 + count, sizeof(void*))
    if grown == NULL:
        return -1
    grown[0] = <void*>t.partitions
    if t.partitions != NULL:
        memcpy(grown + 1, t.partitions, sizeof(Partition*) * t.partition_room)
    cyp_store_pointer(<void**>&t.partitions, grown + 1)
    available = <int32_t*>realloc(t.available, sizeof(int32_t) * count)
    if available == NULL:
        return -1
    t.available = available
    size = CACHE_LINE + sizeof(Partition) * <int64_t>(count - t.partition_room)
    if posix_memalign(&block, CACHE_LINE, size):
        return -1
    memset(block, 0, size)
    (<void**>block)[0] = t.blocks
    t.blocks = block
    p = <Partition*>(<char*>block + CACHE_LINE)
    for i in range(t.partition_room, count):
        p.index = i
        p.topic = t
        t.partitions[i] = p
        p += 1
    t.partition_room = count
    return 0


cdef int assign_leader(Accumulator* a, Topic* t, int32_t index, Node* node) noexcept nogil:
    """Assigns a partition, with its whole queue, to its leader (NULL: none). The lock is held."""
    cdef Partition* p = t.partitions[index]
    if p.node == node:
        return 0
    withdraw(a, p)
    cyp_store_pointer(<void**>&p.node, node)
    # First wait for the responses to the batches in flight to the old leader: they may have to be sent again.
    p.recovering = p.in_flight > 0
    return refresh(a, p)


cdef void take_id(Accumulator* a, Topic* t, const uint8_t* topic_id) noexcept nogil:
    """Sets a topic's id, 16 bytes. The lock is held.

    A different id means that the topic was created again: the batches in flight will be refused and sent
    again, and no other batch must overtake them.
    """
    cdef int32_t i
    if memcmp(t.id, topic_id, 16) == 0:
        return
    memcpy(t.id, topic_id, 16)
    for i in range(t.partition_room):
        t.partitions[i].known = 0
        if t.partitions[i].in_flight > 0:
            t.partitions[i].recovering = 1
            refresh(a, t.partitions[i])


cdef int list_available(Topic* t, int32_t count) noexcept nogil:
    """Lists those of the first ``count`` partitions that have a leader, the rack's first. Lock held."""
    cdef Node* node
    cdef int32_t in_rack
    cdef int32_t i
    t.available_count = 0
    t.in_rack_count = 0
    for in_rack in range(1, -1, -1):
        for i in range(count):
            node = t.partitions[i].node
            if node != NULL and node.in_rack == in_rack:
                t.available[t.available_count] = i
                t.available_count += 1
                t.in_rack_count += in_rack
    if t.in_rack_count > 0 and t.sticky >= 0:
        node = t.partitions[t.sticky].node
        if node == NULL or not node.in_rack:
            # The rack leads a partition again. Few records could take long to fill the batch of another one.
            cyp_note32(&t.sticky, -1)
    return t.available_count


cdef void join_waiting(Accumulator* a, Topic* t) noexcept nogil:
    """Inserts a topic into the list of topics with parked records. The lock is held.

    Sorted by the deadline of the first record. The search starts at the end: with equal timeouts the new
    topic is the last.
    """
    cdef Topic* before = a.last_waiting
    while before != NULL and before.first_parked.deadline_ns > t.first_parked.deadline_ns:
        before = before.prev_waiting
    t.prev_waiting = before
    if before != NULL:
        t.next_waiting = before.next_waiting
        before.next_waiting = t
    else:
        t.next_waiting = a.first_waiting
        a.first_waiting = t
    if t.next_waiting != NULL:
        t.next_waiting.prev_waiting = t
    else:
        a.last_waiting = t


cdef void leave_waiting(Accumulator* a, Topic* t) noexcept nogil:
    if t.prev_waiting != NULL:
        t.prev_waiting.next_waiting = t.next_waiting
    else:
        a.first_waiting = t.next_waiting
    if t.next_waiting != NULL:
        t.next_waiting.prev_waiting = t.prev_waiting
    else:
        a.last_waiting = t.prev_waiting
    t.prev_waiting = NULL
    t.next_waiting = NULL


cdef inline bint at_rest(const Accumulator* a, const Partition* p) noexcept nogil:
    """Whether nothing refers to a partition: no queued or in-flight batch, and not the sender's heap of
    partitions in backoff. While the gate is open, the control plane has no pending orders for the partition.
    An open transaction refers to the partitions that it has written to or added."""
    return (
        p.first == NULL and p.in_flight == 0 and p.retry_at_ns == 0 and p.gate == GATE_OPEN
        and (a.transaction == 0 or (p.written_in != a.transaction and p.joining != a.transaction))
    )


cdef bint drop_topic(Accumulator* a, Topic* t) noexcept nogil:
    """Removes a topic from the list of all topics, unless it is still in use; returns whether it did.

    A topic is in use while it has parked records or a partition that is not ``at_rest``. The lock is held.
    The sequences of a removed topic can still be read, see ``copy_sequences``.
    """
    cdef int32_t i
    if t.first_parked != NULL or t.gone:
        return False
    for i in range(t.partition_room):
        if not at_rest(a, t.partitions[i]):
            return False
    t.gone = 1
    if t.prev != NULL:
        t.prev.next = t.next
    else:
        a.topics = t.next
    if t.next != NULL:
        t.next.prev = t.prev
    return True


cdef bint copy_sequences(const Accumulator* a, const Topic* t, Sequences* out) noexcept nogil:
    """Copies the next sequences of a dropped topic; returns whether any differs from 0. The lock is held.

    ``out`` has room for ``partition_room`` sequences. Brokers remember the last sequences: if a partition
    started at 0 again, they would treat its next batch as a duplicate or as out of order.
    """
    cdef const Partition* p
    cdef bint any = False
    cdef int32_t i
    out.producer_id = a.producer_id
    out.producer_epoch = a.producer_epoch
    for i in range(t.partition_room):
        p = t.partitions[i]
        out.next[i] = 0
        if p.producer_id == a.producer_id and p.producer_epoch == a.producer_epoch:
            out.next[i] = p.next_sequence
            any |= p.next_sequence != 0
    return any


cdef void restore_sequences(Topic* t, const Sequences* kept, int32_t count) noexcept nogil:
    """Makes a topic's new partitions continue the sequences of the dropped ones. The lock is held."""
    cdef int32_t i
    for i in range(count):
        t.partitions[i].producer_id = kept.producer_id
        t.partitions[i].producer_epoch = kept.producer_epoch
        t.partitions[i].next_sequence = kept.next[i]
