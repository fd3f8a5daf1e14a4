"""An idle sender sleeps, wakes up for events that it must not miss, and keeps little memory."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cyproducer.errors import DeliveryTimeoutError
from tests.programs import needs_compiler, shared_library
from tests.scripted.compressors import SlowCompressor
from tests.scripted.sender_steps import NotingSelector, give
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running

ROOT = Path(__file__).parents[2]


def sleeping_rig(leader: int = 1, **options: Any) -> tuple[Rig, NotingSelector]:
    """A rig whose control plane has no work, with a delivery timeout of one minute."""
    selector = NotingSelector()
    given: dict[str, Any] = {"delivery_timeout_ms": 60_000, "request_timeout_ms": 100_000}
    rig = Rig({"t": [leader]}, selector=selector, **(given | options))
    rig.control.delay_ms = 1e6
    return rig, selector


# Sleeping


def test_a_sender_that_awaits_a_response_sleeps_until_the_oldest_batch_is_overdue() -> None:
    rig, selector = sleeping_rig()
    with rig:
        first = rig.send("t", b"1")
        rig.requests()
        rig.clock.advance_ms(7)
        second = rig.send("t", b"2")
        rig.step(1e6)
        assert selector.waits_ms[-1] == pytest.approx(60_000 - 7)
        rig.advance_ms(60_000 - 7 - 0.001)
        assert not first.is_done
        rig.advance_ms(0.001)
        assert isinstance(first.exception, DeliveryTimeoutError)
        assert not second.is_done
        rig.step(1e6)
        assert selector.waits_ms[-1] == pytest.approx(7)


@pytest.mark.parametrize("leader", [-1, 1])
def test_the_sender_wakes_up_for_the_timeout_of_a_batch_created_while_it_sleeps(leader: int) -> None:
    rig, selector = sleeping_rig(leader, auto_connect=False)
    with rig:
        rig.step(1e6)
        rig.step(1e6)
        assert selector.waits_ms[-1] == 60_000
        rig.clock.advance_ms(10)
        future = rig.send("t", b"1")
        for _ in range(4):
            rig.step(1e6)
        assert selector.waits_ms[-1] == 60_000
        rig.advance_ms(60_000)
        assert isinstance(future.exception, DeliveryTimeoutError)


def test_an_acknowledged_batch_does_not_wake_up_the_sender() -> None:
    rig, selector = sleeping_rig()
    with rig:
        rig.send("t", b"1")
        rig.answer_all()
        rig.clock.advance_ms(30_000)
        rig.step(1e6)
        assert selector.waits_ms[-1] == 60_000


def filling(rig: Rig) -> Running:
    """Fills a batch on another thread, which then has to compress it, and begins another."""
    return Running(lambda: [rig.send("t", bytes(150)) for _ in range(2)])


def test_a_compressed_batch_wakes_up_the_sender() -> None:
    slow = SlowCompressor()
    rig, selector = sleeping_rig(compressor=slow, batch_size=250, linger_ms=60_000)
    with rig:
        rig.step()
        rig.step()
        calls = filling(rig)
        assert slow.begun.wait(PATIENCE_S)
        # Handle the wake-ups so far: after this, only the end of compression can wake up the sender.
        rig.step()
        rig.step()
        before = rig.sender.counters()["wakeups"]

        def compress() -> None:
            slow.go_on.set()
            calls.outcome()

        selector.meanwhile = compress
        rig.step(1e6)
        selector.meanwhile = lambda: None
        assert not calls.running
        assert selector.waits_ms[-1] > 1000, "it did not sleep"
        assert rig.sender.counters()["wakeups"] == before + 1
        (request,) = rig.requests()
        assert request.places == [("t", 0)]


def test_a_batch_that_is_overdue_during_compression_is_checked_again() -> None:
    slow = SlowCompressor()
    # Nothing wakes the sender for a partition without a leader.
    rig, selector = sleeping_rig(-1, compressor=slow, batch_size=250, linger_ms=60_000)
    with rig:
        rig.step()
        calls = filling(rig)
        assert slow.begun.wait(PATIENCE_S)
        rig.advance_ms(60_001)
        rig.step(1e6)
        assert selector.waits_ms[-1] == 20
        slow.go_on.set()
        first, _ = calls.outcome()
        rig.advance_ms(20)
        assert isinstance(first.exception, DeliveryTimeoutError)


# The inbox


def whole(size: int) -> bytes:
    """A frame that matches no request, which is ignored with acks=0."""
    return size.to_bytes(4, "big") + bytes(size)


def trickle(rig: Rig, data: bytes) -> None:
    for at in range(0, len(data), 50_000):
        give(rig, data[at : at + 50_000])


@pytest.mark.parametrize("behind", [0, 2, 1000])
def test_the_memory_of_a_large_response_is_released(behind: int) -> None:
    with Rig({"t": [1]}, acks=0) as rig:
        rig.send("t", b"1")
        rig.requests()
        rest = whole(2000)
        for _ in range(3):
            trickle(rig, whole(700_000)[:-1])
            assert rig.sender.counters()["received_room"] > 700_000
            give(rig, bytes(1) + rest[:behind])
            assert rig.sender.counters()["received_room"] <= 65_536
            give(rig, rest[behind:])
        assert rig.control.broken == []
        give(rig, whole(2))
        assert [cause is None for _, cause in rig.control.broken] == [False], "frame boundaries were lost"


def test_an_inbox_that_is_filled_repeatedly_keeps_its_size() -> None:
    with Rig({"t": [1]}, acks=0) as rig:
        rig.send("t", b"1")
        rig.requests()
        for _ in range(3):
            give(rig, whole(40_000))
            assert rig.sender.counters()["received_room"] == 65_536


# The wake-up descriptor

RETIRING = """
import ctypes, sys, threading
sys.path.append(sys.argv[1])
from tools.harness.rig import Rig
from tools.harness.until import until

ENTERED, STAYED_OPEN = 2, 3
library = ctypes.CDLL(sys.argv[2])
with Rig({"t": [1]}) as rig:
    rig.control.delay_ms = 1e6
    rig.send("t", b"1")
    rig.answer_all()
    sleeping = threading.Thread(target=rig.step, args=(30_000,))
    sleeping.start()
    # The state follows the thread's name, which has spaces since CPython 3.14.
    stat = f"/proc/self/task/{sleeping.native_id}/stat"
    until(lambda: open(stat).read().rpartition(") ")[2].startswith("S"), "sleep")
    library.pause_next_write()
    # Wakes up the sender without the GIL, so that another thread can run meanwhile: with fewer rows, it would
    # keep the GIL.
    waking = threading.Thread(target=rig.path.send_many, args=("t", [b"2"] * 100))
    waking.start()
    until(lambda: library.paused_write() == ENTERED, "a wake-up")
    rig.sender.wake()
    sleeping.join()
    rig.close()
    waking.join()
    print("stayed open" if library.paused_write() == STAYED_OPEN else "closed meanwhile")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="replaces write() by preloading")
@needs_compiler
def test_no_thread_writes_to_the_wake_up_descriptor_after_it_is_closed(tmp_path: Path) -> None:
    """The number may belong to another file of the application by then."""
    library = shared_library(Path(__file__).with_name("pause_write.c"), tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", RETIRING, str(ROOT), str(library)],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(library)},
        timeout=50,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("stayed open\n", "")
