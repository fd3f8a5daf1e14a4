"""Encodes Produce requests and decodes Produce responses, versions 3 to 13, without the GIL.

Owns the frame around the batches, as a list of slices for ``sendmsg`` (a batch's bytes are never copied), and
decoding a response into one ``Outcome`` per batch. Does not send anything and does not interpret error codes.

Nothing in a response is trusted: every read is checked against the remaining bytes, no memory is allocated
for a count, and a response that omits a batch of the request, or contains it twice, is malformed.

Source: Kafka protocol guide, "Produce"; KIP-482 (flexible versions, from 9), KIP-467 (record errors, from
8), KIP-951 (the new leader, from 10), KIP-516 (topic ids, from 13).
"""

from libc.stdint cimport INT64_MAX, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from cyproducer.accumulator.structures cimport Topic
from cyproducer.records.big_endian cimport get_u16, get_u32, get_u64, put_u16, put_u32
from cyproducer.records.varint cimport put_uvarint

from cyproducer.base.text import printable
from cyproducer.wire.messages import PRODUCE
from cyproducer.wire.versions import PRODUCE_BY_TOPIC_ID

cdef enum:
    PER_TOPIC = 32            # upper bound for the bytes around a topic, without its name
    PER_BATCH = 16            # upper bound for the bytes around a batch
    ID_SIZE = 16
    LONGEST_STRING = 32767    # bytes
    FEW_BATCHES = 32          # sorting by insertion takes less time than counting bytes
    SLICE = 1024              # record errors to read before other threads can run
    NOT_LEADER_OR_FOLLOWER = 6
    FENCED_LEADER_EPOCH = 74

cdef int FLEXIBLE = PRODUCE.flexible
cdef int TOPIC_IDS = PRODUCE_BY_TOPIC_ID
cdef int CLIENT_THROTTLES = PRODUCE.client_throttles


cdef uint64_t key_of(const Partition* p) noexcept nogil:
    """What the batches of a request are sorted by: first the topic, then the partition."""
    return <uint64_t>p.topic.number << 32 | <uint32_t>p.index


cdef inline bint same_topic(uint64_t a, uint64_t b) noexcept nogil:
    return a >> 32 == b >> 32


cdef void sort_few(Request* r) noexcept nogil:
    """Sorts ``r.keys`` and the batches by insertion."""
    cdef int32_t i
    cdef int32_t at
    cdef uint64_t key
    cdef Batch* batch
    for i in range(1, r.count):
        key = r.keys[i]
        batch = r.batches[i]
        at = i
        while at > 0 and r.keys[at - 1] > key:
            r.keys[at] = r.keys[at - 1]
            r.batches[at] = r.batches[at - 1]
            at -= 1
        r.keys[at] = key
        r.batches[at] = batch


cdef bint sort_many(Request* r, uint64_t varying) noexcept nogil:
    """Sorts ``r.keys`` and the batches by one byte of the keys after the other, the lowest first.

    ``varying``: the bits in which keys differ. Bytes without such bits are left out, so the batches of one
    topic with up to 65,536 partitions take two passes. qsort would take twenty times as many steps, each with
    a call. Returns False without memory.
    """
    cdef uint64_t* keys = r.keys
    cdef Batch** batches = r.batches
    cdef uint64_t* sorted_keys = <uint64_t*>malloc((sizeof(uint64_t) + sizeof(Batch*)) * r.count)
    cdef Batch** sorted_batches
    cdef int32_t[256] places
    cdef int32_t i
    cdef int32_t place
    cdef int32_t before
    cdef int shift
    if sorted_keys == NULL:
        return False
    sorted_batches = <Batch**>(sorted_keys + r.count)
    for shift in range(0, 64, 8):
        if varying >> shift & 0xFF == 0:
            continue
        memset(places, 0, sizeof(places))
        for i in range(r.count):
            places[keys[i] >> shift & 0xFF] += 1
        place = 0
        for i in range(256):
            before = place
            place += places[i]
            places[i] = before
        for i in range(r.count):
            place = places[keys[i] >> shift & 0xFF]
            places[keys[i] >> shift & 0xFF] += 1
            sorted_keys[place] = keys[i]
            sorted_batches[place] = batches[i]
        memcpy(keys, sorted_keys, sizeof(uint64_t) * r.count)
        memcpy(batches, sorted_batches, sizeof(Batch*) * r.count)
    free(sorted_keys)
    return True


