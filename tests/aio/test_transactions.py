"""Transactions of ``AIOKafkaProducer``: aiokafka's calls, errors and blocks, and cancellation."""

import asyncio
import contextlib
import threading
from typing import Any

import aiokafka.errors  # type: ignore[import-untyped]
import aiokafka.structs  # type: ignore[import-untyped]
import pytest

from cyproducer import KafkaProducer
from cyproducer.aio import AIOKafkaProducer, TopicPartition, errors
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata
from tests.aio.running import MEMORY, OPTIONS, VALUE, batch_of, runs_on, threads_of
from tests.scripted.scripted_broker import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Act,
    ScriptedCluster,
)
from tests.scripted.scripted_transactions import CommitOffsets, InitProducerId
from tests.scripted.transacting import ended

DENIED, FENCED, INVALID_EPOCH, ID_DENIED = 29, 90, 47, 53


@contextlib.asynccontextmanager
async def producing_to(cluster: ScriptedCluster, **options: Any) -> Any:
    given = {"bootstrap_servers": cluster.bootstrap_servers, "transactional_id": "mine", **OPTIONS, **options}
    async with AIOKafkaProducer(**given) as producer:
        yield producer


# Blocks and calls


@pytest.mark.parametrize("level", [None, 2], ids=["first protocol", "second protocol"])
async def test_records_offsets_and_batches_are_committed_as_one(
    cluster: ScriptedCluster, level: int | None
) -> None:
    cluster.set_transaction_version(level, 1)
    async with producing_to(cluster, linger_ms=20_000) as producer:
        for number in range(2):
            async with producer.transaction():
                future = await producer.send("orders", b"%d" % number, partition=0)
                batch = batch_of(producer, b"of a batch")
                whole = await producer.send_batch(batch, "orders", partition=1)
                await producer.send_offsets_to_transaction({TopicPartition("in", 3): number}, "readers")
                assert not future.done()
            # Without the linger, and set before the block has ended.
            assert future.done()
            assert whole.done()
            assert future.result().offset == whole.result().offset == number
    assert ended(cluster) == [True, True]
    assert cluster.coordinator.committed == {"readers": {("in", 3): OffsetAndMetadata(1)}}


@pytest.mark.parametrize("ends", ["commit_transaction", "abort_transaction", "flush", "stop"])
async def test_futures_are_set_even_if_the_call_returns_before_the_loop_is_woken(
    cluster: ScriptedCluster, ends: str
) -> None:
    async with producing_to(cluster) as producer:
        # The loop never learns of what has arrived.
        loop = asyncio.get_running_loop()
        loop.add_reader = lambda *_: None  # type: ignore[method-assign]
        await producer.begin_transaction()
        future = await producer.send("orders", b"v", partition=0)
        batch = batch_of(producer, b"of a batch")
        whole = await producer.send_batch(batch, "orders", partition=1)
        await getattr(producer, ends)()
        assert future.done()
        assert whole.done()
        for each in (future, whole):
            each.exception()


async def test_start_takes_the_id_over(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster, transaction_timeout_ms=5000) as producer:
        (received,) = cluster.received(INIT_PRODUCER_ID)
        assert received.transaction == InitProducerId("mine", 5000, -1, -1)
        await producer.begin_transaction()
        await producer.commit_transaction()
    # Nothing was sent.
    assert ended(cluster) == []


async def test_a_start_without_a_coordinator_leaves_nothing(cluster: ScriptedCluster) -> None:
    cluster.act(INIT_PRODUCER_ID, Act(silent=True))
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        transactional_id="mine",
        request_timeout_ms=300,
        **OPTIONS,
    )
    with pytest.raises(errors.KafkaTimeoutError, match=r"init_transactions\(\) not complete within 0.3 s"):
        await producer.start()
    await runs_on(lambda: not threads_of(producer))
    await producer.start()
    await producer.begin_transaction()
    await producer.stop()


