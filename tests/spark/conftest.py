"""Fixtures for tests of the Spark code without Spark: an embedded broker, and closing of shared producers."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import UnknownTopicOrPartitionError
from cyproducer.producer import KafkaProducer
from cyproducer.spark import close_all
from cyproducer.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def half_sent(monkeypatch: pytest.MonkeyPatch) -> UnknownTopicOrPartitionError:
    """Makes ``send_arrow()`` accept half of the rows and raise this error, once, as if the topic lost
    partitions while a batch is being sent."""
    send_arrow = KafkaProducer.send_arrow
    error = UnknownTopicOrPartitionError("the topic has lost partitions meanwhile")

    def send_half(producer: KafkaProducer, topic: str, rows: pa.RecordBatch, **columns: Any) -> Any:
        if error.accepted is not None:
            return send_arrow(producer, topic, rows, **columns)
        error.accepted = rows.num_rows // 2
        error.future = send_arrow(producer, topic, rows.slice(0, error.accepted), **columns)
        raise error

    monkeypatch.setattr(KafkaProducer, "send_arrow", send_half)
    return error
