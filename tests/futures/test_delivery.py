"""Futures: querying, waiting, awaiting, and that they leak nothing."""

import asyncio
import concurrent.futures
import gc
import threading
import time
import weakref
from typing import Any

import pytest

from cyproducer.errors import (
    KafkaError,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
)
from cyproducer.futures.delivery import RecordFuture, failed_future
from cyproducer.structs import RecordMetadata, TopicPartition
from tests.malloc import lent_bytes, needs_glibc
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running, interrupted, until_blocked

NOT_LEADER, NOT_AUTHORIZED = 6, 29
KINDS = ["acknowledged", "failed", "refused"]


def outcome(rig: Rig, kind: str) -> RecordFuture:
    """A future with that outcome; "pending" if its request is not answered."""
    if kind == "refused":
        return failed_future("t", TopicAuthorizationFailedError("t"))
    future = rig.send("t", b"value", b"k", headers=[("h", b"123")], timestamp_ms=1234)
    if kind != "pending":
        (seen,) = rig.requests()
        rig.answer(seen, NOT_AUTHORIZED if kind == "failed" else 0)
    return future


def test_a_pending_future_knows_nothing_yet() -> None:
    with Rig({"t": [1]}) as rig:
        future = outcome(rig, "pending")
        assert (future.is_done, future.is_complete(), future.done()) == (False, False, False)
        assert (future.succeeded(), future.failed(), future.retriable()) == (False, False, False)
        assert (future.value, future.exception) == (None, None)
        assert repr(future) == "<RecordFuture topic='t' pending>"


def test_an_acknowledged_future_has_the_metadata() -> None:
    with Rig({"t": [1]}) as rig:
        outcome(rig, "acknowledged")
        future = outcome(rig, "acknowledged")
        assert future.get() == RecordMetadata("t", 0, TopicPartition("t", 0), 1, 1234, None, 1, 5, 4)
        assert future.value == future.get(0)
        assert (future.is_done, future.is_complete(), future.done()) == (True, True, True)
        assert (future.succeeded(), future.failed(), future.retriable()) == (True, False, False)
        assert future.exception is None
        assert repr(future) == "<RecordFuture topic='t' acknowledged>"


@pytest.mark.parametrize("kind", ["failed", "refused"])
def test_a_failed_future_has_the_error(kind: str) -> None:
    with Rig({"t": [1]}) as rig:
        future = outcome(rig, kind)
        assert (future.is_done, future.is_complete(), future.done()) == (True, True, True)
        assert (future.succeeded(), future.failed(), future.retriable()) == (False, True, False)
        assert future.value is None
        assert isinstance(future.exception, TopicAuthorizationFailedError)
        with pytest.raises(TopicAuthorizationFailedError):
            future.get(0)
        assert repr(future) == "<RecordFuture topic='t' failed>"


def test_the_error_decides_whether_a_future_is_retriable() -> None:
    assert failed_future("t", NotLeaderForPartitionError()).retriable()
    assert not failed_future("t", TopicAuthorizationFailedError()).retriable()
    assert not failed_future("t", ValueError()).retriable()


def test_a_null_key_and_null_headers_have_size_minus_one() -> None:
    with Rig({"t": [1]}) as rig:
        futures = [rig.send("t", b""), rig.send("t", None, b""), rig.send("t", b"v", headers=[("é", None)])]
        rig.answer_all()
        assert [f.get(0)[6:] for f in futures] == [(-1, 0, -1), (0, -1, -1), (-1, 1, 2)]


def test_each_record_of_a_batch_has_the_next_offset() -> None:
    with Rig({"t": [1]}, linger_ms=5) as rig:
        futures = [rig.send("t", bytes(i)) for i in range(10)]
        rig.advance_ms(5)
        (seen,) = rig.requests()
        rig.log["t", 0] = list(seen.batches["t", 0].records) * 100
        rig.answer(seen)
        assert [f.get(0).offset for f in futures] == list(range(1000, 1010))
        assert [f.get(0).serialized_value_size for f in futures] == list(range(10))


def test_the_brokers_timestamp_replaces_the_records() -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"v", timestamp_ms=5)
        (seen,) = rig.requests()
        rig.answer(seen, log_append_time_ms=777)
        assert future.get(0).timestamp == 777


def test_without_acks_a_future_is_done_when_its_record_is_written() -> None:
    with Rig({"t": [1]}, acks=0) as rig:
        future = rig.send("t", b"v", timestamp_ms=5)
        rig.requests()
        assert future.get(0)[:5] == ("t", 0, TopicPartition("t", 0), -1, 5)
        assert rig.pool.used_bytes == 0