async def test_a_refused_id_is_an_error_of_start(cluster: ScriptedCluster) -> None:
    cluster.act(INIT_PRODUCER_ID, Act(error=ID_DENIED))
    with pytest.raises(errors.TransactionalIdAuthorizationFailed):
        async with producing_to(cluster):
            pass


async def test_the_calls_without_a_block(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster) as producer:
        await producer.begin_transaction()
        kept = await producer.send("orders", b"kept", partition=0)
        await producer.commit_transaction()
        assert kept.done()
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"dropped", partition=0)
        await producer.abort_transaction()
    assert ended(cluster) == [True, False]


async def test_calls_out_of_order(cluster: ScriptedCluster) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="mine")
    for early in (
        producer.begin_transaction(),
        producer.commit_transaction(),
        producer.abort_transaction(),
    ):
        with pytest.raises(errors.IllegalStateError, match=r"_transaction\(\) before start\(\)"):
            await early
    async with producer:
        batch = batch_of(producer, b"v")
        for call in (
            producer.commit_transaction(),
            producer.abort_transaction(),
            producer.send_offsets_to_transaction({TopicPartition("in", 0): 1}, "readers"),
            producer.send("orders", b"v"),
            producer.send_and_wait("orders", b"v"),
            producer.send_batch(batch, "orders", partition=0),
        ):
            # aiokafka's class, and its name here.
            with pytest.raises(aiokafka.errors.IllegalOperation) as raised:
                await call
            assert isinstance(raised.value, errors.IllegalOperation)
        await producer.begin_transaction()
        with pytest.raises(errors.IllegalOperation, match="in a transaction"):
            await producer.begin_transaction()
        # None of it has harmed the transaction.
        await producer.commit_transaction()
    with pytest.raises(errors.ProducerClosed, match=r"begin_transaction\(\) after stop\(\)"):
        await producer.begin_transaction()


@pytest.mark.parametrize("method", ["commit_transaction", "abort_transaction"])
async def test_other_tasks_send_nothing_once_a_task_ends_the_transaction(
    cluster: ScriptedCluster, method: str, monkeypatch: pytest.MonkeyPatch, go_on: threading.Event
) -> None:
    # The thread that makes the call does not get to it.
    blocking = getattr(KafkaProducer, method)
    monkeypatch.setattr(KafkaProducer, method, lambda self: (go_on.wait(60), blocking(self)))
    async with producing_to(cluster) as producer:
        await producer.begin_transaction()
        ending = asyncio.create_task(getattr(producer, method)())
        await asyncio.sleep(0)
        for call in (
            producer.send("orders", b"v"),
            producer.send_batch(producer.create_batch(), "orders", partition=0),
        ):
            with pytest.raises(errors.IllegalOperation, match="while the transaction is being ended"):
                await call
        go_on.set()
        await ending
        async with producer.transaction():
            await producer.send("orders", b"w", partition=0)
    assert cluster.topics["orders"].values == [b"w"]


async def test_a_producer_without_an_id_has_no_transactions(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster, transactional_id=None) as producer:
        for call in (
            producer.begin_transaction(),
            producer.commit_transaction(),
            producer.abort_transaction(),
            producer.send_offsets_to_transaction({}, "readers"),
        ):
            with pytest.raises(errors.IllegalOperation, match=r"AIOKafkaProducer\(transactional_id=...\)"):
                await call
        with pytest.raises(errors.IllegalOperation, match=r"transaction\(\) needs a transactional_id"):
            producer.transaction()


