"""Sequences: assigned at the first drain, kept by retries, and assigned again only to absent batches.

The broker here sends the responses that a test specifies; the simulator's broker follows the real rules.
"""

from collections.abc import Iterator

import pytest

from cyproducer.control.idempotence import State
from cyproducer.errors import DeliveryTimeoutError, OutOfOrderSequenceNumberError
from tests.scripted.sender_steps import PRODUCER, grant, narrow
from tools.harness.rig import Rig, Seen

NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
NOT_LEADER, TOO_LARGE, NOT_ENOUGH_REPLICAS, NOT_AUTHORIZED, OUT_OF_ORDER, DUPLICATE, STALE_EPOCH = (
    6,
    10,
    19,
    29,
    45,
    46,
    47,
)


def identities(seen: Seen, partition: int = 0) -> tuple[int, int, int]:
    batch = seen.batches["t", partition]
    return batch.producer_id, batch.producer_epoch, batch.base_sequence


def on_wire(rig: Rig, partition: int = 0) -> list[tuple[int, int]]:
    """Returns epoch and base sequence of the partition's requests in flight, in the order of arrival."""
    rig.accumulator.flush(0)
    while rig.requests():
        rig.accumulator.flush(0)
    return [identities(seen, partition)[1:] for seen in rig.pending if ("t", partition) in seen.batches]


def send(rig: Rig, count: int, partition: int = 0, start: int = 0) -> list[object]:
    """Sends records, each of which fills a batch."""
    return [rig.send("t", b"%d" % i, partition=partition) for i in range(start, start + count)]


def state(rig: Rig) -> State:
    return rig.fates.idempotence.partition_state(("t", 0))  # type: ignore[arg-type]


def introduce(rig: Rig, partitions: int = 1) -> None:
    """Makes the brokers know the producer, and its sequences start at 0."""
    grant(rig)
    for partition in range(partitions):
        rig.send("t", b"hello", partition=partition)
    rig.step()
    rig.clock.advance_ms(1)
    rig.answer_all()
    rig.log.clear()
    for partition in range(partitions):
        rig.sender.set_next_sequence("t", partition, 0)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """One record per batch, three partitions on broker 1."""
    with Rig({"t": [1, 1, 1]}, idempotent=True, batch_size=0) as made:
        introduce(made, 3)
        yield made


def answer_next(rig: Rig, *codes: int) -> None:
    for code in codes:
        rig.answer(rig.pending[0], code)


# Assigning sequences


def test_nothing_is_sent_without_a_producer_id_but_the_sender_connects() -> None:
    with Rig({"t": [1]}, idempotent=True, batch_size=0) as rig:
        send(rig, 2)
        assert rig.requests() == []
        assert list(rig.peers) == [1]
        grant(rig)
        assert on_wire(rig) == [(0, 0)]


@pytest.mark.parametrize("pause_s", [0, 59, 61])
def test_the_first_batch_is_sent_alone_until_the_broker_knows_the_producer(pause_s: int) -> None:
    """A broker that does not know the producer accepts any first sequence.

    So it would accept the second batch too, while the first one has to be sent again.
    """
    with Rig({"t": [1]}, idempotent=True, batch_size=0) as rig:
        grant(rig)
        send(rig, 3)
        assert on_wire(rig) == [(0, 0)]
        answer_next(rig, NOT_ENOUGH_REPLICAS)
        rig.clock.advance_ms(200)
        assert on_wire(rig) == [(0, 0)]
        answer_next(rig, 0)
        assert on_wire(rig) == [(0, 1), (0, 2)]
        rig.answer_all()
        # Brokers forget producers that are idle for a long time.
        rig.clock.advance_ms(1000 * pause_s)
        send(rig, 2, start=3)
        assert on_wire(rig) == ([(0, 3)] if pause_s > 60 else [(0, 3), (0, 4)])
        rig.answer_all()
        assert rig.values("t") == [b"%d" % n for n in range(5)]


def test_sequences_count_records_for_each_partition() -> None:
    with Rig({"t": [1, 1]}, idempotent=True) as rig:
        introduce(rig, 2)
        for size in (3, 1, 4):
            for i in range(size):
                rig.send("t", b"%d" % i, partition=0)
            rig.requests()
            rig.answer_all()
        rig.send("t", b"0", partition=1)
        (seen,) = rig.requests()
        assert identities(seen, 1) == (PRODUCER, 0, 0)
        rig.send("t", b"8", partition=0)
        rig.answer(seen)
        (seen,) = rig.requests()
        assert identities(seen) == (PRODUCER, 0, 8)


