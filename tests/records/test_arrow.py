"""Imported Arrow data is released exactly once, and malformed arrays are refused."""

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cyproducer import errors
from cyproducer.records import arrow
from tests.programs import needs_compiler, shared_library
from tests.records.arrow_abi import ArrowSchema, Counted, Made, MadeStream, int32s, made_array, made_schema
from tests.records.capsules import pointer_in
from tools.harness.rig import Rig

VIEW = (ctypes.c_int32 * 4)(13, 0, 7, 0)
OFFSETS = int32s(0, 5, 3, 6)
NEGATIVE = int32s(-4, 0, 1, 2)
INDICES = int32s(0, 9, 0)


def set_field(name: str, value: Any, child: int | None = None) -> Any:
    def change(array: Any) -> None:
        setattr(array if child is None else array.children[child].contents, name, value)

    return change


def set_buffer(index: int, memory: Any, child: int = 0) -> Any:
    def change(array: Any) -> None:
        array.children[child].contents.buffers[index] = memory if memory is None else ctypes.addressof(memory)

    return change


BYTES = pa.record_batch({"value": [b"abc", b"def", b"ghi"]})
VIEWS = pa.record_batch({"value": pa.array([b"more than twelve bytes"], pa.binary_view())})
NUMBERS = pa.record_batch({"value": [b"abc"], "n": [1]})
WORDS = pa.record_batch({"value": pa.array(["a", "b", "a"]).dictionary_encode()})


def test_a_batch_is_released_once_whether_sent_or_refused() -> None:
    with Rig({"t": [1]}) as rig:
        good, bad = Counted(BYTES), Counted(pa.record_batch({"value": [b"x", None]}))
        rig.path.send_arrow("t", good)
        # The bytes are in the producer's batches: it holds none of the caller's memory.
        assert good.released == 1
        with pytest.raises(ValueError, match="row 1"):
            rig.path.send_arrow("t", bad)
        assert bad.released == 1
        unknown = Counted(BYTES)
        with pytest.raises(ValueError, match="no column"):
            rig.path.send_arrow("t", unknown, key="k")
        assert unknown.released == 1
        rig.answer_all()
        assert rig.values("t") == [b"abc", b"def", b"ghi"]


@pytest.mark.parametrize(
    ("batch", "options", "change", "said"),
    [
        (BYTES, {}, set_field("length", -1), "length -1"),
        (BYTES, {}, set_field("offset", -1), "offset -1"),
        (BYTES, {}, set_field("n_children", 2), "a batch has 2 columns, its schema 1"),
        (BYTES, {}, set_field("length", 2, child=0), "it has 2 rows, its batch 3"),
        (BYTES, {}, set_field("offset", -1, child=0), "offset -1"),
        (BYTES, {}, set_field("null_count", 4, child=0), "null_count 4"),
        (BYTES, {}, set_field("null_count", 1, child=0), "there is no validity bitmap"),
        (BYTES, {}, set_field("n_buffers", 2, child=0), "it has 2 buffers, its type needs 3"),
        (BYTES, {}, set_buffer(1, None), "its offsets are missing"),
        (BYTES, {}, set_buffer(1, OFFSETS), "row 1 points outside .*: its offsets are 5 and 3: must be"),
        (BYTES, {}, set_buffer(1, NEGATIVE), "row 0 points outside .*: its offsets are -4 and 0: must be"),
        (BYTES, {}, set_buffer(2, None), "row 0 points outside .*: the data is missing"),
        (VIEWS, {}, set_field("n_buffers", 2, child=0), "it has 2 buffers, its type needs at least 3"),
        (VIEWS, {}, set_buffer(1, VIEW), "row 0 points outside .*: it is in buffer 7 of values, there are 1"),
        (NUMBERS, {"partition": "n"}, set_buffer(1, None, child=1), "its data is missing"),
        (WORDS, {}, set_buffer(1, INDICES), "row 1 points outside .*: its index is 9, its dictionary has 2"),
        (WORDS, {}, set_field("dictionary", None, child=0), "its dictionary is missing"),
    ],
)  # fmt: skip
def test_malformed_arrays_are_refused_and_released(
    batch: pa.RecordBatch, options: dict[str, Any], change: Any, said: str
) -> None:
    data = Counted(batch, change)
    with Rig({"t": [1]}) as rig:
        with pytest.raises(ValueError, match=f"malformed Arrow data: .*{said}"):
            rig.path.send_arrow("t", data, **options)
        assert data.released == 1
        assert rig.accumulator.counters()["records_appended"] == 0


