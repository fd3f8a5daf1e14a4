"""Views of Arrow that begin inside a buffer and end behind it."""

import struct

import pytest

from tests.records.arrow_abi import Made, made_array, made_schema
from tools.harness.rig import Rig

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
