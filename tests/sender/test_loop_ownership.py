"""The thread that runs the sender loop: one in ``get()`` if records come one by one, else the sender's."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.futures.delivery import RecordFuture
from cyproducer.producer import KafkaProducer
from cyproducer.records.codec_libraries import functions_of
from tests.forked import in_child, needs_fork
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster
from tools.harness.until import Running, looks, until

DECISIONS = (
    "tick",
    "on_socket_ready",
    "on_frame",
    "on_broken",
    "on_leaders",
)
FATES = ("decide", "expire", "progress")


def counters(producer: KafkaProducer) -> dict[str, int]:
    return producer._runtime.sender.counters()


def drives(producer: KafkaProducer) -> int:
    """How often threads in get() have run the loop."""
    return counters(producer)["drives"]


def stand_by(producer: KafkaProducer, topic: str = "orders", partition: int | None = None) -> None:
    """Sends records one by one until the waiting thread runs the loop itself."""
    before = drives(producer)
    for _ in looks(WAIT_S, 0.0):
        producer.send(topic, b"lone", partition=partition).get(WAIT_S)
        if drives(producer) > before:
            return
    raise AssertionError("no get() ever ran the loop")


def complete(future: RecordFuture) -> None:
    """Waits for the record without get(), which might run the loop."""
    until(lambda: future.is_done, "the record's outcome")


def deciders(producer: KafkaProducer, patch: pytest.MonkeyPatch) -> set[int | None]:
    """Returns a set that collects the threads on which the control plane runs from now on."""
    seen: set[int | None] = set()

    def noted(decide: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            seen.add(threading.get_ident())
            return decide(*args)

        return noting

    client = producer._runtime.client
    for name in DECISIONS:
        patch.setattr(client, name, noted(getattr(client, name)))
    for name in FATES:
        patch.setattr(client.fates, name, noted(getattr(client.fates, name)))
    return seen


def test_records_that_come_one_by_one_are_sent_by_the_waiting_thread() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        stand_by(producer)
        before = drives(producer)
        offsets = [producer.send("orders", b"%d" % i).get(WAIT_S).offset for i in range(200)]
        first = offsets[0]
        assert offsets == list(range(first, first + 200))
        # The sender thread sends some of them: it takes over for timers, and when this thread is delayed.
        assert drives(producer) - before > 20
        assert cluster.topics["orders"].values[first:] == [b"%d" % i for i in range(200)]


@pytest.mark.slow
@pytest.mark.parametrize("option", [{"compression_type": "gzip"}, {"linger_ms": 2}, {"acks": 0}, {"acks": 1}])
def test_options_change_the_sending_thread_but_not_the_result(option: dict[str, Any]) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, **option) as producer:
        for i in range(100):
            producer.send("orders", b"%d" % i).get(WAIT_S)
        if "compression_type" in option:
            # A codec's Python functions need the GIL: the sender thread runs them.
            assert bool(drives(producer)) == (functions_of("gzip") is not None)
        producer.flush(WAIT_S)
        cluster.wait_for(lambda: len(cluster.topics["orders"].values) == 100)
        assert cluster.topics["orders"].values == [b"%d" % i for i in range(100)]


def test_a_record_that_no_thread_waits_for_is_left_alone_once() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        stand_by(producer)
        before = counters(producer)
        # If the sender thread takes over just before the record comes, the record is not left alone.
        for _ in looks(WAIT_S, 0.0):
            complete(producer.send("orders", b"alone"))
            if counters(producer)["left_alone"] > before["left_alone"]:
                break
            stand_by(producer)
        before = counters(producer)
        for _ in range(10):
            assert producer.send("orders", b"waited for").get(WAIT_S).offset > 0
        after = counters(producer)
        assert (after["drives"], after["left_alone"]) == (before["drives"], before["left_alone"])


def test_a_second_batch_wakes_the_sender_at_once() -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster) as producer:
        for partition in range(2):
            producer.send("orders", b"1", partition=partition).get(WAIT_S)
        woken = 0
        for _ in range(20):
            stand_by(producer, partition=0)
            before = counters(producer)["wakeups"]
            futures = [producer.send("orders", b"2", partition=partition) for partition in range(2)]
            for future in futures:
                complete(future)
            woken += counters(producer)["wakeups"] > before
        # Not in every round: the millisecond may be over before the second record comes.
        assert woken > 5


def test_a_callback_alone_does_not_make_the_sender_stand_by() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.partitions_for("orders")
        called = threading.Semaphore(0)
        for _ in range(50):
            producer.send("orders", b"1").add_callback(lambda metadata: called.release())
            assert called.acquire(timeout=WAIT_S)
        assert counters(producer)["left_alone"] == 0
        assert drives(producer) == 0


# Nothing is appended: the scripted cluster does not recognise duplicates.
TROUBLES: dict[str, list[Act]] = {
    "an error that is retried": [Act(error=19, append=False)],
    "an error that moves the leader": [Act(error=6, append=False)],
    "a connection closed instead of a response": [Act(drop=True, append=False)],
    "half a response": [Act(cut=7, append=False)],
    "a malformed response": [
        Act(rewrite=lambda frame: frame[:12] + b"\xff" * (len(frame) - 12), append=False)
    ],
    "a response to another request": [Act(correlation_shift=5, append=False)],
    "an invalid length": [Act(rewrite=lambda frame: b"\x7f\xff\xff\xff" + frame[4:], append=False)],
    "a throttle": [Act(throttle_ms=20)],
    "several, one after the other": [
        Act(error=19, append=False),
        Act(cut=3, append=False),
        Act(drop=True, append=False),
        Act(error=19, append=False),
    ],
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.slow
def test_decisions_are_made_on_the_sender_thread(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        stand_by(producer)
        threads = deciders(producer, monkeypatch)
        for i in range(5):
            stand_by(producer)
            cluster.act(PRODUCE, *TROUBLES[trouble])
            value = b"trouble %d" % i
            metadata = producer.send("orders", value).get(WAIT_S)
            assert cluster.topics["orders"].values.count(value) == 1
            assert cluster.topics["orders"].values[metadata.offset] == value
        assert threads <= {producer._runtime.thread.ident}
        assert threads or trouble == "a throttle"


def test_the_sender_thread_fails_a_record_that_expires_while_its_thread_runs_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = threading.Event()
    times = {"delivery_timeout_ms": 300, "request_timeout_ms": 250}
    with ScriptedCluster(orders=1) as cluster, producing(cluster, **times) as producer:
        stand_by(producer)
        threads = deciders(producer, monkeypatch)
        asked = len(cluster.received(PRODUCE))
        cluster.act(PRODUCE, Act(hold=held), Act(hold=held))
        with pytest.raises(errors.KafkaTimeoutError):
            producer.send("orders", b"1").get(WAIT_S)
        held.set()
        assert len(cluster.received(PRODUCE)) > asked
        assert threads == {producer._runtime.thread.ident}
        stand_by(producer)


def test_other_threads_can_call_the_sender_while_a_thread_runs_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        stand_by(producer)
        threads = deciders(producer, monkeypatch)

        def call() -> None:
            while not over.is_set():
                producer._runtime.sender.request_control()

        caller = Running(call)
        before = drives(producer)
        for _ in range(60):
            producer.send("orders", b"1").get(WAIT_S)
        over.set()
        caller.outcome()
        assert threads == {producer._runtime.thread.ident}
        assert drives(producer) >= before


def test_a_final_error_reaches_the_thread_that_ran_the_loop() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        stand_by(producer)
        cluster.act(PRODUCE, Act(error=29, append=False, message="not yours"))
        with pytest.raises(errors.TopicAuthorizationFailedError):
            producer.send("orders", b"1").get(WAIT_S)
        stand_by(producer)


def times_out(cluster: ScriptedCluster, producer: KafkaProducer, timeout: float) -> bool:
    """Makes a get() time out before the response arrives; returns whether that get() had run the loop."""
    held = threading.Event()
    stand_by(producer)
    asked = len(cluster.received(PRODUCE))
    cluster.act(PRODUCE, Act(hold=held))
    driven, woken = drives(producer), counters(producer)["wakeups"]
    future = producer.send("orders", b"1")
    began = time.monotonic()
    with pytest.raises(errors.KafkaTimeoutError):
        future.get(timeout)
    assert time.monotonic() - began < timeout + 1
    # False if it did not get the loop: the sender thread takes over from a thread that is late.
    drove = drives(producer) > driven
    # With a shorter timeout, a busy machine may not have sent the record yet.
    if drove and timeout == 1.0:
        # It has sent the record, and woken up the sender thread to continue.
        assert len(cluster.received(PRODUCE)) > asked
        assert any(counters(producer)["wakeups"] > woken for _ in looks(2, 0.0))
    held.set()
    complete(future)
    assert future.succeeded()
    return drove


@pytest.mark.slow
def test_a_wait_that_times_out_leaves_the_record_to_the_sender_thread() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        for timeout in (0.0, 0.001):
            times_out(cluster, producer, timeout)
        assert any(times_out(cluster, producer, 1.0) for _ in looks(WAIT_S, 0.0))


def test_other_records_do_not_wait_for_the_thread_that_runs_the_loop() -> None:
    held = threading.Event()
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster) as producer:
        leaders = [partition.leader for partition in cluster.topics["orders"].partitions]
        assert len(set(leaders)) == 2
        producer.send("orders", b"1", partition=1).get(WAIT_S)
        stand_by(producer, partition=0)
        cluster.act(PRODUCE, Act(hold=held))
        asked = len(cluster.received(PRODUCE))
        waiter = Running(lambda: producer.send("orders", b"0", partition=0).get(WAIT_S))
        cluster.wait_for_requests(PRODUCE, asked + 1)
        # Also a record whose thread does not call get().
        future = producer.send("orders", b"1", partition=1)
        complete(future)
        assert producer.send("orders", b"1", partition=1).get(WAIT_S).offset == 2
        assert waiter.running
        held.set()
        waiter.outcome()


@pytest.mark.parametrize("closing", ["close", "flush"])
def test_close_and_flush_do_not_wait_for_the_loop_lock(closing: str) -> None:
    held = threading.Event()
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        stand_by(producer)
        cluster.act(PRODUCE, Act(hold=held))
        asked = len(cluster.received(PRODUCE))
        waiter = Running(lambda: producer.send("orders", b"1").get(WAIT_S))
        cluster.wait_for_requests(PRODUCE, asked + 1)
        began = time.monotonic()
        if closing == "close":
            producer.close(0.2)
        else:
            with pytest.raises(errors.KafkaTimeoutError):
                producer.flush(0.2)
        assert time.monotonic() - began < 2
        held.set()
        if closing == "close":
            with pytest.raises(errors.ProducerClosedError):
                waiter.outcome()
        else:
            assert waiter.outcome().offset == asked


def test_ctrl_c_ends_a_wait_that_runs_the_loop_and_the_record_is_still_sent() -> None:
    held = threading.Event()
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        stand_by(producer)
        cluster.act(PRODUCE, Act(hold=held))
        asked = len(cluster.received(PRODUCE))
        waiting = threading.Event()

        def interrupt() -> None:
            waiting.wait(WAIT_S)
            cluster.wait_for_requests(PRODUCE, asked + 1)
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = Running(interrupt)
        future = producer.send("orders", b"1")

        def wait() -> None:
            waiting.set()
            future.get(WAIT_S)

        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert time.monotonic() - began < WAIT_S / 2
        interrupting.outcome()
        held.set()
        complete(future)
        assert future.succeeded()
        stand_by(producer)


def test_no_record_is_lost_if_a_broker_closes_while_the_sender_stands_by() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        for i in range(10):
            stand_by(producer)
            cluster.nodes[cluster.topics["orders"].partitions[0].leader].drop_connections()
            value = b"after %d" % i
            offset = producer.send("orders", value).get(WAIT_S).offset
            assert cluster.topics["orders"].values[offset] == value


def test_many_waiting_threads_each_get_their_own_result() -> None:
    threads, each = 16, 200
    found: dict[int, list[int]] = {}
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        stand_by(producer)
        start = threading.Barrier(threads)

        def send(number: int) -> None:
            start.wait(WAIT_S)
            found[number] = [
                producer.send("orders", b"%d %d" % (number, i)).get(WAIT_S).offset for i in range(each)
            ]

        for worker in [Running(send, number) for number in range(threads)]:
            worker.outcome()
        values = cluster.topics["orders"].values
        for number, offsets in found.items():
            assert [values[offset] for offset in offsets] == [b"%d %d" % (number, i) for i in range(each)]
        assert len(found) == threads


@needs_fork
def test_a_child_forked_while_the_sender_stands_by_sends_its_own_records() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        stand_by(producer)

        def send() -> list[int]:
            stand_by(producer)
            futures: list[RecordFuture] = [producer.send("orders", b"child") for _ in range(3)]
            return [future.get(WAIT_S).offset for future in futures]

        offsets = in_child(send)
        stand_by(producer)
        assert [cluster.topics["orders"].values[offset] for offset in offsets] == [b"child"] * 3