# Numbers that overflow, missing pointers, cycles

LAST = 2**63 - 1
NONE: Any = None


def of_columns(*columns: Any) -> Any:
    return made_schema("+s", "", columns)


def rows_of(length: int, *columns: Any, **fields: int) -> Any:
    return made_array(length, None, children=columns, **fields)


def binaries(length: int, **fields: int) -> Any:
    return made_array(length, None, struct.pack("<4i", 0, 1, 2, 3), b"abc", **fields)


def one(form: str, array: Any, length: int = 1, **fields: int) -> Made:
    """A table of the one column "value"."""
    return Made(of_columns(made_schema(form, "value")), rows_of(length, array, **fields))


def words_of(form: str, words: Any, *buffers: bytes | None, length: int = 1, **fields: int) -> Made:
    schema = made_schema("l", "value", dictionary=made_schema(form))
    column = made_array(length, *buffers, dictionary=words, **fields)
    return Made(of_columns(schema), rows_of(length, column))


def without_children(made: Made) -> Made:
    made.array.children = None
    return made


def round_schema() -> Made:
    schema = made_schema("i", "value")
    schema.dictionary = ctypes.pointer(schema)
    return Made(of_columns(schema), rows_of(1, made_array(1, None, bytes(4))))


def round_array() -> Made:
    made = words_of("w:4", made_array(1, None, bytes(4)), None, bytes(8))
    column = made.array.children[0]
    column.contents.dictionary = column
    return made


def deep_schema() -> Made:
    schema = made_schema("+s", "value")
    (schema.n_children, schema.children) = (1, (ctypes.POINTER(type(schema)) * 1)(ctypes.pointer(schema)))
    return Made(of_columns(schema), rows_of(1, rows_of(1)))


def many_fields() -> Made:
    """Each level has the next one twice: few structures, but a walk would never end."""
    schema = made_schema("i", "value")
    for _ in range(60):
        schema = made_schema("+s", "value", [schema, schema])
    return Made(of_columns(schema), rows_of(1, rows_of(1)))


def released(array: Any) -> Any:
    array.release = None
    return array


def with_released_type() -> Made:
    made = one("z", binaries(1))
    made.schema.children[0].contents.release = None
    return made


