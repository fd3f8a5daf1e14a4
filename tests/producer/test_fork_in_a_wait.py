"""A signal's handler forks while ``get()`` waits: the child is amid a wait for the parent's record."""

import os
import signal
import threading
import warnings
from types import FrameType

import pytest

from cyproducer import errors
from tests.forked import needs_fork
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster
from tools.harness.until import until_blocked

pytestmark = needs_fork

REFUSED, NOT_REFUSED = 0, 1


@pytest.mark.parametrize("rows", [False, True], ids=["get() of a record", "get() of rows"])
def test_a_child_forked_in_the_middle_of_a_wait_does_not_go_on_with_it(rows: bool) -> None:
    held, waits = threading.Event(), threading.Event()
    parent, children = os.getpid(), []

    def fork(number: int, frame: FrameType | None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            children.append(pid)
            held.set()

    def interrupt() -> None:
        waits.wait(WAIT_S)
        until_blocked(threading.main_thread())
        os.kill(parent, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, fork)
    try:
        with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
            producer.send("orders", b"0").get(WAIT_S)
            cluster.act(PRODUCE, Act(hold=held))
            future = producer.send_many("orders", [b"1", b"2"]) if rows else producer.send("orders", b"1")
            cluster.wait_for_requests(PRODUCE, 2)
            interrupter = threading.Thread(target=interrupt)
            interrupter.start()
            status = NOT_REFUSED
            waits.set()
            try:
                # In the child, the record never gets an outcome.
                future.get(WAIT_S / 2)
            except errors.IllegalStateError:
                status = REFUSED
            finally:
                if os.getpid() != parent:
                    os._exit(status)
            interrupter.join(WAIT_S)
            assert future.is_done
            (child,) = children
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == REFUSED
            producer.flush(WAIT_S)
            assert cluster.topics["orders"].values == [b"0", b"1", *([b"2"] if rows else [])]
    finally:
        signal.signal(signal.SIGALRM, before)
