"""Every duration of the API at its extremes: endless, huge, 0, and invalid.

Options are found by the ending of their names, so that a new option is tested automatically; calls are in a
table. Endless and huge durations mean no limit, 0 means at once if it is allowed, and NaN, negative numbers
and texts are refused before anything happens.
"""

import math
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from cyproducer.accumulator.buffer_pool import BufferPool
from cyproducer.base.clock import ManualClock
from cyproducer.base.durations import duration, waitable
from cyproducer.config import ProducerConfig
from cyproducer.config.option_kinds import FOREVER_MS, INT32_MAX
from cyproducer.config.options import OPTIONS
from cyproducer.errors import (
    BufferExhaustedError,
    KafkaConfigurationError,
    KafkaTimeoutError,
    NoBrokersAvailable,
)
from cyproducer.futures.completion import CompletionQueue
from cyproducer.producer import KafkaProducer
from tests.programs import run_to_exit
from tests.scripted.odd_servers import refusing_address
from tests.scripted.producing import WAIT_S, options, producing
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster
from tools.harness.rig import Rig
from tools.harness.until import until, until_blocked

ENDLESS = [math.inf, 2**63 - 1, 2**31 - 1, 10**400]
#: Also possible in a properties file.
ENDLESS_TEXTS = ["inf", str(2**63 - 1)]
DURATIONS = [option.name for option in OPTIONS if option.name.endswith("_ms")]
#: Options that can't be 0, and the part of the message that gives their minimum.
NOT_ZERO = {
    "default_api_timeout_ms": "at least request_timeout_ms",
    "delivery_timeout_ms": "at least linger_ms",
    "metadata_max_idle_ms": ">= 1",
    "metrics_sample_window_ms": ">= 1",
    "request_timeout_ms": ">= 1",
    "socket_connection_setup_timeout_ms": ">= 1",
    "socket_connection_setup_timeout_max_ms": ">= 1",
    "transaction_timeout_ms": ">= 1",
}


# Options


def deliver(producer: KafkaProducer) -> None:
    """Sends a record and waits for its acknowledgement, then sends one with a callback."""
    producer.wait_ready(WAIT_S)

    def acknowledged() -> bool:
        future = producer.send("orders", b"1")
        producer.flush(WAIT_S)
        if producer.config.max_block_ms == 0 and isinstance(future.exception, KafkaTimeoutError):
            # The topic's metadata is missing and is being requested.
            return False
        assert future.get(0).topic == "orders"
        return True

    until(acknowledged, "an acknowledged record")
    called = threading.Event()
    producer.send("orders", b"2").add_both(lambda outcome: called.set())
    producer.flush(WAIT_S)
    assert called.is_set()
    assert all(math.isfinite(x) or math.isnan(x) for g in producer.metrics().values() for x in g.values())


@pytest.mark.parametrize("value", [*ENDLESS, *ENDLESS_TEXTS, 0], ids=lambda value: f"{value!r:.20}")
@pytest.mark.parametrize("name", DURATIONS)
def test_a_producer_works_with_the_extremes_of_every_duration(name: str, value: Any) -> None:
    with ScriptedCluster(orders=1) as cluster:
        given = options(cluster, **{name: value})
        for first in ("retry_backoff_ms", "reconnect_backoff_ms"):
            longest = first.replace("_ms", "_max_ms")
            if name == first:
                del given[longest]
            if name == longest and value == 0:
                given[first] = 0
        if name == "socket_connection_setup_timeout_max_ms":
            given["socket_connection_setup_timeout_ms"] = 1000
        if value == 0 and name in NOT_ZERO:
            with pytest.raises(KafkaConfigurationError, match=rf"{name}=0.*{NOT_ZERO[name]}"):
                KafkaProducer(**given)
            return
        producer = KafkaProducer(**given)
        try:
            deliver(producer)
        finally:
            producer.close(WAIT_S)
        assert not producer._runtime.thread.is_alive()


@pytest.mark.parametrize("value", [math.nan, "nan", -2, -math.inf, "soon", b"1"], ids=repr)
@pytest.mark.parametrize("name", DURATIONS)
def test_an_option_refuses_a_value_that_is_not_a_duration(name: str, value: Any) -> None:
    with pytest.raises(KafkaConfigurationError, match=rf"{name}=.*must be a (whole )?number of milliseconds"):
        ProducerConfig(**{name: value})


