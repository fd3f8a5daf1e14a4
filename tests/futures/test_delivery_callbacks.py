"""Callbacks of futures: when they run, in which order, with which arguments, and that their errors do no
harm."""

import concurrent.futures
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from cyproducer.errors import TopicAuthorizationFailedError
from cyproducer.futures.callback_thread import CallbackThread
from cyproducer.futures.completion import CompletionQueue
from cyproducer.futures.delivery import RecordFuture, failed_future
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running, until

NOT_AUTHORIZED = 29


class Calls(list[Any]):
    """Notes calls: (name, positional arguments, keyword arguments)."""

    def noting(self, name: str) -> Any:
        return lambda *args, **kwargs: self.append((name, args, kwargs))


def complete(rig: Rig, error: int = 0) -> None:
    for seen in rig.requests():
        rig.answer(seen, error)
    rig.run_callbacks()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("error", [0, NOT_AUTHORIZED])
def test_the_matching_callbacks_run_in_order_with_their_arguments(error: int, early: bool) -> None:
    calls = Calls()
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"v")
        if not early:
            complete(rig, error)
        returned = (
            future.add_callback(calls.noting("success"), 1, 2, key="x")
            .add_errback(calls.noting("failure"), 3)
            .add_both(calls.noting("both"), word="y")
            .add_both(calls.noting("last"))
        )
        assert returned is future
        if early:
            assert calls == []
            complete(rig, error)
        outcome: Any = future.exception if error else future.value
        assert outcome is not None
        first = ("failure", (3, outcome), {}) if error else ("success", (1, 2, outcome), {"key": "x"})
        assert calls == [first, ("both", (outcome,), {"word": "y"}), ("last", (outcome,), {})]
        # Each ran once, even if more are added later.
        future.add_both(calls.noting("late"))
        rig.run_callbacks()
        assert [name for name, *_ in calls] == [first[0], "both", "last", "late"]


def test_callbacks_run_in_the_order_of_the_records_and_of_the_batches() -> None:
    calls: list[int] = []
    with Rig({"t": [1]}, linger_ms=5) as rig:
        for first in (0, 100):
            futures = [rig.send("t", b"v") for _ in range(50)]
            # Added in another order than that of the records.
            for i in sorted(range(50), key=lambda i: i * 7 % 50):
                futures[i].add_callback(lambda metadata: calls.append(metadata.offset))
            rig.advance_ms(5)
            assert len(calls) == first // 2
            complete(rig)
    assert calls == list(range(100))


def test_an_exception_in_a_callback_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()

    def fail(outcome: Any) -> None:
        raise ZeroDivisionError("in a callback")

    with Rig({"t": [1]}, linger_ms=5) as rig, caplog.at_level(logging.ERROR, "cyproducer"):
        for name in ("first", "second"):
            rig.send("t", b"v").add_callback(fail).add_callback(calls.noting(name))
        rig.advance_ms(5)
        complete(rig)
    assert [name for name, *_ in calls] == ["first", "second"]
    logged = [record for record in caplog.records if record.exc_info]
    assert len(logged) == 2
    assert "topic 't'" in logged[0].getMessage()


def test_an_exception_in_a_late_callback_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    failed_future("t", ValueError()).add_errback(lambda _: 1 // 0)
    assert [record.exc_info is not None for record in caplog.records] == [True]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_no_exception_ends_the_callback_thread(kind: type[BaseException]) -> None:
    calls = Calls()

    def fail(outcome: Any) -> None:
        raise kind

    with Rig({"t": [1]}, linger_ms=5) as rig:
        rig.send("t", b"v").add_callback(fail).add_callback(calls.noting("same future"))
        rig.send("t", b"v").add_callback(calls.noting("same batch"))
        rig.advance_ms(5)
        complete(rig)
        assert [name for name, *_ in calls] == ["same future", "same batch"]


@pytest.mark.parametrize("method", ["add_callback", "add_errback", "add_both"])
@pytest.mark.parametrize("arguments", [(), (1,)])
def test_a_callback_that_is_not_callable_is_refused_at_once(method: str, arguments: tuple[int, ...]) -> None:
    future = failed_future("t", ValueError())
    with pytest.raises(TypeError, match="must be callable, not int"):
        getattr(future, method)(3, *arguments)


def test_callbacks_may_add_callbacks_and_send() -> None:
    calls = Calls()
    with Rig({"t": [1]}) as rig:

        def again(metadata: Any) -> None:
            future.add_callback(calls.noting("added inside"))
            rig.send("t", b"2").add_callback(calls.noting("sent inside"))

        future = rig.send("t", b"1").add_callback(again)
        complete(rig)
        complete(rig)
    assert [name for name, *_ in calls] == ["added inside", "sent inside"]


class KafkaPythonFuture:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def success(self, value: Any) -> None:
        self.calls.append(("success", value))

    def failure(self, error: Any) -> None:
        self.calls.append(("failure", type(error)))


@pytest.mark.parametrize("error", [0, NOT_AUTHORIZED])
def test_chain_passes_the_outcome_to_another_future(error: int) -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"v")
        theirs, standard = KafkaPythonFuture(), concurrent.futures.Future[Any]()
        assert future.chain(theirs) is future
        assert future.chain(standard) is future
        complete(rig, error)
        if error:
            assert theirs.calls == [("failure", TopicAuthorizationFailedError)]
            assert isinstance(standard.exception(0), TopicAuthorizationFailedError)
        else:
            assert theirs.calls == [("success", future.value)]
            assert standard.result(0) == future.value


