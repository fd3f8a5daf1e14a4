"""Topics whose metadata was dropped: what remains of them, and how they continue when used again."""

from collections.abc import Callable

import pytest

from cyproducer.accumulator.metric_snapshot import topic_names
from cyproducer.control.batch_fate import Decision
from cyproducer.control.idempotence import Action, Fate, Order, Verdict
from cyproducer.errors import KafkaTimeoutError
from tests.accumulator.test_parked_records import KIB, Flood
from tests.malloc import lent_bytes, needs_glibc
from tests.scripted.sender_steps import grant
from tests.sender.test_idempotent_sender import on_wire
from tools.harness.rig import Rig
from tools.harness.until import Running, until_blocked

NOT_ENOUGH_REPLICAS = 19
PER_FORGOTTEN_TOPIC = 100  # bytes


def test_a_missing_topic_is_forgotten_completely() -> None:
    with Rig({"good": [1]}) as rig:
        for _ in range(3):
            future = rig.send("missing", b"v")
            rig.sender.forget_topic("missing")
            # A record waits, so the topic is not forgotten.
            assert "missing" in topic_names(rig.accumulator)
            rig.sender.fail_parked("missing", KafkaTimeoutError("no metadata"))
            rig.sender.forget_topic("missing")
            assert topic_names(rig.accumulator) == ["good"]
            assert future.failed()
        rig.sender.apply_topic("missing", b"", [1])
        assert rig.send("missing", b"v").topic == "missing"
        rig.answer_all()
        assert rig.values("missing") == [b"v"]


def test_a_thread_that_uses_a_forgotten_topic_looks_it_up_again() -> None:
    """1. The thread waits for memory.
    2. The topic is forgotten.
    3. The thread gets memory, and parks its record with the new topic.
    """
    with Rig(buffer_memory=64 * KIB) as rig:
        leases = [rig.pool.acquire(32 * KIB), rig.pool.acquire(32 * KIB)]
        flood = Flood(rig, "t", 1)
        rig.sender.forget_topic("t")
        assert topic_names(rig.accumulator) == []
        for lease in leases:
            assert lease is not None
            lease.release()
        flood.outcome()
        assert rig.sender.parked_topics() == ["t"]
        rig.sender.apply_topic("t", b"", [1])
        rig.answer_all()
        assert flood.futures[0].succeeded()


def test_a_bulk_call_pins_its_topic() -> None:
    """1. The call waits for metadata.
    2. The metadata is dropped, and idle topics are forgotten.
    3. The metadata arrives.
    """
    with Rig() as rig:
        sending = Running(rig.path.send_many, "t", [b"1", b"2"])
        until_blocked(sending.thread)
        rig.sender.forget_topic("t")
        rig.sender.apply_topic("t", b"", [1])
        sent = sending.outcome()
        rig.answer_all()
        assert sent.succeeded()


def test_a_bulk_call_does_not_use_a_cached_pointer_to_a_forgotten_topic() -> None:
    """1. Rows are sent to a topic.
    2. The topic is forgotten, and its memory is reused.
    3. Rows are sent to it again.
    """
    topic = "forgotten"
    with Rig(buffer_memory=1024 * KIB) as rig:
        for _ in range(20):
            for value in (b"1", b"2"):
                rig.sender.apply_topic(topic, b"", [1])
                rig.path.send_many(topic, [value])
                rig.answer_all()
                rig.sender.forget_topic(topic)
                rig.sender.apply_topic("other", b"", [1, 1, 1])
            rig.sender.forget_topic("other")
        assert rig.values(topic) == [b"1", b"2"] * 20


# Sequences


def test_sequences_continue_where_a_forgotten_topic_ended() -> None:
    with Rig({"t": [1, 1, 1]}, idempotent=True) as rig:
        grant(rig, epoch=4)
        for partition, count in ((0, 3), (2, 5)):
            for _ in range(count):
                rig.send("t", b"before", partition=partition)
        rig.answer_all()
        rig.sender.forget_topic("t")
        assert topic_names(rig.accumulator) == []
        # For a while the topic seems to have only one partition.
        rig.sender.apply_topic("t", b"", [1])
        rig.sender.apply_topic("t", b"", [1, 1, 1])
        for partition in range(3):
            rig.send("t", b"after", partition=partition)
        assert [on_wire(rig, partition) for partition in range(3)] == [[(4, 3)], [(4, 0)], [(4, 5)]]
        rig.answer_all()
        # The kept sequences are used up.
        rig.sender.apply_topic("t", b"", [1, 1, 1])
        rig.send("t", b"again", partition=2)
        assert on_wire(rig, 2) == [(4, 6)]
        rig.answer_all()
        # Forgotten twice, without being used in between.
        for _ in range(2):
            rig.sender.forget_topic("t")
            rig.sender.apply_topic("t", b"", [1, 1, 1])
        rig.send("t", b"again", partition=2)
        assert on_wire(rig, 2) == [(4, 7)]


def test_sequences_of_a_forgotten_topic_start_over_with_a_new_identity() -> None:
    with Rig({"t": [1]}, idempotent=True) as rig:
        grant(rig)
        rig.send("t", b"1")
        rig.answer_all()
        rig.sender.forget_topic("t")
        rig.sender.set_identity(4711, 1)
        rig.sender.apply_topic("t", b"", [1])
        rig.send("t", b"2")
        assert on_wire(rig) == [(1, 0)]


