"""Decodes requests, which only a broker does; ``wire/schema`` encodes them.

Pure, and callable from any thread.
"""

from typing import Any, NamedTuple

from cyproducer.errors import KafkaProtocolError
from cyproducer.wire.primitives import Reader
from cyproducer.wire.schema import Api, Frame


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


def read_header(frame: Frame) -> RequestHeader:
    """Returns the header of a request's frame, without its size prefix. Raises ``KafkaProtocolError``."""
    return _read_header(Reader(frame, "request header", False))


def _read_header(reader: Reader) -> RequestHeader:
    return RequestHeader(
        reader.int16("api_key"),
        reader.int16("api_version"),
        reader.int32("correlation_id"),
        reader.nullable_string("client_id"),
    )


def decode_request(api: Api, frame: Frame, *, whole: bool = True) -> tuple[RequestHeader, Any]:
    """Returns the header and the request of a frame, without its size prefix.

    ``whole``: whether bytes after the request are an error. Kafka's brokers ignore such bytes.

    Raises:
        KafkaProtocolError: the request is malformed, belongs to another API, or has a version that is not
            implemented.
    """
    header = read_header(frame)
    if header.api_key != api.key or header.version not in api.declared:
        raise KafkaProtocolError(f"{header} is no request of {api.name} {api.declared}")
    reader = Reader(frame, f"{api.name} v{header.version} request", False)
    _read_header(reader)
    if header.version >= api.flexible:
        reader.flexible = True
        reader.skip_tags()
    request = api.request.read(reader, header.version)
    if whole:
        reader.finish()
    return header, request
