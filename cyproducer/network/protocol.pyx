"""The wire form of every Kafka message but Produce: ApiVersions, Metadata, InitProducerId.

Owns the byte layout of these requests and responses, for each version the package implements, and a
reader that trusts nothing the wire says. Owns no socket and no version negotiation (that is
``control/api_versions.py``); matching a response to its request by correlation id is the caller's.
Runs on the sender thread, under the GIL; every function is pure and may be called from any thread.

Layouts follow Apache Kafka's message schemas (protocol guide; KIP-482 for flexible versions).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t

from cyproducer.control.api_versions import IMPLEMENTED
from cyproducer.control.messages import (
    NO_TOPIC_ID,
    ApiVersionsResponse,
    BrokerInfo,
    InitProducerIdResponse,
    MetadataResponse,
    PartitionInfo,
    TopicInfo,
)

try:
    from cyproducer.errors import KafkaProtocolError
except ImportError:

    class KafkaProtocolError(Exception):
        """Stands in until the package's own exception tree is there."""


cdef enum:
    METADATA = 3
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    # The one error a broker reports in version 0, whatever version was asked for (KIP-511).
    UNSUPPORTED_VERSION = 35
    FINALIZED_FEATURES_TAG = 2
    MAX_LEGACY_STRING = 32767


@cython.final
cdef class _Reader:
    """Reads one frame from front to back; never past ``end``, never a size it has not checked."""

    cdef Py_buffer view             # keeps the frame's memory alive and unmoved
    cdef const unsigned char *data  # first byte of the frame; borrowed from view
    cdef Py_ssize_t pos             # offset of the next byte to read
    cdef Py_ssize_t end             # one past the last readable byte; lowered inside a tagged field
    cdef str message                # what is being read, for errors: "Metadata v9 response"
    cdef bint flexible              # compact lengths and tagged fields (KIP-482)

    def __cinit__(self, object frame, str message, bint flexible):
        PyObject_GetBuffer(frame, &self.view, PyBUF_SIMPLE)
        self.data = <const unsigned char *> self.view.buf
        self.end = self.view.len
        self.message = message
        self.flexible = flexible

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef int fail(self, str field, str problem) except -1:
        raise KafkaProtocolError(
            f"{self.message}: {field} {problem}, {self.end - self.pos} bytes remain at offset {self.pos}"
        )

    cdef int need(self, int64_t size, str field) except -1:
        if size > self.end - self.pos:
            return self.fail(field, f"needs {size} bytes")
        return 0

    cdef int boolean(self, str field) except -1:
        self.need(1, field)
        self.pos += 1
        return self.data[self.pos - 1] != 0

    cdef int16_t int16(self, str field) except? -1:
        self.need(2, field)
        self.pos += 2
        return <int16_t> ((self.data[self.pos - 2] << 8) | self.data[self.pos - 1])

    cdef int32_t int32(self, str field) except? -1:
        self.need(4, field)
        self.pos += 4
        return <int32_t> _load32(self.data + self.pos - 4)

    cdef int64_t int64(self, str field) except? -1:
        self.need(8, field)
        self.pos += 8
        return <int64_t> (
            (<uint64_t> _load32(self.data + self.pos - 8) << 32) | _load32(self.data + self.pos - 4)
        )

    cdef int64_t uvarint(self, str field) except -1:
        """At most five bytes and 32 bits; anything longer is refused, not cut off."""
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

    cdef str string(self, str field):
        cdef object value = self.nullable_string(field)
        if value is None:
            self.fail(field, "is null, which it must not be")
        return <str> value

    cdef object nullable_string(self, str field):
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

    cdef Py_ssize_t count(self, str field, int element_size) except -1:
        """How many elements follow; refused where they could not fit at ``element_size`` bytes each."""
        cdef int64_t elements
        if self.flexible:
            elements = self.uvarint(field) - 1
        else:
            elements = self.int32(field)
        if elements < 0:
            self.fail(field, f"has a count of {elements}")
        if elements * element_size > self.end - self.pos:
            self.fail(field, f"claims {elements} elements of at least {element_size} bytes")
        return <Py_ssize_t> elements

    cdef int skip_int32s(self, str field) except -1:
        cdef Py_ssize_t elements = self.count(field, 4)
        self.pos += elements * 4
        return 0

    cdef int skip_tags(self) except -1:
        """Unknown tagged fields are no error: that is what they are for (KIP-482)."""
        cdef Py_ssize_t remaining
        if not self.flexible:
            return 0
        for _ in range(self.tag_count()):
            self.uvarint("tag")
            remaining = self.tag_size()
            self.pos += remaining
        return 0

    cdef int64_t tag_count(self) except -1:
        cdef int64_t tags = self.uvarint("tagged fields")
        if tags * 2 > self.end - self.pos:
            self.fail("tagged fields", f"claims {tags} fields of at least 2 bytes")
        return tags

    cdef Py_ssize_t tag_size(self) except -1:
        cdef int64_t size = self.uvarint("tagged field size")
        self.need(size, "tagged field")
        return <Py_ssize_t> size

    cdef int finish(self) except -1:
        """Bytes left over mean that this was read as something it is not."""
        if self.pos != self.end:
            return self.fail("end", "was expected")
        return 0


