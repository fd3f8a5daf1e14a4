"""Threads append to a partition's open batch under its own lock, until ``stop_appends`` ends that."""

import pytest

from cyproducer.errors import KafkaTimeoutError
from tools.harness.rig import Rig
from tools.harness.until import Running

MOST_SPARE = 4096


def fill(rig: Rig, *values: bytes) -> None:
    """Sends records to partition 0. From the second on, ``send()`` does not take the accumulator's mutex."""
    for value in values:
        rig.send("t", value, partition=0)


def test_records_are_counted_once_wherever_they_were_appended() -> None:
    with Rig({"t": [1]}, linger_ms=1000) as rig:
        fill(rig, b"1", b"2", b"3")
        assert [rig.accumulator.counters()["records_appended"] for _ in range(2)] == [3, 3]
        fill(rig, b"4", b"5")
        assert rig.accumulator.counters()["records_appended"] == 5


def test_a_batch_in_a_request_gets_no_more_records() -> None:
    with Rig({"t": [1]}) as rig:
        fill(rig, b"1", b"2")
        (first,) = rig.requests()
        fill(rig, b"3", b"4")
        rig.answer(first)
        (second,) = rig.requests()
        rig.answer(second)
        assert (first.values(), second.values()) == ([b"1", b"2"], [b"3", b"4"])


def test_a_batch_that_failed_of_age_gets_no_more_records() -> None:
    with Rig({"t": [1]}, auto_connect=False, delivery_timeout_ms=1000) as rig:
        fill(rig, b"1", b"2")
        rig.advance_ms(1001)
        rig.step()
        fill(rig, b"3", b"4")
        rig.connect(1)
        (request,) = rig.requests()
        rig.answer(request)
        assert request.values() == [b"3", b"4"]


@pytest.mark.parametrize("way", ["purged", "of a removed partition"])
def test_a_batch_that_was_failed_gets_no_more_records(way: str) -> None:
    with Rig({"t": [1]}, linger_ms=1000) as rig:
        fill(rig, b"1", b"2")
        if way == "purged":
            assert not rig.sender.purge(True, False, KafkaTimeoutError("purged"))
        else:
            # It is back with the next metadata.
            assert not rig.sender.fail_beyond("t", 0)
        fill(rig, b"3", b"4")
        rig.advance_ms(1001)
        (request,) = rig.requests()
        rig.answer(request)
        assert request.values() == [b"3", b"4"]


@pytest.mark.slow
def test_records_of_threads_that_fill_batches_while_they_are_drained_arrive_in_order() -> None:
    count, threads = 20_000, 3
    with Rig({"t": [1]}, batch_size=1024, buffer_memory=64 << 20) as rig:

        def run(number: int) -> None:
            for i in range(count):
                rig.send("t", b"%d %d" % (number, i), partition=0)

        senders = [Running(run, number) for number in range(threads)]
        while any(sender.running for sender in senders) or rig.accumulator.incomplete_batches:
            for request in rig.requests():
                rig.answer(request)
        arrived = [value.split() for value in rig.values("t") if value is not None]
        assert rig.accumulator.counters()["records_appended"] == count * threads
    for number in range(threads):
        assert [int(i) for thread, i in arrived if int(thread) == number] == list(range(count))


def test_a_future_keeps_its_outcome_while_the_batch_of_its_record_is_used_again() -> None:
    """A completed batch is kept for the next one, and so is its delivery unless a future refers to it."""
    with Rig({"t": [1, 1]}) as rig:
        kept = [rig.send("t", b"kept", partition=0)]
        rig.send("t", b"dropped", partition=1)
        rig.answer_all()
        for _ in range(3):
            rig.send("t", b"dropped", partition=1)
            kept.append(rig.send("t", b"kept", partition=0))
            rig.answer_all()
        assert [(future.get(0).partition, future.get(0).offset) for future in kept] == [
            (0, 0), (0, 1), (0, 2), (0, 3)
        ]  # fmt: skip


def test_only_so_many_completed_batches_are_kept() -> None:
    partitions = MOST_SPARE + 100
    with Rig({"t": [1] * partitions}) as rig:
        for partition in range(partitions):
            rig.send("t", b"v", partition=partition)
        rig.answer_all()
        assert rig.accumulator.spare_batches == MOST_SPARE
        rig.send("t", b"v", partition=0)
        assert rig.accumulator.spare_batches == MOST_SPARE - 1


# Timestamps where the clock that is read for each record lags behind the exact one


@pytest.mark.parametrize(
    ("read", "written"),
    [([0, -3, 2], [0, 0, 2]), ([0, -60_000], [0, -60_000])],
    ids=["lagging", "set back"],
)
def test_a_record_is_not_older_than_the_one_its_batch_began_with(read: list[int], written: list[int]) -> None:
    """The first record reads the exact clock, the second one that of the last tick, some milliseconds ago. A
    clock that was set back is followed."""
    with Rig({"t": [1]}, linger_ms=10) as rig:
        now_ms = rig.clock.unix_ms()
        for later_ms in read:
            rig.clock.set_unix_ms(now_ms + later_ms)
            rig.send("t", b"v")
        rig.advance_ms(10)
        (seen,) = rig.requests()
        (batch,) = seen.batches.values()
        assert [record.timestamp - now_ms for record in batch.records] == written
