"""From the queue to the outcome: turns, order, retries, expiry, and close."""

import logging
import threading
from typing import Any

import pytest

from cyproducer.base.user_thread import user_thread
from cyproducer.errors import (
    DeliveryTimeoutError,
    KafkaConnectionError,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    ProducerClosedError,
)
from cyproducer.records.compression import compressor_for
from tests.scripted.compressors import ScriptedCompressor, SlowCompressor
from tools.harness.rig import HookResult, Rig
from tools.harness.until import PATIENCE_S

NOT_LEADER, NOT_AUTHORIZED, TIMED_OUT = 6, 29, 7


def numbered(values: list[bytes | None]) -> list[int]:
    return [int(value or b"-1") for value in values]


# Turns


@pytest.mark.parametrize("max_in_flight", [1, 5])
def test_a_quiet_partition_gets_its_turn_beside_a_busy_one(max_in_flight: int) -> None:
    """Each request with a batch of the busy partition also has the batch of the quiet one."""
    with Rig({"t": [1, 1]}, batch_size=200, max_in_flight=max_in_flight) as rig:
        for _ in range(max_in_flight):
            rig.send("t", bytes(150), partition=0)
            rig.requests()
        for _ in range(50):
            rig.send("t", bytes(150), partition=0)
        rig.send("t", b"lukewarm", partition=1)
        answered = 0
        while ("t", 1) not in rig.pending[-1].batches:
            assert answered <= max_in_flight, "the quiet partition's record waits behind the busy one's"
            rig.answer(rig.pending[0])
            rig.requests()
            answered += 1


def test_partitions_take_turns_if_a_request_has_no_room_for_all() -> None:
    with Rig({"t": [1] * 4}, batch_size=600, max_request_size=1400, max_in_flight=1) as rig:
        for i in range(40):
            rig.send("t", bytes(500), partition=i % 4)
        turns = []
        while rig.requests():
            turns.append([index for _, index in rig.pending[0].places])
            rig.answer(rig.pending[0])
        assert [len(turn) for turn in turns] == [2] * 20
        flat = [index for turn in turns for index in turn]
        for at in range(0, 40, 4):
            assert sorted(flat[at : at + 4]) == [0, 1, 2, 3]


def test_a_request_is_no_larger_than_max_request_size_but_has_at_least_one_batch() -> None:
    with Rig({"t": [1] * 10}, batch_size=4000, max_request_size=5000, linger_ms=1) as rig:
        for partition in range(10):
            rig.send("t", bytes(1000 if partition else 4900), partition=partition)
        rig.advance_ms(1)
        requests = rig.requests()
        sizes = [sum(12 + b.batch_length for b in seen.batches.values()) for seen in requests]
        assert max(sizes) <= 5000
        assert [len(seen.batches) for seen in requests] == [1, 4, 4, 1]


# Order


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_records_of_a_partition_arrive_in_the_order_of_send(codec: str | None) -> None:
    with Rig({"t": [1, 2, 1]}, batch_size=300, compressor=codec) as rig:
        for i in range(600):
            rig.send("t", b"%d" % i, partition=i % 3)
            if i % 7 == 0:
                rig.step()
        rig.answer_all()
        for partition in range(3):
            assert numbered(rig.values("t", partition)) == list(range(partition, 600, 3))


def test_a_retried_batch_is_sent_before_younger_ones() -> None:
    with Rig({"t": [1]}, batch_size=0, max_in_flight=1) as rig:
        for i in range(5):
            rig.send("t", b"%d" % i)
        (first,) = rig.requests()
        rig.answer(first, TIMED_OUT)
        assert rig.requests() == []
        rig.clock.advance_ms(99)
        assert rig.requests() == []
        rig.clock.advance_ms(1)
        rig.answer_all()
        assert numbered(rig.values("t")) == [0, 1, 2, 3, 4]
        assert rig.accumulator.counters()["records_retried"] == 1
        assert rig.fates.failures == [(("t", 0), TIMED_OUT, 1)]