@pytest.mark.parametrize("records", [1, 2, 5])
def test_sequences_wrap_after_2147483647_even_inside_a_batch(records: int) -> None:
    with Rig({"t": [1]}, idempotent=True, linger_ms=1) as rig:
        introduce(rig)
        start = 0x7FFFFFFF - 1
        rig.sender.set_next_sequence("t", 0, start)
        for size in (records, 1):
            for _ in range(size):
                rig.send("t", b"v")
            rig.advance_ms(1)
        assert [sequence for _, sequence in on_wire(rig)] == [start, (start + records) % 2**31]


def test_a_partition_has_at_most_five_unsettled_batches() -> None:
    with Rig({"t": [1]}, idempotent=True, batch_size=0, max_in_flight=100) as rig:
        introduce(rig)
        send(rig, 9)
        assert on_wire(rig) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]
        answer_next(rig, 0)
        assert on_wire(rig) == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]


# Sending again


def test_a_retried_batch_keeps_its_sequence(rig: Rig) -> None:
    send(rig, 3)
    assert on_wire(rig) == [(0, 0), (0, 1), (0, 2)]
    answer_next(rig, NOT_LEADER, OUT_OF_ORDER)
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(0, 2)], "retries must wait until the requests in flight are answered"
    answer_next(rig, OUT_OF_ORDER)
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(0, 0), (0, 1), (0, 2)]
    assert state(rig) is State.SENDING
    rig.answer_all()
    assert rig.values("t") == [b"0", b"1", b"2"]


def test_after_a_lost_connection_all_batches_are_resent_in_order(rig: Rig) -> None:
    futures = send(rig, 7)
    assert len(on_wire(rig)) == 5
    rig.cut(1)
    rig.clock.advance_ms(100)
    assert on_wire(rig) == [(0, n) for n in range(5)]
    rig.answer_all()
    assert rig.values("t") == [b"%d" % n for n in range(7)]
    assert all(f.succeeded() for f in futures)  # type: ignore[attr-defined]


def test_a_duplicate_is_acknowledged_without_an_offset(rig: Rig) -> None:
    (future,) = send(rig, 1)
    on_wire(rig)
    answer_next(rig, DUPLICATE)
    assert future.get(0).offset == -1  # type: ignore[attr-defined]
    send(rig, 1, start=1)
    assert on_wire(rig) == [(0, 1)]


# Gaps and bumps


def test_out_of_order_for_the_next_batch_starts_a_new_epoch_and_loses_nothing(rig: Rig) -> None:
    futures = send(rig, 4)
    on_wire(rig)
    answer_next(rig, 0)
    assert on_wire(rig) == [(0, 1), (0, 2), (0, 3)]
    answer_next(rig, OUT_OF_ORDER)
    assert state(rig) is State.GAP
    send(rig, 1, start=4)
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(0, 2), (0, 3)], "nothing may be sent before the requests in flight are answered"
    answer_next(rig, OUT_OF_ORDER, OUT_OF_ORDER)
    rig.clock.advance_ms(200)
    assert state(rig) is State.SENDING
    assert on_wire(rig) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    rig.answer_all()
    assert rig.values("t") == [b"0", b"1", b"2", b"3", b"4"]
    assert all(f.succeeded() for f in futures)  # type: ignore[attr-defined]


def test_other_partitions_use_the_new_epoch_when_they_have_nothing_in_flight(rig: Rig) -> None:
    send(rig, 1, partition=1)
    rig.answer_all()
    send(rig, 1, partition=0)
    rig.requests()
    send(rig, 2, partition=2)
    assert on_wire(rig, 2) == [(0, 0), (0, 1)]
    answer_next(rig, OUT_OF_ORDER)
    rig.clock.advance_ms(200)
    assert on_wire(rig, 0) == [(1, 0)]
    # An idle partition uses the new epoch with its next batch.
    send(rig, 1, partition=1)
    assert on_wire(rig, 1) == [(1, 0)]
    # A partition with batches of the old epoch in flight finishes them first.
    send(rig, 1, partition=2, start=2)
    assert on_wire(rig, 2) == [(0, 0), (0, 1)]
    for seen in [seen for seen in rig.pending if ("t", 2) in seen.batches]:
        rig.answer(seen)
    assert on_wire(rig, 2) == [(1, 0)]
    rig.answer_all()
    assert rig.values("t", 2) == [b"0", b"1", b"2"]


def test_a_failed_batch_that_is_certainly_absent_leaves_no_gap(rig: Rig) -> None:
    futures = send(rig, 3)
    on_wire(rig)
    answer_next(rig, NOT_AUTHORIZED)
    assert futures[0].exception.maybe_written is False  # type: ignore[attr-defined]
    # The batches behind it cannot have been written, whatever happens to their requests.
    rig.cut(1)
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(1, 0), (1, 1)]
    rig.answer_all()
    assert rig.values("t") == [b"1", b"2"]


