"""``cyproducer.confluent.aio.AIOProducer``."""

import asyncio
import gc
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cyproducer.base.wakeup_fd import channel
from cyproducer.confluent import KafkaError, KafkaException, Message
from cyproducer.confluent.aio import AIOProducer, _close
from cyproducer.testing import EmbeddedBroker
from tests.aio.running import run, runs_on
from tests.forked import in_child, needs_fork
from tests.scripted.odd_servers import refusing_address
from tests.scripted.producing import WAIT_S
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster
from tools.harness.until import NewThreads, until

MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED = 10, 29


@asynccontextmanager
async def made(cluster: ScriptedCluster, **conf: Any) -> AsyncIterator[AIOProducer]:
    """A producer of the cluster. Options have _ in place of dots."""
    options = {name.replace("_", "."): value for name, value in conf.items() if not name.endswith("_cb")}
    options |= {name: value for name, value in conf.items() if name.endswith("_cb")}
    short = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "retry.backoff.ms": 10}
    producer = AIOProducer(short | options)
    try:
        yield producer
    finally:
        if producer._closing is None:
            await producer.purge()
        await producer.close()


def code_of(future: "asyncio.Future[Message]") -> int:
    error = future.exception()
    assert isinstance(error, KafkaException)
    code: int = error.args[0].code()
    return code


async def test_a_future_has_the_record_and_its_place(cluster: ScriptedCluster) -> None:
    async with made(cluster) as producer:
        future = await producer.produce(
            "orders", "paid", key="7", partition=0, timestamp=1234, headers={"trace": "1"}
        )
        message = await future
        assert (message.topic(), message.partition(), message.offset()) == ("orders", 0, 0)
        assert (message.key(), message.value(), message.timestamp()[1]) == (b"7", b"paid", 1234)
        assert message.headers() == [("trace", b"1")]
        assert message.error() is None
        assert len(producer) == 0


async def test_futures_of_one_task_are_set_in_order(cluster: ScriptedCluster) -> None:
    async with made(cluster, batch_size=200) as producer:
        done: list[int] = []
        futures = [await producer.produce("orders", str(i)) for i in range(500)]
        for i, future in enumerate(futures):
            future.add_done_callback(lambda _, i=i: done.append(i))  # type: ignore[misc]
        messages = await asyncio.gather(*futures)
        assert [message.offset() for message in messages] == list(range(500))
        assert done == list(range(500))


async def test_batches_that_arrive_together_wake_the_loop_up_once(
    cluster: ScriptedCluster, held: threading.Event
) -> None:
    async with made(cluster, batch_size=200) as producer:
        woken = 0
        reported = producer._reported

        def count() -> None:
            nonlocal woken
            woken += 1
            reported()

        asyncio.get_running_loop().add_reader(producer._reader, count)
        # A batch each.
        futures = [await producer.produce("orders", bytes(150)) for _ in range(5)]
        held.set()
        # The loop does not run meanwhile.
        queue = producer._producer._queue
        assert queue is not None
        until(lambda: queue.backlog == 5, "five reports")
        await asyncio.gather(*futures)
        assert woken == 1
        assert len(cluster.received(PRODUCE)) > 1


async def test_what_is_refused_and_what_fails_is_an_exception_of_the_future(cluster: ScriptedCluster) -> None:
    cluster.act(PRODUCE, Act(error=TOPIC_AUTHORIZATION_FAILED))
    async with made(cluster, message_max_bytes=2000) as producer:
        failed = await producer.produce("orders", "a")
        refused = await producer.produce("orders", bytes(3000))
        assert refused.done()
        assert code_of(refused) == MESSAGE_TOO_LARGE
        await producer.flush()
        assert code_of(failed) == TOPIC_AUTHORIZATION_FAILED
        missing = await producer.produce("orders", "a", partition=9)
        assert code_of(missing) == KafkaError._UNKNOWN_PARTITION
        with pytest.raises(TypeError, match="value: must be str, bytes or None, not dict"):
            await producer.produce("orders", {})
        assert len(producer) == 0


async def test_a_full_queue_is_waited_for_in_order(cluster: ScriptedCluster, held: threading.Event) -> None:
    async with made(cluster, queue_buffering_max_messages=3) as producer:
        futures: list[asyncio.Future[Message]] = [await producer.produce("orders", str(i)) for i in range(3)]
        tasks = [asyncio.create_task(producer.produce("orders", str(i))) for i in range(3, 8)]
        await runs_on(lambda: producer._pulse is not None)
        assert not any(task.done() for task in tasks)
        # Cancelled while it waits: it is not sent.
        tasks[2].cancel()
        held.set()
        del tasks[2]
        futures += [await task for task in tasks]
        messages = await asyncio.gather(*futures)
        assert [message.value() for message in messages] == [b"0", b"1", b"2", b"3", b"4", b"6", b"7"]
        assert [message.offset() for message in messages] == list(range(7))


