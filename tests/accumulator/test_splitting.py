"""Batches that are too large for a topic: which records arrive, in which order, and what remains."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyproducer.accumulator.splitting import topic_estimates
from cyproducer.errors import MessageSizeTooLargeError
from cyproducer.records.compression import compressor_for
from tests.accumulator.small_topic import assert_nothing_left, fill, refuse_large, sent_size, serve
from tests.scripted.compressors import ScriptedCompressor
from tests.scripted.sender_steps import grant
from tools.harness.reference_records import Batch
from tools.harness.rig import Rig

TOO_LARGE, LIST_TOO_LARGE, TIMED_OUT = 10, 18, 7
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
NOW = 1_700_000_000_000


def rigged(codec: str | None = None, **options: Any) -> Rig:
    """A rig with a topic "t" of two partitions, which keep their order without sequences."""
    options = {"linger_ms": 1, "ordered": True, "batch_size": 1 << 20, **options}
    return Rig({"t": [1, 1]}, compressor=codec, **options)


# Arriving records

shapes = st.tuples(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=300) | st.sampled_from([b"x", bytes(3000), bytes(200_000)]),
    st.lists(st.tuples(st.sampled_from(["", "h", "trace"]), st.none() | st.binary(max_size=9)), max_size=3),
    st.integers(-(10**11), 10**11),
).filter(lambda record: record[:2] != (None, None))


@given(
    st.lists(shapes, min_size=1, max_size=60),
    st.sampled_from([120, 200, 500, 2000, 10_000, 250_000]),
    st.sampled_from(CODECS),
    st.sampled_from([400, 4000, 1 << 20]),
    st.integers(1, 5),
    st.sampled_from([TOO_LARGE, LIST_TOO_LARGE]),
)
@settings(max_examples=150)
@pytest.mark.slow
def test_records_that_fit_arrive_once_in_order_and_unchanged_and_only_the_others_fail(
    records: list[Any], limit: int, codec: str | None, batch_size: int, in_flight: int, code: int
) -> None:
    with rigged(codec, batch_size=batch_size, max_in_flight=in_flight) as rig:
        futures = [
            rig.send("t", value, key, headers=headers, partition=0, timestamp_ms=NOW + ago)
            for key, value, headers, ago in records
        ]
        rig.advance_ms(1)
        came = serve(rig, limit, code)
        arrived = [(r.key, r.value, list(r.headers), r.timestamp - NOW) for r in rig.log.get(("t", 0), [])]
        assert arrived == [record for record, f in zip(records, futures, strict=True) if f.succeeded()]
        assert [f.get(0).offset for f in futures if f.succeeded()] == list(range(len(arrived)))
        assert all(f.value.timestamp == NOW + r[3] for f, r in zip(futures, records, strict=True) if f.value)
        alone = [batch.records[0] for batch in came if len(batch.records) == 1 and sent_size(batch) > limit]
        failed = [record for record, f in zip(records, futures, strict=True) if f.failed()]
        assert failed == [(r.key, r.value, list(r.headers), r.timestamp - NOW) for r in alone]
        for batch in came:
            assert batch.max_timestamp == max(record.timestamp for record in batch.records)
        assert_nothing_left(rig)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("packs", [True, False])
def test_parts_are_compressed_like_the_batch(codec: str | None, packs: bool) -> None:
    values = (
        [b"%05d" % i + bytes(500) for i in range(400)] if packs else [os.urandom(30_000) for _ in range(4)]
    )
    with rigged(codec) as rig:
        futures = fill(rig, values)
        (whole,) = rig.requests()
        (before,) = whole.batches.values()
        refuse_large(rig, whole, 1000)
        came = serve(rig, sent_size(before) // 3)
        assert rig.values("t") == values
        assert [f.get(0).offset for f in futures] == list(range(len(values)))
        assert {batch.codec for batch in came} == {before.codec}
        assert (before.codec != 0) == (codec is not None and packs)
        assert_nothing_left(rig)


def test_parts_of_a_batch_that_could_not_be_compressed_may_be_compressed() -> None:
    """Each part is compressed again: the reason why compressing the batch failed may be gone."""
    failing = [MemoryError("none left")]

    def compress(data: memoryview) -> bytes:
        if failing:
            raise failing.pop()
        return compressor_for("zstd").compress(data)

    with Rig({"t": [1]}, linger_ms=1, compressor=ScriptedCompressor(compress, codec_id=4)) as rig:
        fill(rig, [bytes(100)] * 20)
        (whole,) = rig.requests()
        assert whole.batches["t", 0].codec == 0
        refuse_large(rig, whole, 1000)
        assert {batch.codec for batch in serve(rig, 1000)} == {4}
        assert rig.values("t") == [bytes(100)] * 20


def test_a_part_has_the_timestamps_of_its_own_records() -> None:
    """Even if all are older than the batch's first timestamp, or their new deltas take more bytes."""
    times = [NOW, NOW - 5, 3, 2, 4, 1]
    with rigged() as rig:
        for at in times:
            rig.send("t", b"v" * 100, partition=0, timestamp_ms=at)
        rig.advance_ms(1)
        (whole,) = rig.requests()
        assert (whole.batches["t", 0].base_timestamp, whole.batches["t", 0].max_timestamp) == (NOW, NOW)
        refuse_large(rig, whole, 500)
        parts = [seen.batches["t", 0] for seen in [*rig.requests()]]
        rig.answer_all()
        assert [(b.base_timestamp, b.max_timestamp) for b in parts] == [(NOW, NOW)]
        assert [record.timestamp for record in rig.log["t", 0]] == times