async def test_offsets_in_aiokafkas_forms(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster) as producer, producer.transaction():
        offsets = {
            aiokafka.structs.TopicPartition("in", 0): 5,
            aiokafka.structs.TopicPartition("in", 1): (6, "text"),
            aiokafka.structs.TopicPartition("in", 2): aiokafka.structs.OffsetAndMetadata(7, ""),
        }
        member = ConsumerGroupMetadata("readers", 9, "member")
        asked = asyncio.create_task(producer.send_offsets_to_transaction(offsets, member))
        await asyncio.sleep(0)
        # The program may go on with its dictionary.
        offsets.clear()
        await asked
        for wrong in (None, ""):
            with pytest.raises(ValueError, match="must be the id of a group"):
                await producer.send_offsets_to_transaction({}, wrong)
        with pytest.raises(ValueError, match="offset -1"):
            await producer.send_offsets_to_transaction({TopicPartition("in", 0): -1}, "readers")
    (received,) = cluster.received(TXN_OFFSET_COMMIT)
    assert isinstance(received.transaction, CommitOffsets)
    assert received.transaction.group == ConsumerGroupMetadata("readers", 9, "member")
    assert received.transaction.offsets == {
        ("in", 0): OffsetAndMetadata(5),
        ("in", 1): OffsetAndMetadata(6, "text"),
        ("in", 2): OffsetAndMetadata(7),
    }


# Aborts


async def _failing_block(producer: AIOKafkaProducer) -> None:
    async with producer.transaction():
        await producer.send_and_wait("orders", b"dropped", partition=0)
        raise LookupError("mine")


async def test_a_block_that_raises_is_aborted(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster) as producer:
        with pytest.raises(LookupError, match="mine"):
            await _failing_block(producer)
        async with producer.transaction():
            await producer.send("orders", b"kept", partition=0)
    assert ended(cluster) == [False, True]


async def test_all_futures_are_set_when_an_abort_returns_whatever_callbacks_do(
    cluster: ScriptedCluster, go_on: threading.Event
) -> None:
    async with producing_to(cluster, linger_ms=20_000) as producer:
        await producer.begin_transaction()
        # It occupies the callback thread.
        blocking = producer._producer.send("orders", b"v", partition=0)
        blocking.add_errback(lambda _: go_on.wait(60))
        future = await producer.send("orders", b"v", partition=1)
        await producer.abort_transaction()
        assert blocking.failed()
        assert future.done()
        go_on.set()
        with pytest.raises(errors.TransactionAbortedError, match=r"abort_transaction\(\) was called"):
            await future


async def test_a_failed_record_aborts_the_block(cluster: ScriptedCluster) -> None:
    cluster.act(PRODUCE, Act(error=DENIED))
    async with producing_to(cluster) as producer:
        with pytest.raises(errors.AbortableError) as raised:
            async with producer.transaction():
                # Its future is dropped.
                await producer.send("orders", b"denied", partition=0)
        assert isinstance(raised.value.__cause__, errors.TopicAuthorizationFailedError)
        async with producer.transaction():
            await producer.send_and_wait("orders", b"kept", partition=0)
    assert ended(cluster) == [False, True]


async def test_a_batch_that_is_refused_fails_the_transaction(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster, max_request_size=2000) as producer:
        large, misplaced = batch_of(producer, bytes(3000)), batch_of(producer, b"v")
        for batch, partition, kind in (
            (large, 0, errors.MessageSizeTooLargeError),
            (misplaced, 7, errors.UnknownTopicOrPartitionError),
        ):
            await producer.begin_transaction()
            with pytest.raises(kind):
                await producer.send_batch(batch, "orders", partition=partition)
            with pytest.raises(errors.AbortableError) as raised:
                await producer.commit_transaction()
            assert isinstance(raised.value.__cause__, kind)
            await producer.abort_transaction()