def test_durations_are_found_by_name() -> None:
    assert {"max_block_ms", "linger_ms", "close_timeout_ms", "request_timeout_ms"} < set(DURATIONS)
    assert set(NOT_ZERO) < set(DURATIONS)


@pytest.mark.parametrize("value", ENDLESS, ids=lambda value: f"{value!r:.20}")
def test_waiting_for_memory_with_an_endless_max_block_ms_has_no_limit(value: Any) -> None:
    with Rig({"t": [1]}, buffer_memory=1024, batch_size=512, max_block_ms=min(value, FOREVER_MS)) as rig:
        rig.send("t", bytes(300))
        rig.send("t", bytes(300))
        sent = threading.Thread(daemon=True, target=lambda: rig.send("t", bytes(300)))
        sent.start()
        until(lambda: rig.pool.waiting_threads, "the wait for memory")
        until_blocked(sent)
        assert sent.is_alive()
        while sent.is_alive():
            rig.answer_all()
        assert rig.pool.exhausted_total == 0


@pytest.mark.parametrize("value", [*ENDLESS, *ENDLESS_TEXTS], ids=lambda value: f"{value!r:.20}")
def test_a_record_is_parked_without_limit_and_fails_when_the_producer_is_closed(value: Any) -> None:
    hold = threading.Event()
    with ScriptedCluster(orders=1) as cluster:
        cluster.act(METADATA, Act(hold=hold))
        with producing(cluster, max_block_ms=value, linger_ms=value) as producer:
            future = producer.send("orders", b"1")
            cluster.wait_for_requests(METADATA, 1)
            producer._runtime.sender.request_control()
            assert not future.is_done
            producer.close(0)
            assert future.failed()
            hold.set()


@pytest.mark.parametrize("value", [math.inf, FOREVER_MS])
def test_endless_timeouts_never_expire(value: float) -> None:
    """Advances the clock by a hundred years."""
    given: dict[str, Any] = {
        "linger_ms": value,
        "delivery_timeout_ms": value,
        "request_timeout_ms": value,
        "max_block_ms": value,
        "availability_timeout_ms": value,
        "single_broker_ms": value,
        "sample_window_ms": value,
    }
    with Rig({"t": [1]}, **given) as rig:
        lingering = rig.send("t", b"v")
        parked = rig.send("u", b"v")
        for _ in range(100):
            rig.advance_ms(365 * 86_400_000)
            assert rig.requests() == []
        rig.accumulator.close()
        rig.step()
        for _ in range(100):
            rig.advance_ms(365 * 86_400_000)
        assert not lingering.is_done
        assert not parked.is_done
        assert not rig.control.broken
        rig.answer_all()
        assert lingering.get(0).offset == 0
        assert rig.sender.fail_parked("u", KafkaTimeoutError("all that is there")) == 1


# Calls


class Calls:
    """A producer with a record in flight, whose response is held back, and every call that waits for it."""

    def __init__(self, cluster: ScriptedCluster, producer: KafkaProducer) -> None:
        self.hold = threading.Event()
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(hold=self.hold))
        self.producer = producer
        self.record = producer.send("orders", b"1")
        self.rows = producer.send_many("orders", [b"2", b"3"])
        runtime = producer._runtime
        self.calls: dict[str, Callable[[Any], object]] = {
            "get": self.record.get,
            "rows": self.rows.get,
            "result": self.record.as_concurrent().result,
            "exception": self.record.as_concurrent().exception,
            "rows' result": self.rows.as_concurrent().result,
            "flush": producer.flush,
            "accumulator.flush": runtime.accumulator.flush,
            "close": producer.close,
        }


WAITING = ["get", "rows", "result", "exception", "rows' result", "flush", "accumulator.flush", "close"]


@pytest.mark.parametrize("value", [None, *ENDLESS, Fraction(10**12)], ids=lambda value: f"{value!r:.20}")
@pytest.mark.parametrize("call", WAITING)
def test_a_call_with_an_endless_timeout_waits_without_limit(call: str, value: Any) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        waited = Calls(cluster, producer)
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                waited.calls[call](value)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(daemon=True, target=wait)
        thread.start()
        cluster.wait_for_requests(PRODUCE, 1)
        until_blocked(thread)
        assert thread.is_alive(), raised
        waited.hold.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert not raised
        assert waited.record.get(WAIT_S).offset == 0


