"""Sends records to a topic for a while."""

from __future__ import annotations

import time

from cyproducer import KafkaProducer


def send_for(seconds: float, producer: KafkaProducer, topic: str, first_offset: int) -> int:
    """Sends records to the topic's only partition, waits for each, and checks its offset. Returns how many it
    has sent."""
    ends, offset = time.monotonic() + seconds, first_offset
    while time.monotonic() < ends:
        futures = [producer.send(topic, bytes(100)) for _ in range(500)]
        assert [future.get(30).offset for future in futures] == list(range(offset, offset + 500))
        offset += 500
    return offset - first_offset
