"""Less common kinds of columns: the records are those that ``send()`` of the values pyarrow reads would
give."""

import math
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer import errors
from cyproducer.send.bulk_path import BulkPath
from cyproducer.send.extensions import Extensions
from tools.harness.rig import Rig

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig({"t": [1, 1, 1]}) as rig:
        yield rig


def sent_singly(table: pa.Table, **columns: str) -> dict[Any, Any]:
    """The log after ``send()`` of the values that pyarrow reads from each row."""
    with Rig({"t": [1, 1, 1]}, seed=3) as rig:
        for row in table.to_pylist():
            headers = row[columns["headers"]] if "headers" in columns else None
            partition = row[columns["partition"]] if "partition" in columns else None
            at = row[columns["timestamp"]] if "timestamp" in columns else None
            if isinstance(at, date):
                at = int(datetime(at.year, at.month, at.day, tzinfo=UTC).timestamp()) * 1000
            if partition is not None:
                partition = None if math.isnan(partition) else int(partition)
            rig.send(
                "t",
                row["value"],
                headers=[(each["key"], each["value"]) for each in headers or []],
                partition=partition,
                timestamp_ms=at,
            )
        rig.answer_all()
        return rig.log


def sent_at_once(table: pa.Table, **columns: str) -> dict[Any, Any]:
    with Rig({"t": [1, 1, 1]}, seed=3) as rig:
        rig.path.send_arrow("t", table, **columns)
        rig.answer_all()
        return rig.log


def valued(**columns: pa.Array) -> pa.Table:
    (length,) = {len(each) for each in columns.values()}
    return pa.table({"value": [b"%d" % i for i in range(length)], **columns})


# Headers

header = st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=20)})
header_lists = st.lists(st.none() | st.lists(header, max_size=3), min_size=1, max_size=20)


def viewed(rows: list[Any], kind: Any, order: list[int]) -> pa.Array:
    """A list_view with these rows, whose elements are stored in another order; a null row points anywhere."""
    elements: list[Any] = [{"key": "before", "value": None}]
    offsets, sizes = [0] * len(rows), [7] * len(rows)
    for at in order:
        if rows[at] is not None:
            offsets[at], sizes[at] = len(elements), len(rows[at])
            elements += rows[at]
    elements += [{"key": "behind", "value": b""}] * 7
    nulls = pa.array([row is None for row in rows])
    width = pa.int64() if kind is pa.LargeListViewArray else pa.int32()
    return kind.from_arrays(
        pa.array(offsets, width), pa.array(sizes, width), pa.array(elements, PAIR), mask=nulls
    )


@given(header_lists, st.integers(0, 9), st.randoms(), st.booleans())
def test_headers_come_from_list_views(rows: list[Any], start: int, random: Any, large: bool) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    array = viewed(rows, pa.LargeListViewArray if large else pa.ListViewArray, order)
    assert array.to_pylist() == rows
    table = valued(h=array).slice(start)
    assert sent_at_once(table, headers="h") == sent_singly(table, headers="h")


def test_rows_may_share_their_headers_in_a_list_view(rig: Rig) -> None:
    elements = pa.array([{"key": k, "value": k.encode()} for k in "abc"], PAIR)
    array = pa.ListViewArray.from_arrays([0, 1, 0, 2], [3, 2, 2, 0], elements)
    table = valued(h=array)
    assert sent_at_once(table, headers="h") == sent_singly(table, headers="h")


@given(st.integers(0, 3), st.data(), st.integers(0, 9), st.integers(0, 2))
def test_headers_come_from_lists_of_a_fixed_size(size: int, data: Any, start: int, inner: int) -> None:
    rows = data.draw(
        st.lists(st.none() | st.lists(header, min_size=size, max_size=size), min_size=1, max_size=20)
    )
    array = pa.array(rows, pa.list_(PAIR, size))
    table = valued(h=array).slice(start)
    assert sent_at_once(table, headers="h") == sent_singly(table, headers="h")
    # With the offset of a struct, which is added.
    whole = pa.StructArray.from_arrays([valued(h=array)["value"].combine_chunks(), array], ["value", "h"])
    part = whole.slice(inner)
    of_part = pa.Table.from_struct_array(part)
    assert sent_at_once(part, headers="h") == sent_singly(of_part, headers="h")


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.list_(pa.null()),
        pa.large_list(pa.null()),
        pa.list_view(pa.null()),
        pa.list_(pa.null(), 0),
    ],
    ids=str,
)
def test_columns_with_only_empty_headers_are_accepted(rig: Rig, kind: pa.DataType) -> None:
    rows: list[Any] = [None, None] if kind == pa.null() else [[], None]
    table = valued(h=pa.array(rows, kind))
    assert sent_at_once(table, headers="h") == sent_singly(table)


def test_a_null_header_is_refused_in_a_list_of_nulls_too(rig: Rig) -> None:
    with pytest.raises(ValueError, match="column 'h', row 1: a header has no key"):
        rig.path.send_arrow("t", valued(h=pa.array([[], [None]], pa.list_(pa.null()))), headers="h")


