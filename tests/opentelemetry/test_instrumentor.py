"""What is instrumented, from when on, and how it ends."""

import inspect
import json
import os
import pickle
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wrapt

from cyproducer.futures.delivery import RecordFuture
from cyproducer.opentelemetry import CyproducerInstrumentor
from cyproducer.producer import KafkaProducer
from cyproducer.send.bulk_path import BulkPath
from cyproducer.send.send_path import SendPath
from cyproducer.testing import EmbeddedBroker, MockProducer
from tests.forked import in_child, needs_fork
from tests.opentelemetry.spans import Spans
from tests.programs import ROOT, run_to_exit
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster

METHODS = ("send", "send_async", "send_many", "send_arrow", "send_all")
ORIGINAL = {name: inspect.getattr_static(KafkaProducer, name) for name in METHODS}


@pytest.fixture
def mock() -> Iterator[MockProducer]:
    with MockProducer() as producer:
        yield producer


def names(spans: Spans) -> list[str]:
    return [span.name for span in spans.ended]


def installed() -> list[str]:
    """The methods that are not those of the class's definition."""
    return [name for name in METHODS if inspect.getattr_static(KafkaProducer, name) is not ORIGINAL[name]]


def test_producers_made_before_and_after_are_traced(cluster: ScriptedCluster) -> None:
    spans = Spans()
    with producing(cluster) as before:
        CyproducerInstrumentor().instrument(tracer_provider=spans.provider)
        try:
            with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as after:
                for producer in (before, after):
                    producer.send("orders", b"tea")
                    producer.flush(WAIT_S)
        finally:
            CyproducerInstrumentor().uninstrument()
    assert names(spans) == ["send orders"] * 2


def test_without_instrumentation_send_is_the_method_in_c(mock: MockProducer) -> None:
    assert "send" not in vars(KafkaProducer)
    assert KafkaProducer.send is SendPath.send
    assert KafkaProducer.send_many is BulkPath.send_many
    CyproducerInstrumentor().instrument(tracer_provider=Spans().provider)
    CyproducerInstrumentor.instrument_producer(mock)
    assert installed() == list(METHODS)
    CyproducerInstrumentor().uninstrument()
    assert installed() == list(METHODS)
    CyproducerInstrumentor.uninstrument_producer(mock)
    assert installed() == []
    assert "send" not in vars(KafkaProducer)


def test_a_wrapper_describes_itself_as_the_method(spans: Spans) -> None:
    for name in METHODS:
        wrapper = getattr(KafkaProducer, name)
        assert wrapper.__doc__ == ORIGINAL[name].__doc__
        assert inspect.signature(wrapper) == inspect.signature(ORIGINAL[name])
    assert inspect.iscoroutinefunction(KafkaProducer.send_async)


def test_spans_that_have_started_end_after_uninstrument(cluster: ScriptedCluster) -> None:
    spans = Spans()
    with producing(cluster, linger_ms=300_000, delivery_timeout_ms=600_000) as producer:
        CyproducerInstrumentor().instrument(tracer_provider=spans.provider)
        producer.send("orders", b"tea")
        CyproducerInstrumentor().uninstrument()
        producer.send("orders", b"cake")
        producer.flush(WAIT_S)
    assert names(spans) == ["send orders"]


def test_one_producer_can_be_traced_alone(mock: MockProducer) -> None:
    spans = Spans()
    with MockProducer() as other:
        CyproducerInstrumentor.instrument_producer(mock, tracer_provider=spans.provider)
        for producer in (mock, other):
            producer.send("orders", b"tea")
            producer.flush()
        assert names(spans) == ["send orders"]
        assert other.history()[0].headers is None
        CyproducerInstrumentor.uninstrument_producer(mock)
        mock.send("orders", b"tea")
        mock.flush()
    assert names(spans) == ["send orders"]
    assert installed() == []


def test_a_producer_s_own_provider_takes_precedence(mock: MockProducer, spans: Spans) -> None:
    alone = Spans()
    CyproducerInstrumentor.instrument_producer(mock, tracer_provider=alone.provider)
    mock.send("orders", b"tea")
    mock.flush()
    CyproducerInstrumentor.uninstrument_producer(mock)
    mock.send("bills", b"3.50")
    mock.flush()
    assert (names(alone), names(spans)) == (["send orders"], ["send bills"])


