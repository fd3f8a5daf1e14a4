"""``RowOffsets`` made of bytes, as unpickling does it: what does not fit together is refused."""

import pytest

from cyproducer.futures.bulk_future import RowOffsets


@pytest.mark.parametrize(("rows", "bitmap"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_a_bitmap_has_a_bit_for_each_row(rows: int, bitmap: int) -> None:
    made = RowOffsets(bytes(4 * rows), bytes(8 * rows), bytes(bitmap), rows)
    assert len(made) == rows
    with pytest.raises(ValueError, match="does not match the bitmap"):
        RowOffsets(bytes(4 * rows), bytes(8 * rows), bytes(bitmap - 1), rows)


@pytest.mark.parametrize(("partitions", "offsets"), [(4, 16), (8, 8), (3, 6), (0, 8)])
def test_each_row_has_a_partition_and_an_offset(partitions: int, offsets: int) -> None:
    with pytest.raises(ValueError, match=f"{partitions} bytes of partitions, {offsets} bytes of offsets"):
        RowOffsets(bytes(partitions), bytes(offsets), None, 0)


@pytest.mark.parametrize(("bitmap", "nulls"), [(None, 1), (b"\xff", 0)])
def test_a_bitmap_comes_with_missing_offsets_alone(bitmap: bytes | None, nulls: int) -> None:
    with pytest.raises(ValueError, match=f"{nulls} offsets are missing"):
        RowOffsets(bytes(4), bytes(8), bitmap, nulls)
