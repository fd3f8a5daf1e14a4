"""Producers that nobody closes: collected, or there when the process ends."""

import gc
import selectors
import threading
import time
from typing import Any

import pytest

from cyproducer.producer import KafkaProducer
from tests.network.odd_servers import refusing_address
from tests.network.producing import WAIT_S, options
from tests.network.scripted_broker import PRODUCE, Act, ScriptedCluster
from tests.programs import run_to_exit

pytestmark = pytest.mark.timeout(60)


# What nobody closed


def test_a_producer_that_is_collected_drains() -> None:
    with ScriptedCluster(orders=1) as cluster:
        producer = KafkaProducer(**options(cluster, linger_ms=200))
        thread = producer._machinery.thread
        future = producer.send("orders", b"1")
        del producer
        assert future.get(0).offset == 0
        assert not thread.is_alive()


class CollectingSelector(selectors.SelectSelector):
    """Runs the cycle collector on the sender's thread, once it is asked to."""

    collect = threading.Event()
    collected = threading.Event()

    def select(self, timeout: float | None = None) -> Any:
        if self.collect.is_set() and not self.collected.is_set():
            gc.collect()
            self.collected.set()
        return super().select(timeout)


@pytest.mark.parametrize("where", ["sender", "callback"])
def test_a_producer_that_is_collected_on_a_thread_of_its_own_drains(where: str) -> None:
    CollectingSelector.collect.clear()
    CollectingSelector.collected.clear()
    held = threading.Event()
    gc.disable()
    try:
        with ScriptedCluster(orders=1) as cluster:
            producer = KafkaProducer(
                **options(cluster, selector=CollectingSelector, close_timeout_ms=2 * WAIT_S * 1000)
            )
            thread = producer._machinery.thread
            producer.send("orders", b"0").get(WAIT_S)
            collected = threading.Event()
            if where == "callback":
                first = producer.send("orders", b"1")
                cycle: list[Any] = [producer]
                cycle.append(cycle)
                ready = threading.Event()

                def collect(metadata: Any) -> None:
                    assert ready.wait(WAIT_S)
                    gc.collect()
                    collected.set()

                first.add_callback(collect)
            cluster.act(PRODUCE, Act(hold=held))
            last = producer.send("orders", b"2")
            if where == "callback":
                del cycle, producer
                ready.set()
                held.set()
                assert collected.wait(WAIT_S)
            else:
                cycle = [producer]
                cycle.append(cycle)
                del cycle, producer
                CollectingSelector.collect.set()
                held.set()
                assert CollectingSelector.collected.wait(WAIT_S)
            assert last.get(WAIT_S).topic == "orders"
            thread.join(WAIT_S)
            assert not thread.is_alive()
    finally:
        gc.enable()


SENDS = """
import logging, sys
from cyproducer.producer import KafkaProducer
logging.basicConfig()
servers, close_timeout_ms = sys.argv[1].split(","), int(sys.argv[2])
producer = KafkaProducer(bootstrap_servers=servers, close_timeout_ms=close_timeout_ms, linger_ms=50)
for i in range(1000):
    producer.send("orders", b"%d" % i)
"""


def test_the_exit_of_a_process_that_does_not_close_delivers_everything() -> None:
    with ScriptedCluster(orders=1) as cluster:
        done = run_to_exit(SENDS, ",".join(cluster.bootstrap_servers), "20000")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert cluster.topics["orders"].values == [b"%d" % i for i in range(1000)]


def test_the_exit_of_a_process_says_what_was_lost() -> None:
    began = time.monotonic()
    done = run_to_exit(SENDS, refusing_address(), "500")
    assert time.monotonic() - began < 30
    assert done.returncode == 0
    assert "1000 records were lost" in done.stderr
