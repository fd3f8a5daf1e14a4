# cython: embedsignature=False
# Off because the line it writes would name the private function behind each public one.
"""Key hashes and the partition each Kafka client derives from them.

Owns: murmur2, CRC-32, FNV-1a, murmur3, and per client the rule from hash to partition, None and the
empty key included. Does not know topics, leaders or what happens to records without a key: that is
``control/partitioners.py``. Any thread may call it, with or without the GIL.

========================  ==========================================  ===========  =================
kind                      partition of a key                          None         empty key
========================  ==========================================  ===========  =================
none                      (keys are ignored)                          keyless      keyless
java                      (murmur2 & 0x7fffffff) % n                  keyless      hashed
consistent                crc32 % n                                   0            0
consistent_random         crc32 % n                                   keyless      keyless
murmur2                   (murmur2 & 0x7fffffff) % n                  as empty     hashed
murmur2_random            (murmur2 & 0x7fffffff) % n                  keyless      hashed
fnv1a                     abs(int32(fnv1a)) % n                       as empty     hashed
fnv1a_random              abs(int32(fnv1a)) % n                       keyless      hashed
sarama                    abs(int32(fnv1a) rem n)                     keyless      hashed
sarama_reference          (fnv1a & 0x7fffffff) % n                    keyless      hashed
murmur3                   (murmur3_x86_32(seed 0) & 0x7fffffff) % n   keyless      hashed
========================  ==========================================  ===========  =================

Sources: Java ``BuiltInPartitioner.partitionForKey`` and ``Utils.murmur2`` (java); librdkafka
``rdkafka_msg.c``, ``rdmurmur2.c``, ``rdfnv1a.c`` (the six from consistent to fnv1a_random); Sarama
``partitioner.go``, ``NewHashPartitioner`` and ``NewReferenceHashPartitioner``. ``fnv1a_random`` and
``sarama`` agree for every key: abs before or after the remainder is the same number, 2**31 included.
No client of note ships murmur3; the rule here is the one Python programs write by hand,
``(mmh3.hash(key) & 0x7fffffff) % n``, Java's sign handling on mmh3's default seed.
"""
from enum import IntEnum

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int32_t, uint8_t, uint32_t

cdef extern from "crc_slicing.h" nogil:
    ctypedef uint32_t crc_slices_t[8][256]
    void crc_slices_fill(crc_slices_t table, uint32_t reflected_polynomial) noexcept
    uint32_t crc_slices_update(crc_slices_t table, uint32_t crc, const uint8_t* data, size_t n) noexcept
    uint32_t crc_load_le32(const uint8_t* at) noexcept

cdef crc_slices_t crc32_slices   # filled below, at import; read only afterwards

crc_slices_fill(crc32_slices, 0xEDB88320)


cdef uint32_t murmur2(const uint8_t* data, Py_ssize_t n) noexcept nogil:
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


cdef uint32_t crc32(const uint8_t* data, Py_ssize_t n) noexcept nogil:
    return ~crc_slices_update(crc32_slices, ~<uint32_t>0, data, <size_t>n)


cdef uint32_t fnv1a(const uint8_t* data, Py_ssize_t n) noexcept nogil:
    cdef uint32_t h = 0x811C9DC5
    cdef Py_ssize_t i
    for i in range(n):
        h = (h ^ data[i]) * <uint32_t>0x01000193
    return h


cdef inline uint32_t rotate_left(uint32_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (32 - bits))


cdef inline uint32_t murmur3_block(uint32_t k) noexcept nogil:
    return rotate_left(k * <uint32_t>0xCC9E2D51, 15) * <uint32_t>0x1B873593


cdef uint32_t murmur3(const uint8_t* data, Py_ssize_t n, uint32_t seed) noexcept nogil:
    cdef uint32_t h = seed
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
    # Negated as unsigned: -(2**31) has no positive int32, and librdkafka and Sarama both reach 2**31 % n.
    if h >> 31:
        h = <uint32_t>0 - h
    return <int32_t>(h % <uint32_t>partitions)


