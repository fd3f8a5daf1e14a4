"""flush, close, what they leave behind, and producers that are never closed."""

import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer import errors
from cyproducer._runtime import Runtime
from cyproducer.base.user_thread import NAME
from cyproducer.producer import KafkaProducer
from tests.scripted.odd_servers import refusing_address
from tests.scripted.producing import WAIT_S, no_produce, options, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster
from tools.harness.until import until, until_blocked

ROOT = Path(__file__).parents[2]


# flush


def test_flush_sends_lingering_records_and_waits_for_them() -> None:
    with (
        ScriptedCluster(orders=2) as cluster,
        producing(cluster, linger_ms=30_000, delivery_timeout_ms=60_000) as producer,
    ):
        futures = [producer.send("orders", b"%d" % i, partition=i % 2) for i in range(10)]
        producer.flush(WAIT_S)
        assert all(future.succeeded() for future in futures)
        assert len(cluster.topics["orders"].values) == 10
        # The producer keeps lingering afterwards.
        late = producer.send("orders", b"late")
        assert not late.is_done
        producer.flush(WAIT_S)
        assert late.succeeded()


def test_flush_waits_for_records_without_metadata() -> None:
    with (
        ScriptedCluster() as cluster,
        producing(cluster, linger_ms=30_000, delivery_timeout_ms=60_000) as producer,
    ):
        cluster.create_topic("late").first_errors.extend([3, 3, 5])
        future = producer.send("late", b"1")
        producer.flush(WAIT_S)
        assert future.succeeded()


def test_flush_returns_when_records_fail(cluster: ScriptedCluster, producer: KafkaProducer) -> None:
    cluster.act(PRODUCE, Act(error=10))
    future = producer.send("orders", b"1")
    producer.flush(WAIT_S)
    assert future.failed()


def test_flush_waits_for_the_callbacks_of_accepted_records(cluster: ScriptedCluster) -> None:
    release, running, seen = threading.Event(), threading.Event(), []

    def slow(metadata: Any) -> None:
        running.set()
        assert release.wait(WAIT_S)
        seen.append(metadata.offset)

    with producing(cluster) as producer:
        producer.send("orders", b"1").add_callback(slow)
        assert running.wait(WAIT_S)
        with pytest.raises(errors.KafkaTimeoutError):
            producer.flush(0.05)
        release.set()
        producer.flush(WAIT_S)
        assert seen == [0]


def test_a_flush_that_times_out_says_what_is_pending_and_why(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.partitions_for("orders")
        cluster.script = no_produce
        waiting = producer.send("orders", b"1"), producer.send("missing", b"2")
        began = time.monotonic()
        with pytest.raises(errors.KafkaTimeoutError, match="1 batch, 1 record without metadata"):
            producer.flush(0.2)
        assert 0.2 <= time.monotonic() - began < 5
        assert not any(future.is_done for future in waiting)
    with producing(bootstrap_servers=[(server := refusing_address())]) as producer:
        producer.send("orders", b"1")
        with pytest.raises(errors.KafkaTimeoutError, match=f"{server}: connection refused"):
            producer.flush(0.2)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_must_be_a_valid_duration(timeout: float) -> None:
    with producing(bootstrap_servers=[refusing_address()]) as producer:
        with pytest.raises(ValueError, match="must be a number of seconds"):
            producer.flush(timeout)
        with pytest.raises(ValueError, match="must be a number of seconds"):
            producer.close(timeout)


# close


def test_close_delivers_accepted_records(cluster: ScriptedCluster) -> None:
    with producing(cluster, linger_ms=30_000, delivery_timeout_ms=60_000) as producer:
        futures = [producer.send("orders", b"%d" % i) for i in range(100)]
        producer.close()
        assert all(future.succeeded() for future in futures)
        assert len(cluster.topics["orders"].values) == 100


def test_leaving_the_with_statement_closes(cluster: ScriptedCluster) -> None:
    with KafkaProducer(**options(cluster)) as producer:
        future = producer.send("orders", b"1")
    assert future.succeeded()
    with pytest.raises(errors.ProducerClosedError):
        producer.send("orders", b"2")


def test_close_0_fails_the_remaining_records(
    caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster
) -> None:
    with producing(cluster, max_in_flight_requests_per_connection=1) as producer:
        producer.partitions_for("orders")
        cluster.script = no_produce
        in_flight = producer.send("orders", b"1")
        cluster.wait_for_requests(PRODUCE, 1)
        left = [in_flight, producer.send("orders", b"2"), producer.send("missing", b"3")]
        with caplog.at_level(logging.WARNING, "cyproducer"):
            producer.close(0)
        for future in left:
            with pytest.raises(errors.ProducerClosedError, match="closed before the record was acknowledged"):
                future.get(0)
        assert "3 records not acknowledged in time" in caplog.text


def test_close_waits_no_longer_than_its_timeout(cluster: ScriptedCluster, producer: KafkaProducer) -> None:
    cluster.script = no_produce
    future = producer.send("orders", b"1")
    began = time.monotonic()
    producer.close(0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert future.failed()


def test_closing_twice_is_not_an_error_and_calls_no_close_twice(cluster: ScriptedCluster) -> None:
    closed: list[str] = []

    class Closable:
        def __init__(self, name: str) -> None:
            self.name = name

        def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
            return bytes(data)

        def on_send(self, record: Any) -> Any:
            return record

        def close(self) -> None:
            closed.append(self.name)

    with producing(
        cluster,
        key_serializer=Closable("key"),
        value_serializer=Closable("value"),
        interceptors=[Closable("spy")],
    ) as producer:
        producer.close()
        producer.close()
        with producer:
            pass
        assert sorted(closed) == ["key", "spy", "value"]


class LateThread:
    """A sender thread that gets the GIL only when the thread that closes has waited some times."""

    def __init__(self, thread: threading.Thread, waits: int, go_on: threading.Event) -> None:
        self._thread, self._waits, self._go_on = thread, waits, go_on
        self.ident, self.is_alive = thread.ident, thread.is_alive

    def join(self, timeout: float) -> None:
        self._waits -= 1
        if self._waits == 0:
            self._go_on.set()
            self._thread.join(WAIT_S)


def test_close_0_counts_its_waits_for_the_sender_and_not_their_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster
) -> None:
    """Other threads may hold the GIL for a second, several times until the sender has ended."""
    go_on = threading.Event()
    with producing(cluster) as producer:
        cluster.script = no_produce
        future = producer.send("orders", b"1")
        runtime = producer._runtime
        end = runtime._end

        def end_late() -> None:
            assert go_on.wait(WAIT_S)
            end()

        monkeypatch.setattr(runtime, "_end", end_late)
        monkeypatch.setattr(runtime, "thread", LateThread(runtime.thread, 15, go_on))  # type: ignore[arg-type]
        producer.close(0)
        assert future.failed()
    assert "did not end" not in caplog.text


def test_a_second_close_0_counts_its_waits_for_the_first_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster
) -> None:
    waits: list[float] = []

    def acquire(timeout_s: float) -> bool:
        waits.append(timeout_s)
        return len(waits) >= 15

    with producing(cluster) as producer:
        cluster.script = no_produce
        future = producer.send("orders", b"1")
        held = SimpleNamespace(acquire_patiently=acquire, release=lambda: None)
        monkeypatch.setattr(producer._runtime, "_close_lock", held)
        producer.close(0)
        assert future.failed()
    assert waits[0] == 0
    assert "has not finished in time" not in caplog.text


