"""Reads and writes big-endian integers at unaligned addresses, as in Kafka's protocol."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <string.h>
    #include <stdint.h>
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define CYP_BE16(v) __builtin_bswap16(v)
    #define CYP_BE32(v) __builtin_bswap32(v)
    #define CYP_BE64(v) __builtin_bswap64(v)
    #else
    #define CYP_BE16(v) (v)
    #define CYP_BE32(v) (v)
    #define CYP_BE64(v) (v)
    #endif
    static inline void cyp_put16(uint8_t *p, uint16_t v) { v = CYP_BE16(v); memcpy(p, &v, 2); }
    static inline void cyp_put32(uint8_t *p, uint32_t v) { v = CYP_BE32(v); memcpy(p, &v, 4); }
    static inline void cyp_put64(uint8_t *p, uint64_t v) { v = CYP_BE64(v); memcpy(p, &v, 8); }
    static inline uint16_t cyp_get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return CYP_BE16(v); }
    static inline uint32_t cyp_get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return CYP_BE32(v); }
    static inline uint64_t cyp_get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return CYP_BE64(v); }
    """
    void put_u16 "cyp_put16"(uint8_t* p, uint16_t v) noexcept nogil
    void put_u32 "cyp_put32"(uint8_t* p, uint32_t v) noexcept nogil
    void put_u64 "cyp_put64"(uint8_t* p, uint64_t v) noexcept nogil
    uint16_t get_u16 "cyp_get16"(const uint8_t* p) noexcept nogil
    uint32_t get_u32 "cyp_get32"(const uint8_t* p) noexcept nogil
    uint64_t get_u64 "cyp_get64"(const uint8_t* p) noexcept nogil
