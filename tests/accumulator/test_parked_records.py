"""Records whose topic has no metadata yet: they are parked in order, move to their partitions, or expire."""

import contextlib
import math
import threading
from typing import Any

import pytest

from cyproducer.errors import (
    BufferExhaustedError,
    KafkaTimeoutError,
    ProducerClosedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from cyproducer.records.compression import compressor_for
from tests.scripted.compressors import ScriptedCompressor
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S, Running, until, until_blocked


def test_missing_metadata_is_requested_and_records_are_parked() -> None:
    asked: list[str] = []
    with Rig() as rig:
        rig.accumulator.on_topic_needed = asked.append
        futures = [rig.send(topic, b"v") for topic in ("a", "b", "a")]
        assert rig.requests() == []
        assert rig.accumulator.parked_records == 3
        assert sorted(rig.sender.parked_topics()) == ["a", "b"]
        assert set(asked) == {"a", "b"}
        assert rig.pool.used_bytes > 0
        rig.sender.apply_topic("a", b"", [1])
        rig.answer_all()
        assert [f.is_done for f in futures] == [True, False, True]
        assert (rig.accumulator.parked_records, rig.sender.parked_topics()) == (1, ["b"])


def test_parked_records_keep_all_their_fields() -> None:
    with Rig() as rig:
        future = rig.send("t", b"v", b"k", headers=[("h", b"1"), ("h", None)], timestamp_ms=7)
        tombstone = rig.send("t", None, b"k", timestamp_ms=8)
        rig.sender.apply_topic("t", b"", [1])
        rig.answer_all()
        first, second = rig.log["t", 0]
        assert (first.key, first.value, first.timestamp) == (b"k", b"v", 7)
        assert first.headers == (("h", b"1"), ("h", None))
        assert (second.key, second.value, second.timestamp) == (b"k", None, 8)
        assert future.get(0)[3:] == (0, 7, None, 1, 1, 3)
        assert tombstone.get(0)[3:] == (1, 8, None, 1, -1, -1)


def test_parked_records_have_the_timestamp_of_their_send() -> None:
    with Rig() as rig:
        rig.clock.set_unix_ms(1_000_000)
        future = rig.send("t", b"v")
        rig.clock.set_unix_ms(1_005_000)
        rig.sender.apply_topic("t", b"", [1])
        rig.answer_all()
        assert [record.timestamp for record in rig.log["t", 0]] == [1_000_000]
        assert future.get(0).timestamp == 1_000_000


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_records_keep_their_order_across_the_arrival_of_metadata(codec: str | None) -> None:
    with Rig(batch_size=200, compressor=codec) as rig:
        for i in range(200):
            if i == 100:
                rig.sender.apply_topic("t", b"", [1, 1, 1])
            rig.send("t", b"%d" % i, partition=i % 3)
        rig.answer_all()
        for partition in range(3):
            assert rig.values("t", partition) == [b"%d" % i for i in range(partition, 200, 3)]


def test_a_record_sent_while_parked_ones_are_moved_comes_behind_them() -> None:
    """The hundredth parked record fills a batch, whose compressor sends another record to the topic."""
    sent: list[Any] = []

    def compress(data: memoryview) -> bytes:
        if not sent:
            sent.append(rig.send("t", b"100"))
        return bytes(compressor_for("gzip").compress(data))

    with Rig(batch_size=200, compressor=ScriptedCompressor(compress)) as rig:
        for i in range(100):
            rig.send("t", b"%d" % i)
        rig.sender.apply_topic("t", b"", [1])
        assert len(sent) == 1
        rig.answer_all()
        assert rig.values("t") == [b"%d" % i for i in range(101)]


def test_keys_and_partitions_of_parked_records_are_respected() -> None:
    with Rig({"known": [1] * 7}) as rig:
        keys = [b"key %d" % i for i in range(50)]
        for topic in ("known", "unknown"):
            for key in keys:
                rig.send(topic, b"v", key)
            rig.send(topic, b"mine", b"k", partition=5)
        rig.sender.apply_topic("unknown", b"", [1] * 7)
        rig.answer_all()
        for partition in range(7):
            known, unknown = rig.log["known", partition], rig.log["unknown", partition]
            assert [(r.key, r.value) for r in known] == [(r.key, r.value) for r in unknown]
        assert any(r.value == b"mine" for r in rig.log["unknown", 5])


def test_a_flush_waits_for_a_parked_record_until_it_has_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[bool, bool]] = []

    class Error(UnknownTopicOrPartitionError):
        # Created while the record is between its queue and its outcome.
        def __init__(self, *args: object) -> None:
            looks.append((rig.accumulator.flush(0), future.is_done))
            super().__init__(*args)

    monkeypatch.setattr("cyproducer.accumulator.parked_records.UnknownTopicOrPartitionError", Error)
    with Rig() as rig:
        future = rig.send("t", b"v", partition=3)
        rig.sender.apply_topic("t", b"", [1])
        assert looks == [(False, False)]
        assert isinstance(future.exception, Error)
        assert rig.accumulator.flush(0)


