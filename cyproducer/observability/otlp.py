"""Writes metrics as OpenTelemetry's ``MetricsData``, the format of KIP-714, without a protobuf library.

Owns the bytes: opentelemetry-proto's ``metrics.proto``, ``resource.proto`` and ``common.proto``, of which it
writes gauges and sums with one value each. Does not own which metrics there are (``telemetry``). Pure
functions.
"""

import struct
from collections.abc import Iterable, Mapping

_FIXED64, _BYTES = 1, 2
"""Types of fields on the wire."""
DELTA, CUMULATIVE = 1, 2
"""``AggregationTemporality``."""


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | _BYTES,)) + _varint(len(content)) + content


def _attributes(number: int, values: Mapping[str, str]) -> bytes:
    # KeyValue: key = 1, value = 2; AnyValue: string_value = 1.
    return b"".join(
        _field(number, _field(1, name.encode()) + _field(2, _field(1, value.encode())))
        for name, value in values.items()
    )


def _point(value: float, time_ns: int, start_ns: int, attributes: Mapping[str, str]) -> bytes:
    # NumberDataPoint: start_time_unix_nano = 2, time_unix_nano = 3, as_double = 4, attributes = 7.
    start = struct.pack("<BQ", 2 << 3 | _FIXED64, start_ns) if start_ns else b""
    numbers = struct.pack("<BQBd", 3 << 3 | _FIXED64, time_ns, 4 << 3 | _FIXED64, value)
    return start + numbers + _attributes(7, attributes)


def gauge(name: str, value: float, time_ns: int, attributes: Mapping[str, str]) -> bytes:
    """Encodes a ``Metric`` with a gauge. Times are nanoseconds since the epoch."""
    # Metric: name = 1, gauge = 5; Gauge: data_points = 1.
    return _field(1, name.encode()) + _field(5, _field(1, _point(value, time_ns, 0, attributes)))


def counter(
    name: str, value: float, time_ns: int, start_ns: int, attributes: Mapping[str, str], *, delta: bool
) -> bytes:
    """Encodes a ``Metric`` with a monotonic sum: the increase since ``start_ns``."""
    # Metric: sum = 7; Sum: data_points = 1, aggregation_temporality = 2, is_monotonic = 3.
    points = _field(1, _point(value, time_ns, start_ns, attributes))
    kind = bytes((2 << 3, DELTA if delta else CUMULATIVE, 3 << 3, 1))
    return _field(1, name.encode()) + _field(7, points + kind)


def metrics_data(
    metrics: Iterable[bytes], resource: Mapping[str, str], scope: str, scope_version: str
) -> bytes:
    """Encodes a ``MetricsData`` with these metrics, of one resource and one scope."""
    # ScopeMetrics: scope = 1, metrics = 2; InstrumentationScope: name = 1, version = 2.
    scoped = _field(1, _field(1, scope.encode()) + _field(2, scope_version.encode()))
    scoped += b"".join(_field(2, one) for one in metrics)
    # MetricsData: resource_metrics = 1; ResourceMetrics: resource = 1, scope_metrics = 2.
    return _field(1, _field(1, _attributes(1, resource)) + _field(2, scoped))
