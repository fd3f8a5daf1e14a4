"""Checks of the fuzz targets: a failed check ends the process, so that libFuzzer keeps the input."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <stdio.h>
    #include <stdlib.h>
    #define FUZZ_TEXT_(x) #x
    #define FUZZ_TEXT(x) FUZZ_TEXT_(x)
    static void fuzz_check(int holds, const char *what) {
        if (!holds) {
            fprintf(stderr, "fuzz: check failed: %s\\n", what);
            fflush(stderr);
            abort();
        }
    }
    """
    void check "fuzz_check"(bint holds, const char* what) noexcept nogil

# The input, consumed from the front; zeros after its end.
cdef struct Input:
    const uint8_t* at
    const uint8_t* end


cdef inline uint8_t next_byte(Input* i) noexcept nogil:
    if i.at == i.end:
        return 0
    i.at += 1
    return (i.at - 1)[0]


cdef inline uint32_t next_two(Input* i) noexcept nogil:
    cdef uint32_t high = next_byte(i)
    return high << 8 | next_byte(i)


cdef inline uint64_t next_eight(Input* i) noexcept nogil:
    cdef uint64_t v = 0
    for _ in range(8):
        v = v << 8 | next_byte(i)
    return v


# A reader of a record by the rules of the Kafka protocol guide, without the package's code.
cdef struct Read:
    const uint8_t* at
    const uint8_t* end


cdef inline int64_t read_zigzag(Read* r) noexcept nogil:
    cdef uint64_t v = 0
    cdef int shift = 0
    cdef uint8_t b
    while True:
        check(r.at < r.end, "a varint ends within the record")
        b = r.at[0]
        r.at += 1
        check(shift < 63 or b <= 1, "a varint has at most 64 bits")
        v |= <uint64_t>(b & 0x7F) << shift
        if b < 0x80:
            check(b != 0 or shift == 0, "a varint is as short as it can be")
            return <int64_t>(v >> 1) ^ -<int64_t>(v & 1)
        shift += 7


cdef inline const uint8_t* read_sized(Read* r, int64_t* size) noexcept nogil:
    """Reads a key or a value: its size, -1 for null, then its bytes."""
    cdef const uint8_t* start
    size[0] = read_zigzag(r)
    check(-1 <= size[0] <= r.end - r.at, "a size is -1 or within the record")
    start = r.at
    if size[0] > 0:
        r.at += size[0]
    return start
