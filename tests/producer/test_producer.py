"""Records that are sent and arrive, from one thread and from many; and a producer's other methods."""

import pickle
import selectors
import threading
import time
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.producer import KafkaProducer, ProducerRecord
from cyproducer.structs import RecordMetadata, TopicPartition
from tests.scripted.odd_servers import refusing_address
from tests.scripted.producing import WAIT_S, options, producing
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster


def test_a_record_arrives_unchanged() -> None:
    with ScriptedCluster(orders=3) as cluster, producing(cluster) as producer:
        metadata = producer.send(
            "orders",
            value=memoryview(b"value"),
            key=bytearray(b"key"),
            headers=[("h", b"1"), ("h", None)],
            partition=2,
            timestamp_ms=1234,
        ).get(WAIT_S)
        (record,) = cluster.topics["orders"].partitions[2].records
        assert (record.key, record.value, record.timestamp) == (b"key", b"value", 1234)
        assert record.headers == (("h", b"1"), ("h", None))
        assert metadata == RecordMetadata("orders", 2, TopicPartition("orders", 2), 0, 1234, None, 3, 5, 3)


def test_a_record_sent_before_metadata_arrives_unchanged() -> None:
    held = threading.Event()
    with ScriptedCluster(orders=3) as cluster, producing(cluster) as producer:
        cluster.act(METADATA, Act(hold=held))
        futures = [producer.send("orders", b"%d" % i, b"k", [("h", b"1")], i % 3, i) for i in range(9)]
        assert not any(future.is_done for future in futures)
        held.set()
        assert [future.get(WAIT_S).offset for future in futures] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        for index, partition in enumerate(cluster.topics["orders"].partitions):
            assert [(r.value, r.key, r.headers, r.timestamp) for r in partition.records] == [
                (b"%d" % i, b"k", (("h", b"1"),), i) for i in range(index, 9, 3)
            ]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_single_record_has_the_time_of_its_send() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.partitions_for("orders")
        for _ in range(50):
            before = now_ms()
            metadata = producer.send("orders", b"1").get(WAIT_S)
            assert before <= metadata.timestamp <= now_ms()
            assert cluster.topics["orders"].partitions[0].records[-1].timestamp == metadata.timestamp


@pytest.mark.slow
def test_consecutive_records_have_the_time_of_their_send_or_of_the_last_clock_tick() -> None:
    tick_ms = 20
    with ScriptedCluster(orders=1) as cluster, producing(cluster, linger_ms=1000) as producer:
        producer.partitions_for("orders")
        futures, looks = [], [now_ms()]
        began = time.monotonic()
        while time.monotonic() - began < 0.1:
            futures.append(producer.send("orders", b"1"))
            looks.append(now_ms())
        producer.flush(WAIT_S)
        timestamps = [future.get(0).timestamp for future in futures]
        assert timestamps == sorted(timestamps)
        assert timestamps[0] >= looks[0]
        for before, timestamp, after in zip(looks, timestamps, looks[1:], strict=False):
            assert before - tick_ms <= timestamp <= after
        records = cluster.topics["orders"].partitions[0].records
        assert [record.timestamp for record in records] == timestamps


