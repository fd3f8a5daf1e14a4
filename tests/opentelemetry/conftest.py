"""The fixture of the tests of tracing."""

from collections.abc import Iterator

import pytest

from cyproducer.opentelemetry import CyproducerInstrumentor
from tests.opentelemetry.spans import Spans


@pytest.fixture
def spans() -> Iterator[Spans]:
    """The ended spans of all producers, while all are instrumented."""
    found = Spans()
    CyproducerInstrumentor().instrument(tracer_provider=found.provider)
    try:
        yield found
    finally:
        CyproducerInstrumentor().uninstrument()
