"""Arrow's C structures through ctypes: batches that count their releases and may say what is wrong."""

import ctypes
from collections.abc import Callable
from typing import Any

import pyarrow as pa


class ArrowArray(ctypes.Structure):
    """See Apache Arrow, "The Arrow C data interface"."""


ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    ("dictionary", ctypes.POINTER(ArrowArray)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

RELEASE = ctypes.CFUNCTYPE(None, ctypes.POINTER(ArrowArray))
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Counted:
    """A batch that counts how often its array is released; ``change`` may spoil what it says before."""

    def __init__(self, batch: pa.RecordBatch, change: Callable[[Any], object] | None = None) -> None:
        self.released = 0
        self.batch = batch
        self.change = change
        self.kept: list[Any] = []

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        schema, array = self.batch.__arrow_c_array__()
        at = ctypes.cast(_pointer(array, b"arrow_array"), ctypes.POINTER(ArrowArray)).contents
        true = ctypes.string_at(ctypes.addressof(at), ctypes.sizeof(at))
        children = [
            ctypes.string_at(ctypes.addressof(at.children[i].contents), ctypes.sizeof(at))
            for i in range(at.n_children)
        ]
        original = RELEASE(at.release)

        def release(pointer: Any) -> None:
            self.released += 1
            # As it was, so that its owner can free it.
            ctypes.memmove(pointer, true, len(true))
            for i, child in enumerate(children):
                ctypes.memmove(pointer.contents.children[i], child, len(child))
            original(pointer)

        callback = RELEASE(release)
        self.kept += [callback, original]
        at.release = ctypes.cast(callback, ctypes.c_void_p).value
        if self.change is not None:
            self.change(at)
        return schema, array


def int32s(*values: int) -> Any:
    """An array in memory."""
    return (ctypes.c_int32 * len(values))(*values)
