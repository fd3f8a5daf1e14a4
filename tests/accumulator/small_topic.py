"""Simulates a topic that accepts only small batches, with a rig."""

from typing import Any

from cyproducer.futures.delivery import RecordFuture
from tools.harness.reference_records import Batch
from tools.harness.rig import Place, Rig, Seen

TOO_LARGE = 10


def sent_size(batch: Batch) -> int:
    """The size of a batch on the wire in bytes, which a broker compares with max.message.bytes."""
    return 12 + batch.batch_length


def refuse_large(rig: Rig, seen: Seen, limit: int, code: int = TOO_LARGE) -> dict[Place, int]:
    """Answers a request like a broker that accepts ``limit`` bytes per batch; returns the refused batches."""
    refused = {place: code for place, batch in seen.batches.items() if sent_size(batch) > limit}
    rig.answer(seen, errors=refused)
    return refused


def serve(rig: Rig, limit: int, code: int = TOO_LARGE) -> list[Batch]:
    """Answers all requests in order until no more arrive; returns the batches that arrived."""
    came: list[Batch] = []
    while rig.requests() or rig.pending:
        for seen in list(rig.pending):
            came.extend(seen.batches.values())
            refuse_large(rig, seen, limit, code)
    return came


def fill(rig: Rig, values: list[bytes], **options: Any) -> list[RecordFuture]:
    """Sends values to partition 0 of topic "t" and advances the clock by the linger of 1 ms."""
    futures = [rig.send("t", value, partition=0, **options) for value in values]
    rig.advance_ms(1)
    return futures


def assert_nothing_left(rig: Rig) -> None:
    """Asserts that every batch is complete and all memory is released."""
    assert rig.accumulator.incomplete_batches == 0
    assert rig.pool.used_bytes == 0
