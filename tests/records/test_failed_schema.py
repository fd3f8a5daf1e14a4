"""An Arrow stream that fails after it has filled in a schema: what is in there is not the reader's."""

import ctypes

import pytest

from tests.records.arrow_abi import ArrowSchema, MadeStream, made_schema
from tools.harness.rig import Rig

RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def test_a_schema_that_came_with_an_error_is_not_released() -> None:
    """By the C stream interface the structure means nothing then; its producer has released it already."""
    released: list[int] = []
    callback = RELEASE(released.append)

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