def test_the_first_batch_after_a_topic_was_forgotten_is_sent_alone() -> None:
    """Brokers may have forgotten the producer meanwhile, and would accept any first sequence then."""
    with Rig({"t": [1]}, idempotent=True, batch_size=0) as rig:
        grant(rig)
        rig.send("t", b"1")
        rig.answer_all()
        rig.sender.forget_topic("t")
        rig.sender.apply_topic("t", b"", [1])
        for _ in range(3):
            rig.send("t", b"2")
        assert on_wire(rig) == [(0, 1)]


def wait_in_the_queue(rig: Rig) -> None:
    rig.send("t", b"1")


def wait_for_a_leader(rig: Rig) -> None:
    rig.sender.apply_topic("t", b"", [-1])
    rig.send("t", b"1")


def wait_for_an_answer(rig: Rig) -> None:
    rig.send("t", b"1")
    assert rig.requests()


def wait_for_a_retry(rig: Rig) -> None:
    wait_for_an_answer(rig)
    rig.answer(rig.pending[0], NOT_ENOUGH_REPLICAS)


def back_off_with_nothing_queued(rig: Rig) -> None:
    """The partition is in the sender's heap of partitions that back off."""
    wait_for_a_retry(rig)
    assert not rig.sender.fail_beyond("t", 0)


def expire_on_the_wire(rig: Rig) -> None:
    future = rig.send("t", b"1")
    assert rig.requests()
    rig.advance_ms(1000)
    assert future.failed()


@pytest.mark.parametrize(
    "under_way",
    [
        wait_in_the_queue,
        wait_for_a_leader,
        wait_for_an_answer,
        wait_for_a_retry,
        back_off_with_nothing_queued,
        expire_on_the_wire,
    ],
)
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_topic_with_batches_under_way_is_not_forgotten(
    idempotent: bool, under_way: Callable[[Rig], None]
) -> None:
    with Rig({"t": [1]}, idempotent=idempotent, delivery_timeout_ms=1000, request_timeout_ms=5000) as rig:
        if idempotent:
            grant(rig)
        under_way(rig)
        rig.sender.forget_topic("t")
        assert topic_names(rig.accumulator) == ["t"]
        rig.sender.apply_topic("t", b"", [1])
        rig.advance_ms(200)
        rig.answer_all()
        rig.sender.forget_topic("t")
        assert topic_names(rig.accumulator) == []


def test_a_topic_is_not_forgotten_while_the_control_plane_holds_a_partition_back() -> None:
    with Rig({"t": [1, 1]}, idempotent=True, delivery_timeout_ms=1000) as rig:
        rig.sender.set_identity(7, 0)
        orders: list[list[Order]] = [[], [Order(Action.RELEASE)]]
        rig.fates.decide = lambda *facts: Decision(  # type: ignore[method-assign]
            Verdict(Fate.FAIL, error=LookupError("refused")), (Order(Action.HOLD_ALL),)
        )
        rig.fates.progress = lambda *facts: orders.pop(0)  # type: ignore[method-assign]
        rig.send("t", b"refused", partition=1)
        rig.answer(rig.requests()[0], error=29)
        rig.sender.forget_topic("t")
        assert topic_names(rig.accumulator) == ["t"]
        rig.sender.apply_topic("t", b"", [1, 1])
        rig.send("t", b"held back", partition=1)
        rig.advance_ms(1000)
        assert orders == []
        rig.sender.forget_topic("t")
        assert topic_names(rig.accumulator) == []


@needs_glibc
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.slow
def test_a_forgotten_topic_leaves_little_memory_behind(idempotent: bool) -> None:
    rounds, count = 3, 2000
    left: list[int] = []
    with Rig(idempotent=idempotent, buffer_memory=32 * 1024 * KIB) as rig:
        if idempotent:
            grant(rig)
        for number in range(rounds):
            topics = [f"topic-{number}-{i}" for i in range(count)]
            for topic in topics:
                rig.sender.apply_topic(topic, b"", [1, 1, 1])
                rig.send(topic, b"1")
            rig.answer_all()
            rig.log.clear()
            for topic in topics:
                rig.sender.forget_topic(topic)
            left.append(lent_bytes())
        assert topic_names(rig.accumulator) == []
        # Each topic took 1.2 kB. The first round's batches and buffers are reused. What remains of a topic
        # includes memory that the rig itself keeps.
        assert left[-1] - left[0] < PER_FORGOTTEN_TOPIC * (rounds - 1) * count


def test_only_sequences_of_the_epoch_of_now_are_kept() -> None:
    """Brokers refuse a new epoch whose first sequence is not 0."""
    with Rig({"t": [1, 1]}, idempotent=True) as rig:
        grant(rig)
        for _ in range(3):
            rig.send("t", b"before", partition=0)
        rig.answer_all()
        rig.sender.set_identity(4711, 1)
        rig.send("t", b"since", partition=1)
        rig.answer_all()
        rig.sender.forget_topic("t")
        rig.sender.apply_topic("t", b"", [1, 1])
        for partition in (0, 1):
            rig.send("t", b"after", partition=partition)
        assert [on_wire(rig, partition) for partition in (0, 1)] == [[(1, 0)], [(1, 1)]]


def test_each_parked_record_and_each_batch_counts_as_use_of_its_topic() -> None:
    with Rig(linger_ms=10) as rig:
        assert rig.sender.topic_used_ms("t") == 0
        for _ in range(2):
            rig.clock.advance_ms(1000)
            rig.send("t", b"parked")
            assert rig.sender.topic_used_ms("t") == rig.clock.monotonic_ns() / 1e6
        rig.sender.apply_topic("t", b"", [1])
        rig.advance_ms(10)
        rig.answer_all()
        rig.clock.advance_ms(1000)
        rig.send("t", b"in a batch")
        assert rig.sender.topic_used_ms("t") == rig.clock.monotonic_ns() / 1e6
