"""Compresses and decompresses record batches.

Does not own the codecs' names, ids and levels (``codecs``) or the batch, whose header is never compressed and
never passed here. No I/O.

Runs on the thread that seals a batch: an application thread, the sender thread or the compression thread.
Batches are compressed by ``native_codec``, without the GIL. If a library's C functions are not found, the
functions here compress instead: they are called with the GIL, and each library releases it while it works.
Every function and object is thread-safe.

The format is that of the Java client, so that every reader of the Java client's batches can read these
batches:

======  =======================================================================================
codec   bytes
======  =======================================================================================
none    unchanged
gzip    RFC 1952, one member, no name, time 0
snappy  xerial framing: a 16-byte header, then blocks of at most 1 MiB (Java: 32 KiB), each after
        its length
lz4     LZ4 frame: independent 64 KiB blocks (Java rejects linked ones), no content checksum (the
        batch has its CRC-32C), no content size
zstd    RFC 8878, one frame with its content size (Java omits it; it lets a reader allocate its
        buffer at once, and librdkafka also writes it), no checksum
======  =======================================================================================

Compression is written in Cython because of signals, not for speed. Signal handlers run only between Python
bytecodes, and no handler must run between the closing of a batch and the end of its compression:
    main thread, send():  closes the batch; a Python function compresses it
    SIGTERM:              the handler calls close(), which waits for that batch
That wait would never end, because the code that compresses the batch is below the handler on the stack.

Sources: the Kafka protocol guide (record batch, attributes), KIP-110 (zstd), KIP-390 (levels).
The libraries were chosen by ``perf/micro/compression.py``.
"""

import sys
import zlib
from collections import deque

import cramjam

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    # Python 3.14 and later may be built without libzstd. The other codecs do not need it.
    zstd = None

from libc.stdint cimport uint8_t, uint32_t

from cyproducer.records.native_codec cimport NativeCodec

from cyproducer.errors import KafkaConfigurationError
from cyproducer.records import codecs as _codecs
from cyproducer.records.native_codec import native_codec

cdef int SNAPPY = _codecs.BY_NAME["snappy"].codec_id
cdef int LZ4 = _codecs.BY_NAME["lz4"].codec_id
cdef int JAVA_FAST_LZ4 = _codecs.BY_NAME["lz4"].default_level
XERIAL_HEADER = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
# With Java's 32 KiB, a batch of 256 KiB takes eight calls, and the thread must reacquire the GIL after each
# call: 42 ms while another thread runs Python code, compared to 6 ms with one call (on an idle machine).
# Readers accept any block size, because each block states its own. The limit keeps the readers' buffers
# reasonably small.
cdef Py_ssize_t XERIAL_BLOCK_BYTES = 1024 * 1024

# Magic; version 1, independent blocks, no checksums, no size; blocks of 64 KiB; the header's checksum.
cdef bytes LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
cdef Py_ssize_t LZ4_BLOCK_BYTES = 65536
# Flag in a block's size: the block is not compressed.
cdef uint32_t LZ4_STORED = 1u << 31
# Bits in the first byte of an LZ4 frame's descriptor, and the block sizes that a frame can have.
cdef int LZ4_VERSION = 0x40
cdef int LZ4_VERSION_BITS = 0xC2     # and a reserved bit
cdef int LZ4_BLOCK_CHECKSUM = 0x10
cdef int LZ4_CONTENT_SIZE = 0x08
cdef int LZ4_CONTENT_CHECKSUM = 0x04
cdef int LZ4_DICTIONARY = 0x01
cdef dict LZ4_BLOCK_SIZES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
# The largest ratios of decompressed to compressed size: in snappy, a copy of 3 bytes makes 64 bytes; in zstd,
# a block of 4 bytes makes 128 KiB. Checked because memory is allocated for a stated size before the size
# proves wrong.
cdef Py_ssize_t SNAPPY_RATIO = 22
cdef Py_ssize_t ZSTD_RATIO = 32768
# The window that RFC 8878 (3.1.1.1.2) recommends that every decoder support, even for small data.
cdef int ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
cdef int ZSTD_LARGEST_WINDOW_LOG = 31
cdef str NO_ZSTD = (
    "this Python was built without libzstd, and has no module compression.zstd: use another codec, or a "
    "Python that has it"
)
cdef object ZSTD_FLUSH_FRAME = None
cdef tuple LIBRARY_ERRORS = (zlib.error, cramjam.DecompressionError, RuntimeError)
if zstd is not None:
    LIBRARY_ERRORS += (zstd.ZstdError,)
    ZSTD_FLUSH_FRAME = zstd.ZstdCompressor.FLUSH_FRAME


