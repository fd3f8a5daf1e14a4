"""A list's elements as columns of keys and values, where all are alike and have nothing else.

Owns: what is alike and plain. Does not own: what else an element may be, nor sending. Any thread.
"""

from cpython.bytearray cimport PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject_GenericGetAttr
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t

cdef int64_t NOT_PLAIN = -2
cdef int64_t LARGEST = 0x7FFFFFFF


def plain_columns(list elements not None):
    """The columns of ``elements``; None: they are not all alike, or have more than a key and a value.

    Alike are values (bytes, bytearrays, None, texts), pairs of them (key, value), and rows: tuples whose
    ``__fields__`` are ``value``, or ``key`` and ``value`` in any order. None of subclasses but of rows.

    Returns: values; keys, or None; the sizes of each (``Sizes``); the bytes of all. Texts are encoded as
    UTF-8. Raises UnicodeEncodeError.
    """
    cdef Py_ssize_t n = len(elements)
    cdef Py_ssize_t i
    cdef Py_ssize_t key_at = 0
    cdef Py_ssize_t value_at = 1
    cdef Py_ssize_t width = 2
    cdef int64_t key_size = -1
    cdef int64_t value_size
    cdef int64_t total = 0
    cdef type kind
    cdef bint named
    cdef bint single
    cdef object fields = None
    cdef object element
    cdef tuple names
    cdef tuple values
    cdef tuple keys = None
    cdef bytes sizes
    cdef Sizes* size
    if n == 0:
        return None
    kind = type(elements[0])
    single = not issubclass(kind, tuple)
    named = not single and kind is not tuple
    if named:
        fields = fields_of(elements[0])
        # A list where a DataFrame made the row, a Row where a Row's call did.
        names = tuple(fields) if isinstance(fields, (list, tuple)) else ()
        if names == ("value",):
            width, value_at, key_at = 1, 0, -1
        elif names == ("value", "key"):
            value_at, key_at = 0, 1
        elif names != ("key", "value"):
            return None
    elif single:
        key_at = -1
    values = PyTuple_New(n)
    if key_at >= 0:
        keys = PyTuple_New(n)
    sizes = PyBytes_FromStringAndSize(NULL, n * sizeof(Sizes))
    size = <Sizes*>PyBytes_AS_STRING(sizes)
    for i in range(n):
        element = elements[i]
        if single:
            value_size = put(values, i, element)
        else:
            if type(element) is not kind or PyTuple_GET_SIZE(element) != width:
                return None
            if named and not alike(fields_of(element), fields):
                return None
            value_size = put(values, i, <object>PyTuple_GET_ITEM(element, value_at))
            if key_at >= 0:
                key_size = put(keys, i, <object>PyTuple_GET_ITEM(element, key_at))
        if value_size == NOT_PLAIN or key_size == NOT_PLAIN:
            return None
        size[i].key = <int32_t>min(key_size, LARGEST)
        size[i].value = <int32_t>min(value_size, LARGEST)
        total += max(key_size, 0) + max(value_size, 0)
    return values, keys, sizes, total


cdef object fields_of(object row):
    """None: it has none. What Row sets is in the instance; its ``__getattr__`` is a function in Python."""
    try:
        return PyObject_GenericGetAttr(row, "__fields__")
    except AttributeError:
        return None


cdef inline bint alike(object fields, object others) except -1:
    # Rows that came together share the list.
    return fields is others or fields == others


cdef int64_t put(tuple column, Py_ssize_t i, object item) except -1000:
    """Returns the item's size; -1: it is None; NOT_PLAIN."""
    cdef int64_t size = -1
    if PyBytes_CheckExact(item):
        size = PyBytes_GET_SIZE(item)
    elif PyByteArray_CheckExact(item):
        size = PyByteArray_GET_SIZE(item)
    elif PyUnicode_CheckExact(item):
        item = PyUnicode_AsUTF8String(item)
        size = PyBytes_GET_SIZE(item)
    elif item is not None:
        return NOT_PLAIN
    Py_INCREF(item)
    PyTuple_SET_ITEM(column, i, item)
    return size
