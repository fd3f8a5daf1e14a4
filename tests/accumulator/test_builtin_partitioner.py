"""Partitions of records without a key: sticky, adaptive, round robin, random, one broker at a time."""

from collections import Counter
from typing import Any

import pytest

from cyproducer.control.partitioners import BUILT_IN, PartitionerSpec
from cyproducer.records.hashing import partition_for_key
from tools.harness.rig import Rig

KEYLESS = {
    policy: PartitionerSpec("none", policy)
    for policy in (
        "sticky",
        "random",
        "round_robin",
        "single_broker",
    )
}
STICKY, RANDOM, ROUND_ROBIN, SINGLE_BROKER = KEYLESS.values()


def placed(rig: Rig, count: int, size: int = 0, key: bytes | None = None) -> list[int]:
    """Sends records to topic t, acknowledges them, and returns their partitions in order."""
    futures = [rig.send("t", bytes(size), key) for _ in range(count)]
    rig.answer_all()
    return [future.get(0).partition for future in futures]


def runs(partitions: list[int]) -> list[tuple[int, int]]:
    """(partition, number of consecutive records) for each run."""
    found: list[tuple[int, int]] = []
    for partition in partitions:
        if found and found[-1][0] == partition:
            found[-1] = partition, found[-1][1] + 1
        else:
            found.append((partition, 1))
    return found


@pytest.mark.parametrize("adaptive", [True, False])
def test_sticky_stays_until_a_batch_is_full_and_then_may_change(adaptive: bool) -> None:
    with Rig({"t": [1] * 10}, spec=STICKY, adaptive=adaptive, batch_size=1000) as rig:
        # A value of 94 bytes makes a record of about 100 bytes.
        partitions = placed(rig, 2000, 94)
        assert all(count % 10 == 0 for _, count in runs(partitions)[:-1])
        assert len(runs(partitions)) > 150
        assert set(partitions) == set(range(10))


def test_sticky_counts_bytes_not_records_or_time() -> None:
    with Rig({"t": [1] * 50}, spec=STICKY, batch_size=16_384) as rig:
        first = placed(rig, 1)
        for _ in range(20):
            rig.clock.advance_ms(10_000)
            assert placed(rig, 1, 700) == first
        assert len(set(placed(rig, 200, 700))) > 3


def test_each_topic_has_a_sticky_partition_of_its_own() -> None:
    with Rig({f"t{i}": [1] * 100 for i in range(20)}, spec=STICKY) as rig:
        futures = [rig.send(f"t{i}", b"v") for i in range(20)]
        rig.answer_all()
        assert len({f.get(0).partition for f in futures}) > 5


def test_adaptive_sticky_prefers_short_queues() -> None:
    """Broker 2 does not answer: its queues grow, and its partitions get fewer and fewer records."""
    leaders = [1, 2] * 4

    def shares(adaptive: bool) -> tuple[int, int]:
        with Rig({"t": leaders}, spec=STICKY, adaptive=adaptive, batch_size=500, max_in_flight=1) as rig:
            count: Counter[int] = Counter()
            sent = []
            for _ in range(1500):
                sent.append(rig.send("t", bytes(470)))
                rig.requests()
                for seen in [seen for seen in rig.pending if seen.node == 1]:
                    rig.answer(seen)
            rig.answer_all()
            for future in sent:
                count[leaders[future.get(0).partition]] += 1
            return count[1], count[2]

    quick, slow = shares(adaptive=True)
    assert slow < quick / 5
    quick, slow = shares(adaptive=False)
    assert 0.8 < slow / quick < 1.25


@pytest.mark.parametrize("code", [0, 29, 7])
def test_adaptive_sticky_ignores_finished_batches(code: int) -> None:
    """After batches were acknowledged, failed or retried, partition 0 is chosen as often as the others."""
    with Rig({"t": [1] * 4}, spec=STICKY, batch_size=0) as rig:
        for _ in range(50):
            rig.send("t", b"v", partition=0)
            for seen in rig.requests():
                rig.answer(seen, code)
            rig.clock.advance_ms(100)
            rig.answer_all()
        counts = Counter(placed(rig, 400))
        assert 60 < counts[0] < 140


def test_a_broker_that_is_sent_nothing_for_too_long_is_skipped() -> None:
    """partitioner_availability_timeout_ms. The broker is used again as soon as it is sent something."""
    with Rig({"t": [1, 2]}, spec=STICKY, batch_size=0, max_in_flight=1, availability_timeout_ms=100) as rig:
        for partition in (1, 1):
            rig.send("t", b"v", partition=partition)
        rig.requests()
        (stuck,) = rig.pending
        assert stuck.node == 2

        def places(count: int) -> set[int]:
            futures = [rig.send("t", b"v") for _ in range(count)]
            rig.requests()
            for seen in [seen for seen in rig.pending if seen.node == 1]:
                rig.answer(seen)
            while rig.requests():
                rig.answer(rig.pending[-1])
            return {1 if not f.is_done else f.get(0).partition for f in futures}

        assert places(40) == {0, 1}
        rig.advance_ms(100)
        assert places(40) == {0, 1}
        rig.advance_ms(1)
        assert places(600) == {0}
        rig.answer(stuck)
        rig.answer_all()
        assert places(40) == {0, 1}


