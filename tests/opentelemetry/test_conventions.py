"""Tests the choice of the conventions' version, and the attributes that it renames."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from cyproducer import KafkaProducer
from cyproducer.opentelemetry import conventions
from cyproducer.opentelemetry.conventions import Version, opted_in
from cyproducer.opentelemetry.metrics import instrument_metrics
from tests.opentelemetry.spans import Spans
from tests.scripted.producing import WAIT_S

OLD = {
    "messaging.system",
    "messaging.kafka.message.key",
    "messaging.kafka.message.tombstone",
    "messaging.kafka.offset",
    "messaging.kafka.cluster.id",
}
NEW = {
    "messaging.system.name",
    "kafka.message.key",
    "kafka.message.tombstone",
    "kafka.offset",
    "kafka.cluster.id",
}
VERSIONS = [(Version.V1_44, OLD), (Version.V1_45, NEW), (Version.BOTH, OLD | NEW)]
of_each_version = pytest.mark.parametrize(("version", "names"), VERSIONS)


@pytest.mark.parametrize(
    ("opt_in", "version"),
    [
        ("", Version.V1_44),
        ("http,database/dup", Version.V1_44),
        ("messaging", Version.V1_45),
        ("http, messaging", Version.V1_45),
        ("messaging/dup", Version.BOTH),
        ("messaging,messaging/dup", Version.BOTH),
    ],
)
def test_the_list_of_categories_chooses_the_version(opt_in: str, version: Version) -> None:
    assert opted_in(opt_in) is version


@of_each_version
def test_spans_have_the_names_of_the_version(
    producer: KafkaProducer,
    spans: Spans,
    version: Version,
    names: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conventions, "CHOSEN", version)
    producer.send("orders", None, b"7").get(WAIT_S)
    producer.flush(WAIT_S)
    attributes = dict(spans.only().attributes or {})
    assert attributes.keys() & (OLD | NEW) == names
    assert {"messaging.client.id", "messaging.destination.name", "server.address"} < attributes.keys()
    for old, new in conventions.RENAMED.items():
        assert attributes.get(new, attributes.get(old)) == attributes.get(old, attributes.get(new))


@of_each_version
def test_metrics_have_the_names_of_the_version(
    producer: KafkaProducer, version: Version, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conventions, "CHOSEN", version)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = instrument_metrics(provider)
    try:
        data = reader.get_metrics_data()
    finally:
        metrics.stop()
        provider.shutdown()
    assert data is not None
    points = [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    systems = {name for name in names if "system" in name}
    assert points
    for point in points:
        assert (point.attributes or {}).keys() & (OLD | NEW) == systems


def test_the_schema_is_that_of_the_newest_names() -> None:
    assert Version.V1_44.schema_url == "https://opentelemetry.io/schemas/1.44.0"
    assert Version.V1_45.schema_url == Version.BOTH.schema_url == "https://opentelemetry.io/schemas/1.45.0"
