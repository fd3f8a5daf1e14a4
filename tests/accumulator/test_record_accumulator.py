"""Batches: growing, filling, lingering, gathering, and being sent early by flush, close or lack of memory."""

import selectors
import threading
import time

import pytest

from cyproducer.accumulator.metric_snapshot import read_producer
from tools.harness.reference_records import Record, batch_of, encode_batch
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running, until

KIB = 1024


# Growing


def test_a_large_batch_size_takes_no_memory_on_idle_partitions() -> None:
    with Rig({"t": [1] * 100}, batch_size=1 << 20, linger_ms=1000) as rig:
        for partition in range(100):
            rig.send("t", b"v", partition=partition)
        assert rig.pool.used_bytes == 100 * 512


def test_a_batch_grows_with_its_records_and_keeps_them() -> None:
    with Rig({"t": [1]}, batch_size=64 * KIB, linger_ms=1000) as rig:
        seen_sizes = []
        values = [bytes([i % 256]) * 100 for i in range(500)]
        for value in values:
            rig.send("t", value)
            seen_sizes.append(rig.pool.used_bytes)
        assert sorted(set(seen_sizes)) == [512 << k for k in range(8)]
        assert seen_sizes == sorted(seen_sizes)
        rig.advance_ms(1000)
        (seen,) = rig.requests()
        assert seen.values() == values
        rig.answer(seen)
        assert rig.pool.used_bytes == 0


def test_the_next_batch_starts_at_the_size_of_the_last() -> None:
    with Rig({"t": [1]}, batch_size=16 * KIB, linger_ms=1000) as rig:
        for _ in range(100):
            rig.send("t", bytes(100))
        rig.advance_ms(1000)
        rig.answer_all()
        rig.send("t", b"v")
        assert rig.pool.used_bytes == 16 * KIB


@pytest.mark.parametrize("batch_size", [0, 61, 500, 4000, 16384])
def test_a_batch_is_sent_when_it_is_full_and_is_not_larger_than_batch_size(batch_size: int) -> None:
    """A lone record is sent whatever its size; other records share a batch of up to ``batch_size``."""
    with Rig({"t": [1]}, batch_size=batch_size, linger_ms=1e6) as rig:
        for _ in range(1000):
            rig.send("t", bytes(50))
        rig.answer_all()
        acknowledged = len(rig.values("t"))
        counters = rig.accumulator.counters()
        lone = len(encode_batch(batch_of([Record(0, 0, None, bytes(50))])))
        assert read_producer(rig.accumulator).peak("batch_bytes") <= max(batch_size, lone)
        # The rest, less than a batch, lingers.
        assert (1000 - acknowledged) * 58 <= max(batch_size, 120)
        if batch_size >= 500:
            # Sealed when another record of this size might not have fitted, no earlier.
            assert counters["batch_bytes"] / counters["batches_sent"] > batch_size - 61 - 100
        else:
            assert counters["batches_sent"] == acknowledged


def test_a_record_larger_than_batch_size_gets_a_batch_of_its_own() -> None:
    with Rig({"t": [1]}, batch_size=1000, linger_ms=1000) as rig:
        for value in (b"a", bytes(5000), b"b"):
            rig.send("t", value)
        rig.advance_ms(1000)
        rig.answer_all()
        assert rig.values("t") == [b"a", bytes(5000), b"b"]
        assert rig.accumulator.counters()["batches_sent"] == 3


def test_a_batch_is_sent_instead_of_growing_if_memory_is_short() -> None:
    with Rig({"t": [1, 1]}, buffer_memory=16 * KIB, batch_size=64 * KIB, linger_ms=1e6) as rig:
        # 4 KiB of memory are left.
        leases = [rig.pool.acquire(size * KIB) for size in (8, 4)]
        rig.send("t", bytes(900), partition=0)
        rig.send("t", bytes(1900), partition=1)
        rig.send("t", bytes(900), partition=0)
        # The batch has grown to 2 KiB, and no memory is left.
        assert rig.pool.available_bytes == 0
        sending = Running(rig.send, "t", bytes(900), partition=0)
        until(lambda: rig.pool.waiting_threads == 1, "the wait for memory")
        (seen,) = rig.requests()
        assert [len(seen.values(partition)) for partition in (0, 1)] == [2, 1]
        rig.answer(seen)
        sending.outcome()
        assert rig.pool.peak_bytes <= 16 * KIB
        assert all(leases)


# Lingering


