"""Tests the checks of ``confluent_wire``. ``tests/integration/test_spark_sink.py`` tests the bytes."""

from typing import Any

import pytest

from cyproducer.spark import confluent_wire


@pytest.mark.parametrize(
    ("schema_id", "error", "says"),
    [
        (-1, ValueError, "schema_id=-1: must be 0 to 2147483647"),
        (2**31, ValueError, "schema_id=2147483648: must be 0 to"),
        ("7", TypeError, "schema_id='7': must be an int"),
        (True, TypeError, "schema_id=True: must be an int"),
    ],
)
def test_a_schema_id_is_a_number_of_four_bytes(schema_id: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        confluent_wire("value", schema_id)
