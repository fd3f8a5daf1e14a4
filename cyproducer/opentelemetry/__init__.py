"""OpenTelemetry for producers, with the instrumentor that ``opentelemetry-instrument`` finds.

Needs the extra: ``pip install 'cyproducer[opentelemetry]'``. ``docs/tracing.md`` explains the spans.
"""

try:
    from cyproducer.opentelemetry.instrumentor import CyproducerInstrumentor
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "opentelemetry":
        raise
    raise ModuleNotFoundError(
        f"cyproducer.opentelemetry needs {error.name}: pip install 'cyproducer[opentelemetry]'",
        name=error.name,
    ) from error

__all__ = ["CyproducerInstrumentor"]
