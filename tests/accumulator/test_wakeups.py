"""A waiting thread is woken by the event, not by a timeout, and Ctrl-C interrupts its wait.

Every wait checks for signals each 50 ms, and would end then even without a wake-up. So each test measures
several waits, and the shortest must be well below 50 ms: a busy machine does not slow down all of them.
"""

import selectors
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from cyproducer.accumulator.buffer_pool import BufferPool
from tests.scripted.compressors import ScriptedCompressor
from tests.scripted.sender_steps import NotingSelector
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running, interrupted, until, until_blocked

TRIES = 8
SLICE_S = 0.05


def quickest(wait: Callable[[], object], event: Callable[[], object], ready: Callable[[], object]) -> float:
    """The shortest of several times from ``event()`` to the end of ``wait()`` on another thread."""
    times: list[float] = []
    for _ in range(TRIES):
        waiting = Running(lambda: (wait(), time.perf_counter()))
        until(ready, "the wait")
        until_blocked(waiting.thread)
        began = time.perf_counter()
        event()
        _, ended = waiting.outcome()
        times.append(ended - began)
        assert times[-1] > 0, "it did not wait"
    return min(times)


def test_a_future_wakes_its_waiting_thread() -> None:
    with Rig({"t": [1]}) as rig:
        futures = [rig.send("t", b"v")]

        def event() -> None:
            rig.answer_all()
            futures.append(rig.send("t", b"v"))

        took = quickest(lambda: futures[-1].get(PATIENCE_S), event, lambda: True)
    assert took < SLICE_S / 3


def test_a_flush_ends_with_the_last_acknowledgement() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v")

        def event() -> None:
            rig.answer_all()
            rig.send("t", b"v")

        took = quickest(lambda: rig.accumulator.flush(PATIENCE_S), event, lambda: True)
    assert took < SLICE_S / 3


def test_a_flush_ends_with_the_last_parked_record() -> None:
    with Rig() as rig:
        rig.send("t", b"v")

        def event() -> None:
            rig.sender.fail_parked("t", ValueError())
            rig.send("t", b"v")

        took = quickest(lambda: rig.accumulator.flush(PATIENCE_S), event, lambda: True)
    assert took < SLICE_S / 3


def test_released_memory_wakes_its_waiting_thread() -> None:
    pool = BufferPool(512)
    held = [pool.acquire(512)]

    def event() -> None:
        lease = held.pop()
        assert lease is not None
        lease.release()

    took = quickest(
        lambda: held.append(pool.acquire(512, PATIENCE_S)), event, lambda: pool.waiting_threads == 1
    )
    assert took < SLICE_S / 3


def test_a_completion_wakes_the_callback_thread() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v").add_callback(str)

        def event() -> None:
            rig.answer_all()
            rig.send("t", b"v").add_callback(str)

        took = quickest(lambda: rig.completions.run_next(PATIENCE_S), event, lambda: True)
        assert took < SLICE_S / 3


def test_the_end_of_the_callbacks_wakes_a_waiting_thread() -> None:
    with Rig({"t": [1]}) as rig:

        def wait() -> None:
            rig.send("t", b"v").add_callback(str)
            rig.answer_all()
            assert rig.completions.wait_idle(PATIENCE_S)

        took = quickest(wait, rig.run_callbacks, lambda: not rig.completions.wait_idle(0))
    assert took < SLICE_S / 3


@pytest.mark.parametrize("what", ["flush", "wait_idle"])
def test_a_signal_ends_the_wait(what: str) -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"v").add_callback(str)
        if what == "wait_idle":
            rig.answer_all()
        wait = rig.accumulator.flush if what == "flush" else rig.completions.wait_idle
        with interrupted():
            wait(PATIENCE_S)
        # The interrupted wait has no lasting effect: records gather again.
        rig.answer_all()
        assert future.succeeded()
        rig.run_callbacks()
        rig.send("t", b"1")
        rig.requests()
        rig.send("t", b"2")
        assert rig.requests() == []


class Sleeper(selectors.DefaultSelector):
    """Calls ``asleep`` once, when the sender is about to wait for events."""

    asleep: Callable[[], object] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.asleep is not None:
            asleep, self.asleep = self.asleep, None
            asleep()
        return super().select(timeout)


