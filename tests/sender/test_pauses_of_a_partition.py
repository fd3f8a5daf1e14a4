"""A pause after which a broker may have forgotten the producer counts only where nothing is under way."""

from tests.sender.test_idempotent_sender import introduce, on_wire, send
from tools.harness.rig import Rig


def test_a_slow_answer_is_no_pause() -> None:
    """A broker that still holds a batch has not forgotten: the next ones go side by side as before."""
    with Rig(
        {"t": [1]}, idempotent=True, batch_size=0, request_timeout_ms=300_000, delivery_timeout_ms=600_000
    ) as rig:
        introduce(rig)
        send(rig, 1)
        assert on_wire(rig) == [(0, 0)]
        rig.advance_ms(61_000)
        send(rig, 2, start=1)
        assert on_wire(rig) == [(0, 0), (0, 1), (0, 2)]
        rig.answer_all()
        assert rig.values("t") == [b"0", b"1", b"2"]
