"""With linger_ms=0, a batch lingers for a while if records stream in, and not otherwise."""

from collections.abc import Iterator

import pytest

from tests.scripted.sender_steps import NotingSelector
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running, until, until_blocked

LINGER_MS = 0.5
FLOW = 256
"""This many records are a stream."""
FULL_FLOW = 1024
"""This many records linger for LINGER_MS; fewer linger for a shorter time."""
FADES_MS = 4.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig({"t": [1, 1], "far": [2]}, batch_size=1 << 16, stream_linger_ms=LINGER_MS) as rig:
        yield rig


def stream(rig: Rig, records: int = FULL_FLOW, partition: int = 0) -> None:
    for _ in range(records):
        rig.send("t", b"v", partition=partition)
    rig.advance_ms(LINGER_MS)
    rig.answer_all()


def lingers(rig: Rig, topic: str = "t", partition: int = 0, least_ms: float = 0.9 * LINGER_MS) -> bool:
    """Whether a single record lingers before it is sent. Acknowledges it in the end."""
    future = rig.send(topic, b"v", partition=partition)
    at_once = len(rig.requests())
    rig.clock.advance_ms(least_ms)
    assert rig.requests() == []
    rig.clock.advance_ms(1.1 * LINGER_MS - least_ms)
    assert len(rig.requests()) == 1 - at_once
    rig.answer_all()
    assert future.succeeded()
    return not at_once


def test_a_single_record_is_sent_at_once(rig: Rig) -> None:
    assert not any(lingers(rig) for _ in range(20))


def test_a_record_lingers_after_many_others(rig: Rig) -> None:
    stream(rig)
    assert lingers(rig)


def test_a_few_records_are_not_a_stream(rig: Rig) -> None:
    stream(rig, FLOW - 1)
    assert not lingers(rig)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_slower_stream_lingers_for_a_shorter_time(rig: Rig, share: float) -> None:
    """It would gather too few records to be worth the latency."""
    stream(rig, int(FULL_FLOW * share))
    rig.send("t", b"v", partition=0)
    assert rig.requests() == []
    rig.clock.advance_ms(0.9 * share * LINGER_MS)
    assert rig.requests() == []
    rig.clock.advance_ms(0.2 * share * LINGER_MS)
    assert len(rig.requests()) == 1


def test_a_batch_of_a_stream_takes_the_records_that_come_while_it_lingers(rig: Rig) -> None:
    stream(rig)
    sent = 0
    for _ in range(10):
        for _ in range(300):
            rig.send("t", b"v", partition=0)
            rig.clock.advance_ms(LINGER_MS / 300)
            sent += len(rig.requests())
    assert sent <= 10


def test_the_batches_of_a_stream_are_sent_together_however_young(rig: Rig) -> None:
    """Many partitions with few records each would otherwise need a request for every few records."""
    stream(rig)
    rig.send("t", b"old", partition=0)
    rig.clock.advance_ms(0.9 * LINGER_MS)
    rig.send("t", b"young", partition=1)
    assert rig.requests() == []
    rig.clock.advance_ms(0.1 * LINGER_MS)
    (seen,) = rig.requests()
    assert seen.values() == [b"old", b"young"]


def test_a_batch_of_a_stream_still_waits_for_the_requests_in_flight_when_it_was_created(rig: Rig) -> None:
    stream(rig)
    rig.send("t", b"1", partition=0)
    rig.clock.advance_ms(LINGER_MS)
    (first,) = rig.requests()
    rig.send("t", b"2", partition=1)
    rig.clock.advance_ms(2 * LINGER_MS)
    assert rig.requests() == []
    rig.answer(first)
    (second,) = rig.requests()
    assert second.values() == [b"2"]


def test_a_stream_counts_for_all_partitions_of_its_broker_and_for_no_other_broker(rig: Rig) -> None:
    stream(rig)
    assert lingers(rig, "t", 1)
    stream(rig)
    assert not lingers(rig, "far")


@pytest.mark.parametrize(("pause_ms", "expected"), [(0.1 * FADES_MS, True), (1.01 * FADES_MS, False)])
def test_a_stream_ends_after_a_pause(rig: Rig, pause_ms: float, expected: bool) -> None:
    stream(rig, 4 * FULL_FLOW)
    rig.clock.advance_ms(pause_ms)
    assert lingers(rig) is expected


def test_a_slow_trickle_after_a_stream_does_not_linger_for_long(rig: Rig) -> None:
    stream(rig, 2 * FULL_FLOW)
    lingered = 0
    for _ in range(20):
        lingered += lingers(rig, least_ms=0)
        rig.clock.advance_ms(FADES_MS / 4)
    assert 0 < lingered < 9


def test_the_next_record_is_sent_at_once_if_a_thread_waits_for_one_of_its_partition(rig: Rig) -> None:
    stream(rig)
    future = rig.send("t", b"v", partition=0)
    waiter = Running(future.get, PATIENCE_S)
    until_blocked(waiter.thread)
    rig.clock.advance_ms(2 * LINGER_MS)
    rig.answer_all()
    waiter.outcome()
    stream(rig, FULL_FLOW, partition=1)
    assert not lingers(rig, "t", 0)


def test_a_flush_and_a_full_batch_do_not_linger(rig: Rig) -> None:
    stream(rig)
    rig.send("t", bytes(1 << 15), partition=0)
    assert rig.requests() == []
    rig.send("t", bytes(1 << 15), partition=0)
    assert len(rig.requests()) == 1
    rig.answer_all()
    stream(rig)
    rig.send("t", b"v", partition=0)
    flush = Running(rig.accumulator.flush, PATIENCE_S)
    until(rig.requests, "the request")
    rig.answer_all()
    assert flush.outcome()


def test_the_sender_sleeps_no_longer_than_the_linger_of_a_stream() -> None:
    selector = NotingSelector()
    with Rig({"t": [1, 1]}, stream_linger_ms=LINGER_MS, selector=selector) as rig:
        rig.control.delay_ms = 1e6
        stream(rig)
        rig.send("t", b"v", partition=0)
        selector.waits_ms.clear()
        rig.step(1e6)
        assert selector.waits_ms == [pytest.approx(LINGER_MS)]