def test_a_missing_partition_fails_only_its_record() -> None:
    with Rig() as rig:
        futures = [rig.send("t", b"v", partition=partition) for partition in (0, 3, 1)]
        rig.sender.apply_topic("t", b"", [1, 1])
        rig.answer_all()
        assert [f.succeeded() for f in futures] == [True, False, True]
        assert isinstance(futures[1].exception, UnknownTopicOrPartitionError)
        assert "'t' has no partition 3: it has 2, 0 to 1" in str(futures[1].exception)
        assert futures[1].exception.maybe_written is False
        assert rig.accumulator.counters()["records_failed"] == 1
        assert rig.pool.used_bytes == 0


def test_a_parked_record_expires_after_max_block_ms() -> None:
    with Rig(max_block_ms=1000) as rig:
        first = rig.send("t", b"1")
        rig.clock.advance_ms(600)
        second = rig.send("t", b"2")
        rig.advance_ms(399)
        assert not first.is_done
        rig.advance_ms(1)
        assert isinstance(first.exception, KafkaTimeoutError)
        assert not second.is_done
        rig.sender.apply_topic("t", b"", [1])
        rig.answer_all()
        assert (rig.values("t"), second.succeeded()) == ([b"2"], True)
        assert rig.accumulator.counters()["records_failed"] == 1


def test_a_final_metadata_error_fails_the_records_of_its_topic() -> None:
    with Rig() as rig:
        refused, other = rig.send("t", b"v"), rig.send("u", b"v")
        assert rig.sender.fail_parked("t", TopicAuthorizationFailedError("t")) == 1
        assert isinstance(refused.exception, TopicAuthorizationFailedError)
        assert not other.is_done
        assert rig.sender.fail_parked("t", TopicAuthorizationFailedError("t")) == 0


def test_a_forgotten_topic_is_requested_again() -> None:
    asked: list[str] = []
    with Rig({"t": [1, 1]}) as rig:
        rig.accumulator.on_topic_needed = asked.append
        rig.send("t", b"1", partition=1)
        rig.sender.forget_topic("t")
        rig.send("t", b"2", partition=1)
        assert asked == ["t"]
        rig.sender.apply_topic("t", b"", [1, 1])
        rig.answer_all()
        assert rig.values("t", 1) == [b"1", b"2"]


def test_added_partitions_are_used() -> None:
    with Rig({"t": [1]}) as rig:
        with pytest.raises(UnknownTopicOrPartitionError):
            rig.send("t", b"v", partition=2)
        rig.sender.apply_topic("t", b"", [1, 1, 1])
        rig.send("t", b"v", partition=2)
        rig.answer_all()
        assert rig.values("t", 2) == [b"v"]


def test_records_parked_by_many_threads_are_all_delivered_in_each_threads_order() -> None:
    with Rig(batch_size=500) as rig:
        barrier = threading.Barrier(5)

        def work(name: int) -> None:
            barrier.wait()
            for i in range(300):
                rig.send("t", b"%d:%d" % (name, i), partition=name % 2)

        workers = [Running(work, name) for name in range(4)]
        barrier.wait()
        rig.sender.apply_topic("t", b"", [1, 2])
        for worker in workers:
            worker.outcome()
        rig.answer_all()
        for name in range(4):
            mine = [v for v in rig.values("t", name % 2) if v is not None and v.startswith(b"%d:" % name)]
            assert mine == [b"%d:%d" % (name, i) for i in range(300)]
        assert rig.pool.used_bytes == 0


def test_parked_records_and_cached_buffers_stay_below_the_total_together() -> None:
    with Rig({"t": [1]}, buffer_memory=64 * 1024, batch_size=512) as rig:
        for _ in range(120):
            rig.send("t", bytes(400))
        rig.answer_all()
        assert rig.pool.cached_bytes > 50_000
        for number in range(12):
            rig.send(f"unknown-{number % 2}", bytes(1000))
        assert rig.pool.used_bytes > 12_000
        assert rig.pool.used_bytes + rig.pool.cached_bytes <= rig.pool.total_bytes


