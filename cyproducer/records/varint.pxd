"""Encodes the zigzag varints of Kafka's record format; inlined into the modules that cimport it.

Source: Kafka protocol guide, "Protocol Primitive Types" (VARINT, VARLONG), which takes the encoding
from Google Protocol Buffers.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from *:
    """
    /* (bits + 6) / 7 for bits in 1..64, without a division: one bit-scan and one multiply. */
    static inline int cyp_uvarint_size(uint64_t v) {
        return ((63 - __builtin_clzll(v | 1)) * 9 + 73) >> 6;
    }
    """
    int cyp_uvarint_size(uint64_t v) noexcept nogil


cdef inline uint64_t zigzag(int64_t v) noexcept nogil:
    return (<uint64_t>v << 1) ^ <uint64_t>(v >> 63)


cdef inline int varint_size(int64_t v) noexcept nogil:
    """The encoded size of ``v`` as a zigzag varint: 1 to 10 bytes."""
    return cyp_uvarint_size(zigzag(v))


cdef inline uint8_t* put_uvarint(uint8_t* p, uint64_t v) noexcept nogil:
    """Writes ``v`` as an unsigned varint at ``p`` (up to 10 bytes); returns the end."""
    while v >= 0x80:
        p[0] = <uint8_t>(v | 0x80)
        v >>= 7
        p += 1
    p[0] = <uint8_t>v
    return p + 1


cdef inline uint8_t* put_varint(uint8_t* p, int64_t v) noexcept nogil:
    """Writes ``v`` as a zigzag varint at ``p`` (up to 10 bytes); returns the end."""
    return put_uvarint(p, zigzag(v))
