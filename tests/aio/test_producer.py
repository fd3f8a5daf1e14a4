"""``AIOKafkaProducer``: aiokafka's contract, a loop that is never blocked, and cancellation."""

import asyncio
import contextlib
import gc
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.aio import AIOKafkaProducer, RecordMetadata, TopicPartition, errors
from cyproducer.aio.sends import follow
from cyproducer.structs import TopicPartition as Place
from tests.aio.running import MEMORY, OPTIONS, VALUE, batch_of, runs_on, threads_of
from tests.scripted.producing import WAIT_S
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster
from tests.scripted.scripted_model import Answers
from tools.harness.until import until

DENIED = 29


@contextlib.asynccontextmanager
async def producing_to(cluster: ScriptedCluster, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    given = {"bootstrap_servers": cluster.bootstrap_servers, **OPTIONS, **options}
    async with AIOKafkaProducer(**given) as producer:
        yield producer


def values(cluster: ScriptedCluster) -> list[bytes | None]:
    return cluster.topics["orders"].values


# Sending


async def test_send_returns_a_future_of_the_loop_with_aiokafkas_metadata(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster) as producer:
        headers = iter([("h", b"1")])
        future = await producer.send("orders", b"paid", b"7", 1, 1234, headers)
        assert asyncio.isfuture(future)
        assert future.get_loop() is asyncio.get_running_loop()
        assert await future == RecordMetadata("orders", 1, Place("orders", 1), 0, 1234, 0, None)
        assert TopicPartition is Place
        told = await producer.send_and_wait("orders", value=b"sent", key=b"7", partition=1)
        assert told is not None
        assert told.offset == 1
    first, _ = cluster.topics["orders"].partitions[1].records
    assert (first.value, first.key, first.timestamp, list(first.headers)) == (
        b"paid",
        b"7",
        1234,
        [("h", b"1")],
    )


async def test_the_brokers_timestamp_has_its_type(cluster: ScriptedCluster) -> None:
    def dated(answers: Answers) -> Answers:
        return [
            (topic, [each._replace(log_append_time_ms=777) for each in found]) for topic, found in answers
        ]

    cluster.act(PRODUCE, Act(edit=dated))
    async with producing_to(cluster) as producer:
        told = await producer.send_and_wait("orders", b"v")
        assert told is not None
        assert (told.timestamp, told.timestamp_type) == (777, 1)


async def test_without_acks_the_result_is_none(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster, acks=0) as producer:
        assert await producer.send_and_wait("orders", b"paid", partition=0) is None
        batch = batch_of(producer, b"shipped")
        assert await (await producer.send_batch(batch, "orders", partition=0)) is None
    # The broker may read the requests after the producer has closed.
    until(lambda: values(cluster) == [b"paid", b"shipped"], "both records")


async def test_what_is_wrong_with_a_record_at_once_is_raised_by_send(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster, max_request_size=1000) as producer:
        with pytest.raises(errors.MessageSizeTooLargeError, match="max_request_size is 1000"):
            await producer.send("orders", bytes(1000))
        with pytest.raises(TypeError, match="value: must be"):
            await producer.send("orders", "text")
        await producer.partitions_for("orders")
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="has 2 partitions"):
            await producer.send("orders", b"v", partition=7)
    assert values(cluster) == []


async def test_the_future_has_the_errors_of_brokers(cluster: ScriptedCluster) -> None:
    cluster.act(PRODUCE, Act(error=DENIED))
    async with producing_to(cluster) as producer:
        future = await producer.send("orders", b"v", partition=0)
        with pytest.raises(errors.TopicAuthorizationFailedError) as raised:
            await future
        assert raised.value.maybe_written is False


async def test_the_future_has_the_errors_of_brokers_however_fast_they_are(cluster: ScriptedCluster) -> None:
    cluster.act(PRODUCE, Act(error=DENIED))
    async with producing_to(cluster) as producer:
        inner: Any = producer._producer
        refused = inner.send("orders", b"v", partition=0)
        await runs_on(refused.done)
        future = follow(producer._outcomes_here(), refused)
        assert isinstance(future.exception(), errors.TopicAuthorizationFailedError)


