"""A topic that takes small batches only, played over a rig."""

from typing import Any

from cyproducer.futures.delivery import RecordFuture
from tests.reference_records import Batch
from tests.rig import Place, Rig, Seen

TOO_LARGE = 10


def sent_size(batch: Batch) -> int:
    """Bytes of a batch as it went: what a broker compares with max.message.bytes."""
    return 12 + batch.batch_length


def refuse_large(rig: Rig, seen: Seen, limit: int, code: int = TOO_LARGE) -> dict[Place, int]:
    """Answers a request as a broker that takes ``limit`` bytes a batch; returns what was refused."""
    refused = {place: code for place, batch in seen.batches.items() if sent_size(batch) > limit}
    rig.answer(seen, errors=refused)
    return refused


def serve(rig: Rig, limit: int, code: int = TOO_LARGE) -> list[Batch]:
    """Answers until nothing comes any more, each request in its turn; returns the batches that came."""
    came: list[Batch] = []
    while rig.requests() or rig.pending:
        for seen in list(rig.pending):
            came.extend(seen.batches.values())
            refuse_large(rig, seen, limit, code)
    return came


def fill(rig: Rig, values: list[bytes], **options: Any) -> list[RecordFuture]:
    """Sends values to partition 0 of topic "t" and lets the linger of 1 ms pass."""
    futures = [rig.send("t", value, partition=0, **options) for value in values]
    rig.advance_ms(1)
    return futures


def assert_nothing_left(rig: Rig) -> None:
    """Every batch is complete, and its memory is back."""
    assert rig.accumulator.incomplete_batches == 0
    assert rig.pool.used_bytes == 0
