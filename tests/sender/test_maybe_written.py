"""Whether a record whose sender ends may have been written: its error must never deny what may be true."""

from typing import Any

import pytest

from cyproducer.errors import ProducerClosedError
from cyproducer.futures.delivery import RecordFuture
from tests.scripted.sender_steps import grant, one
from tools.harness.rig import Rig

ENDED = ProducerClosedError("the end")


REQUEST_TIMED_OUT = 7


def may_be_written(future: RecordFuture) -> object:
    """Any error may be a record's, and has this attribute then."""
    return getattr(future.exception, "maybe_written", None)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_batch_that_waits_for_a_retry_after_a_lost_connection_may_be_written(idempotent: bool) -> None:
    with Rig({"t": [1], "u": [-1]}, idempotent=idempotent) as rig:
        if idempotent:
            grant(rig)
        sent = rig.send("t", b"1")
        one(rig)
        rig.cut(1)
        rig.step()
        assert not sent.is_done
        without_leader, parked = rig.send("u", b"2"), rig.send("unknown", b"3")
        assert rig.sender.abort(ENDED) == 0
        assert may_be_written(sent) is True
        assert may_be_written(without_leader) is False
        assert may_be_written(parked) is False


def test_a_batch_in_flight_may_be_written_when_the_cluster_refuses_the_producer() -> None:
    with Rig({"t": [1], "u": [-1]}) as rig:
        in_flight = rig.send("t", b"1")
        one(rig)
        without_leader = rig.send("u", b"2")
        rig.sender.refuse_all(ENDED)
        assert may_be_written(in_flight) is True
        assert may_be_written(without_leader) is False


def test_a_batch_about_which_no_decision_can_be_made_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes from the code that decides, not from a broker that refused the batch."""

    def fails(*given: Any) -> Any:
        raise LookupError("an unforeseen state")

    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"1")
        seen = one(rig)
        monkeypatch.setattr(rig.fates, "decide", fails)
        rig.answer(seen, REQUEST_TIMED_OUT)
        assert isinstance(future.exception, LookupError)
        assert may_be_written(future) is True