cdef inline uint32_t _load32(const unsigned char *data) noexcept nogil:
    return (
        (<uint32_t> data[0] << 24) | (<uint32_t> data[1] << 16) | (<uint32_t> data[2] << 8) | data[3]
    )


@cython.final
cdef class _Writer:
    """Builds one request frame: size prefix, request header v1 or v2, body."""

    cdef bytearray out   # the frame so far; its first four bytes are filled in by finish()
    cdef bint flexible   # compact lengths and tagged fields (KIP-482)
    cdef str message     # what is being written, for errors: "Metadata v9 request"

    def __cinit__(
        self, int api_key, int version, int32_t correlation_id, object client_id, str message, bint flexible
    ):
        self.out = bytearray(4)
        self.message = message
        self.int16(api_key)
        self.int16(version)
        self.int32(correlation_id)
        # The header's client id kept its two-byte length in header v2 (KIP-482).
        self.flexible = False
        self.nullable_string("client_id", client_id)
        self.flexible = flexible
        self.no_tags()

    cdef int int16(self, int value) except -1:
        self.out += (value & 0xFFFF).to_bytes(2, "big")
        return 0

    cdef int int32(self, int64_t value) except -1:
        self.out += value.to_bytes(4, "big", signed=True)
        return 0

    cdef int int64(self, int64_t value) except -1:
        self.out += value.to_bytes(8, "big", signed=True)
        return 0

    cdef int uvarint(self, uint64_t value) except -1:
        while value >= 0x80:
            self.out.append((value & 0x7F) | 0x80)
            value >>= 7
        self.out.append(value)
        return 0

    cdef int boolean(self, bint value) except -1:
        self.out.append(1 if value else 0)
        return 0

    cdef int string(self, str field, str value) except -1:
        cdef bytes encoded
        if value is None:
            raise ValueError(f"{self.message}: {field} is None, it must be a str")
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{self.message}: {field} {value!r} is not valid Unicode text") from error
        if len(encoded) > MAX_LEGACY_STRING:
            raise ValueError(
                f"{self.message}: {field} {value[:40]!r}... is {len(encoded)} bytes of UTF-8, "
                f"at most {MAX_LEGACY_STRING} are allowed"
            )
        if self.flexible:
            self.uvarint(len(encoded) + 1)
        else:
            self.int16(len(encoded))
        self.out += encoded
        return 0

    cdef int nullable_string(self, str field, object value) except -1:
        if value is not None:
            return self.string(field, value)
        if self.flexible:
            return self.uvarint(0)
        return self.int16(-1)

    cdef int count(self, Py_ssize_t elements) except -1:
        """The length of an array; -1 is the null array."""
        if self.flexible:
            return self.uvarint(elements + 1)
        return self.int32(elements)

    cdef int no_tags(self) except -1:
        if self.flexible:
            self.out.append(0)
        return 0

    cdef bytes finish(self):
        self.out[:4] = (len(self.out) - 4).to_bytes(4, "big")
        return bytes(self.out)


cdef str _described(int api_key, str name, int version, str kind):
    """The message's name for errors, once its version is known to be one of ours."""
    lowest, highest = IMPLEMENTED[api_key]
    if not lowest <= version <= highest:
        raise ValueError(f"{name} version {version} is not implemented, only {lowest} to {highest}")
    return f"{name} v{version} {kind}"


def encode_api_versions(
    int version, int32_t correlation_id, object client_id, str software_name, str software_version
):
    cdef str message = _described(API_VERSIONS, "ApiVersions", version, "request")
    cdef _Writer writer = _Writer(API_VERSIONS, version, correlation_id, client_id, message, version >= 3)
    if version >= 3:
        writer.string("client_software_name", software_name)
        writer.string("client_software_version", software_version)
        writer.no_tags()
    return writer.finish()


