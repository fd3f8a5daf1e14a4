"""Threads in ``get()`` for records of one batch: each wakes the next one, even if some time out."""

import random
import threading
import time
from pathlib import Path

import pytest

from cyproducer.errors import KafkaTimeoutError
from cyproducer.futures.waiting import begin_sending
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running, until_blocked

LOOK_S = 0.05
"""How often a waiting thread checks for signals and for the outcome."""


class Waiting(threading.Thread):
    """Waits for one record of the batch."""

    def __init__(self, rig: Rig, timeout: float = PATIENCE_S) -> None:
        super().__init__()
        self.future = rig.send("t", b"v")
        self.timeout = timeout
        self.outcome: object = None

    def run(self) -> None:
        try:
            self.outcome = self.future.get(self.timeout).offset
        except KafkaTimeoutError:
            self.outcome = "late"


@pytest.mark.parametrize("threads", [1, 2, 3, 40])
@pytest.mark.slow
def test_all_threads_that_wait_for_a_batch_are_woken(threads: int) -> None:
    took = []
    for _ in range(10):
        with Rig({"t": [1]}) as rig:
            waiting = [Waiting(rig) for _ in range(threads)]
            for thread in waiting:
                thread.start()
            for thread in waiting:
                until_blocked(thread)
            began = time.monotonic()
            rig.answer_all()
            for thread in waiting:
                thread.join(PATIENCE_S)
            took.append(time.monotonic() - began)
            assert [thread.outcome for thread in waiting] == list(range(threads))
    # The threads also check by themselves, every LOOK_S. Without wake-ups, none of the ten rounds would be
    # this fast.
    assert min(took) < LOOK_S / 2


@pytest.mark.parametrize("leaving", [{0}, {2}, {4}, {0, 1}, {1, 3}, {3, 4}, {0, 1, 2, 3, 4}])
def test_remaining_waiters_are_woken_after_others_time_out(leaving: set[int]) -> None:
    with Rig({"t": [1]}) as rig:
        waiting = [Waiting(rig, 0.1 if number in leaving else PATIENCE_S) for number in range(5)]
        for thread in waiting:
            thread.start()
            until_blocked(thread)
        for number in leaving:
            waiting[number].join(PATIENCE_S)
        rig.answer_all()
        for thread in waiting:
            thread.join(PATIENCE_S)
        expected = ["late" if number in leaving else number for number in range(5)]
        assert [thread.outcome for thread in waiting] == expected


@pytest.mark.slow
def test_timeouts_while_the_outcome_arrives_leave_no_thread_asleep() -> None:
    rng = random.Random(1)
    met = set()
    for _ in range(60):
        with Rig({"t": [1]}) as rig:
            waiting = [Waiting(rig, rng.choice([PATIENCE_S, rng.uniform(0, 0.004)])) for _ in range(12)]
            for thread in waiting:
                thread.start()
            rig.answer_all()
            for thread in waiting:
                thread.join(PATIENCE_S)
            for number, thread in enumerate(waiting):
                assert thread.outcome == number or (thread.outcome == "late" and thread.timeout < PATIENCE_S)
                met.add(thread.outcome == "late")
    assert met == {True, False}


@pytest.mark.skipif(not Path("/proc/self/timerslack_ns").exists(), reason="the kernel reports no timer slack")
def test_the_sender_threads_timed_waits_have_no_slack() -> None:
    def look() -> str:
        begin_sending()
        return Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text()

    assert Running(look).outcome() == "1\n"