@pytest.mark.parametrize("call", WAITING)
def test_a_call_with_timeout_0_returns_at_once(call: str) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        waited = Calls(cluster, producer)
        try:
            if call == "close":
                producer.close(0)
                assert waited.record.failed()
            elif call == "accumulator.flush":
                assert not producer._runtime.accumulator.flush(0)
            else:
                with pytest.raises((KafkaTimeoutError, TimeoutError)):
                    waited.calls[call](0)
        finally:
            waited.hold.set()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (math.nan, ValueError),
        (-1, ValueError),
        (-math.inf, ValueError),
        (-(10**400), ValueError),
        ("1", TypeError),
        (b"1", TypeError),
        ([1], TypeError),
        (1j, TypeError),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_a_call_refuses_an_invalid_timeout_before_it_does_anything(value: Any, kind: type[Exception]) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        waited = Calls(cluster, producer)
        runtime = producer._runtime
        calls = waited.calls | {
            "wait_ready": producer.wait_ready,
            "acquire": lambda value: BufferPool(1000).acquire(600, value),
            "wait_idle": runtime.callbacks.queue.wait_idle,
            "run_next": CompletionQueue().run_next,
            "run_once": runtime.sender.run_once,
        }
        try:
            for name, call in calls.items():
                with pytest.raises(kind, match=r"^(timeout|timeout_s|max_wait_ms)=.*: must be a number of "):
                    call(value)
                assert producer.send("orders", b"still open"), name
        finally:
            waited.hold.set()
        assert waited.record.get(WAIT_S).offset == 0
        # A known outcome changes nothing: no race decides whether an invalid timeout is noticed.
        for name in ("get", "rows", "result", "exception", "rows' result"):
            with pytest.raises(kind):
                waited.calls[name](value)


