from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

# The caller's bytes, borrowed while they are copied.
cdef struct Held:
    const uint8_t* data
    int64_t size              # -1: None
    Py_buffer view
    bint viewed

# Encoded headers of one or more records, one after the other. The owner frees ``start``.
cdef struct HeaderBytes:
    uint8_t* start
    int64_t used
    int64_t room


cdef int take_buffer(object data, Py_buffer* view, str what, str advice) except -1
cdef int hold_buffer(object data, Held* held, str what) except -1
cdef int64_t append_headers(object headers, HeaderBytes* to) except -1


cdef inline int hold(object data, Held* held, str what) except -1:
    """Borrows the bytes of any contiguous buffer; the size of None is -1.

    For an object of exactly type ``bytes``, only the pointer is stored: the caller must keep ``data`` alive
    until the bytes are copied.
    """
    held.viewed = False
    held.data = NULL
    if data is None:
        held.size = -1
    elif PyBytes_CheckExact(data):
        held.data = <const uint8_t*>PyBytes_AS_STRING(data)
        held.size = PyBytes_GET_SIZE(data)
    else:
        hold_buffer(data, held, what)
    return 0


cdef inline void let_go(Held* held) noexcept:
    if held.viewed:
        PyBuffer_Release(&held.view)