def encode_metadata(int version, int32_t correlation_id, object client_id, object topics, bint allow_auto_create):
    cdef str message = _described(METADATA, "Metadata", version, "request")
    cdef _Writer writer = _Writer(METADATA, version, correlation_id, client_id, message, version >= 9)
    if topics is None:
        writer.count(-1)
    else:
        writer.count(len(topics))
        for topic in topics:
            if version >= 10:
                writer.out += NO_TOPIC_ID
            writer.string("topic name", topic)
            writer.no_tags()
    if version >= 4:
        writer.boolean(allow_auto_create)
    elif not allow_auto_create:
        raise ValueError(f"{message}: allow_auto_create=False needs version 4 or newer")
    if 8 <= version <= 10:
        writer.boolean(False)
    if version >= 8:
        writer.boolean(False)
    writer.no_tags()
    return writer.finish()


def encode_init_producer_id(
    int version,
    int32_t correlation_id,
    object client_id,
    object transactional_id,
    int32_t transaction_timeout_ms,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
):
    cdef str message = _described(INIT_PRODUCER_ID, "InitProducerId", version, "request")
    cdef _Writer writer = _Writer(INIT_PRODUCER_ID, version, correlation_id, client_id, message, version >= 2)
    writer.nullable_string("transactional_id", transactional_id)
    writer.int32(transaction_timeout_ms)
    if version >= 3:
        writer.int64(producer_id)
        writer.int16(producer_epoch)
    elif producer_id != -1 or producer_epoch != -1:
        raise ValueError(
            f"{message}: producer_id={producer_id} with producer_epoch={producer_epoch} "
            "needs version 3 or newer"
        )
    writer.no_tags()
    return writer.finish()


cdef dict _read_features(_Reader reader):
    cdef dict features = {}
    for _ in range(reader.count("finalized_features", 6)):
        name = reader.string("finalized_features.name")
        # On the wire the highest level stands before the lowest.
        highest = reader.int16("finalized_features.max_version_level")
        lowest = reader.int16("finalized_features.min_version_level")
        reader.skip_tags()
        features[name] = (lowest, highest)
    return features


def decode_api_versions(int version, object frame):
    cdef str message = _described(API_VERSIONS, "ApiVersions", version, "response")
    cdef _Reader reader = _Reader(frame, message, version >= 3)
    cdef dict api_versions = {}
    cdef dict features = {}
    cdef int throttle_time_ms = 0
    cdef Py_ssize_t outer_end, tag_end
    # Response header v0 in every version: the client cannot know yet whether the broker knows v1.
    reader.int32("correlation_id")
    cdef int error_code = reader.int16("error_code")
    if error_code == UNSUPPORTED_VERSION:
        version = 0
        reader.flexible = False
    for _ in range(reader.count("api_keys", 7 if reader.flexible else 6)):
        key = reader.int16("api_keys.api_key")
        lowest = reader.int16("api_keys.min_version")
        highest = reader.int16("api_keys.max_version")
        reader.skip_tags()
        api_versions[key] = (lowest, highest)
    if version >= 1:
        throttle_time_ms = reader.int32("throttle_time_ms")
    if reader.flexible:
        for _ in range(reader.tag_count()):
            tag = reader.uvarint("tag")
            tag_end = reader.tag_size() + reader.pos
            if tag == FINALIZED_FEATURES_TAG:
                outer_end = reader.end
                reader.end = tag_end
                features = _read_features(reader)
                reader.finish()
                reader.end = outer_end
            reader.pos = tag_end
    reader.finish()
    return ApiVersionsResponse(error_code, api_versions, throttle_time_ms, features)


cdef list _read_brokers(_Reader reader):
    cdef list brokers = []
    for _ in range(reader.count("brokers", 11 if reader.flexible else 12)):
        node_id = reader.int32("brokers.node_id")
        host = reader.string("brokers.host")
        port = reader.int32("brokers.port")
        rack = reader.nullable_string("brokers.rack")
        reader.skip_tags()
        brokers.append(BrokerInfo(node_id, host, port, rack))
    return brokers