async def test_waiting_for_room_is_bounded() -> None:
    producer = AIOProducer(
        {
            "bootstrap.servers": refusing_address(),
            "queue.buffering.max.messages": 1,
            "message.timeout.ms": 300,
            "linger.ms": 0,
        }
    )
    first = await producer.produce("orders", "a")
    # The first one fails at about the time that the second one may wait.
    second = await producer.produce("orders", "b")
    await producer.flush()
    assert code_of(first) == KafkaError._MSG_TIMED_OUT
    assert code_of(second) in (KafkaError._QUEUE_FULL, KafkaError._MSG_TIMED_OUT)
    await producer.close()


async def test_cancelling_a_future_does_not_cancel_its_record(
    cluster: ScriptedCluster, held: threading.Event
) -> None:
    async with made(cluster) as producer:
        future = await producer.produce("orders", "a")
        future.cancel()
        held.set()
        assert await producer.flush() == 0
        assert future.cancelled()
    assert len(cluster.received(PRODUCE)) == 1


async def test_poll_returns_how_many_futures_were_set(
    cluster: ScriptedCluster, held: threading.Event
) -> None:
    async with made(cluster) as producer:
        assert await producer.poll() == 0
        assert await producer.poll(0.01) == 0
        await producer.produce("orders", "a")
        polled = asyncio.create_task(producer.poll(-1))
        await runs_on(lambda: producer._pulse is not None)
        held.set()
        assert await polled == 1
        assert await producer.poll() == 0


async def test_flush_sends_at_once_and_is_bounded(cluster: ScriptedCluster, held: threading.Event) -> None:
    async with made(cluster, linger_ms=60_000) as producer:
        future = await producer.produce("orders", "a")
        assert await producer.flush(0.01) == 1
        held.set()
        assert await producer.flush() == 0
        assert future.done()


async def test_no_thread_per_record_or_flush(cluster: ScriptedCluster) -> None:
    async with made(cluster) as producer:
        await (await producer.produce("orders", "a"))
        new = NewThreads()
        for _ in range(20):
            await producer.produce("orders", "a")
            await producer.flush()
        assert not new


async def test_close_waits_for_everything_and_may_be_called_again(cluster: ScriptedCluster) -> None:
    async with made(cluster, linger_ms=60_000) as producer:
        future = await producer.produce("orders", "a")
        await asyncio.gather(producer.close(), producer.close())
        assert future.result().offset() == 0
        await producer.close()
        assert len(producer) == 0
        with pytest.raises(RuntimeError, match=r"produce.*closed"):
            await producer.produce("orders", "b")
        with pytest.raises(RuntimeError, match=r"flush.*closed"):
            await producer.flush()


async def test_a_cancelled_close_goes_on(cluster: ScriptedCluster, held: threading.Event) -> None:
    async with made(cluster) as producer:
        future = await producer.produce("orders", "a")
        closing = asyncio.create_task(producer.close())
        await runs_on(lambda: producer._closing is not None)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        held.set()
        assert (await future).offset() == 0
        await producer.close()


def test_it_belongs_to_one_loop(cluster: ScriptedCluster) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        AIOProducer({"bootstrap.servers": cluster.bootstrap_servers})
    loop = asyncio.new_event_loop()

    async def make() -> AIOProducer:
        return AIOProducer({"bootstrap.servers": cluster.bootstrap_servers})

    async def elsewhere(producer: AIOProducer) -> None:
        with pytest.raises(RuntimeError, match=r"produce.* on another loop"):
            await producer.produce("orders", "a")

    producer = loop.run_until_complete(make())
    run(elsewhere(producer))
    loop.run_until_complete(producer.close())
    loop.close()


def test_a_loop_that_was_closed_leaves_no_descriptor(cluster: ScriptedCluster) -> None:
    loop = asyncio.new_event_loop()

    async def use() -> "weakref.ref[AIOProducer]":
        producer = AIOProducer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
        await producer.produce("orders", "a")
        return weakref.ref(producer)

    found = loop.run_until_complete(use())
    producer = found()
    assert producer is not None
    reader, finish = producer._reader, producer._finish
    engine = producer.kafka_producer
    loop.close()
    del producer, loop
    gc.collect()
    assert found() is None
    assert not finish.alive
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)
    engine.close(0)


async def test_a_wrong_configuration_leaves_nothing_open(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[int, int]] = []
    closed: list[tuple[int, int]] = []

    def noting_channel() -> tuple[int, int]:
        opened.append(channel())
        return opened[-1]

    def noting_close(fds: tuple[int, int]) -> None:
        _close(fds)
        closed.append(fds)

    monkeypatch.setattr("cyproducer.confluent.aio.channel", noting_channel)
    monkeypatch.setattr("cyproducer.confluent.aio._close", noting_close)
    for conf, kind, text in (
        ({"no.such": 1}, KafkaException, 'No such configuration property: "no.such"'),
        ("orders", TypeError, "producer_conf: must be a dict, not str"),
        ({"error_cb": 5}, TypeError, "error_cb: must be callable"),
    ):
        with pytest.raises(kind, match=text):
            AIOProducer(conf)  # type: ignore[arg-type]
    assert opened == closed
    assert closed


