"""Borrows the bytes of Python objects, and encodes headers.

Owns which objects are accepted as bytes, and the errors for other objects. Does not own records. Any thread
may call it, with the GIL.
"""

from cpython.buffer cimport PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_Check
from cpython.bytes cimport PyBytes_Check
from cpython.memoryview cimport PyMemoryView_Check
from cpython.sequence cimport PySequence_GetItem
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from cyproducer.records.varint cimport put_varint

cdef extern from "<Python.h>":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef int take_buffer(object data, Py_buffer* view, str what, str advice) except -1:
    """Gets the buffer of an object that is not exactly of type bytes.

    Raises TypeError, with ``what`` and ``advice`` in the message, for objects without a contiguous buffer and
    for numpy scalars, whose memory is a number in native byte order, or text in UCS-4.
    """
    try:
        # PyBUF_ND requests the dimensions. Without it, numpy reports that an array has none.
        PyObject_GetBuffer(data, view, PyBUF_ND)
    except (TypeError, BufferError) as error:
        raise TypeError(
            f"{what}: must be bytes, another contiguous buffer or None, not {type(data).__name__}{advice}"
        ) from error
    try:
        if is_scalar(data, view.ndim):
            raise TypeError(
                f"{what}: must be bytes, another contiguous buffer or None, not the scalar "
                f"{type(data).__name__}, whose memory would be sent; its .item() is a Python object{advice}"
            )
    except BaseException:
        PyBuffer_Release(view)
        raise
    return 0


cdef bint is_scalar(object data, int dimensions) except -1:
    """Whether a buffer belongs to a numpy scalar: a number, text or date. Does not import numpy."""
    if PyBytes_Check(data) or PyByteArray_Check(data) or PyMemoryView_Check(data):
        return False
    kind = type(data)
    if dimensions != 0:
        # Dates have a buffer of 8 bytes with one dimension.
        return kind.__module__ == "numpy" and kind.__name__ in ("datetime64", "timedelta64")
    # For structures (those of ctypes, and numpy's void), sending the memory is what the caller intends.
    if type(kind).__module__ == "_ctypes":
        return False
    for base in kind.__mro__:
        if base.__module__ == "numpy" and base.__name__ == "void":
            return False
    return True


cdef int hold_buffer(object data, Held* held, str what) except -1:
    """Implements ``hold`` for objects that are neither None nor exactly of type ``bytes``."""
    advice = ""
    if what in ("key", "value"):
        advice = f"; set {what}_serializer for other types"
    take_buffer(data, &held.view, what, advice)
    held.viewed = True
    held.data = <const uint8_t*>held.view.buf
    held.size = held.view.len
    return 0


cdef int make_room(HeaderBytes* to, int64_t more) except -1:
    cdef uint8_t* grown
    cdef int64_t room
    if to.used + more > to.room:
        room = max(256, 2 * to.room) + more
        grown = <uint8_t*>realloc(to.start, room)
        if grown == NULL:
            raise MemoryError("no memory for headers")
        to.start = grown
        to.room = room
    return 0


cdef int64_t append_headers(object headers, HeaderBytes* to) except -1:
    """Encodes a list of (str, bytes or None) pairs as in a record, with the count first.

    Returns the number of bytes of the names and values alone, for the record's metadata.
    """
    cdef Py_ssize_t name_size
    cdef const char* name
    cdef Held value
    cdef tuple pairs
    cdef int64_t payload = 0
    # A header's own __getitem__ may create the objects: these references keep them alive until the copy.
    cdef object text
    cdef object data
    # Iterating over a dict would yield only its keys.
    if isinstance(headers, dict):
        raise TypeError("headers: must be a list of (str, bytes or None) pairs, not dict: give its items()")
    try:
        # A copy, because the count is written first, and the caller's list may change in the meantime.
        pairs = tuple(headers)
    except TypeError as error:
        raise TypeError(
            f"headers: must be a list of (str, bytes or None) pairs, not {type(headers).__name__}"
        ) from error
    make_room(to, 10)
    to.used = put_varint(to.start + to.used, len(pairs)) - to.start
    for header in pairs:
        if PyTuple_CheckExact(header) and len(<tuple>header) == 2:
            # A tuple does not change, and the copy keeps it alive.
            text = <object>PyTuple_GET_ITEM(header, 0)
            data = <object>PyTuple_GET_ITEM(header, 1)
        elif isinstance(header, (tuple, list)) and len(header) == 2:
            # With bounds checks, because code that runs for one item may change the list before the next item
            # is read.
            text = PySequence_GetItem(header, 0)
            data = PySequence_GetItem(header, 1)
        else:
            raise TypeError(f"headers: each must be a (str, bytes or None) pair, not {header!r}")
        if not PyUnicode_Check(text):
            raise TypeError(f"headers: each must be a (str, bytes or None) pair, not {header!r}")
        try:
            name = PyUnicode_AsUTF8AndSize(text, &name_size)
        except UnicodeEncodeError as error:
            raise ValueError(f"headers: the name {text!r} can't be encoded as UTF-8") from error
        hold(data, &value, "the value of a header")
        try:
            make_room(to, 20 + name_size + max(value.size, 0))
            to.used = put_varint(to.start + to.used, name_size) - to.start
            memcpy(to.start + to.used, name, name_size)
            to.used += name_size
            to.used = put_varint(to.start + to.used, value.size) - to.start
            if value.size > 0:
                memcpy(to.start + to.used, value.data, value.size)
                to.used += value.size
            payload += name_size + max(value.size, 0)
        finally:
            let_go(&value)
    return payload