def with_headers(key: Any, room: int, offsets: bytes, **fields: int) -> Made:
    pair = made_schema("+s", "", [made_schema("w:0", "key"), made_schema("n", "value")])
    schema = of_columns(made_schema("w:0", "value"), made_schema("+L", "h", [pair]))
    pairs = made_array(room, None, children=[key, made_array(room)])
    lists = made_array(1, None, offsets, children=[pairs], **fields)
    return Made(schema, rows_of(1, made_array(1, None, None), lists))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        # The rows of a column begin at the sum of two offsets.
        (lambda: one("z", binaries(LAST - 3, offset=3), 1, offset=LAST - 4), "rows exceed"),
        (lambda: one("z", binaries(LAST - 1, offset=1), 1, offset=LAST - 2), "rows exceed"),
        (lambda: one("z", binaries(LAST - 3, offset=3), 1, offset=LAST - 3), "it has|rows exceed"),
        (lambda: one("z", binaries(3), 1, offset=LAST - 1), "it has 3 rows, its batch 9"),
        (lambda: one("z", binaries(LAST), 1, offset=LAST - 2), "bytes exceed"),
        (lambda: one("z", binaries(3, offset=LAST)), "rows exceed"),
        (lambda: one("z", binaries(LAST, offset=LAST)), "rows exceed"),
        (lambda: one("z", binaries(1, offset=2**62 - 2)), "bytes exceed"),
        (lambda: one("Z", binaries(1, offset=2**61 - 2)), "bytes exceed"),
        (lambda: one("vz", made_array(1, None, bytes(16), None, offset=2**60)), "bytes exceed"),
        (lambda: one("w:4", made_array(1, None, bytes(4), offset=2**61)), "bytes exceed"),
        (lambda: one("w:999999999999999999", made_array(1, None, bytes(4), offset=9)), "bytes exceed"),
        (
            lambda: one("Z", made_array(1, None, struct.pack("<2q", 0, 2**56 + 1), b"abc")),
            "row 0 points out",
        ),
        (
            lambda: words_of("w:1", made_array(1, None, b"a", offset=2**56), None, bytes(8)),
            "bytes exceed",
        ),
        (
            lambda: one("w:0", made_array(1, b"", None, offset=2**61, null_count=1)),
            "bytes exceed",
        ),
        # The bitmap of the table's own rows.
        (
            lambda: Made(
                of_columns(made_schema("z", "value")),
                made_array(1, b"\1", children=[binaries(1)], offset=2**62 - 1, null_count=-1),
            ),
            "bytes exceed",
        ),
        (lambda: one("w:9999999999999999999", made_array(1, None, bytes(4))), "its width is 9999"),
        (lambda: one("w:-1", made_array(1, None, bytes(4))), "its width is '-1'"),
        (lambda: one("w:", made_array(1, None, bytes(4))), "its width is ''"),
        (lambda: one("w:4\u0664", made_array(1, None, bytes(4))), "its width is"),
        (lambda: one("w:4", made_array(1, None, None)), "its data is missing"),
        (lambda: one("vz", made_array(1, None, bytes(16), None, n_buffers=LAST)), "it has 9.* buffers"),
        (
            lambda: words_of("w:1", made_array(1, None, b"a"), None, bytes(8), offset=2**60),
            "bytes exceed",
        ),
        (
            lambda: words_of("w:1", made_array(LAST, None, b"a", offset=1), None, bytes(8)),
            "rows exceed",
        ),
        (lambda: words_of("w:1", made_array(1, None, b"a"), None, None), "its indices are missing"),
        (
            lambda: words_of("w:1", made_array(-1, None, b"a"), None, bytes(8)),
            "column .value, dictionary.: malformed Arrow data: length -1: must be at least 0",
        ),
        (
            lambda: words_of("w:1", made_array(-(2**63), None, b"a"), None, bytes(8)),
            "column .value, dictionary.: .*length -9",
        ),
        # Offsets of rows that the table does not have show where the data ends.
        (
            lambda: one("z", made_array(2, None, struct.pack("<3i", 0, 999, 3), b"abc")),
            "row 0 points outside .*: its offsets are 0 and 999, the last offset of the column is 3",
        ),
        (
            lambda: one("Z", made_array(2, None, struct.pack("<3q", 0, 999, 3), b"abc")),
            "row 0 points outside .*: its offsets are 0 and 999, the last offset of the column is 3",
        ),
        (lambda: one("w:1", made_array(1, None, b"a", null_count=-2)), "null_count -2: must be -1, for un"),
        # What does not match the type.
        (
            lambda: one("w:1", made_array(1, None, b"a", children=[binaries(1)])),
            "it has 1 children, its type needs 0",
        ),
        (
            lambda: Made(
                of_columns(made_schema("z", "value", [made_schema("n")])),
                rows_of(1, made_array(1, None, bytes(8), b"", children=[made_array(1)])),
            ),
            "its schema has 1 children, its type needs 0",
        ),
        (
            lambda: one("w:8", made_array(1, None, bytes(8), dictionary=binaries(1))),
            "it has a dictionary, its type has none",
        ),
        (
            lambda: with_headers(made_array(1, None, None), 1, bytes(16), n_children=2),
            "column 'h': .*it has 2 children, its type needs 1",
        ),
        # What is released.
        (lambda: one("z", released(binaries(1))), "column 'value': .*its array is already released"),
        (with_released_type, "column 'value': .*its schema is already released"),
        (
            lambda: words_of("w:1", released(made_array(1, None, b"a")), None, bytes(8)),
            "column 'value, dictionary': .*its array is already released",
        ),
        (
            lambda: with_headers(released(made_array(1, None, None)), 1, struct.pack("<qq", 0, 1)),
            "column 'h, key': .*its array is already released",
        ),
        # Pointers.
        (lambda: one("z", None), "its array is missing"),
        (lambda: one("z", binaries(1, buffers=NONE)), "it has no buffers"),
        (lambda: without_children(one("z", binaries(1))), "its children are missing"),
        (lambda: Made(of_columns(None), rows_of(1, binaries(1))), "child 0 of a field of its"),
        (lambda: one(NONE, binaries(1)), "it has no type"),
        (lambda: Made(made_schema(NONE), rows_of(1)), "its schema has no type"),
        (round_array, "column .value, dictionary.: .*it has a dictionary, its type has none"),
        (round_schema, "more than 64 levels"),
        (deep_schema, "more than 64 levels"),
        (many_fields, "1048576 fields"),
        (lambda: with_headers(None, 1, bytes(16)), "column 'h, key': .*its array is missing"),
        (lambda: with_headers(made_array(1, None, None), 1, struct.pack("<qq", 0, 2)), "row 0 points out"),
        (lambda: with_headers(made_array(1, None, None), 1, bytes(16), offset=2**60), "bytes exceed"),
        (lambda: MadeStream(of_columns(), missing=["get_schema"]), "no functions to read it"),
        (lambda: MadeStream(of_columns(), missing=["get_next"]), "no functions to read it"),
    ],
)  # fmt: skip
def test_impossible_sizes_and_missing_pointers_are_refused(make: Callable[[], Any], said: str) -> None:
    with Rig({"t": [1]}) as rig:
        data = make()
        headers = "h" if isinstance(data, Made) and data.array.n_children == 2 else None
        with pytest.raises(ValueError, match=f"malformed Arrow data: .*({said})|{said}"):
            rig.path.send_arrow("t", data, headers=headers)
        assert rig.accumulator.counters()["records_appended"] == 0


