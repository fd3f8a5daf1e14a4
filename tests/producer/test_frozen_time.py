"""Nothing waits longer, or not long enough, while freezegun or time-machine stops the clocks of a test."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import freezegun
import pytest
import time_machine

from cyproducer import KafkaProducer, errors
from cyproducer.aio import AIOKafkaProducer
from cyproducer.base.clock import monotonic_s, unix_ms
from cyproducer.confluent import KafkaException, Producer
from tests.scripted.odd_servers import refusing_address
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.until import PATIENCE_S

# The clocks of pytest-timeout's default method are not frozen either.
pytestmark = pytest.mark.timeout(60)

THEN_MS = 1_704_067_200_000
WAIT_S = 0.1


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(t=1) as running:
        yield running


@pytest.fixture(params=["freezegun", "time-machine"])
def stopped(request: pytest.FixtureRequest) -> AbstractContextManager[object]:
    """Stops the clocks: within the test, because pytest reads them, too."""
    if request.param == "freezegun":
        made: AbstractContextManager[object] = freezegun.freeze_time("2024-01-01", real_asyncio=True)
        return made
    return time_machine.travel(THEN_MS / 1000, tick=False)


def took(call: Callable[[], object], *expected: type[BaseException]) -> float:
    """The seconds that a call took; it must raise one of those errors, if any are given."""
    began_s = monotonic_s()
    if expected:
        with pytest.raises(expected):
            call()
    else:
        call()
    return monotonic_s() - began_s


@pytest.mark.slow
def test_records_are_sent_after_linger_with_the_real_time(
    cluster: ScriptedCluster, stopped: AbstractContextManager[object]
) -> None:
    with stopped:
        assert int(time.time() * 1000) == THEN_MS
        before_ms = unix_ms()
        ran = threading.Event()
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=20) as producer:
            future = producer.send("t", b"lingers")
            future.add_callback(lambda _: ran.set())
            metadata = future.get(PATIENCE_S)
            assert ran.wait(PATIENCE_S)
            # The coarse clock is some milliseconds late.
            assert before_ms - 20 <= metadata.timestamp <= unix_ms()
            producer.send("t", b"flushed")
            producer.flush(PATIENCE_S)
            frozen_ms = int(time.time() * 1000)
            assert producer.send("t", b"then", timestamp_ms=frozen_ms).get(PATIENCE_S).timestamp == THEN_MS


@pytest.mark.slow
def test_calls_end_at_their_timeouts_while_the_broker_is_away(
    stopped: AbstractContextManager[object],
) -> None:
    with stopped:
        producer = KafkaProducer(bootstrap_servers=refusing_address(), retry_backoff_ms=5, max_block_ms=400)
        with producer as alone:
            future = alone.send("t", b"v")
            for call in (
                lambda: future.get(WAIT_S),
                lambda: alone.flush(WAIT_S),
                lambda: alone.wait_ready(WAIT_S),
                lambda: alone.partitions_for("t"),
            ):
                assert WAIT_S * 0.9 <= took(call, errors.KafkaTimeoutError, errors.KafkaConnectionError) < 3
            last = alone.send("t", b"last")
            assert took(lambda: alone.close(WAIT_S)) < 3
            assert future.failed()
            assert last.failed()


def test_records_expire_while_the_broker_is_away(stopped: AbstractContextManager[object]) -> None:
    with (
        stopped,
        KafkaProducer(bootstrap_servers=refusing_address(), max_block_ms=100, retry_backoff_ms=5) as producer,
    ):
        future = producer.send("t", b"v")
        assert took(lambda: future.get(PATIENCE_S), errors.KafkaTimeoutError) < 3


def test_a_transaction_gives_up_in_time(stopped: AbstractContextManager[object]) -> None:
    with (
        stopped,
        KafkaProducer(
            bootstrap_servers=refusing_address(), transactional_id="x", max_block_ms=100
        ) as producer,
    ):
        assert took(producer.init_transactions, errors.KafkaTimeoutError, errors.KafkaConnectionError) < 3


def test_confluents_shape_waits_in_real_time(
    cluster: ScriptedCluster, stopped: AbstractContextManager[object]
) -> None:
    with stopped:
        told = threading.Event()
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
        assert WAIT_S * 0.9 <= took(lambda: producer.poll(WAIT_S)) < 3
        producer.produce("t", b"v", on_delivery=lambda *_: told.set())
        assert producer.flush(PATIENCE_S) == 0
        assert told.is_set()
        producer.close()
        away = Producer({"bootstrap.servers": refusing_address()})
        away.produce("t", b"v")
        assert WAIT_S * 0.9 <= took(lambda: away.flush(WAIT_S)) < 3
        assert took(lambda: away.list_topics(timeout=WAIT_S), KafkaException) < 3
        away.purge()
        away.close()


def test_a_task_sends_and_stops(cluster: ScriptedCluster, stopped: AbstractContextManager[object]) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            metadata = await producer.send_and_wait("t", b"v")
            assert metadata is not None
            assert metadata.offset == 0
            batch = producer.create_batch()
            appended = batch.append(value=b"v", key=None, timestamp=None)
            assert appended is not None
            assert abs(appended.timestamp - unix_ms()) < 60_000

    with stopped:
        assert took(lambda: asyncio.run(run())) < 10


LOOP = """
import asyncio, sys
from cyproducer import KafkaProducer
from freezegun import freeze_time
async def run(producer):
    print((await (await producer.send_async("t", b"v"))).offset)
with freeze_time("2024-01-01"), KafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
    asyncio.run(run(producer))
"""


@pytest.mark.slow
def test_a_task_sends_while_the_loop_is_frozen_too(cluster: ScriptedCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOP, *cluster.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert done.stdout.split() == ["0"]
