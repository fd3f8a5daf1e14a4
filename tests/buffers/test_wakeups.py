"""Whoever waits is woken by the event, not by the clock; and Ctrl-C is heard meanwhile.

Every wait looks for signals each 50 ms, and would end then at the latest even if nobody woke it. So each is
tried a few times, and the quickest has to be well below that: a busy machine does not make all of them slow.
"""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest

from cyproducer.buffers.buffer_pool import BufferPool
from tests.rig import Rig
from tests.until import PATIENCE_S, until, until_blocked

TRIES = 8
SLICE_S = 0.05


def quickest(wait: Callable[[], object], event: Callable[[], object], ready: Callable[[], object]) -> float:
    """The shortest time, of a few, from ``event()`` to the end of ``wait()`` on another thread."""
    times = []
    for _ in range(TRIES):
        ended: list[float] = []

        def waiting(ended: list[float] = ended) -> None:
            wait()
            ended.append(time.perf_counter())

        thread = threading.Thread(target=waiting)
        thread.start()
        until(ready, "the wait")
        until_blocked(thread)
        began = time.perf_counter()
        event()
        thread.join(PATIENCE_S)
        times.append(ended[0] - began)
        assert times[-1] > 0, "it did not wait"
    return min(times)


def test_a_future_wakes_who_waits_for_it() -> None:
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


def test_memory_that_comes_back_wakes_who_waits_for_it() -> None:
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


def test_the_thread_for_callbacks_is_woken_by_a_completion() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v").add_callback(str)

        def event() -> None:
            rig.answer_all()
            rig.send("t", b"v").add_callback(str)

        took = quickest(lambda: rig.completions.run_next(PATIENCE_S), event, lambda: True)
        assert took < SLICE_S / 3


def test_the_end_of_the_callbacks_wakes_who_waits_for_it() -> None:
    with Rig({"t": [1]}) as rig:

        def wait() -> None:
            rig.send("t", b"v").add_callback(str)
            rig.answer_all()
            assert rig.completions.wait_idle(PATIENCE_S)

        took = quickest(wait, rig.run_callbacks, lambda: not rig.completions.wait_idle(0))
    assert took < SLICE_S / 3


class InterruptedWaitError(Exception):
    pass


@pytest.mark.parametrize("what", ["flush", "wait_idle"])
def test_a_signal_ends_the_wait(what: str) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise InterruptedWaitError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with Rig({"t": [1]}) as rig:
            future = rig.send("t", b"v").add_callback(str)
            if what == "wait_idle":
                rig.answer_all()
            wait = rig.accumulator.flush if what == "flush" else rig.completions.wait_idle
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            began = time.monotonic()
            with pytest.raises(InterruptedWaitError):
                wait(PATIENCE_S)
            assert time.monotonic() - began < PATIENCE_S / 2
            # Nothing is left of the interrupted wait: records gather again.
            rig.answer_all()
            assert future.succeeded()
            rig.run_callbacks()
            rig.send("t", b"1")
            rig.requests()
            rig.send("t", b"2")
            assert rig.requests() == []
    finally:
        signal.signal(signal.SIGALRM, before)
