"""Errors of the control plane, which are bugs: the sender goes on, and no connection stays half-way."""

from typing import Any

import pytest

from cyproducer import errors
from tests.scripted.sender_steps import cause_of_the_end, give, one
from tools.harness.rig import Rig

METADATA = 3


def test_a_response_that_the_control_plane_fails_on_closes_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would know what the connection's request was for: its next one may never be answered."""
    with Rig({"t": [1]}) as rig:
        first = rig.send("t", b"1")
        rig.answer(one(rig))
        assert first.get(0).offset == 0
        connection = rig.peers[1].connection

        def fails(*given: Any) -> None:
            raise LookupError("an unforeseen answer")

        monkeypatch.setattr(rig.control, "on_frame", fails)
        number = connection.next_correlation_id()
        frame = bytes.fromhex("0000000a 0003 0001") + number.to_bytes(4, "big") + bytes(2)
        connection.send(METADATA, 1, number, frame, rig.clock.monotonic_ns())
        rig.sender.flush_connection(connection)
        give(rig, (8).to_bytes(4, "big") + number.to_bytes(4, "big") + bytes(4))
        rig.step()
        cause = cause_of_the_end(rig)
        assert isinstance(cause, errors.KafkaConnectionError)
        assert "broker-1: LookupError: an unforeseen answer" in str(cause)
        # The next record goes on another connection.
        second = rig.send("t", b"2")
        rig.answer_all()
        assert second.get(0).offset == 1


def test_a_tick_that_fails_is_repeated_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig({"t": [1]}) as rig:
        ticks: list[float] = []

        def fails(now_ms: float) -> float:
            ticks.append(now_ms)
            raise LookupError("an unforeseen state")

        rig.step()
        monkeypatch.setattr(rig.control, "tick", fails)
        rig.sender.request_control()
        rig.step()
        rig.advance_ms(999)
        assert len(ticks) == 1
        rig.advance_ms(1)
        assert len(ticks) == 2
        assert ticks[1] - ticks[0] == pytest.approx(1000)
