"""The last epochs of a producer id, against a real Kafka: transactions go on with another producer id.

A record in the topic of transactions makes the coordinator believe that an id is near its last epoch: 32,767
transactions would take too long.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from cyproducer import errors
from tests.integration.transaction_rig import TransactionRig
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LAST = 32766
"""The last epoch that a producer may have."""
EMPTY = 0
"""The state without a transaction, in the log of the coordinator."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    properties = {"transaction.state.log.num.partitions": 1}
    with KafkaCluster(1, properties, directory=tmp_path_factory.mktemp("exhausted-kafka")) as cluster:
        yield cluster


def set_epoch(rig: TransactionRig, epoch: int) -> int:
    """Gives the test's id this epoch; returns its producer id. Written from Kafka's TransactionLogKey and
    TransactionLogValue, version 0."""
    found = rig.transactions.describe(rig.id())
    name = rig.id().encode()
    key = struct.pack(">hh", 0, len(name)) + name
    now_ms = int(time.time() * 1000)
    # Version, identity, timeout, state, no partitions, when it was updated, and no start.
    value = struct.pack(">hqhibiqq", 0, found.producer_id, epoch, 60_000, EMPTY, -1, now_ms, -1)
    # Brokers let only this client write to their own topics.
    writer = Producer({"bootstrap.servers": rig.cluster.bootstrap_servers, "client.id": "__admin_client"})
    writer.produce("__transaction_state", value, key, partition=0)
    assert writer.flush(30) == 0
    (node,) = rig.cluster.node_ids
    rig.cluster.kill(node)
    rig.cluster.restart(node)
    assert rig.transactions.describe(rig.id()).epoch == epoch
    return found.producer_id


def test_each_transaction_of_the_second_protocol_ends_an_epoch(cluster: KafkaCluster) -> None:
    with TransactionRig(cluster, "exhausted-2") as rig:
        rig.transactions.set_level(2)
        topic = rig.topic()
        rig.ready().close()
        old = set_epoch(rig, LAST - 4)
        with rig.ready() as producer:
            expected, identities = [], []
            for number in range(8):
                producer.begin_transaction()
                producer.send(topic, b"%d" % number, partition=0).get(30)
                state = rig.transactions.describe(rig.id())
                identities.append((state.producer_id - old, state.epoch))
                if number % 3 == 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    expected.append(b"%d" % number)
        new = identities[-1][0]
        assert new > 0
        assert identities == [
            *((0, epoch) for epoch in range(LAST - 3, LAST + 1)),
            *((new, epoch) for epoch in range(4)),
        ]
        assert rig.committed(topic, len(expected)) == [expected, []]


def test_each_lost_record_of_the_first_protocol_ends_an_epoch(cluster: KafkaCluster) -> None:
    with TransactionRig(cluster, "exhausted-1") as rig:
        rig.transactions.set_level(0)
        topic = rig.topic(configs={"max.message.bytes": "20000"})
        rig.ready().close()
        old = set_epoch(rig, LAST - 2)
        with rig.ready() as producer:
            expected, identities = [], []
            for number in range(4):
                producer.begin_transaction()
                producer.send(topic, b"lost %d" % number, partition=0)
                producer.send(topic, bytes(50_000), partition=1)
                with pytest.raises(errors.AbortableError):
                    producer.commit_transaction()
                producer.abort_transaction()
                with producer.transaction():
                    producer.send(topic, b"%d" % number, partition=0)
                expected.append(b"%d" % number)
                state = rig.transactions.describe(rig.id())
                identities.append((state.producer_id - old, state.epoch))
        new = identities[-1][0]
        assert new > 0
        assert identities == [(0, LAST), *((new, epoch) for epoch in range(3))]
        assert rig.committed(topic, len(expected)) == [expected, []]
