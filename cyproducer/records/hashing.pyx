"""Hashes keys, and maps the hashes to partitions as each Kafka client does.

Owns murmur2, CRC-32, FNV-1a, murmur3, and the rule of each client from hash to partition, including None and
the empty key. Does not know topics or leaders, or how keyless records are handled (``control/partitioners``).
Any thread may call it, with or without the GIL.

A rule is one line of ``RULES``, at the end of this module: its name, its hash, how the hash becomes a
partition, and whether an empty or a missing key is hashed or makes the record keyless. A new rule needs only
that line here and a partitioner in ``control/partitioners.py`` that names it.

Sources: Java ``BuiltInPartitioner.partitionForKey`` and ``Utils.murmur2`` (java); librdkafka
``rdkafka_msg.c``, ``rdmurmur2.c``, ``rdfnv1a.c`` (the six from consistent to fnv1a_random); Sarama
``partitioner.go``, ``NewHashPartitioner`` and ``NewReferenceHashPartitioner``. ``fnv1a_random`` and
``sarama`` agree for every key: taking the absolute value before or after the remainder gives the same number,
even for 2**31. No major client has a murmur3 partitioner; this rule is the one that Python programs implement
themselves: ``(mmh3.hash(key) & 0x7fffffff) % n``, Java's sign handling with mmh3's default seed.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int32_t, uint8_t, uint32_t

cdef extern from "crc_slicing.h" nogil:
    ctypedef uint32_t crc_slices_t[8][256]
    void crc_slices_fill(crc_slices_t table, uint32_t reflected_polynomial) noexcept
    uint32_t crc_slices_update(crc_slices_t table, uint32_t crc, const uint8_t* data, size_t n) noexcept
    uint32_t crc_load_le32(const uint8_t* at) noexcept

cdef crc_slices_t crc32_slices   # filled below, at import; read only afterwards

crc_slices_fill(crc32_slices, 0xEDB88320)


cdef uint32_t murmur2_of(const uint8_t* data, Py_ssize_t n) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>n
    cdef uint32_t k
    while n >= 4:
        k = crc_load_le32(data) * m
        k = (k ^ (k >> 24)) * m
        h = (h * m) ^ k
        data += 4
        n -= 4
    if n == 3:
        h ^= <uint32_t>data[2] << 16
    if n >= 2:
        h ^= <uint32_t>data[1] << 8
    if n >= 1:
        h = (h ^ data[0]) * m
    h = (h ^ (h >> 13)) * m
    return h ^ (h >> 15)


cdef uint32_t crc32_of(const uint8_t* data, Py_ssize_t n) noexcept nogil:
    return ~crc_slices_update(crc32_slices, ~<uint32_t>0, data, <size_t>n)


cdef uint32_t fnv1a_of(const uint8_t* data, Py_ssize_t n) noexcept nogil:
    cdef uint32_t h = 0x811C9DC5
    cdef Py_ssize_t i
    for i in range(n):
        h = (h ^ data[i]) * <uint32_t>0x01000193
    return h


cdef inline uint32_t rotate_left(uint32_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (32 - bits))


cdef inline uint32_t murmur3_block(uint32_t k) noexcept nogil:
    return rotate_left(k * <uint32_t>0xCC9E2D51, 15) * <uint32_t>0x1B873593


cdef uint32_t murmur3_of(const uint8_t* data, Py_ssize_t n) noexcept nogil:
    cdef uint32_t h = 0   # the seed
    cdef uint32_t length = <uint32_t>n
    cdef uint32_t k = 0
    while n >= 4:
        h = rotate_left(h ^ murmur3_block(crc_load_le32(data)), 13) * 5 + <uint32_t>0xE6546B64
        data += 4
        n -= 4
    if n == 3:
        k = <uint32_t>data[2] << 16
    if n >= 2:
        k |= <uint32_t>data[1] << 8
    if n >= 1:
        h ^= murmur3_block(k | data[0])
    h ^= length
    h = (h ^ (h >> 16)) * <uint32_t>0x85EBCA6B
    h = (h ^ (h >> 13)) * <uint32_t>0xC2B2AE35
    return h ^ (h >> 16)


cdef inline int32_t masked(uint32_t h, int32_t partitions) noexcept nogil:
    return <int32_t>(h & <uint32_t>0x7FFFFFFF) % partitions


cdef inline int32_t magnitude(uint32_t h, int32_t partitions) noexcept nogil:
    # Negated as unsigned: -(2**31) has no positive int32, and librdkafka and Sarama both compute 2**31 % n.
    if h >> 31:
        h = <uint32_t>0 - h
    return <int32_t>(h % <uint32_t>partitions)


cdef inline int32_t remainder(uint32_t h, int32_t partitions) noexcept nogil:
    return <int32_t>(h % <uint32_t>partitions)


cdef int32_t partition_of(int32_t rule, const uint8_t* key, Py_ssize_t n, int32_t partitions) noexcept nogil:
    cdef const KeyHashRule* r = &key_hash_rules[rule]
    if partitions < 1 or r.hash == NULL:
        return -1
    if n <= 0:
        if not (r.hashes_empty if n == 0 else r.hashes_missing):
            return -1
        n = 0
    return r.place(r.hash(key, n), partitions)


cdef int32_t rule_number(str name) except -1:
    """Returns the number of the rule with this name, for ``partition_of``. Raises ValueError if there is
    none."""
    if name not in RULES:
        raise ValueError(f"unknown key hash {name!r}: allowed are {', '.join(RULES)}")
    return RULES.index(name)


cdef uint32_t hashed(KeyHashFunction function, object data) except? 0:
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    result = function(<const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return result


def murmur2(data):
    """Kafka's murmur2 of ``data``, any C-contiguous buffer, as 0..2**32-1 (Java's int is the signed view).

    Raises TypeError if ``data`` is not a buffer, BufferError if it is not contiguous.
    """
    return hashed(murmur2_of, data)


def crc32(data):
    """The IEEE CRC-32 of ``data``, any C-contiguous buffer: ``zlib.crc32``. Raises as ``murmur2`` does."""
    return hashed(crc32_of, data)


def fnv1a(data):
    """The 32 bit FNV-1a of ``data``, any C-contiguous buffer, as 0..2**32-1. Raises as ``murmur2`` does."""
    return hashed(fnv1a_of, data)


def murmur3(data):
    """MurmurHash3 x86_32 of ``data``, any C-contiguous buffer: ``mmh3.hash(data, signed=False)``.

    Raises as ``murmur2`` does.
    """
    return hashed(murmur3_of, data)


def partition_for_key(str rule, key, partitions):
    """The partition of ``key`` in 0..partitions-1, or -1 if the rule treats the record as keyless.

    ``rule`` is one of ``RULES``; ``key`` is None or any C-contiguous buffer. Raises ValueError for an unknown
    rule and for ``partitions`` outside 1..2**31-1, TypeError and BufferError as ``murmur2`` does.
    """
    cdef Py_buffer view
    cdef int32_t which = rule_number(rule)
    cdef int32_t count
    if not 1 <= partitions <= INT32_MAX:
        raise ValueError(f"partitions is {partitions!r}: allowed are 1..{INT32_MAX}")
    count = partitions
    if key is None:
        return partition_of(which, NULL, -1, count)
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    result = partition_of(which, <const uint8_t*>view.buf, view.len, count)
    PyBuffer_Release(&view)
    return result


cdef str rule(
    str name, KeyHashFunction hash, KeyPlaceFunction place, bint hashes_empty=True, bint hashes_missing=False
):
    """Adds a rule; returns its name."""
    global rule_count
    if rule_count == MOST_RULES:
        raise OverflowError(f"more than MOST_RULES={MOST_RULES} rules")
    key_hash_rules[rule_count] = KeyHashRule(hash, place, hashes_empty, hashes_missing)
    rule_count += 1
    return name


cdef int32_t rule_count = 0

# librdkafka hashes a missing key like an empty one, except for the rules with "random" in their name.
RULES = (
    rule("none", NULL, NULL, False),   # keys are ignored
    rule("java", murmur2_of, masked),
    rule("consistent", crc32_of, remainder, True, True),
    rule("consistent_random", crc32_of, remainder, False),
    rule("murmur2", murmur2_of, masked, True, True),
    rule("murmur2_random", murmur2_of, masked),
    rule("fnv1a", fnv1a_of, magnitude, True, True),
    rule("fnv1a_random", fnv1a_of, magnitude),
    rule("sarama", fnv1a_of, magnitude),
    rule("sarama_reference", fnv1a_of, masked),
    rule("murmur3", murmur3_of, masked),
)
