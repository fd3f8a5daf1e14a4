"""Reads a topic of an embedded broker back with another client."""

from collections import Counter

from confluent_kafka import Consumer, TopicPartition

from cyproducer.testing import EmbeddedBroker
from tests.scripted.producing import WAIT_S

PARTITIONS = 3


def read_back(broker: EmbeddedBroker, topic: str, count: int) -> Counter[bytes]:
    """Reads a topic of ``PARTITIONS``: waits for ``count`` records, and returns those and any beyond them."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found: Counter[bytes] = Counter()
        ended: set[int | None] = set()
        while len(ended) < PARTITIONS or found.total() < count:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"only {found.total()} of {count} records arrived: {sorted(found)}"
            if message.error() is None:
                value = message.value()
                assert isinstance(value, bytes)
                found[value] += 1
            else:
                ended.add(message.partition())
        return found
    finally:
        consumer.close()
