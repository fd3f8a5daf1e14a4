"""Topics whose linger, acks or codec differ from the producer's: ``topic_options``."""

from collections.abc import Mapping
from typing import Any

import pytest

from cyproducer.accumulator.splitting import topic_estimates
from cyproducer.records.compression import compressor_for
from tests.scripted.compressors import ScriptedCompressor
from tests.scripted.sender_steps import NotingSelector
from tools.harness.rig import Rig

TEXT = b"the same words again and again " * 20

Settings = Mapping[str, tuple[float, int, Any]]


def rigged(settings: Settings, **options: Any) -> Rig:
    return Rig({"plain": [1, 1, 1], "other": [1, 1, 1], "third": [1, 1, 1]}, settings=settings, **options)


def values(rig: Rig) -> list[bytes | None]:
    return [value for seen in rig.requests() for value in seen.values()]


# linger_ms


@pytest.mark.parametrize(("usual", "other"), [(50, 20), (20, 50)])
def test_each_topic_has_its_own_linger(usual: int, other: int) -> None:
    ends = sorted([(usual, b"plain"), (other, b"other")])
    with rigged({"other": (other, -1, None)}, linger_ms=usual) as rig:
        rig.send("plain", b"plain")
        rig.send("other", b"other")
        passed = 0
        for end, value in ends:
            rig.clock.advance_ms(end - passed - 1)
            assert values(rig) == []
            rig.clock.advance_ms(1)
            passed = end
            assert values(rig) == [value]


def test_a_topic_without_linger_is_sent_at_once() -> None:
    with rigged({"other": (0, -1, None)}, linger_ms=50) as rig:
        rig.send("plain", b"plain")
        rig.send("other", b"other")
        (seen,) = rig.requests()
        assert seen.values() == [b"other"]
        # It gathers, as with linger_ms=0 for all topics.
        rig.send("other", b"1")
        rig.send("other", b"2")
        assert rig.requests() == []
        rig.answer(seen)
        assert values(rig) == [b"1", b"2"]


def test_a_topic_lingers_although_the_producer_does_not() -> None:
    with rigged({"other": (50, -1, None)}) as rig:
        rig.send("other", b"other")
        rig.send("plain", b"plain")
        (seen,) = rig.requests()
        assert seen.values() == [b"plain"]
        rig.answer(seen)
        assert rig.requests() == []
        rig.clock.advance_ms(50)
        assert values(rig) == [b"other"]


def test_the_last_quarter_of_a_linger_is_of_the_topics_own() -> None:
    with rigged({"other": (40, -1, None)}, linger_ms=1000) as rig:
        rig.send("plain", b"plain")
        rig.send("other", b"0", partition=0)
        rig.clock.advance_ms(5)
        rig.send("other", b"1", partition=1)
        rig.clock.advance_ms(10)
        rig.send("other", b"2", partition=2)
        rig.clock.advance_ms(25)
        # Partition 1 has 5 of its 40 ms left, partition 2 has 15.
        assert sorted(filter(None, values(rig))) == [b"0", b"1"]


def test_the_sender_sleeps_until_the_first_linger_ends() -> None:
    selector = NotingSelector()
    with rigged({"other": (20, -1, None)}, linger_ms=50, selector=selector) as rig:
        rig.control.delay_ms = 1e6
        rig.send("plain", b"plain")
        rig.step(max_wait_ms=1000)
        rig.send("other", b"other")
        rig.step(max_wait_ms=1000)
        assert selector.waits_ms[-1] == pytest.approx(20)


def test_flush_ends_the_linger_of_all_topics() -> None:
    settings: Settings = {"other": (1000, -1, None), "third": (0, -1, None)}
    with rigged(settings, linger_ms=500) as rig:
        for name in ("plain", "other", "third"):
            rig.send(name, name.encode())
        rig.accumulator.flush(0)
        assert sorted(filter(None, values(rig))) == [b"other", b"plain", b"third"]


# compression_type


def test_each_topic_has_its_own_codec() -> None:
    settings: Settings = {
        "other": (0, -1, compressor_for("zstd")),
        "third": (0, -1, None),
    }
    with rigged(settings, compressor="gzip") as rig:
        for name in ("plain", "other", "third"):
            rig.send(name, TEXT)
        seen = {name: batch for request in rig.requests() for (name, _), batch in request.batches.items()}
        assert {name: batch.codec for name, batch in seen.items()} == {"plain": 1, "other": 4, "third": 0}
        assert {record.value for batch in seen.values() for record in batch.records} == {TEXT}


