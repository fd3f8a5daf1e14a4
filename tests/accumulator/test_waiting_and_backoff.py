"""A waiter that leaves from the middle or the end of the line, a flush of parked records, two backoffs."""

import os
from collections.abc import Iterator

import pytest

from cyproducer.accumulator.buffer_pool import BufferPool, Ticket
from tools.harness.rig import HookResult, Rig
from tools.harness.until import PATIENCE_S, Running, until


@pytest.fixture
def notify_fd() -> Iterator[int]:
    reader, writer = os.pipe()
    yield writer
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_whoever_joins_after_one_has_left_is_served(leaving: int, notify_fd: int) -> None:
    """Had the line kept a pointer to who left its end, the next to join would be in no line."""
    pool = BufferPool(2048)
    lease = pool.acquire(2048)
    assert lease is not None
    tickets = [Ticket(pool, 512, notify_fd) for _ in range(3)]
    left = tickets.pop(leaving)
    left.cancel()
    tickets.append(Ticket(pool, 512, notify_fd))
    lease.release()
    assert [ticket.granted for ticket in tickets] == [True, True, True]
    assert (pool.used_bytes, pool.waiting_threads) == (1536, 3)
    for ticket in tickets:
        ticket.cancel()
    assert (pool.used_bytes, pool.waiting_threads) == (0, 0)


def test_a_flush_waits_for_the_batch_that_a_parked_record_went_into() -> None:
    """That batch has a later number than the flush began with."""
    with Rig() as rig:
        future = rig.send("t", b"parked")
        flush = Running(lambda: (rig.accumulator.flush(PATIENCE_S), future.is_done))
        until(lambda: "t" in rig.sender.parked_topics(), "the parked record")
        flush.thread.join(0.1)
        assert flush.running
        rig.sender.apply_topic("t", b"", [1])
        (seen,) = rig.requests()
        # Placing it has woken the flush.
        flush.thread.join(0.1)
        assert flush.running
        rig.answer(seen)
        assert flush.outcome() == (True, True)


def test_a_shorter_backoff_of_a_later_batch_does_not_end_that_of_an_earlier_one() -> None:
    """Both are batches of one partition, and the earlier one goes first."""
    waits_ms = iter([500.0, 100.0])

    def hook(topic: str, partition: int, attempts: int, error: Exception, now_ms: float) -> HookResult:
        return now_ms + next(waits_ms), None

    with Rig({"t": [1]}) as rig:
        rig.fates.hook = hook
        rig.send("t", b"1")
        (first,) = rig.requests()
        rig.send("t", b"2")
        # It would gather until the first is answered.
        rig.accumulator.flush(0)
        (second,) = rig.requests()
        rig.answer(first, error=7)
        rig.answer(second, error=7)
        rig.advance_ms(101)
        assert rig.requests() == []
        rig.advance_ms(398)
        assert rig.requests() == []
        rig.advance_ms(1)
        rig.answer_all()
        assert rig.values("t") == [b"1", b"2"]
