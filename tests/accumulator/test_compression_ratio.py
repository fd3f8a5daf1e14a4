"""The raw size limit of batches, which follows the topic's past compression ratio."""

import json
from typing import Any

import pytest

from cyproducer.accumulator.splitting import topic_estimates
from cyproducer.records.compression import compressor_for
from tests.accumulator.small_topic import assert_nothing_left, fill, refuse_large, sent_size, serve
from tests.scripted.compressors import ScriptedCompressor
from tools.harness.rig import Rig

HEADER = 61
BATCH_SIZE = 20_000
SLACK = 150
"""More bytes than one of the records here takes."""


class Packing:
    """Compresses each batch to a given ratio, and notes its raw size. The output is not readable."""

    codec_id = 4

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.sizes: list[int] = []

    def compress(self, data: memoryview) -> bytes:
        self.sizes.append(len(data))
        return bytes(round(len(data) * self.ratio))


def rigged(compressor: Any, **options: Any) -> Rig:
    return Rig({"t": [1]}, compressor=compressor, **{"batch_size": BATCH_SIZE, "linger_ms": 1, **options})


def estimate(rig: Rig) -> float:
    return float(topic_estimates(rig.accumulator, "t")["compression_ratio"])


def close_batches(rig: Rig, packing: Packing, count: int) -> list[float]:
    """Fills batches until ``count`` more are compressed; returns the estimate after each."""
    found = []
    for _ in range(count):
        before = len(packing.sizes)
        while len(packing.sizes) == before:
            rig.send("t", bytes(90), partition=0)
        found.append(estimate(rig))
    return found


def test_the_estimate_starts_at_one() -> None:
    with rigged(Packing(0.5)) as rig:
        rig.send("t", b"x", partition=0)
        assert estimate(rig) == 1.0


def test_the_estimate_falls_by_at_most_five_thousandths_per_batch() -> None:
    packing = Packing(0.9)
    with rigged(packing) as rig:
        falling = close_batches(rig, packing, 24)
        assert falling[:19] == pytest.approx([1 - 0.005 * n for n in range(1, 20)], abs=1e-9)
        assert falling[20:] == pytest.approx([0.9] * 4, abs=1e-4)


def test_the_estimate_rises_by_at_most_five_hundredths_per_batch() -> None:
    packing = Packing(0.5)
    with rigged(packing) as rig:
        close_batches(rig, packing, 60)
        packing.ratio = 0.88
        assert close_batches(rig, packing, 5) == pytest.approx([0.75, 0.8, 0.85, 0.88, 0.88], abs=1e-4)


def test_an_incompressible_batch_counts_with_its_raw_size() -> None:
    packing = Packing(0.5)
    with rigged(packing) as rig:
        close_batches(rig, packing, 20)
        packing.ratio = 1.7
        assert close_batches(rig, packing, 3) == pytest.approx([0.95, 1.0, 1.0], abs=1e-9)


def test_each_topic_has_an_estimate_of_its_own() -> None:
    packing = Packing(0.5)
    with rigged(packing) as rig:
        rig.sender.apply_topic("other", b"", [1])
        rig.send("other", b"x", partition=0)
        close_batches(rig, packing, 10)
        assert topic_estimates(rig.accumulator, "other") == {
            "compression_ratio": 1.0,
            "batch_limit": BATCH_SIZE,
        }


@pytest.mark.parametrize("batches", [0, 1, 60])
def test_the_raw_limit_of_a_batch_aims_at_batch_size_with_a_margin_of_five_percent(
    batches: int,
) -> None:
    packing = Packing(0.4)
    with rigged(packing) as rig:
        estimates = [1.0, 1.0, *close_batches(rig, packing, batches)]
        close_batches(rig, packing, 1)
        # The last batch was created before the one ahead of it was compressed: with the estimate before that.
        allowed = BATCH_SIZE / (estimates[-2] * 1.05)
        assert allowed - SLACK < HEADER + packing.sizes[-1] <= allowed


@pytest.mark.slow
def test_raw_batches_grow_until_they_compress_to_batch_size_and_count_in_full() -> None:
    """With a real codec and text. The sent batches always stay below batch_size."""
    text = (json.dumps({"user": n * 7919 % 1000, "path": "/a/b", "status": 200}) for n in range(10**9))
    size = 5000
    sizes: list[int] = []
    with rigged(compressor_for("gzip", 1), ordered=True, batch_size=size) as rig:
        while len(sizes) < 190:
            rig.send("t", next(text).encode(), partition=0)
            if rig.accumulator.incomplete_batches > 3:
                for seen in rig.requests():
                    sizes.append(sent_size(seen.batches["t", 0]))
                    rig.answer(seen)
        ratio = estimate(rig)
        assert ratio < 0.25
        assert sizes[0] < 0.3 * size
        assert all(0.85 * size < one <= size for one in sizes[-10:])
        rig.answer_all()
        assert rig.pool.peak_bytes > 3 * size / ratio
        rig.advance_ms(1)
        rig.answer_all()
        assert_nothing_left(rig)


def test_a_split_resets_the_estimate_to_one() -> None:
    with rigged(compressor_for("gzip"), ordered=True) as rig:
        for _ in range(30):
            fill(rig, [bytes(90)] * 50)
            rig.answer_all()
        assert estimate(rig) == pytest.approx(0.85, abs=1e-9)
        fill(rig, [bytes(90)] * 50)
        refuse_large(rig, rig.requests()[0], 0)
        assert estimate(rig) == 1.0
        limit = topic_estimates(rig.accumulator, "t")["batch_limit"]
        assert 61 < limit < 200
        rig.answer_all()


def test_a_batch_larger_than_batch_size_does_not_raise_the_limit() -> None:
    """It compressed worse than expected. Its parts are no larger than the batch limit."""
    gzip = compressor_for("gzip")

    easy = True
    turning = ScriptedCompressor(lambda data: gzip.compress(data) if easy else bytes(len(data)))
    with rigged(turning, ordered=True) as rig:
        for _ in range(170):
            fill(rig, [bytes(90)] * 5)
            rig.answer_all()
        easy = False
        fill(rig, [bytes(90)] * 1000)
        whole = rig.requests()[0]
        assert sent_size(whole.batches["t", 0]) > 3 * BATCH_SIZE
        refuse_large(rig, whole, BATCH_SIZE + SLACK)
        assert topic_estimates(rig.accumulator, "t")["batch_limit"] == BATCH_SIZE
        assert estimate(rig) == 1.0
        came = serve(rig, BATCH_SIZE + SLACK)
        assert rig.accumulator.counters()["batches_split"] <= 1 + len(came) // 4
        assert len(rig.log["t", 0]) == 850 + 1000
