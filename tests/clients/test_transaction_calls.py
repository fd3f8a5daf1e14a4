"""The calls of transactions: what they wait for, what is lost, and how a transaction ends with its producer.

Whole producers against scripted brokers. What is on the wire in which order is tested in
``test_transaction_client``.
"""

import asyncio
import gc
import logging
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer import errors
from cyproducer._runtime import Runtime
from cyproducer.control.transaction_calls import State
from cyproducer.producer import KafkaProducer
from cyproducer.structs import ConsumerGroupMetadata
from tests.forked import in_child, needs_fork
from tests.programs import Program
from tests.scripted.producing import WAIT_S, FailingSelector, await_end_of_threads, options, producing
from tests.scripted.scripted_broker import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Act,
    ScriptedCluster,
)
from tests.scripted.scripted_transactions import InitProducerId
from tests.scripted.transacting import (
    GROUP,
    OFFSETS,
    after_a_step,
    batches,
    begun,
    client_of,
    sent,
    state_of,
    trace,
    transacting,
    written,
)
from tools.harness.until import Running, until, until_blocked

UNAUTHORIZED, FENCED, DENIED, COORDINATOR_GONE, NOT_ENOUGH_REPLICAS = 29, 90, 53, 15, 19
CONCURRENT = 51
ENDS = {"commit", "abort"}


class Failed(Exception):
    """The program's own."""


def test_calls_that_are_done_are_let_go_of(second: ScriptedCluster) -> None:
    with transacting(second) as producer:
        for _ in range(3):
            with producer.transaction(WAIT_S):
                producer.send("t", b"v")
        until(lambda: not client_of(producer)._calls, "no call to be kept")


def test_the_sender_accepts_records_before_the_program_is_told_that_it_does(second: ScriptedCluster) -> None:
    class Watched:
        """The sender, which looks whether anybody is told too early."""

        def __getattr__(self, name: str) -> Any:
            return getattr(sender, name)

        def begin_transaction(self) -> None:
            told.append([call.told for call in client._calls])
            sender.begin_transaction()

    with transacting(second) as producer:
        told: list[list[bool]] = []
        client = client_of(producer)
        sender = client._sender
        client._sender = Watched()  # type: ignore[assignment]
        producer.begin_transaction()
        assert told == [[False]]
        producer.abort_transaction(WAIT_S)


# Calls that time out


def test_an_init_that_times_out_goes_on_and_the_same_call_joins_it(second: ScriptedCluster) -> None:
    hold = threading.Event()
    second.act(INIT_PRODUCER_ID, Act(hold=hold))
    with producing(second, transactional_id="tx") as producer:
        with pytest.raises(errors.KafkaTimeoutError, match="call it again to wait for its outcome"):
            producer.init_transactions(0.001)
        second.wait_for_requests(INIT_PRODUCER_ID, 1)
        with pytest.raises(errors.IllegalStateError, match=r"call init_transactions\(\) again"):
            producer.begin_transaction()
        again = Running(producer.init_transactions, WAIT_S)
        until_blocked(again.thread)
        hold.set()
        again.outcome()
        producer.begin_transaction()
    assert trace(second) == ["InitProducerId"]


COMMIT_STEPS = {"produce": PRODUCE, "end": END_TXN, "find": FIND_COORDINATOR}


@pytest.mark.parametrize("step", COMMIT_STEPS)
@pytest.mark.parametrize("seen", ["before", "after"])
def test_a_commit_that_times_out_has_one_outcome(second: ScriptedCluster, step: str, seen: str) -> None:
    """Behaviour "a commit that times out goes on"; ``seen``: when the program looks again."""
    hold = threading.Event()
    with begun(second) as producer:
        if step != "produce":
            producer.send("t", b"v", partition=0).get(WAIT_S)
        if step == "find":
            client_of(producer).machine._coordinators.clear()
        before = len(second.received(COMMIT_STEPS[step]))
        second.act(COMMIT_STEPS[step], Act(hold=hold))
        if step == "produce":
            producer.send("t", b"v", partition=0)
        with pytest.raises(errors.KafkaTimeoutError):
            producer.commit_transaction(0.05)
        second.wait_for_requests(COMMIT_STEPS[step], before + 1)
        if step == "end":
            with pytest.raises(errors.IllegalStateError, match="its outcome is open"):
                producer.abort_transaction()
        with pytest.raises(errors.IllegalStateError):
            producer.begin_transaction()
        with pytest.raises(errors.IllegalStateError):
            producer.send("t", b"w")
        if seen == "before":
            again = Running(producer.commit_transaction, WAIT_S)
            until_blocked(again.thread)
            hold.set()
            again.outcome()
        else:
            hold.set()
            until(lambda: state_of(producer) is State.READY, "the commit")
            with pytest.raises(errors.IllegalStateError, match="timed out and has succeeded since"):
                producer.begin_transaction()
            producer.commit_transaction()
        with pytest.raises(errors.IllegalStateError):
            producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
    assert trace(second) == ["InitProducerId", "Produce", "commit"]


def test_a_commit_that_waits_for_records_may_be_aborted(second: ScriptedCluster) -> None:
    hold = threading.Event()
    with begun(second) as producer:
        second.act(PRODUCE, Act(hold=hold))
        producer.send("t", b"v", partition=0)
        second.wait_for_requests(PRODUCE, 1)
        commit = Running(producer.commit_transaction, WAIT_S)
        until(lambda: state_of(producer) is State.COMMITTING, "the commit")
        abort = Running(producer.abort_transaction, WAIT_S)
        with pytest.raises(errors.IllegalStateError, match=r"abort_transaction\(\) was called meanwhile"):
            commit.outcome()
        hold.set()
        abort.outcome()
    assert trace(second) == ["InitProducerId", "Produce", "abort"]


@pytest.mark.parametrize("seen", ["before", "after"])
def test_an_abort_that_times_out_goes_on(second: ScriptedCluster, seen: str) -> None:
    hold = threading.Event()
    with written(second) as producer:
        second.act(END_TXN, Act(hold=hold))
        with pytest.raises(errors.KafkaTimeoutError):
            producer.abort_transaction(0.05)
        with pytest.raises(errors.IllegalStateError, match=r"call abort_transaction\(\) again"):
            producer.commit_transaction()
        if seen == "before":
            again = Running(producer.abort_transaction, WAIT_S)
            until_blocked(again.thread)
            hold.set()
            again.outcome()
        else:
            hold.set()
            until(lambda: state_of(producer) is State.READY, "the abort")
            producer.abort_transaction()
        producer.begin_transaction()
    assert trace(second)[:3] == ["InitProducerId", "Produce", "abort"]


