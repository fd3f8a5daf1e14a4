"""The fixtures of the tests of tracing."""

from collections.abc import Iterator

import pytest

from cyproducer.opentelemetry import CyproducerInstrumentor
from cyproducer.producer import KafkaProducer
from tests.opentelemetry.spans import Spans
from tests.scripted.producing import producing
from tests.scripted.scripted_broker import ScriptedCluster


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(orders=2, bills=1) as cluster:
        yield cluster


@pytest.fixture
def producer(cluster: ScriptedCluster) -> Iterator[KafkaProducer]:
    with producing(cluster, client_id="shop") as producer:
        yield producer


@pytest.fixture
def spans() -> Iterator[Spans]:
    """The ended spans of all producers, while all are instrumented."""
    found = Spans()
    CyproducerInstrumentor().instrument(tracer_provider=found.provider)
    try:
        yield found
    finally:
        CyproducerInstrumentor().uninstrument()
