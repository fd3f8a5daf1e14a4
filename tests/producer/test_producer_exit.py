"""Producers that are never closed: collected, or open when the process ends."""

import gc
import threading
import time
from typing import Any

import pytest

from cyproducer.errors import KafkaTimeoutError
from cyproducer.producer import KafkaProducer
from tests.programs import run_to_exit
from tests.scripted.odd_servers import is_silent, odd_server, refusing_address
from tests.scripted.producing import WAIT_S, CollectingSelector, await_end_of_threads, options
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster
from tools.harness.until import until

# Unclosed producers


def test_a_collected_producer_drains(cluster: ScriptedCluster) -> None:
    # The collection waits for neither the linger nor the response.
    held = threading.Event()
    cluster.act(PRODUCE, Act(hold=held))
    producer = KafkaProducer(
        **options(cluster, linger_ms=60_000, delivery_timeout_ms=90_000, close_timeout_ms=WAIT_S * 1000)
    )
    thread = producer._runtime.thread
    future = producer.send("orders", b"1")
    del producer
    cluster.wait_for_requests(PRODUCE, 1)
    assert not future.is_done
    assert thread.is_alive()
    held.set()
    assert future.get(WAIT_S).offset == 0
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_wait_for_a_temporary_producers_record_times_out() -> None:
    with odd_server(is_silent) as server:
        before = set(threading.enumerate())
        began = time.monotonic()
        with pytest.raises(KafkaTimeoutError, match="may still be delivered"):
            KafkaProducer(**options(bootstrap_servers=server)).send("orders", b"1").get(timeout=0.3)
        assert 0.3 <= time.monotonic() - began < WAIT_S / 2
        # It goes on closing, for close_timeout_ms.
        gc.collect()
        await_end_of_threads(before)


TEMPORARY = """
import logging, sys
from cyproducer.errors import KafkaTimeoutError
from cyproducer.producer import KafkaProducer
logging.basicConfig()
try:
    KafkaProducer(bootstrap_servers=sys.argv[1:], close_timeout_ms=20_000, linger_ms=60_000,
                  delivery_timeout_ms=100_000).send("orders", b"1").get(timeout=0)
except KafkaTimeoutError:
    print("not yet")
"""


def test_the_exit_keeps_draining_a_collected_producer(cluster: ScriptedCluster) -> None:
    done = run_to_exit(TEMPORARY, *cluster.bootstrap_servers)
    assert (done.returncode, done.stdout, done.stderr) == (0, "not yet\n", "")
    assert cluster.topics["orders"].values == [b"1"]


LOSING = """
import logging, sys
from cyproducer.producer import KafkaProducer
logging.basicConfig()
KafkaProducer(bootstrap_servers=sys.argv[1:], close_timeout_ms=500).send("orders", b"1")
"""


@pytest.mark.slow
def test_the_exit_reports_the_losses_of_a_collected_producer() -> None:
    done = run_to_exit(LOSING, refusing_address())
    assert done.returncode == 0
    assert done.stderr.count("lost 1 record:") == 1


@pytest.mark.parametrize("where", ["sender", "callback"])
def test_a_producer_collected_on_one_of_its_threads_drains(where: str) -> None:
    CollectingSelector.collect.clear()
    CollectingSelector.collected.clear()
    held = threading.Event()
    gc.disable()
    try:
        with ScriptedCluster(orders=1) as cluster:
            producer = KafkaProducer(
                **options(cluster, selector=CollectingSelector, close_timeout_ms=2 * WAIT_S * 1000)
            )
            thread = producer._runtime.thread
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


def test_the_exit_of_a_process_without_close_delivers_everything(cluster: ScriptedCluster) -> None:
    done = run_to_exit(SENDS, ",".join(cluster.bootstrap_servers), "20000")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert cluster.topics["orders"].values == [b"%d" % i for i in range(1000)]


@pytest.mark.slow
def test_the_exit_of_a_process_reports_losses() -> None:
    began = time.monotonic()
    done = run_to_exit(SENDS, refusing_address(), "500")
    assert time.monotonic() - began < 30
    assert done.returncode == 0
    assert "lost 1,000 records" in done.stderr


SEVERAL = """
import logging, sys
from cyproducer.producer import KafkaProducer
logging.basicConfig()
options = {"close_timeout_ms": 3000, "linger_ms": 60000, "delivery_timeout_ms": 120000}
producers = [KafkaProducer(bootstrap_servers=server, **options) for server in sys.argv[1:] * 8]
for producer in producers:
    producer.send("orders", b"1")
# Half of them can send, but linger.
[producer.partitions_for("orders") for producer in producers[1::2]]
"""


