"""A topic that is forgotten while some of its partitions are still of an older epoch."""

from tests.scripted.sender_steps import grant
from tests.sender.test_idempotent_sender import on_wire
from tools.harness.rig import Rig


def test_only_sequences_of_the_epoch_of_now_are_kept() -> None:
    """Brokers refuse a new epoch whose first sequence is not 0."""
    with Rig({"t": [1, 1]}, idempotent=True) as rig:
        grant(rig)
        for _ in range(3):
            rig.send("t", b"before", partition=0)
        rig.answer_all()
        rig.sender.set_identity(4711, 1)
        rig.send("t", b"since", partition=1)
        rig.answer_all()
        rig.sender.forget_topic("t")
        rig.sender.apply_topic("t", b"", [1, 1])
        for partition in (0, 1):
            rig.send("t", b"after", partition=partition)
        assert [on_wire(rig, partition) for partition in (0, 1)] == [[(1, 0)], [(1, 1)]]
