"""Sequences on the wire: given at the first drain, kept by retries, given anew only to what is absent.

The broker of these tests answers what a test says; that it keeps the server's rules is for the simulator.
"""

from collections.abc import Iterator

import pytest

from cyproducer.control.idempotence import State
from cyproducer.errors import DeliveryTimeoutError, OutOfOrderSequenceNumberError
from tests.network.sender_steps import narrow
from tests.rig import Rig, Seen

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
PRODUCER = 4711


def identities(seen: Seen, partition: int = 0) -> tuple[int, int, int]:
    batch = seen.batches["t", partition]
    return batch.producer_id, batch.producer_epoch, batch.base_sequence


def on_wire(rig: Rig, partition: int = 0) -> list[tuple[int, int]]:
    """Epoch and first sequence of the partition's requests without an answer, in the order they came."""
    rig.accumulator.flush(0)
    while rig.requests():
        rig.accumulator.flush(0)
    return [identities(seen, partition)[1:] for seen in rig.pending if ("t", partition) in seen.batches]


def send(rig: Rig, count: int, partition: int = 0, start: int = 0) -> list[object]:
    """Sends records that fill a batch each."""
    return [rig.send("t", b"%d" % i, partition=partition) for i in range(start, start + count)]


def state(rig: Rig) -> State:
    return rig.fates.idempotence.partition_state(("t", 0))  # type: ignore[arg-type]


def grant(rig: Rig, producer_id: int = PRODUCER, epoch: int = 0) -> None:
    machine = rig.fates.idempotence
    assert machine.want()
    machine.granted(producer_id, epoch)
    rig.sender.set_identity(producer_id, epoch)


def introduce(rig: Rig, partitions: int = 1) -> None:
    """The brokers know the producer, and its sequences begin at 0."""
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
    """One record a batch, three partitions on broker 1."""
    with Rig({"t": [1, 1, 1]}, idempotent=True, batch_size=0) as made:
        introduce(made, 3)
        yield made


def answer_next(rig: Rig, *codes: int) -> None:
    for code in codes:
        rig.answer(rig.pending[0], code)


# Giving sequences


def test_nothing_goes_without_a_producer_id_but_a_connection_is_made() -> None:
    with Rig({"t": [1]}, idempotent=True, batch_size=0) as rig:
        send(rig, 2)
        assert rig.requests() == []
        assert list(rig.peers) == [1]
        grant(rig)
        assert on_wire(rig) == [(0, 0)]


@pytest.mark.parametrize("pause_s", [0, 59, 61])
def test_the_first_batch_goes_alone_until_the_broker_knows_the_producer(pause_s: int) -> None:
    """It takes any first sequence: the second batch too, while the first has to be sent again."""
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
        # Brokers forget who was idle for long.
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
def test_sequences_wrap_behind_2147483647_inside_a_batch_too(records: int) -> None:
    with Rig({"t": [1]}, idempotent=True, linger_ms=1) as rig:
        introduce(rig)
        start = 0x7FFFFFFF - 1
        rig.sender.set_next_sequence("t", 0, start)
        for size in (records, 1):
            for _ in range(size):
                rig.send("t", b"v")
            rig.advance_ms(1)
        assert [sequence for _, sequence in on_wire(rig)] == [start, (start + records) % 2**31]


def test_a_partition_has_at_most_five_batches_without_outcome() -> None:
    with Rig({"t": [1]}, idempotent=True, batch_size=0, max_in_flight=100) as rig:
        introduce(rig)
        send(rig, 9)
        assert on_wire(rig) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]
        answer_next(rig, 0)
        assert on_wire(rig) == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]


def test_batches_that_wait_to_be_sent_again_count_among_the_five(rig: Rig) -> None:
    send(rig, 9)
    assert len(on_wire(rig)) == 5
    rig.cut(1)
    rig.clock.advance_ms(100)
    assert on_wire(rig) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]


# Sending again


