"""The instruments for OpenTelemetry, collected by its SDK's reader in memory."""

import gc
import math
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer import KafkaProducer, _open_producers
from cyproducer import _runtime as runtimes
from cyproducer.observability.exports import EXPORTS, Form
from cyproducer.observability.registry import Registry
from tests.forked import in_child, needs_fork
from tests.observability.measured import sent
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.rig import Rig

# Some of it has no types.
api: Any = pytest.importorskip("opentelemetry.metrics")
sdk: Any = pytest.importorskip("opentelemetry.sdk.metrics")
export: Any = pytest.importorskip("opentelemetry.sdk.metrics.export")

from cyproducer.opentelemetry import metrics as exporter  # noqa: E402
from cyproducer.opentelemetry.metrics import ProducerMetrics, instrument_metrics  # noqa: E402

SENT = "cyproducer.producer.record_send"
DURATION = "messaging.client.operation.duration"
Point = tuple[str, frozenset[tuple[str, Any]]]


class Collected:
    """A meter provider with a reader, whose collections are compared."""

    def __init__(self) -> None:
        self.reader = export.InMemoryMetricReader()
        self.provider = sdk.MeterProvider([self.reader])

    def points(self) -> dict[Point, Any]:
        """(Name, attributes) -> the data point of a collection. Fails if one is there twice."""
        found: dict[Point, Any] = {}
        data = self.reader.get_metrics_data()
        for metric in self.metrics(data):
            for point in metric.data.data_points:
                key = metric.name, frozenset((point.attributes or {}).items())
                assert key not in found, f"{key} is there twice"
                found[key] = point
        return found

    @staticmethod
    def metrics(data: Any) -> list[Any]:
        resources = data.resource_metrics if data is not None else []
        return [one for resource in resources for scope in resource.scope_metrics for one in scope.metrics]

    def sent(self) -> dict[str, float]:
        """Client id, and the number behind it if it has one -> records sent."""
        found = {}
        for (name, attributes), point in self.points().items():
            labels = dict(attributes)
            if name == SENT:
                found[labels["messaging.client.id"] + labels.get("cyproducer.producer", "")] = point.value
        return found


@pytest.fixture
def collected() -> Iterator[Collected]:
    yield (made := Collected())
    made.provider.shutdown()


@pytest.fixture
def instrumented(collected: Collected) -> Iterator[ProducerMetrics]:
    yield (metrics := instrument_metrics(collected.provider))
    metrics.stop()


class Exposed:
    """A ``Rig`` in place of a producer's runtime: nothing moves between two readings."""

    def __init__(self, rig: Rig) -> None:
        self.config = SimpleNamespace(client_id="shop", metrics_enabled=True)
        self.closed = False
        self._rig = rig

    def registry(self) -> Registry:
        return Registry(self._rig.accumulator, self._rig.sender, metadata_age_s=lambda: 7.0)


def expose(metrics: ProducerMetrics, rig: Rig) -> Exposed:
    exposed = Exposed(rig)
    metrics._started(exposed)  # type: ignore[arg-type]
    return exposed


def test_values_equal_those_of_metrics(collected: Collected, instrumented: ProducerMetrics) -> None:
    factors = {"ms": 1e-3, "ns": 1e-9}
    me = {"messaging.system": "kafka", "messaging.client.id": "shop"}
    parts = {
        "producer": {},
        "node": {"cyproducer.node.id": "7"},
        "topic": {"messaging.destination.name": "orders"},
    }
    with Rig({"orders": [7]}) as rig:
        sent(rig, [b"x" * 100] * 5, "orders", then=lambda: rig.clock.advance_ms(20))
        exposed = expose(instrumented, rig)
        found = collected.points()
        shown = exposed.registry().snapshot()
    for group, exports in EXPORTS.items():
        for one in exports:
            value = shown[group.format(id=7, topic="orders")][one.definition.name]
            value *= factors.get(one.definition.unit, 1)
            attributes = me | parts[one.part] | dict(one.attributes)
            if one.opentelemetry.startswith("messaging."):
                attributes |= {"messaging.operation.name": "send", "messaging.operation.type": "send"}
            key = frozenset(attributes.items())
            if one.form is Form.SUMMARY:
                total = found.pop((f"{one.opentelemetry}.sum", key)).value
                assert total / found.pop((f"{one.opentelemetry}.count", key)).value == pytest.approx(value)
            elif one.form is Form.HISTOGRAM:
                point = found.pop((one.opentelemetry, key))
                assert (point.count, point.sum) == (1, pytest.approx(value, rel=1 / 64, abs=1e-6))
            elif math.isnan(value):
                assert (one.opentelemetry, key) not in found
            else:
                assert found.pop((one.opentelemetry, key)).value == pytest.approx(value), one.opentelemetry
    assert found == {}


