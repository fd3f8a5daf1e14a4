"""Custom serializers, interceptors and partitioners."""

import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.control.cluster_view import ClusterView
from cyproducer.producer import ProducerRecord
from cyproducer.structs import RecordMetadata, TopicPartition
from tests.producer.interceptors import Rude, Spy
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster

# Serializers


class Json:
    """kafka-python 3's kind of serializer."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.closed = 0

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        self.calls.append((topic, headers, data))
        return repr(data).encode()

    def close(self) -> None:
        self.closed += 1


def test_callables_serialize(cluster: ScriptedCluster) -> None:
    with producing(
        cluster, key_serializer=str.encode, value_serializer=lambda value: b"<%d>" % value
    ) as producer:
        assert producer.send("orders", 5, "key").get(WAIT_S).serialized_value_size == 3
        (record,) = cluster.topics["orders"].partitions[0].records
        assert (record.key, record.value) == (b"key", b"<5>")


def test_objects_serialize_with_topic_and_headers_and_are_closed(cluster: ScriptedCluster) -> None:
    json = Json()
    with producing(cluster, value_serializer=json) as producer:
        producer.send("orders", [1], headers=[("h", b"1")]).get(WAIT_S)
        assert json.calls == [("orders", [("h", b"1")], [1])]
        assert cluster.topics["orders"].values == [b"[1]"]
        producer.close()
        assert json.closed == 1


def test_a_serializers_own_error_reaches_the_caller_unchanged(cluster: ScriptedCluster) -> None:
    def refuse(value: Any) -> bytes:
        raise TypeError("I take no such thing")

    with producing(cluster, value_serializer=refuse) as producer:
        with pytest.raises(TypeError) as caught:
            producer.send("orders", b"1")
        assert str(caught.value) == "I take no such thing"
        assert cluster.received(PRODUCE) == []


# Interceptors


def marked(record: ProducerRecord) -> ProducerRecord:
    return record._replace(value=record.value + b"!", headers=[("seen", b"1")])


def test_interceptors_change_records_in_turn_and_are_notified_of_success(cluster: ScriptedCluster) -> None:
    spy, other = Spy(marked), Spy(marked)
    with producing(cluster, interceptors=[spy, other]) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        other.wait(1)
        (record,) = cluster.topics["orders"].partitions[0].records
        assert (record.value, record.headers) == (b"1!!", (("seen", b"1"),))
        ((metadata, error),) = spy.outcomes
        assert (metadata.topic, metadata.partition, metadata.offset, error) == ("orders", 0, 0, None)
        producer.close()
        assert (spy.closed, other.closed) == (1, 1)


def test_a_record_that_waits_for_its_interceptors_does_not_hold_its_value(cluster: ScriptedCluster) -> None:
    class Value(bytearray):
        """Supports weak references."""

    running, go_on = threading.Event(), threading.Event()

    class Slow:
        def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
            running.set()
            assert go_on.wait(WAIT_S)

    with producing(cluster, interceptors=[Slow()]) as producer:
        try:
            value = Value(b"large")
            held = weakref.ref(value)
            future = producer.send("orders", value)
            assert running.wait(WAIT_S)
            del value
            assert held() is None
            assert future.succeeded()
        finally:
            go_on.set()


def test_interceptors_are_notified_of_a_failure_with_the_known_metadata(cluster: ScriptedCluster) -> None:
    spy = Spy()
    with producing(cluster, interceptors=[spy]) as producer:
        cluster.act(PRODUCE, Act(error=10))
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send("orders", b"1", partition=0).get(WAIT_S)
        spy.wait(1)
        ((metadata, error),) = spy.outcomes
        assert isinstance(error, errors.MessageSizeTooLargeError)
        assert metadata == RecordMetadata("orders", 0, TopicPartition("orders", 0), -1, -1, None, -1, -1, -1)


def test_interceptors_are_notified_of_a_send_that_raised(cluster: ScriptedCluster) -> None:
    spy = Spy()
    with producing(cluster, interceptors=[spy]) as producer:
        with pytest.raises(errors.InvalidTopicError):
            producer.send("no such name!", b"1")
        ((metadata, error),) = spy.outcomes
        assert isinstance(error, errors.InvalidTopicError)
        assert (metadata.topic, metadata.partition, metadata.offset) == ("no such name!", -1, -1)


def test_an_interceptors_exception_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster
) -> None:
    spy = Spy(marked)
    with (
        caplog.at_level(logging.ERROR, "cyproducer"),
        producing(cluster, interceptors=[Rude(), spy]) as producer,
    ):
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        spy.wait(1)
        producer.close()
        assert cluster.topics["orders"].values == [b"1!"]
    said = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert said == ["rude on_send", "rude on_acknowledgement", "rude close"]
    assert spy.closed == 1


def test_an_interceptor_that_returns_no_record_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster
) -> None:
    class Forgetful:
        def on_send(self, record: ProducerRecord) -> None:
            pass

    with (
        caplog.at_level(logging.ERROR, "cyproducer"),
        producing(cluster, interceptors=[Forgetful()]) as producer,
    ):
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
    assert "on_send returned None: it must return a ProducerRecord" in caplog.text


def test_interceptor_classes_are_instantiated(cluster: ScriptedCluster) -> None:
    class Marking:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return marked(record)

    with producing(cluster, interceptors=[Marking]) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        assert cluster.topics["orders"].values == [b"1!"]


# Partitioners


class Modern:
    """kafka-python 3's kind of partitioner."""

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