@pytest.mark.parametrize("value", ENDLESS, ids=lambda value: f"{value!r:.20}")
def test_internal_calls_with_an_endless_timeout_wait_without_limit(value: Any) -> None:
    pool = BufferPool(1024)
    lease = pool.acquire(1024)
    assert lease is not None
    with Rig({"t": [1]}) as rig:
        rig.control.delay_ms = math.inf
        rig.send("t", b"v")
        rig.step()
        rig.step()
        queue = CompletionQueue()
        results: dict[str, object] = {}
        waits: dict[str, Callable[[], object]] = {
            "acquire": lambda: pool.acquire(512, value),
            "run_next": lambda: queue.run_next(value),
            "run_once": lambda: rig.sender.run_once(value),
        }
        threads = [
            threading.Thread(daemon=True, target=lambda name=name, wait=wait: results.update({name: wait()}))
            for name, wait in waits.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            until_blocked(thread)
        assert results == {}
        lease.release()
        queue.close()
        rig.sender.wake()
        for thread in threads:
            thread.join(WAIT_S)
        assert results.pop("acquire") is not None
        assert results == {"run_next": None, "run_once": None}


def test_internal_calls_with_timeout_0_return_at_once() -> None:
    pool = BufferPool(512)
    lease = pool.acquire(512, 0)
    assert lease is not None
    assert pool.acquire(512, 0) is None
    lease.release()
    assert CompletionQueue().run_next(0) == 0
    with producing(bootstrap_servers=refusing_address(), max_block_ms=0) as producer:
        for timeout in (0, None):
            with pytest.raises(NoBrokersAvailable):
                producer.wait_ready(timeout)
        with pytest.raises(KafkaTimeoutError):
            producer.partitions_for("orders")
        until(producer.send("orders", b"1").failed, "the end of a record whose topic has no metadata")
    with Rig({"t": [1]}, buffer_memory=512, max_block_ms=0) as rig:
        rig.send("t", bytes(300))
        with pytest.raises(BufferExhaustedError, match="max_block_ms=0"):
            rig.send("t", bytes(300))


@pytest.mark.parametrize("value", ENDLESS, ids=lambda value: f"{value!r:.20}")
def test_wait_ready_with_an_endless_timeout_waits_without_limit(value: Any) -> None:
    hold = threading.Event()
    with ScriptedCluster(orders=1) as cluster:
        cluster.act(METADATA, Act(hold=hold))
        with producing(cluster, max_block_ms=value) as producer:
            threads = [
                threading.Thread(daemon=True, target=producer.wait_ready, args=(value,)),
                threading.Thread(daemon=True, target=producer.wait_ready),
                threading.Thread(daemon=True, target=producer.partitions_for, args=("orders",)),
            ]
            for thread in threads:
                thread.start()
            cluster.wait_for_requests(METADATA, 1)
            for thread in threads:
                until_blocked(thread)
                assert thread.is_alive()
            hold.set()
            for thread in threads:
                thread.join(WAIT_S)
                assert not thread.is_alive()


# Closing at exit

AT_EXIT = """
import sys
from cyproducer import _runtime as runtime
from cyproducer.producer import KafkaProducer

address, close_timeout_ms, fail = sys.argv[1:]
first, second = (
    KafkaProducer(bootstrap_servers=address, linger_ms="inf", delivery_timeout_ms="inf",
                  close_timeout_ms=close_timeout_ms, client_id=name)
    for name in ("first", "second")
)
for producer in (first, second):
    producer.partitions_for("orders")
    producer.send("orders", producer.config.client_id.encode())
if fail == "fail":
    drain, failed = runtime.drain, []
    def failing(machine, began):
        if not failed:
            failed.append(machine.config.client_id)
            raise OverflowError("timestamp too large")
        drain(machine, began)
    runtime.drain = failing
"""


@pytest.mark.parametrize("close_timeout_ms", ["inf", str(2**63 - 1), "30000"])
def test_an_endless_close_timeout_loses_nothing_at_exit(close_timeout_ms: str) -> None:
    with ScriptedCluster(orders=1) as cluster:
        ended = run_to_exit(AT_EXIT, cluster.bootstrap_servers[0], close_timeout_ms, "")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert sorted(map(str, cluster.topics["orders"].partitions[0].values)) == ["b'first'", "b'second'"]


@pytest.mark.slow
def test_a_producer_that_cannot_be_closed_at_exit_does_not_stop_others_from_draining() -> None:
    with ScriptedCluster(orders=1) as cluster:
        ended = run_to_exit(AT_EXIT, cluster.bootstrap_servers[0], "30000", "fail")
        assert ended.returncode == 0
        assert "at exit failed" in ended.stderr
        assert "timestamp too large" in ended.stderr
        assert len(cluster.topics["orders"].partitions[0].values) >= 1


@pytest.mark.parametrize("timeout", [math.inf, 1e10, 2**63])
def test_two_threads_can_close_with_timeouts_longer_than_a_lock_takes(timeout: float) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        waited = Calls(cluster, producer)
        closing = [threading.Thread(daemon=True, target=producer.close, args=(timeout,)) for _ in range(2)]
        for thread in closing:
            thread.start()
        for thread in closing:
            until_blocked(thread)
        waited.hold.set()
        for thread in closing:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert waited.record.get(0).offset == 0


# The helper functions


def test_a_duration_is_any_number_of_at_least_0() -> None:
    assert duration("t", None) == math.inf
    assert duration("t", 0) == 0
    assert duration("t", Fraction(1, 2)) == 0.5
    assert duration("t", 10**400) == math.inf
    with pytest.raises(ValueError, match=r"^t=nan: must be a number of seconds >= 0 .*, or None$"):
        duration("t", math.nan)
    with pytest.raises(TypeError, match=r"^t='1': must be a number of hours >= 0 .*, or None, not str$"):
        duration("t", "1", "hours")


def test_locks_accept_waitable_times() -> None:
    lock = threading.Lock()
    assert lock.acquire(timeout=waitable(math.inf))
    assert waitable(1.5) == 1.5
    lock.release()


def test_a_manual_clock_stops_at_the_end_of_time() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance_ms(math.nan)
    clock.advance_ms(math.inf)
    clock.advance_ms(1)
    assert clock.monotonic_ns() == 2**63 - 1


def test_an_endless_request_timeout_becomes_the_largest_int32() -> None:
    config = ProducerConfig(request_timeout_ms=math.inf)
    assert config.request_timeout_ms == INT32_MAX