def test_an_ambiguous_batch_is_never_sent_under_another_sequence(rig: Rig) -> None:
    (future,) = send(rig, 1)
    on_wire(rig)
    rig.cut(1)
    rig.clock.advance_ms(100)
    assert on_wire(rig) == [(0, 0)]
    answer_next(rig, OUT_OF_ORDER)
    error = future.exception  # type: ignore[attr-defined]
    assert isinstance(error, OutOfOrderSequenceNumberError)
    assert error.maybe_written is True
    send(rig, 1, start=1)
    assert on_wire(rig) == [(1, 0)]


def test_a_stale_epoch_waits_for_another_id(rig: Rig) -> None:
    send(rig, 2)
    on_wire(rig)
    answer_next(rig, STALE_EPOCH, STALE_EPOCH)
    rig.clock.advance_ms(200)
    assert rig.requests() == []
    grant(rig, PRODUCER + 1)
    rig.requests()
    assert [identities(seen) for seen in rig.pending] == [(PRODUCER + 1, 0, 0)]
    rig.answer_all()
    assert rig.values("t") == [b"0", b"1"]


def test_the_halves_of_a_too_large_batch_get_new_sequences() -> None:
    with Rig({"t": [1]}, idempotent=True, linger_ms=1) as rig:
        introduce(rig)
        for i in range(4):
            rig.send("t", b"%d" % i, partition=0)
        rig.advance_ms(1)
        rig.requests()
        answer_next(rig, TOO_LARGE)
        assert on_wire(rig) == [(1, 0), (1, 2)]
        rig.answer_all()
        assert rig.values("t") == [b"0", b"1", b"2", b"3"]


# Abandoned batches


@pytest.fixture
def hasty() -> Iterator[Rig]:
    """Like ``rig``, with one partition and a delivery timeout of one second."""
    with Rig(
        {"t": [1]}, idempotent=True, batch_size=0, delivery_timeout_ms=1000, request_timeout_ms=900
    ) as made:
        introduce(made)
        yield made


def test_an_abandoned_batch_that_is_acknowledged_leaves_no_gap(hasty: Rig) -> None:
    (future,) = send(hasty, 1)
    hasty.clock.advance_ms(200)
    hasty.requests()
    hasty.advance_ms(820)
    error = future.exception  # type: ignore[attr-defined]
    assert isinstance(error, DeliveryTimeoutError)
    assert error.maybe_written is True
    # Its sequence stays used, and the next batch may be sent behind it.
    send(hasty, 1, start=1)
    assert on_wire(hasty) == [(0, 0), (0, 1)]
    hasty.answer_all()
    assert state(hasty) is State.SENDING
    send(hasty, 1, start=2)
    assert on_wire(hasty) == [(0, 2)]


