"""Batches that a broker rejects as too large, from ``send()`` to the log, with idempotence."""

from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.producer import KafkaProducer
from cyproducer.structs import RecordMetadata
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import read_all
from tests.scripted.producing import WAIT_S, producing

PRODUCE, TOO_LARGE, LIST_TOO_LARGE = 0, 10, 18


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def values(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in read_all(broker.bootstrap_servers, topic, count)]


def counters(producer: KafkaProducer) -> dict[str, float]:
    return producer.metrics()["producer-metrics"]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("code", [TOO_LARGE, LIST_TOO_LARGE])
def test_a_too_large_batch_arrives_in_parts(broker: EmbeddedBroker, codec: str | None, code: int) -> None:
    topic = f"parts-{codec}-{code}"
    broker.create_topic(topic, 1)
    called: list[int] = []

    def note(told: RecordMetadata) -> None:
        called.append(told.offset)

    sent = [b"%d " % i * 20 for i in range(1000)]
    # Only full batches are sent before the flush, however slow the machine is: a lone record can't be split.
    given: dict[str, Any] = {"compression_type": codec, "linger_ms": 60_000, "batch_size": 20_000}
    # One at a time: this broker ignores sequences, and accepts batches that follow a rejected one.
    given["max_in_flight_requests_per_connection"] = 1
    with producing(bootstrap_servers=broker.bootstrap_servers, **given) as producer:
        producer.send(topic, b"first")
        producer.flush(WAIT_S)
        assert counters(producer)["batch-split-total"] == 0
        broker.fail_next(PRODUCE, code, code, 0, code)
        futures = [producer.send(topic, value).add_callback(note) for value in sent]
        producer.flush(WAIT_S)
        assert [future.get(0).offset for future in futures] == list(range(1, 1001))
        assert 1 <= counters(producer)["batch-split-total"] <= 3
        assert counters(producer)["record-error-total"] == 0
        producer.close(WAIT_S)
    assert called == list(range(1, 1001))
    assert values(broker, topic, 1001) == [b"first", *sent]


def test_a_too_large_record_fails_alone_and_its_error_has_the_size(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("alone", 1)
    with producing(bootstrap_servers=broker.bootstrap_servers, linger_ms=60_000) as producer:
        producer.send("alone", b"first")
        producer.flush(WAIT_S)
        # The batch of two, then its first part.
        broker.fail_next(PRODUCE, TOO_LARGE, TOO_LARGE)
        large, small = producer.send("alone", bytes(5000)), producer.send("alone", b"small")
        producer.flush(WAIT_S)
        with pytest.raises(errors.MessageSizeTooLargeError, match=r"alone-0: 1 record .* 507\d b") as told:
            large.get(WAIT_S)
        assert told.value.maybe_written is False
        assert small.get(WAIT_S).offset == 1
        assert counters(producer)["record-error-total"] == 1
    assert values(broker, "alone", 2) == [b"first", b"small"]


def test_close_with_no_time_fails_the_parts(broker: EmbeddedBroker) -> None:
    broker.create_topic("closed", 1)
    with producing(bootstrap_servers=broker.bootstrap_servers, linger_ms=60_000) as producer:
        producer.send("closed", b"first")
        producer.flush(WAIT_S)
        broker.fail_next(PRODUCE, *[TOO_LARGE] * 4)
        broker.delay(1, 200)
        try:
            futures = [producer.send("closed", b"%d" % i) for i in range(64)]
            with pytest.raises(errors.KafkaTimeoutError):
                producer.flush(0)  # sends them all in one batch
            while not counters(producer)["batch-split-total"]:
                assert not futures[0].is_done
            producer.close(0)
        finally:
            broker.delay(1, 0)
        assert all(isinstance(future.exception, errors.ProducerClosedError) for future in futures)