# Partitions


@given(st.lists(st.none() | st.sampled_from([0.0, -0.0, 1.0, 2.0, math.nan]), max_size=30), st.integers(0, 9))
def test_partitions_may_be_floats_with_nan_for_the_partitioners_choice(
    partitions: list[float | None], start: int
) -> None:
    table = valued(p=pa.array(partitions, pa.float64())).slice(start)
    assert sent_at_once(table, partition="p") == sent_singly(table, partition="p")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (1.5, ValueError),
        (-1.0, ValueError),
        (-0.5, ValueError),
        (math.inf, ValueError),
        (-math.inf, ValueError),
        (3.0, errors.UnknownTopicOrPartitionError),
        (1e300, errors.UnknownTopicOrPartitionError),
        (2.0**31, errors.UnknownTopicOrPartitionError),
        (2.0**32 + 1, errors.UnknownTopicOrPartitionError),
    ],
)
def test_an_invalid_partition_is_refused_with_its_row(rig: Rig, value: float, error: type[Exception]) -> None:
    table = valued(p=pa.array([0.0, math.nan, value]))
    with pytest.raises(error, match=r"column 'p', row 2: .* is not a partition of the topic, which has 3"):
        rig.path.send_arrow("t", table, partition="p")
    assert rig.accumulator.counters()["records_appended"] == 0


def test_null_columns_mean_a_chosen_partition_and_the_current_time() -> None:
    table = valued(none=pa.nulls(40))
    assert sent_at_once(table, partition="none", timestamp="none") == sent_singly(table)


@pytest.mark.parametrize("column", [pa.nulls(2), pa.array([math.nan, 0.0]), pa.array([None, 0])], ids=str)
def test_rows_without_a_partition_are_refused_with_a_custom_partitioner(rig: Rig, column: pa.Array) -> None:
    class Partitioned(BulkPath):
        def _before_bulk(self, method: str, keyed: bool, valued: bool) -> bool:
            return True

    path = Partitioned()
    path._open_path(rig.accumulator, 1 << 20, 60_000, Extensions())
    with pytest.raises(ValueError, match="row 0: is null, and send_arrow"):
        path.send_arrow("t", valued(p=column), partition="p")
    path.send_arrow("t", valued(p=pa.array([1.0, 0.0])), partition="p")
    path.send_arrow("t", valued(p=pa.nulls(0)), partition="p")
    assert rig.accumulator.counters()["records_appended"] == 2


# Timestamps


@given(st.lists(st.none() | st.integers(0, 20_000), max_size=20), st.integers(0, 5))
def test_days_are_timestamps(days: list[int | None], start: int) -> None:
    table = valued(at=pa.array(days, pa.int32()).cast(pa.date32())).slice(start)
    assert sent_at_once(table, timestamp="at") == sent_singly(table, timestamp="at")


def test_unsigned_numbers_are_milliseconds_below_2_to_63(rig: Rig) -> None:
    table = valued(at=pa.array([0, None, 2**53], pa.uint64()))
    assert sent_at_once(table, timestamp="at") == sent_singly(table, timestamp="at")
    for wrong in (2**63, 2**64 - 1):
        with pytest.raises(ValueError, match=f"column 'at', row 1: {wrong} is not a valid timestamp"):
            rig.path.send_arrow("t", valued(at=pa.array([0, wrong], pa.uint64())), timestamp="at")
    with pytest.raises(ValueError, match="column 'at', row 0: -1 is not a valid timestamp"):
        rig.path.send_arrow("t", valued(at=pa.array([-1], pa.int32()).cast(pa.date32())), timestamp="at")


# Errors for unsupported types say what to do

RUNS = pc.run_end_encode(pa.array([b"a", b"a"]))


@pytest.mark.parametrize(
    ("column", "argument", "said"),
    [
        (RUNS, "value", r"run_end_encoded of binary: must be .*run_end_decode"),
        (pc.run_end_encode(pa.array([1, 1])), "partition", r"run_end_encoded of int64: .*run_end_decode"),
        (pa.array([1, 2]).dictionary_encode(), "partition", r"dictionary of int64: .*; cast it to int64"),
        (pa.array([True, False]), "partition", r"bool: .*: cast it"),
        (pa.array([1, 2], pa.int32()), "timestamp", r"int32: .*: cast it"),
        (pa.array([1.0, 2.0]), "timestamp", r"float64: .*: cast it"),
        (pa.array([1, 2], pa.time64("us")), "timestamp", r"time: .*: cast it"),
        (pa.array([["a"], []]), "headers", r"list: headers must be .*: cast it"),
        (pa.array([["a"], ["b"]], pa.list_(pa.string(), 1)), "headers", r"fixed_size_list: .*cast"),
        (pa.array([{"key": "a"}, None]), "headers", r"struct: .*: cast it"),
        (pa.array([1, 2], pa.decimal128(5, 2)), "value", r"decimal: .*: cast it"),
    ],
    ids=str,
)  # fmt: skip
def test_the_error_for_an_unsupported_type_says_what_to_do(
    rig: Rig, column: pa.Array, argument: str, said: str
) -> None:
    data = pa.table({"v": [b"x", b"y"], "c": column})
    with pytest.raises(TypeError, match=f"column 'c' is of type {said}"):
        rig.path.send_arrow("t", data, **{"value": "v", argument: "c"})
    assert rig.accumulator.counters()["records_appended"] == 0


