"""Maps keys to partitions as each Kafka client does; callable without the GIL. See ``hashing.pyx``."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef enum:
    MOST_RULES = 32

# Returns the unsigned hash, before any client's handling of its sign. `data` may be NULL if `n` is 0.
ctypedef uint32_t (*KeyHashFunction)(const uint8_t* data, Py_ssize_t n) noexcept nogil
ctypedef int32_t (*KeyPlaceFunction)(uint32_t hash, int32_t partitions) noexcept nogil

cdef struct KeyHashRule:
    KeyHashFunction hash          # NULL: keys are ignored
    KeyPlaceFunction place        # from the hash to the partition
    bint hashes_empty             # an empty key is hashed; else its record counts as keyless
    bint hashes_missing           # a missing key is hashed like an empty one; else its record is keyless

# Indexed by the rule's number; filled at import, and only read afterwards.
cdef KeyHashRule[MOST_RULES] key_hash_rules

cdef int32_t rule_number(str name) except -1

# The partition of a key in 0..partitions-1, or -1 if the rule treats its record as keyless.
# n == -1: the key is None (`key` is not read). Returns -1 if `partitions` is below 1.
cdef int32_t partition_of(int32_t rule, const uint8_t* key, Py_ssize_t n, int32_t partitions) noexcept nogil