@pytest.mark.parametrize("compressor", [None, ScriptedCompressor(bytes)])
def test_a_full_batch_wakes_a_sleeping_sender(compressor: object) -> None:
    """With a codec, once the batch is compressed. Neither this batch nor the next one has lingered."""
    selector = Sleeper()
    with Rig({"t": [1]}, batch_size=200, linger_ms=1e6, compressor=compressor, selector=selector) as rig:
        rig.connect(1)
        rig.send("t", b"first")
        for _ in range(3):
            rig.step()
        woken: list[bool] = []

        def fill() -> None:
            before = rig.sender.counters()["wakeups"]
            rig.send("t", bytes(180))
            ready = selectors.DefaultSelector.select(selector, 0)
            woken.append(len(ready) == 1)
            assert rig.sender.counters()["wakeups"] in (before, before + 1)

        selector.asleep = fill
        rig.step(10_000)
        assert woken == [True]
        assert len(rig.requests()) == 1


@pytest.mark.slow
def test_futures_have_failed_when_no_batch_is_incomplete() -> None:
    """A flush ends when a failed batch is removed from the incomplete ones; its futures must be done before.

    No Python code runs between the two. But when a thread releases the GIL in between, a thread that has
    waited for its switch interval takes it. In this test such a thread always waits, and looks: removing the
    batch takes long, because thousands of metrics windows start at once then.
    """
    windows = 4000
    interval = sys.getswitchinterval()
    pending: list[Any] = []
    looks: set[tuple[bool, bool]] = set()
    stopping = threading.Event()

    def decide(*facts: Any) -> tuple[float | None, Exception]:
        rig.clock.advance_ms(windows)
        return None, facts[3]

    with Rig({"t": [1]}, samples=windows, sample_window_ms=1) as rig:
        accumulator = rig.accumulator
        rig.fates.hook = decide

        def watch() -> None:
            while not stopping.is_set():
                for future in pending[:1]:
                    # In this order: the incomplete batches first.
                    looks.add((accumulator.incomplete_batches == 0, future.is_done))

        sys.setswitchinterval(1e-6)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            deadline = time.monotonic() + PATIENCE_S
            rounds = 0
            # More rounds until the watcher has looked in the middle of one: else the test shows nothing.
            while rounds < 50 or (False, False) not in looks:
                assert time.monotonic() < deadline, "the other thread never looked at a batch in flight"
                rounds += 1
                pending.append(rig.send("t", b"v"))
                (seen,) = rig.requests()
                rig.answer(seen, 29)
                pending.clear()
                assert (True, False) not in looks, "the batch was removed before the future was done"
        finally:
            stopping.set()
            sys.setswitchinterval(interval)
            watcher.join(PATIENCE_S)


def test_the_sender_sleeps_no_longer_than_the_oldest_batch_lingers() -> None:
    """It would wake up each 20 ms anyway, to look for batches that have timed out."""
    selector = NotingSelector()
    with Rig({"t": [1, 1]}, linger_ms=8, selector=selector) as rig:
        rig.control.delay_ms = 1e6
        rig.connect(1)
        rig.send("t", b"v", partition=0)
        rig.clock.advance_ms(3)
        rig.send("t", b"v", partition=1)
        for _ in range(3):
            rig.step()
        rig.step(10_000)
        assert selector.waits_ms[-1] == pytest.approx(5)


def test_the_first_record_after_a_broker_had_no_work_has_it_connected() -> None:
    """The control plane is called once while there is work for a broker without a connection, and once again
    when there is work after there was none."""
    with Rig({"t": [1]}, auto_connect=False, delivery_timeout_ms=1000) as rig:
        rig.control.delay_ms = 1e9
        called: list[list[int]] = []
        tick = rig.control.tick

        def noting(now_ms: float) -> float:
            called.append(rig.sender.nodes_without_connection())
            return tick(now_ms)

        rig.control.tick = noting  # type: ignore[method-assign]
        overdue = rig.send("t", b"1")
        for _ in range(3):
            rig.step()
        assert [1] in called
        rig.advance_ms(1001)
        rig.step()
        assert overdue.failed()
        called.clear()
        rig.send("t", b"2")
        for _ in range(3):
            rig.step()
        assert [1] in called
