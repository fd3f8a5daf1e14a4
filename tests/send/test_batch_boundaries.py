"""Calls that meet a batch of an earlier call: they join it, or close it."""

import random
from contextlib import suppress

import pytest

from cyproducer.futures.delivery import RecordFuture
from cyproducer.send.send_path import WouldBlock
from tools.harness.rig import Rig


def test_rows_that_join_an_earlier_batch_raise_its_max_timestamp() -> None:
    """Brokers look up offsets by time, and delete old segments, by the batch's max timestamp."""
    with Rig({"t": [1]}, linger_ms=100) as rig:
        rig.path.send_many("t", [b"a"], partition=0)
        rig.clock.advance_ms(50)
        rig.path.send_many("t", [b"b", b"c"], partition=0)
        rig.advance_ms(100)
        (request,) = rig.requests()
        (batch,) = request.batches.values()
        first, *joined = [record.timestamp for record in batch.records]
        assert joined == [first + 50] * 2
        assert batch.base_timestamp == first
        assert batch.max_timestamp == first + 50


@pytest.mark.parametrize("size", [100, 300, 700, 1500])
def test_a_batch_that_is_closed_for_lack_of_memory_is_compressed_and_sent(size: int) -> None:
    """Also where the call does not wait for the memory, as in ``send_async()``."""
    chosen = random.Random(size)
    with Rig({"t": [1]}, buffer_memory=8192, batch_size=4096, compressor="gzip") as rig:
        for _ in range(3):
            futures: list[RecordFuture] = []
            with suppress(WouldBlock):
                while len(futures) < 200:
                    value = chosen.randbytes(size)
                    futures.append(rig.path._send_at_once("t", value, None, None, 0, None, None))
            rig.answer_all()
            assert 0 < len(futures) < 200
            assert all(future.succeeded() for future in futures)
            assert rig.pool.used_bytes == 0
