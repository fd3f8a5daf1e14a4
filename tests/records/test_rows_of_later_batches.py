"""Errors about rows name them by their place in all of the data, not in their batch."""

import sys
from collections.abc import Callable
from typing import Any

import numpy
import pyarrow as pa
import pytest

from tools.harness.rig import Rig

PAIR = pa.struct([("key", pa.binary()), ("value", pa.binary())])


def batch(rows: int, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"v"] * rows, **columns})


def times(*given: int) -> pa.RecordBatch:
    return batch(len(given), timestamp=pa.array(given, pa.int64()))


def partitions(*given: int) -> pa.RecordBatch:
    return batch(len(given), partition=pa.array(given, pa.int32()))


def headers(*keys: bytes | None) -> pa.RecordBatch:
    return batch(len(keys), headers=pa.array([[(key, b"v")] for key in keys], pa.list_(PAIR)))


@pytest.mark.parametrize(
    ("make", "good", "bad", "column", "said"),
    [
        (times, 0, -1, "timestamp", "is not a valid timestamp"),
        (partitions, 0, -1, "partition", "is not a partition"),
        (headers, b"k", b"\xff", "headers", "is not UTF-8"),
        (headers, b"k", None, "headers", "a header has no key"),
    ],
)
@pytest.mark.parametrize("third", [0, 2])
def test_a_bad_row_is_named_by_its_place_in_all_batches(
    make: Callable[..., pa.RecordBatch], good: Any, bad: Any, column: str, said: str, third: int
) -> None:
    batches = [make(good, good, good), make(good, good), make(*[good] * third, bad, good)]
    table = pa.Table.from_batches(batches)
    with Rig({"t": [1]}) as rig, pytest.raises(ValueError, match=f"row {5 + third}: .*{said}"):
        rig.path.send_arrow("t", table, value="value", **{column: column})


def test_a_row_without_a_value_is_named_by_its_place_in_all_batches() -> None:
    batches = [
        pa.record_batch({"value": pa.array(given, pa.binary())}) for given in ([b"1"] * 3, [b"2", None])
    ]
    with Rig({"t": [1]}) as rig, pytest.raises(ValueError, match="row 4: is null, and so is the key"):
        rig.path.send_arrow("t", pa.Table.from_batches(batches))


def test_a_row_that_is_null_as_a_whole_is_named_by_its_place_in_all_batches() -> None:
    of = pa.struct([("value", pa.binary())])
    row = {"value": b"v"}
    data = pa.chunked_array([pa.array([row, row, row], of), pa.array([row, None], of)])
    with Rig({"t": [1]}) as rig, pytest.raises(ValueError, match="row 4 is null: a row must be a struct"):
        rig.path.send_arrow("t", data)


def test_a_scalar_that_is_refused_is_let_go_of() -> None:
    scalar: Any = numpy.float64(1.5)
    before = sys.getrefcount(scalar)
    with Rig({"t": [1]}) as rig:
        for _ in range(5):
            with pytest.raises(TypeError, match="not the scalar float64"):
                rig.path.send_many("t", [scalar])
    assert sys.getrefcount(scalar) == before
