"""Records that wait for their callbacks: ``send()`` waits if there are too many, and its error says why."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.futures.completion import CompletionQueue
from cyproducer.futures.delivery import RecordFuture
from tests.observability.measured import registry
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running, until, until_blocked

MOST = 200


class Backlog:
    """A rig whose callbacks run when the test runs them."""

    def __init__(self, max_block_ms: float = PATIENCE_S * 1000) -> None:
        self.queue = CompletionQueue(most=MOST)
        self.rig = Rig({"t": [1, 1]}, completions=self.queue, max_block_ms=max_block_ms)
        self.called = 0

    def count(self, outcome: Any) -> None:
        self.called += 1

    def fill(self, records: int, size: int = 10) -> None:
        """Sends ``records`` records with callbacks and acknowledges them, so that their callbacks are due."""
        for number in range(records):
            self.rig.send("t", bytes(size), partition=number % 2).add_both(self.count)
        self.rig.answer_all()

    def sending(self, topic: str = "t") -> Running:
        """Sends one record on a thread that has to wait."""
        sending = Running(self.rig.send, topic, b"later", partition=0)
        until_blocked(sending.thread)
        assert sending.running
        return sending


@pytest.fixture
def backlog() -> Iterator[Backlog]:
    made = Backlog()
    with made.rig:
        yield made


def test_the_backlog_counts_records(backlog: Backlog) -> None:
    backlog.fill(MOST - 1)
    backlog.rig.send("t", b"without a callback", partition=0)
    backlog.rig.answer_all()
    assert backlog.queue.backlog == MOST - 1
    two = backlog.rig.send("t", b"with two", partition=0)
    two.add_callback(backlog.count).add_both(backlog.count)
    backlog.rig.answer_all()
    assert backlog.queue.backlog == MOST
    backlog.rig.run_callbacks()
    assert (backlog.queue.backlog, backlog.called) == (0, MOST + 1)


def test_send_waits_until_callbacks_have_caught_up(backlog: Backlog) -> None:
    backlog.fill(MOST)
    sending = backlog.sending()
    backlog.rig.run_callbacks()
    assert isinstance(sending.outcome(), RecordFuture)
    assert backlog.queue.wait_time_ns > 0


def test_a_record_that_waited_for_callbacks_may_still_wait_for_metadata(backlog: Backlog) -> None:
    backlog.fill(MOST)
    sending = backlog.sending("unknown")
    backlog.rig.run_callbacks()
    future = sending.outcome()
    # The control plane fails the records that have waited for too long.
    backlog.rig.step()
    assert not future.is_done
    backlog.rig.sender.apply_topic("unknown", b"", [1])
    backlog.rig.answer_all()
    assert future.succeeded()


def test_many_rows_wait_too(backlog: Backlog) -> None:
    backlog.fill(MOST)
    sending = Running(backlog.rig.path.send_many, "t", [b"1", b"2"])
    until_blocked(sending.thread)
    assert sending.running
    backlog.rig.run_callbacks()
    assert len(sending.outcome()) == 2


def test_send_does_not_wait_below_the_limit(backlog: Backlog) -> None:
    backlog.fill(MOST - 1)
    backlog.rig.send("t", b"at once", partition=0)
    assert backlog.queue.wait_time_ns == 0


def test_the_error_says_that_callbacks_are_slow() -> None:
    backlog = Backlog(max_block_ms=30)
    with backlog.rig:
        backlog.fill(MOST)
        with pytest.raises(errors.BufferExhaustedError) as caught:
            backlog.rig.send("t", b"too early", partition=0)
    text = str(caught.value)
    for part in (
        "callbacks are slow",
        f"{MOST} records",
        f"max_pending_callbacks={MOST}",
        "max_block_ms=30",
        "'t'",
    ):
        assert part in text


def test_a_callback_that_sends_does_not_wait_for_itself() -> None:
    backlog = Backlog(max_block_ms=0)
    with backlog.rig:
        sent: list[RecordFuture] = []
        first = backlog.rig.send("t", b"first", partition=0)
        first.add_both(lambda _: sent.append(backlog.rig.send("t", b"again", partition=0)))
        backlog.fill(MOST)
        backlog.rig.run_callbacks()
        backlog.rig.answer_all()
        assert sent[0].succeeded()


def test_closing_ends_the_wait(backlog: Backlog) -> None:
    backlog.fill(MOST)
    sending = backlog.sending()
    backlog.rig.accumulator.close()
    with pytest.raises(errors.ProducerClosedError):
        sending.outcome()


def test_ctrl_c_ends_the_wait(backlog: Backlog) -> None:
    backlog.fill(MOST)
    main = threading.main_thread()

    def interrupt() -> None:
        until_blocked(main)
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGINT)

    interrupting = Running(interrupt)
    with pytest.raises(KeyboardInterrupt):
        backlog.rig.send("t", b"never", partition=0)
    interrupting.outcome()
    backlog.rig.run_callbacks()
    backlog.rig.send("t", b"later", partition=0)


def test_callbacks_of_a_batch_that_was_split_are_counted_once(backlog: Backlog) -> None:
    too_large = 10
    for _ in range(4):
        backlog.rig.send("t", bytes(100), partition=0).add_both(backlog.count)
    (seen,) = backlog.rig.requests()
    backlog.rig.answer(seen, too_large)
    assert backlog.queue.backlog == 0
    backlog.rig.answer_all()
    assert backlog.queue.backlog == 4
    backlog.rig.run_callbacks()
    assert (backlog.queue.backlog, backlog.called) == (0, 4)


def test_metrics_report_depth_and_lag(backlog: Backlog) -> None:
    backlog.fill(3)

    def metric(name: str) -> float:
        return registry(backlog.rig).snapshot()["producer-metrics"][name]

    assert metric("callback-queue-size") == 3
    lag_ms = metric("callback-queue-lag")
    assert lag_ms > 0
    until(lambda: metric("callback-queue-lag") > lag_ms, "a longer lag")
    backlog.rig.run_callbacks()
    assert metric("callback-queue-size") == metric("callback-queue-lag") == 0


def test_the_lag_counts_while_a_callback_runs(backlog: Backlog) -> None:
    seen: list[int] = []
    backlog.rig.send("t", b"1", partition=0).add_both(lambda _: seen.append(backlog.queue.lag_ns))
    backlog.rig.answer_all()
    backlog.rig.run_callbacks()
    assert seen[0] > 0


@pytest.mark.parametrize("most", [0, -1])
def test_the_limit_is_at_least_one(most: int) -> None:
    with pytest.raises(ValueError, match=f"most={most}: must be >= 1"):
        CompletionQueue(most=most)
