"""What a record meets on its way in: serializers, interceptors, partitioners, several threads; and what can be asked."""

import logging
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.control.cluster_view import ClusterView
from cyproducer.producer import KafkaProducer, ProducerRecord
from cyproducer.structs import RecordMetadata, TopicPartition
from tests.network.odd_servers import refusing_address
from tests.network.producing import WAIT_S, options, producing
from tests.network.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster

pytestmark = pytest.mark.timeout(60)


def test_a_record_arrives_as_it_was_given() -> None:
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


def test_a_record_without_metadata_yet_arrives_as_it_was_given() -> None:
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


# send_all


def test_send_all_takes_records_in_three_forms_and_keeps_their_order() -> None:
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


def test_send_all_keeps_errors_in_the_futures_of_their_records() -> None:
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


# Serializers


class Json:
    """kafka-python 3's form."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.closed = 0

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        self.calls.append((topic, headers, data))
        return repr(data).encode()

    def close(self) -> None:
        self.closed += 1


def test_callables_serialize() -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(
            cluster, key_serializer=str.encode, value_serializer=lambda value: b"<%d>" % value
        ) as producer,
    ):
        assert producer.send("orders", 5, "key").get(WAIT_S).serialized_value_size == 3
        (record,) = cluster.topics["orders"].partitions[0].records
        assert (record.key, record.value) == (b"key", b"<5>")


def test_objects_serialize_with_topic_and_headers_and_are_closed() -> None:
    json = Json()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, value_serializer=json) as producer:
        producer.send("orders", [1], headers=[("h", b"1")]).get(WAIT_S)
        assert json.calls == [("orders", [("h", b"1")], [1])]
        assert cluster.topics["orders"].values == [b"[1]"]
        producer.close()
        assert json.closed == 1


def test_a_serializers_own_error_reaches_the_caller_unchanged() -> None:
    def refuse(value: Any) -> bytes:
        raise TypeError("I take no such thing")

    with ScriptedCluster(orders=1) as cluster, producing(cluster, value_serializer=refuse) as producer:
        with pytest.raises(TypeError, match="^I take no such thing$"):
            producer.send("orders", b"1")
        assert cluster.received(PRODUCE) == []


# Interceptors


class Spy:
    def __init__(self) -> None:
        self.outcomes: list[tuple[RecordMetadata, Exception | None]] = []
        self.acknowledged = threading.Semaphore(0)
        self.closed = 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(value=record.value + b"!", headers=[("seen", b"1")])

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.outcomes.append((metadata, error))
        self.acknowledged.release()

    def close(self) -> None:
        self.closed += 1


class Rude:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("rude on_send")

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        raise RuntimeError("rude on_acknowledgement")

    def close(self) -> None:
        raise RuntimeError("rude close")


def test_interceptors_change_records_one_after_the_other_and_hear_of_success() -> None:
    spy, other = Spy(), Spy()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, interceptors=[spy, other]) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        assert other.acknowledged.acquire(timeout=WAIT_S)
        (record,) = cluster.topics["orders"].partitions[0].records
        assert (record.value, record.headers) == (b"1!!", (("seen", b"1"),))
        ((metadata, error),) = spy.outcomes
        assert (metadata.topic, metadata.partition, metadata.offset, error) == ("orders", 0, 0, None)
        producer.close()
        assert (spy.closed, other.closed) == (1, 1)


def test_interceptors_hear_of_a_failure_with_metadata_of_what_is_known() -> None:
    spy = Spy()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, interceptors=[spy]) as producer:
        cluster.act(PRODUCE, Act(error=10))
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send("orders", b"1", partition=0).get(WAIT_S)
        assert spy.acknowledged.acquire(timeout=WAIT_S)
        ((metadata, error),) = spy.outcomes
        assert isinstance(error, errors.MessageSizeTooLargeError)
        assert metadata == RecordMetadata("orders", 0, TopicPartition("orders", 0), -1, -1, None, -1, -1, -1)


def test_interceptors_hear_of_a_send_that_raised() -> None:
    spy = Spy()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, interceptors=[spy]) as producer:
        with pytest.raises(errors.InvalidTopicError):
            producer.send("no such name!", b"1")
        ((metadata, error),) = spy.outcomes
        assert isinstance(error, errors.InvalidTopicError)
        assert (metadata.topic, metadata.partition, metadata.offset) == ("no such name!", -1, -1)


def test_an_interceptor_that_raises_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    spy = Spy()
    with (
        ScriptedCluster(orders=1) as cluster,
        caplog.at_level(logging.ERROR, "cyproducer"),
        producing(cluster, interceptors=[Rude(), spy]) as producer,
    ):
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        assert spy.acknowledged.acquire(timeout=WAIT_S)
        producer.close()
        assert cluster.topics["orders"].values == [b"1!"]
    said = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert said == ["rude on_send", "rude on_acknowledgement", "rude close"]
    assert spy.closed == 1


def test_interceptor_classes_are_instantiated() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, interceptors=[Spy]) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        assert cluster.topics["orders"].values == [b"1!"]


# Partitioners


class Modern:
    """kafka-python 3's form."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer: Any = 1
        self.closed = 0

    def partition(
        self,
        topic: str,
        key: Any,
        serialized_key: bytes | None,
        value: Any,
        serialized_value: bytes | None,
        cluster: ClusterView,
    ) -> Any:
        self.calls.append((topic, key, serialized_key, value, serialized_value))
        self.cluster = cluster
        return self.answer

    def close(self) -> None:
        self.closed += 1


