"""Encodes and decodes every Kafka message except Produce: ApiVersions, Metadata, InitProducerId.

Owns the byte layout of these requests and responses in each version the package implements, and of the
Produce response field with broker addresses. Does not own the primitive types (``primitives.pyx``), sockets
or the choice of a version (``control/apis.py``). The caller matches responses to requests by correlation id.
Runs with the GIL, on the sender thread; every function is pure and may be called from any thread.

Layouts follow Apache Kafka's message schemas (protocol guide; KIP-482 for flexible versions).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t

from cyproducer.network.primitives cimport Reader, Writer, load32

from cyproducer.control import apis as _apis
from cyproducer.control.responses import (
    NO_TOPIC_ID as _NO_TOPIC_ID,
    ApiVersionsResponse,
    BrokerInfo,
    InitProducerIdResponse,
    MetadataResponse,
    PartitionInfo,
    TopicInfo,
)
from cyproducer.errors import KafkaProtocolError


cdef enum:
    # A broker sends this error in version 0, whatever version was requested (KIP-511).
    UNSUPPORTED_VERSION = 35
    FINALIZED_FEATURES_TAG = 2


cdef str _described(object api, int version, str kind):
    """Checks the version, and returns the message's name for errors."""
    if not api.lowest <= version <= api.highest:
        raise ValueError(
            f"{api.name} version {version} is not implemented, only {api.lowest} to {api.highest}"
        )
    return f"{api.name} v{version} {kind}"


cdef Writer _request(object api, int version, int32_t correlation_id, object client_id):
    """Returns a writer that has written the request header."""
    cdef str message = _described(api, version, "request")
    return Writer(api.key, version, correlation_id, client_id, message, version >= api.flexible)


cdef Reader _response(object api, int version, object frame):
    return Reader(frame, _described(api, version, "response"), version >= api.flexible)


def encode_api_versions(
    int version, int32_t correlation_id, object client_id, str software_name, str software_version
):
    cdef Writer writer = _request(_apis.API_VERSIONS, version, correlation_id, client_id)
    if writer.flexible:
        writer.string("client_software_name", software_name)
        writer.string("client_software_version", software_version)
        writer.no_tags()
    return writer.finish()


def encode_metadata(
    int version, int32_t correlation_id, object client_id, object topics, bint allow_auto_create
):
    cdef Writer writer = _request(_apis.METADATA, version, correlation_id, client_id)
    if topics is None:
        writer.count(-1)
    else:
        writer.count(len(topics))
        for topic in topics:
            if version >= 10:
                writer.out += _NO_TOPIC_ID
            writer.string("topic name", topic)
            writer.no_tags()
    if version >= 4:
        writer.boolean(allow_auto_create)
    elif not allow_auto_create:
        raise ValueError(f"{writer.message}: allow_auto_create=False needs version 4 or newer")
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
    cdef Writer writer = _request(_apis.INIT_PRODUCER_ID, version, correlation_id, client_id)
    writer.nullable_string("transactional_id", transactional_id)
    writer.int32(transaction_timeout_ms)
    if version >= 3:
        writer.int64(producer_id)
        writer.int16(producer_epoch)
    elif producer_id != -1 or producer_epoch != -1:
        raise ValueError(
            f"{writer.message}: producer_id={producer_id} with producer_epoch={producer_epoch} "
            "needs version 3 or newer"
        )
    writer.no_tags()
    return writer.finish()


cdef dict _read_features(Reader reader):
    cdef dict features = {}
    for _ in range(reader.count("finalized_features", 6)):
        name = reader.string("finalized_features.name")
        # The highest level comes before the lowest in the response.
        highest = reader.int16("finalized_features.max_version_level")
        lowest = reader.int16("finalized_features.min_version_level")
        reader.skip_tags()
        features[name] = (lowest, highest)
    return features