cdef bint sort_batches(Request* r) noexcept nogil:
    """Sorts the batches of a request, and sets ``keys``; returns False without memory."""
    cdef int32_t i
    cdef bint sorted = True
    cdef uint64_t varying = 0
    for i in range(r.count):
        r.keys[i] = key_of(r.batches[i].partition)
        varying |= r.keys[i] ^ r.keys[0]
        sorted = sorted and (i == 0 or r.keys[i - 1] < r.keys[i])
    # Programs that go through their partitions in order have sorted them already.
    if sorted:
        return True
    if r.count > FEW_BATCHES:
        return sort_many(r, varying)
    sort_few(r)
    return True


cdef inline uint8_t* put_count(uint8_t* p, int64_t count, bint flexible) noexcept nogil:
    """Writes an array's count or a byte string's length in the version's encoding."""
    if flexible:
        return put_uvarint(p, count + 1)
    put_u32(p, <int32_t>count)
    return p + 4


cdef inline uint8_t* put_text(uint8_t* p, const char* text, int32_t size, bint flexible) noexcept nogil:
    """Writes a string; null if ``text`` is NULL."""
    if flexible:
        p = put_uvarint(p, size + 1 if text != NULL else 0)
    else:
        put_u16(p, size if text != NULL else <int16_t>-1)
        p += 2
    if text != NULL:
        memcpy(p, text, size)
        p += size
    return p


cdef bint has_id(const Topic* t) noexcept nogil:
    cdef int i
    for i in range(ID_SIZE):
        if t.id[i]:
            return True
    return False


cdef Request* encode_produce(
    const ProduceSettings* settings, int16_t version, int32_t correlation_id, Batch** batches, int32_t count
) noexcept nogil:
    """Encodes the request for these batches, whose headers are already written; NULL if out of memory.

    Takes ownership of the batches, but not of the array. There is at least one batch, and their topics have
    the same acks. ``version`` is the highest version to use: if a topic's id is unknown, because its metadata
    came from a broker without Metadata v10, the request uses topic names and at most v12.
    """
    cdef bint flexible = version >= FLEXIBLE
    cdef Request* r = <Request*>calloc(1, sizeof(Request))
    cdef int64_t room = 64 + settings.client_id_size + max(settings.transactional_id_size, 0)
    cdef int32_t topics = 0
    cdef int32_t i
    cdef int32_t in_topic
    cdef Topic* t
    cdef uint8_t* p
    cdef uint8_t* slice_start
    if r == NULL:
        return NULL
    r.parts = <iovec*>malloc(sizeof(iovec) * (2 * count + 1))
    r.batches = <Batch**>malloc((sizeof(Batch*) + sizeof(uint64_t) + ID_SIZE) * count)
    if r.parts == NULL or r.batches == NULL:
        free_request(r)
        return NULL
    memcpy(r.batches, batches, sizeof(Batch*) * count)
    r.keys = <uint64_t*>(r.batches + count)
    r.ids = <uint8_t*>(r.keys + count)
    r.count = count
    r.acks = batches[0].partition.topic.settings.acks
    r.correlation_id = correlation_id
    if not sort_batches(r):
        free_request(r)
        return NULL
    for i in range(count):
        if i == 0 or not same_topic(r.keys[i - 1], r.keys[i]):
            t = r.batches[i].partition.topic
            topics += 1
            room += PER_TOPIC + t.name_size
            if version >= TOPIC_IDS and not has_id(t):
                version = TOPIC_IDS - 1
        # The response has the ids of the request. If a topic is recreated in the meantime, its id has changed
        # by the time the response arrives.
        memcpy(r.ids + i * ID_SIZE, t.id, ID_SIZE)
        room += PER_BATCH
    r.version = version
    r.frame = <uint8_t*>malloc(room)
    if r.frame == NULL:
        free_request(r)
        return NULL
    p = r.frame + 4
    put_u16(p, 0)   # Produce
    put_u16(p + 2, version)
    put_u32(p + 4, correlation_id)
    p = put_text(p + 8, settings.client_id, settings.client_id_size, False)
    if flexible:
        p[0] = 0
        p += 1
    p = put_text(p, settings.transactional_id, settings.transactional_id_size, flexible)
    put_u16(p, r.acks)
    put_u32(p + 2, settings.timeout_ms)
    p = put_count(p + 6, topics, flexible)
    slice_start = r.frame
    for i in range(count):
        if i == 0 or not same_topic(r.keys[i - 1], r.keys[i]):
            t = r.batches[i].partition.topic
            if i > 0 and flexible:
                p[0] = 0   # the previous topic's tags
                p += 1
            if version >= TOPIC_IDS:
                memcpy(p, t.id, ID_SIZE)
                p += ID_SIZE
            else:
                p = put_text(p, t.name, t.name_size, flexible)
            in_topic = 1
            while i + in_topic < count and same_topic(r.keys[i], r.keys[i + in_topic]):
                in_topic += 1
            p = put_count(p, in_topic, flexible)
        put_u32(p, <uint32_t>r.keys[i])
        p = put_count(p + 4, r.batches[i].size, flexible)
        add_part(r, slice_start, p - slice_start)
        add_part(r, r.batches[i].data, r.batches[i].size)
        slice_start = p
        if flexible:
            p[0] = 0   # the partition's tags
            p += 1
    if flexible:
        p[0] = 0   # the last topic's tags
        p[1] = 0   # the request's
        p += 2
        add_part(r, slice_start, p - slice_start)
    put_u32(r.frame, <int32_t>(r.size - 4))
    r.unwritten = r.size
    return r


