"""The waits of ``send_async()``: one time for all of them, refused topics, and systems without eventfd."""

import asyncio
import os
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cyproducer import errors
from cyproducer._send_async import send_async
from cyproducer.base.wakeup_fd import channel
from cyproducer.producer import KafkaProducer, ProducerRecord
from cyproducer.send.send_path import WouldBlock
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import PRODUCE, Act, ScriptedCluster


def test_all_waits_of_one_call_share_max_block_ms() -> None:
    """A call that waits for one thing after the other ends when ``send()`` would."""
    left: list[float] = []
    sent: Any = object()

    class Blocked:
        _extensions = None
        config = SimpleNamespace(max_block_ms=60_000.0)

        def _send_at_once(self, *given: Any) -> Any:
            if len(left) < 3:
                raise WouldBlock("metadata", 100)
            return sent

        def _wait_for_parking(self, topic: str, size: int, timeout_s: float) -> None:
            left.append(timeout_s)
            began = time.monotonic()
            while time.monotonic() - began < 0.001:
                pass

    record = ProducerRecord("orders", b"v")
    assert asyncio.run(send_async(cast(KafkaProducer, Blocked()), record)) is sent
    first, second, third = left
    assert 60 >= first >= second + 0.001 >= third + 0.002


def test_a_topic_that_a_partitioner_waits_for_in_vain_fails_through_the_future() -> None:
    """As with ``send()``, which does not raise what a broker says of a topic."""

    def never(*given: Any) -> int:
        raise AssertionError("asked for a partition of a topic without any")

    async def test(producer: KafkaProducer) -> None:
        future = await producer.send_async("orders", b"v")
        with pytest.raises(errors.TopicAuthorizationFailedError, match="'orders'"):
            await future

    with ScriptedCluster(orders=1) as cluster, producing(cluster, partitioner=never) as producer:
        cluster.topics["orders"].error = 29
        asyncio.run(asyncio.wait_for(test(producer), WAIT_S))


def test_without_eventfd_a_pipe_that_never_blocks_announces_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    fds = channel()
    try:
        assert fds[0] != fds[1]
        assert not os.get_blocking(fds[0])
        assert not os.get_blocking(fds[1])
    finally:
        for fd in fds:
            os.close(fd)
    go_on = threading.Event()

    async def test(producer: KafkaProducer) -> None:
        sends = [producer.send_async("orders", b"%04d" % i + bytes(1000)) for i in range(60)]
        tasks = [asyncio.create_task(send) for send in sends]
        while not producer._runtime.accumulator.pool.waiting_threads:
            await asyncio.sleep(0)
        go_on.set()
        for task in tasks:
            await (await task)

    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, buffer_memory=32 << 10, batch_size=4096) as producer,
    ):
        producer.send("orders", b"first").get(WAIT_S)
        cluster.act(PRODUCE, *[Act(hold=go_on)] * 5)
        try:
            asyncio.run(asyncio.wait_for(test(producer), WAIT_S))
        finally:
            go_on.set()
        values = cluster.topics["orders"].values[1:]
    assert [value[:4] for value in values if value is not None] == [b"%04d" % i for i in range(60)]
