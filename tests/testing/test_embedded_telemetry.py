"""Metrics that a producer pushes to the embedded broker (KIP-714)."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer import KafkaProducer, _runtime, errors
from cyproducer.testing import EmbeddedBroker, PushedMetrics
from tests.observability.pushed import CUMULATIVE, DELTA, points
from tools.harness.until import until

SENT = "org.apache.kafka.producer.record.send.total"
OF_TOPIC = "org.apache.kafka.producer.topic.record.send.total"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"t": 1}) as broker:
        yield broker


def pushed(broker: EmbeddedBroker, wanted: Callable[[PushedMetrics], bool]) -> PushedMetrics:
    """Waits for the first push that is wanted."""
    until(lambda: any(map(wanted, broker.telemetry())), "a push")
    return next(filter(wanted, broker.telemetry()))


def sent(push: PushedMetrics) -> float:
    return points(push.metrics)[SENT, ""][0]


def producing(broker: EmbeddedBroker, **options: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id="shop", **options)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_metrics_are_pushed_with_the_codec_that_the_broker_prefers(
    broker: EmbeddedBroker, codec: str
) -> None:
    broker.subscribe_telemetry("*", push_interval_ms=20, compression=[codec])
    with producing(broker) as producer:
        for _ in range(7):
            producer.send("t", b"x")
        producer.flush()
        push = pushed(broker, lambda push: sent(push) == 7)
        assert push.client_instance_id == producer.client_instance_id().bytes
        assert (push.client_id, push.compression, push.terminating) == ("shop", codec, False)
        found = points(push.metrics)
        assert found[SENT, ""] == (7, CUMULATIVE)
        assert found[OF_TOPIC, "t"] == (7, CUMULATIVE)
        latest = producer.metrics()
        for name, key in (
            ("record-size-avg", "org.apache.kafka.producer.record.size.avg"),
            ("buffer-total-bytes", "org.apache.kafka.producer.buffer.total.bytes"),
            ("acknowledgement-latency-max", "cyproducer.producer.acknowledgement.latency.max"),
        ):
            assert found[key, ""] == (latest["producer-metrics"][name], None)
        node = latest["producer-node-metrics.node-1"]["request-latency-max"]
        assert found["org.apache.kafka.producer.node.request.latency.max", "1"] == (node, None)


def test_close_pushes_what_no_push_had(broker: EmbeddedBroker) -> None:
    broker.subscribe_telemetry(SENT)
    with producing(broker) as producer:
        producer.client_instance_id()
        producer.send("t", b"x")
    (push,) = broker.telemetry()
    assert push.terminating
    assert points(push.metrics) == {(SENT, ""): (1, CUMULATIVE)}


def test_sums_of_a_delta_subscription_add_up(broker: EmbeddedBroker) -> None:
    broker.subscribe_telemetry(SENT, push_interval_ms=10, delta=True)
    with producing(broker) as producer:
        for number in (3, 4):
            for _ in range(number):
                producer.send("t", b"x")
            producer.flush()
            # A push that is refused does not lose what it had.
            broker.fail("PushTelemetry", "TELEMETRY_TOO_LARGE")
            pushed(broker, lambda push, number=number: sent(push) == number)  # type: ignore[misc]
    found = [points(push.metrics)[SENT, ""] for push in broker.telemetry()]
    assert {kind for _, kind in found} == {DELTA}
    assert sum(value for value, _ in found) == 7


def test_a_new_subscription_is_taken_up(broker: EmbeddedBroker) -> None:
    broker.subscribe_telemetry(SENT, push_interval_ms=10)
    with producing(broker) as producer:
        pushed(broker, lambda push: True)
        broker.subscribe_telemetry(OF_TOPIC, push_interval_ms=10)
        producer.send("t", b"x")
        pushed(broker, lambda push: (OF_TOPIC, "t") in points(push.metrics))


def test_a_push_that_would_be_too_large_has_fewer_metrics(broker: EmbeddedBroker) -> None:
    broker.subscribe_telemetry("*", push_interval_ms=10, compression=["none"], max_bytes=1000)
    with producing(broker):
        push = pushed(broker, lambda push: True)
    assert 500 < len(push.metrics) <= 1000


@pytest.mark.parametrize("cut", [False, True])
def test_a_lost_push_is_followed_by_another(broker: EmbeddedBroker, cut: bool) -> None:
    broker.subscribe_telemetry(SENT, push_interval_ms=10)
    if cut:
        broker.cut("PushTelemetry")
    else:
        broker.fail("PushTelemetry", "UNKNOWN_SUBSCRIPTION_ID")
    with producing(broker):
        pushed(broker, lambda push: True)


def test_a_refused_client_pushes_no_more_and_sends_on(broker: EmbeddedBroker) -> None:
    broker.subscribe_telemetry(SENT, push_interval_ms=10)
    broker.fail("GetTelemetrySubscriptions", "INVALID_REQUEST")
    with producing(broker) as producer:
        with pytest.raises(errors.UnsupportedVersionError, match="refuses this client's telemetry"):
            producer.client_instance_id()
        assert producer.send("t", b"x").get().offset == 0
    assert broker.telemetry() == []


def test_a_broker_without_a_plugin_gives_no_instance_id(broker: EmbeddedBroker) -> None:
    with producing(broker) as producer:
        producer.wait_ready()
        with pytest.raises(errors.KafkaTimeoutError, match="no connected broker offers telemetry"):
            producer.client_instance_id(0.01)


def test_a_broker_without_a_plugin_is_asked_for_nothing() -> None:
    requests: list[list[str]] = []
    with EmbeddedBroker(brokers=2, topics={"t": 2}) as broker:
        broker._log_requests(lambda line: requests.append(line.split()[1:4]))
        for partition in range(2):
            broker.move_leader("t", partition, partition + 1)
        servers = broker.bootstrap_servers.split(",")[0]
        with KafkaProducer(bootstrap_servers=servers) as producer:
            producer.send("t", b"x", partition=0).get()
            # Broker 1 is connected, so it does not offer telemetry, unlike broker 2.
            broker.subscribe_telemetry(SENT, push_interval_ms=1)
            producer.send("t", b"x", partition=1).get()
            pushed(broker, lambda push: True)
            broker.take_down(2)
            # A push is always due.
            for _ in range(3):
                assert producer.send("t", b"x", partition=0).get().partition == 0
    assert {node for node, _, name in requests if name == "PushTelemetry"} == {"2"}


def test_the_options_turn_it_off(broker: EmbeddedBroker) -> None:
    broker.subscribe_telemetry("*", push_interval_ms=1)
    for name in ("enable_metrics_push", "metrics_enabled"):
        with producing(broker, **{name: False}) as producer:
            producer.send("t", b"x").get()
            with pytest.raises(
                errors.IllegalStateError, match="needs enable_metrics_push=True, metrics_enabled=True"
            ):
                producer.client_instance_id()
    assert broker.telemetry() == []


def test_a_subscription_must_be_possible(broker: EmbeddedBroker) -> None:
    with pytest.raises(ValueError, match="push_interval_ms=0: must be at least 1"):
        broker.subscribe_telemetry("*", push_interval_ms=0)
    with pytest.raises(ValueError, match="compression='zip': must be one of none, gzip"):
        broker.subscribe_telemetry("*", compression=["zip"])


def test_a_client_keeps_its_id_and_its_broker() -> None:
    requests: list[list[str]] = []
    with EmbeddedBroker(brokers=3, topics={"t": 6}) as broker:
        broker._log_requests(lambda line: requests.append(line.split()[1:4]))
        broker.subscribe_telemetry(SENT, push_interval_ms=1)
        with producing(broker) as producer:
            # Connects to each broker.
            for partition in range(6):
                producer.send("t", b"x", partition=partition)
            producer.flush()
            requests.clear()
            for number in (10, 20):
                broker.subscribe_telemetry(SENT, push_interval_ms=1)
                until(lambda number=number: len(broker.telemetry()) >= number, "pushes")  # type: ignore[misc]
            nodes = {
                node for node, _, name in requests if name in ("GetTelemetrySubscriptions", "PushTelemetry")
            }
            assert len(nodes) == 1
            instance_ids = {push.client_instance_id for push in broker.telemetry()}
            assert instance_ids == {producer.client_instance_id().bytes}


def test_a_throttled_client_pushes_again_once_it_may(broker: EmbeddedBroker) -> None:
    broker.subscribe_telemetry(SENT, push_interval_ms=1)
    broker.throttle("PushTelemetry", 50)
    with producing(broker):
        until(lambda: len(broker.telemetry()) >= 2, "a push after the throttling")


@pytest.mark.parametrize(("most_s", "timeout_s"), [(0.05, 60), (60, 0.05)])
def test_close_waits_for_the_last_push_for_a_moment_only(
    broker: EmbeddedBroker, most_s: float, timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_runtime, "_LAST_PUSH_S", most_s)
    broker.subscribe_telemetry(SENT)
    producer = producing(broker)
    producer.client_instance_id()
    broker.delay(1, 3_600_000)
    began = time.monotonic()
    producer.close(timeout_s)
    assert time.monotonic() - began < 30


def test_close_does_not_wait_for_brokers_that_are_gone(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_runtime, "_LAST_PUSH_S", 60)
    broker.subscribe_telemetry(SENT)
    producer = producing(broker)
    producer.client_instance_id()
    broker.take_down(1)

    def open_connections() -> float:
        found = producer.metrics()["producer-metrics"]
        return found["connection-creation-total"] - found["connection-close-total"]

    until(lambda: open_connections() == 0, "the end of the connections")
    began = time.monotonic()
    producer.close(60)
    assert time.monotonic() - began < 30
    assert broker.telemetry() == []
