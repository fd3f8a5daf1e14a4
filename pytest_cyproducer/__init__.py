"""The pytest plugin of cyproducer: fixtures for tests of programs that produce.

pytest imports this module in every project where cyproducer is installed. A package of its own, because
importing a submodule of ``cyproducer`` would import all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cyproducer import KafkaProducer
    from cyproducer.testing import EmbeddedBroker, MockProducer

DELIVERY_S = 30.0
"""How long the records of a test may take to be delivered after it."""


@pytest.fixture
def mock_producer() -> Iterator[MockProducer]:
    """A ``MockProducer`` that acknowledges every record at once; closed after the test."""
    from cyproducer.testing import MockProducer

    with MockProducer() as producer:
        yield producer


@pytest.fixture
def kafka_broker() -> Iterator[EmbeddedBroker]:
    """A running ``EmbeddedBroker``, new for each test: no test sees the topics or faults of another.

    Starts in a few milliseconds.
    """
    from cyproducer.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def kafka_producer(kafka_broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    """A ``KafkaProducer`` that is connected to ``kafka_broker``.

    After the test it is flushed and closed. Records without an outcome after 30 seconds are an error of the
    test; records that failed are not.
    """
    from cyproducer import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    try:
        yield producer
        producer.flush(DELIVERY_S)
    finally:
        producer.close(0)