def test_a_batch_that_is_sent_again_keeps_its_sequence(rig: Rig) -> None:
    send(rig, 3)
    assert on_wire(rig) == [(0, 0), (0, 1), (0, 2)]
    answer_next(rig, NOT_LEADER, OUT_OF_ORDER)
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(0, 2)], "what is on the wire ends first"
    answer_next(rig, OUT_OF_ORDER)
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(0, 0), (0, 1), (0, 2)]
    assert state(rig) is State.SENDING
    rig.answer_all()
    assert rig.values("t") == [b"0", b"1", b"2"]


def test_after_a_lost_connection_all_go_again_in_their_order(rig: Rig) -> None:
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


def test_out_of_order_for_the_next_in_line_starts_a_new_epoch_and_loses_nothing(rig: Rig) -> None:
    futures = send(rig, 4)
    on_wire(rig)
    answer_next(rig, 0)
    assert on_wire(rig) == [(0, 1), (0, 2), (0, 3)]
    answer_next(rig, OUT_OF_ORDER)
    assert state(rig) is State.GAP
    send(rig, 1, start=4)
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(0, 2), (0, 3)], "nothing goes before the wire is quiet"
    answer_next(rig, OUT_OF_ORDER, OUT_OF_ORDER)
    rig.clock.advance_ms(200)
    assert state(rig) is State.SENDING
    assert on_wire(rig) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    rig.answer_all()
    assert rig.values("t") == [b"0", b"1", b"2", b"3", b"4"]
    assert all(f.succeeded() for f in futures)  # type: ignore[attr-defined]


def test_other_partitions_take_the_new_epoch_when_they_have_nothing_under_way(rig: Rig) -> None:
    send(rig, 1, partition=1)
    rig.answer_all()
    send(rig, 1, partition=0)
    rig.requests()
    send(rig, 2, partition=2)
    assert on_wire(rig, 2) == [(0, 0), (0, 1)]
    answer_next(rig, OUT_OF_ORDER)
    rig.clock.advance_ms(200)
    assert on_wire(rig, 0) == [(1, 0)]
    # Idle since: starts over with its next batch.
    send(rig, 1, partition=1)
    assert on_wire(rig, 1) == [(1, 0)]
    # Under way in the old epoch: those first.
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
    # Those behind it can't have been taken, whatever becomes of their requests.
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


def test_the_halves_of_a_batch_that_is_too_large_go_with_new_sequences() -> None:
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


# Given up


@pytest.fixture
def hasty() -> Iterator[Rig]:
    """As ``rig``, with a delivery timeout of a second."""
    with Rig(
        {"t": [1]}, idempotent=True, batch_size=0, delivery_timeout_ms=1000, request_timeout_ms=900
    ) as made:
        introduce(made)
        yield made


def test_an_abandoned_batch_that_is_acknowledged_leaves_no_gap(hasty: Rig) -> None:
    (future,) = send(hasty, 1)
    hasty.clock.advance_ms(200)
    hasty.requests()
    hasty.clock.advance_ms(820)
    hasty.step()
    error = future.exception  # type: ignore[attr-defined]
    assert isinstance(error, DeliveryTimeoutError)
    assert error.maybe_written is True
    # Its sequence stays taken, and the next batch may go behind it.
    send(hasty, 1, start=1)
    assert on_wire(hasty) == [(0, 0), (0, 1)]
    hasty.answer_all()
    assert state(hasty) is State.SENDING
    send(hasty, 1, start=2)
    assert on_wire(hasty) == [(0, 2)]


def test_what_follows_a_batch_that_ran_out_of_time_in_its_queue_is_sent(hasty: Rig) -> None:
    """It may have been written: what comes behind it is held back till that is settled, not for good."""
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
    """One batch is given up with its request unanswered; a second one is sent behind it."""
    send(rig, 1)
    rig.requests()
    rig.clock.advance_ms(600)
    send(rig, 1, start=1)
    assert on_wire(rig) == [(0, 0), (0, 1)]
    rig.clock.advance_ms(300)
    rig.step()  # request_timeout_ms: both come back
    rig.pending.clear()
    rig.clock.advance_ms(130)
    rig.step()