def test_several_retried_batches_are_sent_in_order_before_younger_ones() -> None:
    with Rig({"t": [1]}, batch_size=0) as rig:
        for i in range(5):
            rig.send("t", b"%d" % i)
        # The last batch is open, and gathers more records while the others are in flight.
        assert len(rig.requests()) == 4
        rig.answer(rig.pending[0], NOT_LEADER)
        # The requests in flight end first: if 0 were sent now, it would arrive behind an accepted 1, 2 or 3.
        rig.clock.advance_ms(1000)
        assert [seen.values() for seen in rig.requests()] == []
        while rig.pending:
            rig.answer(rig.pending[0], NOT_LEADER)
        rig.sender.apply_topic("t", b"", [2])
        rig.clock.advance_ms(1000)
        rig.answer_all()
        assert numbered(rig.values("t")) == list(range(5))


def test_without_sequences_a_partition_has_one_batch_in_flight() -> None:
    """With two in flight, a failed first batch would be retried behind an accepted second one."""
    with Rig({"t": [1, 1]}, batch_size=0, ordered=True) as rig:
        for i in range(6):
            rig.send("t", b"%d" % i, partition=i % 2)
        sent = []
        while seen := rig.requests():
            assert all(len(places) == len(set(places)) for places in [[p for s in seen for p in s.places]])
            sent.append(sorted(p for s in seen for p in s.places))
            for request in seen:
                rig.answer(request)
        assert sent == [[("t", 0), ("t", 1)]] * 3


def test_other_partitions_are_sent_while_one_backs_off() -> None:
    with Rig({"t": [1, 1]}) as rig:
        for partition in (0, 1):
            rig.send("t", b"v", partition=partition)
        (seen,) = rig.requests()
        rig.answer(seen, errors={("t", 0): TIMED_OUT})
        rig.send("t", b"w", partition=0)
        rig.send("t", b"w", partition=1)
        (seen,) = rig.requests()
        assert seen.places == [("t", 1)]
        rig.clock.advance_ms(100)
        (retry,) = rig.requests()
        assert (retry.places, retry.values()) == ([("t", 0)], [b"v"])


def test_a_queue_moves_to_the_new_leader() -> None:
    with Rig({"t": [-1]}, batch_size=0) as rig:
        rig.send("t", b"0")
        assert rig.requests() == []
        rig.sender.apply_topic("t", b"", [1])
        (seen,) = rig.requests()
        rig.send("t", b"1")
        rig.sender.apply_topic("t", b"", [2])
        # Batches in flight to the old leader may fail, and are retried first then.
        assert rig.requests() == []
        rig.answer(seen)
        (moved,) = rig.requests()
        assert (seen.node, moved.node, moved.values()) == (1, 2, [b"1"])


# Failing


def test_a_broken_connection_requeues_every_batch() -> None:
    with Rig({"t": [1, 1]}, batch_size=0, max_in_flight=3) as rig:
        futures = [rig.send("t", b"%d" % i, partition=i % 2) for i in range(8)]
        rig.requests()
        rig.cut(1)
        ((node, cause),) = rig.control.broken
        assert node == 1
        assert isinstance(cause, KafkaConnectionError)
        assert not any(f.is_done for f in futures)
        rig.clock.advance_ms(100)
        rig.answer_all()
        assert all(f.succeeded() for f in futures)
        assert [numbered(rig.values("t", p)) for p in (0, 1)] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_final_error_fails_only_its_batch() -> None:
    with Rig({"t": [1, 1]}) as rig:
        futures = [rig.send("t", b"v", partition=partition) for partition in (0, 1)]
        (seen,) = rig.requests()
        rig.answer(seen, errors={("t", 1): NOT_AUTHORIZED})
        assert [f.succeeded() for f in futures] == [True, False]
        counters = rig.accumulator.counters()
        assert (counters["records_sent"], counters["records_failed"]) == (1, 1)
        assert rig.pool.used_bytes == 0


def test_retries_end_with_the_last_error() -> None:
    with Rig({"t": [1]}) as rig:
        rig.fates.retry.retries = 2
        future = rig.send("t", b"v")
        for _ in range(3):
            (seen,) = rig.requests()
            rig.answer(seen, NOT_LEADER)
            rig.clock.advance_ms(100)
        assert rig.requests() == []
        assert isinstance(future.exception, NotLeaderForPartitionError)
        assert [attempts for *_, attempts in rig.fates.failures] == [1, 2, 3]


