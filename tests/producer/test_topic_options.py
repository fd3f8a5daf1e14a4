"""Topics with settings of their own, as brokers see them."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.testing import EmbeddedBroker
from cyproducer.testing.broker import request_log
from cyproducer.wire.messages import PRODUCE
from tests.scripted.producing import WAIT_S, options, producing
from tests.scripted.scripted_broker import Act, ScriptedCluster

TEXT = b"the same words again and again " * 50
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Seen:
    """The Produce requests that a broker has received."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, int, str]] = []
        """(topic, acks, codec) of each batch."""
        self.mixed: list[set[str]] = []
        """The topics of each request."""

    def note(self, call: Any, response: Any) -> str:
        if call.api is PRODUCE:
            names = set()
            for topic in call.request.topic_data:
                name = topic.name or call.cluster.topic(topic.topic_id).name
                names.add(name)
                for part in topic.partition_data:
                    # The attributes of the batch.
                    self.batches.append((name, call.request.acks, CODECS[part.records[22] & 7]))
            self.mixed.append(names)
        return ""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    monkeypatch.setattr(request_log, "line", found.note)
    return found


@pytest.fixture
def broker(seen: Seen) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": 3, "audit.eu": 3, "metrics": 3}) as broker:
        broker._log_requests(lambda line: None)
        yield broker


def test_each_topic_is_written_as_its_entry_says(broker: EmbeddedBroker, seen: Seen) -> None:
    made = options(
        bootstrap_servers=broker.bootstrap_servers,
        enable_idempotence=False,
        compression_type="gzip",
        linger_ms=20,
        topic_options={
            "audit.*": {"compression.type": "zstd", "acks": "1"},
            "metrics": {"acks": 0, "compression_type": "none", "linger_ms": 0},
        },
    )
    topics = ("orders", "audit.eu", "metrics")
    with KafkaProducer(**made) as producer:
        futures = [producer.send(topic, TEXT, partition=i) for i in range(3) for topic in topics]
        producer.flush(WAIT_S)
        assert {future.get(0).offset for future in futures} == {0, -1}
    for topic in topics:
        assert [record.value for record in broker.records(topic)] == [TEXT] * 3
    # A broker answers no request with acks=0, and notes what it answers.
    assert set(seen.batches) - {("metrics", 0, "none")} == {("orders", -1, "gzip"), ("audit.eu", 1, "zstd")}
    assert all(len(each) == 1 for each in seen.mixed)


def test_a_topic_does_not_wait_for_the_linger_of_others(broker: EmbeddedBroker, seen: Seen) -> None:
    made = options(
        bootstrap_servers=broker.bootstrap_servers,
        linger_ms=30_000,
        topic_options={"audit.*": {"linger_ms": 0}},
    )
    with KafkaProducer(**made) as producer:
        lingering = producer.send("orders", b"v")
        producer.send("audit.eu", b"v").get(WAIT_S)
        assert not lingering.is_done
        assert {name for name, _, _ in seen.batches} == {"audit.eu"}
        producer.flush(WAIT_S)
        assert {name for name, _, _ in seen.batches} == {"audit.eu", "orders"}


def test_many_rows_and_records_of_unknown_topics_have_their_topics_settings(
    broker: EmbeddedBroker, seen: Seen
) -> None:
    made = options(
        bootstrap_servers=broker.bootstrap_servers, topic_options={"audit.*": {"compression_type": "lz4"}}
    )
    with KafkaProducer(**made) as producer:
        producer.send_many("audit.eu", values=[TEXT] * 100).get(WAIT_S)
    assert {codec for _, _, codec in seen.batches} == {"lz4"}


def test_a_topic_with_acks_keeps_its_order_although_the_producer_has_none() -> None:
    held = threading.Event()
    with (
        ScriptedCluster(audit=2) as cluster,
        producing(cluster, acks=0, linger_ms=1, topic_options={"audit": {"acks": 1}}) as producer,
    ):
        cluster.act(PRODUCE.key, Act(hold=held))
        producer.send("audit", b"1", partition=0)
        cluster.wait_for_requests(PRODUCE.key, 1)
        # A retry of the first one must not come behind it.
        second = producer.send("audit", b"2", partition=0)
        producer.send("audit", b"3", partition=1)
        _, received = cluster.wait_for_requests(PRODUCE.key, 2)
        held.set()
        assert [partition for _, partition in received.batches] == [1]
        assert second.get(WAIT_S).offset == 1
