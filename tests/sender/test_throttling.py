"""Brokers that throttle (KIP-219): no requests to them until the throttle time is over, no busy wait."""

import re
import threading
import time

import pytest

from cyproducer import errors
from cyproducer.accumulator.metric_snapshot import read_producer
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import (
    API_VERSIONS,
    METADATA,
    PRODUCE,
    Act,
    Received,
    ScriptedCluster,
)
from tests.scripted.sender_steps import NotingSelector
from tools.harness.rig import Rig


def throttled(rig: Rig, throttle_ms: int) -> None:
    """Makes broker 1 acknowledge a record, and throttle."""
    future = rig.send("t", b"first", partition=0)
    (seen,) = rig.requests()
    rig.answer(seen, throttle_ms=throttle_ms)
    assert future.succeeded()


def values(rig: Rig) -> list[list[bytes | None]]:
    return [seen.values() for seen in rig.requests()]


# Produce


@pytest.mark.parametrize("version", range(6, 13))
def test_a_throttling_broker_gets_no_requests_until_the_throttle_time_is_over(version: int) -> None:
    with Rig({"t": [1, 2]}, produce_version=version) as rig:
        throttled(rig, 500)
        rig.send("t", b"later", partition=0)
        assert values(rig) == []
        rig.clock.advance_ms(499)
        assert values(rig) == []
        rig.send("t", b"elsewhere", partition=1)
        assert values(rig) == [[b"elsewhere"]]
        rig.clock.advance_ms(1)
        assert values(rig) == [[b"later"]]


@pytest.mark.parametrize("version", range(3, 6))
def test_before_version_6_the_broker_delays_and_the_client_does_not_wait(version: int) -> None:
    with Rig({"t": [1]}, produce_version=version) as rig:
        throttled(rig, 500)
        rig.send("t", b"later")
        assert values(rig) == [[b"later"]]
        assert read_producer(rig.accumulator).total("throttle_ms") == 500


@pytest.mark.parametrize("throttle_ms", [0, -1, -(2**31)])
def test_a_throttle_time_of_zero_or_less_does_not_throttle(throttle_ms: int) -> None:
    with Rig({"t": [1]}) as rig:
        throttled(rig, throttle_ms)
        rig.send("t", b"later")
        assert values(rig) == [[b"later"]]
        assert read_producer(rig.accumulator).total("throttle_ms") == 0


def test_a_throttle_time_counts_for_at_most_a_minute() -> None:
    """Otherwise one wrong byte in a response could stop the producer for weeks."""
    with Rig({"t": [1]}) as rig:
        throttled(rig, 2**31 - 1)
        rig.send("t", b"later")
        rig.clock.advance_ms(59_999)
        assert values(rig) == []
        rig.clock.advance_ms(1)
        assert values(rig) == [[b"later"]]


def test_a_shorter_throttle_time_does_not_shorten_a_longer_one() -> None:
    with Rig({"t": [1, 1]}, max_in_flight=2) as rig:
        rig.send("t", b"0", partition=0)
        (first,) = rig.requests()
        rig.send("t", b"1", partition=1)
        # With linger_ms=0, the second batch gathers until the first is answered, unless a flush hurries it.
        rig.clock.advance_ms(1)
        rig.answer(first, throttle_ms=500)
        rig.peers[1].connection.throttle(100, rig.clock.monotonic_ns() / 1e6)
        assert rig.peers[1].connection.throttled_ms(rig.clock.monotonic_ns() / 1e6) == 500
        rig.clock.advance_ms(499)
        assert values(rig) == []
        rig.clock.advance_ms(1)
        assert values(rig) == [[b"1"]]


def test_throttle_times_are_counted() -> None:
    with Rig({"t": [1]}) as rig:
        for throttle_ms in (300, 0, 100):
            throttled(rig, throttle_ms)
            rig.clock.advance_ms(300)
        assert read_producer(rig.accumulator).total("throttle_ms") == 400
        assert read_producer(rig.accumulator).peak("throttle_ms") == 300


def test_the_sender_sleeps_until_the_throttle_is_over() -> None:
    """It does not busy-wait while a batch must not be sent, and does not sleep past the throttle time."""
    selector = NotingSelector()
    with Rig({"t": [1]}, request_timeout_ms=1e9, delivery_timeout_ms=1e9, selector=selector) as rig:
        throttled(rig, 500)
        rig.control.delay_ms = 1e9
        rig.step(1e9)
        selector.waits_ms.clear()
        rig.send("t", b"later")
        rig.step(1e9)
        rig.step(1e9)
        # Nothing else is due earlier.
        assert selector.waits_ms == pytest.approx([500] * len(selector.waits_ms))
        rig.clock.advance_ms(490)
        rig.step(1e9)
        assert selector.waits_ms[-1] == pytest.approx(10)
        rig.clock.advance_ms(10)
        assert values(rig) == [[b"later"]]