# Cutting


def test_a_batch_of_two_records_becomes_two_batches_of_one() -> None:
    with rigged() as rig:
        fill(rig, [b"a", b"b"])
        assert [len(batch.records) for batch in serve(rig, 70)] == [2, 1, 1]
        assert rig.values("t") == [b"a", b"b"]
        assert rig.accumulator.counters()["batches_split"] == 1


@pytest.mark.parametrize("place", [0, 7, 19])
def test_a_large_record_is_separated_from_small_ones_in_few_requests(place: int) -> None:
    values = [b"%d" % i for i in range(20)]
    values[place] = bytes(300_000)
    with rigged() as rig:
        futures = fill(rig, values)
        came = serve(rig, 100_000)
        assert [f.failed() for f in futures] == [i == place for i in range(20)]
        assert isinstance(futures[place].exception, MessageSizeTooLargeError)
        assert rig.values("t") == [value for i, value in enumerate(values) if i != place]
        assert len(came) <= 5
        assert_nothing_left(rig)


def test_queued_batches_are_cut_into_as_many_parts_as_needed() -> None:
    """The first batches find the limit by halving; each of the others costs one refused request."""
    with rigged(batch_size=16_000) as rig:
        fill(rig, [b"%06d" % i + bytes(94) for i in range(3000)])
        waiting = rig.accumulator.incomplete_batches
        assert waiting > 15
        refused = [batch for batch in serve(rig, 1500) if sent_size(batch) > 1500]
        assert len(refused) < 16 + waiting
        assert rig.accumulator.counters()["batches_split"] == len(refused)
        assert [int((v or b"")[:6]) for v in rig.values("t")] == list(range(3000))


def test_the_next_batches_of_only_this_topic_are_smaller() -> None:
    with rigged(batch_size=16_000) as rig:
        rig.sender.apply_topic("other", b"", [1])
        assert topic_estimates(rig.accumulator, "t") == {"compression_ratio": 1.0, "batch_limit": 16_000}
        fill(rig, [bytes(100)] * 140)
        whole = sent_size(rig.requests()[0].batches["t", 0])
        refuse_large(rig, rig.pending[0], 5000)
        assert topic_estimates(rig.accumulator, "t") == {
            "compression_ratio": 1.0,
            "batch_limit": (whole + 1) // 2,
        }
        serve(rig, 5000)
        limit = topic_estimates(rig.accumulator, "t")["batch_limit"]
        assert whole // 4 - 200 < limit <= whole // 4 + 200
        for partition in (0, 1):
            for _ in range(300):
                rig.send("t", bytes(100), partition=partition)
        for _ in range(300):
            rig.send("other", bytes(100))
        rig.advance_ms(1)
        sizes: dict[str, int] = {"t": 0, "other": 0}
        while requests := rig.requests():
            for seen in requests:
                for (topic, _), batch in seen.batches.items():
                    sizes[topic] = max(sizes[topic], sent_size(batch))
                assert not refuse_large(rig, seen, 1 << 20)
        assert limit - 200 < sizes["t"] <= limit
        assert 15_800 < sizes["other"] <= 16_000
        assert topic_estimates(rig.accumulator, "t")["batch_limit"] == limit