cdef int32_t partition_for_key(
    KeyHash kind, const uint8_t* key, Py_ssize_t n, int32_t partitions
) noexcept nogil:
    if partitions < 1:
        return -1
    if n <= 0:
        if kind == KEY_HASH_CONSISTENT_RANDOM:
            return -1
        if n < 0:
            if kind != KEY_HASH_CONSISTENT and kind != KEY_HASH_MURMUR2 and kind != KEY_HASH_FNV1A:
                return -1
            # librdkafka hashes a missing key as an empty one for the kinds without "random" in their name.
            n = 0
    if kind == KEY_HASH_JAVA or kind == KEY_HASH_MURMUR2 or kind == KEY_HASH_MURMUR2_RANDOM:
        return masked(murmur2(key, n), partitions)
    if kind == KEY_HASH_CONSISTENT or kind == KEY_HASH_CONSISTENT_RANDOM:
        return <int32_t>(crc32(key, n) % <uint32_t>partitions)
    if kind == KEY_HASH_FNV1A or kind == KEY_HASH_FNV1A_RANDOM or kind == KEY_HASH_SARAMA:
        return magnitude(fnv1a(key, n), partitions)
    if kind == KEY_HASH_SARAMA_REFERENCE:
        return masked(fnv1a(key, n), partitions)
    if kind == KEY_HASH_MURMUR3:
        return masked(murmur3(key, n, 0), partitions)
    return -1


class KeyHashKind(IntEnum):
    """Whose rule maps a key to a partition; the C enum ``KeyHash`` has the same values."""

    NONE = KEY_HASH_NONE
    JAVA = KEY_HASH_JAVA
    CONSISTENT = KEY_HASH_CONSISTENT
    CONSISTENT_RANDOM = KEY_HASH_CONSISTENT_RANDOM
    MURMUR2 = KEY_HASH_MURMUR2
    MURMUR2_RANDOM = KEY_HASH_MURMUR2_RANDOM
    FNV1A = KEY_HASH_FNV1A
    FNV1A_RANDOM = KEY_HASH_FNV1A_RANDOM
    SARAMA = KEY_HASH_SARAMA
    SARAMA_REFERENCE = KEY_HASH_SARAMA_REFERENCE
    MURMUR3 = KEY_HASH_MURMUR3


cdef object _kind_of(object kind):
    try:
        return KeyHashKind[kind.upper()] if isinstance(kind, str) else KeyHashKind(kind)
    except (KeyError, ValueError):
        allowed = ", ".join(f"{member.name.lower()} ({member.value})" for member in KeyHashKind)
        raise ValueError(f"unknown key hash {kind!r}: allowed are {allowed}") from None


def _murmur2_python(data):
    """Kafka's murmur2 of ``data``, any C-contiguous buffer, as 0..2**32-1 (Java's int is its signed view).

    Raises TypeError where ``data`` is no buffer, BufferError where it is not contiguous.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    result = murmur2(<const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return result


def _crc32_python(data):
    """The IEEE CRC-32 of ``data``, any C-contiguous buffer: ``zlib.crc32``. Raises as ``murmur2`` does."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    result = crc32(<const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return result


def _fnv1a_python(data):
    """The 32 bit FNV-1a of ``data``, any C-contiguous buffer, as 0..2**32-1. Raises as ``murmur2`` does."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    result = fnv1a(<const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return result


def _murmur3_python(data, uint32_t seed=0):
    """MurmurHash3 x86_32 of ``data``, any C-contiguous buffer, as 0..2**32-1.

    ``mmh3.hash(data, seed, signed=False)``. Raises as ``murmur2`` does, and OverflowError where ``seed``
    is not in 0..2**32-1.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    result = murmur3(<const uint8_t*>view.buf, view.len, seed)
    PyBuffer_Release(&view)
    return result


def _partition_for_key_python(kind, key, partitions):
    """The partition of ``key`` in 0..partitions-1, or -1 where ``kind`` treats the record as keyless.

    ``kind`` is a ``KeyHashKind``, its value or its name in any case; ``key`` is None or any C-contiguous
    buffer; the rules are in the module's table. Raises ValueError for an unknown kind and for
    ``partitions`` outside 1..2**31-1, TypeError and BufferError as ``murmur2`` does.
    """
    cdef Py_buffer view
    cdef KeyHash which = <KeyHash><int>_kind_of(kind)
    cdef int32_t count
    if not 1 <= partitions <= INT32_MAX:
        raise ValueError(f"partitions is {partitions!r}: allowed are 1..{INT32_MAX}")
    count = partitions
    if key is None:
        return partition_for_key(which, NULL, -1, count)
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    result = partition_for_key(which, <const uint8_t*>view.buf, view.len, count)
    PyBuffer_Release(&view)
    return result


cdef int _publish(str name, object function) except -1:
    # A module cannot define a `def` and a `cdef` function of one name, but a caller of either wants this one.
    globals()[name] = globals().pop(function.__name__)
    function.__name__ = function.__qualname__ = name
    return 0


_publish("murmur2", _murmur2_python)
_publish("crc32", _crc32_python)
_publish("fnv1a", _fnv1a_python)
_publish("murmur3", _murmur3_python)
_publish("partition_for_key", _partition_for_key_python)