def test_a_request_without_a_response_times_out() -> None:
    with Rig({"t": [1]}, request_timeout_ms=1000) as rig:
        rig.fates.retry.retries = 0
        future = rig.send("t", b"v")
        rig.requests()
        rig.clock.advance_ms(999)
        rig.requests()
        assert not future.is_done
        rig.clock.advance_ms(1)
        rig.requests()
        assert isinstance(future.exception, KafkaTimeoutError)
        assert "request_timeout_ms=1000" in str(future.exception)


@pytest.mark.parametrize("leader", [-1, 1])
def test_records_that_are_not_delivered_in_time_fail(leader: int) -> None:
    """Queued without a leader or a connection: they fail ``delivery_timeout_ms`` after ``send()``."""
    with Rig({"t": [leader]}, delivery_timeout_ms=1000, auto_connect=False) as rig:
        old = rig.send("t", b"v")
        rig.advance_ms(500)
        rig.accumulator.flush(0)  # closes nothing, makes all batches sendable
        young = rig.send("t", bytes(20_000))
        rig.advance_ms(499)
        assert not old.is_done
        rig.advance_ms(21)
        assert isinstance(old.exception, DeliveryTimeoutError)
        assert not young.is_done
        rig.advance_ms(500)
        assert isinstance(young.exception, DeliveryTimeoutError)
        assert (rig.pool.used_bytes, rig.accumulator.incomplete_batches) == (0, 0)


def test_younger_batches_are_sent_when_an_older_one_expires() -> None:
    with Rig({"t": [1]}, batch_size=0, delivery_timeout_ms=1000, auto_connect=False) as rig:
        old = rig.send("t", b"old")
        rig.clock.advance_ms(500)
        rig.send("t", b"young")
        rig.advance_ms(600)
        assert old.failed()
        rig.connect(1)
        rig.answer_all()
        assert rig.values("t") == [b"young"]


@pytest.mark.parametrize("end", ["acknowledged", "refused", "cut"])
def test_a_batch_in_flight_fails_at_its_deadline_and_keeps_its_memory_until_the_request_is_over(
    end: str,
) -> None:
    with Rig({"t": [1]}, delivery_timeout_ms=1000) as rig:
        future = rig.send("t", b"v")
        (seen,) = rig.requests()
        rig.advance_ms(999)
        assert not future.is_done
        rig.advance_ms(21)
        assert isinstance(future.exception, DeliveryTimeoutError)
        assert rig.accumulator.flush(0)
        assert rig.pool.used_bytes > 0
        if end == "cut":
            rig.cut(1)
        else:
            rig.answer(seen, error=0 if end == "acknowledged" else NOT_LEADER)
        assert rig.pool.used_bytes == 0
        assert isinstance(future.exception, DeliveryTimeoutError)
        counters = rig.accumulator.counters()
        assert (counters["records_sent"], counters["records_failed"]) == (0, 1)
        rig.clock.advance_ms(1000)
        assert rig.requests() == []


def test_an_expiring_batch_takes_no_more_records() -> None:
    """While the sender creates the error, another thread fills the partition's batch and compresses it: that
    must not be the batch that is failed and freed now."""
    slow = SlowCompressor()
    with Rig({"t": [-1]}, batch_size=1000, delivery_timeout_ms=1000, compressor=slow) as rig:
        old = rig.send("t", b"old")
        rig.advance_ms(1)
        later: list[Any] = []

        def fill() -> None:
            for _ in range(2):
                later.append(rig.send("t", bytes(800)))

        thread = threading.Thread(target=fill)

        def meanwhile() -> None:
            rig.fates.on_expire = None
            thread.start()
            assert slow.begun.wait(PATIENCE_S)

        rig.fates.on_expire = meanwhile
        rig.advance_ms(1000)
        assert isinstance(old.exception, DeliveryTimeoutError)
        assert (len(later), later[0].is_done) == (1, False)
        slow.go_on.set()
        thread.join()
        rig.sender.apply_topic("t", b"", [1])
        rig.answer_all()
        assert [f.get(0).offset for f in later] == [0, 1]
        assert rig.pool.used_bytes == 0


