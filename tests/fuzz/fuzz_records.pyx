"""Fuzz targets for record batches and compression, called by libFuzzer.

Each ``cdef int fuzz_...`` is a target: it returns, or ends the process. ``address`` returns its address.
"""

import traceback

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport abort, free, malloc
from libc.string cimport memcmp, memset

from cyproducer.records.record_batch cimport (
    BATCH_HEADER,
    put_batch_header,
    put_record,
    record_bound,
)
from fuzz_checks cimport Input, Read, check, next_byte, next_eight, next_two, read_sized, read_zigzag

from cyproducer.records.compression import (
    DecompressionError,
    compressor_for,
    decompress,
    decompress_any,
)

# Records: sizes at the edges of varints, and a batch around them.

cdef enum:
    MOST_RECORDS = 24


cdef struct Wanted:
    int64_t delta
    int32_t offset
    int64_t key_size
    int64_t value_size
    int64_t headers_size
    uint8_t fill


cdef int64_t some_size(Input* i, int64_t least) noexcept nogil:
    """A size of ``least`` or more: mostly small, often where a varint becomes longer, rarely large."""
    cdef int64_t* edges = [-1, 0, 1, 63, 64, 65, 127, 128, 8191, 8192, 8193, 16383, 65535, 65536]
    cdef uint8_t choice = next_byte(i)
    cdef int64_t size
    if choice < 14:
        size = edges[choice]
    elif choice == 14:
        size = (1 << 20) - 2 + next_byte(i) % 4
    elif choice < 32:
        size = next_two(i)
    else:
        size = choice - 32
    return max(size, least)


cdef int64_t some_number(Input* i) noexcept nogil:
    """A 64-bit number, often next to a power of two."""
    cdef uint8_t choice = next_byte(i)
    if choice < 128:
        return choice - 3
    if choice < 250:
        return <int64_t>((<uint64_t>1 << (choice % 64)) - 2 + next_byte(i) % 4)
    return <int64_t>next_eight(i)


cdef uint32_t slow_crc32c(const uint8_t* p, int64_t size) noexcept nogil:
    """CRC-32C bit by bit (RFC 3720, appendix B.4: polynomial 0x1EDC6F41, here reflected)."""
    cdef uint32_t crc = 0xFFFFFFFFU
    cdef int64_t i
    for i in range(size):
        crc ^= p[i]
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78U & (0U - (crc & 1)))
    return ~crc


cdef inline uint64_t big_endian(const uint8_t* p, int size) noexcept nogil:
    cdef uint64_t v = 0
    cdef int i
    for i in range(size):
        v = v << 8 | p[i]
    return v


cdef void check_record(const uint8_t* start, const uint8_t* end, const Wanted* w,
                       const uint8_t* source) noexcept nogil:
    cdef Read r = Read(start, end)
    cdef int64_t size
    cdef const uint8_t* at
    check(read_zigzag(&r) == end - r.at, "a record has the length it states")
    check(r.at[0] == 0, "a record has no attributes")
    r.at += 1
    check(read_zigzag(&r) == w.delta, "the timestamp's delta is the one given")
    check(read_zigzag(&r) == w.offset, "the offset's delta is the one given")
    at = read_sized(&r, &size)
    check(size == w.key_size and (size <= 0 or memcmp(at, source, size) == 0), "the key is the one given")
    at = read_sized(&r, &size)
    check(size == w.value_size and (size <= 0 or memcmp(at, source, size) == 0), "the value is the one given")
    check(end - r.at == w.headers_size, "the headers are as long as they were given")
    check(memcmp(r.at, source, w.headers_size) == 0, "the headers are those given")


