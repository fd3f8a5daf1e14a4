"""What is taken over is released once, and arrays that can't be right are refused."""

import ctypes
from typing import Any

import pyarrow as pa
import pytest

from tests.records.arrow_abi import Counted, int32s
from tests.rig import Rig

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


def test_a_batch_is_released_once_when_it_is_sent_and_when_it_is_refused() -> None:
    with Rig({"t": [1]}) as rig:
        good, bad = Counted(BYTES), Counted(pa.record_batch({"value": [b"x", None]}))
        rig.path.send_arrow("t", good)
        # The bytes are in batches of the producer's: nothing of the caller's is held.
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
        (BYTES, {}, set_field("length", 2, child=0), "it has 2 rows and its batch 3"),
        (BYTES, {}, set_field("offset", -1, child=0), "offset -1"),
        (BYTES, {}, set_field("null_count", 4, child=0), "null_count 4"),
        (BYTES, {}, set_field("null_count", 1, child=0), "there is no validity bitmap"),
        (BYTES, {}, set_field("n_buffers", 2, child=0), "it has 2 buffers, its type 3"),
        (BYTES, {}, set_buffer(1, None), "its offsets are missing"),
        (BYTES, {}, set_buffer(1, OFFSETS), "row 1 points outside"),
        (BYTES, {}, set_buffer(1, NEGATIVE), "row 0 points outside"),
        (BYTES, {}, set_buffer(2, None), "row 0 points outside"),
        (VIEWS, {}, set_field("n_buffers", 2, child=0), "it has 2 buffers, its type at least 3"),
        (VIEWS, {}, set_buffer(1, VIEW), "row 0 points outside"),
        (NUMBERS, {"partition": "n"}, set_buffer(1, None, child=1), "its data is missing"),
        (WORDS, {}, set_buffer(1, INDICES), "row 1 points outside"),
        (WORDS, {}, set_field("dictionary", None, child=0), "its dictionary is missing"),
    ],
)  # fmt: skip
def test_what_can_not_be_right_is_refused_and_released(
    batch: pa.RecordBatch, options: dict[str, Any], change: Any, said: str
) -> None:
    data = Counted(batch, change)
    with Rig({"t": [1]}) as rig:
        with pytest.raises(ValueError, match=f"malformed Arrow data: .*{said}"):
            rig.path.send_arrow("t", data, **options)
        assert data.released == 1
        assert rig.accumulator.counters()["records_appended"] == 0


@pytest.mark.parametrize("given", [(1, 2), (), None, "capsule"])
def test_what_is_no_pair_of_capsules_is_refused(given: Any) -> None:
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


def test_the_offsets_are_arrow_data_that_outlives_all_else() -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.path.send_many("t", [b"x"] * 3)
        rig.answer_all()
        rows = future.get(0).rows()
        schema, array = rows.__arrow_c_array__()
        del schema, array  # capsules that nobody takes free what they hold
        taken = pa.record_batch(rows)
        del rows, future
    assert taken.schema.field("offset").type == pa.int64()
    assert taken.to_pydict() == {"partition": [0, 0, 0], "offset": [0, 1, 2]}
