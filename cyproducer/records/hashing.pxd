"""The hashes that place a record by its key, as each client computes them. All callable without the GIL.

`data` may be NULL where `n` is 0. Results are the unsigned hash, before any client's sign handling.
"""
from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef uint32_t murmur2(const uint8_t* data, Py_ssize_t n) noexcept nogil   # Kafka's, seed 0x9747b28c
cdef uint32_t crc32(const uint8_t* data, Py_ssize_t n) noexcept nogil     # IEEE, zlib's
cdef uint32_t fnv1a(const uint8_t* data, Py_ssize_t n) noexcept nogil     # FNV-1a, 32 bit
cdef uint32_t murmur3(const uint8_t* data, Py_ssize_t n, uint32_t seed) noexcept nogil   # x86_32

# Whose rule maps a key to a partition. The values are KeyHashKind's in Python; hashing.pyx has the table.
ctypedef enum KeyHash:
    KEY_HASH_NONE = 0               # keys are ignored
    KEY_HASH_JAVA = 1
    KEY_HASH_CONSISTENT = 2
    KEY_HASH_CONSISTENT_RANDOM = 3
    KEY_HASH_MURMUR2 = 4
    KEY_HASH_MURMUR2_RANDOM = 5
    KEY_HASH_FNV1A = 6
    KEY_HASH_FNV1A_RANDOM = 7
    KEY_HASH_SARAMA = 8
    KEY_HASH_SARAMA_REFERENCE = 9
    KEY_HASH_MURMUR3 = 10

# The partition of a key in 0..partitions-1, or -1 where `kind` places the record as one without a key.
# n == -1: the key is None (`key` is not read). `partitions` below 1 gives -1.
cdef int32_t partition_for_key(
    KeyHash kind, const uint8_t* key, Py_ssize_t n, int32_t partitions
) noexcept nogil