def test_a_partitioner_object_chooses_and_sees_the_leaders_of_now() -> None:
    modern = Modern()
    with (
        ScriptedCluster(2, orders=2) as cluster,
        producing(cluster, partitioner=modern, key_serializer=str.encode, metadata_max_age_ms=50) as producer,
    ):
        assert producer.send("orders", b"v", "k").get(WAIT_S).partition == 1
        assert modern.calls == [("orders", "k", b"k", b"v", b"v")]
        leader = modern.cluster.leader_for_partition("orders", 1)
        assert leader is not None
        assert (leader.nodeId, leader.port) == (2, cluster.nodes[2].port)
        cluster.move_leader("orders", 1, 1)
        seen = len(cluster.received(METADATA))
        cluster.wait_for_requests(METADATA, seen + 2)
        producer.send("orders", b"v", "k").get(WAIT_S)
        leader = modern.cluster.leader_for_partition("orders", 1)
        assert leader is not None
        assert leader.nodeId == 1
        # A given partition needs no partitioner.
        assert producer.send("orders", b"v", "k", partition=0).get(WAIT_S).partition == 0
        assert len(modern.calls) == 2
        producer.close()
        assert modern.closed == 1


def test_a_partitioner_callable_gets_all_and_available_partitions() -> None:
    calls: list[tuple[Any, ...]] = []

    def choose(key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]) -> int:
        calls.append((key, list(all_partitions), list(available)))
        return available[-1]

    with ScriptedCluster(orders=3) as cluster, producing(cluster, partitioner=choose) as producer:
        cluster.topics["orders"].partitions[2].leader = -1
        assert producer.send("orders", b"v", b"k").get(WAIT_S).partition == 1
        assert calls == [(b"k", [0, 1, 2], [0, 1])]


@pytest.mark.parametrize("answer", [2, -1, "0", None, 1.0, True])
def test_a_wrong_partition_is_an_error_that_names_partitioner_and_answer(answer: Any) -> None:
    modern = Modern()
    modern.answer = answer
    with ScriptedCluster(orders=2) as cluster, producing(cluster, partitioner=modern) as producer:
        with pytest.raises(ValueError, match=r"Modern returned") as caught:
            producer.send("orders", b"v")
        assert repr(answer) in str(caught.value)
        assert "0..1" in str(caught.value)
        assert cluster.received(PRODUCE) == []


def test_a_partitioner_gets_no_topic_the_broker_refuses() -> None:
    modern = Modern()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, partitioner=modern) as producer:
        cluster.topics["orders"].error = 29
        future = producer.send("orders", b"v")
        assert isinstance(future.exception, errors.TopicAuthorizationFailedError)
        assert modern.calls == []


# Asking


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
        # What is known stays known.
        assert producer.partitions_for("orders") == {0, 1, 2, 3}


def test_metrics_count_what_happened() -> None:
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
        assert found["request-total"] == 3
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


def test_repr_tells_name_and_state() -> None:
    producer = KafkaProducer(**options(bootstrap_servers=[refusing_address()], client_id="shop"))
    assert repr(producer) == "<KafkaProducer 'shop' open>"
    producer.close(0)
    assert repr(producer) == "<KafkaProducer 'shop' closed>"


# Several at once


def test_two_producers_do_not_disturb_each_other() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as one, producing(cluster) as two:
        futures = [producer.send("orders", b"%d" % i) for i in range(100) for producer in (one, two)]
        assert sorted(future.get(WAIT_S).offset for future in futures) == list(range(200))
        one.close()
        assert two.send("orders", b"last").get(WAIT_S).offset == 200


def test_16_threads_on_one_producer_lose_nothing_and_keep_their_order() -> None:
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
