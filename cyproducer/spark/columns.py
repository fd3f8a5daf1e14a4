"""The columns of a DataFrame that goes to Kafka: which there are, and of which types.

Owns: ``Columns`` and the errors about a schema, which come while Spark plans, before a task starts. Does not
own: rows (``sending``). Names are compared as Spark does, in any case.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_WANTED = {
    "topic": "string",
    "key": "string or binary",
    "value": "string or binary",
    "headers": "array<struct<key: string, value: binary>>",
    "partition": "int",
    "timestamp": "timestamp",
}


class SchemaError(ValueError):
    """A DataFrame's columns are not those that can be written; the message names column, type and what may
    be."""


@dataclass(frozen=True)
class Columns:
    """The names, as the DataFrame spells them, of the columns that are written; None: not there."""

    value: str
    key: str | None = None
    topic: str | None = None
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None


def columns_of(schema: "StructType", topic: str | None, headers: bool) -> Columns:
    """Looks at a schema; ``topic`` and ``headers`` are the options.

    Raises:
        SchemaError: ``value`` is missing, or ``topic`` in both places; a column has a wrong type.
    """
    found: dict[str, str] = {}
    for field in schema.fields:
        meaning = field.name.lower()
        if meaning not in _WANTED:
            # As in Spark's own sink: what was read from Kafka has an offset, and can be written as it is.
            continue
        if meaning in found:
            raise SchemaError(f"columns {found[meaning]!r} and {field.name!r}: there can be one {meaning}")
        if not _fits(meaning, field.dataType):
            raise SchemaError(
                f"column {field.name!r} is {field.dataType.simpleString()}: must be {_WANTED[meaning]}"
            )
        found[meaning] = field.name
    if "value" not in found:
        others = ", ".join(map(repr, schema.names)) or "none at all"
        raise SchemaError(f"there is no column 'value', only {others}: it is what is written")
    if topic is None and "topic" not in found:
        raise SchemaError("no topic: give option 'topic', or a column 'topic' with each row's")
    # As in Spark's own sink, the option counts where both are there.
    if topic is not None:
        found.pop("topic", None)
    if not headers:
        found.pop("headers", None)
    return Columns(**found)


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
