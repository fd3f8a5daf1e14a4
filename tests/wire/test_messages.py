"""Every declared message in every version, both ways, beside kio, which is generated from Kafka's schemas."""

import datetime
import uuid
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from cyproducer.wire import messages
from cyproducer.wire.requests import decode_request
from cyproducer.wire.schema import NO_UUID, Api, Field, Message, Struct
from tests.wire.kio_oracle import LATER_THAN_ORACLES, read_request, schema, write

CODES = sorted(code.value for code in ErrorCode)
# Of each of 400 messages.
EXAMPLES = settings().max_examples // 4
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
SIZES = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
FROM_KIO = [
    pytest.param(api, version, id=f"{api.name}-{version}")
    for api in messages.ALL
    for version in range(api.declared.first, api.declared.last + 1)
    if version != LATER_THAN_ORACLES.get(api.name)
]
# Printable, as texts for people are escaped when they are decoded.
TEXTS = st.text(st.characters(categories=["L", "Nd"]), max_size=8)


def of_kio(message: Message, version: int) -> Any:
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in message.name).lstrip("_")
    api, kind = name.rsplit("_", 1)
    return getattr(schema(api, version, kind), message.name)


def number_of(field: Field, kafka_type: str) -> st.SearchStrategy[Any]:
    if kafka_type == "error_code":
        return st.sampled_from(CODES)
    bits = SIZES[str(field.kind)]
    limit = 2 ** (min(bits, 40 if kafka_type.startswith(("timedelta", "datetime")) else bits) - 1)
    return st.integers(0 if kafka_type.startswith("datetime") else -limit, limit - 1)


@cache
def values(struct: Struct, version: int, entity: type) -> st.SearchStrategy[Any]:
    """The values of a structure that are possible in a version; fields that it lacks have their defaults."""
    theirs = iter(fields(entity))
    made: list[st.SearchStrategy[Any]] = []
    for field in struct.fields:
        if version not in field.versions:
            made.append(st.builds(field.zero))
            continue
        its = next(theirs)
        one: st.SearchStrategy[Any]
        if isinstance(field.kind, Struct):
            one = values(field.kind, version, entity_of(its.type))
        elif field.kind == "boolean":
            one = st.booleans()
        elif field.kind in ("string", "text"):
            one = TEXTS
        elif field.kind in ("bytes", "records"):
            one = st.binary(max_size=8)
        elif field.kind == "uuid":
            one = st.binary(min_size=16, max_size=16)
        else:
            one = number_of(field, its.metadata["kafka_type"])
        if field.array:
            one = st.lists(one, max_size=3)
        made.append(st.none() | one if version in field.nullable else one)
    assert next(theirs, None) is None, f"{struct.name} lacks a field of version {version}"
    return st.tuples(*made).map(lambda found: struct.type(*found))


def entity_of(hint: Any) -> Any:
    """The class of a structure in the annotation of a field: T, tuple[T, ...], or either of them or None."""
    if is_dataclass(hint):
        return hint
    return next(found for part in hint.__args__ if part is not ... and (found := entity_of_or_none(part)))


def entity_of_or_none(hint: Any) -> Any:
    return entity_of(hint) if is_dataclass(hint) or getattr(hint, "__args__", None) else None


def as_kio(struct: Struct, version: int, entity: Any, value: Any) -> Any:
    """Returns kio's object for a value."""
    theirs = iter(fields(entity))
    found = {}
    for field, each in zip(struct.fields, value, strict=True):
        if version in field.versions:
            its = next(theirs)
            found[its.name] = part_as_kio(field, version, its, each)
    return entity(**found)


def part_as_kio(field: Field, version: int, its: Any, value: Any) -> Any:
    if field.array and value is not None:
        return tuple(one_as_kio(field, version, its, each) for each in value)
    return one_as_kio(field, version, its, value)


def one_as_kio(field: Field, version: int, its: Any, value: Any) -> Any:
    if isinstance(field.kind, Struct):
        return None if value is None else as_kio(field.kind, version, entity_of(its.type), value)
    match its.metadata["kafka_type"]:
        case "error_code":
            return ErrorCode(value)
        case "uuid":
            return None if value == NO_UUID else uuid.UUID(bytes=value)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return EPOCH + datetime.timedelta(milliseconds=value)
    return value


@pytest.mark.parametrize(("api", "version"), FROM_KIO)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_request_is_the_same_for_kio(api: Api, version: int, data: st.DataObject) -> None:
    root, entity = api.request.root, of_kio(api.request, version)
    value = data.draw(values(root, version, entity))
    theirs = as_kio(root, version, entity, value)
    frame = api.encode_request(version, 5, "me", value)
    header, body = read_request(frame, entity)
    assert body == theirs
    assert (header.correlation_id, header.client_id) == (5, "me")
    assert (header.request_api_key, header.request_api_version) == (api.key, version)
    written = write(
        theirs, request_api_key=api.key, request_api_version=version, correlation_id=5, client_id="me"
    )
    assert decode_request(api, written) == ((api.key, version, 5, "me"), value)


@pytest.mark.parametrize(("api", "version"), FROM_KIO)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_response_is_the_same_for_kio(api: Api, version: int, data: st.DataObject) -> None:
    root, entity = api.response.root, of_kio(api.response, version)
    value = data.draw(values(root, version, entity))
    theirs = as_kio(root, version, entity, value)
    header, body = read_request(api.encode_response(version, 5, value), entity)
    assert (header.correlation_id, body) == (5, theirs)
    assert api.decode_response(version, write(theirs, correlation_id=5)) == value