@pytest.mark.slow
def test_at_exit_all_producers_drain_at_the_same_time(cluster: ScriptedCluster) -> None:
    began = time.monotonic()
    done = run_to_exit(SEVERAL, refusing_address(), cluster.bootstrap_servers[0])
    assert cluster.topics["orders"].values == [b"1"] * 8
    # One after the other they would take 24 s, or the last ones would have no time left.
    assert 3 <= time.monotonic() - began < 15
    assert done.returncode == 0
    assert done.stderr.count("lost 1 record:") == 8


SENDING = """
import logging, sys, threading
from cyproducer import errors
from cyproducer.producer import KafkaProducer
logging.basicConfig()
producer = KafkaProducer(bootstrap_servers=sys.argv[1].split(","), close_timeout_ms=20000)
futures, sending = [], threading.Event()
def send():
    try:
        while True:
            futures.append(producer.send("orders", b"%d" % len(futures)))
            if len(futures) == 1000:
                sending.set()
    except errors.ProducerClosedError:
        # The interpreter shuts down meanwhile, and may stop this thread anywhere.
        if all(future.succeeded() for future in futures):
            print(len(futures), flush=True)
threading.Thread(target=send, daemon=True).start()
sending.wait()
"""


def test_an_exit_while_another_thread_sends_delivers_accepted_records(cluster: ScriptedCluster) -> None:
    done = run_to_exit(SENDING, ",".join(cluster.bootstrap_servers))
    assert (done.returncode, done.stderr) == (0, "")
    values = cluster.topics["orders"].values
    assert len(values) >= 1000
    assert values == [b"%d" % i for i in range(len(values))]
    assert not done.stdout or int(done.stdout) == len(values)


WAITING = """
import sys, threading
from cyproducer import errors
from cyproducer.producer import KafkaProducer
producer = KafkaProducer(
    bootstrap_servers=[sys.argv[1]], close_timeout_ms=float(sys.argv[2]), max_block_ms=600000
)
future = producer.send("orders", b"1")
if sys.argv[3] == "callback":
    held = threading.Event()
    future.add_errback(lambda error: held.wait())
waiting = threading.Event()
def wait():
    waiting.set()
    try:
        future.get()
    except errors.ProducerClosedError:
        pass
    if sys.argv[3] == "again":
        threading.Event().wait()
for _ in range(5):
    threading.Thread(target=wait, daemon=True).start()
waiting.wait()
"""


@pytest.mark.parametrize("what", ["once", "again", "callback"])
@pytest.mark.parametrize("close_timeout_ms", [0, 300])
@pytest.mark.slow
def test_the_interpreter_ends_while_daemon_threads_wait_for_records(what: str, close_timeout_ms: int) -> None:
    began = time.monotonic()
    done = run_to_exit(WAITING, refusing_address(), str(close_timeout_ms), what)
    assert time.monotonic() - began < 30
    assert done.returncode == 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("[producer cyproducer-1] lost 1 record: the program did not close the producer")
    assert f"within close_timeout_ms={close_timeout_ms} at its end: 1 of 'orders'; 127.0.0.1:" in last


def test_a_dropped_producer_in_a_cycle_with_its_callbacks_is_closed(cluster: ScriptedCluster) -> None:
    seen: list[int] = []
    held = threading.Event()
    producer = KafkaProducer(**options(cluster, close_timeout_ms=2 * WAIT_S * 1000))
    thread = producer._runtime.thread
    callbacks = producer._runtime.callbacks
    cluster.act(PRODUCE, Act(hold=held))
    first = producer.send("orders", b"0")

    def again(metadata: Any, producer: KafkaProducer | None = producer) -> None:
        seen.append(metadata.offset)

    first.add_callback(again)
    cluster.wait_for_requests(PRODUCE, 1)
    second = producer.send("orders", b"1").add_callback(again)
    del producer, again
    gc.collect()
    # The records keep the producer alive until they are complete.
    assert thread.is_alive()
    held.set()
    # Not join(): without a GIL this thread frees what it made and another thread dropped last, and only
    # while it runs Python code.
    until(lambda: not thread.is_alive(), "the producer's end")
    assert (first.get(0).offset, second.get(0).offset) == (0, 1)
    until(lambda: not callbacks._thread or not callbacks._thread.is_alive(), "the callbacks' end")
    assert seen == [0, 1]
