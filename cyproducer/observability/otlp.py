"""Writes metrics as OpenTelemetry's ``MetricsData``, the format of KIP-714, without a protobuf library.

Owns the bytes: opentelemetry-proto's ``metrics.proto``, ``resource.proto`` and ``common.proto``, of which it
writes gauges and sums with one value each. Does not own which metrics there are (``telemetry``). Pure
functions.

A producer with a thousand topics has 12,000 metrics. So a metric's name is encoded once, and the caller
encodes the attributes once for all metrics of a topic.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache

_FIXED64, _BYTES = 1, 2
"""Types of fields on the wire."""
DELTA, CUMULATIVE = 1, 2
"""``AggregationTemporality``."""

# NumberDataPoint: start_time_unix_nano = 2, time_unix_nano = 3, as_double = 4.
_START = struct.Struct("<BQ")
_TIME_AND_VALUE = struct.Struct("<BQBd")
# Sum: aggregation_temporality = 2, is_monotonic = 3.
_SUM_OF = {kind: bytes((2 << 3, kind, 3 << 3, 1)) for kind in (DELTA, CUMULATIVE)}


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _field(number: int, content: bytes) -> bytes:
    size = len(content)
    key = number << 3 | _BYTES
    return (bytes((key, size)) if size <= 0x7F else bytes((key,)) + _varint(size)) + content


def _attributes(number: int, values: Mapping[str, str]) -> bytes:
    # KeyValue: key = 1, value = 2; AnyValue: string_value = 1.
    return b"".join(
        _field(number, _field(1, name.encode()) + _field(2, _field(1, value.encode())))
        for name, value in values.items()
    )


@lru_cache(maxsize=256)
def _named(name: str) -> bytes:
    # Metric: name = 1.
    return _field(1, name.encode())


def attributes(values: Mapping[str, str]) -> bytes:
    """Encodes the attributes of a metric's value, for ``gauge`` and ``counter``."""
    # NumberDataPoint: attributes = 7.
    return _attributes(7, values)


def gauge(name: str, value: float, time_ns: int, attributes: bytes) -> bytes:
    """Encodes a gauge, for ``metrics_data``. Times are nanoseconds since the epoch."""
    point = _TIME_AND_VALUE.pack(3 << 3 | _FIXED64, time_ns, 4 << 3 | _FIXED64, value) + attributes
    # ScopeMetrics: metrics = 2; Metric: gauge = 5; Gauge: data_points = 1.
    return _field(2, _named(name) + _field(5, _field(1, point)))


def counter(name: str, value: float, time_ns: int, start_ns: int, attributes: bytes, *, delta: bool) -> bytes:
    """Encodes a monotonic sum, the increase since ``start_ns``, for ``metrics_data``."""
    start = _START.pack(2 << 3 | _FIXED64, start_ns)
    point = start + _TIME_AND_VALUE.pack(3 << 3 | _FIXED64, time_ns, 4 << 3 | _FIXED64, value) + attributes
    # ScopeMetrics: metrics = 2; Metric: sum = 7; Sum: data_points = 1.
    return _field(2, _named(name) + _field(7, _field(1, point) + _SUM_OF[DELTA if delta else CUMULATIVE]))


def metrics_data(
    metrics: Iterable[bytes], resource: Mapping[str, str], scope: str, scope_version: str
) -> bytes:
    """Encodes a ``MetricsData`` with these metrics, of one resource and one scope."""
    # ScopeMetrics: scope = 1; InstrumentationScope: name = 1, version = 2.
    scoped = _field(1, _field(1, scope.encode()) + _field(2, scope_version.encode()))
    scoped += b"".join(metrics)
    # MetricsData: resource_metrics = 1; ResourceMetrics: resource = 1, scope_metrics = 2.
    return _field(1, _field(1, _attributes(1, resource)) + _field(2, scoped))
