"""When a batch that was refused is sent again, and what a failing look at the new leaders changes of that."""

from typing import Any

import pytest

from tests.scripted.sender_steps import one
from tools.harness.reference_records import PartitionResponse
from tools.harness.rig import Rig

NOT_LEADER, REQUEST_TIMED_OUT = 6, 7
BACKOFF_MS = 100


def test_a_backoff_ends_in_time_though_nothing_else_is_due() -> None:
    """The refusal comes between two ticks of the control plane, of which the next one is far away."""
    with Rig({"t": [1]}) as rig:
        rig.control.delay_ms = 3_600_000
        future = rig.send("t", b"v")
        rig.answer(one(rig), REQUEST_TIMED_OUT)
        rig.advance_ms(BACKOFF_MS - 1)
        assert rig.requests() == []
        rig.advance_ms(1)
        rig.answer(one(rig))
        assert future.get(0).offset == 0


def test_each_of_two_backoffs_ends_in_its_time() -> None:
    with Rig({"t": [1, 1]}) as rig:
        rig.control.delay_ms = 3_600_000
        first = rig.send("t", b"1", partition=0)
        rig.answer(one(rig), REQUEST_TIMED_OUT)
        rig.advance_ms(BACKOFF_MS // 2)
        second = rig.send("t", b"2", partition=1)
        rig.answer(one(rig), REQUEST_TIMED_OUT)
        for future in (first, second):
            rig.advance_ms(BACKOFF_MS // 2 - 1)
            assert rig.requests() == []
            rig.advance_ms(1)
            rig.answer(one(rig))
            assert future.get(0).offset == 0


def test_a_failing_look_at_the_new_leaders_leaves_the_batch_to_the_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leaders are a hint: without it the batch is sent again as after any other refusal."""

    def fails(*given: Any) -> None:
        raise LookupError("an unforeseen leader")

    with Rig({"t": [1]}, produce_version=12) as rig:
        monkeypatch.setattr(rig.control, "on_leaders", fails)
        future = rig.send("t", b"v")
        refusal = PartitionResponse(0, NOT_LEADER, current_leader=(5, 9))
        rig.respond(one(rig), [("t", [refusal])])
        assert [place for place, _, _ in rig.fates.failures] == [("t", 0)]
        assert rig.control.broken == []
        rig.advance_ms(BACKOFF_MS)
        rig.answer(one(rig))
        assert future.get(0).offset == 0
