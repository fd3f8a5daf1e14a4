"""``CyproducerInstrumentor``: what a program, or ``opentelemetry-instrument``, calls.

Owns the instrumentor's interface. Does not own the spans (``tracing``).
"""

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.trace import TracerProvider

from cyproducer.opentelemetry import tracing
from cyproducer.producer import KafkaProducer


class CyproducerInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments all producers of the process, or one.

    ``instrument(tracer_provider=None)`` covers all producers, including those that already exist, until
    ``uninstrument()``. ``tracer_provider`` None: the global one, even if the program sets it later.
    ``opentelemetry-instrument`` calls it without arguments. A forked child inherits the state. A pickled
    producer does not carry it: the process that unpickles the producer decides. There is one instrumentor per
    process; every constructor call returns it.

    Other threads may send meanwhile, but no two threads may call these methods at the same time.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Returns nothing to check: the instrumentor is part of the package that it instruments."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        tracing.trace_all(kwargs.get("tracer_provider"))

    def _uninstrument(self, **kwargs: Any) -> None:
        tracing.untrace_all()

    @staticmethod
    def instrument_producer(producer: KafkaProducer, tracer_provider: TracerProvider | None = None) -> None:
        """Traces one producer, whether or not ``instrument()`` was called.

        Args:
            producer: the producer. Its copy in a forked child is traced as well; a pickled copy is not.
            tracer_provider: None: the global one. Takes precedence over that of ``instrument()``.
        """
        tracing.trace_producer(producer, tracer_provider)

    @staticmethod
    def uninstrument_producer(producer: KafkaProducer) -> None:
        """Undoes ``instrument_producer()``. ``instrument()`` still applies to the producer."""
        tracing.untrace_producer(producer)
