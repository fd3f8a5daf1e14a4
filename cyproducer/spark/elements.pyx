"""Collects an iterator's elements into columns of keys and values, if they are alike and plain.

Owns the definition of alike and plain elements, and how many are taken at a time. Does not handle other
elements, and does not send. One thread at a time.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject_GenericGetAttr
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from cyproducer.futures.bulk_segments cimport Sizes
from cyproducer.base.sync cimport cyp_monotonic_ns

cdef int64_t NOT_PLAIN = -2
cdef int64_t LARGEST = 0x7FFFFFFF


@cython.final
cdef class PlainElements:
    """Takes elements while they are alike.

    Elements are alike if all of them are values (bytes, bytearray, str), or pairs (key, value), either of
    which may be None, or rows: instances of one tuple subclass whose ``__fields__`` are ``value``, or ``key``
    and ``value`` in any order. Other subclasses are not accepted.

    ``elements``: any iterable. ``most``, ``most_bytes`` and ``most_ns`` limit one ``take()``: the number of
    elements, their bytes, and the nanoseconds after which it does not wait for more. The number of elements
    per call doubles after each call that took all of them, up to ``most``. After a call that ran out of time,
    it is half of the elements that arrived in that time. So elements that take as long as ``most_ns`` are
    taken one by one.
    """

    cdef object elements
    cdef object error           # raised by the iterator after some elements; raised by the next take()
    cdef Sizes* sizes
    cdef Py_ssize_t most
    cdef Py_ssize_t room        # how many elements the next take() takes; up to most
    cdef int64_t most_bytes
    cdef int64_t most_ns

    def __cinit__(self, elements, Py_ssize_t most, int64_t most_bytes, int64_t most_ns):
        if most < 1:
            raise ValueError(f"most={most}: must be at least 1")
        self.elements = iter(elements)
        self.sizes = <Sizes*>malloc(most * sizeof(Sizes))
        if self.sizes == NULL:
            raise MemoryError(f"no memory for the sizes of {most} elements")
        self.most = most
        self.room = 1
        self.most_bytes = most_bytes
        self.most_ns = most_ns

    def __dealloc__(self):
        free(self.sizes)

    def take(self):
        """Returns the next elements: a list of values; a list of keys, or None; each element's sizes
        (``Sizes``); and a list of others.

        The list of others contains the element that ended the run because it is not like those before it, or
        is empty. If there are neither values nor others, the iterator is exhausted. Encodes strings as UTF-8.
        Copies bytearrays, which the iterator may reuse for its next element. If the iterator raises an
        exception after some elements, this call returns those elements, and the next call raises the
        exception.
        """
        cdef list values = []
        cdef list keys = None
        cdef list others = []
        cdef Py_ssize_t n = 0
        cdef int64_t total = 0
        cdef int64_t begun = cyp_monotonic_ns()
        cdef Shape shape
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        try:
            for element in self.elements:
                if n == 0:
                    shape = shape_of(element)
                    keys = [] if shape.key_at >= 0 else None
                if not self._put(n, element, shape, values, keys):
                    others.append(element)
                    break
                total += max(self.sizes[n].key, 0) + max(self.sizes[n].value, 0)
                n += 1
                if cyp_monotonic_ns() - begun > self.most_ns:
                    self.room = max(1, n // 2)
                    break
                if n == self.room:
                    self.room = min(self.most, 2 * self.room)
                    break
                if total >= self.most_bytes:
                    break
        except Exception as error:
            if n == 0:
                raise
            self.error = error
        return values, keys, PyBytes_FromStringAndSize(<const char*>self.sizes, n * sizeof(Sizes)), others

    cdef bint _put(self, Py_ssize_t n, object element, Shape shape, list values, list keys) except -1:
        """Adds an element. Returns False, and changes nothing, if the element does not have that shape."""
        cdef object value = element
        cdef object key = None
        cdef int64_t value_size
        cdef int64_t key_size = -1
        if shape.width > 0:
            if type(element) is not shape.kind or PyTuple_GET_SIZE(element) != shape.width:
                return False
            if shape.fields is not None and not alike(fields_of(element), shape.fields):
                return False
            value = <object>PyTuple_GET_ITEM(element, shape.value_at)
            if keys is not None:
                key = <object>PyTuple_GET_ITEM(element, shape.key_at)
        elif element is None:
            return False
        value = plain(value, &value_size)
        key = plain(key, &key_size)
        if value_size == NOT_PLAIN or key_size == NOT_PLAIN:
            return False
        self.sizes[n].key = <int32_t>min(key_size, LARGEST)
        self.sizes[n].value = <int32_t>min(value_size, LARGEST)
        values.append(value)
        if keys is not None:
            keys.append(key)
        return True


@cython.final
cdef class Shape:
    """The shape of the first element of a run."""

    cdef type kind
    cdef object fields           # of a row; None: the element is not a row
    cdef Py_ssize_t width        # 0: a single value
    cdef Py_ssize_t key_at       # -1: no key
    cdef Py_ssize_t value_at


cdef Shape shape_of(object element):
    cdef Shape shape = Shape.__new__(Shape)
    cdef tuple names
    shape.kind = type(element)
    shape.key_at = -1
    if not isinstance(element, tuple):
        return shape
    shape.width = 2
    if shape.kind is tuple:
        names = ("key", "value")
    else:
        shape.fields = fields_of(element)
        # A list if a DataFrame made the row, a Row if it was made by calling a Row.
        names = tuple(shape.fields) if isinstance(shape.fields, (list, tuple)) else ()
    if names == ("value",):
        shape.width = 1
    elif names == ("key", "value"):
        shape.key_at, shape.value_at = 0, 1
    elif names == ("value", "key"):
        shape.key_at = 1
    else:
        shape.kind = None
    return shape


cdef object fields_of(object row):
    """Returns a row's ``__fields__``, or None. Reads the instance attribute that Row sets, without Row's
    ``__getattr__``, which is a slow Python function."""
    try:
        return PyObject_GenericGetAttr(row, "__fields__")
    except AttributeError:
        return None


cdef inline bint alike(object fields, object others) except -1:
    # Rows of one batch usually share the list object.
    return fields is others or fields == others


cdef object plain(object item, int64_t* size):
    """Returns the item as bytes, or None. Sets ``size``: -1 if the item is None, NOT_PLAIN if it is another
    type."""
    size[0] = -1
    if item is None:
        return None
    if PyByteArray_CheckExact(item):
        item = PyBytes_FromStringAndSize(PyByteArray_AS_STRING(item), PyByteArray_GET_SIZE(item))
    elif PyUnicode_CheckExact(item):
        try:
            item = PyUnicode_AsUTF8String(item)
        except UnicodeEncodeError:
            size[0] = NOT_PLAIN
            return None
    elif not PyBytes_CheckExact(item):
        size[0] = NOT_PLAIN
        return None
    size[0] = PyBytes_GET_SIZE(item)
    return item