cdef dict _read_api_versions(Reader reader):
    cdef dict api_versions = {}
    for _ in range(reader.count("api_keys", 7 if reader.flexible else 6)):
        key = reader.int16("api_keys.api_key")
        lowest = reader.int16("api_keys.min_version")
        highest = reader.int16("api_keys.max_version")
        reader.skip_tags()
        api_versions[key] = (lowest, highest)
    return api_versions


cdef dict _read_supported_versions(Reader reader):
    """Reads the ranges that come with UNSUPPORTED_VERSION; malformed ones count as none."""
    reader.flexible = False
    try:
        api_versions = _read_api_versions(reader)
        reader.finish()
    except KafkaProtocolError:
        # librdkafka's mock cluster mixes the requested version with version 0 here.
        return {}
    return api_versions


def decode_api_versions(int version, object frame):
    cdef Reader reader = _response(_apis.API_VERSIONS, version, frame)
    cdef dict features = {}
    cdef int throttle_time_ms = 0
    cdef Py_ssize_t outer_end, tag_end
    # All versions have response header v0: the client cannot know yet whether the broker supports v1.
    reader.int32("correlation_id")
    cdef int error_code = reader.int16("error_code")
    if error_code == UNSUPPORTED_VERSION:
        return ApiVersionsResponse(error_code, _read_supported_versions(reader), 0, features)
    api_versions = _read_api_versions(reader)
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


cdef list _read_brokers(Reader reader):
    cdef list brokers = []
    for _ in range(reader.count("brokers", 11 if reader.flexible else 12)):
        node_id = reader.int32("brokers.node_id")
        host = reader.string("brokers.host")
        port = reader.int32("brokers.port")
        rack = reader.nullable_string("brokers.rack")
        reader.skip_tags()
        brokers.append(BrokerInfo(node_id, host, port, rack))
    return brokers


cdef list _read_partitions(Reader reader, int version):
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
            leader_epoch = <int32_t> load32(data + 10)
        # Calls tuple.__new__ directly: with 10,000 partitions, the named tuple's __new__ takes half the time.
        partitions.append(
            new_tuple(
                cls,
                (
                    <int16_t> ((data[0] << 8) | data[1]),
                    <int32_t> load32(data + 2),
                    <int32_t> load32(data + 6),
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


cdef list _read_topics(Reader reader, int version):
    cdef int least_size = 5 if reader.flexible else 9
    cdef list topics = []
    cdef object name
    cdef bytes topic_id = _NO_TOPIC_ID
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
    cdef Reader reader = _response(_apis.METADATA, version, frame)
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
    if reader.end - reader.pos == 1:
        # librdkafka's mock cluster ends its flexible versions with a second, empty set of tagged fields.
        reader.skip_tags()
    reader.finish()
    return MetadataResponse(throttle_time_ms, brokers, cluster_id, controller_id, topics, error_code)


def decode_node_endpoints(object field):
    cdef Reader reader = Reader(field, "Produce response: node_endpoints", True)
    cdef list brokers = []
    for _ in range(reader.count("node_endpoints", 11)):
        node_id = reader.int32("node_id")
        host = reader.string("host")
        port = reader.int32("port")
        if not host or not 1 <= port <= 65535:
            raise KafkaProtocolError(
                f"{reader.message}: {host!r}:{port} of node {node_id} is not an address: it must be a host "
                "and a port from 1 to 65535"
            )
        rack = reader.nullable_string("rack")
        reader.skip_tags()
        brokers.append(BrokerInfo(node_id, host, port, rack))
    reader.finish()
    return brokers


def decode_init_producer_id(int version, object frame):
    cdef Reader reader = _response(_apis.INIT_PRODUCER_ID, version, frame)
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
    # A MySQL greeting: a length of three bytes (little-endian), sequence number 0, protocol 10, a digit.
    if len(start) == 6 and start[3] == 0 and start[4] == 10 and start[5:6].isdigit():
        return "a MySQL server"
    return None
