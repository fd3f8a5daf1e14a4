"""The rules by which exporters expose metrics: each exactly once, or left out for a reason."""

import re
from pathlib import Path

import pytest

from cyproducer.accumulator.metric_snapshot import read_producer
from cyproducer.observability.definitions import NODE, OF_NODE, OF_PRODUCER, OF_TOPIC, PRODUCER, TOPIC, Kind
from cyproducer.observability.exports import BOUNDS_S, EXPORTS, LEFT_OUT, Export, Form, exports_as_markdown
from tests.observability.measured import WINDOW_MS, registry, sent
from tests.programs import run_to_exit
from tools.harness.rig import Rig

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
ALL = (*OF_PRODUCER, *OF_NODE, *OF_TOPIC)
EXPORTED = [export for exports in EXPORTS.values() for export in exports]


def export(group: str, name: str) -> Export:
    (found,) = (one for one in EXPORTS[group] if one.definition.name == name)
    return found


def test_each_metric_is_exposed_once_or_left_out_for_a_reason() -> None:
    exposed = [(one.definition.group, one.definition.name) for one in EXPORTED]
    assert len(exposed) == len(set(exposed))
    assert set(exposed).isdisjoint(LEFT_OUT)
    assert set(exposed) | set(LEFT_OUT) == {(metric.group, metric.name) for metric in ALL}
    assert all(LEFT_OUT.values())


def test_what_is_left_out_can_be_computed_from_what_is_exposed() -> None:
    checked = 0
    for (group, name), why in LEFT_OUT.items():
        named = re.findall("`(.+?)`", why)
        for other in named:
            assert export(group, other), name
        checked += bool(named)
        assert named or why == "from the histogram", name
    assert checked > 20
    kinds = {metric.kind for metric in ALL if (metric.group, metric.name) in LEFT_OUT}
    assert Kind.NOW not in kinds
    assert {Kind.RATE, Kind.PERCENTILE} <= kinds
    assert not {Kind.RATE, Kind.PERCENTILE} & {one.definition.kind for one in EXPORTED}


def test_a_percentile_s_histogram_exists() -> None:
    histograms = {one.definition.counters[0] for one in EXPORTED if one.form is Form.HISTOGRAM}
    timed = {metric.counters[0] for metric in ALL if metric.kind is Kind.PERCENTILE}
    assert histograms == timed
    assert len(histograms) == 3


def test_names_are_unique_and_follow_prometheus_s_conventions() -> None:
    names = [one.prometheus for one in EXPORTED]
    assert len(names) == len(set(names))
    for one in EXPORTED:
        assert re.fullmatch(r"cyproducer_(producer|node|topic)(_[a-z]+)+", one.sample)
        assert one.sample.endswith("_total") == (one.form is Form.COUNTER)
        assert not re.search("_(ns|ms|avg|count|sum|bucket)$", one.prometheus)
        assert one.unit in ("", "seconds", "bytes")
        assert one.prometheus.endswith(one.unit)
        assert one.help
        assert "average" not in one.help
    assert export(PRODUCER, "record-send-total").sample == "cyproducer_producer_record_send_total"
    assert export(NODE, "outgoing-byte-total").sample == "cyproducer_node_outgoing_bytes_total"
    assert export(PRODUCER, "flush-time-ns-total").sample == "cyproducer_producer_flush_time_seconds_total"
    assert export(PRODUCER, "connection-count").sample == "cyproducer_producer_connections"