def test_offsets_that_time_out_go_on_and_the_same_call_joins_them(second: ScriptedCluster) -> None:
    hold = threading.Event()
    with begun(second) as producer:
        second.act(TXN_OFFSET_COMMIT, Act(hold=hold))
        with pytest.raises(errors.KafkaTimeoutError, match=r"send_offsets_to_transaction\(\) not complete"):
            producer.send_offsets_to_transaction(OFFSETS, GROUP, 0.05)
        with pytest.raises(errors.IllegalStateError, match="call it again with the same offsets"):
            producer.send_offsets_to_transaction({("in", 0): 1}, GROUP, 0.05)
        again = Running(producer.send_offsets_to_transaction, OFFSETS, GROUP, WAIT_S)
        until_blocked(again.thread)
        hold.set()
        again.outcome()
        producer.commit_transaction(WAIT_S)
    assert trace(second) == ["InitProducerId", "CommitOffsets", "commit"]


def test_a_prepare_that_times_out_goes_on(second: ScriptedCluster) -> None:
    hold = threading.Event()
    with begun(second) as producer:
        second.act(PRODUCE, Act(hold=hold))
        producer.send("t", b"v", partition=0)
        with pytest.raises(errors.KafkaTimeoutError):
            producer.prepare_transaction(0.05)
        hold.set()
        until(lambda: state_of(producer) is State.PREPARED, "prepared")
        with pytest.raises(errors.IllegalStateError, match="timed out and has succeeded since"):
            producer.commit_transaction()
        assert not producer.prepare_transaction().empty
        producer.commit_transaction(WAIT_S)


