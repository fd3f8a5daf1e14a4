"""An independent codec for Kafka's messages: kio, generated from Kafka's own schemas."""

import datetime
import io
from dataclasses import fields
from importlib import import_module
from typing import Any

from kio.serial import entity_reader, entity_writer

CORRELATION_ID = 0x01020304
LATER_THAN_ORACLES = {"ApiVersions": 5, "TxnOffsetCommit": 6}
"""The versions of Kafka 4.4 that neither kio nor kafka-python has; ``test_kafka_4_4.py`` has their bytes."""


def schema(api: str, version: int, kind: str) -> Any:
    """Returns the module of a message: ``schema("metadata", 12, "response").MetadataResponse``."""
    return import_module(f"kio.schema.{api}.v{version}.{kind}")


def make(cls: Any, **values: Any) -> Any:
    """Makes an entity from the values; drops those that its version has no field for."""
    known = {field.name for field in fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in known})


def read_request(frame: bytes, cls: Any) -> tuple[Any, Any]:
    """Returns header and body of a request frame; its length must match its size prefix."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, header_size = entity_reader(cls.__header_schema__)(frame, 4)
    body, body_size = entity_reader(cls)(frame, 4 + header_size)
    assert 4 + header_size + body_size == len(frame)
    return header, body


def write(entity: Any, **header: Any) -> bytes:
    """Encodes a request or a response, without its size prefix."""
    buffer = io.BytesIO()
    kind = type(entity).__header_schema__
    entity_writer(kind)(buffer, kind(**header))
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def milliseconds(value: int) -> Any:
    return datetime.timedelta(milliseconds=value)
