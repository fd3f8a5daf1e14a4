"""A pool that is always full: batches keep their size, and memory stays within its limit."""

import random
from collections.abc import Callable
from statistics import fmean

import pytest

from tests.accumulator.small_topic import sent_size
from tests.scripted.compressors import ScriptedCompressor
from tools.harness.rig import Rig
from tools.harness.until import Running, until

KIB = 1024
BATCH_SIZE = 16 * KIB
VALUES = [random.Random(seed).choices(b"abcdefghijklmnop", k=997) for seed in range(50)]
RECORDS = [bytes(value) for value in VALUES]


def send_each(rig: Rig, count: int) -> None:
    for number in range(count):
        rig.send("t", RECORDS[number % len(RECORDS)])


def send_many(rig: Rig, count: int) -> None:
    for _ in range(count // len(RECORDS)):
        rig.path.send_many("t", RECORDS)


def sizes_under_pressure(rig: Rig, send: Callable[[Rig, int], None], count: int) -> list[int]:
    """The sizes of all batches if the broker answers a request only when ``send`` waits for memory."""
    sizes: list[int] = []
    sending = Running(send, rig, count)
    while sending.running:
        until(lambda: rig.pool.waiting_threads or not sending.running, "a wait for memory")
        rig.requests()
        if rig.pending:
            seen = rig.pending[0]
            sizes += map(sent_size, seen.batches.values())
            rig.answer(seen)
    sending.outcome()
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("send", [send_each, send_many])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("codec", [None, "lz4", "gzip", "zstd", "snappy"])
def test_batches_stay_full_under_constant_memory_pressure(
    codec: str | None, partitions: int, send: Callable[[Rig, int], None]
) -> None:
    with Rig(
        {"t": [1] * partitions}, buffer_memory=64 * BATCH_SIZE, batch_size=BATCH_SIZE, compressor=codec
    ) as rig:
        sizes = sizes_under_pressure(rig, send, 8000)
        assert rig.pool.exhausted_total == 0
        quarter = len(sizes) // 4
        assert quarter >= 20
        assert fmean(sizes[-quarter:]) >= 0.95 * fmean(sizes[quarter : 2 * quarter])
        # With several partitions an open batch is sent early now and then, since a thread waits for memory.
        assert fmean(sizes[-quarter:]) >= (0.85 if partitions == 1 else 0.7) * BATCH_SIZE
        assert rig.pool.peak_bytes <= rig.pool.total_bytes


def test_a_batch_kept_small_by_memory_pressure_does_not_keep_the_next_ones_small() -> None:
    """1. Other users hold most of the memory, and a batch can't grow.
    2. They release it.
    3. The next batch starts with the size that the first one would have grown to.
    """
    with Rig({"t": [1]}, buffer_memory=512 * KIB, batch_size=128 * KIB, linger_ms=1e6) as rig:
        leases = [rig.pool.acquire(size * KIB) for size in (256, 128, 64, 32)]
        sending = Running(send_each, rig, 33)
        # 32 KiB are left, for 32 records.
        until(lambda: rig.pool.waiting_threads == 1, "the wait for memory")
        assert rig.pool.available_bytes == 0
        for lease in leases:
            assert lease is not None
            lease.release()
        sending.outcome()
        assert rig.pool.used_bytes == 32 * KIB + 64 * KIB
        rig.answer_all()
        assert rig.values("t") == RECORDS[:32]


@pytest.mark.parametrize("partitions", [1, 40])
def test_no_batch_takes_more_than_a_quarter_of_memory(partitions: int) -> None:
    with Rig({"t": [1] * partitions}, buffer_memory=64 * KIB, batch_size=1 << 20) as rig:
        sizes = sizes_under_pressure(rig, lambda rig, count: spread(rig, count, partitions), 1000)
        assert 8 * KIB // partitions < max(sizes) <= 16 * KIB
        assert rig.pool.exhausted_total == 0


def spread(rig: Rig, count: int, partitions: int) -> None:
    for number in range(count):
        rig.send("t", RECORDS[number % len(RECORDS)], partition=number % partitions)


@pytest.mark.parametrize("path", [send_each, send_many])
def test_raw_batches_of_very_compressible_records_are_at_most_eight_times_batch_size(
    path: Callable[[Rig, int], None],
) -> None:
    sizes: list[int] = []

    def compress(data: memoryview) -> bytes:
        sizes.append(len(data))
        return b"tiny"

    measuring = ScriptedCompressor(compress)
    with Rig({"t": [1]}, compressor=measuring, batch_size=8 * KIB, linger_ms=1e6) as rig:
        # The estimate falls by 0.005 per batch: after two hundred batches it is at its minimum.
        path(rig, 15_000)
        assert 0.9 * 8 * 8 * KIB < max(sizes) <= 8 * 8 * KIB


def test_a_compressed_batch_holds_no_more_memory_than_it_needs() -> None:
    packing = ScriptedCompressor(lambda data: bytes(len(data) // 10))
    with Rig({"t": [1]}, compressor=packing, batch_size=32 * KIB, linger_ms=1e6) as rig:
        # One full batch, and the first record of the next one.
        while rig.accumulator.incomplete_batches < 2:
            rig.send("t", RECORDS[0], partition=0)
        # 32 KiB, compressed to 3.2 KiB, take a buffer of 4 KiB; the next batch starts with the last raw size.
        assert rig.pool.used_bytes == 4 * KIB + 32 * KIB
