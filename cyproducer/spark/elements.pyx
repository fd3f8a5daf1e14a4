"""Elements of an iterator as columns of keys and values, where they are alike and have nothing else.

Owns: what is alike and plain, and how many are taken at a time. Does not own: what else an element may be,
nor sending. One thread at a time.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject_GenericGetAttr
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from cyproducer.futures.segments cimport Sizes
from cyproducer.base.sync cimport cyp_monotonic_ns

cdef int64_t NOT_PLAIN = -2
cdef int64_t LARGEST = 0x7FFFFFFF


@cython.final
cdef class PlainElements:
    """Takes elements as long as they are alike.

    Alike are values (bytes, bytearrays, texts), pairs of them (key, value), where each may be None, and rows
    of them: tuples of a kind of their own, whose ``__fields__`` are ``value``, or ``key`` and ``value`` in
    any order. None of subclasses else.

    ``elements``: whatever can be iterated. ``most``, ``most_bytes``, ``most_ns``: what is taken at a time,
    and how long that may last, before no more are waited for. Ever more are taken, and half as many as came
    in that time where it was over. So elements that take that long to come are taken one by one.
    """

    cdef object elements
    cdef object error           # of the iterator, after elements that were taken
    cdef Sizes* sizes
    cdef Py_ssize_t most
    cdef Py_ssize_t room        # how many are taken next; up to most
    cdef int64_t most_bytes
    cdef int64_t most_ns

    def __cinit__(self, elements, Py_ssize_t most, int64_t most_bytes, int64_t most_ns):
        if most < 1:
            raise ValueError(f"most: is {most}, must be at least 1")
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
        """The next elements: values; keys, or None; each one's sizes (``Sizes``); and what is not like them.

        That is a list of one element, which comes after the others, or of none. No values and nothing that
        is not like them: there is nothing more. Texts are encoded as UTF-8 and bytearrays copied: whoever
        made them may use them for the next. Raises what the iterator raises, after what came before it.
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
        """False: the element is not of that shape, and nothing has changed."""
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
    """Of the first of those that are taken."""

    cdef type kind
    cdef object fields           # of a row; None: it is none
    cdef Py_ssize_t width        # 0: a value alone
    cdef Py_ssize_t key_at       # -1: it has none
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
        # A list where a DataFrame made the row, a Row where a Row's call did.
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
    """None: it has none. What Row sets is in the instance; its ``__getattr__`` is a function in Python."""
    try:
        return PyObject_GenericGetAttr(row, "__fields__")
    except AttributeError:
        return None


cdef inline bint alike(object fields, object others) except -1:
    # Rows that came together share the list.
    return fields is others or fields == others


cdef object plain(object item, int64_t* size):
    """The item as bytes, or None; ``size``: -1 where it is None, NOT_PLAIN where it is neither."""
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
