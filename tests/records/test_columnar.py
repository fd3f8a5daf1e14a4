"""Columns become records: every type, slice and dictionary, compared with the values that pyarrow reads."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cyproducer import errors
from tools.harness.reference_records import Record
from tools.harness.rig import Rig

NOW = 1_700_000_000_000
BYTES_TYPES = [
    pa.binary(),
    pa.large_binary(),
    pa.string(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
    pa.binary(3),
]
INDEX_TYPES = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
WHOLE_TYPES = INDEX_TYPES
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
BINARY_PAIR = pa.struct([("key", pa.binary()), ("value", pa.binary())])


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig({"t": [1, 1, 1]}) as rig:
        yield rig


def arrived(rig: Rig, partition: int = 0) -> list[Record]:
    rig.answer_all()
    return rig.log.get(("t", partition), [])


def encoded(values: list[Any]) -> list[bytes | None]:
    return [value.encode() if isinstance(value, str) else value for value in values]


def column(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    text = kind in (pa.string(), pa.large_string(), pa.string_view())
    return pa.array([v.decode() if text and v is not None else v for v in values], kind)


@pytest.mark.parametrize("kind", BYTES_TYPES, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("start", [0, 1, 7, 9])
def test_every_type_of_bytes_arrives_sliced_or_not(
    rig: Rig, kind: pa.DataType, nulls: bool, start: int
) -> None:
    values: list[bytes | None] = [b"%03d" % i for i in range(40)]
    if kind != pa.binary(3):
        values[11:14] = [b"", b"twelve bytes", b"more than twelve bytes"]
    if nulls:
        values[start::3] = [None] * len(values[start::3])
    data = pa.table({"value": column(values, kind), "key": column([b"key"] * 40, pa.binary())})
    rig.path.send_arrow("t", data.slice(start, 25), key="key", partition=0)
    assert [(r.key, r.value) for r in arrived(rig)] == [(b"key", v) for v in values[start : start + 25]]


@pytest.mark.parametrize("kind", BYTES_TYPES[:4], ids=str)
@pytest.mark.parametrize("index", INDEX_TYPES, ids=str)
def test_a_dictionary_with_any_index_type_arrives_as_its_values(
    rig: Rig, kind: pa.DataType, index: pa.DataType
) -> None:
    words = column([b"skipped", b"a", b"bc", None, b""], kind).slice(1)
    indices = pa.array([0, 1, None, 3, 2, 0, 1], index)
    data = pa.table({"value": pa.DictionaryArray.from_arrays(indices, words), "k": [b"k"] * 7}).slice(1)
    rig.path.send_arrow("t", data, key="k", partition=0)
    assert [r.value for r in arrived(rig)] == [b"bc", None, b"", None, b"a", b"bc"]


def test_a_struct_array_with_an_offset_is_read_from_its_first_row(rig: Rig) -> None:
    columns = {
        "value": pa.array([b"0", b"1", b"2", b"3"]),
        "key": pa.array(["a", "b", "c", "a"]).dictionary_encode(),
        "at": pa.array([10, 11, 12, 13], pa.timestamp("ms")),
        "place": pa.array([0, 0, 1, 2], pa.int8()),
        "headers": pa.array([[{"key": "n", "value": b"%d" % i}] for i in range(4)], pa.list_(PAIR)),
    }
    # The struct's own offset is added to each column's.
    parts = [each.slice(1) for each in columns.values()]
    array = pa.StructArray.from_arrays(parts, list(columns)).slice(1, 2)
    assert array.offset == 1
    rig.path.send_arrow("t", array, key="key", headers="headers", partition="place", timestamp="at")
    assert arrived(rig) == []
    assert [(r.key, r.value, r.timestamp, r.headers) for r in arrived(rig, 1) + arrived(rig, 2)] == [
        (b"c", b"2", 12, (("n", b"2"),)),
        (b"a", b"3", 13, (("n", b"3"),)),
    ]


def test_a_key_without_a_value_is_a_tombstone_and_a_null_column_means_no_key(rig: Rig) -> None:
    data = pa.table({"k": [b"1", b"2"], "none": pa.nulls(2), "v": [b"x", b"y"]})
    rig.path.send_arrow("t", data, key="k", value=None, partition=0)
    rig.path.send_arrow("t", data, key="none", value="v", partition=1)
    assert [(r.key, r.value) for r in arrived(rig)] == [(b"1", None), (b"2", None)]
    assert [(r.key, r.value) for r in arrived(rig, 1)] == [(None, b"x"), (None, b"y")]


text = st.none() | st.text(max_size=20)
rows = st.lists(
    st.tuples(
        text,
        text,
        st.none() | st.lists(st.tuples(st.text(max_size=5), text), max_size=3),
        st.none() | st.integers(0, 2),
        st.none() | st.integers(0, 2**40),
    ).filter(lambda row: row[:2] != (None, None)),
    max_size=40,
)
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]
LISTS: list[Callable[[pa.DataType], pa.DataType]] = [pa.list_, pa.large_list]


@pytest.mark.slow
@given(
    st.lists(rows, min_size=1, max_size=3),
    st.sampled_from(TEXTS),
    st.sampled_from(TEXTS),
    st.sampled_from(LISTS),
    st.sampled_from(WHOLE_TYPES),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.integers(0, 5),
)
def test_records_have_the_values_that_python_reads_from_the_table(
    batches: list[Any], keys: Any, values: Any, lists: Any, whole: Any, unit: str, start: int
) -> None:
    divisor = {"s": 1000, "ms": 1, "us": 1, "ns": 1}[unit]
    factor = {"s": 1, "ms": 1, "us": 1000, "ns": 10**6}[unit]
    made = []
    for batch in batches:
        pair = pa.struct([("key", keys), ("value", values)])
        headers = [
            None
            if row[2] is None
            else [{"key": as_type(k, keys), "value": as_type(v, values)} for k, v in row[2]]
            for row in batch
        ]
        made.append(
            pa.record_batch(
                {
                    "k": pa.array([as_type(row[0], keys) for row in batch], keys),
                    "v": pa.array([as_type(row[1], values) for row in batch], values),
                    "h": pa.array(headers, lists(pair)),
                    "p": pa.array([row[3] for row in batch], whole),
                    "t": pa.array(
                        [None if row[4] is None else row[4] // divisor * factor for row in batch],
                        pa.timestamp(unit, "UTC"),
                    ),
                }
            )
        )
    table = pa.Table.from_batches(made).slice(start)
    expected = [row for batch in batches for row in batch][start:]
    with Rig({"t": [1, 1, 1]}, seed=3) as rig, Rig({"t": [1, 1, 1]}, seed=3) as one_by_one:
        future = rig.path.send_arrow(
            "t", table, key="k", value="v", headers="h", partition="p", timestamp="t"
        )
        for key, value, headers, partition, at_ms in expected:
            one_by_one.send(
                "t",
                None if value is None else value.encode(),
                None if key is None else key.encode(),
                headers=[(k, None if v is None else v.encode()) for k, v in headers or []],
                partition=partition,
                timestamp_ms=None if at_ms is None else at_ms // divisor * divisor,
            )
        rig.answer_all()
        one_by_one.answer_all()
        assert rig.log == one_by_one.log
        where = pa.record_batch(future.get(0).rows()).to_pylist()
        assert len(where) == len(expected)
        for row, at in zip(expected, where, strict=True):
            record = rig.log["t", at["partition"]][at["offset"]]
            assert (record.key, record.value) == tuple(encoded(list(row[:2])))


def as_type(value: str | None, kind: pa.DataType) -> Any:
    binary = kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    return value.encode() if binary and value is not None else value


# Headers, partitions, timestamps


@pytest.mark.parametrize(
    "lists", [pa.list_(PAIR), pa.large_list(PAIR), pa.map_(pa.string(), pa.binary())], ids=str
)
def test_headers_come_from_lists_of_pairs(rig: Rig, lists: pa.DataType) -> None:
    pairs = [[("a", b"1"), ("b", None)], None, [], [("a", b"2")], [("", b"")]]
    given = pairs
    if not isinstance(lists, pa.MapType):
        given = [row and [{"key": k, "value": v} for k, v in row] for row in pairs]  # type: ignore[misc]
    data = pa.table({"value": [b"x"] * 5, "h": pa.array(given, lists)})
    rig.path.send_arrow("t", data.slice(1), headers="h", partition=0)
    rig.path.send_arrow("t", data, headers="h", partition=1)
    assert [list(r.headers) for r in arrived(rig)] == [row or [] for row in pairs[1:]]
    assert [list(r.headers) for r in arrived(rig, 1)] == [row or [] for row in pairs]


def test_header_fields_go_by_name_if_they_are_in_reverse_order(rig: Rig) -> None:
    kind = pa.list_(pa.struct([("value", pa.string()), ("key", pa.string())]))
    data = pa.table({"value": [b"x"], "h": pa.array([[{"value": "v", "key": "k"}]], kind)})
    rig.path.send_arrow("t", data, headers="h", partition=0)
    assert arrived(rig)[0].headers == (("k", b"v"),)


def test_headers_larger_than_the_scratch_space_arrive(rig: Rig) -> None:
    rows = [[{"key": "k", "value": b"v" * 40_000}], [{"key": "k", "value": b"w" * 70_000}]] * 3
    data = pa.table({"value": [b"x"] * 6, "h": pa.array(rows, pa.list_(PAIR))})
    rig.path.send_arrow("t", data, headers="h", partition=0)
    assert [r.headers[0][1] for r in arrived(rig)] == [row[0]["value"] for row in rows]


@pytest.mark.parametrize("kind", WHOLE_TYPES, ids=str)
def test_partitions_come_from_whole_numbers_of_any_type(rig: Rig, kind: pa.DataType) -> None:
    data = pa.table({"value": [b"%d" % i for i in range(6)], "p": pa.array([2, 0, 1, 2, 0, 1], kind)})
    rig.path.send_arrow("t", data.slice(1), partition="p")
    assert [[r.value for r in arrived(rig, p)] for p in range(3)] == [[b"1", b"4"], [b"2", b"5"], [b"3"]]


@pytest.mark.parametrize(
    ("kind", "value", "ms"),
    [
        (pa.timestamp("s"), 7, 7000),
        (pa.timestamp("ms"), 7, 7),
        (pa.timestamp("us"), 7999, 7),
        (pa.timestamp("ns"), 7_999_999, 7),
        (pa.timestamp("ns", "Europe/Zurich"), 7_999_999, 7),
        (pa.date64(), 86_400_000, 86_400_000),
        (pa.int64(), 7, 7),
    ],
    ids=str,
)
def test_timestamps_of_every_unit_become_milliseconds_and_null_is_now(
    rig: Rig, kind: pa.DataType, value: int, ms: int
) -> None:
    data = pa.table({"value": [b"x", b"y"], "at": pa.array([value, None], pa.int64()).cast(kind)})
    rig.path.send_arrow("t", data, timestamp="at", partition=0)
    rig.path.send_arrow("t", data, timestamp=ms, partition=0)
    assert [r.timestamp for r in arrived(rig)] == [ms, NOW, ms, ms]


# Data that is refused before anything is sent


def table(**columns: Any) -> pa.Table:
    return pa.table({"value": [b"0", b"1", b"2"], **columns})


def bad_headers(rows: list[Any]) -> pa.Array:
    return pa.array(rows, pa.list_(PAIR))


@pytest.mark.parametrize(
    ("data", "options", "error", "said"),
    [
        (table(), {"value": "v"}, ValueError, "value='v': data has no column of that name; it has 'value'"),
        (table(), {"key": "k"}, ValueError, "key='k': data has no column"),
        (pa.table([[b"x"], [b"y"]], ["value", "value"]), {}, ValueError, "has 2 columns of that name"),
        (table(), {"value": None}, ValueError, "a record needs a value or a key"),
        (table(), {"value": 3}, TypeError, "value: must be the name of a column or None, not int"),
        (table(n=[1, 2, 3]), {"value": "n"}, TypeError, "column 'n' is of type int64: must be binary"),
        (
            table(n=pa.array([1.5, 2, 3], pa.float32())),
            {"partition": "n"},
            TypeError,
            "'n' is of type float32: partitions must be .*: cast it",
        ),
        (table(n=["a", "b", "c"]), {"timestamp": "n"}, TypeError, "'n' is of type string: timestamps"),
        (table(n=["a", "b", "c"]), {"headers": "n"}, TypeError, "'n' is of type string: headers"),
        (table(n=[[b"a"], [], None]), {"headers": "n"}, TypeError, "'n' is of type list: headers"),
        (
            table(p=[0, 1, 3]),
            {"partition": "p"},
            errors.UnknownTopicOrPartitionError,
            "'p', row 2: 3 is not a part",
        ),
        (table(p=[0, -1, 1]), {"partition": "p"}, ValueError, "column 'p', row 1: -1 is not a partition"),
        (
            table(p=pa.array([0, 1, 2**64 - 1], pa.uint64())),
            {"partition": "p"},
            errors.UnknownTopicOrPartitionError,
            "column 'p', row 2",
        ),
        (table(), {"partition": 3}, errors.UnknownTopicOrPartitionError, "partition=3: topic 't' has 3"),
        (table(), {"partition": -1}, ValueError, "partition=-1"),
        (table(), {"timestamp": -1}, ValueError, "timestamp=-1"),
        (
            table(t=[0, 1, -2]),
            {"timestamp": "t"},
            ValueError,
            "column 't', row 2: -2 is not a valid timestamp",
        ),
        (
            table(t=pa.array([0, 2**62, 1], pa.timestamp("s"))),
            {"timestamp": "t"},
            ValueError,
            "column 't', row 1",
        ),
        (
            pa.table({"value": [b"x", None]}),
            {},
            ValueError,
            "column 'value', row 1: is null, and so is the key",
        ),
        (
            pa.table({"value": [b"x", None, None], "k": [None, b"k", None]}),
            {"key": "k"},
            ValueError,
            "column 'value', row 2: is null",
        ),
        (
            pa.table({"value": [b"x", b"y" * 2_000_000]}),
            {},
            errors.RecordTooLargeError,
            r"column 'value', row 1: the record takes 20000\d\d bytes",
        ),
        (
            table(h=bad_headers([[], [{"key": None, "value": b""}], []])),
            {"headers": "h"},
            ValueError,
            "column 'h', row 1: a header has no key",
        ),
        (
            table(h=bad_headers([[], [], [None]])),
            {"headers": "h"},
            ValueError,
            "column 'h', row 2: a header has no key",
        ),
        (pa.array([b"x"]), {}, TypeError, "data: must be a table"),
        ([b"x"], {}, TypeError, "data: must be Arrow data"),
        (
            pa.array([{"value": b"x"}, None], pa.struct([("value", pa.binary())])),
            {},
            ValueError,
            "row 1 is null",
        ),
        (
            pa.table({"value": pa.array([b"a"] * 9 + [None])}),
            {},
            ValueError,
            "column 'value', row 9",
        ),
    ],
)
def test_the_error_names_the_invalid_data_and_nothing_is_sent(
    rig: Rig, data: Any, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        rig.path.send_arrow("t", data, **options)
    assert rig.accumulator.counters()["records_appended"] == 0
    assert (rig.pool.used_bytes, rig.requests()) == (0, [])


def test_header_keys_that_are_not_utf8_are_named_by_row_and_key(rig: Rig) -> None:
    def headers(*names: bytes, kind: pa.DataType = BINARY_PAIR) -> pa.Array:
        rows: list[Any] = [
            None,
            [{"key": "fine", "value": b"\xff"}],
            [{"key": n, "value": b""} for n in names],
        ]
        return pa.array(rows, pa.list_(kind))

    bad = headers(b"also fine", b"\xc3(", b"\xff")
    # Two batches: rows are counted across both.
    data = pa.concat_tables([table(h=headers(b"x")), table(h=bad)])
    with pytest.raises(ValueError, match=r"^column 'h', row 5: the header key b'\\xc3\(' is not UTF-8$"):
        rig.path.send_arrow("t", data, headers="h")
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int8()), pa.array([b"\xff", b"ok"]))
    pairs = pa.StructArray.from_arrays([words, pa.nulls(3)], ["key", "value"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pairs)
    with pytest.raises(ValueError, match=r"^column 'h', row 0: the header key b'\\xff' is not UTF-8$"):
        rig.path.send_arrow("t", table(h=lists), headers="h")
    assert rig.accumulator.counters()["records_appended"] == 0
    # Bytes that are not sent may be anything: other rows of the column, and values under a null.
    rig.path.send_arrow("t", table(h=lists).slice(1), headers="h", partition=0)
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), pairs, mask=pa.array([True, False, True])
    )
    rig.path.send_arrow("t", table(h=hidden), headers="h", partition=0)
    assert [record.headers for record in arrived(rig)] == [
        *[(("ok", None),)] * 2,
        (),
        (("ok", None),),
        (),
    ]


UTF8_PARTS = [
    b"",
    b"a",
    *["\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"[i].encode() for i in range(9)],
]
NO_UTF8_PARTS = [
    b"\x80",
    b"\xbf",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xc2",
    b"\xc2\x7f",
    b"\xc2\xc0",
    b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xe1\x80",
    b"\xe1\x80\xc0",
    b"\xf0\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xff",
    b"\xf1\x80\x80",
]


@given(st.lists(st.sampled_from(UTF8_PARTS + NO_UTF8_PARTS) | st.binary(max_size=4), max_size=5))
@example([*UTF8_PARTS])
def test_utf8_validation_agrees_with_python(parts: list[bytes]) -> None:
    key = b"".join(parts)
    try:
        key.decode()
        valid = True
    except UnicodeDecodeError:
        valid = False
    data = pa.table({"value": [b"v"], "h": pa.array([[{"key": key, "value": b""}]], pa.list_(BINARY_PAIR))})
    with Rig({"t": [1]}) as rig:
        if not valid:
            with pytest.raises(ValueError, match=r"row 0: the header key .* is not UTF-8"):
                rig.path.send_arrow("t", data, headers="h")
        else:
            rig.path.send_arrow("t", data, headers="h")
            assert arrived(rig)[0].headers == ((key.decode(), b""),)


@pytest.mark.parametrize("part", NO_UTF8_PARTS, ids=repr)
def test_each_kind_of_invalid_utf8_is_refused(rig: Rig, part: bytes) -> None:
    data = pa.table(
        {"value": [b"v"], "h": pa.array([[{"key": b"ab" + part, "value": b""}]], pa.list_(BINARY_PAIR))}
    )
    with pytest.raises(ValueError, match=r"row 0: the header key .* is not UTF-8"):
        rig.path.send_arrow("t", data, headers="h")


def test_only_bytes_that_are_sent_count_for_memory() -> None:
    """Bytes under a null, words that no row uses, and a key and a value of different rows do not count."""
    large = b"x" * 30_000
    under_null = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\x01"), *pa.array([b"v", large]).buffers()[1:]]
    )
    words = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array([b"v", large]))
    keys = pa.array([b"k", b"k"])
    half = b"x" * 9_000
    with Rig({"t": [1]}, buffer_memory=20_000, batch_size=4096, max_block_ms=1) as rig:
        rig.path.send_arrow("t", pa.table({"value": under_null, "k": keys}), key="k")
        rig.path.send_arrow("t", pa.table({"value": words, "k": keys}), key="k")
        assert [r.value for r in arrived(rig)] == [b"v", None, b"v", b"v"]
        # The first is accepted, which leaves no memory for the other.
        with pytest.raises(errors.BufferExhaustedError) as failed:
            rig.path.send_arrow("t", pa.table({"value": [half, b"v"], "k": [b"k", half]}), key="k")
        assert failed.value.accepted == 1
        assert [r.value for r in arrived(rig)][4:] == [half]
        with pytest.raises(errors.BufferExhaustedError, match="a row may need 32768 bytes"):
            rig.path.send_arrow("t", pa.table({"value": [large]}))
    with Rig({"t": [1]}, max_request_size=20_000, batch_size=4096) as rig:
        rig.path.send_arrow("t", pa.table({"value": under_null, "k": keys}), key="k")
        rig.path.send_arrow("t", pa.table({"value": words, "k": keys}), key="k")
        assert [r.value for r in arrived(rig)] == [b"v", None, b"v", b"v"]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(BINARY_PAIR), pa.large_list(BINARY_PAIR), pa.list_(BINARY_PAIR, 1), pa.list_view(BINARY_PAIR)],
    ids=str,
)
def test_headers_larger_than_the_memory_are_refused_with_their_size(kind: pa.DataType) -> None:
    headers = pa.array([[{"key": b"k", "value": b"x" * 30_000}]], kind)
    with (
        Rig({"t": [1]}, buffer_memory=20_000, batch_size=4096, max_block_ms=1) as rig,
        pytest.raises(errors.BufferExhaustedError, match="a row may need 32768 bytes"),
    ):
        rig.path.send_arrow("t", pa.table({"value": [b"v"], "h": headers}), headers="h")


def test_an_invalid_row_of_a_later_batch_is_counted_from_the_first_batch_and_nothing_is_sent(
    rig: Rig,
) -> None:
    batches = [pa.record_batch({"value": [b"x"] * 5}), pa.record_batch({"value": [b"x", None]})]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
    with pytest.raises(ValueError, match="column 'value', row 6: is null"):
        rig.path.send_arrow("t", reader)
    assert rig.accumulator.counters()["records_appended"] == 0


def test_a_record_of_exactly_the_allowed_size_is_sent() -> None:
    size = 1 << 20
    with Rig({"t": [1]}, max_request_size=size, batch_size=size) as rig:
        # Batch header, then length and value's length of 3 bytes each, and 5 bytes.
        value = b"x" * (size - 61 - 11)
        rig.path.send_arrow("t", pa.table({"value": [value]}))
        with pytest.raises(errors.RecordTooLargeError, match=f"takes {size + 1} bytes"):
            rig.path.send_arrow("t", pa.table({"value": [value + b"x"]}))
        assert [r.value for r in arrived(rig)] == [value]


def test_a_stream_that_fails_sends_nothing(rig: Rig) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [b"x"]})
        raise RuntimeError("the source broke")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.binary())]), batches())
    with pytest.raises(OSError, match=r"its Arrow stream failed: .*the source broke"):
        rig.path.send_arrow("t", reader)
    assert rig.accumulator.counters()["records_appended"] == 0
    # A capsule can be read only once.
    capsule = pa.table({"value": [b"x"]}).__arrow_c_stream__()

    class Once:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return capsule

    rig.path.send_arrow("t", Once())
    with pytest.raises(ValueError, match="its Arrow stream was already read"):
        rig.path.send_arrow("t", Once())


# Errors name rows by their place in all of the data, not in their batch


def batch(rows: int, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"v"] * rows, **columns})


def times(*given: int) -> pa.RecordBatch:
    return batch(len(given), timestamp=pa.array(given, pa.int64()))


def partitions(*given: int) -> pa.RecordBatch:
    return batch(len(given), partition=pa.array(given, pa.int32()))


def headers(*keys: bytes | None) -> pa.RecordBatch:
    return batch(len(keys), headers=pa.array([[(key, b"v")] for key in keys], pa.list_(BINARY_PAIR)))


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
