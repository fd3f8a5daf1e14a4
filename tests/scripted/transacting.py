"""Transactional producers for tests, and what they have asked a ``ScriptedCluster`` for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.clients.transaction_client import TransactionClient
from cyproducer.control.transaction_calls import State
from cyproducer.producer import KafkaProducer
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import END_TXN, PRODUCE, Received, ScriptedCluster
from tests.scripted.scripted_transactions import EndTxn, FindCoordinator
from tools.harness.reference_records import Batch, Topic

GROUP = ConsumerGroupMetadata("g", 3, "m")
OFFSETS = {TopicPartition("in", 0): OffsetAndMetadata(5), TopicPartition("in", 1): OffsetAndMetadata(7)}


@contextmanager
def transacting(cluster: ScriptedCluster, **given: Any) -> Iterator[KafkaProducer]:
    """Yields a producer that has taken the transactional id "tx" over."""
    with producing(cluster, transactional_id="tx", **given) as producer:
        producer.init_transactions(WAIT_S)
        yield producer


@contextmanager
def begun(cluster: ScriptedCluster, **given: Any) -> Iterator[KafkaProducer]:
    """Yields such a producer in a transaction."""
    with transacting(cluster, **given) as producer:
        producer.begin_transaction()
        yield producer


@contextmanager
def written(cluster: ScriptedCluster, value: bytes = b"v", **given: Any) -> Iterator[KafkaProducer]:
    """Yields such a producer in a transaction whose first record is acknowledged, by partition 0."""
    with begun(cluster, **given) as producer:
        producer.send("t", value, partition=0).get(WAIT_S)
        yield producer


def client_of(producer: KafkaProducer) -> TransactionClient:
    client = producer._runtime.client.transaction_client
    assert client is not None
    return client


def state_of(producer: KafkaProducer) -> State:
    return client_of(producer).machine.state


def name_of(received: Received) -> str | None:
    """What a request is, as a trace says it; None for handshakes and metadata."""
    if received.api_key == PRODUCE:
        return "Produce"
    match received.transaction:
        case None:
            return None
        case EndTxn(committed=committed):
            return "commit" if committed else "abort"
        case FindCoordinator(key_type=key_type):
            return "find id" if key_type == 1 else "find group"
    return type(received.transaction).__name__


def trace(cluster: ScriptedCluster, *without: str) -> list[str]:
    """The requests in the order in which they came, by name; without look-ups, and questions for markers."""
    with cluster.changed:
        names = [name_of(received) for received in cluster.requests]
    hidden = {None, "find id", "find group", "DescribeTransactions", *without}
    return [name for name in names if name is not None and name not in hidden]


def sent(cluster: ScriptedCluster, name: str) -> list[Received]:
    """The requests of this name, in order."""
    with cluster.changed:
        return [received for received in cluster.requests if name_of(received) == name]


def ended(cluster: ScriptedCluster) -> list[bool]:
    """For each EndTxn whether it commits."""
    asked = [received.transaction for received in cluster.received(END_TXN)]
    return [each.committed for each in asked if isinstance(each, EndTxn)]


def batches(cluster: ScriptedCluster, topic: str = "t", partition: int | None = None) -> list[Batch]:
    """The batches of a topic that were sent, in order, whatever their answers were."""
    return [
        batch
        for received in cluster.received(PRODUCE)
        for (key, index), batch in received.batches.items()
        if topic_of(cluster, key) == topic and partition in (None, index)
    ]


def topic_of(cluster: ScriptedCluster, key: Topic) -> str:
    """The name of a topic in a Produce request, which may have its id."""
    names: dict[Topic, str] = {model.id: name for name, model in cluster.topics.items()}
    return names.get(key, str(key))


def after_a_step(producer: KafkaProducer) -> None:
    """Returns once the producer's control plane has done all that was due when this was called.

    It answers a call that is refused in every state, in a step of its own.
    """
    with pytest.raises(errors.KafkaError):
        producer.init_transactions(WAIT_S)
