"""How soon a limit is probed again after a probe that was acknowledged, and one that was not."""

import pytest

from tests.accumulator.test_batch_limit import LARGE, STEP, limit_of, refusals, rigged, send_batches


@pytest.mark.slow
def test_a_probe_that_is_acknowledged_makes_the_next_wait_a_short_one() -> None:
    """The wait that earlier refusals had grown to is over: the topic has just taken more."""
    with rigged(None) as rig:
        send_batches(rig, 2000, 3)
        for _ in range(90):
            rig.advance_ms(999)
            send_batches(rig, 2000)
        before = limit_of(rig)
        for _ in range(25):
            rig.advance_ms(999)
            rig.send("t", bytes(int(before) + STEP // 2), partition=0)
            rig.advance_ms(1)
            rig.answer_all()
            if limit_of(rig) > before:
                break
        grown = limit_of(rig)
        assert grown == before + STEP
        refused_at = []
        count = refusals(rig)
        for second in range(40):
            send_batches(rig, int(grown))
            if refusals(rig) > count:
                count = refusals(rig)
                refused_at.append(second)
            rig.advance_ms(999)
        assert refused_at[0] == 0
        assert 10 <= refused_at[1] <= 11
        assert 20 <= refused_at[2] - refused_at[1] <= 21
        assert LARGE > grown == limit_of(rig)