# Order


def test_a_retried_first_part_is_sent_before_the_queued_second_one() -> None:
    with rigged() as rig:
        fill(rig, [bytes([i]) * 100 for i in range(4)])
        refuse_large(rig, rig.requests()[0], 300)
        rig.answer(rig.requests()[0], error=TIMED_OUT)
        rig.advance_ms(100)
        rig.answer_all()
        assert rig.values("t") == [bytes([i]) * 100 for i in range(4)]


def half_written(rig: Rig, values: list[bytes]) -> Batch:
    """Splits a batch in two, and cuts the connection when the broker has read only the first part.

    Returns the first part as it was sent.
    """
    grant(rig)
    fill(rig, [b"zeroth"])
    rig.answer(rig.requests()[0])
    fill(rig, values)
    refuse_large(rig, rig.requests()[0], 1000)
    rig.step()
    rig.step()
    rig._receive()
    (first,) = rig.pending
    rig.cut(1)
    while rig.peers:
        rig.step()
    return first.batches["t", 0]


def test_an_unwritten_part_is_queued_behind_the_written_one() -> None:
    """A closing connection returns its unwritten requests first."""
    values = [b"first", *[b"second" * 120_000] * 2]
    with rigged(idempotent=True) as rig:
        half_written(rig, values)
        rig.advance_ms(200)
        rig.answer_all()
        assert rig.values("t") == [b"zeroth", *values]


def test_a_part_that_may_be_in_the_log_keeps_its_sequence_when_the_next_is_certainly_absent() -> None:
    with rigged(idempotent=True) as rig:
        before = half_written(rig, [b"first", b"second" * 120_000])
        rig.advance_ms(200)
        rig.requests()
        first, second = rig.pending
        assert second.batches["t", 0].base_sequence == before.base_sequence + 1
        rig.answer(first, error=TIMED_OUT)
        rig.answer(second, error=29)
        rig.advance_ms(200)
        (again,) = rig.requests()
        batch = again.batches["t", 0]
        assert (batch.producer_epoch, batch.base_sequence) == (before.producer_epoch, before.base_sequence)
        rig.answer_all()
        assert rig.values("t") == [b"zeroth", b"first"]


def test_a_split_batch_is_no_longer_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    unsettled: list[int] = []
    with rigged(idempotent=True) as rig:
        progress = rig.fates.progress

        def watched(place: Any, on_wire: int, left: int, *facts: Any) -> Any:
            unsettled.append(left)
            return progress(place, on_wire, left, *facts)

        monkeypatch.setattr(rig.fates, "progress", watched)
        rig.sender.set_identity(7, 0)
        fill(rig, [b"a", b"b"])
        refuse_large(rig, rig.requests()[0], 70)
        assert set(unsettled) == {0}


def test_parts_have_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane uses them to name the first batch whose sequences are removed."""
    numbers: list[int] = []
    with rigged(batch_size=1000) as rig:
        decide = rig.fates.decide

        def watched(batch: Any, *facts: Any) -> Any:
            numbers.append(batch.id)
            return decide(batch, *facts)

        monkeypatch.setattr(rig.fates, "decide", watched)
        fill(rig, [b"%d" % (i % 10) * 100 for i in range(16)])
        failing: set[bytes | None] = set()
        while requests := rig.requests():
            (seen,) = requests
            if len(seen.values()) > 1 or seen.values()[0] in failing:
                refuse_large(rig, seen, 0)
            else:
                failing.add(seen.values()[0])
                rig.answer(seen, error=29)
        assert sorted(set(numbers)) == list(range(16))


def test_younger_batches_do_not_overtake_and_other_partitions_do_not_wait() -> None:
    with rigged(batch_size=1000) as rig:
        values = [b"%04d" % i + bytes(96) for i in range(40)]
        for value in values:
            rig.send("t", value, partition=0)
        other = rig.send("t", b"other", partition=1)
        rig.advance_ms(1)
        (seen,) = rig.requests()
        assert refuse_large(rig, seen, 500) == {("t", 0): TOO_LARGE}
        assert other.succeeded()
        second = rig.send("t", b"second", partition=1)
        rig.advance_ms(1)
        while not second.is_done:
            refuse_large(rig, rig.requests()[0], 500)
        assert len(rig.log["t", 0]) < 8
        serve(rig, 500)
        assert rig.values("t") == values
