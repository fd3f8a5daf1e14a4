"""What compresses a batch's records, by codec: see ``compression``, which says what is written.

Owns: the calls of the codecs' libraries. Does not own: which codecs and levels there are, nor decompression.

In Cython not for speed, the libraries take the time, but for what can't happen here: a signal's handler runs
where Python code does, and there is none from the moment a batch is closed until it is compressed.
    main thread, send():  closes the batch; a Python function compresses it
    SIGTERM:              the handler calls close(), which waits for that batch
Nobody would ever end that wait: what compresses the batch is below the handler on the stack.
"""

import zlib
from collections import deque

import cramjam
import lz4.frame
import zstandard

JAVA_FAST_LZ4 = 9

XERIAL_HEADER = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
# Java's 32 KiB would be eight calls for a batch of 256 KiB, and at the end of each the thread has to get
# the GIL back: 42 ms beside a thread that runs Python, against 6 ms in one call (on an idle machine).
# Readers take any size: each block states its own. The bound keeps their buffers in proportion.
cdef Py_ssize_t XERIAL_BLOCK_BYTES = 1024 * 1024


cdef class Compressor:
    """Compresses one batch's records after another with one codec at one level.

    Made by ``compressor_for``. Safe to use from several threads at once.

    Attributes:
        codec_id: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; what goes into bits 0-2 of the attributes.
        name: ``"none"``, ``"gzip"``, ``"snappy"``, ``"lz4"`` or ``"zstd"``.
        level: the level in force, the codec's default where none was asked for; None where the codec
            has no levels.
    """

    cdef readonly int codec_id
    cdef readonly str name
    cdef readonly object level

    def __cinit__(self, int codec_id, str name not None, level):
        self.codec_id = codec_id
        self.name = name
        self.level = level

    def compress(self, data):
        """The compressed form of ``data``, in memory of its own: ``data`` is not kept after the call.

        Raises:
            MemoryError: there is no memory for the result or the codec's state.
        """
        return bytes(data)

    def __repr__(self):
        return f"Compressor(name={self.name!r}, level={self.level!r})"


cdef class Gzip(Compressor):
    def compress(self, data):
        # 31: a window of 32 KiB and a gzip wrapper, which zlib writes without a time.
        return zlib.compress(data, self.level, wbits=31)


cdef class Snappy(Compressor):
    def compress(self, data):
        cdef list parts = [XERIAL_HEADER]
        cdef Py_ssize_t start
        with memoryview(data) as view:
            for start in range(0, len(view), XERIAL_BLOCK_BYTES):
                with view[start : start + XERIAL_BLOCK_BYTES] as block:
                    packed = cramjam.snappy.compress_raw(block)
                parts.append(len(packed).to_bytes(4, "big"))
                parts.append(packed)
        return b"".join(parts)


cdef class Lz4(Compressor):
    def compress(self, data):
        # The library keeps the fast compressor's state on the stack: a context to reuse gains nothing.
        # Java's number for its fast compressor is the library's for a slow one, whose own fast one is 0.
        return lz4.frame.compress(
            data,
            compression_level=0 if self.level == JAVA_FAST_LZ4 else self.level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            content_checksum=False,
            store_size=False,
        )


cdef class Zstd(Compressor):
    # A new context costs 20 us, as much as compressing 4 KB, and one may serve one thread at a time. So
    # they wait here between calls: no more of them than were ever in use at once. A context that is in
    # use is not in here, so a forked child finds only whole ones.
    cdef object idle

    def __cinit__(self):
        self.idle = deque()

    def compress(self, data):
        try:
            context = self.idle.pop()
        except IndexError:
            context = zstandard.ZstdCompressor(
                level=self.level, write_content_size=True, write_checksum=False
            )
        frame = context.compress(data)
        self.idle.append(context)
        return frame
