"""``send_async()``: the loop runs while a task waits, and a cancelled task has sent nothing."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.control.cluster_view import ClusterView
from cyproducer.producer import KafkaProducer
from cyproducer.structs import RecordMetadata
from tests.producer.interceptors import Spy
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster
from tools.harness.until import until

MEMORY = 32 << 10
VALUE = bytes(1000)


class Held:
    """A broker that responds when the test says so, and a producer whose memory is full."""

    def __init__(self, **options: Any) -> None:
        self.go_on = threading.Event()
        self.cluster = ScriptedCluster(orders=1)
        self.options = {"buffer_memory": MEMORY, "batch_size": 4096, **options}

    def run(self, test: Callable[[KafkaProducer], Coroutine[Any, Any, None]]) -> list[Any]:
        """Runs a test on a loop; returns the records that the broker has at the end."""
        with self.cluster, producing(self.cluster, **self.options) as producer:
            producer.send("orders", b"first").get(WAIT_S)
            self.cluster.act(PRODUCE, *[Act(hold=self.go_on)] * 5)
            try:
                asyncio.run(asyncio.wait_for(test(producer), WAIT_S))
            finally:
                self.go_on.set()
            producer.flush(WAIT_S)
            return list(self.cluster.topics["orders"].values)


async def fill(producer: KafkaProducer) -> "list[asyncio.Task[Any]]":
    """Tasks, of which the last ones wait for memory."""
    tasks = [asyncio.create_task(producer.send_async("orders", b"%04d" % i + VALUE)) for i in range(60)]
    pool = producer._runtime.accumulator.pool
    while not pool.waiting_threads:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert any(task.done() for task in tasks)
    assert not all(task.done() for task in tasks)
    return tasks


def test_headers_are_copied_before_the_wait_for_memory() -> None:
    headers = [("a", b"1")]

    async def test(producer: KafkaProducer) -> None:
        tasks = await fill(producer)
        given = (headers, iter([("b", b"2")]))
        more = [asyncio.create_task(producer.send_async("orders", VALUE, headers=each)) for each in given]
        await asyncio.sleep(0)
        headers.clear()
        held.go_on.set()
        await asyncio.gather(*tasks, *more)

    held = Held()
    held.run(test)
    records = held.cluster.topics["orders"].partitions[0].records
    assert [record.headers for record in records if record.headers] == [(("a", b"1"),), (("b", b"2"),)]


def test_without_a_reason_to_wait_it_does_the_same_as_send() -> None:
    async def test(producer: KafkaProducer) -> None:
        future = await producer.send_async("orders", b"v", b"k", [("h", b"1")], 0, 1234)
        metadata = await future
        assert isinstance(metadata, RecordMetadata)
        assert (metadata.partition, metadata.offset, metadata.timestamp) == (0, 0, 1234)

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        asyncio.run(test(producer))
        (record,) = cluster.topics["orders"].partitions[0].batches[0].records
        assert (record.key, list(record.headers)) == (b"k", [("h", b"1")])


def test_the_loop_runs_while_memory_is_full_and_all_records_arrive_in_order() -> None:
    held = Held()

    async def test(producer: KafkaProducer) -> None:
        tasks = await fill(producer)
        pool = producer._runtime.accumulator.pool
        assert pool.peak_bytes <= MEMORY
        turns = 0
        for _ in range(100):
            await asyncio.sleep(0)
            turns += 1
        assert turns == 100
        held.go_on.set()
        futures = await asyncio.gather(*tasks)
        offsets = [(await future).offset for future in futures]
        assert offsets == list(range(1, 61))
        assert pool.peak_bytes <= MEMORY

    arrived = held.run(test)
    assert [value[:4] for value in arrived[1:]] == [b"%04d" % i for i in range(60)]


def test_a_task_cancelled_while_waiting_has_sent_nothing() -> None:
    held = Held()
    cancelled: list[int] = []

    async def test(producer: KafkaProducer) -> None:
        tasks = await fill(producer)
        for number, task in enumerate(tasks):
            if not task.done() and number % 2:
                task.cancel()
                cancelled.append(number)
        held.go_on.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for number, outcome in enumerate(outcomes):
            assert isinstance(outcome, asyncio.CancelledError) == (number in cancelled)
        producer._runtime.flush(WAIT_S)
        pool = producer._runtime.accumulator.pool
        # A buffer is freed just after its batch is removed from the accumulator.
        until(lambda: pool.used_bytes == 0, "the return of all memory")
        assert pool.waiting_threads == 0

    arrived = held.run(test)
    assert cancelled
    assert [value[:4] for value in arrived[1:]] == [b"%04d" % i for i in range(60) if i not in cancelled]


def test_the_timeout_and_its_error_are_those_of_send() -> None:
    async def overflow(producer: KafkaProducer) -> None:
        for _ in range(60):
            await producer.send_async("orders", VALUE)

    async def test(producer: KafkaProducer) -> None:
        with pytest.raises(errors.BufferExhaustedError, match=r"max_block_ms=1000: buffer_memory=32768"):
            await overflow(producer)
        pool = producer._runtime.accumulator.pool
        assert pool.waiting_threads == 0
        with pytest.raises(errors.BufferExhaustedError, match=r"needs \d+ bytes and buffer_memory is 32768"):
            await producer.send_async("orders", bytes(MEMORY + 1))

    # The first record also waits for metadata, which takes longer than 50 ms on a loaded machine.
    Held(max_block_ms=1000).run(test)


def test_no_descriptor_is_left() -> None:
    held = Held()

    async def test(producer: KafkaProducer) -> None:
        tasks = await fill(producer)
        (line,) = producer._lines.values()
        assert line._fds is not None
        held.go_on.set()
        await asyncio.gather(*tasks)
        assert line._fds is None

    held.run(test)


def test_threads_and_tasks_wait_in_one_queue() -> None:
    held = Held()
    sent: list[Any] = []

    async def test(producer: KafkaProducer) -> None:
        tasks = await fill(producer)
        pool = producer._runtime.accumulator.pool
        waiting = pool.waiting_threads
        thread = threading.Thread(target=lambda: sent.append(producer.send("orders", b"thread")))
        thread.start()
        while pool.waiting_threads == waiting:
            await asyncio.sleep(0)
        held.go_on.set()
        await asyncio.gather(*tasks)
        await asyncio.get_running_loop().run_in_executor(None, thread.join, WAIT_S)
        assert (await sent[0]).offset > 0

    assert b"thread" in held.run(test)


def test_it_waits_for_slow_callbacks_without_blocking_the_loop() -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(outcome: Any) -> None:
        running.set()
        assert go_on.wait(WAIT_S)

    async def test(producer: KafkaProducer) -> None:
        task = asyncio.create_task(producer.send_async("orders", b"1"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        assert (await (await task)).offset == 1

    with ScriptedCluster(orders=1) as cluster, producing(cluster, max_pending_callbacks=1) as producer:
        producer.send("orders", b"0").add_callback(slow)
        assert running.wait(WAIT_S)
        try:
            asyncio.run(test(producer))
        finally:
            go_on.set()


def test_a_topic_without_metadata_does_not_block() -> None:
    async def test(producer: KafkaProducer) -> None:
        futures = [await producer.send_async("orders", b"%d" % i) for i in range(3)]
        assert [(await future).offset for future in futures] == [0, 1, 2]

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        asyncio.run(test(producer))


def test_for_a_missing_partition_metadata_is_requested_then_it_fails() -> None:
    async def test(producer: KafkaProducer) -> None:
        with pytest.raises(
            errors.UnknownTopicOrPartitionError, match="partition=7: topic 'orders' has 1 part"
        ):
            await producer.send_async("orders", b"v", partition=7)

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"v").get(WAIT_S)
        asyncio.run(test(producer))


def test_interceptors_serializers_and_partitioners_see_each_record_once() -> None:
    spy, serialized = Spy(), []

    def serialize(value: str) -> bytes:
        serialized.append(value)
        return value.encode() + VALUE

    class Last:
        def partition(self, topic: str, key: bytes | None, cluster: ClusterView) -> int:
            return max(cluster.partitions_for_topic(topic) or ())

    held = Held(interceptors=[spy], value_serializer=serialize, partitioner=Last())
    held.options["max_block_ms"] = 5000

    async def test(producer: KafkaProducer) -> None:
        tasks = [asyncio.create_task(producer.send_async("orders", f"{i:04}")) for i in range(60)]
        pool = producer._runtime.accumulator.pool
        while not pool.waiting_threads:
            await asyncio.sleep(0)
        tasks[-1].cancel()
        held.go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    with held.cluster, producing(held.cluster, **held.options) as producer:
        producer.send("orders", "first").get(WAIT_S)
        held.cluster.act(PRODUCE, *[Act(hold=held.go_on)] * 5)
        try:
            asyncio.run(asyncio.wait_for(test(producer), WAIT_S))
        finally:
            held.go_on.set()
        producer.flush(WAIT_S)
        assert len(held.cluster.topics["orders"].values) == 60
    assert serialized == [record.value for record in spy.seen] == ["first", *(f"{i:04}" for i in range(60))]
    assert Counter(type(error) for _, error in spy.outcomes) == {type(None): 60, asyncio.CancelledError: 1}


def test_on_a_closed_producer_it_raises() -> None:
    async def test(producer: KafkaProducer) -> None:
        with pytest.raises(errors.ProducerClosedError):
            await producer.send_async("orders", b"v")

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.close()
        asyncio.run(test(producer))
