"""Tests a topic whose batch limit is smaller than the producer's batches."""

from __future__ import annotations

from typing import Any

import pytest

from cyproducer import KafkaProducer, errors
from cyproducer.structs import RecordMetadata
from tests.integration.consume import read_all
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.either_broker

LIMIT = 20_000


def counters(producer: KafkaProducer) -> dict[str, float]:
    return producer.metrics()["producer-metrics"]


@pytest.mark.parametrize("codec", [None, "gzip", "lz4", "snappy", "zstd"])
def test_records_arrive_once_and_in_order_with_few_refused_requests(kafka: KafkaCluster, codec: Any) -> None:
    topic = f"small-{codec}"
    kafka.create_topic(topic, configs={"max.message.bytes": str(LIMIT)})
    called: list[int] = []

    def note(told: RecordMetadata) -> None:
        called.append(told.offset)

    # Pseudo-random hexadecimal digits: codecs halve them, which is still above the limit.
    seed = 1
    sent = []
    for i in range(12_000):
        seed = seed * 6364136223846793005 + 1442695040888963407 & (1 << 512) - 1
        sent.append(b"%06d" % i + b"%x" % seed)
    with KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, compression_type=codec, linger_ms=5
    ) as producer:
        futures = [producer.send(topic, value).add_callback(note) for value in sent]
        producer.flush(60)
        assert [future.get(0).offset for future in futures] == list(range(len(sent)))
        first = counters(producer)
        assert first["batch-split-total"] >= 1
        # The first five batches in flight are halved until they fit, with at most 1 + 2 + 4 (+ 8) refusals
        # each. Each waiting batch is refused once.
        waited = first["byte-total"] / (131_072 if codec is None else 60_000)
        assert first["batch-split-total"] <= 5 * 15 + waited
        futures = [producer.send(topic, value) for value in sent]
        producer.flush(60)
        assert [future.get(0).offset for future in futures] == list(range(len(sent), 2 * len(sent)))
        second = counters(producer)
        assert second["batch-split-total"] <= first["batch-split-total"] + 2
        assert second["record-error-total"] == 0
        assert second["batch-size-max"] <= LIMIT
        producer.close(30)
    # A callback that is added after its record was acknowledged is called at once, before those that wait.
    assert sorted(called) == list(range(len(sent)))
    assert [record.value for record in read_all(kafka.bootstrap_servers, topic, 2 * len(sent))] == sent + sent


def test_a_record_that_no_batch_can_hold_fails_alone(kafka: KafkaCluster) -> None:
    kafka.create_topic("small-alone", configs={"max.message.bytes": str(LIMIT)})
    sent = [b"%d" % i for i in range(50)]
    sent[30] = bytes(25_000)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=20) as producer:
        futures = [producer.send("small-alone", value) for value in sent]
        with pytest.raises(errors.MessageSizeTooLargeError, match=r"-0: 1 record .* 250\d\d bytes"):
            futures[30].get(30)
        del futures[30], sent[30]
        assert [future.get(30).offset for future in futures] == list(range(49))
    assert [record.value for record in read_all(kafka.bootstrap_servers, "small-alone", 49)] == sent