class DecompressionError(ValueError):
    """The data is damaged, is not of this codec, or decompresses to more than the limit."""


cdef class Compressor:
    """Compresses the records of batches with one codec at one level.

    Created by ``compressor_for``. Thread-safe.

    Attributes:
        codec_id: stored in bits 0-2 of the batch's attributes; see ``CODECS``.
        name: the codec's name, ``"none"`` for no compression.
        level: the level used; None if the codec has no levels.
        native: the ``NativeCodec`` that compresses in the same way without the GIL; None if its library is
            not found.
    """

    cdef readonly int codec_id
    cdef readonly str name
    cdef readonly object level
    cdef readonly object native

    def __cinit__(self, codec, level):
        self.codec_id = codec.codec_id
        self.name = codec.name
        self.level = level
        self.native = native_codec(codec.name, level)

    def compress(self, data):
        """Returns the compressed form of ``data``, in new memory: ``data`` is not kept after the call.

        Raises:
            MemoryError: no memory could be allocated for the result or the codec's state.
        """
        return self.packed(data) if self.native is None else (<NativeCodec>self.native).compressed(data)

    cdef object packed(self, data):
        """Implements ``compress`` with Python functions."""
        return bytes(data)

    @staticmethod
    def decompress(data, max_size):
        """Like the function ``decompress``, but raises the codec library's own exceptions."""
        return bytes(data)

    def __repr__(self):
        return f"Compressor(name={self.name!r}, level={self.level!r})"


cdef class _Gzip(Compressor):
    cdef object packed(self, data):
        # 31: a window of 32 KiB and a gzip wrapper, in which zlib sets the time to 0.
        return zlib.compress(data, self.level, wbits=31)

    @staticmethod
    def decompress(data, max_size):
        member = zlib.decompressobj(wbits=31)
        # One byte more than allowed, to distinguish a result that is too large from one that is exactly at
        # the limit.
        result = member.decompress(data, max_size + 1)
        if len(result) <= max_size:
            check_end("gzip", member.eof, member.unused_data)
        return result


cdef class _Snappy(Compressor):
    cdef object packed(self, data):
        cdef list parts = [XERIAL_HEADER]
        cdef Py_ssize_t start
        with memoryview(data) as view:
            for start in range(0, len(view), XERIAL_BLOCK_BYTES):
                with view[start : start + XERIAL_BLOCK_BYTES] as block:
                    packed = cramjam.snappy.compress_raw(block)
                parts.append(len(packed).to_bytes(4, "big"))
                parts.append(packed)
        return b"".join(parts)

    @staticmethod
    def decompress(data, max_size):
        source = bytes(data)
        # Java also reads later versions that are compatible with 1; no library has ever written one.
        if source[: len(XERIAL_HEADER)] != XERIAL_HEADER:
            raise DecompressionError(
                f"snappy data must start with the xerial header, not {source[:16].hex()}"
            )
        at = len(XERIAL_HEADER)
        parts = []
        size = 0
        while at < len(source):
            length = int.from_bytes(source[at : at + 4], "big")
            block = source[at + 4 : at + 4 + length]
            if at + 4 > len(source) or len(block) < length:
                raise DecompressionError(f"snappy block at byte {at} ends before its stated length")
            plain = snappy_block(block, size, max_size)
            size += len(plain)
            parts.append(plain)
            at += 4 + length
        return b"".join(parts)


cdef class _Lz4(Compressor):
    # The module lz4.frame; None if the library's C functions compress, or at the lowest level. At that level
    # cramjam compresses block by block: it is as fast as lz4 and, unlike lz4, has wheels for every platform.
    cdef object frames

    def __cinit__(self, codec, level):
        self.frames = None
        if level != JAVA_FAST_LZ4 and self.native is None:
            try:
                from lz4 import frame
            except ImportError as error:
                raise KafkaConfigurationError(
                    f"compression_lz4_level={level} needs the package lz4: pip install 'cyproducer[lz4]', or "
                    f"use level {JAVA_FAST_LZ4}, the default"
                ) from error
            self.frames = frame

    cdef object packed(self, data):
        cdef list parts = [LZ4_HEADER]
        cdef Py_ssize_t start
        if self.frames is not None:
            return self.frames.compress(
                data,
                compression_level=self.level,
                block_size=self.frames.BLOCKSIZE_MAX64KB,
                block_linked=False,
                content_checksum=False,
                store_size=False,
            )
        with memoryview(data) as view:
            for start in range(0, len(view), LZ4_BLOCK_BYTES):
                with view[start : start + LZ4_BLOCK_BYTES] as block:
                    packed = cramjam.lz4.compress_block(block, store_size=False)
                    if len(packed) < len(block):
                        parts.append(len(packed).to_bytes(4, "little"))
                        parts.append(packed)
                    else:
                        parts.append((len(block) | LZ4_STORED).to_bytes(4, "little"))
                        parts.append(bytes(block))
        parts.append(bytes(4))
        return b"".join(parts)

    @staticmethod
    def decompress(data, max_size):
        # Accepts only frames that this class makes, because a producer reads no others.
        cdef bytes source = bytes(data)
        start = source[: len(LZ4_HEADER)]
        if start != LZ4_HEADER:
            raise DecompressionError(f"lz4 data must start with {LZ4_HEADER.hex()}, not {start.hex()}")
        return lz4_frame(source, max_size)


