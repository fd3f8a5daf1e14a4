"""What tests of Spark's side without Spark share: a broker in this process, and no producer left behind."""

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
    """What ``send_arrow()`` raises once, as where a topic loses partitions while a batch is being sent: half
    of the rows were accepted then."""
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
