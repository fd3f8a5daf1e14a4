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
    """An ApiVersions request v0-v4 as a whole frame, size prefix included (KIP-35, KIP-511).

    The software's name and version are sent from v3 on; brokers accept ASCII letters, digits, ``-`` and
    ``.`` there.

    Raises:
        ValueError: the version is not implemented, or a string is not encodable or above 32767 bytes;
            so for every encoder.
    """

def encode_metadata(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topics: Sequence[str] | None,
    allow_auto_create: bool,
) -> bytes:
    """A Metadata request v1-v13 as a whole frame.

    Args:
        topics: the topics to ask for; none of them (``[]``) asks for the brokers alone, ``None`` for all
            topics of the cluster.
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
    """An InitProducerId request v0-v5 as a whole frame (KIP-98).

    Args:
        transactional_id: None for an idempotent producer without transactions.
        producer_id: the id to bump the epoch of, -1 for a new one; needs v3 (KIP-360).
        producer_epoch: that id's epoch, -1 with a new one.
    """

def decode_api_versions(version: int, frame: _Frame) -> ApiVersionsResponse:
    """Reads an ApiVersions response.

    Args:
        version: the version that was asked for. A broker that lacks it answers error code 35
            (UNSUPPORTED_VERSION) in version 0, with the ranges it supports (KIP-511). Where these cannot
            be read there are none: version 0 is what every broker understands.
        frame: the response from its correlation id on, without the size prefix.

    Raises:
        KafkaProtocolError: the bytes are no such response: cut short, a length or count beyond the end,
            text that is not UTF-8, or bytes left over. So for every decoder.
        ValueError: the version is not implemented. So for every decoder.
    """

def decode_metadata(version: int, frame: _Frame) -> MetadataResponse:
    """Reads a Metadata response v1-v13; what versions lack is None, -1, 0 or the zero topic id.

    A second, empty set of tagged fields at the end is let pass: librdkafka's mock cluster sends it.
    """

def decode_node_endpoints(field: _Frame) -> list[BrokerInfo]:
    """Reads where the leaders are that a Produce response names: its tagged field 0, v10 on (KIP-951).

    Besides what is wrong in any frame, an address nobody can connect to is refused here.
    """

def decode_init_producer_id(version: int, frame: _Frame) -> InitProducerIdResponse:
    """Reads an InitProducerId response v0-v5."""

def frame_looks_like(first_bytes: _Frame) -> str | None:
    """What kind of server begins like this, in words for an error; None where it is none of the known.

    To be asked once a frame's size made no sense: each pattern is a size of more than 200 MB. Six bytes
    are enough, fewer tell less.
    """
