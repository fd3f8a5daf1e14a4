from typing import Final, Self

from typing_extensions import Buffer, disjoint_base

from cyproducer.records.codecs import Codec
from cyproducer.records.native_codec import NativeCodec

XERIAL_HEADER: Final[bytes]

class DecompressionError(ValueError): ...

@disjoint_base
class Compressor:
    def __new__(cls, codec: Codec, level: int | None) -> Self: ...
    @property
    def codec_id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def level(self) -> int | None: ...
    @property
    def native(self) -> NativeCodec | None: ...
    def compress(self, data: Buffer) -> bytes: ...
    @staticmethod
    def decompress(data: Buffer, max_size: int) -> bytes: ...

def compressor_for(name: str | None, level: int | None = None) -> Compressor:
    """Returns a compressor for a codec, by the codec's configured name.

    Args:
        name: one of ``codecs.BY_NAME``; None is ``"none"``.
        level: one of the codec's levels; None for the codec's default.

    Raises:
        ValueError: the codec is unknown, or the level is not one of the codec's.
        TypeError: the level is not an integer.
    """

def decompress(codec_id: int, data: Buffer, max_size: int) -> bytes:
    """Decompresses ``data``, which may be damaged or hostile.

    Sizes stated in the data are checked against ``max_size`` before memory is allocated for them, and
    decompression stops at ``max_size``. So a small input can't use more than about ``max_size`` bytes, or 8
    MiB for zstd's window if that is more.

    Args:
        codec_id: see ``codecs.CODECS``.
        data: all of one batch's compressed records, framed as this module frames them (one gzip member, one
            lz4 or zstd frame, snappy in xerial framing).
        max_size: the largest result accepted, in bytes.

    Raises:
        DecompressionError: the data is damaged or truncated, has surplus bytes, or decompresses to more than
            ``max_size`` bytes.
        ValueError: the codec id is unknown, or ``max_size`` is negative.
    """

def decompress_any(codec_id: int, data: Buffer, max_size: int) -> bytes:
    """Like ``decompress``, but also reads what other clients write: lz4 frames with any options, and one
    snappy block without a frame.

    Raises:
        DecompressionError: as for ``decompress``.
        ValueError: as for ``decompress``.
    """