cdef list _read_partitions(_Reader reader, int version):
    cdef int fixed_size = 14 if version >= 7 else 10
    cdef int arrays = 3 if version >= 5 else 2
    cdef int least_size = fixed_size + arrays + 1 if reader.flexible else fixed_size + arrays * 4
    cdef int32_t leader_epoch = -1
    cdef const unsigned char *data
    cdef list partitions = []
    cdef object new_tuple = tuple.__new__
    cdef object cls = PartitionInfo
    for _ in range(reader.count("partitions", least_size)):
        reader.need(fixed_size, "partitions")
        data = reader.data + reader.pos
        if version >= 7:
            leader_epoch = <int32_t> _load32(data + 10)
        # Straight to tuple.__new__: at 10,000 partitions the named tuple's own one is half of the time.
        partitions.append(
            new_tuple(
                cls,
                (
                    <int16_t> ((data[0] << 8) | data[1]),
                    <int32_t> _load32(data + 2),
                    <int32_t> _load32(data + 6),
                    leader_epoch,
                ),
            )
        )
        reader.pos += fixed_size
        reader.skip_int32s("partitions.replica_nodes")
        reader.skip_int32s("partitions.isr_nodes")
        if version >= 5:
            reader.skip_int32s("partitions.offline_replicas")
        reader.skip_tags()
    return partitions


cdef list _read_topics(_Reader reader, int version):
    cdef int least_size = 5 if reader.flexible else 9
    cdef list topics = []
    cdef object name
    cdef bytes topic_id = NO_TOPIC_ID
    for _ in range(reader.count("topics", least_size)):
        error_code = reader.int16("topics.error_code")
        if version >= 12:
            name = reader.nullable_string("topics.name")
        else:
            name = reader.string("topics.name")
        if version >= 10:
            reader.need(16, "topics.topic_id")
            topic_id = PyBytes_FromStringAndSize(<const char *> (reader.data + reader.pos), 16)
            reader.pos += 16
        is_internal = reader.boolean("topics.is_internal") == 1
        partitions = _read_partitions(reader, version)
        if version >= 8:
            reader.int32("topics.topic_authorized_operations")
        reader.skip_tags()
        topics.append(TopicInfo(error_code, name, topic_id, is_internal, partitions))
    return topics


def decode_metadata(int version, object frame):
    cdef str message = _described(METADATA, "Metadata", version, "response")
    cdef _Reader reader = _Reader(frame, message, version >= 9)
    cdef int throttle_time_ms = 0
    cdef int error_code = 0
    cdef object cluster_id = None
    reader.int32("correlation_id")
    reader.skip_tags()
    if version >= 3:
        throttle_time_ms = reader.int32("throttle_time_ms")
    brokers = _read_brokers(reader)
    if version >= 2:
        cluster_id = reader.nullable_string("cluster_id")
    controller_id = reader.int32("controller_id")
    topics = _read_topics(reader, version)
    if 8 <= version <= 10:
        reader.int32("cluster_authorized_operations")
    if version >= 13:
        error_code = reader.int16("error_code")
    reader.skip_tags()
    reader.finish()
    return MetadataResponse(throttle_time_ms, brokers, cluster_id, controller_id, topics, error_code)


def decode_init_producer_id(int version, object frame):
    cdef str message = _described(INIT_PRODUCER_ID, "InitProducerId", version, "response")
    cdef _Reader reader = _Reader(frame, message, version >= 2)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    error_code = reader.int16("error_code")
    producer_id = reader.int64("producer_id")
    producer_epoch = reader.int16("producer_epoch")
    reader.skip_tags()
    reader.finish()
    return InitProducerIdResponse(throttle_time_ms, error_code, producer_id, producer_epoch)


_GREETINGS = (
    (b"HTTP", "an HTTP server"),
    (b"<htm", "an HTTP server"),
    (b"<HTM", "an HTTP server"),
    (b"<!DO", "an HTTP server"),
    (b"<!do", "an HTTP server"),
    (b"\x15\x03", "a TLS server (alert)"),
    (b"\x16\x03", "a TLS server (handshake)"),
    (b"SSH-", "an SSH server"),
    (b"220 ", "an SMTP or FTP server"),
    (b"220-", "an SMTP or FTP server"),
    (b"+OK ", "a POP3 server"),
    (b"* OK", "an IMAP server"),
    (b"-ERR", "a Redis server"),
    (b"-NOA", "a Redis server"),
    (b"-DEN", "a Redis server"),
    (b"AMQP", "an AMQP server"),
    (b"RFB ", "a VNC server"),
)


def frame_looks_like(object first_bytes):
    cdef bytes start = bytes(first_bytes[:6])
    for greeting, name in _GREETINGS:
        if start.startswith(greeting):
            return name
    # A MySQL greeting: three bytes of length, little-endian, sequence number 0, protocol 10, a digit.
    if len(start) == 6 and start[3] == 0 and start[4] == 10 and start[5:6].isdigit():
        return "a MySQL server"
    return None
