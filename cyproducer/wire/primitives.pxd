"""Declarations of the checked reader and the frame writer; see ``primitives.pyx``."""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t


@cython.final
cdef class Reader:
    cdef Py_buffer view             # keeps the frame's memory alive and unmoved
    cdef const unsigned char *data  # first byte of the frame; borrowed from view
    cdef Py_ssize_t pos             # offset of the next byte to read
    cdef Py_ssize_t end             # one past the last readable byte; lowered inside a tagged field
    cdef int64_t since_ns           # when a thread with the GIL began to read, or last let others run
    cdef int64_t elements           # array elements and tagged fields so far
    cdef readonly str message       # the name of the message, for errors: "Metadata v9 response"
    cdef public bint flexible       # compact lengths and tagged fields (KIP-482)

    cpdef int fail(self, str field, str problem) except -1
    cdef int need(self, int64_t size, str field) except -1
    cpdef object boolean(self, str field)
    cpdef int int8(self, str field) except? -1
    cpdef int16_t int16(self, str field) except? -1
    cpdef int32_t int32(self, str field) except? -1
    cpdef int64_t int64(self, str field) except? -1
    cpdef int64_t uvarint(self, str field) except -1
    cpdef str string(self, str field)
    cpdef object nullable_string(self, str field)
    cpdef str text(self, str field)
    cpdef object nullable_text(self, str field)
    cpdef Py_ssize_t count(
        self, str field, int element_size, int64_t most=*, bint nullable=*
    ) except? -1
    cdef int64_t length(self, str field, int element_size, bint nullable) except? -1
    cdef int spend(self, str field, int64_t elements) except -1
    cpdef list int32s(self, str field)
    cpdef int skip_int32s(self, str field) except -1
    cpdef int skip_tags(self) except -1
    cpdef bytes byte_string(self, str field)
    cpdef object nullable_byte_string(self, str field)
    cpdef bytes raw(self, str field, Py_ssize_t size)
    cdef int64_t tag_count(self) except -1
    cdef Py_ssize_t tag_size(self) except -1
    cpdef int finish(self) except -1


@cython.final
cdef class Writer:
    cdef bytearray out   # the frame so far; its first four bytes are filled in by finish()
    cdef bint prefixed   # whether it begins with its size
    cdef public bint flexible     # compact lengths and tagged fields (KIP-482)
    cdef readonly str message     # the name of the message, for errors: "Metadata v9 request"

    cdef int integer(self, str field, object value, int size) except -1
    cpdef int int8(self, str field, object value) except -1
    cpdef int int16(self, str field, object value) except -1
    cpdef int int32(self, str field, object value) except -1
    cpdef int int64(self, str field, object value) except -1
    cpdef int uvarint(self, uint64_t value) except -1
    cpdef int boolean(self, str field, bint value) except -1
    cpdef int string(self, str field, str value) except -1
    cpdef int nullable_string(self, str field, object value) except -1
    cpdef int count(self, str field, Py_ssize_t elements) except -1
    cpdef int byte_string(self, str field, object value) except -1
    cpdef int nullable_byte_string(self, str field, object value) except -1
    cpdef int raw(self, bytes value) except -1
    cpdef int topics(self, str field, list names, bint with_ids) except -1
    cpdef bytes finish(self)