def test_a_later_acknowledgement_resolves_what_was_given_up(hasty: Rig) -> None:
    give_up_first(hasty)
    assert state(hasty) is State.UNRESOLVED
    send(hasty, 1, start=2)
    assert on_wire(hasty) == [(0, 1)], "only what has a sequence goes"
    answer_next(hasty, 0)
    assert state(hasty) is State.SENDING
    assert on_wire(hasty) == [(0, 2)]


def test_what_was_given_up_and_never_taken_ends_the_epoch(hasty: Rig) -> None:
    give_up_first(hasty)
    send(hasty, 1, start=2)
    assert on_wire(hasty) == [(0, 1)]
    # The second batch had an unanswered request as well: nobody can tell where it is.
    answer_next(hasty, OUT_OF_ORDER)
    assert on_wire(hasty) == [(1, 0)]


def test_a_batch_given_up_with_nothing_behind_it_ends_the_epoch(hasty: Rig) -> None:
    send(hasty, 1)
    hasty.requests()
    hasty.clock.advance_ms(900)
    hasty.step()
    hasty.pending.clear()
    hasty.clock.advance_ms(120)
    hasty.step()
    send(hasty, 1, start=1)
    assert on_wire(hasty) == [(1, 0)]


def test_a_batch_that_never_left_takes_no_sequence_along(hasty: Rig) -> None:
    hasty.auto_connect = False
    (future,) = send(hasty, 1)
    hasty.clock.advance_ms(1020)
    hasty.step()
    assert future.exception.maybe_written is False  # type: ignore[attr-defined]
    hasty.auto_connect = True
    send(hasty, 1, start=1)
    assert on_wire(hasty) == [(0, 0)]


def test_a_batch_that_expires_in_its_queue_leaves_a_gap_that_is_known(hasty: Rig) -> None:
    """The first batch comes back and waits until the second, behind it, is answered; its time ends there."""
    (first,) = send(hasty, 1)
    hasty.clock.advance_ms(150)
    send(hasty, 1, start=1)
    assert on_wire(hasty) == [(0, 0), (0, 1)]
    answer_next(hasty, NOT_ENOUGH_REPLICAS)
    hasty.clock.advance_ms(870)
    hasty.step()
    assert first.exception.maybe_written is False  # type: ignore[attr-defined]
    assert state(hasty) is State.GAP
    answer_next(hasty, OUT_OF_ORDER)
    # Not in the old epoch, in which the broker would wait for the first batch for ever.
    assert state(hasty) is State.SENDING
    hasty.clock.advance_ms(100)
    assert on_wire(hasty) == [(1, 0)]
    hasty.answer_all()
    assert hasty.values("t") == [b"1"]


def test_a_batch_whose_request_was_not_written_whole_was_not_written() -> None:
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
    """Its own requests were lost, but no broker takes it without the batch before it, which is refused."""
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


def test_a_leader_that_was_named_is_gone_to_without_backoff_once(rig: Rig) -> None:
    send(rig, 1)
    assert on_wire(rig) == [(0, 0)]
    rig.fates.new_leaders.add(("t", 0))
    answer_next(rig, NOT_LEADER)
    rig.clock.advance_ms(1)
    assert on_wire(rig) == [(0, 0)]
    answer_next(rig, NOT_LEADER)
    rig.clock.advance_ms(1)
    assert on_wire(rig) == [], "nobody named a leader this time"
    rig.clock.advance_ms(200)
    assert on_wire(rig) == [(0, 0)]


def test_a_topic_that_was_created_anew_knows_no_producer(rig: Rig) -> None:
    send(rig, 2)
    assert on_wire(rig) == [(0, 0), (0, 1)]
    rig.answer_all()
    rig.sender.apply_topic("t", b"of another topic", [1, 1, 1])
    send(rig, 2, start=2)
    assert len(on_wire(rig)) == 1, "a broker that knows nothing of the producer takes any first sequence"
    rig.answer_all()
    assert rig.values("t") == [b"0", b"1", b"2", b"3"]
