"""OpenTelemetry for producers. Needs opentelemetry-api: ``pip install 'cyproducer[opentelemetry]'``."""