cdef bytes snappy_block(block, Py_ssize_t before, Py_ssize_t max_size):
    """Decompresses a block that follows ``before`` decompressed bytes. Raises if the total exceeds
    ``max_size``."""
    cdef Py_ssize_t stated = cramjam.snappy.decompress_raw_len(block)
    if before + stated > max_size:
        raise too_large("snappy", before + stated, max_size)
    check_ratio("snappy", stated, len(block), SNAPPY_RATIO)
    return bytes(cramjam.snappy.decompress_raw(block))


cdef bytes lz4_frame(bytes source, Py_ssize_t max_size):
    """Decompresses one frame with any options.

    The library does not limit the size, and a frame need not state it: it is computed first, from the lengths
    of the blocks' sequences. Checksums are left to the library.
    """
    cdef Py_ssize_t at = 6
    cdef Py_ssize_t size = 0
    cdef int flags
    cdef Lz4Block found
    check_end("lz4", len(source) > 6, b"")
    flags = source[4]
    most = LZ4_BLOCK_SIZES.get(source[5] >> 4)
    if source[:4] != LZ4_HEADER[:4] or flags & LZ4_VERSION_BITS != LZ4_VERSION or most is None:
        raise DecompressionError(f"lz4 data must start with a frame's header, not {source[:7].hex()}")
    at += (8 if flags & LZ4_CONTENT_SIZE else 0) + (4 if flags & LZ4_DICTIONARY else 0) + 1
    while True:
        found = lz4_block(source, at, most)
        at += 4
        if found.last:
            break
        size += found.raw
        if size > max_size:
            raise too_large("lz4", f"at least {size}", max_size)
        at += found.length + (4 if flags & LZ4_BLOCK_CHECKSUM else 0)
    at += 4 if flags & LZ4_CONTENT_CHECKSUM else 0
    check_end("lz4", at <= len(source), source[at:])
    return bytes(cramjam.lz4.decompress(source))


cdef struct Lz4Block:
    bint last  # The mark at a frame's end, which is not a block.
    bint stored  # Not compressed.
    Py_ssize_t length
    Py_ssize_t raw  # The decompressed length.


cdef Lz4Block lz4_block(bytes source, Py_ssize_t at, Py_ssize_t most) except *:
    """Reads and checks the four bytes before a block. ``most``: the limit of ``raw``."""
    cdef Lz4Block found
    check_end("lz4", at + 4 <= len(source), b"")
    word = int.from_bytes(source[at : at + 4], "little")
    found.last = word == 0
    found.stored = word & LZ4_STORED != 0
    found.length = word & (LZ4_STORED - 1)
    if found.length > len(source) - at - 4:
        raise DecompressionError(f"lz4 block at byte {at} ends before its stated length")
    found.raw = found.length
    if not found.stored:
        found.raw = lz4_raw_size(<const uint8_t*> source + at + 4, found.length)
    if not found.last and not 0 <= found.raw <= most:
        raise DecompressionError(f"lz4 block at byte {at} is damaged")
    return found


cdef Py_ssize_t lz4_raw_size(const uint8_t* block, Py_ssize_t size) noexcept nogil:
    """Returns the decompressed size of a block, from the lengths of its sequences; -1 if they are wrong.

    A sequence is a byte with two lengths, the rest of the first length, literals, an offset, and the rest of
    the second length. The last sequence ends with its literals.
    """
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t raw = 0
    cdef Py_ssize_t length
    cdef uint8_t lengths
    cdef int part
    while at < size:
        lengths = block[at]
        at += 1
        for part in range(2):
            length = lengths >> 4 if part == 0 else lengths & 15
            if length == 15:
                while True:
                    if at == size:
                        return -1
                    length += block[at]
                    at += 1
                    if block[at - 1] != 255:
                        break
            if part == 0:
                raw += length
                if length > size - at:
                    return -1
                at += length
                if at == size:
                    return raw
                if size - at < 2:
                    return -1
                at += 2
            else:
                raw += length + 4
    return -1


