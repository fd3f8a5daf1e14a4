"""Helps test code that sends records: a producer without a broker, and a broker without Java or Docker."""

from cyproducer.testing.embedded import EmbeddedBroker, EmbeddedBrokerError
from cyproducer.testing.mock_producer import MockProducer, MockRecord
from cyproducer.testing.pushed_metrics import PushedMetrics
from cyproducer.testing.stored_record import StoredRecord

__all__ = [
    "EmbeddedBroker",
    "EmbeddedBrokerError",
    "MockProducer",
    "MockRecord",
    "PushedMetrics",
    "StoredRecord",
]