# Malformed


@pytest.mark.parametrize(
    ("offsets", "sizes", "row"),
    [([0, 3], [1, 1], 1), ([0, -1], [1, 1], 1), ([0, 1], [1, -1], 1), ([0, 0], [4, 0], 0)],
)
@pytest.mark.parametrize("large", [False, True])
def test_views_beyond_the_elements_are_refused(
    rig: Rig, offsets: list[int], sizes: list[int], row: int, large: bool
) -> None:
    elements = pa.array([{"key": "k", "value": b"v"}] * 3, PAIR)
    width = 8 if large else 4
    if large and offsets == [0, 3]:
        # Their sum exceeds 64 bits.
        offsets, sizes = [0, 2**63 - 1], [1, 2**63 - 1]
    buffers = [
        pa.py_buffer(b"".join(n.to_bytes(width, "little", signed=True) for n in each))
        for each in (offsets, sizes)
    ]
    kind = pa.large_list_view(PAIR) if large else pa.list_view(PAIR)
    array = pa.Array.from_buffers(kind, 2, [None, *buffers], children=[elements])
    with pytest.raises(ValueError, match=f"column 'h': malformed Arrow data: row {row} points outside"):
        rig.path.send_arrow("t", valued(h=array), headers="h")


# Which parts of a column are checked


def offsets(*numbers: int) -> pa.Buffer:
    return pa.py_buffer(b"".join(n.to_bytes(4, "little", signed=True) for n in numbers))


def test_only_headers_of_the_rows_are_checked(rig: Rig) -> None:
    # The other keys point outside: a check of them would refuse the column.
    keys = pa.Array.from_buffers(pa.string(), 5, [None, offsets(0, -5, 0, 1, -7, 1), pa.py_buffer(b"k")])
    elements = pa.StructArray.from_arrays([keys, pa.array([b"v"] * 5)], ["key", "value"])
    lists = pa.Array.from_buffers(
        pa.list_(elements.type), 3, [None, offsets(0, 2, 3, 5)], children=[elements]
    )
    table = valued(h=lists)
    rig.path.send_arrow("t", table.slice(1, 1), headers="h", partition=0)
    rig.answer_all()
    assert [record.headers for record in rig.log["t", 0]] == [(("k", b"v"),)]
    for start in (0, 2):
        with pytest.raises(ValueError, match="malformed Arrow data: row 0 points outside"):
            rig.path.send_arrow("t", table.slice(start, 1), headers="h")


def test_only_the_used_words_of_a_large_dictionary_are_checked(rig: Rig) -> None:
    words = pa.Array.from_buffers(pa.string(), 5, [None, offsets(0, -9, 0, 1, -5, 1), pa.py_buffer(b"w")])
    indices = pa.array([2, 2, 3, 2, 2], pa.int8())
    table = pa.table({"value": pa.DictionaryArray.from_arrays(indices, words, safe=False)})
    rig.path.send_arrow("t", table.slice(0, 2), partition=0)
    rig.answer_all()
    assert rig.values("t") == [b"w", b"w"]
    with pytest.raises(ValueError, match="malformed Arrow data: row 1 points outside"):
        rig.path.send_arrow("t", table.slice(1, 2))
    with pytest.raises(ValueError, match="malformed Arrow data: row 0 points outside"):
        rig.path.send_arrow("t", table)


@pytest.mark.slow
def test_the_cost_of_a_slice_depends_on_its_rows_only() -> None:
    # Only the time can show it, that of the fastest of many calls: a column 64 times as large may take at
    # most twice as long.
    def column(rows: int) -> pa.Table:
        # Because of the null at the end, the bitmaps of all elements are present.
        headers = [[("a", b"1"), ("b", b"2"), ("c", b"3")]] * (rows - 1) + [[("a", None)]]
        words = pa.array([b"%d" % i for i in range(rows)]).dictionary_encode()
        return pa.table(
            {"value": words.slice(0, rows), "h": pa.array(headers, pa.map_(pa.string(), pa.binary()))}
        )

    small, large = (column(rows).slice(0, 20).to_batches()[0] for rows in (4_000, 256_000))
    with Rig({"t": [1]}, buffer_memory=64 << 20) as rig:

        def fastest(batch: pa.RecordBatch) -> float:
            best = math.inf
            for _ in range(200):
                begun = time.perf_counter()
                rig.path.send_arrow("t", batch, headers="h")
                best = min(best, time.perf_counter() - begun)
            return best

        fastest(small)
        assert fastest(large) < 2 * fastest(small)
