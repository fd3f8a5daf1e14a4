"""Collects a producer's metrics for a broker that has subscribed to them (KIP-714).

Owns the metrics' names in telemetry, what has changed since the last push that a broker took, and the choice
of what to leave out if a push would be too large. Does not own when to push (``control/telemetry``) or the
bytes (``otlp``). One call at a time.
"""

import math
from collections.abc import Callable, Sequence

from cyproducer.base import fork_lock
from cyproducer.base.clock import monotonic_ns, unix_ms
from cyproducer.base.unpatched import sleep
from cyproducer.observability import otlp
from cyproducer.observability.definitions import (
    OF_NODE,
    OF_PRODUCER,
    OF_TOPIC,
    PRODUCER,
    Definition,
    Kind,
)
from cyproducer.observability.registry import Registry
from cyproducer.records.codecs import CODECS
from cyproducer.records.compression import compressor_for

KAFKAS, OURS = "org.apache.kafka", "cyproducer"
"""The namespaces of metrics that the Java client has, too, and of the others."""
_GROUPS = {PRODUCER: "producer", OF_NODE[0].group: "producer.node", OF_TOPIC[0].group: "producer.topic"}

_HOLD_NS, _MOMENT_S = 1_000_000, 20e-6
"""How long the GIL is held without a pause, and the length of the pause; as in ``base/gil.pxd``."""

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
        # Each sum in the last push that had it and that a broker took, and the time of that push.
        self._pushed: dict[Key, tuple[float, int]] = {}

    def collect(
        self, wants: Callable[[str], bool], delta: bool, codec_ids: Sequence[int], max_bytes: int
    ) -> tuple[int, bytes, Callable[[], None]]:
        """Reads and encodes the metrics that are wanted.

        Values that are not numbers yet (NaN) are left out. If the result would be larger than ``max_bytes``,
        metrics of topics are left out, then those of brokers, the latest ones first.

        Args:
            wants: whether a metric is wanted, by its name.
            delta: whether sums are the increase since the last push that had them and that a broker took.
            codec_ids: the codecs that the broker accepts, the preferred one first; empty: none.
            max_bytes: the largest result in bytes; 0 or less: no limit.

        Returns:
            The id of the codec, the bytes, and a function to call when a broker has taken them.
        """
        now_ns = self._now_ns()
        found, sums, parts = self._read(wants, delta, now_ns)
        codec_id = next((each for each in codec_ids if 0 <= each < len(CODECS)), 0)
        with fork_lock.import_lock:
            # The first time it imports the codec's library.
            compress = compressor_for(CODECS[codec_id].name).compress if codec_id else bytes

        def encode() -> bytes:
            return bytes(compress(otlp.metrics_data(found, self._resource, OURS, self._version)))

        data = encode()
        while found and 0 < max_bytes < len(data):
            # The rest has about the same ratio of compression.
            del found[min(len(found) - 1, len(found) * max_bytes // len(data)) :]
            data = encode()
        # Without topics that were forgotten.
        pushed = {key: last for key, last in self._pushed.items() if key[1] in parts}
        pushed |= {key: (value, now_ns) for place, key, value in sums if place < len(found)}

        def accepted() -> None:
            self._pushed = pushed

        return codec_id, data, accepted

    def _read(
        self, wants: Callable[[str], bool], delta: bool, now_ns: int
    ) -> tuple[list[bytes], list[tuple[int, Key, float]], set[str]]:
        """Returns the encoded metrics, the sums with their places among them, and the brokers and topics."""
        wanted = {
            definitions[0].group: [
                (metric, name) for metric in definitions if wants(name := telemetry_name(metric))
            ]
            for definitions in (OF_PRODUCER, OF_NODE, OF_TOPIC)
        }
        found: list[bytes] = []
        sums: list[tuple[int, Key, float]] = []
        parts = set()
        held_ns = monotonic_ns()
        for definitions, part, reading in self._registry.readings():
            parts.add(part)
            attributes = otlp.attributes(attributes_of(definitions[0], part))
            for metric, name in wanted[definitions[0].group]:
                value = metric.value(reading, self._registry)
                if math.isnan(value):
                    continue
                if metric.kind is not Kind.TOTAL:
                    found.append(otlp.gauge(name, value, now_ns, attributes))
                    continue
                key = name, part
                sums.append((len(found), key, value))
                since_ns = self._start_ns
                if delta:
                    value, since_ns = self._increase(key, value)
                found.append(otlp.counter(name, value, now_ns, since_ns, attributes, delta=delta))
            if monotonic_ns() - held_ns > _HOLD_NS:
                # Otherwise the sender would wait 5 ms each time it needs the GIL.
                sleep(_MOMENT_S)
                held_ns = monotonic_ns()
        return found, sums, parts

    def _increase(self, key: Key, value: float) -> tuple[float, int]:
        """Returns how much a sum has grown since the last push that had it, and the time of that push."""
        before, since_ns = self._pushed.get(key, (0.0, self._start_ns))
        # A topic that was forgotten and used again starts from 0.
        return (value - before if value >= before else value), since_ns