async def test_serializers_and_aiokafkas_partitioners_are_used(cluster: ScriptedCluster) -> None:
    asked = []

    def partitioner(key: bytes | None, partitions: list[int], available: list[int]) -> int:
        asked.append((key, list(partitions), list(available)))
        return 1

    async with producing_to(
        cluster, key_serializer=str.encode, value_serializer=lambda n: b"%d" % n, partitioner=partitioner
    ) as producer:
        told = await producer.send_and_wait("orders", 7, key="k")
        assert told is not None
        assert told.partition == 1
    assert values(cluster) == [b"7"]
    assert asked == [(b"k", [0, 1], [0, 1])]


async def test_flush_sets_all_futures_without_the_linger(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster, linger_ms=60_000, request_timeout_ms=60_000) as producer:
        futures = [await producer.send("orders", b"%d" % i) for i in range(100)]
        batch = batch_of(producer, b"b")
        futures.append(await producer.send_batch(batch, "orders", partition=0))
        assert not any(future.done() for future in futures)
        await producer.flush()
        assert all(future.done() for future in futures)
    assert len(values(cluster)) == 101


async def test_partitions_for_is_answered_again_without_a_request(cluster: ScriptedCluster) -> None:
    cluster.create_topic("forbidden").error = DENIED
    async with producing_to(cluster) as producer:
        assert await producer.partitions_for("orders") == {0, 1}
        asked = len(cluster.received(METADATA))
        assert await producer.partitions_for("orders") == {0, 1}
        assert len(cluster.received(METADATA)) == asked
        with pytest.raises(errors.TopicAuthorizationFailedError):
            await producer.partitions_for("forbidden")
        with pytest.raises(TypeError):
            await producer.partitions_for(7)  # type: ignore[arg-type]


# Memory


async def test_the_loop_runs_while_memory_is_full_and_a_cancelled_send_has_sent_nothing(
    cluster: ScriptedCluster,
    go_on: threading.Event,
) -> None:
    async with producing_to(cluster, buffer_memory=MEMORY, max_batch_size=4096) as producer:
        await producer.send_and_wait("orders", b"first", partition=0)
        cluster.act(PRODUCE, *[Act(hold=go_on)] * 5)
        tasks = [
            asyncio.create_task(producer.send("orders", b"%04d" % i + VALUE, partition=0)) for i in range(60)
        ]
        inner = producer._producer
        assert inner is not None
        pool = inner._runtime.accumulator.pool
        await runs_on(lambda: pool.waiting_threads)
        await asyncio.sleep(0)
        waiting = [i for i, task in enumerate(tasks) if not task.done()]
        assert 0 < len(waiting) < 60
        tasks[waiting[0]].cancel()
        tasks[waiting[-1]].cancel()
        go_on.set()
        sent = await asyncio.gather(*tasks, return_exceptions=True)
        dropped = [i for i, each in enumerate(sent) if isinstance(each, asyncio.CancelledError)]
        assert dropped == [waiting[0], waiting[-1]]
        await asyncio.gather(*(each for each in sent if asyncio.isfuture(each)))
        arrived = [int(value[:4]) for value in values(cluster)[1:] if value]
        assert arrived == [i for i in range(60) if i not in dropped]


async def test_full_memory_is_an_error_after_request_timeout_ms(
    cluster: ScriptedCluster, go_on: threading.Event
) -> None:
    async with producing_to(
        cluster,
        buffer_memory=MEMORY,
        max_batch_size=4096,
        request_timeout_ms=300,
        delivery_timeout_ms=60_000,
    ) as producer:
        cluster.script = lambda received: Act(hold=go_on) if received.api_key == PRODUCE else None
        sends = (producer.send("orders", VALUE, partition=0) for _ in range(100))
        told = await asyncio.gather(*sends, return_exceptions=True)
        late = [each for each in told if isinstance(each, errors.KafkaTimeoutError)]
        assert 0 < len(late) < 100
        assert "max_block_ms=300: buffer_memory=32768" in str(late[0])
        go_on.set()


