"""Which partition a keyless record goes to beside a busy broker, and how rare probes of a limit become."""

import itertools

import pytest

from cyproducer.control.partitioners import BUILT_IN
from tests.accumulator.test_batch_limit import refusals, rigged, send_batches
from tools.harness.rig import Rig


def test_batches_at_a_broker_count_for_its_partitions_as_queued_ones_do() -> None:
    """Four batches on the wire against none: weights of 1 and 5, and 1 and 1 if queues alone counted."""
    chosen = [0, 0]
    for seed in range(1, 301):
        with Rig({"t": [1, 2]}, spec=BUILT_IN["default"], seed=seed * 0x9E3779B97F4A7C15 % 2**64) as rig:
            for _ in range(4):
                rig.send("t", b"busy", partition=1)
                rig.accumulator.flush(0)
                assert len(rig.requests()) == 1
            partition = rig.send("t", b"keyless").partition
            assert partition is not None
            chosen[partition] += 1
    assert 30 < chosen[1] < 75
    assert sum(chosen) == 300


@pytest.mark.slow
def test_probes_of_a_limit_that_stays_come_every_twenty_seconds() -> None:
    with rigged(None) as rig:
        send_batches(rig, 2000, 3)
        refused_at: list[int] = []
        for second in range(180):
            before = refusals(rig)
            rig.advance_ms(999)
            send_batches(rig, 2000)
            if refusals(rig) > before:
                refused_at.append(second)
        gaps = [later - earlier for earlier, later in itertools.pairwise(refused_at)]
        assert max(gaps) <= 21
        assert min(gaps[-3:]) >= 20