def test_instruments_have_the_units_and_kinds_of_the_conventions(
    collected: Collected, instrumented: ProducerMetrics
) -> None:
    with Rig({"orders": [7]}) as rig:
        sent(rig, [b"x"], "orders")
        expose(instrumented, rig)
        data = collected.reader.get_metrics_data()
    found = {one.name: one for one in Collected.metrics(data)}
    for exports in EXPORTS.values():
        for one in exports:
            if one.form is not Form.SUMMARY:
                metric = found[one.opentelemetry]
                assert (metric.unit, type(metric.data).__name__) == (
                    one.otel_unit,
                    {Form.COUNTER: "Sum", Form.GAUGE: "Gauge", Form.HISTOGRAM: "Histogram"}[one.form],
                )
    assert found["messaging.client.sent.messages"].data.is_monotonic
    assert found["messaging.client.sent.messages"].unit == "{message}"
    # The conventions' bounds are among these.
    bounds = found[DURATION].data.data_points[0].explicit_bounds
    assert {0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10} <= set(bounds)


def durations(collected: Collected) -> tuple[int, Any]:
    (point,) = (point for (name, _), point in collected.points().items() if name == DURATION)
    return point.count, point.sum


def test_a_histogram_gets_each_value_once(collected: Collected, instrumented: ProducerMetrics) -> None:
    with Rig({"t": [1]}) as rig:
        exposed = expose(instrumented, rig)
        sent(rig, [b"x"], then=lambda: rig.clock.advance_ms(20))
        assert durations(collected) == (1, pytest.approx(0.02, rel=1 / 64))
        assert durations(collected)[0] == 1
        for _ in range(3):
            sent(rig, [b"x"], then=lambda: rig.clock.advance_ms(20))
        exposed.closed = True
        assert durations(collected) == (4, pytest.approx(0.08, rel=1 / 64))
        assert not instrumented._seen


def test_a_producer_that_is_closed_during_a_collection_has_each_value_once(
    collected: Collected, instrumented: ProducerMetrics
) -> None:
    class Closing(Exposed):
        now = False

        def registry(self) -> Registry:
            if self.now:
                self.now = False
                instrumented._closed(self)  # type: ignore[arg-type]
            return super().registry()

    with Rig({"t": [1]}) as rig:
        closing = Closing(rig)
        instrumented._started(closing)  # type: ignore[arg-type]
        for count in (1, 2):
            sent(rig, [b"x"])
            closing.now = count == 2
            assert durations(collected)[0] == count
        assert len(instrumented._ended) == 1
        assert durations(collected)[0] == 2