async def test_cancelling_the_future_does_not_stop_the_record(
    cluster: ScriptedCluster, go_on: threading.Event
) -> None:
    cluster.act(PRODUCE, Act(hold=go_on))
    async with producing_to(cluster) as producer:
        future = await producer.send("orders", b"sent", partition=0)
        future.cancel()
        waiting = asyncio.create_task(producer.send_and_wait("orders", b"too", partition=0))
        await asyncio.sleep(0)
        waiting.cancel()
        go_on.set()
        await asyncio.wait([future, waiting])
        assert future.cancelled()
        assert waiting.cancelled()
    assert values(cluster) == [b"sent", b"too"]


# Batches


async def test_a_batch_arrives_in_one_partition_in_order(cluster: ScriptedCluster) -> None:
    async with producing_to(
        cluster, max_batch_size=4000, linger_ms=60_000, request_timeout_ms=60_000
    ) as producer:
        before = await producer.send("orders", b"before", partition=1)
        await producer.flush()
        assert before.done()
        batch = producer.create_batch()
        count = 0
        while batch.append(timestamp=1000 + count, key=b"k", value=b"%d" % count, headers=[("h", None)]):
            count += 1
        assert count == batch.record_count() > 100
        assert 3900 < batch.size() <= 4000
        future = await producer.send_batch(batch, "orders", partition=1)
        await producer.flush()
        assert future.result() == RecordMetadata("orders", 1, Place("orders", 1), 1, 1000, 0, None)
        _, *batches = cluster.topics["orders"].partitions[1].batches
        # The producer closes a batch when the largest possible next record would not fit.
        assert len(batches) <= 2
        assert len(batches[0].records) >= count - 2
        sent = [record for each in batches for record in each.records]
        assert [(each.timestamp, each.value) for each in sent] == [
            (1000 + i, b"%d" % i) for i in range(count)
        ]
        assert {(each.key, tuple(each.headers)) for each in sent} == {(b"k", (("h", None),))}


async def test_an_empty_batch_is_done_at_once(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster) as producer:
        future = await producer.send_batch(producer.create_batch(), "orders", partition=0)
        assert await future is None
    assert cluster.received(PRODUCE) == []


async def test_a_batch_that_cannot_be_sent_is_refused_as_a_whole(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster, max_request_size=1000) as producer:
        batch = batch_of(producer, b"small", bytes(1000))
        with pytest.raises(errors.MessageSizeTooLargeError, match="max_request_size allows 1000"):
            await producer.send_batch(batch, "orders", partition=0)
        batch = batch_of(producer, b"small")
        with pytest.raises(errors.UnknownTopicOrPartitionError, match=r"has the partitions \[0, 1\]"):
            await producer.send_batch(batch, "orders", partition=2)
        with pytest.raises(TypeError, match=r"must come from create_batch\(\), not list"):
            await producer.send_batch([], "orders", partition=0)  # type: ignore[arg-type]
    assert values(cluster) == []


async def test_a_batch_fails_if_one_of_its_records_does(cluster: ScriptedCluster) -> None:
    cluster.act(PRODUCE, Act(), Act(error=DENIED))
    async with producing_to(cluster, linger_ms=60_000, request_timeout_ms=60_000) as producer:
        # The batch fills this one's, so that it arrives in two parts.
        first = await producer.send("orders", bytes(100_000), partition=0)
        batch = producer.create_batch()
        while batch.append(timestamp=None, key=None, value=VALUE):
            pass
        future = await producer.send_batch(batch, "orders", partition=0)
        assert (await first) is not None
        assert not future.done()
        await producer.flush()
        with pytest.raises(errors.TopicAuthorizationFailedError):
            future.result()
        assert len(cluster.received(PRODUCE)) == 2