def test_callbacks_of_a_parked_record_follow_it_to_its_batch() -> None:
    calls = Calls()
    with Rig() as rig:
        futures = [rig.send("t", b"v") for _ in range(3)]
        for i, future in enumerate(futures):
            future.add_callback(calls.noting(f"parked {i}"))
        rig.sender.apply_topic("t", b"", [1])
        futures[0].add_callback(calls.noting("placed"))
        assert calls == []
        rig.run_callbacks()
        complete(rig)
        assert [name for name, *_ in calls] == ["parked 0", "placed", "parked 1", "parked 2"]
        assert [args[0].offset for _, args, _ in calls] == [0, 0, 1, 2]


def test_callbacks_of_a_parked_record_run_if_it_was_placed_and_acknowledged_meanwhile() -> None:
    """The record is placed and acknowledged before the callback thread has seen it."""
    calls = Calls()
    with Rig() as rig:
        rig.send("t", b"v").add_callback(calls.noting("once"))
        rig.sender.apply_topic("t", b"", [1])
        rig.answer_all()
        rig.run_callbacks()
        assert [name for name, *_ in calls] == ["once"]


# The queue of completed batches


def test_the_queue_reports_how_many_callbacks_ran_and_when_it_is_closed() -> None:
    with Rig({"t": [1]}, linger_ms=5) as rig:
        for _ in range(3):
            rig.send("t", b"v").add_callback(str)
        rig.advance_ms(5)
        assert rig.completions.run_next(0) == 0
        assert rig.completions.wait_idle(0)
        (seen,) = rig.requests()
        rig.answer(seen)
        assert not rig.completions.wait_idle(0)
        rig.completions.close()
        # Callbacks that are due still run.
        assert rig.completions.run_next(0) == 3
        assert rig.completions.run_next(0) is None
        assert rig.completions.wait_idle(0)


def test_the_queue_is_not_idle_while_a_callback_runs() -> None:
    idle: list[bool] = []
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v").add_callback(lambda _: idle.append(rig.completions.wait_idle(0)))
        complete(rig)
        assert idle == [False]
        assert rig.completions.wait_idle(0)


def test_wait_idle_does_not_wait_for_later_callbacks() -> None:
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v").add_callback(str)
        rig.answer_all()
        waiting = Running(rig.completions.wait_idle, 10 * PATIENCE_S)

        def run_one_of_two() -> bool:
            # The queue is never empty.
            rig.send("t", b"v").add_callback(str)
            rig.answer_all()
            assert rig.completions.run_next(0) == 1
            return not waiting.running

        try:
            until(run_one_of_two, "the end of the wait")
        finally:
            rig.run_callbacks()
            waiting.outcome()


def test_batches_without_callbacks_do_not_enter_the_queue() -> None:
    with Rig({"t": [1]}) as rig:
        future = rig.send("t", b"v")
        for seen in rig.requests():
            rig.answer(seen)
        assert future.is_done
        assert rig.completions.wait_idle(0)


def test_the_callback_thread_starts_with_the_first_callback_and_ends_with_the_queue() -> None:
    starts: list[int] = []
    queue = CompletionQueue(lambda: starts.append(1))
    thread = CallbackThread("callbacks under test")

    def named() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "callbacks under test"]

    with Rig({"t": [1]}, completions=thread.queue) as rig, Rig({"t": [1]}, completions=queue) as other:
        rig.send("t", b"v")
        other.send("t", b"v")
        assert (named(), starts) == ([], [])
        arrived = threading.Event()
        inside: list[bool] = []

        def note(metadata: Any) -> None:
            inside.append(thread.is_current())
            arrived.set()

        rig.send("t", b"v").add_callback(note)
        for _ in range(2):
            other.send("t", b"v").add_callback(str)
        assert (len(named()), starts) == (1, [1])
        rig.answer_all()
        assert arrived.wait(PATIENCE_S)
        assert thread.wait_idle(PATIENCE_S)
        assert (inside, thread.is_current()) == ([True], False)
        thread.close(PATIENCE_S)
        until(lambda: not named(), "the end of the callback thread")


def test_threads_add_callbacks_while_the_batch_completes() -> None:
    """Each callback runs exactly once, whether it is added before or after the completion."""
    per_thread, rounds = 50, 20
    with Rig({"t": [1]}) as rig:
        for _ in range(rounds):
            future: RecordFuture = rig.send("t", b"v")
            calls: list[int] = []
            barrier = threading.Barrier(5)

            def add(first: int) -> None:
                barrier.wait()  # noqa: B023
                for i in range(first, first + per_thread):
                    future.add_callback(lambda _, i=i: calls.append(i))  # noqa: B023

            adding = [Running(add, i * per_thread) for i in range(4)]
            (seen,) = rig.requests()
            barrier.wait()
            rig.answer(seen)
            for call in adding:
                call.outcome()
            rig.run_callbacks()
            assert sorted(calls) == list(range(4 * per_thread))


