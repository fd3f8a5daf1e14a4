"""Tests which columns are written, and the errors about columns that can't be. Uses a fake PySpark."""

from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer.spark.columns import Columns, SchemaError, columns_of
from tests.spark import fake_pyspark as spark
from tests.spark.fake_pyspark import headers_of, schema

STRING, BINARY, DOUBLE = spark.StringType(), spark.BinaryType(), spark.DoubleType()


@pytest.fixture(autouse=True)
def _fake() -> Iterator[None]:
    with spark.fake_pyspark():
        yield


def find(of: Any, topic: str | None = "t", headers: bool = True) -> Columns:
    return columns_of(of, topic, headers)


def test_all_columns_are_found_by_their_names_in_any_case() -> None:
    of = schema(
        VALUE=BINARY,
        Key=STRING,
        topic=STRING,
        headers=headers_of(BINARY),
        Partition=spark.IntegerType(),
        timestamp=spark.TimestampType(),
        offset=spark.LongType(),
    )
    assert find(of, None) == Columns(
        value="VALUE",
        key="Key",
        topic="topic",
        headers="headers",
        partition="Partition",
        timestamp="timestamp",
    )


def test_option_topic_overrides_the_column_and_headers_can_be_left_out() -> None:
    of = schema(value=STRING, topic=STRING, headers=headers_of(STRING))
    assert find(of, "mine", False) == Columns(value="value")
    assert find(of, None, False) == Columns(value="value", topic="topic")
    assert find(of, "mine") == Columns(value="value", headers="headers")


@pytest.mark.parametrize(
    ("name", "good", "wanted"),
    [
        ("value", [STRING, BINARY], "string or binary"),
        ("key", [STRING, BINARY], "string or binary"),
        ("topic", [STRING], "string"),
        (
            "partition",
            [spark.ByteType(), spark.ShortType(), spark.IntegerType(), spark.LongType()],
            "int",
        ),
        ("timestamp", [spark.TimestampType(), spark.TimestampNTZType()], "timestamp"),
        (
            "headers",
            [headers_of(BINARY), headers_of(STRING)],
            "array<struct<key: string, value: binary>>",
        ),
    ],
)
def test_columns_of_wrong_types_are_refused(name: str, good: list[spark.DataType], wanted: str) -> None:
    for each in good:
        assert getattr(find(schema(**{"value": BINARY, name: each}), None if name == "topic" else "t"), name)
    with pytest.raises(SchemaError) as caught:
        find(schema(**{"value": BINARY, name: DOUBLE}))
    assert str(caught.value).startswith(f"column {name!r} is double: must be {wanted}")


@pytest.mark.parametrize(
    ("name", "of", "advice"),
    [
        ("value", schema(a=STRING), "string or binary. To write it as JSON: to_json(value) AS value"),
        ("Key", spark.LongType(), "string or binary. To convert it: CAST(Key AS STRING) AS Key"),
        ("partition", DOUBLE, "int. To convert it: CAST(partition AS INT) AS partition"),
        ("timestamp", STRING, "timestamp. To convert it: CAST(timestamp AS TIMESTAMP) AS timestamp"),
        ("timestamp", schema(a=STRING), "must be timestamp"),
        ("headers", DOUBLE, "value: binary>>"),
    ],
)
def test_the_error_about_a_type_says_how_to_convert_the_column(
    name: str, of: spark.DataType, advice: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        find(schema(**{"value": BINARY, name: of}))
    assert str(caught.value).endswith(advice)


@pytest.mark.parametrize(
    "of",
    [
        spark.ArrayType(STRING),
        spark.ArrayType(schema(key=STRING)),
        spark.ArrayType(schema(key=BINARY, value=BINARY)),
        spark.ArrayType(schema(key=STRING, value=DOUBLE)),
        spark.ArrayType(schema(key=STRING, value=BINARY, more=BINARY)),
    ],
)
def test_headers_must_be_structs_of_key_and_value(of: spark.DataType) -> None:
    with pytest.raises(SchemaError, match="column 'headers' is array: must be array<struct"):
        find(schema(value=BINARY, headers=of))


@pytest.mark.parametrize(
    ("of", "topic", "says"),
    [
        (
            schema(key=STRING, other=DOUBLE),
            "t",
            r"no column 'value', only 'key', 'other': .* as JSON: df.selectExpr\('to_json\(struct",
        ),
        (schema(), "t", "no column 'value', only none at all"),
        (schema(value=BINARY), None, "no topic: give option 'topic', or a column 'topic'"),
        (schema(value=BINARY, Value=STRING), "t", "columns 'value' and 'Value': only one value is allowed"),
    ],
)
def test_missing_and_duplicate_columns_are_errors(of: Any, topic: str | None, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        find(of, topic)