def test_no_broker_is_skipped_if_all_are_unavailable() -> None:
    with Rig({"t": [1, 2]}, spec=STICKY, batch_size=0, max_in_flight=1, availability_timeout_ms=100) as rig:
        for partition in (0, 0, 1, 1):
            rig.send("t", b"v", partition=partition)
        rig.requests()
        rig.advance_ms(1000)
        futures = [rig.send("t", b"v") for _ in range(40)]
        rig.answer_all()
        assert {f.get(0).partition for f in futures} == {0, 1}


@pytest.mark.parametrize("adaptive", [True, False])
def test_leaders_in_the_rack_get_all_records_without_a_key_until_there_are_none(adaptive: bool) -> None:
    """partitioner_rack_aware. 1. Node 2 is in the rack. 2. It stops. 3. It leads two other partitions."""
    with Rig(spec=STICKY, batch_size=0, adaptive=adaptive) as rig:
        rig.sender.apply_topic("t", b"", [1, 2, 3] * 10, {2})
        counts = Counter(placed(rig, 2000))
        assert sorted(counts) == list(range(1, 30, 3))
        # Six standard deviations (13) around the mean.
        assert all(120 < count < 280 for count in counts.values())
        rig.sender.apply_topic("t", b"", [1, 3, 3] * 10, set())
        assert set(placed(rig, 2000)) == set(range(30))
        rig.sender.apply_topic("t", b"", [2, 1, 3, 2] + [1] * 26, {2})
        assert set(placed(rig, 200)) == {0, 3}


def test_records_go_to_a_leader_in_the_rack_at_once_when_there_is_one_again() -> None:
    """Not only after a whole batch, which few records would take long to fill."""
    with Rig(spec=STICKY) as rig:
        rig.sender.apply_topic("t", b"", [1] * 10 + [-1], {2})
        assert placed(rig, 1)[0] < 10
        rig.sender.apply_topic("t", b"", [1] * 10 + [2], {2})
        assert set(placed(rig, 5)) == {10}
        # A partition in the rack keeps its records.
        rig.sender.apply_topic("t", b"", [2] * 10 + [2], {2})
        assert set(placed(rig, 5)) == {10}


def test_a_partition_whose_leader_is_no_longer_in_the_rack_is_left() -> None:
    with Rig(spec=STICKY) as rig:
        rig.sender.apply_topic("t", b"", [2, 1, 1, 1], {2})
        assert set(placed(rig, 5)) == {0}
        rig.sender.apply_topic("t", b"", [2, 1, 1, 3], {3})
        assert set(placed(rig, 5)) == {3}


def test_among_leaders_in_the_rack_the_longer_queue_gets_less() -> None:
    with Rig(spec=STICKY, batch_size=0, max_in_flight=1) as rig:
        rig.sender.apply_topic("t", b"", [1, 1, 2, 2, 3, 3], {1, 2})
        for _ in range(11):
            rig.send("t", b"v", partition=0)
        futures = []
        for _ in range(600):
            futures.append(rig.send("t", b"v"))
            for seen in rig.requests():
                if seen.node != 1:
                    rig.answer(seen)
        waiting = sum(not future.is_done for future in futures)
        counts = Counter(future.get(0).partition for future in futures if future.is_done)
        assert set(counts) == {2, 3}
        assert waiting < 200
        rig.answer_all()


def test_if_no_broker_of_the_rack_is_available_the_others_are_used() -> None:
    """partitioner_availability_timeout_ms. It is used again once it accepts a batch."""
    with Rig(spec=STICKY, batch_size=0, max_in_flight=1, availability_timeout_ms=100) as rig:
        rig.sender.apply_topic("t", b"", [1, 2, 3], {2})
        for _ in range(2):
            rig.send("t", b"v", partition=1)
        (stuck,) = rig.requests()
        rig.advance_ms(101)
        futures = [rig.send("t", b"v") for _ in range(60)]
        while seen := [seen for seen in (*rig.requests(), *rig.pending) if seen.node != 2]:
            rig.answer(seen[0])
        assert {future.get(0).partition for future in futures} == {0, 2}
        rig.answer(stuck)
        rig.answer_all()
        # The first ones fill the batch of the partition that was chosen last.
        assert set(placed(rig, 60)[5:]) == {1}


def test_a_key_goes_to_its_partition_in_any_rack() -> None:
    with Rig(spec=BUILT_IN["default"]) as rig:
        rig.sender.apply_topic("t", b"", [1, 2, 3, 1, 2], {2})
        for key in (b"%d" % i for i in range(20)):
            assert placed(rig, 1, key=key) == [partition_for_key("java", key, 5)]


