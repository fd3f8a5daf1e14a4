"""The bytes of metrics in OpenTelemetry's protocol, read by opentelemetry-proto."""

from hypothesis import given
from hypothesis import strategies as st

from cyproducer.observability import otlp
from tests.observability.pushed import parsed

times = st.integers(min_value=1, max_value=2**63)
# A protobuf library leaves out a field that is empty.
texts = st.text(min_size=1, max_size=300)
values = st.floats(allow_nan=False)
attributes = st.dictionaries(texts, texts, max_size=3)


@given(texts, values, times, attributes)
def test_a_gauge_is_read_back(name: str, value: float, time_ns: int, given: dict[str, str]) -> None:
    data = otlp.metrics_data([otlp.gauge(name, value, time_ns, otlp.attributes(given))], given, "s", "1")
    (resource,) = parsed(data).resource_metrics
    assert {one.key: one.value.string_value for one in resource.resource.attributes} == given
    (scope,) = resource.scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("s", "1")
    (metric,) = scope.metrics
    (point,) = metric.gauge.data_points
    assert (metric.name, point.as_double, point.time_unix_nano) == (name, value, time_ns)
    assert {one.key: one.value.string_value for one in point.attributes} == given


@given(st.lists(st.tuples(texts, values, times, times, st.booleans()), max_size=5))
def test_sums_are_read_back(given: list[tuple[str, float, int, int, bool]]) -> None:
    metrics = [
        otlp.counter(name, value, now, start, b"", delta=delta) for name, value, now, start, delta in given
    ]
    ((scope,),) = [
        each.scope_metrics for each in parsed(otlp.metrics_data(metrics, {}, "s", "1")).resource_metrics
    ]
    found = []
    for metric in scope.metrics:
        (point,) = metric.sum.data_points
        assert metric.sum.is_monotonic
        delta = metric.sum.aggregation_temporality == otlp.DELTA
        found.append((metric.name, point.as_double, point.time_unix_nano, point.start_time_unix_nano, delta))
    assert found == given
