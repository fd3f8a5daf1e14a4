"""Tests schemas that are made from a DataFrame's, with an independent reader of each kind."""

import io
import json
from decimal import Decimal
from typing import Any

import pytest

from cyproducer.spark import avro_schema, json_schema
from cyproducer.spark.columns import SchemaError

fastavro: Any = pytest.importorskip("fastavro")


class StructType:
    """What the functions read of a ``StructType``."""

    def __init__(self, *fields: dict[str, Any]) -> None:
        self.fields = list(fields)

    def jsonValue(self) -> dict[str, Any]:
        return {"type": "struct", "fields": self.fields}


def schema_of(*fields: dict[str, Any]) -> Any:
    return StructType(*fields)


def field(name: str, of: Any, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": of, "nullable": nullable, "metadata": {}}


def array(of: Any, nulls: bool = False) -> dict[str, Any]:
    return {"type": "array", "elementType": of, "containsNull": nulls}


def mapping(of: Any, key: str = "string") -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": of, "valueContainsNull": False}


ORDER = schema_of(
    field("id", "long", False),
    field("amount", "decimal(10,2)"),
    field("at", "timestamp", False),
    field("tags", array("string", True)),
    field("counts", mapping("integer"), False),
    field("buyer", {"type": "struct", "fields": [field("name", "string"), field("code", "binary")]}),
    field("lines", array({"type": "struct", "fields": [field("sku", "string", False)]}), False),
)


def avro(schema: Any, **more: str) -> Any:
    return json.loads(avro_schema(schema, **more))


def test_values_are_written_with_the_avro_schema_and_read_back() -> None:
    schema = fastavro.parse_schema(avro(ORDER, name="Order", namespace="shop"))
    order = {
        "id": 1,
        "amount": Decimal("1.50"),
        "at": 7,
        "tags": ["a", None],
        "counts": {"x": 2},
        "buyer": {"name": None, "code": b"\x00"},
        "lines": [{"sku": "s"}],
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, order)
    read = fastavro.schemaless_reader(io.BytesIO(out.getvalue()), schema, None)
    assert isinstance(read, dict)
    assert {**read, "at": 7} == order


def test_a_nullable_column_may_be_added_to_the_schema_later() -> None:
    before = fastavro.parse_schema(avro(schema_of(field("id", "long", False))))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, before, {"id": 1})
    after = avro(schema_of(field("id", "long", False), field("note", "string")))
    assert fastavro.schemaless_reader(io.BytesIO(out.getvalue()), before, after) == {"id": 1, "note": None}


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        ("boolean", "boolean"),
        ("byte", "int"),
        ("short", "int"),
        ("integer", "int"),
        ("long", "long"),
        ("float", "float"),
        ("double", "double"),
        ("string", "string"),
        ("binary", "bytes"),
        ("date", {"type": "int", "logicalType": "date"}),
        ("timestamp", {"type": "long", "logicalType": "timestamp-micros"}),
        ("timestamp_ntz", {"type": "long", "logicalType": "local-timestamp-micros"}),
        ("decimal(38,18)", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}),
    ],
)
def test_each_type_has_the_one_that_spark_encodes(of: str, wanted: Any) -> None:
    (found,) = avro(schema_of(field("a", of, False)))["fields"]
    assert found == {"name": "a", "type": wanted}
    (nullable,) = avro(schema_of(field("a", of)))["fields"]
    assert nullable == {"name": "a", "type": ["null", wanted], "default": None}


def test_records_of_one_name_are_told_apart_by_namespaces() -> None:
    inner = {"type": "struct", "fields": [field("x", "long")]}
    both = schema_of(
        field("a", {"type": "struct", "fields": [field("b", inner)]}),
        field("c", {"type": "struct", "fields": [field("b", inner)]}),
    )
    fastavro.parse_schema(avro(both))


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (field("a b", "long"), "column 'a b': names in Avro have"),
        (
            field("a", "interval day to second"),
            "column 'a' is interval day to second, which has no type",
        ),
        (field("a", mapping("long", "integer")), "column 'a' is a map whose keys are no strings"),
        (field("a", {"type": "struct", "fields": [field("b", "void")]}), "column 'a.b' is void"),
        (field("a", array({"type": "udt"})), "column 'a' is udt"),
    ],
)
def test_what_avro_does_not_have_is_an_error_that_names_the_column(of: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        avro_schema(schema_of(of))


def test_a_record_needs_a_name_that_avro_allows() -> None:
    with pytest.raises(SchemaError, match="name '1st'"):
        avro_schema(ORDER, name="1st")


def test_the_json_schema_describes_what_to_json_writes() -> None:
    found = json.loads(json_schema(ORDER, "Order"))
    assert found["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert (found["title"], found["type"]) == ("Order", "object")
    assert found["required"] == ["id", "at", "counts", "lines"]
    assert found["properties"] == {
        "id": {"type": "integer"},
        "amount": {"type": ["number", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": ["array", "null"], "items": {"type": ["string", "null"]}},
        "counts": {
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
        },
        "buyer": {
            "type": ["object", "null"],
            "properties": {
                "name": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"], "contentEncoding": "base64"},
            },
        },
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]},
        },
    }


def test_a_type_without_json_type_is_an_error_that_names_the_column() -> None:
    with pytest.raises(SchemaError, match="column 'a' is variant, which has no type in JSON"):
        json_schema(schema_of(field("a", "variant")))
