"""Interceptors for tests."""

import threading
from typing import Any

from cyproducer.producer import ProducerRecord
from cyproducer.structs import RecordMetadata
from tests.scripted.producing import WAIT_S


class Spy:
    """Notes what it is told; ``change`` makes a record of a record."""

    def __init__(self, change: Any = lambda record: record) -> None:
        self.change = change
        self.seen: list[ProducerRecord] = []
        self.outcomes: list[tuple[RecordMetadata, Exception | None]] = []
        self.acknowledged = threading.Semaphore(0)
        self.closed = 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.seen.append(record)
        changed: ProducerRecord = self.change(record)
        return changed

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.outcomes.append((metadata, error))
        self.acknowledged.release()

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self.acknowledged.acquire(timeout=WAIT_S)

    def close(self) -> None:
        self.closed += 1


class Rude:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("rude on_send")

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        raise RuntimeError("rude on_acknowledgement")

    def close(self) -> None:
        raise RuntimeError("rude close")