@pytest.mark.parametrize("timeout", [0, 0.15])
def test_get_times_out_and_the_record_stays_accepted(timeout: float) -> None:
    with Rig({"t": [1]}) as rig:
        future = outcome(rig, "pending")
        began = time.monotonic()
        with pytest.raises(KafkaTimeoutError, match=rf"'t' was not acknowledged within {timeout} s; it"):
            future.get(timeout)
        assert timeout <= time.monotonic() - began < 5
        rig.answer_all()
        assert future.get(timeout).offset == 0


def test_every_raise_has_its_own_exception() -> None:
    with Rig({"t": [1]}) as rig:
        cause = OSError("below")
        error = TopicAuthorizationFailedError("t", 3)
        error.extra = "kept"  # type: ignore[attr-defined]
        error.__cause__ = cause
        rig.fates.hook = lambda *_: (None, error)
        first, second = rig.send("t", b"1"), rig.send("t", b"2")
        (seen,) = rig.requests()
        rig.answer(seen, NOT_AUTHORIZED)
        caught: list[Any] = []
        for future in (first, first, second):
            try:
                future.get(0)
            except TopicAuthorizationFailedError as raised:
                caught.append(raised)
        caught.append(first.exception)
        assert len({id(copy) for copy in [*caught, error]}) == 5
        for copy in caught:
            assert (type(copy), copy.args, copy.extra) == (type(error), ("t", 3), "kept")
            assert copy.__cause__ is cause
        # None of them has accumulated the tracebacks of the others.
        assert error.__traceback__ is None
        assert caught[0].__traceback__.tb_next is None or caught[0].__traceback__.tb_next.tb_next is None


class PeculiarError(Exception):
    """Its ``args`` are not its constructor's arguments."""

    def __init__(self, number: int, *, name: str) -> None:
        super().__init__(f"{name} is {number}")
        self.name = name