def many(rig: Rig) -> Any:
    return rig.path.send_many("t", [b"1", b"2"])


@pytest.mark.parametrize("send", [lambda rig: rig.send("t", b"1"), many], ids=["one", "many"])
def test_a_callback_added_while_others_are_due_runs_after_them_on_their_thread(send: Any) -> None:
    """If it ran at once, it could still be running when a flush sees that the callback thread is done."""
    calls: list[tuple[str, int]] = []

    def noting(name: str) -> Any:
        return lambda _: calls.append((name, threading.get_ident()))

    with Rig({"t": [1]}) as rig:
        future = send(rig).add_callback(noting("early"))
        for seen in rig.requests():
            rig.answer(seen)
        assert future.is_done
        Running(future.add_callback, noting("late")).outcome()
        assert calls == []
        assert not rig.completions.wait_idle(0)
        rig.run_callbacks()
        assert rig.completions.wait_idle(0)
        assert calls == [("early", threading.get_ident()), ("late", threading.get_ident())]


def test_a_callback_thread_that_failed_to_start_is_started_again() -> None:
    asked = []

    def start() -> None:
        asked.append(1)
        if len(asked) == 1:
            raise RuntimeError("can't start new thread")

    calls = Calls()
    with Rig({"t": [1]}, completions=CompletionQueue(start)) as rig:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            rig.send("t", b"1").add_callback(calls.noting("first"))
        rig.send("t", b"2").add_callback(calls.noting("second"))
        assert len(asked) == 2
        complete(rig)
        assert [name for name, *_ in calls] == ["first", "second"]


def test_closing_waits_for_a_thread_that_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, go_on = threading.Event(), threading.Event()
    start = threading.Thread.start

    def slow(thread: threading.Thread) -> None:
        if thread.name == "callbacks":
            starting.set()
            assert go_on.wait(PATIENCE_S)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    callbacks = CallbackThread("callbacks")
    starter = Running(callbacks.queue.ensure_started)
    assert starting.wait(PATIENCE_S)
    callbacks.close(0)
    closer = Running(callbacks.close, PATIENCE_S)
    go_on.set()
    starter.outcome()
    closer.outcome()
    assert callbacks._thread is not None
    assert not callbacks._thread.is_alive()


def test_an_outcome_is_stored_before_interest_is_checked() -> None:
    """Checks the order of two source lines: thousands of test runs did not hit the race of the wrong order.

    1. The sender sees that nothing is interested.
    2. A thread adds a callback; the state is still pending.
    3. The sender stores the state, and the callback never runs.
    From 1 to 3 it takes a few nanoseconds, without the GIL.
    """
    body = function("cdef void settled(Delivery* d, int32_t state) noexcept nogil:")
    assert body.count("cyp_store32(&d.state, state)") == body.count("cyp_load32(&d.interested)") == 1
    assert body.index("cyp_store32(&d.state, state)") < body.index("cyp_load32(&d.interested)")


def test_interest_is_registered_before_the_state_is_read() -> None:
    """The other side of the same race, which no test run hits either.

    1. A thread that adds a callback sees that the record is pending.
    2. The sender stores the state, and sees that nothing is interested.
    3. The thread registers its interest, and the callback never runs.
    """
    adding = function("cdef bint list_callback(Delivery* d, RecordFuture future) noexcept:")
    assert adding.count("cyp_add32(&d.interested, 1)") == adding.count("cyp_load32(&d.state)") == 1
    assert adding.index("cyp_add32(&d.interested, 1)") < adding.index("cyp_load32(&d.state)")
    waiting = function("cdef int delivery_await(Delivery* d, int64_t until) except -1:")
    assert waiting.index("cyp_add32(&d.interested, 1)") < waiting.index("sleep_until_settled(d, until)")


def function(head: str) -> str:
    """The source of a function of ``delivery.pyx``."""
    text = (Path(__file__).resolve().parents[2] / "cyproducer/futures/delivery.pyx").read_text()
    assert text.count(head) == 1
    return text.partition(head)[2].partition("\n\n\n")[0]


def test_a_disowned_queue_is_idle_and_runs_nothing() -> None:
    """Nobody in the child runs what is queued, so that a wait for it would last its whole timeout."""
    called: list[object] = []
    with Rig({"t": [1]}) as rig:
        rig.send("t", b"v").add_callback(called.append)
        rig.answer_all()
        queue = rig.completions
        assert not queue.wait_idle(0)
        assert queue.backlog == 1
        queue.disown()
        assert queue.wait_idle(0)
        assert queue.backlog == 0
        assert queue.run_next(0) is None
    assert called == []
