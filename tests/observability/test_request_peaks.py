"""The size of the largest request, where several are written in one step of the sender."""

from tests.observability.measured import node, producer
from tools.harness.rig import Rig


def test_the_largest_request_is_not_the_last_one_of_a_step() -> None:
    with Rig({"t": [1]}, batch_size=2000) as rig:
        rig.control.delay_ms = 3_600_000
        rig.connect(1)
        rig.send("t", bytes(1900))
        rig.send("t", bytes(300))
        before = rig.sender.counters()["requests"]
        rig.step()
        assert rig.sender.counters()["requests"] == before + 2
        sizes = [len(seen.values()[0] or b"") for seen in rig.requests()]
        assert sizes == [1900, 300]
        assert node(rig, 1)["request-size-max"] > 1900
        assert producer(rig)["request-size-max"] > 1900