@pytest.mark.parametrize("role", ["partition", "timestamp"])
@pytest.mark.parametrize(
    ("length", "offset", "said"),
    [
        (1, 2**60, "bytes exceed"),
        (2**63 - 5, 5, "rows exceed"),
        (1, 2**63 - 1, "rows exceed"),
    ],
)
def test_impossible_sizes_are_refused_in_columns_of_numbers(
    role: str, length: int, offset: int, said: str
) -> None:
    schema = of_columns(made_schema("w:0", "value"), made_schema("l", "n"))
    numbers = made_array(length, None, bytes(8), offset=offset)
    with (
        Rig({"t": [1]}) as rig,
        pytest.raises(ValueError, match=f"column 'n': malformed Arrow data: .*{said}"),
    ):
        rig.path.send_arrow("t", Made(schema, rows_of(1, made_array(1, None, None), numbers)), **{role: "n"})
    schema = of_columns(made_schema("w:0", "value"), made_schema("l", "n"))
    with Rig({"t": [1]}) as rig, pytest.raises(ValueError, match=r"column 'n': .*its array is missing"):
        rig.path.send_arrow("t", Made(schema, rows_of(1, made_array(1, None, None), None)), **{role: "n"})


def test_a_schema_with_too_many_children_is_refused() -> None:
    schema = of_columns(made_schema("z", "value"))
    for count, children in ((-1, schema.children), (LAST, schema.children), (1, None)):
        (schema.n_children, schema.children) = (count, children)
        with (
            Rig({"t": [1]}) as rig,
            pytest.raises(ValueError, match=f"a field of its schema has {count} chil"),
        ):
            rig.path.send_arrow("t", Made(schema, rows_of(1, binaries(1))))
        schema.release = made_schema("n").release


def test_rows_without_bytes_are_sent_and_any_number_is_counted() -> None:
    with Rig({"t": [1]}) as rig:
        rig.path.send_arrow("t", one("w:0", made_array(3, None, None), 3))
        rig.answer_all()
        assert rig.values("t") == [b""] * 3
        rows = 2**62
        with pytest.raises(ValueError, match=f"data: has {rows} rows: a call takes at most {2**32}"):
            rig.path.send_arrow("t", one("w:0", made_array(rows, None, None), rows))
        batches = [rows_of(2**31, made_array(2**31, None, None)) for _ in range(3)]
        with pytest.raises(ValueError, match=f"data: has {3 * 2**31} rows"):
            rig.path.send_arrow("t", MadeStream(of_columns(made_schema("w:0", "value")), batches))