@pytest.mark.slow
async def test_a_batch_waits_for_memory_without_blocking_and_reports_what_it_sent(
    cluster: ScriptedCluster, go_on: threading.Event
) -> None:
    async with producing_to(
        cluster,
        buffer_memory=MEMORY,
        max_batch_size=1 << 20,
        max_block_ms=500,
    ) as producer:
        await producer.partitions_for("orders")
        cluster.script = lambda received: Act(hold=go_on) if received.api_key == PRODUCE else None
        batch = batch_of(producer, *[b"%04d" % i + VALUE for i in range(100)])
        with pytest.raises(errors.KafkaTimeoutError) as raised:
            await producer.send_batch(batch, "orders", partition=0)
        accepted = raised.value.accepted
        assert accepted is not None
        assert 0 < accepted < 100
        go_on.set()
        await producer.flush()
        assert [int(value[:4]) for value in values(cluster) if value] == list(range(accepted))


# The producer's life


async def test_start_raises_what_aiokafka_raises_and_leaves_nothing(cluster: ScriptedCluster) -> None:
    node = cluster.nodes[1]
    producer = AIOKafkaProducer(bootstrap_servers=node.address, request_timeout_ms=300, **OPTIONS)
    node.stop()
    with pytest.raises(errors.KafkaConnectionError, match=r"no broker within 0.3 s: .*refused"):
        await producer.start()
    await runs_on(lambda: not threads_of(producer))
    with pytest.raises(errors.IllegalStateError, match=r"send\(\) before start\(\)"):
        await producer.send("orders", b"v")
    node.start()
    # It may be tried again.
    await producer.start()
    await producer.start()
    assert await producer.send_and_wait("orders", b"v") is not None
    await producer.stop()


async def test_a_cancelled_start_leaves_nothing(cluster: ScriptedCluster) -> None:
    cluster.nodes[1].stop()
    producer = AIOKafkaProducer(bootstrap_servers=cluster.nodes[1].address, client_id="cancelled", **OPTIONS)
    task = asyncio.create_task(producer.start())
    await runs_on(lambda: threads_of(producer))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await runs_on(lambda: not threads_of(producer))
    assert producer._producer is None


async def test_stop_delivers_and_may_be_repeated(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster, linger_ms=60_000, request_timeout_ms=60_000) as producer:
        futures = [await producer.send("orders", b"%d" % i, partition=0) for i in range(10)]
        batch = batch_of(producer, b"10")
        futures.append(await producer.send_batch(batch, "orders", partition=0))
        await asyncio.gather(producer.stop(), producer.stop())
        assert all(future.done() for future in futures)
        await producer.stop()
        for call in (
            producer.send("orders", b"v"),
            producer.send_and_wait("orders", b"v"),
            producer.flush(),
            producer.partitions_for("orders"),
            producer.send_batch(batch, "orders", partition=0),
            producer.start(),
        ):
            with pytest.raises(errors.ProducerClosed, match=r"after stop\(\)"):
                await call
        # A thread ends just after it has told the loop.
        await runs_on(lambda: not threads_of(producer))
        assert repr(producer) == f"<AIOKafkaProducer {producer.client_id!r} stopped>"
    assert values(cluster) == [b"%d" % i for i in range(11)]


@pytest.mark.parametrize("method", ["stop", "flush"])
async def test_the_loop_runs_during_a_wait_and_a_cancelled_wait_loses_nothing(
    cluster: ScriptedCluster, method: str, go_on: threading.Event
) -> None:
    cluster.act(PRODUCE, Act(hold=go_on))
    async with producing_to(cluster) as producer:
        future = await producer.send("orders", b"paid", partition=0)
        waiting = asyncio.create_task(getattr(producer, method)())
        await asyncio.to_thread(cluster.wait_for_requests, PRODUCE, 1)
        await runs_on(lambda: any(f"aio-{method}" in each.name for each in threads_of(producer)))
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        go_on.set()
        assert await future is not None
        await producer.stop()


def test_the_end_of_a_loop_does_not_wait_for_a_cancelled_wait(cluster: ScriptedCluster) -> None:
    go_on = threading.Event()
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **OPTIONS)

    async def give_up() -> None:
        await producer.start()
        await producer.send("orders", b"paid", partition=0)
        waiting = asyncio.create_task(producer.flush())
        await runs_on(lambda: any("aio-flush" in each.name for each in threads_of(producer)))
        waiting.cancel()

    cluster.act(PRODUCE, Act(hold=go_on))
    try:
        asyncio.run(give_up())
        # The record is still on its way.
        assert not go_on.is_set()
        assert any("aio-flush" in each.name for each in threads_of(producer))
    finally:
        go_on.set()
        asyncio.run(producer.stop())


