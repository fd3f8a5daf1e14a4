"""A metadata response with many partitions does not keep the sender from sending."""

import itertools
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.clients import network_client
from cyproducer.control.metadata import MetadataChange
from cyproducer.net import connector
from cyproducer.producer import KafkaProducer
from cyproducer.wire import protocol
from cyproducer.wire.messages import METADATA
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import PRODUCE, ScriptedCluster
from tools.harness.until import until


class Decoding:
    """The decoder of metadata responses, all of which count as large. It can be held back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allowed = threading.Event()
        self.allowed.set()
        self.calls = 0
        self.error: Exception | None = None
        self._decode = protocol.DECODERS[METADATA]
        monkeypatch.setitem(protocol.DECODERS, METADATA, self)
        monkeypatch.setattr(connector, "LARGE", 0)

    def __call__(self, version: int, frame: bytes) -> Any:
        self.calls += 1
        assert self.allowed.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return self._decode(version, frame)


def test_records_are_sent_while_a_large_response_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = Decoding(monkeypatch)
    with ScriptedCluster(orders=1, late=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        decoding.allowed.clear()
        decoded = decoding.calls
        late = producer.send("late", b"1")
        until(lambda: decoding.calls > decoded, "the decoding")
        for _ in range(3):
            producer.send("orders", b"2").get(WAIT_S)
        assert not late.is_done
        decoding.allowed.set()
        assert late.get(WAIT_S).offset == 0
        assert len(cluster.received(PRODUCE)) == 5


def test_a_large_response_that_cannot_be_decoded_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = Decoding(monkeypatch)
    with ScriptedCluster(orders=1, late=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        decoding.error = errors.KafkaProtocolError("a test's error")
        decoded = decoding.calls
        late = producer.send("late", b"1")
        until(lambda: decoding.calls > decoded + 1, "another attempt")
        decoding.error = None
        assert late.get(WAIT_S).offset == 0


def test_a_response_whose_connection_breaks_meanwhile_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = Decoding(monkeypatch)
    with ScriptedCluster(orders=1, late=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        decoding.allowed.clear()
        decoded = decoding.calls
        late = producer.send("late", b"1")
        until(lambda: decoding.calls > decoded, "the decoding")
        for connection in cluster.nodes[1].connections:
            connection.close()
        producer.send("orders", b"2").get(WAIT_S)
        decoding.allowed.set()
        assert late.get(WAIT_S).offset == 0


class Sliced:
    """A producer that has sent a record to each of some topics, and takes a slice for each part of a metadata
    response."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topics: int, at_once: int = 1) -> None:
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(network_client, "AT_ONCE", at_once)
        monkeypatch.setattr(network_client, "SLICE_MS", -math.inf)
        self.topics = [f"t{number}" for number in range(topics)]
        self.cluster = ScriptedCluster(2)
        #: When the client took each part of what has come since the leaders moved, and how many it moved.
        self.parts: list[tuple[float, int]] = []

    @contextmanager
    def run(self) -> Iterator[KafkaProducer]:
        with self.cluster as cluster, producing(cluster) as producer:
            for name in self.topics:
                cluster.create_topic(name, 2)
            for name in self.topics:
                producer.send(name, b"1", partition=0).get(WAIT_S)
            yield producer

    def move_leaders(self, producer: KafkaProducer) -> None:
        """Moves all leaders, and sends another record to each topic."""
        client = producer._runtime.client
        take_change = client._take_change

        def noted(change: MetadataChange, *rest: Any) -> None:
            self.parts.append((time.monotonic(), len(change.leaders_moved)))
            take_change(change, *rest)

        self.monkeypatch.setattr(client, "_take_change", noted)
        for name in self.topics:
            self.cluster.move_leader(name, 0, 2)
        # The first broker does not lead any more, so a full update follows.
        futures = [producer.send(name, b"2", partition=0) for name in self.topics]
        assert [future.get(WAIT_S).offset for future in futures] == [1] * len(self.topics)


def test_records_are_sent_between_the_slices_of_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice ends after one topic, and the test's broker answers Produce requests in between."""
    sliced = Sliced(monkeypatch, 50)
    with sliced.run() as producer:
        sliced.move_leaders(producer)
        assert len(sliced.parts) >= 50
        assert max(moved for _, moved in sliced.parts) == 1


def test_other_threads_have_the_gil_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    pause_ms = 20
    monkeypatch.setattr(network_client, "PAUSE_MS", pause_ms)
    sliced = Sliced(monkeypatch, 10)
    with sliced.run() as producer:
        sliced.move_leaders(producer)
    # Ten or more parts of one response; more than one of them may be empty.
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(sliced.parts)]
    assert len([gap for gap in gaps if gap >= pause_ms / 1000]) >= 9, gaps


def test_replaced_views_of_topics_are_freed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = 4
    sliced = Sliced(monkeypatch, 20, at_once)
    with sliced.run() as producer:
        client = producer._runtime.client
        metadata = client._metadata
        until(lambda: not metadata.replaced, "freed views of the first responses")
        lengths: list[int] = []
        continue_intake = client._continue_intake

        def noted(now_ms: float) -> float:
            lengths.append(len(metadata.replaced))
            wait_ms = continue_intake(now_ms)
            # The last call may be the only one after all of it was freed.
            lengths.append(len(metadata.replaced))
            return wait_ms

        monkeypatch.setattr(client, "_continue_intake", noted)
        sliced.move_leaders(producer)
        until(lambda: not metadata.replaced, "freed views")
    assert max(lengths) > at_once
    assert max(before - after for before, after in itertools.pairwise(lengths)) <= at_once
