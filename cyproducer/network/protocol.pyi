from collections.abc import Sequence

from cyproducer.control.responses import (
    ApiVersionsResponse,
    BrokerInfo,
    InitProducerIdResponse,
    MetadataResponse,
)

_Frame = bytes | bytearray | memoryview

def encode_api_versions(
    version: int, correlation_id: int, client_id: str | None, software_name: str, software_version: str
) -> bytes:
    """Encodes an ApiVersions request v0-v4 as a whole frame, size prefix included (KIP-35, KIP-511).

    The software name and version are sent from v3 on; brokers accept ASCII letters, digits, ``-`` and ``.``
    in them.

    Raises:
        ValueError: the version is not implemented, or a string cannot be encoded or is longer than 32767
            bytes. All encoders raise it.
    """

def encode_metadata(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topics: Sequence[str] | None,
    allow_auto_create: bool,
) -> bytes:
    """Encodes a Metadata request v1-v13 as a whole frame.

    Args:
        topics: the topics to ask for; ``[]`` asks only for the brokers, ``None`` for all topics of the
            cluster.
        allow_auto_create: whether the broker may create missing topics; False needs v4.
    """

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

def decode_api_versions(version: int, frame: _Frame) -> ApiVersionsResponse:
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

def decode_metadata(version: int, frame: _Frame) -> MetadataResponse:
    """Decodes a Metadata response v1-v13. Fields missing in a version are None, -1, 0 or the zero topic id.

    Accepts a second, empty set of tagged fields at the end: librdkafka's mock cluster sends it.
    """

def decode_node_endpoints(field: _Frame) -> list[BrokerInfo]:
    """Decodes the addresses of the leaders that a Produce response names: tagged field 0, from v10 (KIP-951).

    In addition to the checks of every decoder, it rejects an empty host and a port outside 1-65535.
    """

def decode_init_producer_id(version: int, frame: _Frame) -> InitProducerIdResponse:
    """Decodes an InitProducerId response v0-v5."""

def frame_looks_like(first_bytes: _Frame) -> str | None:
    """Names the kind of server that sends these first bytes, for an error message; None if unknown.

    Call it after a frame had an invalid size: read as a size, each pattern is more than 200 MB. Six bytes
    are enough for all patterns; fewer may match none.
    """