def test_a_batch_lingers_for_linger_ms_and_no_longer() -> None:
    with Rig({"t": [1]}, linger_ms=50) as rig:
        rig.send("t", b"1")
        rig.clock.advance_ms(49)
        assert rig.requests() == []
        rig.send("t", b"2")
        rig.clock.advance_ms(0.999)
        assert rig.requests() == []
        rig.clock.advance_ms(0.001)
        (seen,) = rig.requests()
        assert seen.values() == [b"1", b"2"]


def test_each_partition_lingers_by_itself() -> None:
    with Rig({"t": [1, 1, 1]}, linger_ms=50) as rig:
        for partition in (2, 0, 1):
            rig.send("t", b"v", partition=partition)
            rig.clock.advance_ms(13)
        # It is 39 ms now; the batches are due at 50, 63 and 76 ms.
        for partition, ms in ((2, 11), (0, 13), (1, 13)):
            rig.clock.advance_ms(ms - 0.5)
            assert rig.requests() == []
            rig.clock.advance_ms(0.5)
            (seen,) = rig.requests()
            assert seen.places == [("t", partition)]


def test_a_batch_at_the_end_of_its_linger_is_sent_along_with_another() -> None:
    with Rig({"t": [1, 1, 1]}, linger_ms=40) as rig:
        for partition, later_ms in ((0, 9.9), (1, 0.2), (2, 0)):
            rig.send("t", b"v", partition=partition)
            rig.clock.advance_ms(later_ms)
        rig.clock.advance_ms(29.9)
        (seen,) = rig.requests()
        assert seen.places == [("t", 0), ("t", 1)]
        rig.clock.advance_ms(10)
        assert rig.requests() == []
        rig.clock.advance_ms(0.1)
        (seen,) = rig.requests()
        assert seen.places == [("t", 2)]


def test_a_batch_that_waited_for_its_leader_lingers_no_longer_than_the_others() -> None:
    """Its linger starts with its first record, even if a batch of another partition started to linger before
    the leader was known."""
    with Rig({"t": [-1, 1]}, linger_ms=50) as rig:
        rig.send("t", b"old", partition=0)
        rig.clock.advance_ms(40)
        rig.send("t", b"young", partition=1)
        rig.sender.apply_topic("t", b"", [1, 1])
        assert rig.requests() == []
        rig.clock.advance_ms(10)
        (seen,) = rig.requests()
        assert seen.values() == [b"old"]
        rig.clock.advance_ms(40)
        (seen,) = rig.requests()
        assert seen.values() == [b"young"]


def test_the_sender_sleeps_through_a_linger_and_wakes_at_its_end() -> None:
    """The sender waits on its selector: the first record of a batch wakes it, the next ones do not."""
    asleep = threading.Event()

    class Telling(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is None or timeout > 0:
                asleep.set()
            return super().select(timeout)

    with Rig({"t": [1]}, linger_ms=50, selector=Telling()) as rig:
        rig.control.delay_ms = 1e6
        rig.connect(1)
        rig.requests()
        began = rig.sender.counters()["wakeups"]
        stepping = Running(rig.step, PATIENCE_S * 1000)
        assert asleep.wait(PATIENCE_S)
        rig.send("t", b"v")
        stepping.outcome()
        assert rig.sender.counters()["wakeups"] == began + 1
        rig.step()
        for _ in range(10):
            rig.send("t", b"v")
        rig.step()
        assert rig.sender.counters()["wakeups"] == began + 1


# Gathering: linger 0


def test_a_lone_record_is_sent_at_once() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v")
        assert len(rig.requests()) == 1


def test_records_gather_while_a_request_is_in_flight() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"1")
        (first,) = rig.requests()
        for i in (2, 3, 4):
            rig.send("t", b"%d" % i)
            assert rig.requests() == []
        rig.answer(first)
        (second,) = rig.requests()
        assert second.values() == [b"2", b"3", b"4"]


def test_gathering_ends_with_the_requests_that_were_in_flight_when_it_began() -> None:
    """Later requests do not prolong gathering: each record waits for at most one round trip."""
    with Rig({"t": [1, 1]}, batch_size=200) as rig:
        rig.send("t", b"1", partition=0)
        (first,) = rig.requests()
        rig.send("t", b"lone", partition=1)
        # A full batch is sent at once, even while gathering.
        for _ in range(4):
            rig.send("t", bytes(100), partition=0)
        (second, *_) = rig.requests()
        assert b"lone" not in second.values()
        rig.answer(first)
        (third, *_) = rig.requests()
        assert b"lone" in third.values()


def test_gathering_ends_when_the_connection_breaks() -> None:
    with Rig({"t": [1, 1]}) as rig:
        rig.send("t", b"1", partition=0)
        rig.requests()
        rig.send("t", b"2", partition=1)
        assert rig.requests() == []
        rig.cut(1)
        assert [seen.values() for seen in rig.requests()] == [[b"2"]]


