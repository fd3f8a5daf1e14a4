"""A whole producer and a broker that answers late: batches grow, and every record arrives once, in order."""

from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.testing import EmbeddedBroker
from tests.scripted.producing import WAIT_S

ANSWER_MS = 60
BATCH_SIZE = 16_384
RECORDS = 3_000
VALUE_BYTES = 1_000


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"t": 2}) as broker:
        yield broker


def send_all(broker: EmbeddedBroker, **options: Any) -> float:
    """Sends to both partitions of the late broker; returns the size of the largest batch in bytes."""
    options = {"batch_size": BATCH_SIZE, **options}
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
        broker.delay(1, ANSWER_MS)
        for partition in range(2):
            producer.send("t", b"first", partition=partition).get(WAIT_S)
        futures = [
            producer.send("t", b"%0*d" % (VALUE_BYTES, number), partition=number % 2)
            for number in range(RECORDS)
        ]
        producer.flush(WAIT_S)
        broker.delay(1, 0)
        largest: float = producer.metrics()["producer-metrics"]["batch-size-max"]
    for partition in range(2):
        expected = [b"first", *(b"%0*d" % (VALUE_BYTES, number) for number in range(partition, RECORDS, 2))]
        assert [record.value for record in broker.records("t", partition)] == expected
    assert [future.get(WAIT_S).offset for future in futures] == [1 + number // 2 for number in range(RECORDS)]
    return largest


@pytest.mark.slow
def test_batches_for_a_late_broker_grow(broker: EmbeddedBroker) -> None:
    assert send_all(broker) > 4 * BATCH_SIZE


@pytest.mark.slow
def test_a_late_broker_gets_no_larger_requests_than_max_request_size(broker: EmbeddedBroker) -> None:
    assert send_all(broker, max_request_size=30_000) <= 30_000
