"""Collects a producer's metrics for a broker that has subscribed to them (KIP-714).

Owns the metrics' names in telemetry, what has changed since the last push that a broker took, and the choice
of what to leave out if a push would be too large. Does not own when to push (``control/telemetry``) or the
bytes (``otlp``). One call at a time.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from cyproducer.base.clock import unix_ms
from cyproducer.observability import otlp
from cyproducer.observability.definitions import OF_NODE, OF_TOPIC, PRODUCER, Definition, Kind
from cyproducer.observability.registry import Registry
from cyproducer.records.codecs import CODECS
from cyproducer.records.compression import compressor_for

KAFKAS, OURS = "org.apache.kafka", "cyproducer"
"""The namespaces of metrics that the Java client has, too, and of the others."""
_GROUPS = {PRODUCER: "producer", OF_NODE[0].group: "producer.node", OF_TOPIC[0].group: "producer.topic"}

Key = tuple[str, str]
"""A metric's name, and its broker's id or its topic."""


def telemetry_name(metric: Definition) -> str:
    """Returns a metric's name in telemetry, such as ``org.apache.kafka.producer.record.send.total``."""
    namespace = KAFKAS if metric.kafkas else OURS
    return f"{namespace}.{_GROUPS[metric.group]}.{metric.name.replace('-', '.')}"


def attributes_of(metric: Definition, part: str) -> dict[str, str]:
    """Returns a metric's attributes, which are those of the Java client."""
    if metric.group == PRODUCER:
        return {}
    return {"node_id": f"node-{part}"} if metric.group == OF_NODE[0].group else {"topic": part}


class Collector:
    """Collects the metrics of one producer. See the module's docstring."""

    def __init__(
        self,
        registry: Registry,
        resource: dict[str, str],
        version: str,
        start_ns: int,
        now_ns: Callable[[], int] = lambda: unix_ms() * 1_000_000,
    ) -> None:
        """
        Args:
            registry: reads the metrics.
            resource: attributes of the client, such as its transactional id.
            version: the version of this package.
            start_ns: when the producer was made, in nanoseconds since the epoch.
            now_ns: returns the time in nanoseconds since the epoch.
        """
        self._registry = registry
        self._resource = resource
        self._version = version
        self._start_ns = start_ns
        self._now_ns = now_ns
        # The sums of the last push that a broker took, and its time.
        self._pushed: dict[Key, float] = {}
        self._pushed_ns = start_ns

    def collect(
        self, wants: Callable[[str], bool], delta: bool, codec_ids: Sequence[int], max_bytes: int
    ) -> tuple[int, bytes, Callable[[], None]]:
        """Reads and encodes the metrics that are wanted.

        Values that are not numbers yet (NaN) are left out. If the result would be larger than ``max_bytes``,
        metrics of topics are left out, then those of brokers, the latest ones first.

        Args:
            wants: whether a metric is wanted, by its name.
            delta: whether sums are the increase since the last push that a broker took.
            codec_ids: the codecs that the broker accepts, the preferred one first; empty: none.
            max_bytes: the largest result in bytes; 0 or less: no limit.

        Returns:
            The id of the codec, the bytes, and a function to call when a broker has taken them.
        """
        now_ns = self._now_ns()
        sums: dict[Key, float] = {}
        found = list(self._encoded(wants, delta, now_ns, sums))
        codec_id = next((each for each in codec_ids if 0 <= each < len(CODECS)), 0)
        compress = compressor_for(CODECS[codec_id].name).compress if codec_id else bytes

        def encode(metrics: Iterable[bytes]) -> bytes:
            data = otlp.metrics_data(metrics, self._resource, OURS, self._version)
            return bytes(compress(data))

        data = encode(one for _, one in found)
        while found and 0 < max_bytes < len(data):
            # The rest has about the same ratio of compression.
            kept = min(len(found) - 1, len(found) * max_bytes // len(data))
            for key, _ in found[kept:]:
                # Not pushed: a later push has the increase since the last one that had the metric.
                sums.pop(key, None)
            found = found[:kept]
            data = encode(one for _, one in found)

        def accepted() -> None:
            self._pushed |= sums
            self._pushed_ns = now_ns

        return codec_id, data, accepted

    def _encoded(
        self, wants: Callable[[str], bool], delta: bool, now_ns: int, sums: dict[Key, float]
    ) -> Iterator[tuple[Key, bytes]]:
        """Each metric that is wanted, encoded. Adds the values of sums to ``sums``."""
        for definitions, part, reading in self._registry.readings():
            for metric in definitions:
                name = telemetry_name(metric)
                if not wants(name):
                    continue
                value = metric.value(reading, self._registry)
                key, attributes = (name, part), attributes_of(metric, part)
                if math.isnan(value):
                    continue
                if metric.kind is not Kind.TOTAL:
                    yield key, otlp.gauge(name, value, now_ns, attributes)
                    continue
                sums[key] = value
                since_ns = self._start_ns
                if delta and key in self._pushed:
                    # A topic that was forgotten and used again starts from 0.
                    increase = value - self._pushed[key]
                    value, since_ns = (increase if increase >= 0 else value), self._pushed_ns
                yield key, otlp.counter(name, value, now_ns, since_ns, attributes, delta=delta)
