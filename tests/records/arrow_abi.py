"""Arrow's C structures through ctypes: batches that count their releases and may hold invalid data."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.records.capsules import pointer_in

if TYPE_CHECKING:
    # Fuzzing runs without pyarrow.
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


class Counted:
    """A batch that counts how often its array is released; ``change`` may damage its fields first."""

    def __init__(self, batch: pa.RecordBatch, change: Callable[[Any], object] | None = None) -> None:
        self.released = 0
        self.batch = batch
        self.change = change
        self.kept: list[Any] = []

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        schema, array = self.batch.__arrow_c_array__()
        at = ctypes.cast(pointer_in(array), ctypes.POINTER(ArrowArray)).contents
        true = ctypes.string_at(ctypes.addressof(at), ctypes.sizeof(at))
        children = [
            ctypes.string_at(ctypes.addressof(at.children[i].contents), ctypes.sizeof(at))
            for i in range(at.n_children)
        ]
        original = RELEASE(at.release)

        def release(pointer: Any) -> None:
            self.released += 1
            # Restored, so that its owner can free it.
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


# Structures made without pyarrow


class ArrowSchema(ctypes.Structure):
    """See Apache Arrow, "The Arrow C data interface"."""


ArrowSchema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowSchema))),
    ("dictionary", ctypes.POINTER(ArrowSchema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class ArrowArrayStream(ctypes.Structure):
    """See Apache Arrow, "The Arrow C stream interface"."""

    _fields_ = [
        ("get_schema", ctypes.c_void_p),
        ("get_next", ctypes.c_void_p),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


FILL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LAST_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

#: Keeps callbacks alive: structures hold no references to them.
_KEPT: list[Any] = []


def _release_with(kind: type[ctypes.Structure]) -> int:
    place = kind.release.offset

    def release(pointer: int) -> None:
        ctypes.c_void_p.from_address(pointer + place).value = None

    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(release)
    _KEPT.append(callback)
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


RELEASE_SCHEMA = _release_with(ArrowSchema)
RELEASE_ARRAY = _release_with(ArrowArray)
RELEASE_STREAM = _release_with(ArrowArrayStream)


def pointers(kind: Any, things: Any) -> Any:
    array = (ctypes.POINTER(kind) * len(things))(
        *[ctypes.POINTER(kind)() if thing is None else ctypes.pointer(thing) for thing in things]
    )
    return ctypes.cast(array, ctypes.POINTER(ctypes.POINTER(kind)))


def made_schema(form: str | None, name: str = "", children: Any = (), dictionary: Any = None) -> Any:
    """A schema with that format; a child that is None becomes a NULL pointer."""
    schema = ArrowSchema()
    schema.format = None if form is None else form.encode()
    schema.name = name.encode()
    schema.n_children = len(children)
    schema.children = pointers(ArrowSchema, children)
    if dictionary is not None:
        schema.dictionary = ctypes.pointer(dictionary)
    schema.release = RELEASE_SCHEMA
    return schema


def made_array(
    length: int, *buffers: bytes | None, children: Any = (), dictionary: Any = None, **fields: int
) -> Any:
    """An array over copies of those buffers; None becomes a NULL pointer."""
    array = ArrowArray()
    array.length = length
    array.n_buffers = len(buffers)
    held = [
        None if each is None else ctypes.create_string_buffer(each, max(1, len(each))) for each in buffers
    ]
    array.held = held
    places = (ctypes.c_void_p * max(1, len(buffers)))(
        *[None if each is None else ctypes.addressof(each) for each in held]
    )
    array.buffers = ctypes.cast(places, ctypes.POINTER(ctypes.c_void_p))
    array.n_children = len(children)
    array.children = pointers(ArrowArray, children)
    if dictionary is not None:
        array.dictionary = ctypes.pointer(dictionary)
    array.release = RELEASE_ARRAY
    for name, value in fields.items():
        setattr(array, name, value)
    return array


class Made:
    """Hands over a schema and an array, once."""

    def __init__(self, schema: Any, array: Any) -> None:
        self.schema, self.array = schema, array

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _capsule(ctypes.addressof(self.schema), b"arrow_schema", None),
            _capsule(ctypes.addressof(self.array), b"arrow_array", None),
        )


class MadeStream:
    """Hands over a stream of arrays, once; the names of functions in ``missing`` are NULL pointers.

    ``arrays`` may be an iterator: it is asked for each batch.
    """

    def __init__(self, schema: Any, arrays: Any = (), missing: Any = (), error: str | None = None) -> None:
        self.arrays = iter(arrays)
        self.schema = schema
        self.error = None if error is None else ctypes.create_string_buffer(error.encode())
        self.read = 0
        self.handed: list[Any] = []
        functions = {
            "get_schema": FILL(self._fill_schema),
            "get_next": FILL(self._fill_next),
            "get_last_error": LAST_ERROR(lambda _: ctypes.addressof(self.error) if self.error else None),
        }
        self.functions = functions
        self.stream = ArrowArrayStream()
        for name, function in functions.items():
            setattr(self.stream, name, None if name in missing else ctypes.cast(function, ctypes.c_void_p))
        self.stream.release = RELEASE_STREAM

    def _fill_schema(self, stream: int, out: int) -> int:
        if self.schema is None:
            return 5
        ctypes.memmove(out, ctypes.addressof(self.schema), ctypes.sizeof(self.schema))
        return 0

    def _fill_next(self, stream: int, out: int) -> int:
        array = next(self.arrays, None)
        if array is not None:
            self.read += 1
            self.handed.append(array)
            ctypes.memmove(out, ctypes.addressof(array), ctypes.sizeof(array))
        elif self.error is not None:
            return 5
        return 0

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return _capsule(ctypes.addressof(self.stream), b"arrow_array_stream", None)