def test_a_group_without_its_metadata_is_warned_of_once(
    second: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour "a bare group id": it is accepted, and no former member is refused."""
    with transacting(second) as producer, caplog.at_level(logging.WARNING, "cyproducer"):
        told = []
        for group in (GROUP, "g", "g"):
            with producer.transaction(WAIT_S):
                producer.send_offsets_to_transaction(OFFSETS, group, WAIT_S)
            told.append(len(caplog.records))
    assert told == [0, 1, 1]
    assert "for group 'g' without the group's metadata" in caplog.text
    asked: list[Any] = [each.transaction for each in sent(second, "CommitOffsets")]
    assert [each.group for each in asked] == [GROUP, *[ConsumerGroupMetadata("g")] * 2]


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction", "prepare_transaction"])
def test_a_wrong_timeout_changes_nothing(second: ScriptedCluster, call: str) -> None:
    with begun(second) as producer:
        with pytest.raises(ValueError, match="timeout=-1"):
            getattr(producer, call)(-1)
        assert state_of(producer) is State.IN_TRANSACTION


# The wrong state


def test_calls_in_the_wrong_state_raise_at_once_and_change_nothing(second: ScriptedCluster) -> None:
    with producing(second, transactional_id="tx") as producer:
        for call in (
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            producer.prepare_transaction,
        ):
            with pytest.raises(errors.IllegalStateError, match=r"call init_transactions\(\) first"):
                call()
        producer.init_transactions(WAIT_S)
        with pytest.raises(errors.IllegalStateError, match="called once"):
            producer.init_transactions()
        with pytest.raises(errors.IllegalStateError, match=r"call begin_transaction\(\) first"):
            producer.send_offsets_to_transaction(OFFSETS, GROUP)
        producer.begin_transaction()
        with pytest.raises(errors.IllegalStateError, match="commit or abort it first"):
            producer.begin_transaction()
        producer.send("t", b"v")
        producer.commit_transaction(WAIT_S)
    assert trace(second) == ["InitProducerId", "Produce", "commit"]


def test_a_producer_without_an_id_has_no_transactions(second: ScriptedCluster) -> None:
    with producing(second) as producer:
        for call in (producer.init_transactions, producer.begin_transaction, producer.transaction):
            with pytest.raises(errors.IllegalStateError, match=r"KafkaProducer\(transactional_id=\.\.\.\)"):
                call()


def test_a_record_before_the_first_step_says_what_is_missing(second: ScriptedCluster) -> None:
    """Not that the producer is closed."""
    config = KafkaProducer(**options(second, transactional_id="tx"))
    try:
        # A runtime that has not started.
        runtime = Runtime(config.config, config._partitioner)
        try:
            error = runtime.accumulator.why_refused("closed")
            assert type(error) is errors.IllegalStateError
            assert "not initialized" in str(error)
        finally:
            runtime.close(0)
    finally:
        config.close(0)


@pytest.mark.parametrize("state", ["before init", "before begin", "committing", "prepared"])
def test_a_record_without_a_transaction_is_refused_at_once(second: ScriptedCluster, state: str) -> None:
    hold = threading.Event()
    with producing(second, transactional_id="tx", max_block_ms=WAIT_S * 1000) as producer:
        if state != "before init":
            producer.init_transactions(WAIT_S)
        if state in ("committing", "prepared"):
            producer.begin_transaction()
            second.act(PRODUCE, Act(hold=hold))
            producer.send("t", b"v", partition=0)
            if state == "prepared":
                hold.set()
                producer.prepare_transaction(WAIT_S)
            else:
                commit = Running(producer.commit_transaction, WAIT_S)
                until(lambda: state_of(producer) is State.COMMITTING, "the commit")
                after_a_step(producer)
        for way in (
            lambda: producer.send("t", b"v"),
            lambda: producer.send("unknown", b"v"),
            lambda: producer.send_many("t", [b"v", b"w"]),
            lambda: asyncio.run(producer.send_async("t", b"v")),
        ):
            with pytest.raises(errors.IllegalStateError, match=r"call begin_transaction\(\) before it"):
                way()
        (future,) = producer.send_all([("t", b"v")])
        assert type(future.exception) is errors.IllegalStateError
        hold.set()
        if state == "committing":
            commit.outcome()
        elif state == "prepared":
            producer.commit_transaction(WAIT_S)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_record_without_a_transaction_does_not_wait_for_callbacks(
    second: ScriptedCluster, asynchronous: bool
) -> None:
    """Behaviour "an error at once, buffer full or not"."""
    stuck = threading.Event()
    with begun(second, max_pending_callbacks=2, batch_size=0) as producer:
        for number in range(2):
            producer.send("t", b"%d" % number).add_callback(lambda metadata: stuck.wait(WAIT_S))
        until(lambda: producer._runtime.callbacks.queue.backlog >= 2, "the backlog")
        producer.abort_transaction(WAIT_S)
        began = time.monotonic()
        with pytest.raises(errors.IllegalStateError):
            asyncio.run(producer.send_async("t", b"v")) if asynchronous else producer.send("t", b"v")
        assert time.monotonic() - began < WAIT_S / 4
        stuck.set()


# What is lost


def test_one_record_of_a_thousand_fails_unseen(cluster: ScriptedCluster) -> None:
    """Behaviour "one fails, future dropped: commit raises"."""
    with begun(cluster) as producer:
        for number in range(1000):
            producer.send("t", b"%d" % number, partition=0)
        cluster.topics["t"].partitions[1].error = UNAUTHORIZED
        producer.send("t", b"the one", partition=1)
        gc.collect()
        with pytest.raises(errors.TransactionFailedError) as caught:
            producer.commit_transaction(WAIT_S)
        assert type(caught.value.__cause__) is errors.TopicAuthorizationFailedError
        assert "commit" not in trace(cluster)
        producer.abort_transaction(WAIT_S)
        assert "abort" in trace(cluster)


def raises_in_serializer(value: bytes) -> bytes:
    if value == b"bad":
        raise Failed("in the serializer")
    return value


class BadPartitioner:
    def __call__(self, key: Any, available: Any, every: Any) -> int:
        raise Failed("in the partitioner")


LOSSES: dict[str, tuple[dict[str, Any], Callable[[KafkaProducer], object], type[Exception]]] = {
    "too large": (
        {"max_request_size": 1000},
        lambda p: p.send("t", bytes(2000)),
        errors.RecordTooLargeError,
    ),
    "serializer": ({"value_serializer": raises_in_serializer}, lambda p: p.send("t", b"bad"), Failed),
    "partitioner": ({"partitioner": BadPartitioner()}, lambda p: p.send("t", b"v"), Failed),
    "unknown partition": ({}, lambda p: p.send("t", b"v", partition=9), errors.UnknownTopicOrPartitionError),
    "wrong type": ({}, lambda p: p.send("t", "text"), TypeError),
    "wrong topic": ({}, lambda p: p.send("no/topic", b"v"), errors.InvalidTopicError),
    "nothing to send": ({}, lambda p: p.send("t"), ValueError),
    "no metadata": ({"max_block_ms": 100}, lambda p: p.send("unknown", b"v"), errors.KafkaTimeoutError),
    "refused topic": ({}, lambda p: p.send("secret", b"v"), errors.TopicAuthorizationFailedError),
    "no memory": (
        {"buffer_memory": 4096, "max_block_ms": 50},
        lambda p: p.send("t", bytes(8000)),
        errors.KafkaError,
    ),
    "send_all": ({}, lambda p: p.send_all([{"topic": "t", "wrong": 1}]), TypeError),
    "send_all, serializer": (
        {"value_serializer": raises_in_serializer},
        lambda p: p.send_all([("t", b"good"), ("t", b"bad")]),
        Failed,
    ),
    "send_many, wrong type": ({}, lambda p: p.send_many("t", [b"v", "text"]), TypeError),
    "send_many, wrong topic": ({}, lambda p: p.send_many("no/topic", [b"v"]), errors.InvalidTopicError),
    "send_many, partition": ({}, lambda p: p.send_many("t", [b"v"], partition="x"), TypeError),  # type: ignore[arg-type]
    "send_many, too large": (
        {"max_request_size": 1000},
        lambda p: p.send_many("t", [b"v", bytes(2000)]),
        errors.RecordTooLargeError,
    ),
    "send_many, serializer": (
        {"value_serializer": raises_in_serializer},
        lambda p: p.send_many("t", [b"v", b"bad"]),
        Failed,
    ),
    "send_many, interceptor": (
        {
            "interceptors": [
                SimpleNamespace(on_send=lambda r: r._replace(topic="u") if r.value == b"bad" else r)
            ]
        },
        lambda p: p.send_many("t", [b"v", b"bad"]),
        ValueError,
    ),
    "send_arrow, wrong type": ({}, lambda p: p.send_arrow("t", [1, 2]), TypeError),
    "send_async": ({}, lambda p: asyncio.run(p.send_async("t", "text")), TypeError),
    "send_async, serializer": (
        {"value_serializer": raises_in_serializer},
        lambda p: asyncio.run(p.send_async("t", b"bad")),
        Failed,
    ),
    "send_async, too large": (
        {"max_request_size": 1000},
        lambda p: asyncio.run(p.send_async("t", bytes(2000))),
        errors.RecordTooLargeError,
    ),
    "send_async, unknown partition": (
        {},
        lambda p: asyncio.run(p.send_async("t", b"v", partition=9)),
        errors.UnknownTopicOrPartitionError,
    ),
}


def outcome(found: Any) -> object:
    return (found[-1] if isinstance(found, list) else found).get(WAIT_S)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_record_that_was_not_accepted_is_missed(second: ScriptedCluster, loss: str) -> None:
    """Behaviour "a record refused before it was buffered": commit raises, whatever the program overlooked."""
    given, send, kind = LOSSES[loss]
    second.create_topic("secret").error = 29
    with begun(second, **given) as producer:
        if "artition" not in loss:
            producer.send("t", b"good")
        with pytest.raises(kind):
            # Some ways to send raise, others return futures.
            outcome(send(producer))
        with pytest.raises(errors.TransactionFailedError) as caught:
            producer.commit_transaction(WAIT_S)
        assert isinstance(caught.value.__cause__, kind), caught.value.__cause__
        producer.abort_transaction(WAIT_S)
        producer.begin_transaction()
        if "artition" not in loss:
            producer.send("t", b"good").get(WAIT_S)
            producer.commit_transaction(WAIT_S)
    assert "commit" not in trace(second)[: len(trace(second)) - 1]


def test_a_record_that_was_refused_is_missed_however_soon_the_commit_follows(second: ScriptedCluster) -> None:
    """The sender takes the error and the commit in the order in which they came."""
    with transacting(second) as producer:
        client = client_of(producer)
        submitted = client._submitted

        class Late(type(submitted)):  # type: ignore[misc]
            """Empty until the commit is there: the step has looked before the record was refused."""

            complete = False

            def __bool__(self) -> bool:
                self.complete = self.complete or len(self) >= 2
                return self.complete and len(self) > 0

        producer.begin_transaction()
        client._submitted = Late()
        with pytest.raises(TypeError):
            producer.send("t", "text")
        with pytest.raises(errors.AbortableError):
            producer.commit_transaction(WAIT_S)
        producer.abort_transaction(WAIT_S)


def test_a_record_that_no_transaction_lacks_fails_none(second: ScriptedCluster) -> None:
    with transacting(second) as producer:
        with pytest.raises(TypeError):
            producer.send("t", "text")
        with producer.transaction(WAIT_S):
            producer.send("t", b"v")
        with pytest.raises(errors.IllegalStateError):
            producer.send("t", b"v")
        producer.begin_transaction()
        producer.commit_transaction()


# Callbacks


def test_callbacks_run_before_the_transaction_ends(cluster: ScriptedCluster) -> None:
    """Behaviour "commit runs the callbacks"."""
    entered, leave = threading.Event(), threading.Event()
    ran: list[object] = []

    def callback(metadata: object) -> None:
        entered.set()
        leave.wait(WAIT_S)
        ran.append(metadata)

    with begun(cluster) as producer:
        producer.send("t", b"v", partition=0).add_callback(callback)
        commit = Running(producer.commit_transaction, WAIT_S)
        assert entered.wait(WAIT_S)
        until(lambda: state_of(producer) is State.COMMITTING, "the commit")
        after_a_step(producer)
        assert "commit" not in trace(cluster)
        leave.set()
        commit.outcome()
        assert len(ran) == 1
        assert trace(cluster)[-1] == "commit"


def test_a_callback_that_does_not_return_lets_the_commit_time_out(second: ScriptedCluster) -> None:
    leave = threading.Event()
    with begun(second) as producer:
        producer.send("t", b"v").add_callback(lambda metadata: leave.wait(WAIT_S))
        with pytest.raises(errors.KafkaTimeoutError, match="callbacks have not returned; call it again"):
            producer.commit_transaction(0.2)
        assert "commit" not in trace(second)
        leave.set()
        producer.commit_transaction(WAIT_S)
    assert trace(second)[-1] == "commit"


def test_calls_in_a_callback_are_refused(second: ScriptedCluster) -> None:
    raised: list[BaseException] = []
    with begun(second) as producer:

        def callback(metadata: object) -> None:
            for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
                try:
                    call()
                except errors.IllegalStateError as error:
                    raised.append(error)

        producer.send("t", b"v").add_callback(callback)
        producer.commit_transaction(WAIT_S)
    assert len(raised) == 3
    assert all("in a callback would wait for itself" in str(error) for error in raised)


def test_an_error_callback_of_a_failed_commit_runs(second: ScriptedCluster) -> None:
    ran: list[BaseException] = []
    second.topics["t"].partitions[0].error = UNAUTHORIZED
    with begun(second) as producer:
        producer.send("t", b"v", partition=0).add_errback(ran.append)
        with pytest.raises(errors.AbortableError):
            producer.commit_transaction(WAIT_S)
        until(lambda: ran, "the callback")
        producer.abort_transaction(WAIT_S)


def test_a_commit_does_not_linger_and_lingering_comes_back(second: ScriptedCluster) -> None:
    with begun(second, linger_ms=WAIT_S * 1000, delivery_timeout_ms=WAIT_S * 3000) as producer:
        producer.send("t", b"v", partition=0)
        began = time.monotonic()
        producer.commit_transaction(WAIT_S)
        assert time.monotonic() - began < WAIT_S / 2
        producer.begin_transaction()
        future = producer.send("t", b"w", partition=0)
        after_a_step(producer)
        assert not future.is_done
        assert len(second.received(PRODUCE)) == 1
        producer.abort_transaction(WAIT_S)


# Closing


@pytest.mark.parametrize("state", ["in a transaction", "failed", "preparing"])
def test_closing_aborts_an_open_transaction(cluster: ScriptedCluster, state: str) -> None:
    """Behaviour "close aborts an open transaction"."""
    hold = threading.Event()
    with written(cluster, b"0") as producer:
        if state == "failed":
            with pytest.raises(TypeError):
                producer.send("t", 1)
        elif state == "preparing":
            cluster.act(PRODUCE, Act(hold=hold))
            producer.send("t", b"1", partition=0)
            prepare = Running(producer.prepare_transaction, WAIT_S)
            until(lambda: state_of(producer) is State.PREPARING, "it")
        close = Running(producer.close, WAIT_S)
        hold.set()
        close.outcome()
        if state == "preparing":
            with pytest.raises(errors.ProducerClosedError):
                prepare.outcome()
    assert [name for name in trace(cluster) if name in ENDS] == ["abort"]


def test_closing_fails_what_is_buffered(second: ScriptedCluster) -> None:
    with begun(second, linger_ms=10_000) as producer:
        futures = [producer.send("t", b"%d" % number) for number in range(10)]
        producer.close(WAIT_S)
        assert {type(future.exception) for future in futures} == {errors.TransactionAbortedError}
    assert trace(second) == ["InitProducerId"]


def test_closing_awaits_a_commit(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    with written(cluster, b"0") as producer:
        cluster.act(END_TXN, Act(hold=hold))
        commit = Running(producer.commit_transaction, WAIT_S)
        cluster.wait_for_requests(END_TXN, 1)
        close = Running(producer.close, WAIT_S)
        until_blocked(close.thread)
        hold.set()
        close.outcome()
        commit.outcome()
    assert [name for name in trace(cluster) if name in ENDS] == ["commit"]


def test_closing_leaves_a_prepared_transaction_alone(cluster: ScriptedCluster) -> None:
    with begun(cluster) as producer:
        producer.send("t", b"0", partition=0)
        producer.prepare_transaction(WAIT_S)
        producer.close(WAIT_S)
    assert not ENDS & set(trace(cluster))
    assert cluster.coordinator.transactions["tx"].state == "Ongoing"


def test_closing_after_a_fatal_error_sends_no_end(cluster: ScriptedCluster) -> None:
    cluster.act(PRODUCE, Act(error=FENCED))
    with begun(cluster) as producer:
        future = producer.send("t", b"0", partition=0)
        assert future.add_errback(lambda error: None)
        until(lambda: state_of(producer) is State.FATAL_ERROR, "it")
        producer.close(WAIT_S)
    assert not ENDS & set(trace(cluster))


@pytest.mark.parametrize("state", ["not initialized", "initializing", "ready"])
def test_closing_without_a_transaction_waits_for_nothing_and_says_nothing(
    second: ScriptedCluster, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    for timeout in (0, WAIT_S):
        with producing(second, transactional_id="tx") as producer:
            if state == "ready":
                producer.init_transactions(WAIT_S)
            elif state == "initializing":
                second.act(INIT_PRODUCER_ID, Act(silent=True))
                with pytest.raises(errors.KafkaTimeoutError):
                    producer.init_transactions(0.01)
            with caplog.at_level(logging.WARNING, "cyproducer"):
                producer.close(timeout)
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.slow
def test_closing_is_bounded_although_no_coordinator_answers(
    second: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """``close()`` without a timeout is as long as ``delivery_timeout_ms`` allows."""
    given: dict[str, Any] = {"delivery_timeout_ms": 1000, "request_timeout_ms": 500}
    with written(second, **given) as producer:
        second.script = lambda received: Act(silent=True)
        began = time.monotonic()
        Running(producer.close).outcome()
        assert 0.9 < time.monotonic() - began < WAIT_S
    text = "its transaction was not ended in time; the broker aborts it after transaction_timeout_ms=60000"
    assert text in caplog.text


def test_another_close_with_an_earlier_deadline_ends_the_wait(second: ScriptedCluster) -> None:
    with written(second) as producer:
        second.act(END_TXN, Act(silent=True))
        first = Running(producer.close, 1000)
        second.wait_for_requests(END_TXN, 1)
        producer.close(0)
        first.outcome()


def test_a_call_that_waits_ends_with_the_producer(second: ScriptedCluster) -> None:
    with written(second) as producer:
        second.act(END_TXN, Act(silent=True))
        commit = Running(producer.commit_transaction, 1000)
        second.wait_for_requests(END_TXN, 1)
        producer.close(0)
        with pytest.raises(errors.ProducerClosedError):
            commit.outcome()
        for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(errors.ProducerClosedError):
                call()
        with pytest.raises(errors.ProducerClosedError):
            producer.send("t", b"v")


def test_no_call_waits_for_a_sender_that_has_failed(second: ScriptedCluster) -> None:
    FailingSelector.fail.clear()
    with written(second, selector=FailingSelector) as producer:
        second.act(END_TXN, Act(silent=True))
        commit = Running(producer.commit_transaction, 1000)
        second.wait_for_requests(END_TXN, 1)
        FailingSelector.fail.set()
        producer._runtime.sender.wake()
        with pytest.raises(errors.KafkaError, match="the sender thread failed: LookupError"):
            commit.outcome()
        # It has no timeout of its own.
        with pytest.raises(errors.KafkaError, match="the sender thread failed: LookupError"):
            Running(producer.begin_transaction).outcome()
        producer.close(WAIT_S)


def test_a_collected_producer_aborts_its_transaction(second: ScriptedCluster) -> None:
    before = set(threading.enumerate())
    # The collection below may hold the GIL for longer than the timeout of other tests.
    producer: Any = KafkaProducer(**options(second, transactional_id="tx", close_timeout_ms=WAIT_S * 1000))
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.send("t", b"v").get(WAIT_S)
    del producer
    gc.collect()
    second.wait_for(lambda: "abort" in trace(second))
    # While there is a broker to answer: otherwise it would go on closing beside later tests.
    await_end_of_threads(before)


LEFT = """
import sys
from cyproducer import KafkaProducer, errors

servers, state = sys.argv[1].split(","), sys.argv[2]
producer = KafkaProducer(bootstrap_servers=servers, transactional_id="tx", retry_backoff_ms=10)
producer.init_transactions()
producer.begin_transaction()
producer.send("t", b"v", partition=0).get(20)
if state == "prepared":
    producer.prepare_transaction()
elif state == "committing":
    try:
        producer.commit_transaction(0.1)
    except errors.KafkaTimeoutError:
        pass
print("ends", flush=True)
if state == "raising":
    raise LookupError("in the program")
"""


@pytest.mark.parametrize(
    ("state", "ends"),
    [("open", ["abort"]), ("raising", ["abort"]), ("committing", ["commit", "commit"]), ("prepared", [])],
)
def test_the_end_of_the_program_ends_its_transaction(
    second: ScriptedCluster, state: str, ends: list[str]
) -> None:
    """Behaviour "interpreter's end"."""
    hold = threading.Event()
    if state == "committing":
        # So the commit needs another request, after the program's last line.
        second.act(END_TXN, Act(hold=hold, error=CONCURRENT))
    with Program(LEFT, ",".join(second.bootstrap_servers), state) as program:
        program.hear("ends")
        hold.set()
        assert program.end() == (state == "raising"), program.said
    assert [name for name in trace(second) if name in ENDS] == ends


# with producer.transaction()


def raising_block(producer: KafkaProducer, kind: type[BaseException], timeout: float | None = WAIT_S) -> None:
    with producer.transaction(timeout):
        producer.send("t", b"v").get(WAIT_S)
        raise kind("in the block")


def careless_block(producer: KafkaProducer) -> None:
    with producer.transaction(WAIT_S):
        producer.send("t", b"v").get(WAIT_S)
        with suppress(TypeError):
            producer.send("t", 1)


def test_a_block_commits_at_its_end(cluster: ScriptedCluster) -> None:
    with transacting(cluster) as producer:
        for _ in range(2):
            with producer.transaction():
                producer.send("t", b"v", partition=0)
        names = trace(cluster)
    assert names.count("commit") == 2
    assert "abort" not in names


@pytest.mark.parametrize("kind", [Failed, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_in_a_block_aborts_and_goes_on(
    second: ScriptedCluster, kind: type[BaseException]
) -> None:
    """Behaviour "exceptions, Ctrl-C"."""
    with transacting(second) as producer:
        with pytest.raises(kind):
            raising_block(producer, kind)
        with producer.transaction():
            producer.send("t", b"w")
    assert trace(second) == ["InitProducerId", "Produce", "abort", "Produce", "commit"]


def test_a_commit_that_fails_aborts_and_raises(second: ScriptedCluster) -> None:
    with transacting(second) as producer:
        with pytest.raises(errors.TransactionFailedError):
            careless_block(producer)
        assert state_of(producer) is State.READY
    assert trace(second) == ["InitProducerId", "Produce", "abort"]


def test_an_abort_that_fails_does_not_hide_the_exception_of_the_block(second: ScriptedCluster) -> None:
    with transacting(second) as producer:
        second.act(END_TXN, Act(error=FENCED))
        with pytest.raises(Failed) as caught:
            raising_block(producer, Failed)
        (note,) = caught.value.__notes__
        assert "aborting the transaction failed, too" in note
        assert "ProducerFencedError" in note
        assert caught.value.__context__ is None


def test_an_abort_that_times_out_does_not_hide_the_exception_of_the_block(second: ScriptedCluster) -> None:
    with transacting(second) as producer:
        second.act(END_TXN, Act(silent=True))
        with pytest.raises(Failed) as caught:
            raising_block(producer, Failed, 0.1)
        assert "not complete within 0.1 s" in caught.value.__notes__[0]


def test_a_block_that_was_ended_inside_says_so(second: ScriptedCluster) -> None:
    with transacting(second) as producer:
        with pytest.raises(errors.IllegalStateError), producer.transaction():
            producer.commit_transaction()
        assert state_of(producer) is State.READY


def test_a_block_whose_commit_is_not_known_leaves_it_to_the_same_call(second: ScriptedCluster) -> None:
    hold = threading.Event()
    with transacting(second) as producer:
        second.act(END_TXN, Act(hold=hold))
        with pytest.raises(errors.KafkaTimeoutError), producer.transaction(timeout=0.1):
            producer.send("t", b"v").get(WAIT_S)
        hold.set()
        producer.commit_transaction(WAIT_S)
    assert trace(second) == ["InitProducerId", "Produce", "commit"]


# asyncio


def test_the_twins_of_the_calls(second: ScriptedCluster) -> None:
    async def main(producer: KafkaProducer) -> None:
        await producer.init_transactions_async(WAIT_S)
        producer.begin_transaction()
        await producer.send_async("t", b"v")
        await producer.send_offsets_to_transaction_async(OFFSETS, GROUP, WAIT_S)
        await producer.commit_transaction_async(WAIT_S)
        producer.begin_transaction()
        await (await producer.send_async("t", b"v"))
        await producer.abort_transaction_async(WAIT_S)
        producer.begin_transaction()
        await producer.send_async("t", b"w")
        assert not (await producer.prepare_transaction_async(WAIT_S)).empty
        await producer.commit_transaction_async(WAIT_S)
        async with producer.transaction():
            await producer.send_async("t", b"x")
        with pytest.raises(Failed):
            await failing_block(producer)

    async def failing_block(producer: KafkaProducer) -> None:
        async with producer.transaction():
            await (await producer.send_async("t", b"y"))
            raise Failed("in the block")

    with producing(second, transactional_id="tx") as producer:
        asyncio.run(main(producer))
    ends = [name for name in trace(second) if name in ENDS]
    assert ends == ["commit", "abort", "commit", "commit", "abort"]
    assert second.coordinator.committed["g"] == OFFSETS


def test_the_loop_runs_while_a_commit_waits(second: ScriptedCluster) -> None:
    hold = threading.Event()

    async def main(producer: KafkaProducer) -> None:
        producer.begin_transaction()
        second.act(PRODUCE, Act(hold=hold))
        await producer.send_async("t", b"v")
        commit = asyncio.ensure_future(producer.commit_transaction_async(WAIT_S))
        while state_of(producer) is not State.COMMITTING:
            await asyncio.sleep(0.001)
        assert not commit.done()
        hold.set()
        await commit

    with transacting(second) as producer:
        asyncio.run(main(producer))


@pytest.mark.parametrize("kind", ["commit", "abort"])
def test_a_cancelled_end_goes_on(second: ScriptedCluster, kind: str) -> None:
    """Behaviour "task cancellation at each await"."""
    hold = threading.Event()

    async def main(producer: KafkaProducer) -> None:
        producer.begin_transaction()
        await (await producer.send_async("t", b"v"))
        second.act(END_TXN, Act(hold=hold))
        call = producer.commit_transaction_async if kind == "commit" else producer.abort_transaction_async
        task = asyncio.ensure_future(call(WAIT_S))
        await asyncio.to_thread(second.wait_for_requests, END_TXN, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hold.set()
        await asyncio.to_thread(until, lambda: state_of(producer) is State.READY, "its end")

    with transacting(second) as producer:
        asyncio.run(main(producer))
        # The call's own thread has seen the outcome.
        producer.begin_transaction()
    assert trace(second)[:3] == ["InitProducerId", "Produce", kind]


@pytest.mark.parametrize(
    ("name", "api_key", "during", "after"),
    [
        ("init", INIT_PRODUCER_ID, State.INITIALIZING, State.READY),
        ("offsets", TXN_OFFSET_COMMIT, State.IN_TRANSACTION, State.IN_TRANSACTION),
        ("prepare", PRODUCE, State.PREPARING, State.PREPARED),
    ],
)
def test_a_cancelled_call_goes_on(
    second: ScriptedCluster, name: str, api_key: int, during: State, after: State
) -> None:
    hold = threading.Event()

    async def main(producer: KafkaProducer) -> None:
        if name != "init":
            await producer.init_transactions_async(WAIT_S)
            producer.begin_transaction()
        second.act(api_key, Act(hold=hold))
        if name == "prepare":
            await producer.send_async("t", b"v")
        calls: dict[str, Callable[[], Any]] = {
            "init": lambda: producer.init_transactions_async(WAIT_S),
            "offsets": lambda: producer.send_offsets_to_transaction_async(OFFSETS, GROUP, WAIT_S),
            "prepare": lambda: producer.prepare_transaction_async(WAIT_S),
        }
        task = asyncio.ensure_future(calls[name]())
        await asyncio.to_thread(second.wait_for_requests, api_key, 1)
        await asyncio.to_thread(until, lambda: state_of(producer) is during, "the call")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hold.set()
        machine = client_of(producer).machine
        await asyncio.to_thread(
            until, lambda: state_of(producer) is after and not machine._offsets, "its outcome"
        )

    with producing(second, transactional_id="tx") as producer:
        asyncio.run(main(producer))
        # The call's own thread has seen the outcome.
        if name == "init":
            producer.begin_transaction()
        producer.commit_transaction(WAIT_S)
    assert (
        trace(second)
        == {
            "init": ["InitProducerId"],
            "offsets": ["InitProducerId", "CommitOffsets", "commit"],
            "prepare": ["InitProducerId", "Produce", "commit"],
        }[name]
    )
    assert second.coordinator.committed == ({"g": OFFSETS} if name == "offsets" else {})


@pytest.mark.parametrize("where", ["in the block", "in the commit", "in the abort"])
def test_a_cancelled_block_is_ended(second: ScriptedCluster, where: str) -> None:
    hold = threading.Event()
    reached = asyncio.Event()

    async def block(producer: KafkaProducer) -> None:
        async with producer.transaction(timeout=WAIT_S):
            await (await producer.send_async("t", b"v"))
            reached.set()
            if where == "in the block":
                await asyncio.sleep(3600)
            if where == "in the abort":
                raise Failed("first")

    async def main(producer: KafkaProducer) -> None:
        if where != "in the block":
            second.act(END_TXN, Act(hold=hold))
        task = asyncio.ensure_future(block(producer))
        await reached.wait()
        if where != "in the block":
            await asyncio.to_thread(second.wait_for_requests, END_TXN, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hold.set()
        await asyncio.to_thread(until, lambda: state_of(producer) is State.READY, "its end")

    with transacting(second) as producer:
        asyncio.run(main(producer))
    end = "commit" if where == "in the commit" else "abort"
    assert trace(second) == ["InitProducerId", "Produce", end]


def test_a_cancelled_record_is_not_missed(second: ScriptedCluster) -> None:
    """Nothing was sent, and the program knows."""

    async def main(producer: KafkaProducer) -> None:
        task = asyncio.ensure_future(producer.send_async("t", bytes(30_000)))
        await asyncio.sleep(0.05)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    hold = threading.Event()
    with begun(second, buffer_memory=65536, batch_size=4096) as producer:
        second.script = lambda received: Act(hold=hold) if received.api_key == PRODUCE else None
        first = producer.send("t", bytes(40_000), partition=0)
        asyncio.run(main(producer))
        hold.set()
        producer.commit_transaction(WAIT_S)
        assert first.succeeded()


# Processes and threads


IN_THE_PARENT = {
    "initializing": State.INITIALIZING,
    "ready": State.READY,
    "open": State.IN_TRANSACTION,
    "preparing": State.PREPARING,
    "prepared": State.PREPARED,
    "committing": State.COMMITTING,
    "failed": State.ABORTABLE_ERROR,
    "aborting": State.ABORTING,
    "fatal": State.FATAL_ERROR,
}
WITH_A_CALL = {
    "initializing": INIT_PRODUCER_ID,
    "preparing": PRODUCE,
    "committing": END_TXN,
    "aborting": END_TXN,
}
"""States in which a call waits, and what for."""


@needs_fork
@pytest.mark.parametrize("state", IN_THE_PARENT)
def test_a_forked_child_owns_no_transaction(second: ScriptedCluster, state: str) -> None:
    """Behaviour "fork": it starts with init, and the parent's goes on."""
    hold = threading.Event()
    with producing(second, transactional_id="tx") as producer:
        if state != "initializing":
            producer.init_transactions(WAIT_S)
        if state not in ("initializing", "ready"):
            producer.begin_transaction()
            producer.send("t", b"v", partition=0).get(WAIT_S)
        waiting: Running | None = None
        if state in WITH_A_CALL:
            api_key = WITH_A_CALL[state]
            before = len(second.received(api_key))
            second.act(api_key, Act(hold=hold))
            if state == "preparing":
                producer.send("t", b"w", partition=0)
            calls: dict[str, Callable[[float], object]] = {
                "initializing": producer.init_transactions,
                "preparing": producer.prepare_transaction,
                "committing": producer.commit_transaction,
                "aborting": producer.abort_transaction,
            }
            waiting = Running(calls[state], WAIT_S)
            second.wait_for_requests(api_key, before + 1)
        elif state == "prepared":
            producer.prepare_transaction(WAIT_S)
        elif state == "failed":
            with pytest.raises(TypeError):
                producer.send("t", 1)
        elif state == "fatal":
            second.act(PRODUCE, Act(error=FENCED))
            producer.send("t", b"w", partition=0)
        until(lambda: state_of(producer) is IN_THE_PARENT[state], "the state")
        requests = len(trace(second))

        def child() -> str:
            texts = []
            for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
                try:
                    call()
                except errors.IllegalStateError as error:
                    texts.append("not initialized" in str(error))
            try:
                producer.send("t", b"w")
            except errors.IllegalStateError:
                texts.append(True)
            producer.close(WAIT_S)
            return str(texts)

        assert in_child(child) == str([True] * 4)
        assert len(trace(second)) == requests
        assert state_of(producer) is IN_THE_PARENT[state]
        hold.set()
        if waiting is not None:
            waiting.outcome()
        if state in ("initializing", "ready"):
            producer.begin_transaction()
            producer.send("t", b"v", partition=0)
        if state == "failed":
            producer.abort_transaction(WAIT_S)
        elif state == "fatal":
            with pytest.raises(errors.ProducerFencedError):
                producer.abort_transaction(WAIT_S)
        elif state not in ("committing", "aborting"):
            producer.commit_transaction(WAIT_S)
    ends = {"failed": ["abort"], "aborting": ["abort"], "fatal": []}
    assert [name for name in trace(second) if name in ENDS] == ends.get(state, ["commit"])


@needs_fork
def test_a_forked_child_takes_the_id_over_and_leaves_the_parents_transaction_alone(
    second: ScriptedCluster,
) -> None:
    with written(second, b"parent") as producer:

        def child() -> bool:
            producer.init_transactions(WAIT_S)
            with producer.transaction(WAIT_S):
                producer.send("t", b"child", partition=0)
            producer.close(WAIT_S)
            return True

        assert in_child(child)
        producer.send("t", b"parent", partition=0).get(WAIT_S)
        producer.commit_transaction(WAIT_S)
    assert [each.transaction for each in sent(second, "InitProducerId")] == [
        InitProducerId("tx", 60_000, -1, -1)
    ] * 2
    found = [(each.records[0].value, each.producer_epoch, each.base_sequence) for each in batches(second)]
    assert found == [(b"parent", 0, 0), (b"child", 1, 0), (b"parent", 0, 1)]
    ended: list[Any] = [each.transaction for each in sent(second, "commit")]
    assert [each.epoch for each in ended] == [1, 0]


def test_a_pickled_producer_has_no_transaction(second: ScriptedCluster) -> None:
    """It is its configuration: only PreparedTransaction hands a transaction on."""
    with written(second) as producer:
        copy = pickle.loads(pickle.dumps(producer))
        try:
            with pytest.raises(errors.IllegalStateError, match=r"call init_transactions\(\) first"):
                copy.commit_transaction()
        finally:
            copy.close(WAIT_S)
        producer.commit_transaction(WAIT_S)
    assert trace(second) == ["InitProducerId", "Produce", "commit"]


@needs_fork
def test_a_forked_child_that_leaves_the_parents_block_ends_nothing(second: ScriptedCluster) -> None:
    def child() -> bool:
        with suppress(errors.IllegalStateError):
            block.__exit__(None, None, None)
        failed = Failed("in the child")
        block.__exit__(Failed, failed, None)
        producer.close(WAIT_S)
        return "not initialized" in failed.__notes__[0]

    with transacting(second) as producer:
        block = producer.transaction()
        with block:
            producer.send("t", b"v").get(WAIT_S)
            assert in_child(child) is True
    assert trace(second) == ["InitProducerId", "Produce", "commit"]


def test_threads_send_while_others_begin_and_commit(cluster: ScriptedCluster) -> None:
    """Each record is accepted and committed, or refused at once: nothing is in between, nothing waits."""
    stop = threading.Event()
    counts = [0, 0]

    with transacting(cluster, batch_size=500) as producer:

        def keep_sending(number: int) -> int:
            accepted = 0
            while not stop.is_set():
                try:
                    future = producer.send("t", b"%d" % number, partition=number % 2)
                    accepted += 1
                    future.get(WAIT_S)
                except errors.ProducerClosedError:
                    raise
                except errors.IllegalStateError:
                    counts[1] += 1
                    stop.wait(0.001)
            return accepted

        senders = [Running(keep_sending, number) for number in range(4)]
        ends = 0
        began = time.monotonic()
        while ends < 20 or (counts[1] == 0 and time.monotonic() - began < WAIT_S):
            with producer.transaction(timeout=WAIT_S):
                producer.send("t", b"mine", partition=0)
            ends += 1
        stop.set()
        total = sum(sender.outcome() for sender in senders) + ends
        assert len(cluster.topics["t"].values) == total
        assert len([name for name in trace(cluster) if name in ENDS]) == ends
        assert "abort" not in trace(cluster)


def test_two_threads_commit_one_transaction(second: ScriptedCluster) -> None:
    hold = threading.Event()
    with begun(second) as producer:
        second.act(PRODUCE, Act(hold=hold))
        producer.send("t", b"v")
        commits = [Running(producer.commit_transaction, WAIT_S) for _ in range(3)]
        for commit in commits:
            until_blocked(commit.thread)
        until(lambda: len(client_of(producer).machine._calls) == 3, "all three")
        hold.set()
        for commit in commits:
            commit.outcome()
    assert trace(second) == ["InitProducerId", "Produce", "commit"]


@pytest.mark.slow
def test_records_are_accepted_as_soon_as_begin_returns(second: ScriptedCluster) -> None:
    """The thread must not see the outcome before the accumulator knows of the transaction."""
    with transacting(second) as producer:
        client = client_of(producer)
        apply = client._apply
        paused, go_on = threading.Event(), threading.Event()

        def slow() -> None:
            if client.machine.state is State.IN_TRANSACTION and not paused.is_set():
                paused.set()
                go_on.wait(0.7)
            apply()

        client._apply = slow  # type: ignore[method-assign]
        begin = Running(producer.begin_transaction)
        assert paused.wait(WAIT_S)
        # Longer than the slices in which a thread looks by itself.
        begin.thread.join(0.6)
        assert begin.running
        go_on.set()
        begin.outcome()
        producer.send("t", b"v")
        producer.commit_transaction(WAIT_S)


def test_an_interrupted_call_goes_on(second: ScriptedCluster) -> None:
    """Ctrl-C in the wait; the same call waits again."""
    import signal

    if not hasattr(signal, "pthread_kill"):
        pytest.skip("no signals for threads")
    hold = threading.Event()
    main = threading.get_ident()
    with written(second) as producer:
        second.act(END_TXN, Act(hold=hold))

        def interrupt() -> None:
            second.wait_for_requests(END_TXN, 1)
            signal.pthread_kill(main, signal.SIGINT)

        other = Running(interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction(WAIT_S)
        other.outcome()
        hold.set()
        producer.commit_transaction(WAIT_S)
    assert trace(second) == ["InitProducerId", "Produce", "commit"]


def test_a_first_add_that_was_lost_is_aborted_whole(cluster: ScriptedCluster, level: int) -> None:
    if level == 2:
        cluster.act(PRODUCE, Act(drop=True))
    else:
        cluster.act(ADD_PARTITIONS_TO_TXN, Act(drop=True))
    with begun(cluster) as producer:
        producer.send("t", b"v", partition=0)
        cluster.wait_for(lambda: bool(sent(cluster, "Produce" if level == 2 else "AddPartitions")))
        producer.abort_transaction(WAIT_S)
        assert "abort" in trace(cluster)
        with producer.transaction(WAIT_S):
            producer.send("t", b"w", partition=0)
    last = batches(cluster)[-1]
    assert (last.producer_epoch, last.base_sequence) == (1, 0)
