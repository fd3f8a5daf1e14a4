"""Encodes the requests that this package's client sends, and decodes the responses for its control plane.

Owns the choice of values for fields that the client does not use, the checks of values that the control plane
relies on, and a shape of responses that is easier to use than the one on the wire. Does not own layouts
(``messages``), sockets or the choice of a version (``versions``). The caller matches responses to requests by
correlation id. Every function is pure and callable from any thread.

This module has the requests of every producer, and encodes those of SASL, whose responses are in
``sasl_api``. ``transaction_api``, ``telemetry_api`` and ``admin_api`` have the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cyproducer.errors import KafkaProtocolError
from cyproducer.errors.error_code import ErrorCode
from cyproducer.wire.messages import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from cyproducer.wire.primitives import Reader, Writer, read_topics
from cyproducer.wire.responses import (
    ApiVersionsResponse,
    BrokerInfo,
    InitProducerIdResponse,
    MetadataResponse,
    PartitionInfo,
    ReplicatedPartition,
    TopicInfo,
)
from cyproducer.wire.schema import Api, Frame, Message

Encode = Callable[[int, int, str], bytes]
"""Encodes a request's frame from its version, its correlation id and the client id."""
Decode = Callable[[int, Frame], Any]
"""Makes a response from its version and its frame."""


def framing(encode: Callable[..., bytes], *arguments: Any) -> Encode:
    """Creates an ``Encode`` from an encoder and the arguments that follow its first three."""
    return lambda version, number, client_id: encode(version, number, client_id, *arguments)


def invalid(message: str, problem: str) -> KafkaProtocolError:
    """Returns the error for a response that cannot be right."""
    return KafkaProtocolError(f"{message}: {problem}")


def encode_api_versions(
    version: int,
    correlation_id: int,
    client_id: str | None,
    software_name: str,
    software_version: str,
    cluster_id: str | None = None,
    node_id: int = -1,
) -> bytes:
    """Encodes an ApiVersions request v0-v5 as a whole frame, size prefix included (KIP-35, KIP-511).

    The software name and version are sent from v3 on; brokers accept ASCII letters, digits, ``-`` and ``.``
    in them. The cluster and the node that the client expects are sent from v5 on (KIP-1242); None and -1: the
    broker does not check them.

    Raises:
        ValueError: the version is not implemented, or a string cannot be encoded or is longer than 32767
            bytes. All encoders raise it.
    """
    request = API_VERSIONS.request(software_name, software_version, cluster_id, node_id)
    return API_VERSIONS.encode_request(version, correlation_id, client_id, request)


@cache
def _metadata_request() -> Message:
    """Returns the message whose topics are names. They are written in C, because there may be thousands."""

    def of(version: int) -> Callable[[Writer, Sequence[str] | None], object]:
        def write(writer: Writer, names: Sequence[str] | None) -> None:
            if names is None:
                writer.count("topics", -1)
            else:
                writer.topics("topics", list(names), version >= 10)

        return write

    return METADATA.request.adapted({"topics": of})


def encode_metadata(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topics: Sequence[str] | None,
    allow_auto_create: bool,
    authorized_operations: bool = False,
) -> bytes:
    """Encodes a Metadata request v1-v13 as a whole frame.

    Args:
        topics: the topics to request; ``[]`` requests only the brokers, ``None`` all topics of the cluster.
        allow_auto_create: whether the broker may create missing topics; False needs v4.
        authorized_operations: whether to request the operations that the principal is authorized to perform
            on each topic; ignored before v8.
    """
    request = METADATA.request(
        topics,
        allow_auto_topic_creation=allow_auto_create,
        include_topic_authorized_operations=authorized_operations and version >= 8,
    )
    return METADATA.encode_request(version, correlation_id, client_id, request, _metadata_request())


def encode_init_producer_id(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None,
    transaction_timeout_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytes:
    """Encodes an InitProducerId request v0-v5 as a whole frame (KIP-98).

    Args:
        transactional_id: None for an idempotent producer without transactions.
        producer_id: the producer id whose epoch to bump, -1 for a new id; needs v3 (KIP-360).
        producer_epoch: the current epoch of that id, -1 for a new id.
    """
    request = INIT_PRODUCER_ID.request(transactional_id, transaction_timeout_ms, producer_id, producer_epoch)
    return INIT_PRODUCER_ID.encode_request(version, correlation_id, client_id, request)


def encode_sasl_handshake(version: int, correlation_id: int, client_id: str | None, mechanism: str) -> bytes:
    """Encodes a SaslHandshake request v1 as a whole frame (KIP-43)."""
    request = SASL_HANDSHAKE.request(mechanism)
    return SASL_HANDSHAKE.encode_request(version, correlation_id, client_id, request)


def encode_sasl_authenticate(
    version: int, correlation_id: int, client_id: str | None, auth_bytes: bytes
) -> bytes:
    """Encodes a SaslAuthenticate request v0-v2 as a whole frame (KIP-152, KIP-368)."""
    request = SASL_AUTHENTICATE.request(auth_bytes)
    return SASL_AUTHENTICATE.encode_request(version, correlation_id, client_id, request)


def _ranges(found: Sequence[Any]) -> dict[int, tuple[int, int]]:
    return {each.api_key: (each.min_version, each.max_version) for each in found}


def decode_api_versions(version: int, frame: Frame) -> ApiVersionsResponse:
    """Decodes an ApiVersions response.

    Args:
        version: the requested version. A broker that does not support it responds with error code 35
            (UNSUPPORTED_VERSION) in version 0, with the version ranges it supports (KIP-511). If the ranges
            cannot be read, the result has none: every broker understands version 0.
        frame: the response from its correlation id on, without the size prefix.

    Raises:
        KafkaProtocolError: the response is malformed: truncated, a length or count beyond the end, text
            that is not UTF-8, or trailing bytes. All decoders raise it.
        ValueError: the version is not implemented. All decoders raise it.
    """
    if int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
        try:
            ranges = _ranges(API_VERSIONS.decode_response(0, frame).api_keys)
        except KafkaProtocolError:
            # librdkafka's mock cluster mixes the requested version with version 0 here.
            ranges = {}
        return ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, ranges, 0, {})
    found = API_VERSIONS.decode_response(version, frame)
    # In the response, the highest level precedes the lowest.
    features = {
        each.name: (each.min_version_level, each.max_version_level) for each in found.finalized_features
    }
    return ApiVersionsResponse(
        found.error_code,
        _ranges(found.api_keys),
        found.throttle_time_ms,
        features,
        found.finalized_features_epoch,
    )