@pytest.mark.parametrize("name", ["SelectSelector", "PollSelector", "EpollSelector", "KqueueSelector"])
def test_every_selector_works(name: str) -> None:
    kind = getattr(selectors, name, None)
    if kind is None:
        pytest.skip(f"this system has no {name}")
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster, selector=kind) as producer:
        # Large enough that the socket accepts them in pieces.
        futures = [producer.send("orders", bytes(300_000), partition=i % 2) for i in range(20)]
        assert [future.get(WAIT_S).offset for future in futures] == [i // 2 for i in range(20)]


# send_all


def test_send_all_accepts_records_in_three_forms_and_keeps_their_order() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        records: list[Any] = [
            ProducerRecord("orders", b"0"),
            ("orders", b"1", b"key"),
            {"topic": "orders", "value": b"2", "partition": 0},
        ]
        futures = producer.send_all(records)
        assert [future.get(WAIT_S).offset for future in futures] == [0, 1, 2]
        assert cluster.topics["orders"].values == [b"0", b"1", b"2"]
        assert cluster.topics["orders"].partitions[0].records[1].key == b"key"


def test_send_all_puts_errors_into_the_futures_of_their_records() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.partitions_for("orders")
        futures = producer.send_all(
            [
                ("orders", b"0"),
                ("orders", 17),
                ("no such name!", b"2"),
                {"value": b"3"},
                ("orders", b"4", None, None, 9),
            ]
        )
        assert futures[0].get(WAIT_S).offset == 0
        kinds = [type(future.exception) for future in futures[1:]]
        assert kinds == [TypeError, errors.InvalidTopicError, TypeError, errors.UnknownTopicOrPartitionError]
        assert cluster.topics["orders"].values == [b"0"]


# State and metrics


def test_partitions_for_and_bootstrap_connected_and_wait_ready() -> None:
    with ScriptedCluster(orders=4) as cluster, producing(cluster) as producer:
        producer.wait_ready(WAIT_S)
        assert producer.bootstrap_connected() is True
        assert producer.partitions_for("orders") == {0, 1, 2, 3}
        cluster.nodes[1].stop()
        deadline = threading.Event()
        for _ in range(200):
            if not producer.bootstrap_connected():
                break
            deadline.wait(0.05)
        assert producer.bootstrap_connected() is False
        # Known metadata stays known.
        assert producer.partitions_for("orders") == {0, 1, 2, 3}


def test_metrics_count_records() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        cluster.act(PRODUCE, Act(error=19), Act(), Act(error=10))
        producer.send("orders", b"1").get(WAIT_S)
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send("orders", b"2").get(WAIT_S)
        producer.flush(WAIT_S)
        found = producer.metrics()["producer-metrics"]
        assert found["record-send-total"] == 1
        assert found["record-error-total"] == 1
        assert found["record-retry-total"] == 1
        assert found["produce-request-total"] == 3
        assert found["requests-in-flight"] == 0
        assert found["connection-count"] == 1
        assert found["buffer-available-bytes"] == found["buffer-total-bytes"]
        assert 0 < found["request-latency-avg"] <= found["request-latency-max"]


def test_a_pickled_producer_is_its_configuration() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="original", acks=1) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        copy = pickle.loads(pickle.dumps(producer))
        try:
            assert type(copy) is KafkaProducer
            assert copy.config.given() == producer.config.given()
            assert copy.send("orders", b"2").get(WAIT_S).offset == 1
        finally:
            copy.close(0)


def test_repr_shows_name_and_state() -> None:
    producer = KafkaProducer(**options(bootstrap_servers=[refusing_address()], client_id="shop"))
    assert repr(producer) == "<KafkaProducer 'shop' open>"
    producer.close(0)
    assert repr(producer) == "<KafkaProducer 'shop' closed>"


# Several producers and threads


def test_two_producers_do_not_disturb_each_other() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as one, producing(cluster) as two:
        futures = [producer.send("orders", b"%d" % i) for i in range(100) for producer in (one, two)]
        assert sorted(future.get(WAIT_S).offset for future in futures) == list(range(200))
        one.close()
        assert two.send("orders", b"last").get(WAIT_S).offset == 200


def test_16_threads_share_a_producer_and_keep_their_order() -> None:
    count, threads = 500, 16
    with ScriptedCluster(2, orders=4) as cluster, producing(cluster, batch_size=2000) as producer:
        failures: list[BaseException] = []

        def send(thread: int) -> None:
            try:
                futures = [
                    producer.send("orders", b"%d %d" % (thread, i), b"%d" % thread) for i in range(count)
                ]
                offsets = [future.get(WAIT_S).offset for future in futures]
                assert offsets == sorted(offsets)
            except BaseException as error:
                failures.append(error)

        running = [threading.Thread(target=send, args=(i,)) for i in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(WAIT_S)
        assert failures == []
        for partition in cluster.topics["orders"].partitions:
            of_thread: dict[bytes, list[int]] = {}
            for value in partition.values:
                assert value is not None
                name, number = value.split()
                of_thread.setdefault(name, []).append(int(number))
            assert all(numbers == list(range(count)) for numbers in of_thread.values())
        assert len(cluster.topics["orders"].values) == count * threads
