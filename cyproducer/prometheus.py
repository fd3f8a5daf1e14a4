"""Metrics for Prometheus: a collector for ``prometheus_client``. ``docs/metrics.md`` lists the names.

Owns the conversion of readings to ``prometheus_client``'s families. Does not own names and forms
(``observability/exports``) or the list of producers (``_open_producers``).

Needs prometheus_client: ``pip install 'cyproducer[prometheus]'``.
"""

from collections.abc import Iterable, Iterator

try:
    from prometheus_client.core import Metric, Sample
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "cyproducer.prometheus needs the package prometheus_client: pip install 'cyproducer[prometheus]'"
    ) from error

from cyproducer._open_producers import Watched, numbered
from cyproducer.accumulator.metric_snapshot import Reading
from cyproducer.observability.definitions import Host
from cyproducer.observability.exports import BOUNDS_S, EXPORTS, Export, Form
from cyproducer.producer import KafkaProducer

_BOUNDS = [(bound, str(bound)) for bound in BOUNDS_S]


class ProducerCollector(Collector):
    """Exposes the metrics of producers: ``prometheus_client.REGISTRY.register(ProducerCollector())``.

    Values are read when Prometheus scrapes; nothing runs between scrapes. A scrape does not wait for a
    broker, a thread or a callback. A record or the sender waits for a scrape for about two microseconds.
    Closed producers disappear, as do topics that the producer has forgotten. A forked child exposes the
    producers that it uses itself. Registering a second collector with the same registry raises
    ``ValueError``.

    Labels: ``client_id``; for brokers ``node``, for topics ``topic``; ``producer`` (2 and up) for further
    open producers with the same ``client_id``. Times are in seconds, sizes in bytes. A gauge without a value
    yet (a maximum of nothing, the age of metadata that never arrived) is NaN.

    Thread-safe. Keeps no producer alive.

    Args:
        producers: the producers to expose; None: all of this process, also those made later.
    """

    def __init__(self, producers: Iterable[KafkaProducer] | None = None) -> None:
        self._watched = Watched(producers)

    def describe(self) -> Iterable[Metric]:
        """The families without samples: ``register()`` looks for duplicate names without reading anything."""
        return [_family(export) for exports in EXPORTS.values() for export in exports]

    def collect(self) -> Iterable[Metric]:
        """Reads all values; called at each scrape."""
        families: dict[str, list[tuple[Export, Metric]]] = {}
        for group, exports in EXPORTS.items():
            families[group] = [(export, _family(export)) for export in exports]
        for runtime, labels in numbered(self._watched.runtimes()):
            registry = runtime.registry()
            for definitions, part, reading in registry.readings():
                all_labels = {**labels, EXPORTS[definitions[0].group][0].part: part} if part else labels
                for export, family in families[definitions[0].group]:
                    family.samples.extend(_samples(export, all_labels, reading, registry))
        return [family for found in families.values() for _, family in found if family.samples]


def _family(export: Export) -> Metric:
    return Metric(export.prometheus, export.help, export.form.value, export.unit)


def _samples(export: Export, labels: dict[str, str], reading: Reading, host: Host) -> Iterator[Sample]:
    name = export.prometheus
    if export.form is Form.COUNTER or export.form is Form.GAUGE:
        yield Sample(export.sample, labels, export.value(reading, host))
        return
    total, count = export.sum_and_count(reading)
    if export.form is Form.HISTOGRAM:
        buckets = export.buckets(reading)
        reached = at = 0
        for bound, text in _BOUNDS:
            while at < len(buckets) and buckets[at][0] <= bound:
                reached += buckets[at][1]
                at += 1
            yield Sample(f"{name}_bucket", {**labels, "le": text}, reached)
        yield Sample(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
    yield Sample(f"{name}_sum", labels, total)
    yield Sample(f"{name}_count", labels, count)