async def test_the_arguments_of_confluent_kafka(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    conf = {"bootstrap.servers": cluster.bootstrap_servers, "on_delivery": print}
    with caplog.at_level(logging.WARNING, "cyproducer"):
        async with AIOProducer(conf, 2, None, batch_size=10, buffer_timeout=0.5) as producer:
            assert (await (await producer.produce("orders", "a"))).offset() == 0
    assert conf["on_delivery"] is print
    assert "on_delivery has no effect in an AIOProducer" in caplog.text


async def test_coroutines_are_called_for_events_on_the_loop() -> None:
    seen: list[tuple[int, KafkaError]] = []
    stats: list[str] = []

    async def failed(error: KafkaError) -> None:
        seen.append((threading.get_ident(), error))
        await asyncio.sleep(0)
        raise LookupError("logged")

    producer = AIOProducer(
        {
            "bootstrap.servers": refusing_address(),
            "message.timeout.ms": 1000,
            "statistics.interval.ms": 10,
            "error_cb": failed,
            "stats_cb": stats.append,
        }
    )
    await producer.produce("orders", "a")
    await runs_on(lambda: len(seen) > 1 and stats)
    assert {ident for ident, _ in seen} == {threading.get_ident()}
    assert KafkaError._ALL_BROKERS_DOWN in [error.code() for _, error in seen]
    await producer.purge()
    await producer.close()


@pytest.fixture
def transactional() -> Iterator[dict[str, Any]]:
    """A configuration for an embedded broker."""
    with EmbeddedBroker(topics={"orders": 1}) as broker:
        yield {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "mine", "linger.ms": 0}


async def test_transactions(transactional: dict[str, Any]) -> None:
    async with AIOProducer(transactional) as producer:
        await producer.init_transactions(WAIT_S)
        await producer.begin_transaction()
        kept = [await producer.produce("orders", str(i)) for i in range(10)]
        await producer.commit_transaction(WAIT_S)
        assert [future.result().offset() for future in kept] == list(range(10))
        await producer.begin_transaction()
        await producer.produce("orders", "dropped")
        await producer.abort_transaction(WAIT_S)
        assert len(producer) == 0
        with pytest.raises(KafkaException) as caught:
            await producer.commit_transaction()
        assert caught.value.args[0].code() == KafkaError._STATE


async def test_an_open_transaction_is_aborted_by_close(transactional: dict[str, Any]) -> None:
    for _ in range(2):
        async with AIOProducer(transactional) as producer:
            # At once: nothing is left of the one before.
            await producer.init_transactions(WAIT_S)
            await producer.begin_transaction()
            await producer.produce("orders", "dropped")


async def test_topics_and_credentials(cluster: ScriptedCluster) -> None:
    async with made(cluster) as producer:
        found = await producer.list_topics("orders", WAIT_S)
        assert await producer.cluster_id(WAIT_S) == found.cluster_id is not None
        assert list(found.topics) == ["orders"]
        await producer.set_sasl_credentials("a", "b")
        with pytest.raises(TypeError, match="password: must be str"):
            await producer.set_sasl_credentials("a", 5)  # type: ignore[arg-type]


async def test_purge(cluster: ScriptedCluster) -> None:
    async with made(cluster, linger_ms=60_000) as producer:
        future = await producer.produce("orders", "a")
        await producer.purge()
        assert code_of(future) == KafkaError._PURGE_QUEUE


@needs_fork
async def test_a_child_is_told_to_make_another(cluster: ScriptedCluster) -> None:
    async with made(cluster) as producer:
        await (await producer.produce("orders", "a"))

        def child() -> list[str]:
            with pytest.raises(RuntimeError) as on_a_loop:
                asyncio.run(producer.produce("orders", "b"))
            with pytest.raises(RuntimeError) as without:
                producer.kafka_producer.send("orders", b"b")
            return [str(on_a_loop.value), str(without.value)]

        on_a_loop, without = in_child(child)
        assert "on another loop" in on_a_loop
        assert "made before a fork" in without
        assert (await (await producer.produce("orders", "c"))).offset() == 1


async def test_many_tasks_at_once(cluster: ScriptedCluster) -> None:
    async with made(cluster, queue_buffering_max_messages=50) as producer:

        async def one(task: int) -> list[int | None]:
            return [(await (await producer.produce("orders", f"{task} {i}"))).offset() for i in range(20)]

        found = await asyncio.gather(*[one(task) for task in range(100)])
        assert sorted(offset for offsets in found for offset in offsets if offset is not None) == list(
            range(2000)
        )
        assert all(offsets == sorted(offsets, key=lambda each: each or 0) for offsets in found)