def test_of_too_many_values_a_histogram_gets_some_distributed_alike(
    collected: Collected, instrumented: ProducerMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_MOST_VALUES", 40)
    with Rig({"t": [1]}) as rig:
        expose(instrumented, rig)
        for number in range(400):
            # A quarter of them have a bucket each, from which less than one is due.
            ms = 1 if number % 4 else 100 + 5 * number
            sent(rig, [b"x"], then=lambda ms=ms: rig.clock.advance_ms(ms))  # type: ignore[misc]
        count, total = durations(collected)
        assert count == pytest.approx(40, abs=1)
        assert total == pytest.approx(10 * 1.1, rel=1 / 5)
        # The others are not made up for later.
        assert durations(collected)[0] == count


def test_producers_are_collected_from_their_start_until_once_after_their_end(
    collected: Collected, instrumented: ProducerMetrics
) -> None:
    with ScriptedCluster(orders=1) as cluster:
        with producing(cluster, client_id="brief") as producer:
            producer.send("orders", b"1").get(WAIT_S)
            producer.close(WAIT_S)
        with producing(cluster, client_id="shop") as one, producing(cluster, client_id="shop") as two:
            for count, producer in enumerate((one, two), 1):
                for _ in range(count):
                    producer.send("orders", b"1")
                producer.flush(WAIT_S)
            found = collected.sent()
            assert found.pop("brief") == 1
            assert set(found) == {"shop", "shop2"}
            assert sorted(found.values()) == [1, 2]
            assert "brief" not in collected.sent()
        assert set(collected.sent()) == {"shop", "shop2"}
    assert collected.sent() == {}


def test_a_closed_producer_and_its_successor_are_told_apart(
    collected: Collected, instrumented: ProducerMetrics
) -> None:
    with ScriptedCluster(orders=1) as cluster:
        for count in (1, 2):
            with producing(cluster, client_id="shop") as producer:
                for _ in range(count):
                    producer.send("orders", b"1")
                producer.flush(WAIT_S)
        assert collected.sent() == {"shop": 1, "shop2": 2}


def test_a_producer_that_is_older_than_the_instruments_is_collected_without_its_old_times(
    collected: Collected,
) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="old") as producer:
        producer.send("orders", b"1").get(WAIT_S)
        producer.flush(WAIT_S)
        metrics = instrument_metrics(collected.provider)
        try:
            assert collected.sent()["old"] == 1
            producer.send("orders", b"1").get(WAIT_S)
            producer.flush(WAIT_S)
            points = collected.points()
        finally:
            metrics.stop()
    counts = [
        point.count
        for (name, attributes), point in points.items()
        if name == DURATION and ("messaging.client.id", "old") in attributes
    ]
    assert counts == [1]


def test_stop_ends_it(collected: Collected) -> None:
    before = list(runtimes.on_start), list(runtimes.on_end)
    metrics = instrument_metrics(collected.provider)
    with producing(bootstrap_servers=["127.0.0.1:1"]):
        assert collected.sent()
        metrics.stop()
        assert collected.sent() == {}
        with producing(bootstrap_servers=["127.0.0.1:1"]):
            assert collected.sent() == {}
    assert (runtimes.on_start, runtimes.on_end) == before


def test_without_a_reader_closed_producers_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_MOST_CLOSED", 2)
    metrics = instrument_metrics(api.NoOpMeterProvider())
    try:
        for _ in range(5):
            with producing(bootstrap_servers=["127.0.0.1:1"]):
                pass
        assert (len(metrics._seen), len(metrics._ended)) == (0, 2)
    finally:
        metrics.stop()


def test_disabled_metrics_are_not_collected(collected: Collected, instrumented: ProducerMetrics) -> None:
    with producing(bootstrap_servers=["127.0.0.1:1"], metrics_enabled=False, client_id="none"):
        assert "none" not in collected.sent()


@needs_fork
def test_a_forked_child_collects_what_it_uses_itself(
    collected: Collected, instrumented: ProducerMetrics
) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="shop") as producer:
        producer.send("orders", b"1").get(WAIT_S)
        producer.flush(WAIT_S)

        def ask() -> tuple[Any, ...]:
            unused = collected.sent()
            producer.send("orders", b"2").get(WAIT_S)
            producer.flush(WAIT_S)
            used = collected.sent()
            producer.close(WAIT_S)
            return unused, used

        with producing(cluster, client_id="closed"):
            pass
        # As if another thread had been collecting when the process forked.
        instrumented._taken = {SENT: [api.Observation(7, {"messaging.client.id": "parent's"})]}
        with instrumented._lock:
            assert in_child(ask) == ({}, {"shop": 1})
        instrumented._taken = {}
        assert collected.sent() == {"closed": 0, "shop": 1}


@needs_fork
def test_a_signal_handler_may_close_a_producer_in_the_middle_of_a_scrape(
    instrumented: ProducerMetrics,
) -> None:
    def close() -> int:
        with producing(bootstrap_servers=["127.0.0.1:1"]) as producer, _open_producers._lock:
            producer.close(0)
        return len(instrumented._ended)

    # In a child, which is killed if it hangs.
    assert in_child(close) == 1


@pytest.mark.slow
def test_the_instruments_keep_no_producer_alive(instrumented: ProducerMetrics) -> None:
    producer = KafkaProducer(bootstrap_servers="127.0.0.1:1", close_timeout_ms=100)
    gone = weakref.ref(producer)
    del producer
    gc.collect()
    assert gone() is None
