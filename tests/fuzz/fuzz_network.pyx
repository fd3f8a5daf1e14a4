"""Fuzz targets for data from a peer, called by libFuzzer: Produce responses, frames, every other message.

Each ``cdef int fuzz_...`` is a target: it returns, or ends the process. ``address`` returns its address.
"""

import traceback

from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport abort, calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from cyproducer.accumulator.structures cimport Batch, Partition, Topic
from cyproducer.net.transport cimport (
    FRAME_BAD_SIZE,
    FRAME_NONE,
    FRAME_READY,
    IO_AGAIN,
    IO_CLOSED,
    Transport,
    transport_consume,
    transport_flush,
    transport_frame,
    transport_free,
    transport_new,
    transport_pop_any,
    transport_pop_written,
    transport_push,
    transport_receive,
)
from cyproducer.wire.produce_codec cimport (
    Endpoints,
    Outcome,
    Request,
    free_request,
    iovec,
    key_of,
    parse_produce,
    whole_request,
)
from fuzz_checks cimport Input, check, next_byte

from cyproducer.errors import KafkaProtocolError
from cyproducer.wire import protocol
from cyproducer.wire.messages import ALL
from cyproducer.wire.primitives import Reader, Writer
from tests.fuzz.decoders import DECODERS

# Produce. Byte 0: the version; byte 1: how many topics the request has; then the response.

cdef enum:
    TOPICS = 3
    PARTITIONS = 3            # of each topic

cdef Topic topics[TOPICS]
cdef Partition partitions[TOPICS * PARTITIONS]
cdef Batch batches[TOPICS * PARTITIONS]
cdef Batch* in_request[TOPICS * PARTITIONS]
cdef uint64_t keys[TOPICS * PARTITIONS]
cdef uint8_t ids[TOPICS * PARTITIONS * 16]


