"""Collects spans for tests."""

import threading

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import SpanContext, StatusCode


class Spans(SpanProcessor):
    """A tracer provider's ended spans, in order, and the threads that ended them."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(self)
        self.ended: list[ReadableSpan] = []
        self.threads: list[threading.Thread] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)
        self.threads.append(threading.current_thread())

    def only(self) -> ReadableSpan:
        """Returns the only span; fails if there is none or another."""
        (span,) = self.ended
        return span


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def traceparent(context: SpanContext) -> bytes:
    """The W3C header of a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()


def failed(span: ReadableSpan) -> tuple[object, str | None]:
    """Returns the ``error.type`` and the description of a span that failed."""
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    assert span.attributes is not None
    return span.attributes["error.type"], span.status.description
