"""Makes columns in the wire format of Confluent's Schema Registry.

Owns the prefix that names a value's schema. Does not encode (``to_avro``, ``to_protobuf``) and does not talk
to a registry. Driver only.
"""

from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from pyspark.sql import Column

_MAGIC = b"\x00"
_HIGHEST_ID = 2**31 - 1


def confluent_wire(column: Union["Column", str], schema_id: int) -> "Column":
    """Returns a binary column in the wire format of Confluent's Schema Registry: a zero byte, the schema's id
    in four bytes, big-endian, then the bytes of ``column``. Null stays null, which is a tombstone's value.

    Source: the wire format in the documentation of Confluent's Schema Registry. For Avro, pass the column
    that ``to_avro`` of ``pyspark.sql.avro.functions`` returns. Protobuf's format has message indexes between
    the id and the bytes, which this function does not write.

    ``column``: a column of binaries, or its name; strings are encoded as UTF-8. ``schema_id``: the schema's
    id in the registry, 0 to 2**31 - 1. Needs an active session, also of Spark Connect. Thread-safe.

    Raises:
        TypeError: ``schema_id`` is not an int.
        ValueError: ``schema_id`` is out of range.
    """
    if not isinstance(schema_id, int) or isinstance(schema_id, bool):
        raise TypeError(f"schema_id={schema_id!r}: must be an int")
    if not 0 <= schema_id <= _HIGHEST_ID:
        raise ValueError(f"schema_id={schema_id}: must be 0 to {_HIGHEST_ID}")
    from pyspark.sql import functions as F

    given = F.col(column) if isinstance(column, str) else column
    return F.concat(F.lit(_MAGIC + schema_id.to_bytes(4, "big")), given.cast("binary"))