cdef int prepare() noexcept:
    """Makes three topics with three partitions each, with the names and ids of ``fuzz_rig.py``."""
    cdef int i
    cdef const char** names = [b"aa", b"b", b"ccc"]
    cdef int* sizes = [2, 1, 3]
    for i in range(TOPICS):
        topics[i].number = i
        topics[i].name = names[i]
        topics[i].name_size = sizes[i]
        topics[i].id[7] = topics[i].id[15] = <uint8_t>(7 + i)
    for i in range(TOPICS * PARTITIONS):
        partitions[i].topic = &topics[i // PARTITIONS]
        partitions[i].index = i % PARTITIONS
        batches[i].partition = &partitions[i]
        in_request[i] = &batches[i]
        keys[i] = key_of(&partitions[i])
        memcpy(&ids[16 * i], topics[i // PARTITIONS].id, 16)
    return 0


prepare()


cdef int fuzz_produce(const uint8_t* data, size_t size) noexcept nogil:
    cdef Request r
    cdef Outcome* outcomes
    cdef Endpoints endpoints
    cdef int32_t throttle_ms = 0
    cdef int32_t i
    cdef uint8_t* frame
    if size < 2:
        return 0
    memset(&r, 0, sizeof(Request))
    r.version = <int16_t>(3 + data[0] % 11)
    r.count = (1 + data[1] % TOPICS) * PARTITIONS
    r.batches = in_request
    r.keys = keys
    r.ids = ids
    # Blocks of exactly these sizes, so that AddressSanitizer detects a read or write past the end.
    frame = <uint8_t*>malloc(size + 2)
    memset(frame, 0, 4)
    memcpy(frame + 4, data + 2, size - 2)
    outcomes = <Outcome*>calloc(r.count, sizeof(Outcome))
    if parse_produce(&r, frame, size + 2, outcomes, &throttle_ms, &endpoints) == 0:
        if endpoints.data != NULL:
            check(
                endpoints.size >= 0 and endpoints.data >= frame
                and endpoints.data + endpoints.size <= frame + size + 2,
                "the endpoints lie within the frame",
            )
        for i in range(r.count):
            check(outcomes[i].seen == 1, "each batch has an outcome")
            if outcomes[i].message_size > 0:
                check(
                    <const uint8_t*>outcomes[i].message >= frame
                    and <const uint8_t*>outcomes[i].message + outcomes[i].message_size <= frame + size + 2,
                    "a message lies within the frame",
                )
    free(outcomes)
    free(frame)
    return 0


# Frames. Byte 0: receive_message_max_bytes; byte 1: how the stream is cut; then the stream.

cdef struct Stream:
    const uint8_t* at
    const uint8_t* end
    uint32_t random


cdef uint32_t draw(Stream* s) noexcept nogil:
    s.random = s.random * 1664525 + 1013904223
    return s.random >> 8


cdef int64_t receive_some(Transport* transport, uint8_t* into, int64_t room) noexcept nogil:
    cdef Stream* s = <Stream*>transport.owner
    cdef int64_t n
    check(room > 0, "there is room to receive into")
    if s.at == s.end:
        return IO_CLOSED
    if draw(s) % 4 == 0:
        return IO_AGAIN
    n = min(1 + draw(s) % (4 if draw(s) % 2 else 20000), room)
    n = min(n, <int64_t>(s.end - s.at))
    memcpy(into, s.at, n)
    s.at += n
    return n


cdef inline int64_t length_at(const uint8_t* p) noexcept nogil:
    return <int32_t>(<uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3])


cdef int fuzz_frames(const uint8_t* data, size_t size) noexcept nogil:
    cdef int64_t* limits = [4, 5, 100, 8192, 16384, 1 << 20, 100 << 20, 0x7FFFFFFF]
    cdef Stream s
    cdef Transport* transport
    cdef int64_t n
    cdef int64_t at
    cdef int64_t frame_size = 0
    cdef int result = FRAME_NONE
    cdef const uint8_t* frame = NULL
    cdef const uint8_t* expected
    if size < 2:
        return 0
    transport = transport_new(-1, 1, limits[data[0] % 8])
    s = Stream(data + 2, data + size, data[1])
    expected = s.at
    transport.owner = &s
    transport.receive = receive_some
    while result != FRAME_BAD_SIZE:
        n = transport_receive(transport)
        if n == IO_AGAIN:
            continue
        if n == IO_CLOSED:
            break
        at = 0
        while True:
            result = transport_frame(transport, at, &frame, &frame_size)
            if result != FRAME_READY:
                break
            check(frame_size == length_at(expected), "a frame has the length it states")
            check(frame_size <= transport.receive_max, "no frame is longer than allowed")
            check(frame_size <= s.end - expected - 4, "a frame lies within the stream")
            check(memcmp(frame, expected + 4, frame_size) == 0, "a frame has the stream's bytes")
            expected += 4 + frame_size
            at += 4 + frame_size
        if result == FRAME_BAD_SIZE:
            n = length_at(expected)
            check(n < 4 or n > transport.receive_max, "only invalid lengths are refused")
        transport_consume(transport, at)
        # Memory is allocated for the bytes that have arrived, never for a stated length.
        check(transport.inbox_room <= max(8192, 2 * (s.at - data)), "the inbox fits the bytes that arrived")
    if result != FRAME_BAD_SIZE:
        check(
            s.end - expected < 4 or length_at(expected) > s.end - expected - 4, "no complete frame is skipped"
        )
    transport_free(transport)
    return 0


# Writing: requests of several slices, a socket that accepts any number of bytes, and a close at any time.

cdef struct Sink:
    Input* choices
    uint8_t* out
    int64_t used
    int64_t room


cdef int64_t send_some(Transport* transport, const iovec* parts, int count) noexcept nogil:
    cdef Sink* sink = <Sink*>transport.owner
    cdef int64_t left = next_byte(sink.choices)
    cdef int64_t moved = 0
    cdef int64_t n
    cdef int i
    if left < 8:
        return IO_AGAIN if left else IO_CLOSED
    left = (left - 7) * (left - 7)
    for i in range(count):
        n = min(left, <int64_t>parts[i].iov_len)
        check(sink.used + n <= sink.room, "no more is written than was queued")
        memcpy(sink.out + sink.used, parts[i].iov_base, n)
        sink.used += n
        moved += n
        left -= n
        if left == 0:
            break
    return moved


cdef enum:
    MOST_REQUESTS = 16


cdef int fuzz_writing(const uint8_t* data, size_t size) noexcept nogil:
    cdef Input choices = Input(data, data + size)
    cdef int requests = 1 + next_byte(&choices) % MOST_REQUESTS
    cdef uint8_t* bytes_of[MOST_REQUESTS]
    cdef int64_t sizes[MOST_REQUESTS]
    cdef Transport* transport = transport_new(-1, 1, 1000)
    cdef Sink sink
    cdef Request* r
    cdef int64_t total = 0
    cdef int64_t cut
    cdef int64_t rc = IO_AGAIN
    cdef int i
    cdef int k
    cdef int returned = 0
    for i in range(requests):
        # Never empty: a request has at least its header.
        sizes[i] = 1 + next_byte(&choices) * 3
        bytes_of[i] = <uint8_t*>malloc(sizes[i])
        memset(bytes_of[i], i + 1, sizes[i])
        r = whole_request(3, 1, i, bytes_of[i], sizes[i])
        free(r.parts)
        r.part_count = 1 + next_byte(&choices) % 5
        r.parts = <iovec*>malloc(sizeof(iovec) * r.part_count)
        cut = 0
        for k in range(r.part_count):
            r.parts[k].iov_base = r.frame + cut
            r.parts[k].iov_len = sizes[i] - cut
            if k + 1 < r.part_count:
                r.parts[k].iov_len = min(next_byte(&choices), sizes[i] - cut)
            cut += r.parts[k].iov_len
        transport_push(transport, r, next_byte(&choices) % 2)
        total += sizes[i]
    sink = Sink(&choices, <uint8_t*>malloc(total), 0, total)
    transport.owner = &sink
    transport.send = send_some
    while rc == IO_AGAIN and choices.at != choices.end:
        rc = transport_flush(transport, 1)
        while rc == IO_AGAIN and transport.first_written != NULL:
            r = transport_pop_written(transport)
            check(not r.answered and r.unwritten == 0, "a request returned as written is written")
            free_request(r)
            returned += 1
    if rc == 0:
        check(sink.used == total, "a flush that succeeds has written everything")
    cut = 0
    for i in range(requests):
        k = <int>min(sizes[i], max(sink.used - cut, 0))
        check(memcmp(sink.out + cut, bytes_of[i], k) == 0, "bytes are written in order")
        cut += sizes[i]
        free(bytes_of[i])
    # As when a connection is closed: each request is returned once.
    while True:
        r = transport_pop_any(transport)
        if r == NULL:
            break
        free_request(r)
        returned += 1
    check(returned == requests, "each request is returned once")
    free(sink.out)
    transport_free(transport)
    return 0


# All messages but Produce. Byte 0: the message; byte 1: its version; then the frame.

cdef int fuzz_messages(const uint8_t* data, size_t size) noexcept with gil:
    if size < 2:
        return 0
    decode, lowest, versions = DECODERS[data[0] % len(DECODERS)]
    try:
        frame = PyMemoryView_FromMemory(<char*>data + 2, size - 2, PyBUF_READ)
        protocol.frame_looks_like(frame)
        try:
            decode(lowest + data[1] % versions, frame)
        except KafkaProtocolError as error:
            check(b" response: " in str(error).encode(), "the error names the response")
        frame.release()
    except BaseException:
        traceback.print_exc()
        abort()
    return 0


# Declared messages, both ways. Byte 0: the API and whether its request or its response; byte 1: the version.

cdef int fuzz_declared(const uint8_t* data, size_t size) noexcept with gil:
    if size < 2:
        return 0
    api = ALL[data[0] % len(ALL)]
    version = api.declared.first + data[1] % (api.declared.last - api.declared.first + 1)
    message, kind = (api.response, "response") if data[0] // len(ALL) % 2 else (api.request, "request")
    try:
        reader = Reader(PyBytes_FromStringAndSize(<char*>data + 2, size - 2), kind, version >= api.flexible)
        try:
            value = message.read(reader, version)
        except KafkaProtocolError as error:
            check(b"bytes remain at offset" in str(error).encode(), "the error names the offset")
            return 0
        writer = Writer(kind, version >= api.flexible, False)
        message.write(writer, version, value)
        again = message.read(Reader(writer.finish(), kind, version >= api.flexible), version)
        check(again == value, "what is written reads back")
    except BaseException:
        traceback.print_exc()
        abort()
    return 0


def address(str target):
    """The address of a target's function, for libFuzzer to call; 0 if the target is not in this module."""
    if target == "produce":
        return <size_t>&fuzz_produce
    if target == "frames":
        return <size_t>&fuzz_frames
    if target == "writing":
        return <size_t>&fuzz_writing
    if target == "messages":
        return <size_t>&fuzz_messages
    if target == "declared":
        return <size_t>&fuzz_declared
    return 0
