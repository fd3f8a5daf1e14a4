"""Compression of record batches: which codecs there are, which levels they take, how they are framed.

Owns the codec ids of the batch's attributes, the checks of a codec's name and level, what is written, and
decompression. Does not own the calls that write it (``compressors``), nor the batch: the 61 header bytes
before the records are never compressed and never seen here. No I/O.

Runs in whichever thread seals a batch (the application's or the sender's), with the GIL held on entry;
each library lets go of it while it works. Every function and object here may be used from several
threads at once.

What is written is what the Java client writes, so that whoever reads its batches reads these:

======  ==  ==================================================================================
codec   id  bytes
======  ==  ==================================================================================
none    0   as they came
gzip    1   RFC 1952, one member, no name, time 0
snappy  2   xerial framing: a 16-byte header, then blocks of at most 1 MiB (Java: 32 KiB), each with
            its length
lz4     3   LZ4 frame: independent 64 KiB blocks (Java refuses linked ones), no content checksum
            (the batch has its CRC-32C), no content size
zstd    4   RFC 8878, one frame with its content size (Java leaves it out; it lets a reader get its
            buffer at once and librdkafka writes it too), no checksum
======  ==  ==================================================================================

Sources: the Kafka protocol guide (record batch, attributes), KIP-110 (zstd), KIP-390 (levels).
The libraries were chosen by ``perf/micro/compression.py``.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import zstandard

from cyproducer.records.compressors import (
    JAVA_FAST_LZ4,
    XERIAL_HEADER,
    Compressor,
    Gzip,
    Lz4,
    Snappy,
    Zstd,
)

BytesLike = bytes | bytearray | memoryview
"""One-dimensional, contiguous, items of one byte."""

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
"""Codec ids: bits 0-2 of a batch's attributes."""

_LZ4_LARGEST_RATIO = 255
# What RFC 8878 (3.1.1.1.2) asks every decoder to support, however little comes out in the end.
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024


class DecompressionError(ValueError):
    """The data is damaged, is not of this codec, or would be larger than the bound."""


def compressor_for(codec: str | None, level: int | None = None) -> Compressor:
    """A compressor for a codec by its configured name.

    Args:
        codec: ``"gzip"``, ``"snappy"``, ``"lz4"``, ``"zstd"``, or None or ``"none"`` for no compression.
        level: None for the codec's default. gzip takes 1..9 or -1 (the default, zlib's own choice, now
            6). zstd takes -131072..22 (default 3; negative ones are faster and pack less). lz4 takes
            1..17 and means what Java means by them: 9, the default, is the *fast* compressor, every
            other from 3 on is high compression at that level, at about a tenth of the speed; 1 and 2
            are fast too or nearly so, and 12..17 are all the slowest. snappy and none have no levels.

    Raises:
        ValueError: the codec is unknown, or the level is not one of the codec's.
        TypeError: the level is not an integer.
    """
    name = "none" if codec is None else codec
    kind = _CODECS.get(name)
    if kind is None:
        known = ", ".join(repr(one) for one in _CODECS)
        raise ValueError(f"compression type must be None or one of {known}, not {codec!r}")
    if level is not None:
        if isinstance(level, bool) or not isinstance(level, int):
            raise TypeError(f"compression level of {name} must be an int or None, not {level!r}")
        if level != kind.default_level and level not in kind.levels:
            raise ValueError(f"compression level of {name} must be {kind.allowed()}, not {level}")
    in_force = kind.default_level if level is None else level
    return kind.compressor(list(_CODECS).index(name), name, in_force)


def decompress(codec_id: int, data: BytesLike, max_size: int) -> bytes:
    """The bytes that were compressed to ``data``, which is trusted in nothing.

    Sizes found in the data are checked against ``max_size`` before memory is taken for them, and
    decompression stops at it, so that a small input can't take more than about ``max_size`` bytes,
    or 8 MiB for zstd's window where that is more.

    Args:
        codec_id: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        data: all of one batch's compressed records, framed as this module frames them (one gzip
            member, one lz4 or zstd frame, snappy in xerial framing).
        max_size: the largest result accepted, in bytes.

    Raises:
        DecompressionError: the data is damaged or truncated, has bytes left over, or would give more
            than ``max_size`` bytes.
        ValueError: the codec id is not one of the five, or ``max_size`` is negative.
    """
    if max_size < 0:
        raise ValueError(f"max_size must be 0 or more, not {max_size}")
    if not NONE <= codec_id <= ZSTD:
        raise ValueError(f"codec id must be 0 (none) to 4 (zstd), not {codec_id}")
    name, kind = list(_CODECS.items())[codec_id]
    try:
        result = kind.decompress(data, max_size)
    except (zlib.error, cramjam.DecompressionError, RuntimeError, zstandard.ZstdError) as error:
        raise DecompressionError(f"cannot decompress {len(data)} bytes of {name}: {error}") from error
    if len(result) > max_size:
        raise _too_large(name, f"more than {max_size}", max_size)
    return result


