"""flush() and close() end in time, whatever hangs; and every future has an outcome after close().

The upper bounds here are generous: they only distinguish a deadline from no deadline, on a machine of any
speed.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.futures.delivery import RecordFuture
from cyproducer.producer import KafkaProducer
from tests.scripted.producing import WAIT_S, no_produce, options, producing
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster

AT_MOST_S = 10.0
"""An endless wait would exceed this."""


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event for callbacks that must not return during the test."""
    event = threading.Event()
    yield event
    event.set()


def took_s(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def hold_up_callbacks(future: RecordFuture, until: threading.Event) -> None:
    running = threading.Event()

    def stay(metadata: Any) -> None:
        running.set()
        until.wait()

    future.add_callback(stay)
    assert running.wait(WAIT_S)


def flush(producer: KafkaProducer, timeout: float, match: str) -> None:
    with pytest.raises(errors.KafkaTimeoutError, match=match):
        producer.flush(timeout)


@pytest.mark.parametrize("stuck", ["broker", "callback", "both"])
def test_flush_ends_in_time_and_says_what_is_left(stuck: str, never: threading.Event) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        if stuck != "broker":
            hold_up_callbacks(producer.send("orders", b"1"), never)
        if stuck != "callback":
            producer.partitions_for("orders")
            cluster.script = no_produce
            producer.send("orders", b"2")
        match = "callbacks have not returned" if stuck == "callback" else "1 batch,"
        assert 0.3 <= took_s(lambda: flush(producer, 0.3, match)) < AT_MOST_S
        assert took_s(lambda: flush(producer, 0, match)) < AT_MOST_S
        never.set()


@pytest.mark.parametrize("stuck", ["broker", "callback", "both"])
@pytest.mark.parametrize("timeout", [0, 0.3])
def test_close_ends_in_time_and_leaves_no_future_without_an_outcome(
    stuck: str, timeout: float, never: threading.Event
) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        futures: list[RecordFuture] = []
        if stuck != "broker":
            futures.append(producer.send("orders", b"1"))
            hold_up_callbacks(futures[0], never)
        if stuck != "callback":
            producer.partitions_for("orders")
            cluster.script = no_produce
            futures += [producer.send(topic, b"2") for topic in ("orders", "missing")]
        assert timeout <= took_s(lambda: producer.close(timeout)) < AT_MOST_S
        assert all(future.is_done for future in futures)
        assert sum(future.failed() for future in futures) == (0 if stuck == "callback" else 2)
        never.set()


def test_an_earlier_deadline_shortens_a_close_in_another_thread() -> None:
    with ScriptedCluster(orders=1) as cluster:
        producer = KafkaProducer(**options(cluster))
        producer.partitions_for("orders")
        cluster.script = no_produce
        future = producer.send("orders", b"1")
        patient = threading.Thread(target=producer.close)
        patient.start()
        while not producer._runtime.accumulator.closed:
            pass
        assert took_s(lambda: producer.close(0)) < AT_MOST_S
        patient.join(WAIT_S)
        assert not patient.is_alive()
        assert future.failed()


@pytest.mark.slow
def test_every_future_has_an_outcome_when_close_returns_while_others_send() -> None:
    futures: list[list[RecordFuture]] = [[] for _ in range(4)]
    refused = threading.Semaphore(0)

    with ScriptedCluster(orders=3) as cluster:
        producer = KafkaProducer(**options(cluster, compression_type="gzip", batch_size=2000))

        def send(mine: list[RecordFuture]) -> None:
            try:
                while True:
                    mine.append(producer.send("orders" if len(mine) % 50 else "missing", b"x" * 100))
            except errors.ProducerClosedError:
                refused.release()

        threads = [threading.Thread(target=send, args=(mine,)) for mine in futures]
        for thread in threads:
            thread.start()
        cluster.wait_for_requests(PRODUCE, 5)
        producer.close(0)
        for _ in threads:
            assert refused.acquire(timeout=WAIT_S)
        for thread in threads:
            thread.join(WAIT_S)
    assert all(mine for mine in futures)
    assert all(future.is_done for mine in futures for future in mine)


def test_64_threads_share_a_producer() -> None:
    each = 50
    with (
        ScriptedCluster(orders=3) as cluster,
        producing(
            cluster, batch_size=2000, delivery_timeout_ms=60_000, request_timeout_ms=30_000
        ) as producer,
    ):
        start = threading.Barrier(64)

        def send(number: int) -> None:
            start.wait(WAIT_S)
            for i in range(each):
                producer.send("orders", b"%d %d" % (number, i), partition=i % 3)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WAIT_S)
        producer.flush()
        for index, partition in enumerate(cluster.topics["orders"].partitions):
            numbers = [tuple(map(int, (value or b"").split())) for value in partition.values]
            assert sorted(numbers) == [(n, i) for n in range(64) for i in range(each) if i % 3 == index]
            for number in range(64):
                mine = [i for n, i in numbers if n == number]
                assert mine == sorted(mine)


@pytest.mark.slow
def test_max_block_ms_limits_the_wait_for_metadata_of_every_record() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, max_block_ms=300) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        cluster.script = lambda received: Act(silent=True) if received.api_key == METADATA else None
        with pytest.raises(errors.KafkaTimeoutError):
            producer.partitions_for("late")
        # Nothing else is due until that request times out.
        future = producer.send("late", b"1")
        with pytest.raises(errors.KafkaTimeoutError, match="max_block_ms=300"):
            future.get(producer.config.request_timeout_ms / 1000 / 2)
