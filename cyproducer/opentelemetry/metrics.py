"""Metrics for OpenTelemetry: instruments that read producers' counters when a reader collects.

Owns the instruments, their attributes, and what was already recorded of each histogram. Does not own names,
units and forms (``observability/exports``), the labels of producers (``_open_producers``) or any reader or
exporter, which the program configures.

Counters and gauges are observable instruments. OpenTelemetry has no observable histogram, so each collection
records what the producer's histograms have gained since the last one, value by value, in ordinary histograms.

Needs opentelemetry-api: ``pip install 'cyproducer[opentelemetry]'``.
"""

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        Histogram,
        MeterProvider,
        Observation,
        get_meter_provider,
    )
except ImportError as error:
    raise ImportError(
        "cyproducer.opentelemetry.metrics needs the package opentelemetry-api: "
        "pip install 'cyproducer[opentelemetry]'"
    ) from error

from cyproducer._open_producers import Watched, hold_number, numbered
from cyproducer._runtime import Runtime, on_end, on_start
from cyproducer.base.forks import ensure_own_process, in_child
from cyproducer.observability.exports import BOUNDS_S, EXPORTS, Form
from cyproducer.opentelemetry import conventions
from cyproducer.version import VERSION

_ATTRIBUTES = {
    "client_id": "messaging.client.id",
    "producer": "cyproducer.producer",
    "node": "cyproducer.node.id",
    "topic": "messaging.destination.name",
}
"""Label -> OpenTelemetry's attribute. The conventions have none for a broker's id."""

_OF_CONVENTIONS = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
"""Attributes of the metrics that OpenTelemetry's conventions define, which are about operations."""

_MOST_CLOSED = 32
"""Maximum number of closed producers that are kept for the next collection. Without a reader there is never a
collection."""

_MOST_VALUES = 20_000
"""Maximum number of values of a producer's histogram that one collection records, which takes a fifth of a
second. A reader ends a collection after ten seconds, and then the next collection would take as long."""

_Attributes = dict[str, str]
_Recorded = dict[str, dict[float, int]]
"""What was recorded of a producer's histograms: name -> seconds -> count."""


class _Values:
    """A producer's values, and what was recorded of its histograms."""

    def __init__(self, runtime: Runtime, labels: dict[str, str], recorded: _Recorded) -> None:
        self.recorded = recorded
        self.observed: list[tuple[str, Observation]] = []
        #: Name, attributes, and the buckets since the start.
        self.histograms: list[tuple[str, _Attributes, list[tuple[float, int]]]] = []
        base = {**conventions.CHOSEN.rename({"messaging.system": "kafka"})}
        base |= {_ATTRIBUTES[name]: text for name, text in labels.items()}
        registry = runtime.registry()
        for definitions, part, reading in registry.readings():
            exports = EXPORTS[definitions[0].group]
            attributes = base | ({_ATTRIBUTES[exports[0].part]: part} if part else {})
            for export in exports:
                name, own = export.opentelemetry, attributes
                if name.startswith("messaging."):
                    own = attributes | _OF_CONVENTIONS | dict(export.attributes)
                if export.form is Form.HISTOGRAM:
                    self.histograms.append((name, own, export.buckets(reading)))
                elif export.form is Form.SUMMARY:
                    total, count = export.sum_and_count(reading)
                    self.observed.append((f"{name}.sum", Observation(total, own)))
                    self.observed.append((f"{name}.count", Observation(count, own)))
                elif not math.isnan(value := export.value(reading, registry)):
                    self.observed.append((name, Observation(value, own)))


def instrument_metrics(meter_provider: MeterProvider | None = None) -> "ProducerMetrics":
    """Exposes the metrics of all producers of this process, including those made later. Call it once.

    Args:
        meter_provider: makes the instruments; None: the global one.

    Returns an object whose ``stop()`` ends the observation.
    """
    return ProducerMetrics(meter_provider or get_meter_provider())


