"""Ranges of rows of which the broker did not say the offset: it had them already, and says only that."""

from tests.scripted.sender_steps import grant
from tools.harness.rig import Rig

DUPLICATE = 46


def test_rows_without_an_offset_are_no_neighbours_of_those_that_begin_the_log() -> None:
    """An unknown offset is -1, one below the first of a partition."""
    with Rig({"t": [1]}, idempotent=True, batch_size=0) as rig:
        grant(rig)
        rig.send("t", b"hello")
        rig.step()
        rig.clock.advance_ms(1)
        rig.answer_all()
        rig.log.clear()
        future = rig.path.send_many("t", [b"1", b"2", b"3"])
        codes = [DUPLICATE, 0, 0]
        while rig.requests() or rig.pending:
            for seen in list(rig.pending):
                rig.answer(seen, codes.pop(0))
        assert not codes
        ranges = future.get(0).ranges
        assert ranges == [(0, -1, 1), (0, 0, 2)]
        assert list(future.get(0).rows().offsets) == [-1, 0, 1]
