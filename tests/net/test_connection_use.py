"""What counts as use of a connection, which is closed once it was idle for ``connections_max_idle_ms``."""

from tools.harness.rig import Rig


def test_writing_is_use_of_a_connection_that_gets_no_responses() -> None:
    """With ``acks=0`` a connection that is written to all the time reads nothing."""
    with Rig({"t": [1]}, acks=0) as rig:
        for _ in range(3):
            rig.clock.advance_ms(60_000)
            future = rig.send("t", b"v")
            assert len(rig.requests()) == 1
            assert future.succeeded()
            assert rig.peers[1].connection.last_used_ns == rig.clock.monotonic_ns()


def test_reading_is_use_of_a_connection() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v")
        (seen,) = rig.requests()
        rig.clock.advance_ms(10_000)
        rig.answer(seen)
        assert rig.peers[1].connection.last_used_ns == rig.clock.monotonic_ns()