@pytest.mark.parametrize(
    "policy", [STICKY, RANDOM, ROUND_ROBIN, SINGLE_BROKER], ids=lambda spec: spec.keyless
)
@pytest.mark.parametrize("adaptive", [True, False])
def test_partitions_without_a_leader_are_avoided(policy: PartitionerSpec, adaptive: bool) -> None:
    leaders = [-1] * 20 + [1] + [-1] * 20
    with Rig({"t": leaders}, spec=policy, batch_size=0, adaptive=adaptive) as rig:
        assert set(placed(rig, 200)) == {20}
        # And a partition that loses its leader is no longer used.
        rig.sender.apply_topic("t", b"", [1] + [-1] * 40)
        assert set(placed(rig, 50)) == {0}


@pytest.mark.parametrize(
    "policy", [STICKY, RANDOM, ROUND_ROBIN, SINGLE_BROKER], ids=lambda spec: spec.keyless
)
def test_without_any_leader_all_partitions_are_used(policy: PartitionerSpec) -> None:
    with Rig({"t": [-1] * 3}, spec=policy, batch_size=0, single_broker_ms=0) as rig:
        futures = [rig.send("t", b"v") for _ in range(100)]
        assert rig.requests() == []
        rig.sender.apply_topic("t", b"", [1] * 3)
        rig.answer_all()
        assert {f.get(0).partition for f in futures} == {0, 1, 2}


def test_leaders_change_atomically() -> None:
    """1. Partition 0 loses its leader.
    2. While the leader of partition 1 is read, a record is sent: it sees the old leaders and goes at once.

    With half of the change visible, it would go to a partition without a leader, and wait.
    """
    reached: list[int] = []

    class Leader:
        def __int__(self) -> int:
            rig.send("t", b"v")
            reached.extend(seen.node for seen in rig.requests())
            return 2

    with Rig({"t": [1, 2]}, spec=ROUND_ROBIN) as rig:
        leaders: list[Any] = [-1, Leader()]
        rig.sender.apply_topic("t", b"", leaders)
        assert reached == [1]
        assert set(placed(rig, 4)) == {1}


def test_round_robin_uses_the_partitions_in_turn() -> None:
    with Rig({"t": [1] * 5}, spec=ROUND_ROBIN) as rig:
        assert placed(rig, 13) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2]


def test_random_covers_all_partitions_about_evenly() -> None:
    with Rig({"t": [1] * 8}, spec=RANDOM) as rig:
        counts = Counter(placed(rig, 8000))
        assert sorted(counts) == list(range(8))
        # Six standard deviations (30) around the mean.
        assert all(820 < count < 1180 for count in counts.values())


def test_the_seed_determines_the_choices() -> None:
    def draw(seed: int) -> list[int]:
        with Rig({"t": [1] * 8}, spec=RANDOM, seed=seed) as rig:
            return placed(rig, 50)

    assert draw(5) == draw(5)
    assert draw(5) != draw(7)


def test_a_single_broker_gets_all_records_until_its_time_is_over() -> None:
    leaders = [1, 2, 3] * 4
    with Rig({"t": leaders}, spec=SINGLE_BROKER, batch_size=0, single_broker_ms=1000) as rig:
        chosen = []
        for _ in range(30):
            for _ in range(10):
                rig.clock.advance_ms(90)
                brokers = {leaders[p] for p in placed(rig, 5)}
                assert len(brokers) == 1
            chosen.append(brokers.pop())
            rig.clock.advance_ms(100)
        assert set(chosen) == {1, 2, 3}
        rig.clock.advance_ms(1000)
        # All partitions of the broker are used.
        assert len(set(placed(rig, 100))) == 4


def test_a_topic_that_the_single_broker_does_not_lead_uses_another_broker() -> None:
    with Rig({"t": [1, 1], "u": [2]}, spec=SINGLE_BROKER, batch_size=0) as rig:
        placed(rig, 1)
        future = rig.send("u", b"v")
        rig.answer_all()
        assert future.get(0).partition == 0
        assert placed(rig, 1)[0] in (0, 1)


def test_a_key_determines_the_partition_if_the_partitioner_hashes_keys() -> None:
    for name in ("default", "consistent_random", "fnv1a_random"):
        spec = BUILT_IN[name]
        with Rig({"t": [1, -1, 1, -1, 1]}, spec=spec) as rig:
            futures = {key: rig.send("t", b"v", key) for key in (b"%d" % i for i in range(50))}
            rig.sender.apply_topic("t", b"", [1] * 5)
            rig.answer_all()
            for key, future in futures.items():
                # Even if the partition has no leader, since the key's records must keep their order.
                assert future.get(0).partition == partition_for_key(spec.key_hash, key, 5)


def test_a_key_has_no_effect_if_the_partitioner_ignores_keys() -> None:
    with Rig({"t": [1] * 5}, spec=ROUND_ROBIN) as rig:
        assert placed(rig, 5, key=b"same") == [0, 1, 2, 3, 4]


def test_records_with_an_explicit_partition_do_not_move_the_sticky_one() -> None:
    with Rig({"t": [1] * 20}, spec=STICKY, batch_size=1000) as rig:
        (sticky,) = placed(rig, 1, 10)
        for partition in range(20):
            rig.send("t", bytes(900), partition=partition)
        rig.answer_all()
        assert placed(rig, 1, 10) == [sticky]


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
