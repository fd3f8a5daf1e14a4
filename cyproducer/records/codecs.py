"""Lists the compression codecs, with the properties that batches, options and the command line need.

A new codec needs a row here, a class in ``compression.pyx``, and, if it has levels, an option
``compression_<name>_level`` in ``config/options.py``.

Imports none of the codecs' libraries: options are read before it is known whether a codec is needed.
"""

from typing import NamedTuple


class Codec(NamedTuple):
    """A codec of record batches (protocol guide, "record batch"; KIP-390 for the levels)."""

    name: str
    #: Bits 0-2 of a batch's attributes.
    codec_id: int
    #: Has a step of 1; empty if the codec has no levels.
    levels: range = range(0)
    #: May be outside ``levels``, like gzip's -1, which lets zlib choose (6 today).
    default_level: int | None = None

    def allowed_levels(self) -> str:
        """Returns the allowed levels, as text for error messages."""
        if not self.levels:
            return "None"
        return f"{self.levels[0]}..{self.levels[-1]} (default {self.default_level})"


# lz4's levels have the same meaning as in Java: 9 selects the fast compressor, every other level from 3 on
# selects high compression, at about a tenth of the speed. Levels 1 and 2 are nearly as fast as 9, and 12..17
# are equally slow, slower than all others. zstd's negative levels are faster than 1 and compress less.
CODECS = (
    Codec("none", 0),
    Codec("gzip", 1, range(1, 10), -1),
    Codec("snappy", 2),
    Codec("lz4", 3, range(1, 18), 9),
    Codec("zstd", 4, range(-131072, 23), 3),
)
"""Ordered by id."""
LAST = CODECS[-1]
BY_NAME = {codec.name: codec for codec in CODECS}
