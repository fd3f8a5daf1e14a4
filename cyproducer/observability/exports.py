"""Defines how exporters expose each metric: the form, the name and the unit.

Owns the rules that turn ``definitions`` into Prometheus's and OpenTelemetry's conventions, and the table of
both in ``docs/metrics.md``. There is no second list of metrics. Does not own reading values (``registry``) or
the exporters (``cyproducer/prometheus``, ``cyproducer/opentelemetry``), and imports neither package.

The receiving system computes rates, averages and percentiles itself, over any period and many processes. So
they are left out, and their sums are exposed: as a histogram for times that have one in ``base/meters``,
otherwise as counters or, if the counters are not metrics of their own, as a summary.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from cyproducer.accumulator.metric_snapshot import TIMED_NAMES, Reading
from cyproducer.observability.definitions import (
    AVERAGE_RECENT,
    NODE,
    OF_NODE,
    OF_PRODUCER,
    OF_TOPIC,
    PRODUCER,
    TOPIC,
    Definition,
    Host,
    Kind,
)


class Form(Enum):
    """The type of an exported metric, in Prometheus's terms."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    """A sum and a count, without quantiles."""
    HISTOGRAM = "histogram"


PART = {PRODUCER: "producer", NODE: "node", TOPIC: "topic"}
"""Group -> the second word of its exported names, and its label, except for producers."""

_BASE = {"ns": ("seconds", 1e-9), "ms": ("seconds", 1e-3), "s": ("seconds", 1.0), "bytes": ("bytes", 1.0)}
"""Unit -> the base unit, and the factor to it. Other units count things, and names do not contain them."""

_UCUM = {"seconds": "s", "bytes": "By"}

BOUNDS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 60.0, 120.0,
)  # fmt: skip
"""The upper bounds of exported histograms: those of OpenTelemetry's conventions for messaging, and bounds
that local brokers and ``delivery_timeout_ms`` need."""

_SENT = "messaging.client.sent.messages"
_CONVENTIONS = {
    (TOPIC, "record-send-total"): (_SENT, "{message}", ()),
    # Kafka has many errors, which the counters do not distinguish: the conventions' value for that.
    (TOPIC, "record-error-total"): (_SENT, "{message}", (("error.type", "_OTHER"),)),
    (PRODUCER, "acknowledgement-latency-avg"): ("messaging.client.operation.duration", "s", ()),
}
"""Metric -> name, unit and attributes that OpenTelemetry's semantic conventions define for it."""


@dataclass(frozen=True, slots=True)
class Export:
    """One metric as exporters expose it."""

    definition: Definition
    form: Form
    prometheus: str
    """The name, without the suffixes of the form (``_total``, ``_sum``, ``_count``, ``_bucket``)."""
    unit: str
    """Prometheus's name of the base unit; empty if things are counted."""
    factor: float
    """The factor from the definition's unit to the base unit."""
    opentelemetry: str
    otel_unit: str
    attributes: tuple[tuple[str, str], ...]
    """OpenTelemetry's attributes of the metric itself."""

    @property
    def part(self) -> str:
        """``producer``, ``node`` or ``topic``."""
        return PART[self.definition.group]

    @property
    def help(self) -> str:
        """The meaning, without "average, recent", because sums since the start are exposed instead."""
        return self.definition.meaning.removesuffix(AVERAGE_RECENT)

    @property
    def sample(self) -> str:
        """Prometheus's full name, which for a counter includes the suffix."""
        return self.prometheus + ("_total" if self.form is Form.COUNTER else "")

    def value(self, reading: Reading, host: Host) -> float:
        """The value of a counter or a gauge, in the base unit."""
        return self.definition.value(reading, host) * self.factor

    def sum_and_count(self, reading: Reading) -> tuple[float, int]:
        """The sum (in the base unit) and count of a summary or a histogram, since the start."""
        total, count = self.definition.counters
        return reading.total(total) * self.definition.scale * self.factor, reading.total(count)

    def buckets(self, reading: Reading) -> list[tuple[float, int]]:
        """The buckets of a histogram since the start: (seconds, count), ascending."""
        return [(middle * 1e-9, count) for middle, count in reading.buckets(self.definition.counters[0])]


