"""Tests of the model: a broker's rules for sequences, records lost in a leader change, and simulated time."""

import os

import pytest

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.partitions import Entry, Header, Partition
from tests.simulation.world import START_NS, SpinningError, World, WorldSelector


def partition_with(*batches: Header) -> Partition:
    partition = Partition("t", 0, 1)
    for batch in batches:
        assert partition.check(batch, False, False) == (ErrorCode.NO_ERROR, None)
        partition.append(batch, b"", START_NS)
    return partition


def judged(partition: Partition, batch: Header, old: bool = False, tells: bool = False) -> tuple[int, int]:
    """Returns the error, and the offset of the batch that is already in the log."""
    code, entry = partition.check(batch, old, tells)
    return code, -1 if entry is None else entry.offset


def test_sequences_continue_after_the_last_batch() -> None:
    partition = partition_with(Header(3, 7, 0, 0), Header(1, 7, 0, 3))
    assert judged(partition, Header(1, 7, 0, 4)) == (ErrorCode.NO_ERROR, -1)
    assert judged(partition, Header(1, 7, 0, 5)) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert judged(partition, Header(2, 7, 0, 2)) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    # Another producer has its own sequences.
    assert judged(partition, Header(1, 8, 0, 0)) == (ErrorCode.NO_ERROR, -1)


def test_sequences_wrap() -> None:
    partition = partition_with(Header(3, 7, 0, 2**31 - 2))
    assert judged(partition, Header(1, 7, 0, 1)) == (ErrorCode.NO_ERROR, -1)
    assert judged(partition, Header(1, 7, 0, 0)) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_a_partition_can_be_moved_to_the_end_of_the_sequences() -> None:
    partition = partition_with(Header(3, 7, 0, 0))
    assert partition.can_wind
    partition.wind(2**31 - 2)
    for _ in range(2):
        assert judged(partition, Header(2, 7, 0, 2**31 - 1)) == (ErrorCode.NO_ERROR, -1)
        assert judged(partition, Header(1, 7, 0, 3)) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        # Another leader knows it too, from its log.
        partition.entries.append(Entry(3, Header(1, 8, 0, 0), b""))
        partition.elect(2, 3, START_NS)
    assert not partition_with().can_wind


def test_the_last_five_batches_are_recognised() -> None:
    batches = [Header(2, 7, 0, 2 * i) for i in range(6)]
    partition = partition_with(*batches)
    assert [judged(partition, batch) for batch in batches[1:]] == [
        (ErrorCode.NO_ERROR, 2 * i) for i in range(1, 6)
    ]
    assert judged(partition, batches[0]) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert judged(partition, batches[0], tells=True) == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 0)
    assert judged(partition, batches[4], tells=True) == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 8)
    assert judged(partition, batches[5], tells=True) == (ErrorCode.NO_ERROR, 10)
    assert judged(partition, Header(1, 7, 0, 0), tells=True) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_an_epoch_starts_with_sequence_zero_and_ends_the_previous_one() -> None:
    partition = partition_with(Header(1, 7, 3, 0))
    assert judged(partition, Header(1, 7, 4, 0)) == (ErrorCode.NO_ERROR, -1)
    assert judged(partition, Header(1, 7, 4, 1)) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert judged(partition, Header(1, 7, 2, 0)) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


def test_an_unknown_producer_may_start_with_any_sequence_except_with_old_brokers() -> None:
    partition = partition_with()
    assert judged(partition, Header(1, 7, 0, 9)) == (ErrorCode.NO_ERROR, -1)
    assert judged(partition, Header(1, 7, 0, 9), old=True) == (ErrorCode.UNKNOWN_PRODUCER_ID, -1)
    assert judged(partition, Header(1, 7, 0, 0), old=True) == (ErrorCode.NO_ERROR, -1)


def test_a_leader_change_loses_unreplicated_batches_and_their_producer_states() -> None:
    partition = partition_with(Header(1, 7, 0, 0), Header(1, 7, 0, 1), Header(1, 8, 0, 0))
    told: list[int] = []
    partition.sync(0, 1)
    partition.wait_synced(1, told.append)
    assert told == [ErrorCode.NO_ERROR]
    partition.wait_synced(2, told.append)
    assert partition.elect(2, 0, START_NS) == 2
    assert told == [ErrorCode.NO_ERROR, ErrorCode.NOT_LEADER_FOR_PARTITION]
    assert [entry.offset for entry in partition.entries] == [0]
    assert [entry.header.producer_id for entry in partition.lost] == [7, 8]
    assert list(partition.producers) == [7]
    assert judged(partition, Header(1, 7, 0, 1)) == (ErrorCode.NO_ERROR, -1)
    # The old leader's followers no longer count.
    partition.append(Header(1, 7, 0, 1), b"", START_NS)
    partition.sync(0, 2)
    assert partition.synced == 1


def test_events_run_in_the_order_of_their_times_and_of_their_scheduling() -> None:
    world, seen = World(1), list[str]()
    world.after(2, seen.append, "late")
    world.after(1, seen.append, "first")
    world.after(1, seen.append, "second")
    world.run_out()
    assert seen == ["first", "second", "late"]
    assert world.now_ns == START_NS + 2_000_000 == world.clock.monotonic_ns()


def test_a_selector_waits_in_simulated_time() -> None:
    world = World(1)
    read_end, write_end = os.pipe()
    with WorldSelector(world) as selector:
        selector.register(read_end, 1)
        world.after(7, os.write, write_end, b"x")
        assert selector.select(0.005) == []
        assert world.now_ms == 5
        assert [key.fd for key, _ in selector.select(1)] == [read_end]
        assert world.now_ms == 7
    os.close(read_end)
    os.close(write_end)


def test_spinning_is_detected() -> None:
    def ask() -> None:
        for _ in range(2000):
            selector.select(0)

    with WorldSelector(World(1)) as selector, pytest.raises(SpinningError):
        ask()
