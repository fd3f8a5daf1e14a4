"""Finds the C functions of the codecs' libraries, so that they can be called without the GIL.

Owns where to search: first in the library that Python itself or a package has loaded, whose extension module
exports the functions or is linked with the library; then by the library's usual file name on the system. Does
not own calling the functions (``native_codec``). A library that is not found, or does not have all of the
functions, is not used: its codec then runs with the GIL.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, Final

_FUNCTIONS: Final = {
    "gzip": ("deflateInit2_", "deflateReset", "deflate", "deflateBound", "deflateEnd", "zlibVersion"),
    "snappy": ("snappy_compress", "snappy_max_compressed_length"),
    "lz4": ("LZ4_compress_default", "LZ4_sizeofStateHC", "LZ4_compress_HC_extStateHC"),
    "zstd": (
        "ZSTD_createCCtx",
        "ZSTD_freeCCtx",
        "ZSTD_CCtx_setParameter",
        "ZSTD_compress2",
        "ZSTD_compressBound",
        "ZSTD_isError",
    ),
}
"""Codec -> the functions that ``native_codec`` calls. All are in the libraries' stable interfaces."""
_MODULES: Final = {
    "gzip": ("zlib",),
    "lz4": ("lz4.block._block",),
    "zstd": ("_zstd", "backports.zstd._zstd") if sys.version_info >= (3, 14) else ("backports.zstd._zstd",),
}
"""Extension modules that contain or load a library. A module that is built into the interpreter has no
file."""
_SYSTEM: Final = {
    "gzip": ("libz.so.1", "libz.1.dylib"),
    "snappy": ("libsnappy.so.1", "libsnappy.1.dylib"),
    "lz4": ("liblz4.so.1", "liblz4.1.dylib"),
    "zstd": ("libzstd.so.1", "libzstd.1.dylib"),
}


@cache
def functions_of(codec: str) -> dict[str, int] | None:
    """Returns the addresses of a codec's functions by name; None if no library has all of them."""
    try:
        import ctypes
    except ImportError:
        # This Python was built without ctypes.
        return None
    for library in _libraries(codec, ctypes.CDLL):
        with suppress(AttributeError, ValueError):
            found = {
                name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                for name in _FUNCTIONS.get(codec, ())
            }
            if found:
                return {name: address for name, address in found.items() if address}
    return None


def _libraries(codec: str, load: Callable[[str | None], Any]) -> Iterator[Any]:
    """Loads and yields the libraries that may contain a codec. They are never unloaded."""
    for name in _MODULES.get(codec, ()):
        with suppress(ImportError, OSError):
            yield load(getattr(import_module(name), "__file__", None))
    for name in _SYSTEM.get(codec, ()):
        with suppress(OSError):
            yield load(name)