@pytest.mark.parametrize("code", [0, 7])
def test_the_number_of_requests_in_flight_is_limited(code: int) -> None:
    # One batch for each of ten partitions: a retried batch would wait for its partition's other batches.
    with Rig({"t": [1] * 10}, batch_size=0, max_in_flight=3, max_request_size=110) as rig:
        for i in range(10):
            rig.send("t", b"%d" % i, partition=i)
        assert len(rig.requests()) == 3
        assert rig.sender.counters()["in_flight"] == 3
        rig.answer(rig.pending[0], code)
        rig.clock.advance_ms(100)  # the backoff of a retry
        assert len(rig.requests()) == 1
        assert rig.sender.counters()["in_flight"] == 3


# Sending early


def test_flush_sends_lingering_batches_and_returns_when_they_are_acknowledged() -> None:
    with Rig({"t": [1, 1]}, linger_ms=1e6) as rig:
        futures = [rig.send("t", b"v", partition=i) for i in range(2)]
        assert rig.requests() == []
        flush = Running(rig.accumulator.flush, PATIENCE_S)
        until(rig.requests, "the flushed batches")
        assert flush.running
        # A record sent during a flush does not linger either, but the flush does not wait for it.
        rig.send("t", b"late")
        (late,) = rig.requests()
        rig.answer(rig.pending[0])
        assert flush.outcome() is True
        assert all(f.succeeded() for f in futures)
        rig.answer(late)
        # After the flush, records linger again.
        rig.send("t", b"v")
        assert rig.requests() == []


def test_flush_sends_gathering_batches() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"1")
        rig.requests()
        rig.send("t", b"2")
        assert rig.requests() == []
        flush = Running(rig.accumulator.flush, PATIENCE_S)
        until(rig.requests, "the gathering batch")
        rig.answer_all()
        assert flush.outcome() is True


def test_flush_waits_for_records_without_metadata_too() -> None:
    with Rig(linger_ms=1e6) as rig:
        future = rig.send("t", b"v")
        assert rig.accumulator.flush(0.01) is False
        flush = Running(rig.accumulator.flush, PATIENCE_S)
        rig.sender.apply_topic("t", b"", [1])
        until(rig.requests, "the flushed batch")
        assert flush.running
        rig.answer_all()
        assert flush.outcome() is True
        assert future.succeeded()


def test_flush_times_out_and_returns_at_once_if_there_is_nothing_to_do() -> None:
    with Rig({"t": [1]}) as rig:
        assert rig.accumulator.flush(0) is True
        rig.send("t", b"v")
        began = time.monotonic()
        assert rig.accumulator.flush(0.1) is False
        assert 0.1 <= time.monotonic() - began < 5


def test_a_failed_batch_ends_a_flush() -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"v")
        flush = Running(rig.accumulator.flush, PATIENCE_S)
        (seen,) = rig.requests()
        rig.answer(seen, 29)
        assert flush.outcome() is True
        assert future.failed()


def test_close_sends_lingering_batches() -> None:
    with Rig({"t": [1]}, linger_ms=1e6) as rig:
        rig.send("t", b"v")
        rig.accumulator.close()
        assert rig.accumulator.closed
        (seen,) = rig.requests()
        # A retry after close does not linger either.
        rig.answer(seen, 7)
        rig.clock.advance_ms(100)
        assert len(rig.requests()) == 1


def test_after_close_records_that_could_not_be_sent_before_do_not_linger() -> None:
    with Rig({"t": [-1]}, linger_ms=1e6) as rig:
        rig.send("t", b"leaderless")
        rig.send("u", b"parked")
        rig.accumulator.close()
        assert rig.requests() == []
        for topic in "tu":
            rig.sender.apply_topic(topic, b"", [1])
        (seen,) = rig.requests()
        assert sorted(seen.places) == [("t", 0), ("u", 0)]


def test_a_shortage_of_memory_sends_lingering_batches() -> None:
    with Rig({"t": [1, 1]}, buffer_memory=2 * KIB, linger_ms=1e6) as rig:
        rig.send("t", bytes(900), partition=0)
        rig.send("t", b"v", partition=1)
        assert rig.requests() == []
        sending = Running(rig.send, "t", bytes(900), partition=0)
        until(lambda: rig.pool.waiting_threads == 1, "the wait for memory")
        (seen,) = rig.requests()
        assert sorted(seen.places) == [("t", 0), ("t", 1)]
        rig.answer(seen)
        sending.outcome()