def _export(definition: Definition, form: Form) -> Export:
    name = definition.exported or definition.name
    if form is Form.COUNTER:
        name = name.removesuffix("-total").removesuffix("-ns")
    elif form is not Form.GAUGE:
        name = name.removesuffix("-avg")
    unit, factor = _BASE.get(definition.unit, ("", 1.0))
    stem = re.sub("byte$", "bytes", name.replace("-", "_"))
    full = f"{stem}_{unit}" if unit and not stem.endswith(unit) else stem
    # In the singular, as the conventions require: "{batch}".
    counted = f"{{{re.sub('(?<=ch)es$|s$', '', definition.unit)}}}" if definition.unit else "1"
    part = PART[definition.group]
    otel, otel_unit, attributes = _CONVENTIONS.get(
        (definition.group, definition.name), (f"cyproducer.{part}.{stem}", _UCUM.get(unit, counted), ())
    )
    return Export(definition, form, f"cyproducer_{part}_{full}", unit, factor, otel, otel_unit, attributes)


def _chosen(definitions: tuple[Definition, ...]) -> Iterator[tuple[Definition, Form | str]]:
    """Each metric with its form, or with the reason why it is left out."""
    totals = {
        metric.counters[0]: metric.name
        for metric in definitions
        if metric.kind is Kind.TOTAL and len(metric.counters) == 1
    }
    seen: dict[tuple[Kind, tuple[str, ...]], str] = {}
    for metric in definitions:
        from_totals = all(name in totals for name in metric.counters)
        named = ", ".join(f"`{totals[name]}`" for name in metric.counters if name in totals)
        same = (
            seen.setdefault((metric.kind, metric.counters), metric.name) if metric.counters else metric.name
        )
        form: Form | str
        if metric.kind is Kind.PERCENTILE:
            form = "from the histogram"
        elif metric.kind is Kind.NOW:
            form = Form.GAUGE
        elif metric.kind is Kind.RATE or (metric.kind is Kind.TOTAL and len(metric.counters) > 1):
            assert from_totals, metric.name
            form = f"from {named}"
        elif same != metric.name:
            form = f"the same as `{same}`"
        elif metric.kind is Kind.TOTAL:
            form = Form.COUNTER
        elif metric.kind is Kind.MAXIMUM:
            form = Form.GAUGE
        elif metric.group == PRODUCER and metric.counters[0] in TIMED_NAMES:
            form = Form.HISTOGRAM
        elif from_totals:
            form = f"from {named}"
        else:
            form = Form.SUMMARY
        yield metric, form


EXPORTS: dict[str, tuple[Export, ...]] = {
    definitions[0].group: tuple(
        _export(metric, form) for metric, form in _chosen(definitions) if isinstance(form, Form)
    )
    for definitions in (OF_PRODUCER, OF_NODE, OF_TOPIC)
}
"""Group -> its exported metrics."""

LEFT_OUT: dict[tuple[str, str], str] = {
    (metric.group, metric.name): why
    for definitions in (OF_PRODUCER, OF_NODE, OF_TOPIC)
    for metric, why in _chosen(definitions)
    if isinstance(why, str)
}
"""(Group, name) of each metric that is not exposed -> the reason. *From* names what to compute it from."""


def exports_as_markdown() -> str:
    """A markdown table: each metric's group, its name, and its names in the exporters."""
    text = "| Of each | Metric | Prometheus | OpenTelemetry |\n| --- | --- | --- | --- |\n"
    for definitions in (OF_PRODUCER, OF_NODE, OF_TOPIC):
        group = definitions[0].group
        exported = {one.definition.name: one for one in EXPORTS[group]}
        for metric in definitions:
            text += f"| {PART[group]} | `{metric.name}` | "
            if metric.name in exported:
                one = exported[metric.name]
                told = "".join(f", `{key}={value}`" for key, value in one.attributes)
                text += f"`{one.sample}` ({one.form.value}) | "
                text += f"`{one.opentelemetry}` ({one.otel_unit}){told} |\n"
            else:
                text += f"no: {LEFT_OUT[group, metric.name]} | no |\n"
    return text
