"""Makes schemas for the Schema Registry from a DataFrame's schema.

Owns the mapping of Spark's types to Avro's and to JSON Schema's. Does not encode values (``to_avro``,
``to_json``) and does not talk to a registry. Reads only ``StructType.jsonValue()``, so no JVM is needed, and
Spark Connect works too. Pure functions; any thread may call them.

Sources: the types of Avro 1.12's specification, and how ``spark-avro`` encodes Spark's types; what Spark's
``to_json`` writes.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cyproducer.spark.columns import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_AVRO: Final[Mapping[str, Any]] = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_JSON: Final[Mapping[str, Mapping[str, Any]]] = {
    "boolean": {"type": "boolean"},
    "byte": {"type": "integer", "minimum": -(2**7), "maximum": 2**7 - 1},
    "short": {"type": "integer", "minimum": -(2**15), "maximum": 2**15 - 1},
    "integer": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "long": {"type": "integer"},
    "float": {"type": "number"},
    "double": {"type": "number"},
    "string": {"type": "string"},
    # to_json writes Base64.
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
    # A time without a zone is no date-time of RFC 3339.
    "timestamp_ntz": {"type": "string"},
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_AVRO_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def avro_schema(schema: "StructType", name: str = "Record", namespace: str = "") -> str:
    """Returns the Avro schema of a DataFrame's rows, as JSON.

    Pass it to ``to_avro(struct(*), schema)``, and register it. A nullable column becomes a union with null
    whose default is null, so that it may be added to or removed from the schema later.

    Args:
        schema: ``df.schema``, or that of the columns that are encoded: ``df.select("id", "amount").schema``.
        name: the record's name. Records inside it are named after their columns.
        namespace: the namespace of the name. Records inside it get longer ones.

    Raises:
        SchemaError: a column's name is not allowed in Avro, or its type has no Avro type.
    """
    return json.dumps(_avro_record(schema.jsonValue()["fields"], name, namespace, ""))


def json_schema(schema: "StructType", title: str = "Record") -> str:
    """Returns the JSON Schema (draft 7) of what ``to_json(struct(*))`` writes for a DataFrame's rows.

    Null columns are left out by ``to_json`` unless its option ``ignoreNullFields`` is false; the schema
    allows both. Columns that are not nullable are required.

    Args:
        schema: ``df.schema``, or that of the columns that are encoded.
        title: the schema's title.

    Raises:
        SchemaError: a column's type has no JSON type.
    """
    found = _json_object(schema.jsonValue()["fields"], "")
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **found})


def _avro_record(fields: list[dict[str, Any]], name: str, namespace: str, path: str) -> dict[str, Any]:
    if not _AVRO_NAME.fullmatch(name):
        raise SchemaError(f"name {name!r}: Avro allows letters, digits and '_', beginning with no digit")
    inner = f"{namespace}.{name}" if namespace else name
    record: dict[str, Any] = {"type": "record", "name": name}
    if namespace:
        record["namespace"] = namespace
    record["fields"] = [_avro_field(field, inner, f"{path}{field['name']}") for field in fields]
    return record


def _avro_field(field: dict[str, Any], namespace: str, path: str) -> dict[str, Any]:
    if not _AVRO_NAME.fullmatch(field["name"]):
        raise SchemaError(
            f"column {path!r}: names in Avro have letters, digits and '_', and begin with no digit: rename it"
        )
    found = _avro_type(field["type"], field["nullable"], field["name"], namespace, path)
    return {"name": field["name"], "type": found, **({"default": None} if field["nullable"] else {})}


def _avro_type(of: Any, nullable: bool, name: str, namespace: str, path: str) -> Any:
    found: Any
    kind = of if isinstance(of, str) else of["type"]
    if kind == "struct":
        found = _avro_record(of["fields"], name, namespace, f"{path}.")
    elif kind == "array":
        items = _avro_type(of["elementType"], of["containsNull"], name, namespace, path)
        found = {"type": "array", "items": items}
    elif kind == "map" and of["keyType"] == "string":
        values = _avro_type(of["valueType"], of["valueContainsNull"], name, namespace, path)
        found = {"type": "map", "values": values}
    elif decimal := _DECIMAL.fullmatch(kind):
        precision, scale = map(int, decimal.groups())
        found = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    else:
        found = _known(_AVRO, kind, path, "Avro")
    return ["null", found] if nullable else found


def _json_object(fields: list[dict[str, Any]], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"}
    found["properties"] = {
        field["name"]: _json_type(field["type"], field["nullable"], f"{path}{field['name']}")
        for field in fields
    }
    if required := [field["name"] for field in fields if not field["nullable"]]:
        found["required"] = required
    return found


def _json_type(of: Any, nullable: bool, path: str) -> dict[str, Any]:
    found: dict[str, Any]
    kind = of if isinstance(of, str) else of["type"]
    if kind == "struct":
        found = _json_object(of["fields"], f"{path}.")
    elif kind == "array":
        found = {"type": "array", "items": _json_type(of["elementType"], of["containsNull"], path)}
    elif kind == "map":
        values = _json_type(of["valueType"], of["valueContainsNull"], path)
        found = {"type": "object", "additionalProperties": values}
    elif _DECIMAL.fullmatch(kind):
        found = {"type": "number"}
    else:
        found = dict(_known(_JSON, kind, path, "JSON"))
    return {**found, "type": [found["type"], "null"]} if nullable else found


def _known(types: Mapping[str, Any], kind: str, path: str, target: str) -> Any:
    if kind not in types:
        shown = "a map whose keys are no strings" if kind == "map" else kind
        raise SchemaError(
            f"column {path!r} is {shown}, which has no type in {target}: cast it, or leave it out"
        )
    return types[kind]
