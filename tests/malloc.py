"""malloc's own statistics, for tests that look for memory leaks."""

import ctypes
import gc
import sys

import pytest


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"),
            "keepcost",
        )
    ]


def lent_bytes() -> int:
    """Bytes currently allocated by malloc, including Python's own arenas."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


needs_glibc = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallinfo2")),
    reason="reads the allocated bytes from glibc 2.33 or newer",
)
