"""A partition's first batch under a producer id goes alone: until then brokers check no sequences."""

import pytest

from tests.rig import Rig


def three(rig: Rig) -> int:
    """Fills three batches, of which the open one gathers; how many requests reach the broker."""
    for _ in range(3):
        rig.send("t", bytes(150), partition=0)
    return len(rig.requests())


@pytest.mark.parametrize("producer_id", [0, 7])
def test_the_first_batch_goes_alone_and_the_others_do_not(producer_id: int) -> None:
    with Rig({"t": [1]}, idempotent=True, batch_size=200) as rig:
        rig.sender.set_identity(producer_id, 0)
        assert three(rig) == 1
        rig.answer(rig.pending[0])
        assert len(rig.requests()) == 2
        rig.answer_all()
        assert three(rig) == 2
        rig.answer_all()
        rig.sender.set_identity(producer_id, 1)
        assert three(rig) == 2
        rig.answer_all()
        rig.sender.set_identity(producer_id + 1, 0)
        assert three(rig) == 1


def test_a_first_batch_that_is_refused_is_not_overtaken() -> None:
    with Rig({"t": [1]}, idempotent=True, batch_size=200) as rig:
        rig.sender.set_identity(7, 0)
        assert three(rig) == 1
        rig.answer(rig.pending[0], error=19)
        assert rig.requests() == []
        rig.advance_ms(100)
        assert len(rig.requests()) == 1