def test_sizes_beyond_any_record_are_too_large() -> None:
    """A key and a value of 2**56 bytes each, or 2**62 headers, are refused without being read."""
    vast = struct.pack("<2q", 0, 2**56)
    schema = of_columns(made_schema("Z", "value"), made_schema("Z", "k"))
    table = Made(schema, rows_of(1, *[made_array(1, None, vast, b"abc") for _ in range(2)]))
    with Rig({"t": [1]}) as rig:
        with pytest.raises(errors.RecordTooLargeError, match="column 'value', row 0"):
            rig.path.send_arrow("t", table, key="k")
        rows = 2**62
        headers = with_headers(made_array(rows, None, None), rows, struct.pack("<qq", 0, rows))
        with pytest.raises(errors.RecordTooLargeError, match="column 'value', row 0"):
            rig.path.send_arrow("t", headers, headers="h")


def test_a_dictionary_of_dictionaries_is_named() -> None:
    schema = made_schema("l", "value", dictionary=made_schema("l", dictionary=made_schema("z")))
    with (
        Rig({"t": [1]}) as rig,
        pytest.raises(TypeError, match="is of type dictionary of a dictionary: must be"),
    ):
        rig.path.send_arrow("t", Made(of_columns(schema), rows_of(1, made_array(1, None, bytes(8)))))


# Streams


def test_the_error_of_a_failed_stream_has_the_reason_if_any() -> None:
    with Rig({"t": [1]}) as rig:
        for missing, said in (([], "the disk"), (["get_last_error"], "it reported no reason")):
            with pytest.raises(OSError, match=f"its Arrow stream failed: {said}") as failed:
                rig.path.send_arrow("t", MadeStream(of_columns(), missing=missing, error="the disk"))
            assert failed.value.errno == 5
            with pytest.raises(OSError, match=f"its Arrow stream failed: {said}"):
                rig.path.send_arrow("t", MadeStream(None, missing=missing, error="the disk"))


@needs_compiler
@pytest.mark.parametrize("fails", [0, 1])
def test_ctrl_c_stops_reading_a_stream_after_the_current_batch(fails: int, tmp_path: Path) -> None:
    source = Path(__file__).with_name("interrupted_stream.c")
    library = shared_library(source, tmp_path, f"-I{Path(arrow.__file__).parent}")
    loaded = ctypes.CDLL(str(library))
    ctypes.c_int.in_dll(loaded, "fails").value = fails
    stream = MadeStream(of_columns(made_schema("z", "value")))
    stream.stream.get_next = ctypes.cast(loaded.next_batch, ctypes.c_void_p)
    with Rig({"t": [1]}) as rig:
        with pytest.raises(KeyboardInterrupt):
            rig.path.send_arrow("t", stream)
        assert ctypes.c_int.in_dll(loaded, "batches_read").value == 10


@pytest.mark.parametrize("fails", [KeyboardInterrupt, ValueError])
def test_ctrl_c_in_the_generator_of_a_stream_raises_keyboard_interrupt(
    fails: type[BaseException],
) -> None:
    def batches() -> Any:
        yield BYTES
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise fails("KeyboardInterrupt or not") from None

    reader = pa.RecordBatchReader.from_batches(BYTES.schema, batches())
    with Rig({"t": [1]}) as rig:
        with pytest.raises(KeyboardInterrupt if fails is KeyboardInterrupt else OSError):
            rig.path.send_arrow("t", reader)
        # The messages of older pyarrow releases.
        text = f"Unknown error: x. Detail: Python exception: {fails.__name__}"
        with pytest.raises(KeyboardInterrupt if fails is KeyboardInterrupt else OSError):
            rig.path.send_arrow("t", MadeStream(of_columns(), error=text))


@pytest.mark.parametrize("given", [(1, 2), (), None, "capsule"])
def test_anything_but_a_pair_of_capsules_is_refused(given: Any) -> None:
    class Odd:
        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            return given

    class OddStream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
            return given

    with Rig({"t": [1]}) as rig:
        with pytest.raises(TypeError, match="data: __arrow_c_array__"):
            rig.path.send_arrow("t", Odd())
        with pytest.raises(TypeError, match="data: __arrow_c_stream__"):
            rig.path.send_arrow("t", OddStream())