cdef int fuzz_records(const uint8_t* data, size_t size) noexcept nogil:
    cdef Input i = Input(data, data + size)
    cdef Wanted wanted[MOST_RECORDS]
    cdef uint8_t* ends[MOST_RECORDS]
    cdef Wanted* w
    cdef int count = 1 + next_byte(&i) % MOST_RECORDS
    cdef int64_t room = BATCH_HEADER
    cdef int64_t longest = 1
    cdef int64_t total
    cdef int n
    cdef uint8_t* source
    cdef uint8_t* batch
    cdef uint8_t* p
    cdef int16_t attributes = <int16_t>next_two(&i)
    cdef int64_t base = some_number(&i)
    cdef int64_t latest = some_number(&i)
    cdef int64_t producer = some_number(&i)
    cdef int16_t epoch = <int16_t>next_two(&i)
    cdef int32_t sequence = <int32_t>some_number(&i)
    for n in range(count):
        w = &wanted[n]
        w.delta = some_number(&i)
        w.offset = <int32_t>some_number(&i)
        w.key_size = some_size(&i, -1)
        w.value_size = some_size(&i, -1)
        w.headers_size = some_size(&i, 1)
        room += record_bound(w.key_size, w.value_size, w.headers_size)
        longest = max(longest, max(w.key_size, max(w.value_size, w.headers_size)))
        if room > 4 << 20:
            count = n + 1
            break
    source = <uint8_t*>malloc(longest)
    memset(source, next_byte(&i), longest)
    # Exactly the size that record_bound() promises, so that AddressSanitizer detects one byte more.
    batch = <uint8_t*>malloc(room)
    p = batch + BATCH_HEADER
    for n in range(count):
        w = &wanted[n]
        ends[n] = put_record(
            p, w.delta, w.offset, source, w.key_size, source, w.value_size, source, w.headers_size
        )
        check(
            ends[n] - p <= record_bound(w.key_size, w.value_size, w.headers_size),
            "no record is longer than its bound",
        )
        p = ends[n]
    total = p - batch
    put_batch_header(batch, total, attributes, count, base, latest, producer, epoch, sequence)
    p = batch + BATCH_HEADER
    for n in range(count):
        check_record(p, ends[n], &wanted[n], source)
        p = ends[n]
    check(big_endian(batch, 8) == 0, "the base offset is left to the broker")
    check(big_endian(batch + 8, 4) == <uint64_t>(total - 12), "the batch has the length it states")
    check(big_endian(batch + 12, 4) == 0xFFFFFFFFU and batch[16] == 2, "no leader epoch, magic 2")
    check(<int16_t>big_endian(batch + 21, 2) == attributes, "the attributes are those given")
    check(big_endian(batch + 23, 4) == <uint64_t>(count - 1), "the last offset's delta")
    check(<int64_t>big_endian(batch + 27, 8) == base, "the base timestamp")
    check(<int64_t>big_endian(batch + 35, 8) == latest, "the latest timestamp")
    check(<int64_t>big_endian(batch + 43, 8) == producer, "the producer's id")
    check(<int16_t>big_endian(batch + 51, 2) == epoch, "the producer's epoch")
    check(<int32_t>big_endian(batch + 53, 4) == sequence, "the base sequence")
    check(big_endian(batch + 57, 4) == <uint64_t>count, "the count")
    if total < 3000:
        check(big_endian(batch + 17, 4) == slow_crc32c(batch + 21, total - 21), "the checksum")
    free(batch)
    free(source)
    return 0


# Compression. Byte 0: the codec and the operation; byte 1: the limit; then the data.

BOUNDS = (0, 1, 100, 4096, 65536, 1 << 20)
COMPRESSORS = tuple(compressor_for(name) for name in ("none", "gzip", "snappy", "lz4", "zstd"))


cdef int fuzz_compression(const uint8_t* data, size_t size) noexcept with gil:
    if size < 2:
        return 0
    codec = data[0] % 5
    bound = BOUNDS[data[1] % len(BOUNDS)]
    try:
        view = PyMemoryView_FromMemory(<char*>data + 2, size - 2, PyBUF_READ)
        if data[0] % 8 == 7:
            packed = COMPRESSORS[codec].compress(view)
            check(decompress(codec, packed, size - 2) == view, "decompressing gives the compressed data back")
        else:
            for function in (decompress, decompress_any):
                try:
                    check(len(function(codec, view, bound)) <= bound, "no result is above the limit")
                except DecompressionError:
                    pass
        view.release()
    except BaseException:
        traceback.print_exc()
        abort()
    return 0


def address(str target):
    """The address of a target's function, for libFuzzer to call; 0 if the target is not in this module."""
    if target == "records":
        return <size_t>&fuzz_records
    if target == "compression":
        return <size_t>&fuzz_compression
    return 0