async def test_a_record_that_is_refused_fails_the_transaction(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster) as producer:
        await producer.begin_transaction()
        with pytest.raises(TypeError):
            await producer.send("orders", 5)
        with pytest.raises(errors.AbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()


async def test_stop_aborts_what_is_open(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"dropped", partition=0)
    assert ended(cluster) == [False]


# Fencing


@pytest.mark.parametrize(
    ("level", "acts"),
    [
        (None, {ADD_PARTITIONS_TO_TXN: FENCED}),
        (None, {ADD_PARTITIONS_TO_TXN: INVALID_EPOCH}),
        (2, {PRODUCE: INVALID_EPOCH, END_TXN: FENCED}),
    ],
    ids=["first protocol", "first protocol, old broker", "second protocol"],
)
async def test_a_block_of_a_fenced_producer_raises_producer_fenced(
    cluster: ScriptedCluster, level: int | None, acts: dict[int, int]
) -> None:
    cluster.set_transaction_version(level, 1)
    for api_key, error in acts.items():
        cluster.act(api_key, Act(error=error))
    async with producing_to(cluster) as producer:
        with pytest.raises(aiokafka.errors.ProducerFenced) as raised:
            async with producer.transaction():
                await producer.send_and_wait("orders", b"v", partition=0)
        assert isinstance(raised.value, errors.ProducerFenced)
        # The record's own error.
        assert isinstance(raised.value.__cause__, errors.KafkaError)
        for call in (
            producer.begin_transaction(),
            producer.commit_transaction(),
            producer.abort_transaction(),
            producer.send_offsets_to_transaction({TopicPartition("in", 0): 1}, "readers"),
        ):
            with pytest.raises(errors.ProducerFenced):
                await call


async def test_an_error_of_the_program_is_not_hidden_by_a_failed_abort(cluster: ScriptedCluster) -> None:
    cluster.act(END_TXN, Act(error=FENCED))
    async with producing_to(cluster) as producer:
        with pytest.raises(LookupError, match="mine") as raised:
            await _failing_block(producer)
        assert any("aborting the transaction failed, too" in note for note in raised.value.__notes__)


# Cancellation


async def test_a_cancelled_block_is_aborted(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster) as producer:
        inside = asyncio.Event()

        async def block() -> None:
            async with producer.transaction():
                await producer.send_and_wait("orders", b"dropped", partition=0)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended(cluster) == [False]
        async with producer.transaction():
            await producer.send_and_wait("orders", b"kept", partition=0)
    assert ended(cluster) == [False, True]


@pytest.mark.parametrize("method", ["commit_transaction", "abort_transaction"])
async def test_a_cancelled_end_goes_on(cluster: ScriptedCluster, method: str, go_on: threading.Event) -> None:
    cluster.act(END_TXN, Act(hold=go_on))
    async with producing_to(cluster) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"v", partition=0)
        task = asyncio.create_task(getattr(producer, method)())
        # The loop runs meanwhile.
        await runs_on(lambda: ended(cluster))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        with pytest.raises(errors.IllegalOperation, match=f"call {method}\\(\\) again"):
            await producer.begin_transaction()
        go_on.set()
        await runs_on(lambda: not any("aio-" in each.name for each in threads_of(producer)))
        async with producer.transaction():
            await producer.send_and_wait("orders", b"w", partition=0)
    assert ended(cluster) == [method == "commit_transaction", True]


async def test_a_block_whose_commit_is_cancelled_is_committed(
    cluster: ScriptedCluster, go_on: threading.Event
) -> None:
    cluster.act(END_TXN, Act(hold=go_on))
    async with producing_to(cluster) as producer:

        async def block() -> None:
            async with producer.transaction():
                await producer.send("orders", b"v", partition=0)

        task = asyncio.create_task(block())
        await runs_on(lambda: ended(cluster))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await runs_on(lambda: not any("aio-" in each.name for each in threads_of(producer)))
    assert ended(cluster) == [True]


async def test_a_batch_that_is_cancelled_halfway_fails_the_transaction(
    cluster: ScriptedCluster, go_on: threading.Event
) -> None:
    async with producing_to(cluster, buffer_memory=MEMORY, max_batch_size=1 << 20) as producer:
        cluster.script = lambda received: Act(hold=go_on) if received.api_key == PRODUCE else None
        await producer.partitions_for("orders")
        batch = batch_of(producer, *[VALUE] * 100)
        await producer.begin_transaction()
        sending = asyncio.create_task(producer.send_batch(batch, "orders", partition=0))
        await runs_on(lambda: cluster.received(PRODUCE))
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()
        go_on.set()
        with pytest.raises(errors.AbortableError) as raised:
            await producer.commit_transaction()
        assert "was cancelled after" in str(raised.value.__cause__)
        await producer.abort_transaction()