@pytest.mark.slow
def test_one_producer_serves_several_loops(cluster: ScriptedCluster) -> None:
    # Each loop also waits for memory.
    small: dict[str, Any] = {"buffer_memory": MEMORY, "max_batch_size": 4096}
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **OPTIONS, **small)
    loops = []
    waited = []

    async def send(number: int) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        inner = producer._producer
        assert inner is not None
        sends = [producer.send("orders", b"%d" % number + VALUE, partition=0) for _ in range(100)]
        gathered = asyncio.gather(*sends)
        while not gathered.done():
            waited.append(len(inner._lines))
            await asyncio.sleep(0)
        futures = gathered.result()
        assert {future.get_loop() for future in futures} == {asyncio.get_running_loop()}
        assert all(await asyncio.gather(*futures))

    asyncio.run(producer.start())
    for number in range(3):
        asyncio.run(send(number))
    threads = [threading.Thread(target=lambda i=i: asyncio.run(send(i))) for i in range(3, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    asyncio.run(producer.stop())
    assert sorted(value[:1] for value in values(cluster) if value) == sorted(
        [b"%d" % i for i in range(6)] * 100
    )
    # It keeps none of them.
    assert max(waited) > 0
    gc.collect()
    assert [loop() for loop in loops] == [None] * 6


def test_it_works_with_uvloop(cluster: ScriptedCluster) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with producing_to(cluster, buffer_memory=MEMORY, max_batch_size=4096) as producer:
            futures = [await producer.send("orders", VALUE, partition=0) for _ in range(500)]
            await producer.flush()
            assert all(future.done() for future in futures)
            assert type(futures[0].get_loop()).__module__ == "uvloop"

    uvloop.run(main())
    assert len(values(cluster)) == 500


async def test_a_producer_that_is_forgotten_warns(cluster: ScriptedCluster) -> None:
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: told.append(context))
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **OPTIONS)
    await producer.start()
    await producer.send("orders", b"paid")
    known = weakref.ref(producer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del producer
        gc.collect()
    (text,) = [str(each.message) for each in caught if each.category is ResourceWarning]
    assert text.startswith("Unclosed AIOKafkaProducer <AIOKafkaProducer 'cyproducer-")
    # It refers to the producer.
    caught.clear()
    assert [context["message"] for context in told] == ["Unclosed AIOKafkaProducer"]
    told.clear()
    assert known() is None
    # Its records are sent, and it is closed.
    await runs_on(lambda: values(cluster) == [b"paid"])
    await runs_on(lambda: all(c.closed for c in cluster.nodes[1].connections))


async def test_a_producer_that_was_not_started_or_was_stopped_does_not_warn(cluster: ScriptedCluster) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        AIOKafkaProducer()
        with contextlib.suppress(ValueError):
            AIOKafkaProducer(acks=122)
        async with producing_to(cluster):
            pass
        gc.collect()
    assert [str(each.message) for each in caught if "Unclosed" in str(each.message)] == []


# Options


def inner(**options: Any) -> KafkaProducer:
    producer = KafkaProducer(AIOKafkaProducer(**options)._config)
    producer.close(0)
    return producer


def test_options_have_aiokafkas_meaning() -> None:
    default = inner().config
    assert (default.request_timeout_ms, default.max_block_ms, default.delivery_timeout_ms) == (
        40_000,
        40_000,
        80_000,
    )
    assert (default.acks, default.enable_idempotence) == (-1, True)
    config = inner(
        bootstrap_servers=["a:1", "b:2"],
        client_id="mine",
        metadata_max_age_ms=1000,
        request_timeout_ms=200,
        acks=1,
        compression_type="gzip",
        max_batch_size=1000,
        max_request_size=5000,
        linger_ms=7,
        retry_backoff_ms=11,
        connections_max_idle_ms=None,
        transactional_id=None,
        transaction_timeout_ms=1000,
        sasl_mechanism="PLAIN",
        sasl_kerberos_service_name="kafka",
        sasl_kerberos_domain_name=None,
        sasl_oauth_token_provider=None,
        buffer_memory=1 << 20,
    ).config
    assert config.bootstrap_servers == ("a:1", "b:2")
    assert (config.client_id, config.metadata_max_age_ms, config.acks) == ("mine", 1000, 1)
    assert (config.enable_idempotence, config.compression_type) == (False, "gzip")
    assert (config.batch_size, config.max_request_size, config.linger_ms) == (1000, 5000, 7)
    assert (config.request_timeout_ms, config.max_block_ms, config.delivery_timeout_ms) == (200, 200, 407)
    assert config.connections_max_idle_ms > 1e12
    assert (config.retry_backoff_ms, config.buffer_memory) == (11, 1 << 20)
    assert inner(delivery_timeout_ms=90_000, max_block_ms=5).config.delivery_timeout_ms == 90_000
    assert inner(acks="all", enable_idempotence=False).config.enable_idempotence is False


def test_plain_is_the_mechanism_that_is_not_given() -> None:
    login: dict[str, Any] = {"sasl_plain_username": "u", "sasl_plain_password": "p"}
    config = AIOKafkaProducer(security_protocol="SASL_PLAINTEXT", **login)._config
    assert config.sasl_mechanism == "PLAIN"
    config = AIOKafkaProducer(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-256", **login)._config
    assert config.sasl_mechanism == "SCRAM-SHA-256"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"acks": 122}, "acks=122"),
        ({"acks": 1, "enable_idempotence": True}, "acks"),
        ({"compression_type": "my_custom"}, "compression_type='my_custom'"),
        ({"linger_ms": -1}, "linger_ms=-1"),
        ({"request_timeout_ms": "soon"}, "request_timeout_ms='soon'"),
        ({"security_protocol": "SOME"}, "security_protocol='SOME'"),
        ({"max_batch_size": 1, "batch_size": 1}, "max_batch_size and batch_size"),
        ({"max_bach_size": 1}, "unknown option 'max_bach_size'"),
        ({"transactional_id": "t", "acks": 1}, r"transactional_id='t' contradicts acks=1 \(must be 'all'\)"),
        ({"transactional_id": "t", "enable_idempotence": False}, "contradicts transactional_id='t'"),
    ],
)
def test_a_wrong_option_is_a_value_error_of_the_constructor(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as raised:
        AIOKafkaProducer(**options)
    assert isinstance(raised.value, errors.KafkaConfigurationError)


def test_options_of_old_versions_warn_and_have_no_effect() -> None:
    loop = asyncio.new_event_loop()
    try:
        with pytest.warns(DeprecationWarning, match="loop has no effect"):
            AIOKafkaProducer(loop=loop)
        with pytest.warns(DeprecationWarning, match="api_version has no effect"):
            AIOKafkaProducer(api_version="0.10.0")
    finally:
        loop.close()


def test_acks_that_exclude_idempotence_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    AIOKafkaProducer(acks=1)
    assert caplog.messages == []


async def test_a_started_producer_uses_one_client_id(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster) as producer:
        assert producer.client_id.startswith("cyproducer-")
        await producer.send_and_wait("orders", b"v")
        assert cluster.received(PRODUCE)[0].header.client_id == producer.client_id


async def test_a_task_that_only_sends_lets_others_run(cluster: ScriptedCluster) -> None:
    turns, done = 0, False

    async def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    async with producing_to(cluster, linger_ms=60_000) as producer:
        assert await producer.partitions_for("orders")
        task = asyncio.create_task(other())
        for _ in range(20_000):
            await producer.send("orders", b"x")
        done = True
        await task
        assert turns >= 20_000 // 4096
        await producer.flush()


async def test_futures_are_set_while_a_task_only_sends(cluster: ScriptedCluster) -> None:
    async with producing_to(cluster, buffer_memory=1 << 30) as producer:
        first = await producer.send("orders", b"x")
        for _ in range(1_000_000):
            if first.done():
                break
            await producer.send("orders", b"x")
            # The broker's threads need the GIL to acknowledge it.
            time.sleep(0.0001)
        assert first.done()