def test_without_a_waiting_batch_the_sender_wakes_up_once() -> None:
    selector = NotingSelector()
    with Rig({"t": [1]}, request_timeout_ms=1e9, delivery_timeout_ms=1e9, selector=selector) as rig:
        throttled(rig, 500)
        rig.control.delay_ms = 1e9
        rig.advance_ms(100)
        rig.step(1e9)
        assert selector.waits_ms[-1] == pytest.approx(400)
        rig.clock.advance_ms(400)
        rig.step(1e9)
        assert selector.waits_ms[-1] > 1_000_000


# The other requests


def test_throttling_shows_in_metrics_and_errors() -> None:
    with ScriptedCluster(orders=1) as cluster:
        given = {"delivery_timeout_ms": 300, "request_timeout_ms": 200, "linger_ms": 0}
        with producing(cluster, **given) as producer:
            cluster.act(PRODUCE, Act(throttle_ms=60_000))
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
            where = f"{cluster.nodes[1].address} throttles this client for another 59."
            with pytest.raises(errors.DeliveryTimeoutError, match=re.escape(where)):
                producer.send("orders", b"2").get(WAIT_S)
            metrics = producer.metrics()["producer-metrics"]
            assert metrics["produce-throttle-time-avg"] == metrics["produce-throttle-time-max"] == 60_000
        assert len(cluster.received(PRODUCE)) == 1


def test_metadata_is_requested_from_a_broker_that_does_not_throttle() -> None:
    with ScriptedCluster(2) as cluster:
        cluster.create_topic("orders", 1, [1])
        cluster.create_topic("other", 1, [1])
        with producing(cluster, bootstrap_servers=[cluster.nodes[1].address]) as producer:
            producer.send("orders", b"1").get(WAIT_S)
            cluster.wait_for(lambda: cluster.nodes[1].connections[0].closed)
            cluster.act(PRODUCE, Act(throttle_ms=3_600_000))
            producer.send("orders", b"1").get(WAIT_S)
            assert producer.partitions_for("other") == {0}
            assert cluster.received(METADATA)[-1].connection.node.id == 2


def test_if_every_broker_throttles_metadata_is_requested_when_that_is_over() -> None:
    with ScriptedCluster(orders=1, other=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        cluster.wait_for(lambda: cluster.nodes[1].connections[0].closed)
        cluster.act(PRODUCE, Act(throttle_ms=300))
        producer.send("orders", b"1").get(WAIT_S)
        answered = time.monotonic()
        assert producer.partitions_for("other") == {0}
        assert 0.2 <= time.monotonic() - answered < WAIT_S / 4


@pytest.mark.parametrize(
    ("api_key", "version", "waits"),
    [(API_VERSIONS, 1, False), (API_VERSIONS, 2, True), (METADATA, 5, False), (METADATA, 6, True)],
)
@pytest.mark.slow
def test_other_responses_throttle_too(api_key: int, version: int, waits: bool) -> None:
    """The connection to the broker is the second one; the first one is to the bootstrap address."""
    times: dict[int, float] = {}
    answered = threading.Event()

    def script(received: Received) -> Act | None:
        times[received.api_key] = time.monotonic()
        if received.api_key != api_key or received.header.version != version or answered.is_set():
            return None
        if api_key == METADATA and received.topics != ["late"]:
            return None
        if api_key == API_VERSIONS and received.connection is cluster.nodes[1].connections[0]:
            return None
        answered.set()
        return Act(throttle_ms=700)

    with ScriptedCluster(orders=1, late=1) as cluster:
        cluster.nodes[1].versions[api_key] = (0, version)
        cluster.script = script
        with producing(cluster) as producer:
            if api_key == METADATA:
                producer.send("orders", b"1").get(WAIT_S)
                cluster.wait_for(lambda: cluster.nodes[1].connections[0].closed)
                producer.partitions_for("late")
            producer.send("orders", b"1").get(WAIT_S)
        assert answered.is_set()
        assert (times[PRODUCE] - times[api_key] >= 0.7) == waits