def test_names_follow_opentelemetry_s_conventions() -> None:
    series = [(one.opentelemetry, one.attributes) for one in EXPORTED]
    assert len(series) == len(set(series))
    units: dict[str, tuple[str, Form]] = {}
    for one in EXPORTED:
        assert re.fullmatch(r"(cyproducer|messaging)(\.[a-z_]+)+", one.opentelemetry)
        # What adds the unit, as exporters for Prometheus do, must not find it there already.
        assert not re.search("_(seconds|ns|ms|total)$", one.opentelemetry)
        assert one.otel_unit == {"seconds": "s", "bytes": "By"}.get(one.unit, one.otel_unit)
        assert re.fullmatch(r"s|By|1|\{[a-z]+[^s]\}", one.otel_unit), one.opentelemetry
        assert units.setdefault(one.opentelemetry, (one.otel_unit, one.form)) == (one.otel_unit, one.form)
    assert export(TOPIC, "record-send-total").opentelemetry == "messaging.client.sent.messages"
    assert export(TOPIC, "record-error-total").attributes == (("error.type", "_OTHER"),)
    duration = export(PRODUCER, "acknowledgement-latency-avg")
    assert (duration.opentelemetry, duration.form) == ("messaging.client.operation.duration", Form.HISTOGRAM)


def test_values_are_those_of_metrics_in_base_units() -> None:
    factors = {"ms": 1e-3, "ns": 1e-9}
    with Rig({"orders": [7]}) as rig:
        sent(rig, [b"x" * 100] * 5, "orders", then=lambda: rig.clock.advance_ms(20))
        rig.accumulator.add_flush_time(3_000_000_000)
        source = registry(rig)
        shown = source.snapshot()
        checked = set()
        for definitions, part, reading in source.readings():
            group = definitions[0].group
            values = shown[group.format(id=part, topic=part)]
            for one in EXPORTS[group]:
                value, factor = values[one.definition.name], factors.get(one.definition.unit, 1)
                if one.form in (Form.COUNTER, Form.GAUGE):
                    assert one.value(reading, source) == pytest.approx(value * factor, nan_ok=True)
                else:
                    total, count = one.sum_and_count(reading)
                    assert count > 0
                    # All of it is recent.
                    assert total / count == pytest.approx(value * factor), one.definition.name
                checked.add((group, one.definition.name))
    assert checked == {(one.definition.group, one.definition.name) for one in EXPORTED}
    assert shown["producer-metrics"]["flush-time-ns-total"] == 3e9


def test_a_histogram_has_every_time_since_the_start() -> None:
    times_ms = [0.2, 3, 3, 20, 400]
    with Rig({"t": [1]}) as rig:
        for ms in times_ms:
            sent(rig, [b"x"], then=lambda ms=ms: rig.clock.advance_ms(ms))  # type: ignore[misc]
            # Histograms keep what windows forget.
            rig.clock.advance_ms(3 * WINDOW_MS)
        reading = read_producer(rig.accumulator)
        latency = export(PRODUCER, "request-latency-avg")
        total, count = latency.sum_and_count(reading)
        buckets = latency.buckets(reading)
        assert total == pytest.approx(sum(times_ms) / 1e3)
        assert count == 5
        assert [number for _, number in buckets] == [1, 2, 1, 1]
        assert [seconds for seconds, _ in buckets] == pytest.approx([0.0002, 0.003, 0.02, 0.4], rel=1 / 64)
        with pytest.raises(KeyError):
            reading.buckets("records_sent")


def test_bounds_ascend() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))


def test_the_page_s_names_match_the_rules() -> None:
    assert exports_as_markdown() in DOCS.read_text()


@pytest.mark.slow
def test_importing_the_package_imports_no_exporter() -> None:
    told = run_to_exit(
        """
import sys, cyproducer
cyproducer.KafkaProducer
print([name for name in sys.modules if name.startswith((
    "prometheus", "opentelemetry", "cyproducer.prometheus", "cyproducer.opentelemetry",
    "cyproducer._open_producers", "cyproducer.observability"))])
"""
    )
    assert told.stdout.strip() == "[]", told.stderr


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("cyproducer.prometheus", "prometheus_client", "prometheus"),
        ("cyproducer.opentelemetry.metrics", "opentelemetry", "opentelemetry"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    module: str, package: str, extra: str
) -> None:
    told = run_to_exit(
        f"""
import sys
sys.modules[{package!r}] = None
try:
    import {module}
except ImportError as error:
    print(error)
"""
    )
    assert f"pip install 'cyproducer[{extra}]'" in told.stdout, told.stderr
    assert package in told.stdout
    assert len(told.stdout.splitlines()) == 1
