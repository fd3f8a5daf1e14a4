"""Tests the conversion of a stream's rows for Spark 4.0, which has no Arrow writer for streams."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

import pytest

from tests.forked import needs_module

pytestmark = [pytest.mark.kafka, needs_module("pyspark")]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_rows_become_columns_in_any_time_zone_of_the_worker(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampNTZType,
        TimestampType,
    )

    from cyproducer.spark import source

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        headers = ArrayType(
            StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        )
        schema = StructType(
            [
                StructField("value", BinaryType()),
                StructField("key", StringType()),
                StructField("headers", headers),
                StructField("partition", IntegerType()),
                StructField("timestamp", TimestampType()),
                StructField("offset", LongType()),
            ]
        )
        when = datetime.datetime(2025, 7, 1, 12, tzinfo=datetime.UTC)
        # As in Spark's rows: a naive datetime in the worker's time zone.
        local = datetime.datetime.fromtimestamp(when.timestamp())
        rows: list[Any] = [
            (bytearray(b"v"), "k", [("h", bytearray(b"1"))], 1, local, 7),
            (None, "l", None, None, None, 8),
        ]
        (batch,) = source.record_batches(iter(rows), schema)
        clock = StructType([StructField("timestamp", TimestampNTZType())])
        shown: list[Any] = [(when.replace(tzinfo=None),), (None,)]
        (without_zone,) = source.record_batches(iter(shown), clock)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert batch.schema.names == ["value", "key", "headers", "partition", "timestamp"]
    assert batch.to_pylist() == [
        {
            "value": b"v",
            "key": "k",
            "headers": [{"key": "h", "value": b"1"}],
            "partition": 1,
            "timestamp": when.replace(tzinfo=None),
        },
        {"value": None, "key": "l", "headers": None, "partition": None, "timestamp": None},
    ]
    assert without_zone.column("timestamp").to_pylist() == [when.replace(tzinfo=None), None]
    assert os.environ.get("TZ") is None