def test_close_gives_up_only_if_the_sender_makes_no_progress() -> None:
    """It fails thousands of records, and closes many connections."""
    waits: list[float] = []
    runtime: Any = SimpleNamespace(
        accumulator=SimpleNamespace(incomplete_batches=0, parked_records=0),
        sender=SimpleNamespace(counters=lambda: {"connections": 0}),
    )

    def wait(timeout_s: float) -> bool:
        waits.append(timeout_s)
        left = max(0, 90 - len(waits))
        runtime.accumulator.incomplete_batches = max(0, left - 60)
        runtime.accumulator.parked_records = max(0, left - 30)
        runtime.sender.counters = lambda: {"connections": left}
        return False

    assert not Runtime._await_end(runtime, wait)
    assert len(waits) == 90 + 19
    assert sum(waits[90:]) == pytest.approx(1, abs=0.1)


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has no GIL")
def test_records_fail_without_a_release_of_the_gil_for_each(cluster: ScriptedCluster) -> None:
    """Each release may cost as long as another thread computes: a thread in Python code sees all or none."""
    ready, stop, seen = threading.Event(), threading.Event(), threading.Event()

    def watch() -> None:
        first, last = futures[0], futures[-1]
        ready.set()
        while not stop.is_set():
            if first.is_done and not last.is_done:
                seen.set()

    interval = sys.getswitchinterval()
    given = {"batch_size": 0, "max_in_flight_requests_per_connection": 1}
    with producing(cluster, **given) as producer:
        producer.partitions_for("orders")
        cluster.script = no_produce
        producer.send("orders", b"")
        cluster.wait_for_requests(PRODUCE, 1)
        futures = [producer.send("orders", b"") for _ in range(30_000)]
        watching = threading.Thread(target=watch)
        sys.setswitchinterval(1e-6)
        try:
            watching.start()
            assert ready.wait(WAIT_S)
            producer.close(0)
        finally:
            sys.setswitchinterval(interval)
            stop.set()
            watching.join(WAIT_S)
        assert all(future.failed() for future in futures)
    assert not seen.is_set()


class ClosesMeanwhile:
    """A sender thread: when close() has waited for its end, another close() begins and ends first."""

    def __init__(self, producer: KafkaProducer, looks_alive: bool) -> None:
        self._producer, self._looks_alive = producer, looks_alive
        self._thread = producer._runtime.thread
        self._closed = False
        self.ident = self._thread.ident

    def is_alive(self) -> bool:
        return self._looks_alive or self._thread.is_alive()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        if not self._closed:
            self._closed = True
            self._producer.close(0)
        self._looks_alive = False