def test_only_a_producer_can_be_instrumented() -> None:
    with pytest.raises(TypeError, match=r"producer: must be a cyproducer\.KafkaProducer, not str"):
        CyproducerInstrumentor.instrument_producer("orders")  # type: ignore[arg-type]
    assert installed() == []


def test_a_dropped_producer_does_not_keep_the_wrappers() -> None:
    with MockProducer() as producer:
        CyproducerInstrumentor.instrument_producer(producer, tracer_provider=Spans().provider)
    del producer
    CyproducerInstrumentor().instrument()
    CyproducerInstrumentor().uninstrument()
    assert installed() == []


class Retailer(KafkaProducer):
    def send(self, topic: str, *args: Any, **kwargs: Any) -> RecordFuture:
        return super().send(f"shop.{topic}", *args, **kwargs)


def test_a_subclass_that_calls_send_has_one_span(cluster: ScriptedCluster, spans: Spans) -> None:
    cluster.create_topic("shop.orders")
    with Retailer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("orders", b"tea")
    assert names(spans) == ["send shop.orders"]


def test_a_mock_s_records_are_traced(mock: MockProducer, spans: Spans) -> None:
    headers = [("a", b"1")]
    mock.send("orders", b"tea", headers=headers)
    mock.send_many("orders", [b"tea"])
    mock.flush()
    assert names(spans) == ["send orders"] * 2
    kept = mock.history()[0].headers
    assert kept is not None
    assert [name for name, _ in kept] == ["a", "traceparent"]


# Processes


def test_a_pickled_producer_is_traced_where_its_process_is_instrumented(
    cluster: ScriptedCluster, spans: Spans
) -> None:
    with producing(cluster) as producer:
        CyproducerInstrumentor.instrument_producer(producer, tracer_provider=Spans().provider)
        producer.send("orders", b"tea")
        pickled = pickle.dumps(producer)
        CyproducerInstrumentor.uninstrument_producer(producer)
    with pickle.loads(pickled) as copy:
        copy.send("orders", b"tea")
    assert names(spans) == ["send orders"]


@needs_fork
def test_a_forked_child_is_traced_and_leaves_the_parent_s_spans_alone(
    cluster: ScriptedCluster, spans: Spans
) -> None:
    with producing(cluster, linger_ms=300_000, delivery_timeout_ms=600_000) as producer:
        producer.send("orders", b"parent's")

        def child() -> list[str]:
            producer.send("bills", b"child's")
            producer.close(0)
            return names(spans)

        assert in_child(child) == ["send bills"]
        assert spans.ended == []
        producer.flush(WAIT_S)
        assert names(spans) == ["send orders"]


PROGRAM = """
import sys
from cyproducer import KafkaProducer
with KafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
    producer.send("orders", b"tea")
"""


