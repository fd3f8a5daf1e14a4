"""Sends records for a while, and checks that none is lost; from a thread while a test changes the cluster."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from cyproducer import KafkaProducer, errors
from tests.integration.consume import read_all
from tools.harness.kafka_cluster import KafkaCluster


def send_for(seconds: float, producer: KafkaProducer, topic: str, first_offset: int) -> int:
    """Sends records to the topic's only partition, waits for each, and checks its offset. Returns how many it
    has sent."""
    ends, offset = time.monotonic() + seconds, first_offset
    while time.monotonic() < ends:
        futures = [producer.send(topic, bytes(100)) for _ in range(500)]
        assert [future.get(30).offset for future in futures] == list(range(offset, offset + 500))
        offset += 500
    return offset - first_offset


class Traffic:
    """Sends numbered records to each partition of a topic in turn, within ``with``."""

    PAUSE_S = 0.002
    """A few hundred records per second: dense enough, without taking the brokers' CPU."""

    def __init__(self, producer: KafkaProducer, topic: str, partitions: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._send, name=f"traffic to {topic}")
        self._sent: list[tuple[bytes, int, Any]] = []
        self._refused: list[BaseException] = []

    def _send(self) -> None:
        for number in itertools.count():
            if self._end.wait(self.PAUSE_S):
                return
            value, partition = b"%d" % number, number % self._partitions
            try:
                future = self._producer.send(self._topic, value, partition=partition)
            except errors.KafkaError as error:
                self._refused.append(error)
            else:
                self._sent.append((value, partition, future))

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._end.set()
        self._thread.join()

    def pass_by(self, rounds: int = 3) -> None:
        """Waits until ``rounds`` more records per partition are sent and acknowledged."""
        first = len(self._sent)
        while len(self._sent) < first + rounds * self._partitions:
            assert self._thread.is_alive()
            assert self._refused == []
            self._end.wait(self.PAUSE_S)
        for _, _, future in self._sent[first : first + rounds * self._partitions]:
            future.get(60)

    def assert_nothing_lost(self, cluster: KafkaCluster) -> None:
        """Checks that every record was acknowledged, and is in the log at the acknowledged offset."""
        assert not self._thread.is_alive()
        assert self._refused == []
        told = [(value, future.get(60)) for value, _, future in self._sent]
        found = read_all(cluster.bootstrap_servers, self._topic, len(told))
        places = {(record.partition, record.offset): record.value for record in found}
        missing = [
            metadata for value, metadata in told if places.get((metadata.partition, metadata.offset)) != value
        ]
        assert missing == []
        assert [metadata.partition for _, metadata in told] == [partition for _, partition, _ in self._sent]