@pytest.mark.parametrize(
    "error",
    [
        PeculiarError(3, name="x"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
        OSError(2, "No such file", "name"),
        KeyError("missing"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_copy_of_any_error_says_what_the_error_says(error: Exception) -> None:
    future = failed_future("t", error)
    with pytest.raises(type(error)) as caught:
        future.get(0)
    assert str(caught.value) == str(error) != ""
    # The record was never sent.
    assert caught.value.__dict__ == error.__dict__ | {"maybe_written": False}
    assert caught.value is not error


def test_many_threads_wait_for_one_batch() -> None:
    with Rig({"t": [1]}, linger_ms=5) as rig:
        futures = [rig.send("t", b"v") for _ in range(16)]
        ready = threading.Barrier(65)

        def wait(i: int) -> int:
            ready.wait()
            return futures[i % 16].get(PATIENCE_S).offset

        calls = [Running(wait, i) for i in range(64)]
        ready.wait()
        rig.advance_ms(5)
        rig.answer_all()
        assert [call.outcome() for call in calls] == list(range(16)) * 4


def test_a_signal_ends_the_wait_for_a_future() -> None:
    with Rig({"t": [1]}) as rig:
        future = outcome(rig, "pending")
        with interrupted():
            future.get(PATIENCE_S)
        rig.answer_all()
        assert future.succeeded()


def test_concurrent_futures_can_wait_for_several() -> None:
    with Rig({"t": [1, 1]}) as rig:
        futures = [rig.send("t", b"v", partition=i % 2) for i in range(2)]
        concurrents = [f.as_concurrent() for f in futures]
        assert concurrents[0].running()
        assert not concurrents[0].cancel()
        done, waiting = concurrent.futures.wait(concurrents, timeout=0)
        assert (len(done), len(waiting)) == (0, 2)
        (seen,) = rig.requests()
        rig.answer(seen, errors={("t", 1): NOT_AUTHORIZED})
        rig.run_callbacks()
        done, waiting = concurrent.futures.wait(concurrents, timeout=0)
        assert (len(done), len(waiting)) == (2, 0)
        assert concurrents[0].result(0) == futures[0].get(0)
        with pytest.raises(TopicAuthorizationFailedError):
            concurrents[1].result(0)
        assert futures[0].as_concurrent().result(0).offset == 0


async def stepping(rig: Rig) -> None:
    rig.answer_all()
    rig.run_callbacks()


@pytest.mark.parametrize("kind", KINDS)
def test_awaiting_a_future_that_is_done(kind: str) -> None:
    async def main() -> RecordMetadata:
        return await future

    with Rig({"t": [1]}) as rig:
        future = outcome(rig, kind)
        if kind == "acknowledged":
            assert asyncio.run(main()).offset == 0
        else:
            with pytest.raises(TopicAuthorizationFailedError):
                asyncio.run(main())


def test_awaiting_several_times_with_one_cancelled() -> None:
    async def wait(future: RecordFuture) -> RecordMetadata:
        return await future

    async def main(rig: Rig) -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        future = outcome(rig, "pending")
        tasks = [asyncio.ensure_future(wait(future)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(future), 0.01)
        await stepping(rig)
        return await asyncio.gather(*tasks, future, return_exceptions=True)

    problems: list[dict[str, Any]] = []
    with Rig({"t": [1]}) as rig:
        cancelled, *others = asyncio.run(main(rig))
        assert problems == []
        assert isinstance(cancelled, asyncio.CancelledError)
        assert [other.offset for other in others] == [0, 0, 0]


def test_awaiting_a_failure_raises_it_in_every_task() -> None:
    async def main(rig: Rig) -> list[Any]:
        future = rig.send("t", b"v")
        tasks = [asyncio.ensure_future(asyncio.wait_for(future, 20)) for _ in range(2)]
        await asyncio.sleep(0)
        (seen,) = rig.requests()
        rig.answer(seen, NOT_AUTHORIZED)
        rig.run_callbacks()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with Rig({"t": [1]}) as rig:
        assert [type(e) for e in asyncio.run(main(rig))] == [TopicAuthorizationFailedError] * 2


def test_a_closed_event_loop_does_no_harm() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(asyncio.wait_for(future, 20))
        await asyncio.sleep(0)
        task.cancel()

    with Rig({"t": [1]}) as rig:
        future = outcome(rig, "pending")
        asyncio.run(main())
        rig.answer_all()
        rig.run_callbacks()
        assert future.get(0).offset == 0


class NotedError(KafkaError):
    retriable = False


@pytest.mark.parametrize("kind", ["acknowledged", "failed"])
@pytest.mark.slow
def test_errors_and_callbacks_are_freed_with_the_last_future(kind: str) -> None:
    error: KafkaError | None = NotedError("x")
    noted = weakref.ref(error)
    with Rig({"t": [1]}) as rig:
        rig.fates.hook = lambda *_: (None, error)
        futures = [rig.send("t", b"v") for _ in range(3)]
        called: list[Any] = []
        held = called.append
        for future in futures:
            future.add_both(held)
        for seen in rig.requests():
            rig.answer(seen, NOT_AUTHORIZED if kind == "failed" else 0)
        rig.answer_all()
        rig.run_callbacks()
        assert len(called) == 3
        del future, futures, seen
        rig.fates.hook = None
        called.clear()
        error = None
        gc.collect()
        assert rig.pool.used_bytes == 0
        # Every callback that the futures held was released: the only reference left is this function's.
        assert gc.get_referrers(held) == []
    assert noted() is None


@needs_glibc
@pytest.mark.parametrize("path", ["acknowledged", "failed", "parked", "called back", "unplaced"])
@pytest.mark.slow
def test_thousands_of_batches_leave_no_memory_behind(path: str) -> None:
    with Rig({"t": [1]}, linger_ms=0) as rig:

        def one(i: int) -> None:
            if path in ("parked", "unplaced"):
                rig.sender.forget_topic("t")
            future = rig.send("t", b"v", partition=1 if path == "unplaced" else None)
            if path == "called back":
                future.add_both(str)
            if path in ("parked", "unplaced"):
                rig.sender.apply_topic("t", b"", [1])
            if path != "unplaced":
                (seen,) = rig.requests()
                rig.answer(seen, NOT_AUTHORIZED if path == "failed" else 0)
                rig.log.clear()
            rig.run_callbacks()
            assert future.is_done

        for i in range(300):
            one(i)
        rig.fates.failures.clear()
        before = lent_bytes()
        for i in range(2000):
            one(i)
        rig.fates.failures.clear()
        # A delivery has about 100 bytes, a batch 200, a request 300.
        assert lent_bytes() - before < 2000 * 20
        assert rig.pool.used_bytes == 0


@pytest.mark.parametrize("timeout", [1e12, float("inf"), None])
@pytest.mark.parametrize("method", ["result", "exception"])
def test_a_timeout_may_be_longer_than_a_lock_can_wait(method: str, timeout: float | None) -> None:
    with Rig({"t": [1]}) as rig:
        concurrent = rig.send("t", b"v").as_concurrent()
        waiting = Running(getattr(concurrent, method), timeout)
        until_blocked(waiting.thread)
        (seen,) = rig.requests()
        rig.answer(seen, NOT_AUTHORIZED)
        rig.run_callbacks()
        if method == "exception":
            assert isinstance(waiting.outcome(), TopicAuthorizationFailedError)
        else:
            with pytest.raises(TopicAuthorizationFailedError):
                waiting.outcome()