cdef inline void add_part(Request* r, void* data, int64_t size) noexcept nogil:
    r.parts[r.part_count].iov_base = data
    r.parts[r.part_count].iov_len = size
    r.part_count += 1
    r.size += size


cdef Request* whole_request(
    int16_t api_key, int16_t version, int32_t correlation_id, const uint8_t* frame, int64_t size
) noexcept nogil:
    """Makes a request from one whole frame, which is copied; NULL if out of memory."""
    cdef Request* r = <Request*>calloc(1, sizeof(Request))
    if r == NULL:
        return NULL
    r.frame = <uint8_t*>malloc(size)
    r.parts = <iovec*>malloc(sizeof(iovec))
    if r.frame == NULL or r.parts == NULL:
        free_request(r)
        return NULL
    memcpy(r.frame, frame, size)
    r.api_key = api_key
    r.version = version
    r.correlation_id = correlation_id
    add_part(r, r.frame, size)
    r.unwritten = size
    return r


cdef void free_request(Request* r) noexcept nogil:
    """Frees a request, but not its batches, which the caller has passed on."""
    free(r.frame)
    free(r.parts)
    free(r.batches)
    free(r)


# Decoding. A read beyond the end moves the cursor to its end and sets `bad`, so that callers check only once.
cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end
    bint bad


cdef inline const uint8_t* take(Cursor* c, int64_t size) noexcept nogil:
    """Returns the next ``size`` bytes, or NULL with the cursor marked bad."""
    cdef const uint8_t* p = c.at
    if size < 0 or c.end - c.at < size:
        c.bad = True
        c.at = c.end
        return NULL
    c.at += size
    return p


cdef inline int64_t read_i16(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 2)
    return <int16_t>get_u16(p) if p != NULL else 0


cdef inline int64_t read_i32(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 4)
    return <int32_t>get_u32(p) if p != NULL else 0


cdef inline int64_t read_i64(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 8)
    return <int64_t>get_u64(p) if p != NULL else 0


cdef int64_t read_uvarint(Cursor* c) noexcept nogil:
    """Reads an unsigned varint of at most 5 bytes: no field of a response needs more."""
    cdef int64_t v = 0
    cdef int shift = 0
    cdef const uint8_t* p
    while shift < 35:
        p = take(c, 1)
        if p == NULL:
            return 0
        v |= <int64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            return v
        shift += 7
    c.bad = True
    return 0


