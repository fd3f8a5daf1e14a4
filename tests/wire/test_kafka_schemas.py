"""Names, types, versions and defaults as declared, beside Kafka's own schemas in kafka-python's files."""

import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from cyproducer.wire import messages
from cyproducer.wire.schema import NEVER, Api, Field, Message, Struct, Versions
from tests.wire.kio_oracle import LATER_THAN_ORACLES

try:
    FILES = resources.files("kafka.protocol.schemas.resources")
except ModuleNotFoundError:
    pytest.skip("kafka-python is not installed, or has no schemas", allow_module_level=True)

# kafka-python does not speak these.
WITHOUT_FILE = {
    "ConsumerGroupDescribe",
    "ConsumerGroupHeartbeat",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
}
# Kafka calls each of these a string.
TYPES = {"text": "string", "boolean": "bool"}


def schema_of(message: Message) -> dict[str, Any]:
    text = (FILES / f"{message.name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(re.sub(r"(?m)^\s*//.*$|\s//\s.*$", "", text))
    return found


def snake_case(name: str) -> str:
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def within(written: str | Versions, limits: Versions) -> tuple[int, int] | None:
    versions = Versions.parse(written) if isinstance(written, str) else written
    first, last = max(versions.first, limits.first), min(versions.last, limits.last)
    return (first, last) if first <= last else None


def default_of(field: Field) -> str:
    if field.default is None or isinstance(field.default, bool):
        return {None: "null", True: "true", False: "false"}[field.default]
    return "" if field.default in (b"", [], bytes(16)) else str(field.default)


Row = tuple[Any, ...]


def theirs(fields: list[Any], common: dict[str, Any], limits: Versions, path: str) -> Iterator[Row]:
    for field in fields:
        versions = within(field["versions"], limits)
        if versions is None:
            continue
        kind, inside = field["type"], Versions(*versions)
        name = path + snake_case(field["name"])
        plain = kind.removeprefix("[]")
        nullable = within(field["nullableVersions"], inside) if "nullableVersions" in field else None
        tag = (field["tag"], within(field["taggedVersions"], inside)) if "tag" in field else None
        yield name, kind, versions, nullable, tag, str(field.get("default", "")).lower()
        if plain[0].isupper():
            yield from theirs(field.get("fields") or common[plain]["fields"], common, inside, f"{name}.")


def ours(struct: Struct, limits: Versions, path: str) -> Iterator[Row]:
    for field in struct.fields:
        versions = within(field.versions, limits)
        if versions is None and field.versions.first in LATER_THAN_ORACLES.values():
            continue
        assert versions is not None, f"{path}{field.name} is in no version"
        inside = Versions(*versions)
        name = path + field.name
        kind = field.kind.name if isinstance(field.kind, Struct) else TYPES.get(field.kind, field.kind)
        tag = (field.tag, within(field.tagged, inside)) if field.tag >= 0 else None
        array = "[]" if field.array else ""
        default = default_of(field) if field.optional or field.default is None else ""
        yield name, array + kind, versions, within(field.nullable, inside), tag, default
        if isinstance(field.kind, Struct):
            yield from ours(field.kind, inside, f"{name}.")


def same_default(declared: str, kafka: str) -> bool:
    """Kafka leaves out zeros, and writes some numbers in hexadecimal."""
    zeros = ("", "0", "false", '""')
    if declared in zeros or kafka in zeros:
        # An absent structure has its own defaults.
        return declared in (*zeros, "null") and kafka in (*zeros, "null")
    return declared == kafka or (declared.lstrip("-").isdigit() and int(declared) == int(kafka, 0))


@pytest.mark.parametrize("api", [api for api in messages.ALL if api.name not in WITHOUT_FILE], ids=repr)
@pytest.mark.parametrize("kind", ["request", "response"])
def test_a_declaration_is_that_of_kafka(api: Api, kind: str) -> None:
    message: Message = getattr(api, kind)
    schema = schema_of(message)
    versions = api.declared
    if api.name in LATER_THAN_ORACLES:
        versions = Versions(versions.first, LATER_THAN_ORACLES[api.name] - 1)
    assert schema["apiKey"] == api.key
    assert within(schema["validVersions"], api.declared) == tuple(versions)
    flexible = schema["flexibleVersions"]
    assert api.flexible == (NEVER if flexible == "none" else Versions.parse(flexible).first)
    common = {each["name"]: each for each in schema.get("commonStructs", ())}
    wanted = list(theirs(schema["fields"], common, versions, ""))
    found = list(ours(message.root, versions, ""))
    assert [row[:-1] for row in found] == [row[:-1] for row in wanted]
    for declared, kafka in zip(found, wanted, strict=True):
        assert same_default(declared[-1], kafka[-1]), (declared, kafka)