def node_problem(node_id: int, host: str, port: int) -> str | None:
    """Returns why a node cannot be a broker to connect to; None if it can.

    Ids below 0 are reserved for this client's bootstrap addresses.
    """
    if node_id < 0:
        return f"node {node_id} at {host!r}:{port} is no broker: node ids are 0 or more"
    if not host or not 1 <= port <= 65535:
        problem = "is not an address: it must be a host and a port from 1 to 65535"
        return f"{host!r}:{port} of node {node_id} {problem}"
    return None


@cache
def _metadata_response(with_replicas: bool) -> Message:
    """Returns the message that is read into the control plane's tuples. Topics are read in C, because there
    may be thousands."""
    kind = ReplicatedPartition if with_replicas else PartitionInfo
    return METADATA.response.adapted(
        {
            "topics": lambda version: (
                lambda reader: read_topics(reader, version, TopicInfo, kind, with_replicas)
            )
        },
        {"MetadataResponseBroker": BrokerInfo},
    )


def decode_metadata(version: int, frame: Frame) -> MetadataResponse:
    """Decodes a Metadata response v1-v13. Fields missing in a version are None, -1, 0 or the zero topic id.

    Brokers with a node id below 0 or without a usable address are left out: one invalid broker must not
    prevent the client from using the others.

    Accepts a second, empty set of tagged fields at the end: librdkafka's mock cluster sends it.
    """
    return _decode_metadata(version, frame, False)


def decode_listing(version: int, frame: Frame) -> MetadataResponse:
    """Like ``decode_metadata``, but with ``ReplicatedPartition`` for each partition."""
    return _decode_metadata(version, frame, True)


def _decode_metadata(version: int, frame: Frame, with_replicas: bool) -> MetadataResponse:
    reader = METADATA.open_response(version, frame)
    found = _metadata_response(with_replicas).read(reader, version)
    if version >= METADATA.flexible and reader.left == 1:
        # librdkafka's mock cluster ends its flexible versions with a second, empty set of tagged fields.
        reader.skip_tags()
    reader.finish()
    brokers, left_out = [], []
    for broker in found.brokers:
        problem = node_problem(broker.node_id, broker.host, broker.port)
        if problem is None:
            brokers.append(broker)
        else:
            left_out.append(problem)
    return MetadataResponse(
        found.throttle_time_ms,
        brokers,
        found.cluster_id,
        found.controller_id,
        found.topics,
        found.error_code,
        tuple(left_out),
    )


def decode_node_endpoints(field: Frame) -> list[BrokerInfo]:
    """Decodes the addresses of the leaders that a Produce response names: tagged field 0, from v10 (KIP-951).

    In addition to the checks of every decoder, it rejects a node id below 0, an empty host and a port outside
    1-65535.
    """
    reader = Reader(field, "Produce response: node_endpoints", True)
    read = PRODUCE.response.reader_of("node_endpoints", PRODUCE.highest)
    found = [BrokerInfo(*each) for each in read(reader)]
    reader.finish()
    for node_id, host, port, _ in found:
        if problem := node_problem(node_id, host, port):
            raise invalid(reader.message, problem)
    return found


def decode_init_producer_id(version: int, frame: Frame) -> InitProducerIdResponse:
    """Decodes an InitProducerId response v0-v5. Without an error, id and epoch must be 0 or more.

    Brokers would write batches with a negative id without any check for duplicates.
    """
    found = InitProducerIdResponse(*INIT_PRODUCER_ID.decode_response(version, frame))
    if found.error_code == 0 and (found.producer_id < 0 or found.producer_epoch < 0):
        problem = f"is {found.producer_id} with epoch {found.producer_epoch}, both must be 0 or more"
        raise invalid(f"InitProducerId v{version} response", f"producer_id {problem}")
    return found


DECODERS: dict[Api, Decode] = {
    API_VERSIONS: decode_api_versions,
    METADATA: decode_metadata,
    INIT_PRODUCER_ID: decode_init_producer_id,
}
"""API -> the decoder of its response. The decoder of Produce is in C. The other modules with
decoders, such as ``transaction_api``, add theirs when they are imported."""

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


def frame_looks_like(first_bytes: Frame) -> str | None:
    """Returns the kind of server that sends these first bytes, for an error message; None if unknown.

    Call this function after a frame with an invalid size: read as a size, each pattern is more than 200 MB.
    Six bytes are enough for all patterns; fewer may match none.
    """
    start = bytes(first_bytes[:6])
    for greeting, name in _GREETINGS:
        if start.startswith(greeting):
            return name
    # A MySQL greeting: a length of three bytes (little-endian), sequence number 0, protocol 10, a digit.
    if len(start) == 6 and start[3] == 0 and start[4] == 10 and start[5:6].isdigit():
        return "a MySQL server"
    return None