class ProducerMetrics:
    """What ``instrument_metrics()`` has set up.

    Values are read on the thread that collects. The last values of a producer are read on the thread that
    closes it. A value that does not exist yet is not observed. Histograms begin when this object is made. If
    a producer's histogram gains more than 20,000 values between two collections, 20,000 values with the same
    distribution are recorded. A producer is observed once more after it was closed, by the reader that
    collects next, so that its last counts are not lost. A forked child observes the producers that it uses
    itself. Thread-safe.
    """

    def __init__(self, meter_provider: MeterProvider) -> None:
        meter = meter_provider.get_meter("cyproducer", VERSION)
        self._lock = threading.Lock()
        #: The open producers.
        self._seen: dict[Runtime, _Recorded] = {}
        #: The producers that were closed since the last collection. Only their values are kept: a runtime
        #: holds its buffers.
        self._ended: deque[_Values] = deque(maxlen=_MOST_CLOSED)
        self._histograms: dict[str, Histogram] = {}
        #: What the instruments that were not called yet observe in this collection.
        self._taken: dict[str, list[Observation]] = {}
        self._names: dict[str, None] = {}
        on_start.append(self._started)
        on_end.append(self._closed)
        for runtime in Watched().runtimes():
            self._seen.setdefault(runtime, _gained(runtime))
        begin_anew = weakref.WeakMethod(self._begin_anew)
        in_child(lambda: (method := begin_anew()) and method())
        for export in (export for exports in EXPORTS.values() for export in exports):
            name, unit, text = export.opentelemetry, export.otel_unit, export.help
            if export.form is Form.HISTOGRAM:
                self._histograms[name] = meter.create_histogram(
                    name, unit, text, explicit_bucket_boundaries_advisory=BOUNDS_S
                )
            elif export.form is Form.GAUGE:
                meter.create_observable_gauge(name, [self._observed(name)], unit, text)
            elif export.form is Form.COUNTER:
                # Two metrics share one instrument if an attribute distinguishes them.
                if name not in self._names:
                    meter.create_observable_counter(name, [self._observed(name)], unit, text)
            else:
                for suffix, of in ((".sum", unit), (".count", "1")):
                    callback = self._observed(name + suffix)
                    meter.create_observable_counter(name + suffix, [callback], of, f"{text}, {suffix[1:]}")

    def stop(self) -> None:
        """Observes nothing from now on. OpenTelemetry has no way to remove the instruments themselves."""
        on_start[:] = [told for told in on_start if told != self._started]
        on_end[:] = [told for told in on_end if told != self._closed]
        self._seen.clear()
        self._ended.clear()
        self._taken.clear()

    def _begin_anew(self) -> None:
        """Resets the state in a forked child: the parent reports its own producers, and its threads may have
        held the lock."""
        self._lock = threading.Lock()
        self._seen = {}
        self._ended = deque(maxlen=_MOST_CLOSED)
        self._taken = {}

    def _started(self, runtime: Runtime) -> None:
        if runtime.config.metrics_enabled:
            self._seen.setdefault(runtime, {})

    def _closed(self, runtime: Runtime) -> None:
        # Removed first: a concurrent collection finds the producer once or, until the next collection, not at
        # all.
        recorded = self._seen.pop(runtime, None)
        if recorded is not None:
            ((_, labels),) = numbered([runtime])
            values = _Values(runtime, labels, recorded)
            hold_number(runtime, values)
            self._ended.append(values)

    def _observed(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        self._names[name] = None
        return partial(self._observe, name)

    def _observe(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        """Returns what one instrument observes. All instruments of a collection share one reading of the
        counters: if an instrument is called a second time, the call belongs to the next collection."""
        ensure_own_process()
        found = self._taken.pop(name, None)
        if found is None:
            with self._lock:
                taken = self._take()
                found = taken.pop(name)
                self._taken = taken
        return found

    def _take(self) -> dict[str, list[Observation]]:
        """Reads all producers. Returns what each instrument observes. Records what the histograms have
        gained."""
        found: dict[str, list[Observation]] = {name: [] for name in self._names}
        while self._ended:
            self._add(self._ended.popleft(), found)
        # A copy that includes what was recorded: a producer that is closed meanwhile is removed from the
        # original.
        seen = dict(self._seen)
        for runtime, labels in numbered(seen):
            closed = runtime.closed
            self._add(_Values(runtime, labels, seen[runtime]), found)
            if closed:
                # Ctrl-C interrupted the close before ``_closed()``.
                self._seen.pop(runtime, None)
        return found

    def _add(self, values: _Values, found: dict[str, list[Observation]]) -> None:
        for name, observation in values.observed:
            found[name].append(observation)
        for name, attributes, buckets in values.histograms:
            recorded = values.recorded.setdefault(name, {})
            gained = [(seconds, count - recorded.get(seconds, 0)) for seconds, count in buckets]
            share = min(1.0, _MOST_VALUES / max(1, sum(count for _, count in gained)))
            due = 0.0
            for seconds, count in gained:
                # The remainder of the rounding is carried over to the next bucket.
                due += count * share
                for _ in range(round(due)):
                    self._histograms[name].record(seconds, attributes)
                due -= round(due)
            recorded.update(buckets)


def _gained(runtime: Runtime) -> _Recorded:
    """Returns the histograms of a producer that started earlier, as if they were already recorded."""
    return {name: dict(buckets) for name, _, buckets in _Values(runtime, {}, {}).histograms}