def test_exported_offsets_outlive_the_future() -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.path.send_many("t", [b"x"] * 3)
        rig.answer_all()
        rows = future.get(0).rows()
        schema, array = rows.__arrow_c_array__()
        del schema, array  # capsules that are not consumed free their contents
        taken = pa.record_batch(rows)
        del rows, future
    assert taken.schema.field("offset").type == pa.int64()
    assert taken.to_pydict() == {"partition": [0, 0, 0], "offset": [0, 1, 2]}


class Stream:
    """An Arrow stream that counts its releases, and can fail after ``batches`` batches."""

    def __init__(self, batches: list[pa.RecordBatch], fails: bool = False) -> None:
        self.released = 0
        self.batches = batches
        self.fails = fails
        self.kept: list[Any] = []

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        def given() -> Any:
            yield from self.batches
            if self.fails:
                raise OSError("the disk is gone")

        reader = pa.RecordBatchReader.from_batches(self.batches[0].schema, given())
        capsule = reader.__arrow_c_stream__()
        at = ctypes.cast(pointer_in(capsule), ctypes.POINTER(ctypes.c_void_p))
        # get_schema, get_next, get_last_error, release, private_data
        original = STREAM_RELEASE(at[3])

        def release(pointer: Any) -> None:
            self.released += 1
            original(pointer)

        callback = STREAM_RELEASE(release)
        self.kept.append(callback)
        at[3] = ctypes.cast(callback, ctypes.c_void_p).value
        return capsule


STREAM_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def test_a_stream_is_released_once_whether_it_ends_or_fails() -> None:
    with Rig({"t": [1]}) as rig:
        whole = Stream([BYTES, BYTES])
        rig.path.send_arrow("t", whole)
        assert whole.released == 1
        broken = Stream([BYTES], fails=True)
        with pytest.raises(OSError, match=r"data: its Arrow stream failed: .*the disk is gone"):
            rig.path.send_arrow("t", broken)
        assert broken.released == 1
        refused = Stream([pa.record_batch({"other": [b"x"]})])
        with pytest.raises(ValueError, match="no column"):
            rig.path.send_arrow("t", refused)
        assert refused.released == 1
        rig.answer_all()
        assert rig.values("t") == [b"abc", b"def", b"ghi"] * 2


DATA = b"0123456789abcdefghij"


@pytest.mark.parametrize("form", ["vz", "vu"])
@pytest.mark.parametrize(("start", "size"), [(0, 20), (7, 13), (8, 13), (20, 13), (0, 21), (0x7FFFFFF0, 13)])
def test_a_view_ends_within_its_buffer(form: str, start: int, size: int) -> None:
    view = struct.pack("<i4sii", size, DATA[start : start + 4].ljust(4, b"\0"), 0, start)
    column = made_array(1, None, view, DATA, struct.pack("<q", len(DATA)))
    table = Made(
        made_schema("+s", children=[made_schema(form, "value")]), made_array(1, None, children=[column])
    )
    with Rig({"t": [1]}) as rig:
        if start + size > len(DATA):
            with pytest.raises(ValueError, match="row 0 points outside the column's memory"):
                rig.path.send_arrow("t", table)
            return
        rig.path.send_arrow("t", table)
        rig.answer_all()
        assert rig.values("t") == [DATA[start : start + size]]


def test_a_schema_that_came_with_an_error_is_not_released() -> None:
    """By the C stream interface the structure means nothing then; its producer has released it already."""
    released: list[int] = []
    callback = STREAM_RELEASE(released.append)

    class Half(MadeStream):
        def _fill_schema(self, stream: int, out: int) -> int:
            super()._fill_schema(stream, out)
            ctypes.c_void_p.from_address(out + ArrowSchema.release.offset).value = ctypes.cast(
                callback, ctypes.c_void_p
            ).value
            return 5

    with Rig({"t": [1]}) as rig:
        with pytest.raises(OSError, match="the disk"):
            rig.path.send_arrow("t", Half(made_schema("+s"), error="the disk"))
        assert released == []