cdef inline int64_t read_count(Cursor* c, bint flexible) noexcept nogil:
    """Reads an array's count: at least 0, at most the remaining bytes, since no element is empty."""
    cdef int64_t n = read_uvarint(c) - 1 if flexible else read_i32(c)
    if n < 0:
        return 0
    if n > c.end - c.at:
        c.bad = True
        return 0
    return n


cdef inline const uint8_t* read_text(Cursor* c, bint flexible, int64_t* size) noexcept nogil:
    """Returns a string's bytes; ``size`` is -1 for null."""
    size[0] = read_uvarint(c) - 1 if flexible else read_i16(c)
    if size[0] < 0:
        size[0] = -1
        return NULL
    if size[0] > LONGEST_STRING:
        c.bad = True
        return NULL
    return take(c, size[0])


cdef Cursor read_tags(Cursor* c) noexcept nogil:
    """Reads tagged fields. Returns the bytes of tag 0, and ignores others; ``at`` is NULL without tag 0."""
    cdef int64_t n = read_uvarint(c)
    cdef int64_t tag
    cdef const uint8_t* data
    cdef Cursor first
    first.at = first.end = NULL
    first.bad = False
    while n > 0 and not c.bad:
        tag = read_uvarint(c)
        data = take(c, read_uvarint(c))
        if tag == 0 and data != NULL:
            first.at = data
            first.end = c.at
        n -= 1
    return first


cdef dict record_errors(const Request* r, const Outcome* o, int32_t records):
    """Returns the records for which a broker rejected a batch: index in the batch -> message or None.

    An index outside the batch, which has ``records`` records, is ignored. See KIP-467. ``parse_produce`` has
    already checked that the response is well-formed.
    """
    cdef Cursor c
    cdef int64_t size
    cdef int32_t place
    cdef const char* text
    cdef int64_t i
    cdef dict found = {}
    c.at = o.record_errors
    c.end = o.record_errors_end
    c.bad = False
    for i in range(o.record_error_count):
        if i % SLICE == SLICE - 1:
            with nogil:
                pass
        place = <int32_t>read_i32(&c)
        text = <const char*>read_text(&c, r.version >= FLEXIBLE, &size)
        if 0 <= place < records:
            found[place] = printable(text[:size].decode("utf-8", "replace")) if size >= 0 else None
        if r.version >= FLEXIBLE:
            read_tags(&c)
    return found


cdef bint client_throttles(const Request* r) noexcept nogil:
    """Whether the client must observe the throttle time. In older versions, the broker delays its response.

    See KIP-219.
    """
    return r.version >= CLIENT_THROTTLES


cdef bint names_leader(const Outcome* o) noexcept nogil:
    """Whether the broker rejected a batch and named the new leader."""
    return o.leader_id >= 0 and (
        o.error_code == NOT_LEADER_OR_FOLLOWER or o.error_code == FENCED_LEADER_EPOCH
    )


cdef inline bint is_topic(const Request* r, int32_t i, const uint8_t* name, int64_t size) noexcept nogil:
    """Whether ``name``, from a response, is the topic of batch ``i``: its name, or its id from v13 on."""
    cdef const Topic* t = r.batches[i].partition.topic
    if r.version >= TOPIC_IDS:
        return memcmp(r.ids + i * ID_SIZE, name, ID_SIZE) == 0
    return size == t.name_size and memcmp(t.name, name, size) == 0


cdef int32_t find_topic(const Request* r, const uint8_t* name, int64_t size, int32_t hint) noexcept nogil:
    """Returns the index of a topic's first batch, or -1 if the topic is not in the request.

    The search starts at ``hint`` and wraps around. Brokers mostly keep the order of the request; then the
    first comparison finds it.
    """
    cdef int32_t i = hint if hint < r.count else 0
    cdef int32_t left = r.count
    cdef uint64_t key
    while left > 0:
        key = r.keys[i]
        if is_topic(r, i, name, size):
            # The hint may lie inside the topic's batches.
            while i > 0 and same_topic(r.keys[i - 1], key):
                i -= 1
            return i
        while left > 0 and same_topic(r.keys[i], key):
            left -= 1
            i += 1
            if i == r.count:
                i = 0
                break
    return -1


