from collections.abc import Sequence

from cyproducer.control.messages import ApiVersionsResponse as ApiVersionsResponse
from cyproducer.control.messages import BrokerInfo as BrokerInfo
from cyproducer.control.messages import InitProducerIdResponse as InitProducerIdResponse
from cyproducer.control.messages import MetadataResponse as MetadataResponse
from cyproducer.control.messages import PartitionInfo as PartitionInfo
from cyproducer.control.messages import TopicInfo as TopicInfo

def encode_api_versions(
    version: int, correlation_id: int, client_id: str | None, software_name: str, software_version: str
) -> bytes: ...
def encode_metadata(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topics: Sequence[str] | None,
    allow_auto_create: bool,
) -> bytes: ...
def encode_init_producer_id(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None,
    transaction_timeout_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytes: ...
def decode_api_versions(version: int, frame: bytes | bytearray | memoryview) -> ApiVersionsResponse: ...
def decode_metadata(version: int, frame: bytes | bytearray | memoryview) -> MetadataResponse: ...
def decode_init_producer_id(version: int, frame: bytes | bytearray | memoryview) -> InitProducerIdResponse: ...
def frame_looks_like(first_bytes: bytes | bytearray | memoryview) -> str | None: ...