def _too_large(name: str, size: int | str, max_size: int) -> DecompressionError:
    return DecompressionError(f"{name} data decompresses to {size} bytes; at most {max_size} are allowed")


def _check_end(name: str, ended: bool, surplus: bytes | None) -> None:
    if not ended:
        raise DecompressionError(f"{name} data ends before its end mark")
    if surplus:
        raise DecompressionError(f"{name} data is followed by {len(surplus)} more bytes")


def _none_decompress(data: BytesLike, max_size: int) -> bytes:
    return bytes(data)


def _gzip_decompress(data: BytesLike, max_size: int) -> bytes:
    member = zlib.decompressobj(wbits=31)
    # One more than allowed tells too large from exactly as large as allowed.
    result = member.decompress(data, max_size + 1)
    if len(result) <= max_size:
        _check_end("gzip", member.eof, member.unused_data)
    return result


def _snappy_decompress(data: BytesLike, max_size: int) -> bytes:
    source = bytes(data)
    # Java reads any later version that is still compatible with 1; nobody has ever written one.
    if source[: len(XERIAL_HEADER)] != XERIAL_HEADER:
        raise DecompressionError(f"snappy data must start with the xerial header, not {source[:16].hex()}")
    at = len(XERIAL_HEADER)
    parts: list[bytes] = []
    size = 0
    while at < len(source):
        length = int.from_bytes(source[at : at + 4], "big")
        block = source[at + 4 : at + 4 + length]
        if at + 4 > len(source) or len(block) < length:
            raise DecompressionError(f"snappy block at byte {at} ends before its stated length")
        size += cramjam.snappy.decompress_raw_len(block)
        if size > max_size:
            raise _too_large("snappy", size, max_size)
        parts.append(bytes(cramjam.snappy.decompress_raw(block)))
        at += 4 + length
    return b"".join(parts)


def _lz4_decompress(data: BytesLike, max_size: int) -> bytes:
    frame = lz4.frame.LZ4FrameDecompressor()
    # The library takes memory for the whole bound at once; no block can grow by more than the ratio.
    bound = min(max_size, len(data) * _LZ4_LARGEST_RATIO)
    result: bytes = frame.decompress(data, max_length=bound + 1)
    if len(result) <= max_size:
        _check_end("lz4", frame.eof, frame.unused_data)
    return result


def _zstd_decompress(data: BytesLike, max_size: int) -> bytes:
    # The library takes memory for whatever size the frame states: it is asked only afterwards.
    stated = zstandard.frame_content_size(data)
    if stated > max_size:
        raise _too_large("zstd", stated, max_size)
    # Where no size is stated this bounds it; to the library 0 would mean that there is no bound.
    bound = max_size or 1
    # It also takes memory for the window that the frame states, which has nothing to do with its size.
    frame = zstandard.ZstdDecompressor(max_window_size=max(max_size, _ZSTD_WINDOW_BYTES))
    return frame.decompress(data, max_output_size=bound, allow_extra_data=False)


@dataclass(frozen=True, slots=True)
class _Codec:
    levels: range
    default_level: int | None
    compressor: type[Compressor]
    decompress: Callable[[BytesLike, int], bytes]

    def allowed(self) -> str:
        if not self.levels:
            return "None"
        return f"{self.levels[0]}..{self.levels[-1]} (default {self.default_level})"


_NO_LEVELS = range(0)
# In the order of their ids.
_CODECS = {
    "none": _Codec(_NO_LEVELS, None, Compressor, _none_decompress),
    "gzip": _Codec(range(1, 10), -1, Gzip, _gzip_decompress),
    "snappy": _Codec(_NO_LEVELS, None, Snappy, _snappy_decompress),
    "lz4": _Codec(range(1, 18), JAVA_FAST_LZ4, Lz4, _lz4_decompress),
    "zstd": _Codec(range(-131072, 23), 3, Zstd, _zstd_decompress),
}
