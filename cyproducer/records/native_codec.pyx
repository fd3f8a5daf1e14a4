"""Compresses through the C functions of the codecs' libraries, without the GIL.

Owns the contexts of the libraries and the framing of their output, which is the same as in ``compression``.
Does not own finding the functions (``codec_libraries``), or the Python functions that are used if a library
is not found (``compression``). Thread-safe. A forked child makes its own codecs, because a thread that exists
only in the parent may hold the lock.

A batch that is due before it is full is compressed by the sender thread, or by the compression thread if it
is large. With a Python function, the sender thread would first have to wait for the GIL, behind every thread
that runs Python code.

The types below are those of the libraries' stable interfaces: zlib's ``z_stream``, LZ4's and snappy's plain
functions, and zstd's ``ZSTD_compress2`` (version 1.4 or later).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cyproducer.base.sync cimport (
    cyp_mutex_init,
    pthread_mutex_destroy,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from cyproducer.records.big_endian cimport put_u32

from cyproducer.records import codecs as _codecs
from cyproducer.records.codec_libraries import functions_of

cdef enum:
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    # zlib's
    Z_FINISH = 4
    Z_STREAM_END = 1
    Z_DEFLATED = 8
    GZIP_WRAPPER = 16
    WINDOW_BITS = 15
    MEMORY_LEVEL = 8          # zlib's default, and that of Python's zlib module

    ZSTD_C_COMPRESSION_LEVEL = 100

    LZ4_BLOCK_BYTES = 65536
    LZ4_SLACK = LZ4_BLOCK_BYTES // 255 + 16
    XERIAL_BLOCK_BYTES = 1 << 20

# Flag in a block's size: the block is not compressed.
cdef uint32_t LZ4_STORED = 1u << 31
# As in compression.pyx.
cdef bytes lz4_header = b"\x04\x22\x4d\x18\x60\x40\x82"
cdef bytes xerial_header = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
cdef const char* LZ4_HEADER = lz4_header
cdef const char* XERIAL_HEADER = xerial_header

cdef enum:
    LZ4_HEADER_BYTES = 7
    XERIAL_HEADER_BYTES = 16

# Declared here because zlib.h may not be installed where this module is built.
cdef struct ZStream:
    const uint8_t* next_in
    unsigned int avail_in
    unsigned long total_in
    uint8_t* next_out
    unsigned int avail_out
    unsigned long total_out
    const char* msg
    void* state
    void* zalloc
    void* zfree
    void* opaque
    int data_type
    unsigned long adler
    unsigned long reserved

ctypedef int (*DeflateInit)(
    ZStream*, int level, int method, int window_bits, int memory_level, int strategy, const char* version,
    int size,
) noexcept nogil
ctypedef int (*Deflate)(ZStream*, int flush) noexcept nogil
ctypedef int (*OfStream)(ZStream*) noexcept nogil
ctypedef unsigned long (*DeflateBound)(ZStream*, unsigned long size) noexcept nogil
ctypedef const char* (*Version)() noexcept nogil

ctypedef int (*Snappy)(const char* data, size_t size, char* to, size_t* room) noexcept nogil

ctypedef int (*Lz4)(const char* data, char* to, int size, int room) noexcept nogil
ctypedef int (*Lz4Hc)(void* state, const char* data, char* to, int size, int room, int level) noexcept nogil
ctypedef int (*StateSize)() noexcept nogil

ctypedef void* (*MakeContext)() noexcept nogil
ctypedef size_t (*FreeContext)(void*) noexcept nogil
ctypedef size_t (*SetParameter)(void*, int parameter, int value) noexcept nogil
ctypedef size_t (*Compress2)(void*, void* to, size_t room, const void* data, size_t size) noexcept nogil
ctypedef unsigned int (*IsError)(size_t) noexcept nogil

ctypedef size_t (*Bound)(size_t size) noexcept nogil


cdef void* at(dict functions, str name):
    return <void*><uintptr_t>functions[name]


def native_codec(str name not None, level):
    functions = functions_of(name)
    if functions is None:
        return None
    return NativeCodec(name, 0 if level is None else level, functions)


cdef class NativeCodec:
    def __cinit__(self, str name not None, int level, dict functions not None):
        cyp_mutex_init(&self.lock)
        self.codec_id = _codecs.BY_NAME[name].codec_id
        self.level = level
        if self.codec_id == GZIP:
            self.make = at(functions, "deflateInit2_")
            self.reset = at(functions, "deflateReset")
            self.run = at(functions, "deflate")
            self.bound = at(functions, "deflateBound")
            self.free = at(functions, "deflateEnd")
            self.version = (<Version>at(functions, "zlibVersion"))()
        elif self.codec_id == SNAPPY:
            self.run = at(functions, "snappy_compress")
            self.bound = at(functions, "snappy_max_compressed_length")
        elif self.codec_id == LZ4:
            # LZ4's frame functions also use the fast compressor for levels 1 and 2.
            if level > 2 and level != _codecs.BY_NAME["lz4"].default_level:
                self.make = at(functions, "LZ4_sizeofStateHC")
                self.run = at(functions, "LZ4_compress_HC_extStateHC")
            else:
                self.run = at(functions, "LZ4_compress_default")
        else:
            self.make = at(functions, "ZSTD_createCCtx")
            self.configure = at(functions, "ZSTD_CCtx_setParameter")
            self.run = at(functions, "ZSTD_compress2")
            self.bound = at(functions, "ZSTD_compressBound")
            self.is_error = at(functions, "ZSTD_isError")
            self.free = at(functions, "ZSTD_freeCCtx")

    def __dealloc__(self):
        cdef Context* context
        while self.idle != NULL:
            context = self.idle
            self.idle = context.next
            self.free_state(context.state)
            free(context)
        pthread_mutex_destroy(&self.lock)

    def compressed(self, data):
        """Returns the compressed form of ``data``, in the codec's framing, as ``bytes``.

        Raises:
            MemoryError: no memory could be allocated for the result or the codec's state.
        """
        cdef const uint8_t[::1] view = memoryview(data).cast("B")
        cdef const uint8_t* source = &view[0] if len(view) else NULL
        cdef int64_t size = len(view)
        cdef int64_t room = self.most(size)
        cdef uint8_t* to = <uint8_t*>malloc(room)
        cdef int64_t made = -1
        try:
            if to != NULL:
                with nogil:
                    made = self.compress(source, size, to, room)
            if made < 0:
                raise MemoryError(f"no memory to compress {size} bytes")
            return (<char*>to)[:made]
        finally:
            free(to)

    cdef int64_t most(self, int64_t size) noexcept nogil:
        """Returns the room that ``compress`` needs for ``size`` bytes."""
        cdef int64_t blocks
        if self.codec_id == GZIP:
            # The formula of compressBound(), and a gzip wrapper: deflateBound() needs a stream.
            return size + (size >> 12) + (size >> 14) + (size >> 25) + 64
        if self.codec_id == SNAPPY:
            blocks = size // XERIAL_BLOCK_BYTES + 1
            return XERIAL_HEADER_BYTES + blocks * (4 + <int64_t>(<Bound>self.bound)(0)) + size + size // 6
        if self.codec_id == LZ4:
            return LZ4_HEADER_BYTES + (size // LZ4_BLOCK_BYTES + 1) * 4 + size + LZ4_SLACK + 4
        return <int64_t>(<Bound>self.bound)(size)

    cdef int64_t compress(self, const uint8_t* data, int64_t size, uint8_t* to, int64_t room) noexcept nogil:
        """Compresses ``data`` into ``to``, which has ``room`` for ``most(size)`` bytes. Returns the size of
        the result; -1 if out of memory."""
        cdef Context* context
        cdef int64_t made
        if self.codec_id == SNAPPY:
            return self.snappy(data, size, to, room)
        if self.make == NULL:
            return self.lz4(NULL, data, size, to, room)
        context = self.take()
        if context == NULL:
            return -1
        if self.codec_id == GZIP:
            made = self.gzip(context.state, data, size, to, room)
        elif self.codec_id == LZ4:
            made = self.lz4(context.state, data, size, to, room)
        else:
            made = self.zstd(context.state, data, size, to, room)
        self.give_back(context)
        return made

    # Contexts are reused: a new one takes 20 us or more, as long as compressing 4 KB.

    cdef Context* take(self) noexcept nogil:
        """Returns an idle context, or a new one; NULL if out of memory."""
        cdef Context* context
        pthread_mutex_lock(&self.lock)
        context = self.idle
        if context != NULL:
            self.idle = context.next
        pthread_mutex_unlock(&self.lock)
        if context != NULL:
            return context
        context = <Context*>malloc(sizeof(Context))
        if context == NULL:
            return NULL
        context.state = self.make_state()
        if context.state == NULL:
            free(context)
            return NULL
        return context

    cdef void give_back(self, Context* context) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        context.next = self.idle
        self.idle = context
        pthread_mutex_unlock(&self.lock)

    cdef void* make_state(self) noexcept nogil:
        cdef void* state
        if self.codec_id == LZ4:
            return malloc((<StateSize>self.make)())
        if self.codec_id == ZSTD:
            state = (<MakeContext>self.make)()
            if state != NULL and (<IsError>self.is_error)(
                (<SetParameter>self.configure)(state, ZSTD_C_COMPRESSION_LEVEL, self.level)
            ):
                self.free_state(state)
                return NULL
            return state
        state = calloc(1, sizeof(ZStream))
        if state != NULL and (<DeflateInit>self.make)(
            <ZStream*>state, self.level, Z_DEFLATED, WINDOW_BITS + GZIP_WRAPPER, MEMORY_LEVEL, 0,
            self.version, sizeof(ZStream),
        ):
            free(state)
            return NULL
        return state

    cdef void free_state(self, void* state) noexcept nogil:
        if self.codec_id == ZSTD:
            (<FreeContext>self.free)(state)
            return
        if self.codec_id == GZIP:
            (<OfStream>self.free)(<ZStream*>state)
        free(state)

    # The codecs

    cdef int64_t gzip(
        self, void* state, const uint8_t* data, int64_t size, uint8_t* to, int64_t room
    ) noexcept nogil:
        cdef ZStream* stream = <ZStream*>state
        if (<OfStream>self.reset)(stream):
            return -1
        stream.next_in = data
        stream.avail_in = <unsigned int>size
        stream.next_out = to
        stream.avail_out = <unsigned int>room
        if (<Deflate>self.run)(stream, Z_FINISH) != Z_STREAM_END:
            return -1
        return room - stream.avail_out

    cdef int64_t snappy(self, const uint8_t* data, int64_t size, uint8_t* to, int64_t room) noexcept nogil:
        cdef int64_t made = XERIAL_HEADER_BYTES
        cdef int64_t done = 0
        cdef int64_t part
        cdef size_t length
        memcpy(to, XERIAL_HEADER, XERIAL_HEADER_BYTES)
        while done < size:
            part = min(size - done, XERIAL_BLOCK_BYTES)
            length = room - made - 4
            if (<Snappy>self.run)(<const char*>data + done, part, <char*>to + made + 4, &length):
                return -1
            put_u32(to + made, <uint32_t>length)
            made += 4 + length
            done += part
        return made

    cdef int64_t lz4(
        self, void* state, const uint8_t* data, int64_t size, uint8_t* to, int64_t room
    ) noexcept nogil:
        cdef int64_t made = LZ4_HEADER_BYTES
        cdef int64_t done = 0
        cdef int part
        cdef int length
        cdef uint32_t stated
        memcpy(to, LZ4_HEADER, LZ4_HEADER_BYTES)
        while done < size:
            part = <int>min(size - done, LZ4_BLOCK_BYTES)
            # The room is LZ4's bound for the block, so the block always fits.
            if state == NULL:
                length = (<Lz4>self.run)(
                    <const char*>data + done, <char*>to + made + 4, part, part + LZ4_SLACK
                )
            else:
                length = (<Lz4Hc>self.run)(
                    state, <const char*>data + done, <char*>to + made + 4, part, part + LZ4_SLACK, self.level
                )
            stated = <uint32_t>length
            if length <= 0 or length >= part:
                memcpy(to + made + 4, data + done, part)
                length = part
                stated = <uint32_t>length | LZ4_STORED
            to[made] = <uint8_t>stated
            to[made + 1] = <uint8_t>(stated >> 8)
            to[made + 2] = <uint8_t>(stated >> 16)
            to[made + 3] = <uint8_t>(stated >> 24)
            made += 4 + length
            done += part
        to[made] = to[made + 1] = to[made + 2] = to[made + 3] = 0
        return made + 4

    cdef int64_t zstd(
        self, void* state, const uint8_t* data, int64_t size, uint8_t* to, int64_t room
    ) noexcept nogil:
        cdef size_t made = (<Compress2>self.run)(state, to, room, data, size)
        return -1 if (<IsError>self.is_error)(made) else <int64_t>made