@pytest.mark.parametrize("looks_alive", [False, True])
def test_a_close_within_a_close_tells_once_what_is_lost(
    looks_alive: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cluster: ScriptedCluster,
) -> None:
    # As of a signal handler, or of another greenlet.
    ends: list[Any] = []
    monkeypatch.setattr("cyproducer._runtime.on_end", [ends.append])
    with producing(cluster) as producer:
        cluster.script = no_produce
        producer.send("orders", b"1")
        runtime = producer._runtime
        monkeypatch.setattr(runtime, "thread", ClosesMeanwhile(producer, looks_alive))
        producer.close(0)
        monkeypatch.undo()
    assert ends == [runtime]
    lost = [line for line in caplog.messages if "close(0)" in line]
    assert len(lost) == 1
    assert "close(0): 1 record not acknowledged in time and failed: 1 of 'orders'; " in lost[0]


@pytest.mark.parametrize("custom", [False, True])
def test_after_close_no_record_is_accepted(custom: bool, cluster: ScriptedCluster) -> None:
    def choose(key: Any, all_partitions: list[int], available: list[int]) -> int:
        return 0

    with producing(cluster, partitioner=choose if custom else None) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        producer.close()
        began = time.monotonic()
        for topic in ("orders", "never-seen"):
            with pytest.raises(errors.ProducerClosedError):
                producer.send(topic, b"1")
        with pytest.raises(errors.ProducerClosedError):
            producer.partitions_for("other")
        with pytest.raises(errors.KafkaError):
            producer.wait_ready() if not cluster.received(PRODUCE) else producer.partitions_for("another")
        producer.flush(0)
        assert time.monotonic() - began < 5
        assert cluster.topics["orders"].values == [b"1"]


def test_close_ends_waits_for_metadata_and_memory(cluster: ScriptedCluster) -> None:
    outcomes: list[BaseException] = []
    started = threading.Barrier(3)

    def run(call: Any) -> None:
        started.wait(WAIT_S)
        try:
            while True:
                call()
        except BaseException as error:
            outcomes.append(error)

    with producing(cluster, buffer_memory=20_000, max_block_ms=60_000) as producer:
        producer.partitions_for("orders")
        cluster.script = no_produce
        calls = [lambda: producer.send("orders", bytes(3000)), lambda: producer.partitions_for("missing")]
        threads = [threading.Thread(target=run, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        started.wait(WAIT_S)
        cluster.wait_for_requests(PRODUCE, 1)
        producer.close(0)
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    assert [type(error) for error in outcomes] == [errors.ProducerClosedError] * 2


def test_an_interrupted_close_can_be_continued(cluster: ScriptedCluster) -> None:
    held = threading.Event()
    with producing(cluster) as producer:
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(hold=held))
        future = producer.send("orders", b"1")
        cluster.wait_for_requests(PRODUCE, 1)

        def interrupt() -> None:
            until(lambda: producer._runtime.accumulator.closed, "the close")
            until_blocked(threading.main_thread())
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            producer.close()
        interrupting.join(WAIT_S)
        assert not future.is_done
        held.set()
        producer.close()
        assert future.succeeded()


# Leaks


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def own_threads() -> set[threading.Thread]:
    """All threads except the one for users' code, which belongs to the process and ends by itself."""
    return {thread for thread in threading.enumerate() if thread.name != NAME}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to count descriptors")
def test_a_closed_producer_leaves_no_thread_and_no_descriptor() -> None:
    with ScriptedCluster(3, orders=6) as cluster:
        with KafkaProducer(**options(cluster)) as producer:
            producer.send("orders", b"1").add_callback(lambda metadata: None).get(WAIT_S)
        threads, before = own_threads(), 0
        for round_ in range(5):
            with KafkaProducer(**options(cluster)) as producer:
                for partition in range(6):
                    producer.send("orders", b"1", partition=partition).add_callback(
                        lambda metadata: None
                    ).get(WAIT_S)
            assert not [t for t in own_threads() if t.name.startswith("cyproducer")]
            cluster.wait_for(
                lambda: all(c.closed for node in cluster.nodes.values() for c in node.connections)
            )
            for node in cluster.nodes.values():
                for connection in node.connections:
                    for thread in connection.threads:
                        thread.join(WAIT_S)
            if round_ == 0:
                before = descriptors()
        # The collector may have closed those of earlier tests meanwhile.
        assert descriptors() <= before
        assert own_threads() <= threads


@pytest.mark.slow
def test_closed_and_unreachable_producers_cause_no_resource_warnings() -> None:
    # What other clients left open in earlier tests.
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ScriptedCluster(orders=1) as cluster:
            with KafkaProducer(**options(cluster)) as producer:
                producer.send("orders", b"1").get(WAIT_S)
            with (
                KafkaProducer(**options(bootstrap_servers=[refusing_address()])) as producer,
                pytest.raises(errors.NoBrokersAvailable),
            ):
                producer.wait_ready(0.1)
            del producer
            gc.collect()
