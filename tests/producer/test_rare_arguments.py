"""Records that ``send_all`` refuses, keys that a serializer makes nothing of, and ends that go wrong."""

import logging
from typing import Any

import pytest

from cyproducer.control.cluster_view import ClusterView
from cyproducer.errors import ProducerClosedError
from cyproducer.producer import ProducerRecord
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster


def test_a_record_that_send_all_refuses_fails_with_its_topic() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        whole, nothing, closed = producer.send_all(
            [ProducerRecord("orders", b"1"), ProducerRecord("orders"), {"topic": "others"}]
        )
        assert whole.get(WAIT_S).topic == "orders"
        for future, topic in ((nothing, "orders"), (closed, "others")):
            assert future.topic == topic
            assert isinstance(future.exception, ValueError)
        producer.close()
        (late,) = producer.send_all([ProducerRecord("orders", b"2")])
        assert late.topic == "orders"
        assert isinstance(late.exception, ProducerClosedError)


def test_partitions_for_gives_each_caller_a_set_of_its_own() -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster) as producer:
        first = producer.partitions_for("orders")
        first.add(7)
        assert producer.partitions_for("orders") == {0, 1}


def test_a_key_that_is_serialized_to_nothing_is_none_for_the_partitioner() -> None:
    class Turning:
        def __init__(self) -> None:
            self.current = 0
            self.told: list[int] = []

        def partition(self, topic: str, serialized_key: bytes | None, cluster: ClusterView) -> int:
            return self.current

        def on_new_batch(self, topic: str, cluster: ClusterView, prev_partition: int) -> None:
            self.told.append(prev_partition)
            self.current = 1

    turning = Turning()
    with (
        ScriptedCluster(orders=2) as cluster,
        producing(cluster, partitioner=turning, key_serializer=lambda key: None) as producer,
    ):
        assert producer.send("orders", b"1", key="dropped").get(WAIT_S).partition == 1
    assert turning.told == [0]


class Failing:
    """A serializer whose end fails."""

    def __init__(self) -> None:
        self.closed = 0

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        return bytes(data)

    def close(self) -> None:
        self.closed += 1
        raise LookupError("on purpose")


def test_an_extension_that_fails_to_close_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    parts = [Failing(), Failing()]
    given: dict[str, Any] = {"key_serializer": parts[0], "value_serializer": parts[1]}
    with (
        caplog.at_level(logging.ERROR, "cyproducer"),
        producing(bootstrap_servers=["127.0.0.1:1"], **given) as producer,
    ):
        producer.close(0)
        assert [part.closed for part in parts] == [1, 1]
    assert sum("raised in close" in record.getMessage() for record in caplog.records) == 2


def test_a_single_record_that_is_lost_at_the_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with producing(bootstrap_servers=["127.0.0.1:1"]) as producer:
        future = producer.send("orders", b"1")
        with caplog.at_level(logging.WARNING, "cyproducer"):
            producer.close(0)
    assert isinstance(future.exception, ProducerClosedError)
    assert "1 record not acknowledged in time" in caplog.text