def test_a_partitioner_object_chooses_and_sees_the_current_leaders() -> None:
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
        # With an explicit partition the partitioner is not called.
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
def test_the_error_about_a_wrong_partition_names_partitioner_and_result(answer: Any) -> None:
    modern = Modern()
    modern.answer = answer
    with ScriptedCluster(orders=2) as cluster, producing(cluster, partitioner=modern) as producer:
        with pytest.raises(ValueError, match=r"Modern returned") as caught:
            producer.send("orders", b"v")
        assert repr(answer) in str(caught.value)
        assert "0..1" in str(caught.value)
        assert cluster.received(PRODUCE) == []


def test_a_partitioner_is_not_called_for_a_refused_topic(cluster: ScriptedCluster) -> None:
    modern = Modern()
    with producing(cluster, partitioner=modern) as producer:
        cluster.topics["orders"].error = 29
        future = producer.send("orders", b"v")
        assert isinstance(future.exception, errors.TopicAuthorizationFailedError)
        assert modern.calls == []


class Turning:
    """Keeps a partition until it hears that the next batch begins."""

    def __init__(self) -> None:
        self.current = 0
        self.told: list[int] = []

    def partition(self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, view: Any) -> int:
        return self.current

    def on_new_batch(self, topic: str, cluster: ClusterView, prev_partition: int) -> None:
        self.told.append(prev_partition)
        self.current = (prev_partition + 1) % len(cluster.partitions_for_topic(topic) or ())


def test_a_partitioner_is_notified_of_new_batches_and_asked_again() -> None:
    turning = Turning()
    with (
        ScriptedCluster(orders=3) as cluster,
        producing(cluster, partitioner=turning, linger_ms=5000) as producer,
    ):
        together = [producer.send("orders", b"%d" % i) for i in range(3)]
        producer.flush(WAIT_S)
        # The partition has no open batch, so the next record would open one; keyed records are not announced.
        keyed = producer.send("orders", b"3", key=b"k")
        producer.flush(WAIT_S)
        after = producer.send("orders", b"4")
        producer.flush(WAIT_S)
    assert turning.told == [0, 1]
    assert [future.get(0).partition for future in [*together, keyed, after]] == [1, 1, 1, 1, 2]


@pytest.mark.parametrize("headers", [None, [("name", bytes(400))]])
def test_a_partitioner_is_notified_if_a_record_does_not_fit_the_open_batch(headers: Any) -> None:
    turning = Turning()
    size = 100 if headers else 500
    with (
        ScriptedCluster(orders=3) as cluster,
        producing(cluster, partitioner=turning, linger_ms=5000, batch_size=1200) as producer,
    ):
        futures = [producer.send("orders", bytes(size), headers=headers) for _ in range(5)]
        producer.flush(WAIT_S)
    # Two records per batch.
    assert turning.told == [0, 1, 2]
    assert [future.get(0).partition for future in futures] == [1, 1, 2, 2, 0]
