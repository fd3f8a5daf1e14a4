"""After Ctrl-C in a waiting call the producer can be used, or closed."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from cyproducer.errors import ProducerClosedError
from cyproducer.futures.delivery import RecordFuture
from cyproducer.producer import KafkaProducer
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Sends Ctrl-C repeatedly until one has interrupted a wait on this thread."""
    caught, over = threading.Event(), threading.Event()

    def raise_once(number: int, frame: FrameType | None) -> None:
        if not caught.is_set():
            caught.set()
            raise KeyboardInterrupt

    def send() -> None:
        while not caught.is_set() and not over.wait(0.05):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, raise_once)
    thread = threading.Thread(target=send)
    yield thread.start
    over.set()
    if thread.ident is not None:
        thread.join(WAIT_S)
    signal.signal(signal.SIGINT, before)


WAITS: dict[str, Callable[[KafkaProducer, RecordFuture], object]] = {
    "flush": lambda producer, future: producer.flush(),
    "flush with a timeout": lambda producer, future: producer.flush(WAIT_S),
    "get": lambda producer, future: future.get(),
    "result": lambda producer, future: future.as_concurrent().result(),
    "partitions_for": lambda producer, future: producer.partitions_for("missing"),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_producer_works_after_ctrl_c_in_a_wait(wait: str, interrupt: Callable[[], None]) -> None:
    held = threading.Event()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, max_block_ms=60_000) as producer:
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(hold=held))
        future = producer.send("orders", b"0")
        cluster.wait_for_requests(PRODUCE, 1)
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            WAITS[wait](producer, future)
        assert not future.is_done
        held.set()
        producer.flush(WAIT_S)
        assert future.get(0).offset == 0
        assert producer.send("orders", b"1").get(WAIT_S).offset == 1


@pytest.mark.parametrize("stuck", ["broker", "callback"])
def test_close_continues_after_ctrl_c(stuck: str, interrupt: Callable[[], None]) -> None:
    held, running = threading.Event(), threading.Event()

    def stay(metadata: Any) -> None:
        running.set()
        held.wait(WAIT_S)

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.partitions_for("orders")
        if stuck == "broker":
            cluster.act(PRODUCE, Act(hold=held))
        future = producer.send("orders", b"0")
        if stuck == "callback":
            future.add_callback(stay)
            assert running.wait(WAIT_S)
        else:
            cluster.wait_for_requests(PRODUCE, 1)
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            producer.close()
        assert future.is_done == (stuck == "callback")
        held.set()
        producer.close()
        assert future.get(0).offset == 0
        assert "closed" in repr(producer)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.slow
def test_a_signal_handler_may_close_in_the_middle_of_a_send(codec: str) -> None:
    """These sends spend most of their time compressing, when no other thread can complete the batch."""
    data = os.urandom(6000).hex().encode()
    futures: list[RecordFuture] = []
    closed = threading.Event()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, compression_type=codec) as producer:
        producer.send("orders", b"first").get(WAIT_S)

        def close(number: int, frame: FrameType | None) -> None:
            producer.close(WAIT_S)
            closed.set()

        before = signal.signal(signal.SIGALRM, close)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with contextlib.suppress(ProducerClosedError):
                while not closed.is_set():
                    futures.append(producer.send("orders", data))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert [future for future in futures if not future.succeeded()] == []


def test_a_signal_handler_may_close_in_the_middle_of_a_close() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(silent=True))
        future = producer.send("orders", b"0")
        cluster.wait_for_requests(PRODUCE, 1)
        before = signal.signal(signal.SIGALRM, lambda number, frame: producer.close(0))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            producer.close()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert future.failed()