@pytest.mark.slow
def test_opentelemetry_instrument_finds_the_instrumentor(tmp_path: Path) -> None:
    environment = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("METRICS", "LOGS")}
    environment["OTEL_TRACES_EXPORTER"] = "console"
    if "CYPRODUCER_TEST_INSTALLED" not in os.environ:
        # As pip writes it. The sources have no metadata, or metadata from an earlier build, which would hide
        # a distribution of the same name.
        points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        (point,) = points["opentelemetry_instrumentor"].items()
        metadata = tmp_path / "cyproducer_sources-0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: cyproducer-sources\nVersion: 0\nRequires-Dist: cramjam\n"
        )
        (metadata / "entry_points.txt").write_text("[opentelemetry_instrumentor]\n{} = {}\n".format(*point))
        environment["PYTHONPATH"] = str(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    script = """
import sys
from opentelemetry.instrumentation.auto_instrumentation import run
sys.argv = ["opentelemetry-instrument", sys.executable, *sys.argv[1:]]
run()
"""
    with EmbeddedBroker(topics={"orders": 1}) as broker:
        done = run_to_exit(
            script, str(tmp_path / "program.py"), broker.bootstrap_servers, environment=environment
        )
    assert done.stdout, done.stderr
    span = json.loads(done.stdout)
    assert span["name"] == "send orders", done.stderr
    assert span["attributes"]["messaging.kafka.offset"] == 0


@pytest.mark.slow
def test_without_opentelemetry_the_import_says_what_to_install() -> None:
    script = """
import sys
sys.modules["opentelemetry"] = None
try:
    import cyproducer.opentelemetry
except ModuleNotFoundError as error:
    print(error)
"""
    done = run_to_exit(script)
    advice = "needs opentelemetry.instrumentation: pip install 'cyproducer[opentelemetry]'"
    assert done.stdout.strip() == f"cyproducer.opentelemetry {advice}", done.stderr


@pytest.mark.slow
def test_importing_the_package_does_not_import_opentelemetry() -> None:
    done = run_to_exit("import cyproducer, sys; print([n for n in sys.modules if 'opentelemetry' in n])")
    assert done.stdout.strip() == "[]", done.stderr


# Other libraries' wrappers


def test_the_methods_can_be_wrapped_with_wrapt(mock: MockProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, bool, tuple[Any, ...]]] = []
    for name in ("send", "send_many", "send_all"):

        def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any, name: str = name) -> Any:
            calls.append((name, instance is mock, args))
            return wrapped(*args, **kwargs)

        # Put back by monkeypatch.
        monkeypatch.setattr(KafkaProducer, name, ORIGINAL[name])
        wrapt.wrap_function_wrapper("cyproducer", f"KafkaProducer.{name}", wrapper)
    mock.send("orders", b"tea")
    mock.send_many("orders", [b"tea"])
    mock.send_all([])
    assert calls == [
        ("send", True, ("orders", b"tea")),
        ("send_many", True, ("orders", [b"tea"])),
        ("send_all", True, ([],)),
    ]


def test_a_wrapper_around_a_function_of_another_name_is_removed(
    mock: MockProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def other(self: KafkaProducer, topic: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(topic)
        return SendPath.send(self, topic, *args, **kwargs)

    monkeypatch.setattr(KafkaProducer, "send", other)
    spans = Spans()
    CyproducerInstrumentor().instrument(tracer_provider=spans.provider)
    mock.send("orders", b"tea")
    mock.flush()
    CyproducerInstrumentor().uninstrument()
    assert (calls, names(spans)) == (["orders"], ["send orders"])
    assert vars(KafkaProducer)["send"] is other


def test_a_wrapper_around_the_wrapper_outlives_uninstrument(mock: MockProducer) -> None:
    calls: list[str] = []

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        calls.append(args[0])
        return wrapped(*args, **kwargs)

    spans = Spans()
    instrumentor = CyproducerInstrumentor()
    instrumentor.instrument(tracer_provider=spans.provider)
    original = KafkaProducer.send
    wrapt.wrap_function_wrapper("cyproducer", "KafkaProducer.send", wrapper)
    try:
        instrumentor.uninstrument()
        mock.send("untraced", b"tea")
        # Once, although the first wrapper is still there.
        instrumentor.instrument(tracer_provider=spans.provider)
        mock.send("traced", b"tea")
        mock.flush()
    finally:
        setattr(KafkaProducer, "send", original)  # noqa: B010
        instrumentor.uninstrument()
    assert calls == ["untraced", "traced"]
    assert names(spans) == ["send traced"]
    assert installed() == []


def test_a_producer_has_what_wrappers_of_kafka_python_s_read(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.wait_ready(WAIT_S)
        # opentelemetry-instrumentation-kafka-python, New Relic.
        assert json.dumps(producer.config.get("bootstrap_servers")) == json.dumps(cluster.bootstrap_servers)
        assert KafkaProducer.DEFAULT_CONFIG["value_serializer"] is None
        # Elastic APM. Its positions are those of a named tuple.
        (node,) = cluster.nodes.values()
        controller: Any = producer._metadata.controller
        assert controller is None or controller[1:3] == (node.host, node.port)


@pytest.mark.slow
def test_the_global_provider_may_be_set_later(mock: MockProducer) -> None:
    script = """
from opentelemetry import trace
from cyproducer.opentelemetry import CyproducerInstrumentor
from cyproducer.testing import MockProducer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CyproducerInstrumentor().instrument()
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
with MockProducer() as producer:
    producer.send("orders", b"tea")
print([span.name for span in exporter.get_finished_spans()])
"""
    assert run_to_exit(script).stdout.strip() == "['send orders']"