def test_memory_of_parked_records_goes_to_waiting_threads() -> None:
    with Rig({"t": [1]}, buffer_memory=16 * 1024) as rig:
        rig.send("unknown", bytes(6000))
        lease = rig.pool.acquire(8 * 1024)
        assert lease is not None
        sending = Running(rig.send, "t", bytes(3000))
        until(lambda: rig.pool.waiting_threads == 1, "the wait for memory")
        rig.sender.fail_parked("unknown", TopicAuthorizationFailedError("unknown"))
        future = sending.outcome()
        lease.release()
        rig.answer_all()
        assert future.succeeded()
        assert rig.pool.used_bytes == 0


def test_memory_beyond_the_total_is_not_kept() -> None:
    """Accepted records take the memory that they need to move to their partitions; it is freed afterwards."""
    with Rig(buffer_memory=16 * 1024, batch_size=600) as rig:
        rig.send("t", bytes(12_000))
        rig.sender.apply_topic("t", b"", [1])
        assert rig.pool.peak_bytes > rig.pool.total_bytes
        rig.answer_all()
        assert rig.pool.used_bytes == 0
        assert 0 < rig.pool.cached_bytes <= rig.pool.total_bytes


def test_parked_records_that_hold_all_memory_fill_batches() -> None:
    """Their batches take memory beyond the budget, since the records are already accounted for."""
    with Rig(buffer_memory=64 * 1024, batch_size=4096, max_block_ms=0) as rig:
        record = bytes(100)
        with contextlib.suppress(BufferExhaustedError):
            for _ in iter(int, 1):
                rig.send("t", record)
        sent = rig.accumulator.parked_records
        rig.sender.apply_topic("t", b"", [1])
        assert rig.accumulator.incomplete_batches == math.ceil(sent / (4096 // 110))
        # The memory of each parked record was released when the record was in its batch.
        assert rig.pool.used_bytes < rig.pool.total_bytes
        assert rig.pool.peak_bytes < rig.pool.total_bytes + 2 * 4096
        rig.answer_all()
        assert (len(rig.values("t")), rig.pool.used_bytes) == (sent, 0)


def test_callbacks_keep_the_records_order_when_the_batch_completes_while_they_run() -> None:
    """1. Three records are parked, with callbacks.
    2. They are moved.
    3. The first callback that is due runs.
    4. The batch completes.
    5. The other callbacks run: none may have run before the first record's.
    """
    called: list[int] = []
    with Rig() as rig:
        for i in range(3):
            rig.send("t", b"%d" % i).add_callback(lambda metadata: called.append(metadata.offset))
        rig.sender.apply_topic("t", b"", [1])
        rig.completions.run_next(0)
        rig.send("t", b"3").add_callback(lambda metadata: called.append(metadata.offset))
        rig.answer_all()
        rig.run_callbacks()
    assert called == [0, 1, 2, 3]


# Too many


KIB = 1024


class Flood(Running):
    """A thread that sends records to a topic. The constructor returns when the thread has to wait."""

    def __init__(self, rig: Rig, topic: str, records: int = 1000) -> None:
        self.futures: list[Any] = []
        super().__init__(self._run, rig, topic, records)
        until_blocked(self.thread)

    def _run(self, rig: Rig, topic: str, records: int) -> None:
        for number in range(records):
            self.futures.append(rig.send(topic, b"%04d" % number + bytes(996)))


def test_a_flood_of_a_missing_topic_leaves_memory_for_other_topics() -> None:
    with Rig({"good": [1]}, buffer_memory=64 * KIB) as rig:
        flood = Flood(rig, "missing")
        assert 5 * KIB < rig.pool.used_bytes <= 8 * KIB
        for _ in range(20):
            future = rig.send("good", b"v")
            rig.answer_all()
            assert future.succeeded()
        rig.accumulator.close()
        with pytest.raises(ProducerClosedError):
            flood.outcome()


def test_floods_of_many_missing_topics_take_a_quarter_of_memory_together() -> None:
    with Rig({"good": [1]}, buffer_memory=64 * KIB) as rig:
        floods = [Flood(rig, f"missing-{number}") for number in range(5)]
        assert 12 * KIB < rig.pool.used_bytes <= 16 * KIB
        # Each of the first two topics took half of the limit.
        assert [len(flood.futures) > 4 for flood in floods] == [True, True, False, False, False]
        rig.accumulator.close()
        for flood in floods:
            with pytest.raises(ProducerClosedError):
                flood.outcome()


def test_one_record_may_always_be_parked_however_large() -> None:
    with Rig(buffer_memory=64 * KIB) as rig:
        assert not rig.send("missing", bytes(20 * KIB)).is_done
        flood = Flood(rig, "another", 1)
        assert flood.futures == []
        rig.sender.fail_parked("missing", KafkaTimeoutError("no metadata"))
        flood.outcome()
        assert len(flood.futures) == 1


@pytest.mark.parametrize("way", ["metadata", "failure"])
def test_a_flood_continues_when_its_records_leave(way: str) -> None:
    with Rig(buffer_memory=64 * KIB) as rig:
        flood = Flood(rig, "t", 40)
        waited = len(flood.futures)
        failed = 0
        if way == "failure":
            # The flood continues meanwhile, and some of its new records may fail as well.
            failed = rig.sender.fail_parked("t", KafkaTimeoutError("no metadata"))
            assert failed >= waited
            until(lambda: len(flood.futures) > waited, "more records")
        rig.sender.apply_topic("t", b"", [1])
        while flood.running:
            rig.answer_all()
        rig.answer_all()
        flood.outcome()
        values = [value[:4] for value in rig.values("t") if value]
        assert values == [b"%04d" % number for number in range(failed, 40)]
        assert rig.pool.used_bytes == 0


def test_the_error_names_the_topic_that_has_no_metadata() -> None:
    with Rig(buffer_memory=64 * KIB, max_block_ms=30) as rig:
        flood = Flood(rig, "missing")
        with pytest.raises(BufferExhaustedError) as caught:
            flood.outcome()
        for part in ("no metadata of topic 'missing' within max_block_ms=30", "allowed: 16384"):
            assert part in str(caught.value)


def test_overdue_records_fail_in_deadline_order_with_one_error_per_topic() -> None:
    with Rig(max_block_ms=100) as rig:
        futures: dict[str, list[Any]] = {"a": [], "b": [], "c": []}
        for topic in "aabc":
            futures[topic].append(rig.send(topic, b"1"))
            rig.clock.advance_ms(10)
        asked: list[str] = []

        def error_of(topic: str) -> BaseException:
            asked.append(topic)
            return KafkaTimeoutError(f"none of {topic}")

        now_ms = rig.clock.monotonic_ns() / 1e6
        assert rig.sender.fail_overdue(error_of, now_ms) == []
        failed = rig.sender.fail_overdue(error_of, now_ms + 61)
        assert [(name, count) for name, count, _ in failed] == [("a", 1)]
        # The second record of topic a is older than those of the other topics.
        assert rig.sender.parked_topics() == ["a", "b", "c"]
        failed = rig.sender.fail_overdue(error_of, now_ms + 81)
        assert [(name, count) for name, count, _ in failed] == [("a", 1), ("b", 1)]
        assert asked == ["a", "a", "b"]
        assert rig.sender.parked_topics() == ["c"]
        assert "none of b" in str(futures["b"][0].exception)


@pytest.mark.parametrize("made", ["ab", "ba"])
def test_the_first_parked_record_of_several_topics_expires_first(made: str) -> None:
    """The control plane's own next call is far away: only the earliest deadline of all topics wakes it, no
    matter in which order the topics were created."""
    with Rig(max_block_ms=1000) as rig:
        rig.control.delay_ms = 1e6
        for topic in made:
            rig.sender.forget_topic(topic)
        futures = []
        for topic in "ab":
            futures.append(rig.send(topic, b"v"))
            rig.sender.request_control()
            rig.step()
            rig.advance_ms(300)
        rig.advance_ms(399)
        assert [f.is_done for f in futures] == [False, False]
        rig.advance_ms(1)
        assert [f.is_done for f in futures] == [True, False]
        rig.advance_ms(299)
        assert not futures[1].is_done
        rig.advance_ms(1)
        assert futures[1].failed()


def test_a_flush_waits_for_the_batch_that_a_parked_record_went_into() -> None:
    """That batch has a later number than the flush began with."""
    with Rig() as rig:
        future = rig.send("t", b"parked")
        flush = Running(lambda: (rig.accumulator.flush(PATIENCE_S), future.is_done))
        until(lambda: "t" in rig.sender.parked_topics(), "the parked record")
        flush.thread.join(0.1)
        assert flush.running
        rig.sender.apply_topic("t", b"", [1])
        (seen,) = rig.requests()
        # Placing it has woken the flush.
        flush.thread.join(0.1)
        assert flush.running
        rig.answer(seen)
        assert flush.outcome() == (True, True)