cdef class _Zstd(Compressor):
    # A new context takes 20 us, as long as compressing 4 KB, and a context serves one thread at a time. So
    # idle contexts are kept here: at most as many as were ever in use at once. A context that is in use is
    # not in this deque, so a forked child finds only contexts in a consistent state.
    cdef object idle

    def __cinit__(self):
        if zstd is None:
            raise KafkaConfigurationError(f"compression_type='zstd': {NO_ZSTD}")
        self.idle = deque()

    cdef object packed(self, data):
        try:
            context = self.idle.pop()
        except IndexError:
            context = zstd.ZstdCompressor(level=self.level)
        # Without this call, the frame does not state its content size.
        context.set_pledged_input_size(len(data))
        frame = context.compress(data, ZSTD_FLUSH_FRAME)
        self.idle.append(context)
        return frame

    @staticmethod
    def decompress(data, max_size):
        if zstd is None:
            raise DecompressionError(f"cannot decompress zstd: {NO_ZSTD}")
        # The library allocates memory for the size that the frame states, so that size is checked first.
        stated = zstd.get_frame_info(data).decompressed_size
        if stated is not None and stated > max_size:
            raise too_large("zstd", stated, max_size)
        check_ratio("zstd", stated or 0, len(memoryview(data).cast("B")), ZSTD_RATIO)
        # The library also allocates the window that the frame states, which is independent of the content
        # size.
        window_log = min((max(max_size, ZSTD_WINDOW_BYTES) - 1).bit_length(), ZSTD_LARGEST_WINDOW_LOG)
        frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window_log})
        # max_length limits a frame that states no size. One byte more than allowed, so that a frame of
        # exactly the limit is read to its end.
        result = frame.decompress(data, max_length=max_size + 1)
        if len(result) <= max_size:
            check_end("zstd", frame.eof, frame.unused_data)
        return result


cdef dict COMPRESSORS = {"none": Compressor, "gzip": _Gzip, "snappy": _Snappy, "lz4": _Lz4, "zstd": _Zstd}


def compressor_for(str name, level=None):
    codec = _codecs.BY_NAME.get("none" if name is None else name)
    if codec is None:
        raise ValueError(
            f"compression type must be None or one of {', '.join(map(repr, _codecs.BY_NAME))}, not {name!r}"
        )
    if level is None:
        level = codec.default_level
    elif isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(f"compression level of {codec.name} must be an int or None, not {level!r}")
    elif level != codec.default_level and level not in codec.levels:
        raise ValueError(
            f"compression level of {codec.name} must be {codec.allowed_levels()}, not {level}"
        )
    return COMPRESSORS[codec.name](codec, level)


def decompress(codec_id, data, max_size):
    if max_size < 0:
        raise ValueError(f"max_size must be 0 or more, not {max_size}")
    if not 0 <= codec_id < len(_codecs.CODECS):
        last = _codecs.LAST
        raise ValueError(f"codec id must be 0 (none) to {last.codec_id} ({last.name}), not {codec_id}")
    name = _codecs.CODECS[codec_id].name
    try:
        result = COMPRESSORS[name].decompress(data, max_size)
    except LIBRARY_ERRORS as error:
        raise DecompressionError(f"cannot decompress {len(data)} bytes of {name}: {error}") from error
    if len(result) > max_size:
        raise too_large(name, f"more than {max_size}", max_size)
    return result


def decompress_any(codec_id, data, max_size):
    source = bytes(data)
    try:
        if codec_id == SNAPPY and not source.startswith(XERIAL_HEADER[:8]):
            # librdkafka and others write one block without a frame.
            return snappy_block(source, 0, max_size)
        if codec_id == LZ4 and not source.startswith(LZ4_HEADER):
            return lz4_frame(source, max_size)
    except cramjam.DecompressionError as error:
        raise DecompressionError(
            f"cannot decompress {len(source)} bytes of {_codecs.CODECS[codec_id].name}: {error}"
        ) from error
    return decompress(codec_id, source, max_size)


cdef int check_ratio(str name, Py_ssize_t stated, Py_ssize_t size, Py_ssize_t most) except -1:
    if stated > size * most:
        raise DecompressionError(
            f"{name} data of {size} bytes states {stated} bytes, more than it can contain"
        )
    return 0


cdef too_large(str name, size, max_size):
    return DecompressionError(f"{name} data decompresses to {size} bytes; at most {max_size} are allowed")


cdef int check_end(str name, bint ended, surplus) except -1:
    if not ended:
        raise DecompressionError(f"{name} data is truncated: its end mark is missing")
    if surplus:
        raise DecompressionError(f"{name} data is followed by {len(surplus)} more bytes")
    return 0
