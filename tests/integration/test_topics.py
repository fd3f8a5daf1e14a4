"""Tests topics that are created, grow, are deleted and recreated while in use, and records that they
refuse."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from cyproducer import KafkaProducer, errors
from tests.integration.consume import read_all
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import PATIENCE_S, looks

pytestmark = pytest.mark.either_broker


@pytest.fixture
def admin(kafka: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


def test_a_missing_topic_is_created_by_the_first_record(kafka: KafkaCluster) -> None:
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        futures = [producer.send("made-by-send", b"%d" % i, partition=i % 3) for i in range(30)]
        places = [(told.partition, told.offset) for told in (future.get(30) for future in futures)]

    assert places == [(i % 3, i // 3) for i in range(30)]
    assert len(read_all(kafka.bootstrap_servers, "made-by-send", 30)) == 30


def test_a_topic_is_not_created_if_the_option_forbids_it(kafka: KafkaCluster, admin: AdminClient) -> None:
    with KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, allow_auto_create_topics=False, max_block_ms=500
    ) as producer:
        future = producer.send("not-made", b"x")
        with pytest.raises(errors.KafkaTimeoutError, match=r"'not-made'.*UnknownTopicOrPartitionError"):
            future.get(10)

    assert "not-made" not in admin.list_topics(timeout=10).topics


def test_a_topic_that_is_created_later_gets_the_parked_records(kafka: KafkaCluster) -> None:
    with KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, allow_auto_create_topics=False, max_block_ms=60_000
    ) as producer:
        future = producer.send("made-later", b"x")
        with pytest.raises(errors.KafkaTimeoutError, match=r"within 0\.3 s"):
            future.get(0.3)
        kafka.create_topic("made-later")

        assert future.get(30).offset == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
def test_an_invalid_topic_name_is_refused_at_once(kafka: KafkaCluster, name: str) -> None:
    with (
        KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer,
        pytest.raises(errors.InvalidTopicError, match="1 to 249"),
    ):
        producer.send(name, b"x")


def test_the_longest_valid_topic_name_is_accepted(kafka: KafkaCluster) -> None:
    name = "x" * 249
    kafka.create_topic(name)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        assert producer.send(name, b"x").get(30).topic == name


def test_partitions_added_while_sending_are_used(kafka: KafkaCluster, admin: AdminClient) -> None:
    kafka.create_topic("growing", partitions=1)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, metadata_max_age_ms=200) as producer:
        told = [producer.send("growing", b"before", key=b"%d" % i).get(30) for i in range(20)]
        assert {place.partition for place in told} == {0}
        admin.create_partitions([NewPartitions("growing", 4)])["growing"].result(30)

        deadline = time.monotonic() + 30
        keyed: set[int] = set()
        keyless: set[int] = set()
        while (len(keyed) < 4 or len(keyless) < 4) and time.monotonic() < deadline:
            key = b"%d" % len(told)
            for future, seen in (
                (producer.send("growing", b"after", key=key), keyed),
                (producer.send("growing", b"after" * 5_000), keyless),
            ):
                told.append(future.get(30))
                seen.add(told[-1].partition)
        last = producer.send("growing", b"explicit", partition=3).get(30)

    assert keyed == keyless == {0, 1, 2, 3}
    assert last.partition == 3
    found = read_all(kafka.bootstrap_servers, "growing", len(told) + 1)
    expected = sorted((place.partition, place.offset) for place in [*told, last])
    assert [(record.partition, record.offset) for record in found] == expected


def test_partitions_newer_than_the_metadata_can_be_written_by_number(
    kafka: KafkaCluster, admin: AdminClient
) -> None:
    kafka.create_topic("grown", partitions=1)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for partitions in (2, 3, 4):
            assert producer.send("grown", b"before", partition=0).get(30).partition == 0
            admin.create_partitions([NewPartitions("grown", partitions)])["grown"].result(30)
            for _ in looks(PATIENCE_S):
                if len(admin.list_topics("grown", timeout=10).topics["grown"].partitions) == partitions:
                    break
            if partitions == 2:
                written = producer.send("grown", b"1", partition=1).get(30).partition
            elif partitions == 3:
                written = producer.send_many("grown", [b"2"], partition=2).get(30).ranges[0].partition
            else:
                rows = pa.record_batch({"value": pa.array([b"3"]), "number": pa.array([3])})
                future = producer.send_arrow("grown", rows, partition="number")
                written = future.get(30).ranges[0].partition
            assert written == partitions - 1
    found = read_all(kafka.bootstrap_servers, "grown", 6)
    assert [(r.partition, r.value) for r in found] == [
        *[(0, b"before")] * 3,
        *((n, b"%d" % n) for n in (1, 2, 3)),
    ]


def test_a_partition_the_topic_does_not_have_is_refused(kafka: KafkaCluster) -> None:
    kafka.create_topic("two", partitions=2)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        waiting = producer.send("two", b"before metadata", partition=2)
        with pytest.raises(errors.UnknownTopicOrPartitionError, match=r"no partition 2.*2, 0 to 1"):
            waiting.get(30)
        assert producer.send("two", b"x", partition=1).get(30).offset == 0
        with pytest.raises(errors.UnknownTopicOrPartitionError, match=r"partition=2.*2 partitions, 0 to 1"):
            producer.send("two", b"after metadata", partition=2)


def test_a_deleted_and_recreated_topic_is_usable_again(kafka: KafkaCluster, admin: AdminClient) -> None:
    kafka.create_topic("phoenix", partitions=2)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        assert [producer.send("phoenix", b"old", partition=0).get(30).offset for _ in range(3)] == [0, 1, 2]
        admin.delete_topics(["phoenix"])["phoenix"].result(30)
        kafka.create_topic("phoenix", partitions=3)

        futures = [producer.send("phoenix", b"new", partition=0) for _ in range(3)]
        assert [future.get(30).offset for future in futures] == [0, 1, 2]
        # Partitions that only the new topic has are in use too.
        assert producer.send("phoenix", b"new", partition=2).get(30).offset == 0

    found = read_all(kafka.bootstrap_servers, "phoenix", 4)
    assert [(record.partition, record.offset, record.value) for record in found] == [
        *((0, offset, b"new") for offset in range(3)),
        (2, 0, b"new"),
    ]


@pytest.mark.slow
def test_records_for_a_deleted_topic_fail_in_bounded_time(kafka: KafkaCluster, admin: AdminClient) -> None:
    kafka.create_topic("gone")
    kafka.create_topic("still-there")
    with KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        allow_auto_create_topics=False,
        request_timeout_ms=4_000,
        delivery_timeout_ms=5_000,
    ) as producer:
        producer.send("gone", b"x").get(30)
        admin.delete_topics(["gone"])["gone"].result(30)

        future = producer.send("gone", b"x")
        assert producer.send("still-there", b"x").get(30).offset == 0
        with pytest.raises(errors.KafkaTimeoutError, match="gone-0 not delivered within"):
            future.get(30)


def test_a_batch_too_large_for_its_topic_fails_with_the_brokers_error(kafka: KafkaCluster) -> None:
    kafka.create_topic("small", configs={"max.message.bytes": "1000"})
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        fits = producer.send("small", b"x" * 800)
        assert fits.get(30).offset == 0
        large = producer.send("small", b"x" * 2_000)
        with pytest.raises(errors.MessageSizeTooLargeError) as caught:
            large.get(30)
        assert producer.send("small", b"x").get(30).offset == 1

    # The broker's error, not the client's own check of max_request_size.
    assert type(caught.value) is errors.MessageSizeTooLargeError
    assert "small-0" in str(caught.value)
    assert not large.retriable()
    assert len(read_all(kafka.bootstrap_servers, "small", 2)) == 2


def test_a_record_larger_than_max_request_size_is_not_sent(kafka: KafkaCluster) -> None:
    kafka.create_topic("never-sent")
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, max_request_size=1_000) as producer:
        with pytest.raises(errors.RecordTooLargeError, match="max_request_size is 1000"):
            producer.send("never-sent", b"x" * 1_000).get(30)
        assert producer.send("never-sent", b"x").get(30).offset == 0


def test_a_timestamp_that_the_broker_refuses_fails_with_its_error(kafka: KafkaCluster) -> None:
    kafka.create_topic("no-future", configs={"message.timestamp.after.max.ms": "1000"})
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        future = producer.send("no-future", b"x", timestamp_ms=2**42)
        with pytest.raises(errors.InvalidTimestampError, match="no-future-0"):
            future.get(30)
        assert producer.send("no-future", b"x").get(30).offset == 0