@pytest.mark.parametrize("batch_size", [1000, 100_000])
def test_a_failing_compressor_loses_no_record(batch_size: int, caplog: pytest.LogCaptureFixture) -> None:
    """The batch is sent uncompressed, whether ``send()`` filled it or the sender drained it."""

    def broken(data: memoryview) -> bytes:
        raise RuntimeError("no codec today")

    with Rig({"t": [1]}, batch_size=batch_size, compressor=ScriptedCompressor(broken)) as rig:
        with caplog.at_level(logging.ERROR, "cyproducer"):
            futures = [rig.send("t", bytes(300)) for _ in range(10)]
            rig.answer_all()
        assert [f.get(0).offset for f in futures] == list(range(10))
        assert user_thread.drain(PATIENCE_S)
        assert "compressing a batch" in caplog.text


def test_ctrl_c_while_compressing_loses_no_record() -> None:
    def interrupted(data: memoryview) -> bytes:
        raise KeyboardInterrupt

    with Rig({"t": [1]}, batch_size=1000, linger_ms=5, compressor=ScriptedCompressor(interrupted)) as rig:
        rig.send("t", b"1" * 500)
        rig.send("t", b"2" * 300)
        with pytest.raises(KeyboardInterrupt):
            rig.send("t", b"3" * 500)
        # The batch that was being compressed is sent uncompressed. So is the interrupted call's record.
        rig.accumulator.flush(0)
        (seen,) = rig.requests()[:1]
        assert seen.values() == [b"1" * 500, b"2" * 300]


# The end


def test_close_fails_unacknowledged_records_wherever_they_are() -> None:
    with Rig({"t": [1, -1]}, batch_size=0, max_in_flight=1) as rig:
        delivered = rig.send("t", b"v", partition=0)
        rig.answer_all()
        in_flight = rig.send("t", b"v", partition=0)
        rig.requests()
        queued = rig.send("t", b"v", partition=0)
        leaderless = rig.send("t", b"v", partition=1)
        parked = rig.send("unknown", b"v")
        rig.accumulator.close()
        rig.fates.hook = lambda *_: (None, ProducerClosedError("lost"))
        assert rig.sender.abort(ProducerClosedError("lost")) == 0
        assert delivered.succeeded()
        for future in (in_flight, queued, leaderless, parked):
            assert isinstance(future.exception, ProducerClosedError)
        assert rig.accumulator.counters()["records_failed"] == 4
        assert (rig.pool.used_bytes, rig.accumulator.parked_records, rig.peers) == (0, 0, {})


def test_the_buffer_that_a_compressor_returns_is_released() -> None:
    returned: list[bytearray] = []

    def compress(data: memoryview) -> bytearray:
        returned.append(bytearray(compressor_for("gzip").compress(data)))
        return returned[-1]

    with Rig({"t": [1]}, batch_size=500, compressor=ScriptedCompressor(compress)) as rig:
        for _ in range(20):
            rig.send("t", bytes(100))
        rig.answer_all()
        assert rig.values("t") == [bytes(100)] * 20
    assert len(returned) > 3
    for each in returned:
        # Raises BufferError while the buffer is still exported.
        each.clear()


def test_a_shorter_backoff_of_a_later_batch_does_not_end_that_of_an_earlier_one() -> None:
    """Both are batches of one partition, and the earlier one goes first."""
    waits_ms = iter([500.0, 100.0])

    def hook(topic: str, partition: int, attempts: int, error: Exception, now_ms: float) -> HookResult:
        return now_ms + next(waits_ms), None

    with Rig({"t": [1]}) as rig:
        rig.fates.hook = hook
        rig.send("t", b"1")
        (first,) = rig.requests()
        rig.send("t", b"2")
        # It would gather until the first is answered.
        rig.accumulator.flush(0)
        (second,) = rig.requests()
        rig.answer(first, error=7)
        rig.answer(second, error=7)
        rig.advance_ms(101)
        assert rig.requests() == []
        rig.advance_ms(398)
        assert rig.requests() == []
        rig.advance_ms(1)
        rig.answer_all()
        assert rig.values("t") == [b"1", b"2"]
