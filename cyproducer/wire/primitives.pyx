"""Reads and writes Kafka's primitive types: a checked reader of frames, and a writer of frames.

Owns integers, varints, strings, array lengths and tagged fields. Does not own the layout of any message
(``messages``). Each length, count and varint is checked against the remaining bytes before memory is
allocated for it. Runs with the GIL. Each reader or writer belongs to one call.

A Python object takes ten times as many bytes as the array element that it is made from, so a response of 100
MB could take gigabytes. Therefore the reader accepts at most ``MOST_ELEMENTS`` elements per frame. A C loop
that may run for long releases the GIL now and then, because the interpreter switches threads only between
bytecodes.

The types follow the Kafka protocol guide, and KIP-482 for compact lengths and tagged fields.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MIN, int16_t, int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memset

cimport cython

from cyproducer.base.gil cimport let_others_run
from cyproducer.base.sync cimport cyp_monotonic_ns
from cyproducer.base.text import printable
from cyproducer.errors import KafkaProtocolError
from cyproducer.records.big_endian cimport get_u16, get_u32, get_u64
from cyproducer.records.varint cimport put_uvarint


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void* o)

cdef enum:
    LONGEST_STRING = 32767        # bytes; Kafka also rejects longer ones in compact encoding
    ELEMENTS = 1_000_000
    INTS_PER_ELEMENT = 4          # an int takes a quarter of the memory of a partition
    SLICE = 256                   # elements between two looks at how long the GIL has been held
    TOPICS_SLICE = 8              # the same for topics with their partitions
    UUID_SIZE = 16
    MOST_FRAMING = 21             # a topic's bytes besides its name: id, length, tagged fields

MOST_ELEMENTS = ELEMENTS
"""The maximum number of array elements and tagged fields in a frame. Large clusters have a few 100,000
partitions."""


@cython.final
cdef class Reader:
    """Reads one frame from front to back; never past ``end``, and never trusts an unchecked size."""

    cdef Py_buffer view             # keeps the frame's memory alive and unmoved
    cdef const unsigned char *data  # first byte of the frame; borrowed from view
    cdef Py_ssize_t pos             # offset of the next byte to read
    cdef Py_ssize_t end             # one past the last readable byte; lowered inside a tagged field
    cdef int64_t since_ns           # when a thread with the GIL began to read, or last let others run
    cdef int64_t elements           # array elements and tagged fields so far
    cdef readonly str message       # the name of the message, for errors: "Metadata v9 response"
    cdef public bint flexible       # compact lengths and tagged fields (KIP-482)

    def __cinit__(self, object frame, str message, bint flexible):
        PyObject_GetBuffer(frame, &self.view, PyBUF_SIMPLE)
        self.data = <const unsigned char *> self.view.buf
        self.end = self.view.len
        self.message = message
        self.flexible = flexible
        self.since_ns = cyp_monotonic_ns()

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cpdef int fail(self, str field, str problem) except -1:
        """Raises the error for a field, with the position in the frame."""
        raise KafkaProtocolError(
            f"{self.message}: {field} {problem}, {self.end - self.pos} bytes remain at offset {self.pos}"
        )

    cdef int need(self, int64_t size, str field) except -1:
        if size > self.end - self.pos:
            return self.fail(field, f"needs {size} bytes")
        return 0

    cpdef object boolean(self, str field):
        self.need(1, field)
        self.pos += 1
        return self.data[self.pos - 1] != 0

    cpdef int int8(self, str field) except? -1:
        self.need(1, field)
        self.pos += 1
        return <signed char> self.data[self.pos - 1]

    cpdef int16_t int16(self, str field) except? -1:
        self.need(2, field)
        self.pos += 2
        return <int16_t> get_u16(self.data + self.pos - 2)

    cpdef int32_t int32(self, str field) except? -1:
        self.need(4, field)
        self.pos += 4
        return <int32_t> get_u32(self.data + self.pos - 4)

    cpdef int64_t int64(self, str field) except? -1:
        self.need(8, field)
        self.pos += 8
        return <int64_t> get_u64(self.data + self.pos - 8)

    cpdef int64_t uvarint(self, str field) except -1:
        """Reads an unsigned varint of at most five bytes and 32 bits; a longer one is an error."""
        cdef int64_t value = 0
        cdef int shift = 0
        cdef unsigned char byte
        while True:
            self.need(1, field)
            byte = self.data[self.pos]
            if shift == 28 and byte > 0x0F:
                self.fail(field, f"is a varint of more than 32 bits (byte 0x{byte:02x} is the fifth)")
            self.pos += 1
            value |= <int64_t> (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    cpdef str string(self, str field):
        cdef object value = self.nullable_string(field)
        if value is None:
            self.fail(field, "is null, but must not be")
        return <str> value

    cpdef object nullable_string(self, str field):
        cdef int64_t length
        cdef const char *start
        if self.flexible:
            length = self.uvarint(field) - 1
        else:
            length = self.int16(field)
        if length == -1:
            return None
        if length < 0:
            self.fail(field, f"has length {length}")
        self.need(length, field)
        if length > LONGEST_STRING:
            self.fail(field, f"has length {length}, at most {LONGEST_STRING} is allowed")
        start = <const char *> (self.data + self.pos)
        try:
            value = PyUnicode_DecodeUTF8(start, <Py_ssize_t> length, NULL)
        except UnicodeDecodeError as error:
            raise KafkaProtocolError(
                f"{self.message}: {field} {PyBytes_FromStringAndSize(start, <Py_ssize_t> length)!r} "
                f"is not UTF-8, {self.end - self.pos} bytes remain at offset {self.pos}"
            ) from error
        self.pos += length
        return value

    cpdef str text(self, str field):
        """Reads a string that is meant for people or names a host, and makes it printable: see ``printable``.

        ``string`` is for names that are compared and sent back. A host name with characters that are escaped
        here can't be resolved, whether it is escaped or not.
        """
        return printable(self.string(field))

    cpdef object nullable_text(self, str field):
        """Like ``text``, but returns None for null."""
        cdef object value = self.nullable_string(field)
        return None if value is None else printable(value)

    cpdef Py_ssize_t count(
        self, str field, int element_size, int64_t most=ELEMENTS, bint nullable=False
    ) except? -1:
        """Reads an array's count. Raises if the remaining bytes can't hold that many elements of
        ``element_size`` bytes.

        ``most``: the maximum number of elements. ``nullable``: whether the array may be null; null is
        returned as -1.
        """
        cdef int64_t elements = self.length(field, element_size, nullable)
        if elements < 0:
            return -1
        if elements > most:
            self.fail(field, f"has {elements} elements, at most {most} are allowed")
        self.spend(field, elements)
        return <Py_ssize_t> elements

    cdef int64_t length(self, str field, int element_size, bint nullable) except? -1:
        """Reads a count and checks it against the remaining bytes. Returns -1 for null, if ``nullable``."""
        cdef int64_t elements
        if self.flexible:
            elements = self.uvarint(field) - 1
        else:
            elements = self.int32(field)
        if elements == -1 and nullable:
            return -1
        if elements < 0:
            self.fail(field, f"has a count of {elements}")
        if elements * element_size > self.end - self.pos:
            self.fail(field, f"claims {elements} elements of at least {element_size} bytes")
        return elements

    cdef int spend(self, str field, int64_t elements) except -1:
        """Counts elements. Raises if the frame has more than ``MOST_ELEMENTS``."""
        self.elements += elements
        if self.elements > ELEMENTS:
            return self.fail(
                field, f"brings the response to {self.elements} elements, at most {ELEMENTS} are allowed"
            )
        return 0

    cpdef list int32s(self, str field):
        """Reads an array of integers."""
        cdef Py_ssize_t elements = <Py_ssize_t> self.length(field, 4, False)
        cdef Py_ssize_t i
        cdef list found = []
        self.spend(field, elements // INTS_PER_ELEMENT)
        for i in range(elements):
            if i % SLICE == SLICE - 1:
                let_others_run(&self.since_ns)
            found.append(<int32_t> get_u32(self.data + self.pos))
            self.pos += 4
        return found

    cpdef int skip_int32s(self, str field) except -1:
        cdef int64_t elements = self.length(field, 4, False)
        self.pos += <Py_ssize_t> elements * 4
        return 0

    cpdef bytes byte_string(self, str field):
        """Reads bytes that follow their length."""
        return self.raw(field, <Py_ssize_t> self.length(field, 1, False))

    cpdef object nullable_byte_string(self, str field):
        """Like ``byte_string``, but returns None for null."""
        cdef int64_t size = self.length(field, 1, True)
        return None if size < 0 else self.raw(field, <Py_ssize_t> size)

    cpdef int skip_tags(self) except -1:
        """Skips tagged fields. Unknown ones are not an error: they exist for compatibility (KIP-482)."""
        cdef Py_ssize_t remaining
        if not self.flexible:
            return 0
        for _ in range(self.tag_count()):
            self.uvarint("tag")
            remaining = self.tag_size()
            self.pos += remaining
        return 0

    def tagged_fields(self):
        """Yields the tag of each tagged field. Until the next tag is requested, ``end`` is the end of that
        field."""
        cdef Py_ssize_t outer_end = self.end
        cdef Py_ssize_t field_end
        for _ in range(self.tag_count()):
            tag = self.uvarint("tag")
            field_end = self.tag_size() + self.pos
            self.end = field_end
            yield tag
            self.end = outer_end
            self.pos = field_end

    cpdef bytes raw(self, str field, Py_ssize_t size):
        self.need(size, field)
        self.pos += size
        return PyBytes_FromStringAndSize(<const char *> (self.data + self.pos - size), size)

    @property
    def left(self):
        """The number of bytes that have not been read yet."""
        return self.end - self.pos

    cdef int64_t tag_count(self) except -1:
        cdef int64_t tags = self.uvarint("tagged fields")
        if tags * 2 > self.end - self.pos:
            self.fail("tagged fields", f"claims {tags} fields of at least 2 bytes")
        self.spend("tagged fields", tags)
        return tags

    cdef Py_ssize_t tag_size(self) except -1:
        cdef int64_t size = self.uvarint("tagged field size")
        self.need(size, "tagged field")
        return <Py_ssize_t> size

    cpdef int finish(self) except -1:
        """Checks that no bytes are left over. Leftover bytes would mean that the frame has another layout."""
        if self.pos != self.end:
            return self.fail("end", "was expected")
        return 0


@cython.final
cdef class Writer:
    """Builds one frame with its size prefix or, with ``prefixed=False``, the bytes of a tagged field."""

    cdef bytearray out   # the frame so far; its first four bytes are filled in by finish()
    cdef bint prefixed   # whether it begins with its size
    cdef public bint flexible     # compact lengths and tagged fields (KIP-482)
    cdef readonly str message     # the name of the message, for errors: "Metadata v9 request"

    def __cinit__(self, str message, bint flexible, bint prefixed=True):
        self.out = bytearray(4 if prefixed else 0)
        self.prefixed = prefixed
        self.message = message
        self.flexible = flexible

    cdef int integer(self, str field, object value, int size) except -1:
        try:
            self.out += value.to_bytes(size, "big", signed=True)
        except (AttributeError, OverflowError, TypeError):
            raise ValueError(
                f"{self.message}: {field} is {value!r}, it must be an int of {size * 8} bits with a sign"
            ) from None
        return 0

    cpdef int int8(self, str field, object value) except -1:
        return self.integer(field, value, 1)

    cpdef int int16(self, str field, object value) except -1:
        return self.integer(field, value, 2)

    cpdef int int32(self, str field, object value) except -1:
        return self.integer(field, value, 4)

    cpdef int int64(self, str field, object value) except -1:
        return self.integer(field, value, 8)

    cpdef int uvarint(self, uint64_t value) except -1:
        while value >= 0x80:
            self.out.append((value & 0x7F) | 0x80)
            value >>= 7
        self.out.append(value)
        return 0

    cpdef int boolean(self, str field, bint value) except -1:
        self.out.append(1 if value else 0)
        return 0

    cpdef int string(self, str field, str value) except -1:
        cdef bytes encoded
        if value is None:
            raise ValueError(f"{self.message}: {field} is None, it must be a str")
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{self.message}: {field} {value!r} is not valid Unicode text") from error
        if len(encoded) > LONGEST_STRING:
            raise ValueError(
                f"{self.message}: {field} {value[:40]!r}... is {len(encoded)} bytes of UTF-8, "
                f"at most {LONGEST_STRING} are allowed"
            )
        if self.flexible:
            self.uvarint(len(encoded) + 1)
        else:
            self.integer(field, len(encoded), 2)
        self.out += encoded
        return 0

    cpdef int nullable_string(self, str field, object value) except -1:
        if value is not None:
            return self.string(field, value)
        if self.flexible:
            return self.uvarint(0)
        return self.integer(field, -1, 2)

    cpdef int count(self, str field, Py_ssize_t elements) except -1:
        """Writes the length of an array or of bytes; -1 means null."""
        if self.flexible:
            return self.uvarint(elements + 1)
        return self.integer(field, elements, 4)

    cpdef int byte_string(self, str field, object value) except -1:
        if value is None:
            raise ValueError(f"{self.message}: {field} is None, it must be bytes")
        self.count(field, len(value))
        self.out += value
        return 0

    cpdef int nullable_byte_string(self, str field, object value) except -1:
        return self.count(field, -1) if value is None else self.byte_string(field, value)

    cpdef int raw(self, bytes value) except -1:
        self.out += value
        return 0

    cpdef int topics(self, str field, list names, bint with_ids) except -1:
        """Writes the array of topics in a Metadata request; ``with_ids``: each has an id, which is zero.

        In C, because a request may name 100,000 topics, and the sender sends nothing meanwhile.
        """
        cdef Py_ssize_t at
        cdef Py_ssize_t size
        cdef Py_ssize_t i
        cdef const char *text
        cdef unsigned char *out
        cdef str name
        cdef int64_t since_ns = cyp_monotonic_ns()
        self.count(field, len(names))
        at = PyByteArray_GET_SIZE(self.out)
        for i, name in enumerate(names):
            if i % SLICE == SLICE - 1:
                let_others_run(&since_ns)
            try:
                text = PyUnicode_AsUTF8AndSize(name, &size)
            except (TypeError, UnicodeEncodeError):
                size = LONGEST_STRING + 1
            if size > LONGEST_STRING:
                # Raises the error.
                return self.string(f"{field}.name", name)
            if at + size + MOST_FRAMING > PyByteArray_GET_SIZE(self.out):
                PyByteArray_Resize(self.out, 2 * (at + size + MOST_FRAMING))
            out = <unsigned char *> PyByteArray_AS_STRING(self.out) + at
            if with_ids:
                memset(out, 0, UUID_SIZE)
                out += UUID_SIZE
            if not self.flexible:
                out[0], out[1] = size >> 8, size & 0xFF
                out += 2
            else:
                out = put_uvarint(out, size + 1)
            memcpy(out, text, size)
            out += size
            if self.flexible:
                # No tagged fields.
                out[0] = 0
                out += 1
            at = out - <unsigned char *> PyByteArray_AS_STRING(self.out)
        PyByteArray_Resize(self.out, at)
        return 0

    cpdef bytes finish(self):
        if self.prefixed:
            self.out[:4] = (len(self.out) - 4).to_bytes(4, "big")
        return bytes(self.out)


def read_topics(Reader reader not None, int version, topic_class, partition_class, bint with_replicas=False):
    """Returns the topics of a Metadata response, as a list of the named tuple ``topic_class``.

    ``partition_class``, ``with_replicas``: see ``read_partitions``. Implemented in C because a response may
    have 100,000 topics.
    """
    cdef int strings = 1 if reader.flexible else 2
    cdef int least_size = 2 + strings + (16 if version >= 10 else 0) + (1 if version >= 1 else 0)
    cdef Py_ssize_t i
    cdef list topics = []
    cdef bytes topic_id = bytes(UUID_SIZE)
    cdef object new_tuple = tuple.__new__
    cdef object name
    cdef object is_internal = False
    cdef int32_t operations
    cdef int16_t error_code
    least_size += (1 if reader.flexible else 4) + (4 if version >= 8 else 0) + (1 if reader.flexible else 0)
    for i in range(reader.count("topics", least_size)):
        if i % TOPICS_SLICE == TOPICS_SLICE - 1:
            let_others_run(&reader.since_ns)
        error_code = reader.int16("topics.error_code")
        name = reader.nullable_string("topics.name") if version >= 12 else reader.string("topics.name")
        if version >= 10:
            topic_id = reader.raw("topics.topic_id", UUID_SIZE)
        if version >= 1:
            is_internal = reader.boolean("topics.is_internal")
        partitions = read_partitions(reader, version, partition_class, with_replicas)
        operations = INT32_MIN
        if version >= 8:
            operations = reader.int32("topics.topic_authorized_operations")
        reader.skip_tags()
        topic = new_tuple(topic_class, (error_code, name, topic_id, is_internal, partitions, operations))
        if not with_replicas:
            # Like its partitions.
            PyObject_GC_UnTrack(<void*> topic)
        topics.append(topic)
    return topics


def untrack(owned not None):
    """Makes the garbage collector skip an object, which must never be part of a reference cycle.

    A full collection visits every tracked object and holds the GIL meanwhile: with 100,000 topics, three
    objects each took 100 ms. The object is still freed with its last reference.
    """
    PyObject_GC_UnTrack(<void*> owned)


cpdef list read_partitions(Reader reader, int version, cls, bint with_replicas=False):
    """Returns the partitions of a topic in a Metadata response, as a list of the named tuple ``cls``.

    ``with_replicas``: ``cls`` has two more fields, the lists of replicas and of in-sync replicas. Implemented
    in C because a response may have tens of thousands of partitions. A leader or an epoch below 0 means none,
    and is returned as -1.
    """
    cdef int fixed_size = 14 if version >= 7 else 10
    cdef int arrays = 3 if version >= 5 else 2
    cdef int least_size = fixed_size + arrays + 1 if reader.flexible else fixed_size + arrays * 4
    cdef int32_t leader_epoch = -1
    cdef int32_t index
    cdef Py_ssize_t i
    cdef const unsigned char *data
    cdef list partitions = []
    cdef object new_tuple = tuple.__new__
    for i in range(reader.count("partitions", least_size)):
        if i % SLICE == SLICE - 1:
            let_others_run(&reader.since_ns)
        reader.need(fixed_size, "partitions")
        data = reader.data + reader.pos
        index = <int32_t> get_u32(data + 2)
        if not 0 <= index < ELEMENTS:
            reader.fail("partitions.partition_index", f"is {index}, it must be from 0 to {ELEMENTS - 1}")
        if version >= 7:
            leader_epoch = max(<int32_t> get_u32(data + 10), -1)
        fields = (
            <int16_t> get_u16(data),
            index,
            max(<int32_t> get_u32(data + 6), -1),
            leader_epoch,
        )
        reader.pos += fixed_size
        if with_replicas:
            fields += (reader.int32s("partitions.replica_nodes"), reader.int32s("partitions.isr_nodes"))
        else:
            reader.skip_int32s("partitions.replica_nodes")
            reader.skip_int32s("partitions.isr_nodes")
        # Calls tuple.__new__ directly, because with 10,000 partitions the named tuple's __new__ would take
        # half of the time.
        partition = new_tuple(cls, fields)
        if not with_replicas:
            # The tuple has only integers, so it is never part of a reference cycle. With 100,000 partitions,
            # which are kept, each full garbage collection would hold the GIL for another 10 ms.
            PyObject_GC_UnTrack(<void*> partition)
        partitions.append(partition)
        if version >= 5:
            reader.skip_int32s("partitions.offline_replicas")
        reader.skip_tags()
    if not with_replicas:
        # For the same reason. Nothing changes the list any more.
        PyObject_GC_UnTrack(<void*> partitions)
    return partitions