def test_batches_behind_one_that_expired_in_its_queue_are_sent(hasty: Rig) -> None:
    """It may have been written: later batches are held back until that is settled, but not forever."""
    (future,) = send(hasty, 1)
    assert on_wire(hasty) == [(0, 0)]
    answer_next(hasty, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    hasty.sender.apply_topic("t", b"", [-1])
    hasty.advance_ms(1100)
    assert future.exception.maybe_written is True  # type: ignore[attr-defined]
    hasty.sender.apply_topic("t", b"", [1])
    send(hasty, 1, start=1)
    assert on_wire(hasty) == [(1, 0)]


def give_up_first(rig: Rig) -> None:
    """Makes one batch expire while its request is unanswered; a second batch was sent behind it."""
    send(rig, 1)
    rig.requests()
    rig.clock.advance_ms(600)
    send(rig, 1, start=1)
    assert on_wire(rig) == [(0, 0), (0, 1)]
    rig.advance_ms(300)  # request_timeout_ms: both batches fail this attempt
    rig.pending.clear()
    rig.advance_ms(130)


def test_a_later_acknowledgement_resolves_an_expired_batch(hasty: Rig) -> None:
    give_up_first(hasty)
    assert state(hasty) is State.UNRESOLVED
    send(hasty, 1, start=2)
    assert on_wire(hasty) == [(0, 1)], "only batches that already have a sequence may be sent"
    answer_next(hasty, 0)
    assert state(hasty) is State.SENDING
    assert on_wire(hasty) == [(0, 2)]


def test_an_expired_batch_that_was_never_written_ends_the_epoch(hasty: Rig) -> None:
    give_up_first(hasty)
    send(hasty, 1, start=2)
    assert on_wire(hasty) == [(0, 1)]
    # The second batch had an unanswered request too: it may or may not be in the log.
    answer_next(hasty, OUT_OF_ORDER)
    assert on_wire(hasty) == [(1, 0)]


def test_an_expired_batch_with_nothing_behind_it_ends_the_epoch(hasty: Rig) -> None:
    send(hasty, 1)
    hasty.requests()
    hasty.advance_ms(900)
    hasty.pending.clear()
    hasty.advance_ms(120)
    send(hasty, 1, start=1)
    assert on_wire(hasty) == [(1, 0)]


def test_a_batch_that_was_never_sent_uses_no_sequence(hasty: Rig) -> None:
    hasty.auto_connect = False
    (future,) = send(hasty, 1)
    hasty.advance_ms(1020)
    assert future.exception.maybe_written is False  # type: ignore[attr-defined]
    hasty.auto_connect = True
    send(hasty, 1, start=1)
    assert on_wire(hasty) == [(0, 0)]


def test_a_batch_that_expires_in_its_queue_leaves_a_known_gap(hasty: Rig) -> None:
    """The first batch fails, waits for the response to the second one, and expires meanwhile."""
    (first,) = send(hasty, 1)
    hasty.clock.advance_ms(150)
    send(hasty, 1, start=1)
    assert on_wire(hasty) == [(0, 0), (0, 1)]
    answer_next(hasty, NOT_ENOUGH_REPLICAS)
    hasty.advance_ms(870)
    assert first.exception.maybe_written is False  # type: ignore[attr-defined]
    assert state(hasty) is State.GAP
    answer_next(hasty, OUT_OF_ORDER)
    # Not in the old epoch, in which the broker would wait for the first batch forever.
    assert state(hasty) is State.SENDING
    hasty.clock.advance_ms(100)
    assert on_wire(hasty) == [(1, 0)]
    hasty.answer_all()
    assert hasty.values("t") == [b"1"]


def test_a_batch_of_a_partly_written_request_is_not_in_the_log() -> None:
    with Rig({"t": [1]}, idempotent=True, batch_size=500_000) as rig:
        introduce(rig)
        peer = rig.peers[1]
        narrow(peer)
        future = rig.send("t", bytes(400_000))
        rig.step()
        assert 0 < len(peer.sock.recv(1000)) <= 1000
        rig.cut(1)
        rig.clock.advance_ms(200)
        assert on_wire(rig) == [(0, 0)]
        answer_next(rig, NOT_AUTHORIZED)
        assert future.exception.maybe_written is False  # type: ignore[union-attr]


def test_a_batch_behind_a_gap_is_certainly_not_in_the_log(rig: Rig) -> None:
    """Its own requests were lost, but no broker accepts it without the batch before it, which is rejected."""
    first, second = send(rig, 2)
    assert on_wire(rig) == [(0, 0), (0, 1)]
    answer_next(rig, NOT_ENOUGH_REPLICAS)
    rig.cut(1)
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(0, 0), (0, 1)]
    answer_next(rig, NOT_AUTHORIZED)
    rig.cut(1)
    assert first.exception.maybe_written is False  # type: ignore[attr-defined]
    assert not second.is_done  # type: ignore[attr-defined]
    rig.clock.advance_ms(200)
    ((_, sequence),) = on_wire(rig)
    assert sequence == 0
    answer_next(rig, NOT_AUTHORIZED)
    assert second.exception.maybe_written is False  # type: ignore[attr-defined]


def test_a_named_leader_is_tried_once_without_backoff(rig: Rig) -> None:
    send(rig, 1)
    assert on_wire(rig) == [(0, 0)]
    rig.fates.new_leaders.add(("t", 0))
    answer_next(rig, NOT_LEADER)
    rig.clock.advance_ms(1)
    assert on_wire(rig) == [(0, 0)]
    answer_next(rig, NOT_LEADER)
    rig.clock.advance_ms(1)
    assert on_wire(rig) == [], "this response did not name a leader"
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(0, 0)]


def test_a_recreated_topic_does_not_know_the_producer(rig: Rig) -> None:
    send(rig, 2)
    assert on_wire(rig) == [(0, 0), (0, 1)]
    rig.answer_all()
    rig.sender.apply_topic("t", b"of another topic", [1, 1, 1])
    send(rig, 2, start=2)
    assert len(on_wire(rig)) == 1, "a broker that does not know the producer accepts any first sequence"
    rig.answer_all()
    assert rig.values("t") == [b"0", b"1", b"2", b"3"]


def test_a_slow_answer_is_no_pause() -> None:
    """A broker that still holds a batch has not forgotten: the next ones go side by side as before."""
    with Rig(
        {"t": [1]}, idempotent=True, batch_size=0, request_timeout_ms=300_000, delivery_timeout_ms=600_000
    ) as rig:
        introduce(rig)
        send(rig, 1)
        assert on_wire(rig) == [(0, 0)]
        rig.advance_ms(61_000)
        send(rig, 2, start=1)
        assert on_wire(rig) == [(0, 0), (0, 1), (0, 2)]
        rig.answer_all()
        assert rig.values("t") == [b"0", b"1", b"2"]