cdef int32_t find_partition(const Request* r, int32_t start, int32_t index, int32_t hint) noexcept nogil:
    """Returns the index of a partition's batch in the topic that begins at ``start``; -1 if there is none."""
    cdef uint64_t key = r.keys[start] >> 32 << 32 | <uint32_t>index
    cdef int32_t low = start
    cdef int32_t high = r.count
    cdef int32_t middle
    if hint < r.count and r.keys[hint] == key:
        return hint
    while low < high:
        middle = (low + high) // 2
        if r.keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low if low < r.count and r.keys[low] == key else -1


cdef int parse_produce(
    const Request* r, const uint8_t* frame, int64_t size, Outcome* outcomes, int32_t* throttle_ms,
    Endpoints* endpoints
) noexcept nogil:
    """Decodes the response to ``r`` from its correlation id on; returns 0, or -1 if it is malformed.

    ``outcomes`` has one element per batch, in the order of the request.
    """
    cdef bint flexible = r.version >= FLEXIBLE
    cdef Cursor c
    cdef Cursor leader
    cdef Cursor nodes
    cdef int64_t topics
    cdef int64_t partitions
    cdef int64_t errors
    cdef int64_t length = 0
    cdef int32_t hint = 0
    cdef int32_t start
    cdef int32_t i
    cdef const uint8_t* name
    cdef Outcome* o
    endpoints.data = NULL
    endpoints.size = 0
    for i in range(r.count):
        outcomes[i].seen = 0
    c.at = frame + 4
    c.end = frame + size
    c.bad = size < 4
    if flexible and not c.bad:
        read_tags(&c)
    topics = read_count(&c, flexible) if not c.bad else 0
    # Each topic must have a batch. Each additional topic would cost a search in the request.
    if topics > r.count:
        return -1
    while topics > 0 and not c.bad:
        if r.version >= TOPIC_IDS:
            name = take(&c, ID_SIZE)
        else:
            name = read_text(&c, flexible, &length)
        if name == NULL:
            return -1
        start = find_topic(r, name, length, hint)
        if start < 0:
            return -1
        hint = start
        partitions = read_count(&c, flexible)
        while partitions > 0 and not c.bad:
            i = find_partition(r, start, <int32_t>read_i32(&c), hint)
            if i < 0 or outcomes[i].seen:
                return -1
            hint = i + 1
            o = &outcomes[i]
            o.seen = 1
            o.leader_id = -1
            o.leader_epoch = -1
            o.message_size = -1
            o.error_code = <int16_t>read_i16(&c)
            o.base_offset = read_i64(&c)
            o.log_append_ms = read_i64(&c)
            # The batch's records have the offsets from base_offset on, which must not overflow.
            if o.base_offset > INT64_MAX - r.batches[i].count:
                return -1
            if r.version >= 5:
                read_i64(&c)   # log start offset
            o.record_error_count = 0
            if r.version >= 8:
                errors = read_count(&c, flexible)
                o.record_error_count = errors
                o.record_errors = c.at
                while errors > 0 and not c.bad:
                    read_i32(&c)
                    read_text(&c, flexible, &length)
                    if flexible:
                        read_tags(&c)
                    errors -= 1
                o.record_errors_end = c.at
                o.message = <const char*>read_text(&c, flexible, &length)
                o.message_size = <int32_t>length
            if flexible:
                leader = read_tags(&c)   # KIP-951
                if leader.at != NULL:
                    o.leader_id = <int32_t>read_i32(&leader)
                    o.leader_epoch = <int32_t>read_i32(&leader)
                    c.bad = c.bad or leader.bad
            partitions -= 1
        if flexible:
            read_tags(&c)
        topics -= 1
    throttle_ms[0] = <int32_t>read_i32(&c)
    if flexible:
        nodes = read_tags(&c)   # the addresses of the new leaders (KIP-951)
        endpoints.data = nodes.at
        endpoints.size = nodes.end - nodes.at
    if c.bad or c.at != c.end:
        return -1
    for i in range(r.count):
        if not outcomes[i].seen:
            return -1
    return 0
