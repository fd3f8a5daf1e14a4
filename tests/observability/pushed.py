"""Reads pushed metrics with opentelemetry-proto."""

import math
from typing import Any

import pytest

_proto: Any = pytest.importorskip("opentelemetry.proto.metrics.v1.metrics_pb2")

DELTA, CUMULATIVE = 1, 2
Key = tuple[str, str]
"""A metric's name, and its broker's id or its topic."""


def parsed(metrics: bytes) -> Any:
    """Returns a ``MetricsData``, which must have no unknown fields."""
    found = _proto.MetricsData.FromString(metrics)
    assert found.SerializeToString(deterministic=True) == metrics
    return found


def points(metrics: bytes) -> dict[Key, tuple[float, int | None]]:
    """Returns the value and the temporality (None: a gauge) of each metric."""
    (resource,) = parsed(metrics).resource_metrics
    (scope,) = resource.scope_metrics
    found: dict[Key, tuple[float, int | None]] = {}
    for metric in scope.metrics:
        data = metric.sum if metric.HasField("sum") else metric.gauge
        (point,) = data.data_points
        part = "".join(one.value.string_value.removeprefix("node-") for one in point.attributes)
        assert not math.isnan(point.as_double)
        temporality = data.aggregation_temporality if metric.HasField("sum") else None
        assert (metric.name, part) not in found
        found[metric.name, part] = point.as_double, temporality
    return found
