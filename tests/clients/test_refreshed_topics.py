"""Partitions that are not in the metadata: it is requested once more before they are rejected."""

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from cyproducer import KafkaProducer, errors
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import METADATA, Act, ScriptedCluster
from tests.scripted.scripted_model import Partition
from tools.harness.until import until, until_blocked

Send = Callable[[KafkaProducer, int], Any]


def send(producer: KafkaProducer, partition: int) -> Any:
    return producer.send("orders", b"1", partition=partition)


def send_many(producer: KafkaProducer, partition: int) -> Any:
    return producer.send_many("orders", [b"1"], partition=partition)


def send_arrow(producer: KafkaProducer, partition: int) -> Any:
    rows = pa.record_batch({"value": pa.array([b"1"]), "partition": pa.array([partition])})
    return producer.send_arrow("orders", rows, partition="partition")


FOREVER = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000}
WAYS = pytest.mark.parametrize("way", [send, send_many, send_arrow])


def grow(cluster: ScriptedCluster, partitions: int) -> None:
    topic = cluster.topics["orders"]
    while len(topic.partitions) < partitions:
        topic.partitions.append(Partition(topic.partitions[0].leader))


def asked(cluster: ScriptedCluster) -> int:
    return len(cluster.received(METADATA))


@WAYS
def test_partitions_added_after_the_last_metadata_update_are_found(way: Send) -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster) as producer:
        assert producer.partitions_for("orders") == {0, 1}
        grow(cluster, 4)
        way(producer, 3).get(WAIT_S)
        assert len(cluster.topics["orders"].partitions[3].values) == 1
        assert producer.partitions_for("orders") == {0, 1, 2, 3}


@WAYS
def test_metadata_is_requested_once_before_a_partition_is_rejected(way: Send) -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster) as producer:
        way(producer, 1).get(WAIT_S)
        before = asked(cluster)
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="2"):
            way(producer, 2)
        assert asked(cluster) == before + 1
        way(producer, 0).get(WAIT_S)
        # No request for a known partition.
        assert asked(cluster) == before + 1


@WAYS
def test_a_response_is_trusted_during_the_backoff(way: Send) -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster, **FOREVER) as producer:
        way(producer, 1).get(WAIT_S)
        before = asked(cluster)
        for _ in range(50):
            with pytest.raises(errors.UnknownTopicOrPartitionError, match="2"):
                way(producer, 2)
        assert asked(cluster) == before + 1


@WAYS
def test_a_response_with_new_partitions_is_not_trusted_about_later_ones(way: Send) -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster, **FOREVER) as producer:
        way(producer, 1).get(WAIT_S)
        for partition in (2, 3):
            grow(cluster, partition + 1)
            way(producer, partition).get(WAIT_S)
        assert [len(each.values) for each in cluster.topics["orders"].partitions] == [0, 1, 1, 1]


@WAYS
def test_after_the_backoff_metadata_is_requested_again(way: Send) -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster, retry_backoff_ms=0) as producer:
        way(producer, 1).get(WAIT_S)
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="2"):
            way(producer, 2)
        grow(cluster, 3)
        way(producer, 2).get(WAIT_S)


@WAYS
def test_without_a_response_the_error_does_not_say_that_the_partition_is_missing(way: Send) -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster, max_block_ms=300) as producer:
        way(producer, 1).get(WAIT_S)
        cluster.act(METADATA, Act(silent=True))
        with pytest.raises(
            errors.KafkaTimeoutError, match=r"no metadata of topic 'orders' within 0\."
        ) as caught:
            way(producer, 2)
        assert caught.value.__cause__ is None


def test_a_response_to_an_earlier_request_does_not_count() -> None:
    with ScriptedCluster(orders=2, others=1) as cluster, producing(cluster) as producer:
        send(producer, 1).get(WAIT_S)
        before = asked(cluster)
        hold = threading.Event()
        # The response was made when the topic had two partitions, and arrives when it has three.
        cluster.act(METADATA, Act(hold=hold))
        producer.send("others", b"1")
        cluster.wait_for_requests(METADATA, before + 1)
        grow(cluster, 3)
        sent: list[Any] = []
        thread = threading.Thread(target=lambda: sent.append(send(producer, 2)))
        thread.start()
        until_blocked(thread)
        hold.set()
        thread.join(WAIT_S)
        assert sent[0].get(WAIT_S).partition == 2
        assert asked(cluster) == before + 2


def test_closing_the_producer_ends_a_wait_for_metadata() -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster) as producer:
        send(producer, 1).get(WAIT_S)
        before = asked(cluster)
        cluster.act(METADATA, Act(silent=True))
        found: list[BaseException] = []

        def wait() -> None:
            try:
                send(producer, 2)
            except errors.KafkaError as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        cluster.wait_for_requests(METADATA, before + 1)
        producer.close(0)
        thread.join(WAIT_S)
        assert [type(error) for error in found] == [errors.ProducerClosedError]


def test_a_missing_topic_that_was_forgotten_is_requested_again() -> None:
    given = {"metadata_max_idle_ms": 200, "metadata_max_age_ms": 20, "retry_backoff_max_ms": 10}
    with ScriptedCluster(orders=1) as cluster, producing(cluster, **given) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        client = producer._runtime.client
        with pytest.raises(errors.KafkaTimeoutError):
            client.wait_for_topic("later", 0.05)
        until(lambda: "later" not in client._metadata.tracked_topics(), "the topic being forgotten")
        cluster.create_topic("later", 1)
        assert producer.send("later", b"1").get(WAIT_S).offset == 0
