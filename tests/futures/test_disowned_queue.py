"""A queue of callbacks in a forked child, whose thread may be in the middle of a flush."""

from tools.harness.rig import Rig


def test_a_disowned_queue_is_idle_and_runs_nothing() -> None:
    """Nobody in the child runs what is queued, so that a wait for it would last its whole timeout."""
    called: list[object] = []
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v").add_callback(called.append)
        rig.answer_all()
        queue = rig.completions
        assert not queue.wait_idle(0)
        assert queue.backlog == 1
        queue.disown()
        assert queue.wait_idle(0)
        assert queue.backlog == 0
        assert queue.run_next(0) is None
    assert called == []
