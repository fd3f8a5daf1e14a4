"""A producer's callbacks: on which thread they run, in which order, and what they may call."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.futures.delivery import RecordFuture
from tests.scripted.producing import WAIT_S, no_produce, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster


def test_callbacks_run_in_partition_order_on_their_own_thread() -> None:
    count = 500
    offsets: list[int] = []
    threads: set[threading.Thread] = set()
    done = threading.Event()

    def note(metadata: Any) -> None:
        offsets.append(metadata.offset)
        threads.add(threading.current_thread())
        if len(offsets) == count:
            done.set()

    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, batch_size=1000, client_id="shop") as producer,
    ):
        for i in range(count):
            producer.send("orders", b"%d" % i).add_callback(note)
        assert done.wait(WAIT_S)
        assert len(cluster.received(PRODUCE)) > 5
    assert offsets == list(range(count))
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert thread.name == "cyproducer-callbacks | shop"


def test_callbacks_errbacks_and_extra_arguments() -> None:
    calls: list[tuple[Any, ...]] = []
    done = threading.Semaphore(0)

    def note(*args: Any, **kwargs: Any) -> None:
        calls.append((*args, kwargs))
        done.release()

    with ScriptedCluster(orders=2) as cluster, producing(cluster) as producer:
        cluster.topics["orders"].partitions[1].error = 10
        for partition in (0, 1):
            future = producer.send("orders", b"1", partition=partition)
            future.add_callback(note, "good", partition, more=1).add_errback(note, "bad", partition)
            future.add_both(note, "both", partition)
            assert done.acquire(timeout=WAIT_S)
            assert done.acquire(timeout=WAIT_S)
        producer.flush(WAIT_S)
    good, both, bad, both_bad = calls
    assert (good[:2], good[2].offset, good[3]) == (("good", 0), 0, {"more": 1})
    assert (both[:2], both[2].offset) == (("both", 0), 0)
    assert bad[:2] == ("bad", 1)
    assert isinstance(bad[2], errors.MessageSizeTooLargeError)
    assert both_bad[:2] == ("both", 1)
    assert isinstance(both_bad[2], errors.MessageSizeTooLargeError)


def test_a_callback_may_send() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        futures: list[RecordFuture] = []
        done = threading.Event()

        def again(metadata: Any) -> None:
            if metadata.offset == 20:
                done.set()
            else:
                futures.append(producer.send("orders", b"%d" % (metadata.offset + 1)).add_callback(again))

        producer.send("orders", b"0").add_callback(again)
        assert done.wait(WAIT_S)
        assert cluster.topics["orders"].values == [b"%d" % i for i in range(21)]


def test_send_waits_for_slow_callbacks_and_its_error_says_so() -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(outcome: Any) -> None:
        running.set()
        assert go_on.wait(WAIT_S)

    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, max_pending_callbacks=1, max_block_ms=1000) as producer,
    ):
        try:
            producer.send("orders", b"0").add_callback(slow)
            assert running.wait(WAIT_S)
            with pytest.raises(errors.BufferExhaustedError, match="callbacks are slow: 1 records wait"):
                producer.send("orders", b"1")
        finally:
            go_on.set()
        producer.flush(WAIT_S)
        assert producer.send("orders", b"2").get(WAIT_S).offset == 1


@pytest.mark.parametrize("method", ["flush", "close"])
def test_a_callback_may_not_wait_for_itself(method: str) -> None:
    outcome: list[BaseException | None] = []
    done = threading.Event()

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:

        def wait(metadata: Any) -> None:
            try:
                getattr(producer, method)()
                outcome.append(None)
            except BaseException as error:
                outcome.append(error)
            done.set()

        producer.send("orders", b"0").add_callback(wait)
        assert done.wait(WAIT_S)
        (error,) = outcome
        assert isinstance(error, errors.IllegalStateError)
        assert f"{method}() in a callback" in str(error)
        # The producer still works.
        assert producer.send("orders", b"1").get(WAIT_S).offset == 1


WAITS: dict[str, Callable[[RecordFuture], object]] = {
    "get()": lambda future: future.get(),
    "get() with a timeout": lambda future: future.get(WAIT_S),
    "result()": lambda future: future.as_concurrent().result(),
    "result() with a timeout": lambda future: future.as_concurrent().result(WAIT_S),
    "exception()": lambda future: future.as_concurrent().exception(),
    "await": lambda future: asyncio.run(awaited(future)),
}


async def awaited(future: RecordFuture) -> object:
    return await future


@pytest.mark.parametrize("wait", WAITS)
def test_a_callback_may_read_a_done_future_but_not_wait_for_a_pending_one(wait: str) -> None:
    held, asked = threading.Event(), threading.Event()
    outcome: list[object] = []

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.partitions_for("orders")
        done = producer.send("orders", b"0")
        done.get(WAIT_S)

        def ask(metadata: Any) -> None:
            cluster.act(PRODUCE, Act(hold=held))
            pending = producer.send("orders", b"2")
            for future in (pending, done):
                try:
                    outcome.append(WAITS[wait](future))
                except BaseException as error:
                    outcome.append(error)
            outcome.append(pending)
            asked.set()

        producer.send("orders", b"1").add_callback(ask)
        assert asked.wait(WAIT_S)
        held.set()
        refusal, answer, pending = outcome
        assert isinstance(refusal, errors.IllegalStateError)
        assert f"{wait.split(' ')[0]} in a callback" in str(refusal)
        assert answer is None if wait == "exception()" else answer.offset == 0  # type: ignore[attr-defined]
        assert isinstance(pending, RecordFuture)
        # Any other thread may wait for it.
        assert pending.get(WAIT_S).offset == 2


def test_a_callback_may_not_wait_for_a_concurrent_future_of_a_pending_record() -> None:
    held, asked = threading.Event(), threading.Event()
    outcome: list[object] = []
    waiting: list[Any] = []

    def ask(metadata: Any) -> None:
        for future in waiting:
            try:
                outcome.append(future.result().offset)
            except errors.IllegalStateError as error:
                outcome.append(error)
        asked.set()

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        cluster.act(PRODUCE, Act(hold=held))
        first = producer.send("orders", b"0").add_callback(ask)
        cluster.wait_for_requests(PRODUCE, 1)
        again = threading.Event()
        cluster.act(PRODUCE, Act(hold=again))
        second = producer.send("orders", b"1")
        # The first record's concurrent future is set by a callback that runs after this one.
        waiting += [first.as_concurrent(), second.as_concurrent()]
        held.set()
        assert asked.wait(WAIT_S)
        assert outcome[0] == 0
        assert isinstance(outcome[1], errors.IllegalStateError)
        again.set()
        assert [future.result(WAIT_S).offset for future in waiting] == [0, 1]


def test_a_callback_may_wait_for_another_producers_record() -> None:
    offsets: list[int] = []
    done = threading.Event()

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as other, producing(cluster) as producer:

        def copy(metadata: Any) -> None:
            offsets.append(other.send("orders", b"copy").get(WAIT_S).offset)
            other.flush(WAIT_S)
            done.set()

        producer.send("orders", b"0").add_callback(copy)
        assert done.wait(WAIT_S)
        assert offsets == [1]


def test_a_slow_callback_blocks_neither_sending_nor_waiting() -> None:
    release, running = threading.Event(), threading.Event()

    def slow(metadata: Any) -> None:
        running.set()
        assert release.wait(WAIT_S)

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"0").add_callback(slow)
        assert running.wait(WAIT_S)
        futures = [producer.send("orders", b"%d" % i) for i in range(1, 100)]
        assert [future.get(WAIT_S).offset for future in futures] == list(range(1, 100))
        release.set()


def test_a_callbacks_exception_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    done = threading.Event()

    def broken(metadata: Any) -> None:
        raise RuntimeError("not my day")

    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster) as producer,
        caplog.at_level(logging.ERROR, "cyproducer"),
    ):
        producer.send("orders", b"0").add_callback(broken).add_callback(lambda metadata: seen.append(0))
        producer.send("orders", b"1").add_callback(lambda metadata: done.set())
        assert done.wait(WAIT_S)
        assert seen == [0]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["not my day"]


def test_a_callback_added_late_runs_at_once_on_the_calling_thread() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        future = producer.send("orders", b"0")
        future.get(WAIT_S)
        seen: list[threading.Thread] = []
        future.add_callback(lambda metadata: seen.append(threading.current_thread()))
        assert seen == [threading.current_thread()]


def test_close_runs_the_callbacks_of_records_that_it_fails() -> None:
    seen: list[type[BaseException]] = []
    called = threading.Semaphore(0)

    def note(error: BaseException) -> None:
        seen.append(type(error))
        called.release()

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.partitions_for("orders")
        cluster.script = no_produce
        for _ in range(3):
            producer.send("orders", b"0").add_errback(note)
        producer.send("missing", b"0").add_errback(note)
        producer.close(0)
        for _ in range(4):
            assert called.acquire(timeout=WAIT_S)
    assert seen == [errors.ProducerClosedError] * 4