def test_a_topic_is_compressed_although_the_producer_has_no_codec() -> None:
    with rigged({"other": (0, -1, compressor_for("lz4"))}, batch_size=2000) as rig:
        for name in ("plain", "other"):
            for _ in range(8):
                rig.send(name, TEXT, partition=0)
        codecs = {(place[0], batch.codec) for seen in rig.requests() for place, batch in seen.batches.items()}
        assert codecs == {("plain", 0), ("other", 3)}
        # With a codec, the first batches leave room for data that grows.
        ratio = {
            name: topic_estimates(rig.accumulator, name)["compression_ratio"] for name in ("plain", "other")
        }
        assert ratio["other"] < ratio["plain"] == 1.0


def test_a_codec_that_needs_the_gil_is_its_topics_alone() -> None:
    # Without C functions.
    with_gil = ScriptedCompressor(compressor_for("gzip").compress)
    with rigged({"other": (0, -1, with_gil)}, compressor="zstd") as rig:
        assert not rig.sender.may_stand_by()
        rig.send("plain", TEXT)
        rig.send("other", TEXT)
        found = {place[0]: batch.codec for seen in rig.requests() for place, batch in seen.batches.items()}
        assert found == {"plain": 4, "other": 1}


def test_a_split_batch_keeps_its_topics_codec() -> None:
    with rigged({"other": (0, -1, compressor_for("zstd"))}) as rig:
        for i in range(4):
            rig.send("other", TEXT + b"%d" % i, partition=0)
        (seen,) = rig.requests()
        rig.answer(seen, 10)
        parts = rig.requests()
        rig.clock.advance_ms(1000)
        parts += rig.requests()
        assert {batch.codec for part in parts for batch in part.batches.values()} == {4}


def test_the_compression_thread_takes_only_batches_that_are_compressed() -> None:
    settings: Settings = {"other": (60_000, -1, compressor_for("zstd"))}
    with rigged(settings, linger_ms=60_000, batch_size=1 << 20, compression_thread=True) as rig:
        rig.send("plain", TEXT * 100, partition=0)
        rig.accumulator.flush(0)
        # With the thread it would come after a wake-up, and not in this step.
        rig.step()
        rig._receive()
        assert [seen.places for seen in rig.pending] == [[("plain", 0)]]


# acks


def test_each_request_has_the_acks_of_its_topics() -> None:
    settings: Settings = {"other": (0, 0, None), "third": (0, 1, None)}
    with rigged(settings, linger_ms=50) as rig:
        futures = {}
        for partition in range(3):
            for name in ("plain", "other", "third"):
                futures[name, partition] = rig.send(name, b"v", partition=partition)
        rig.clock.advance_ms(50)
        seen = rig.requests()
        found = {request.request.acks: {name for name, _ in request.places} for request in seen}
        assert found == {-1: {"plain"}, 0: {"other"}, 1: {"third"}}
        assert sorted(len(request.places) for request in seen) == [3, 3, 3]
        # Without acks a record is done once it is written, and its offset is not known.
        assert {name for (name, _), future in futures.items() if future.is_done} == {"other"}
        assert futures["other", 0].get(0).offset == -1
        assert rig.sender.counters()["in_flight"] == 2
        for request in seen:
            if request.request.acks != 0:
                rig.answer(request)
        assert futures["plain", 2].get(0).offset == 0
        assert futures["third", 2].get(0).offset == 0
        assert rig.sender.counters()["in_flight"] == 0


def test_no_topic_waits_behind_those_with_other_acks() -> None:
    """Each request has the acks of the partition that has waited longest."""
    with rigged({"other": (0, 1, None)}, batch_size=0, max_in_flight=1, linger_ms=0) as rig:
        rig.send("plain", b"first")
        assert len(rig.requests()) == 1
        for i in range(3):
            rig.send("plain", b"%d" % i, partition=1)
            rig.send("other", b"%d" % i, partition=1)
        order = []
        while rig.pending:
            rig.answer(rig.pending[0])
            order += [request.request.acks for request in rig.requests()]
        assert order == [-1, 1] * 3


def test_a_response_that_nothing_awaits_is_skipped_if_a_topic_has_acks_0() -> None:
    # librdkafka's mock cluster answers Produce requests with acks=0 too.
    with rigged({"other": (0, 0, None)}) as rig:
        rig.send("other", b"v")
        (seen,) = rig.requests()
        rig.answer(seen)
        future = rig.send("plain", b"v")
        rig.answer_all()
        assert future.get(0).offset == 0
