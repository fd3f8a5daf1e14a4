"""Checks the schema of a DataFrame that is written to Kafka, and finds its columns.

Owns ``Columns`` and the errors about a schema, which are raised while Spark plans, before any task starts.
Does not handle rows (``sending``). Compares names case-insensitively, as Spark does.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_WANTED = {
    "topic": "string",
    "key": "string or binary",
    "value": "string or binary",
    "headers": "array<struct<key: string, value: binary>>",
    "partition": "int",
    "timestamp": "timestamp",
}


class SchemaError(ValueError):
    """A DataFrame's columns can't be written. The message names the column, its type and the allowed
    types."""


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are written, as the DataFrame spells them. None: there is no such
    column."""

    value: str
    key: str | None = None
    topic: str | None = None
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None


def columns_of(schema: "StructType", topic: str | None, headers: bool) -> Columns:
    """Finds the columns of a schema. ``topic`` and ``headers`` are the options of the same names.

    Raises:
        SchemaError: ``value`` is missing; there is neither a column nor an option ``topic``; a column has a
            wrong type or exists twice.
    """
    found: dict[str, str] = {}
    for field in schema.fields:
        meaning = field.name.lower()
        if meaning not in _WANTED:
            # Ignored, as in Spark's own sink: rows read from Kafka have a column "offset", and can be written
            # unchanged.
            continue
        if meaning in found:
            raise SchemaError(f"columns {found[meaning]!r} and {field.name!r}: only one {meaning} is allowed")
        if not _fits(meaning, field.dataType):
            raise SchemaError(
                f"column {field.name!r} is {field.dataType.simpleString()}: must be {_WANTED[meaning]}"
                f"{_advice(meaning, field)}"
            )
        found[meaning] = field.name
    if "value" not in found:
        others = ", ".join(map(repr, schema.names)) or "none at all"
        raise SchemaError(
            f"there is no column 'value', only {others}: 'value' is required. To write all columns as JSON: "
            "df.selectExpr('to_json(struct(*)) AS value')"
        )
    if topic is None and "topic" not in found:
        raise SchemaError("no topic: give option 'topic', or a column 'topic' with each row's topic")
    # As in Spark's own sink, the option takes precedence over the column.
    if topic is not None:
        found.pop("topic", None)
    if not headers:
        found.pop("headers", None)
    return Columns(**found)


def _advice(meaning: str, field: "StructField") -> str:
    """Returns what an error says about how to convert a column that has a wrong type."""
    from pyspark.sql import types

    if meaning == "headers":
        return ""
    # A name with a backquote or a space must be quoted in SQL.
    name = field.name if field.name.isidentifier() else f"`{field.name.replace('`', '``')}`"
    if isinstance(field.dataType, types.StructType | types.MapType | types.ArrayType):
        if meaning not in ("key", "value"):
            return ""
        return f". To write it as JSON: to_json({name}) AS {name}"
    return f". To convert it: CAST({name} AS {_WANTED[meaning].partition(' ')[0].upper()}) AS {name}"


def _fits(meaning: str, of: "DataType") -> bool:
    from pyspark.sql import types

    if meaning in ("key", "value"):
        return isinstance(of, types.StringType | types.BinaryType)
    if meaning == "topic":
        return isinstance(of, types.StringType)
    if meaning == "partition":
        return isinstance(of, types.ByteType | types.ShortType | types.IntegerType | types.LongType)
    if meaning == "timestamp":
        return isinstance(of, types.TimestampType | types.TimestampNTZType)
    if not isinstance(of, types.ArrayType) or not isinstance(of.elementType, types.StructType):
        return False
    fields = of.elementType.fields
    return (
        len(fields) == 2
        and isinstance(fields[0].dataType, types.StringType)
        and isinstance(fields[1].dataType, types.StringType | types.BinaryType)
    )
