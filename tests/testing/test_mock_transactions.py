"""Transactions of a ``MockProducer``: KafkaProducer's rules, and what a test sees of them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer import ConsumerGroupMetadata, OffsetAndMetadata, ProducerRecord, TopicPartition, errors
from cyproducer.testing import MockProducer
from tests.forked import in_child, needs_fork
from tools.harness.until import PATIENCE_S

REFUSED = errors.TopicAuthorizationFailedError("no")
PLACE = TopicPartition("in", 0)


def made(**options: Any) -> MockProducer:
    producer: MockProducer = MockProducer(transactional_id="mine", **options)
    producer.init_transactions()
    return producer


@pytest.fixture
def producer() -> Iterator[MockProducer]:
    with made() as made_one:
        yield made_one


def values(records: list[Any]) -> list[Any]:
    return [record.value for record in records]


# What a test sees


def test_the_history_has_records_once_they_are_committed(producer: MockProducer) -> None:
    producer.begin_transaction()
    future = producer.send("t", b"1", b"k", headers=[("h", b"x")])
    assert future.get(0).offset == 0
    assert (producer.history(), values(producer.uncommitted())) == ([], [b"1"])
    producer.commit_transaction()
    assert producer.history() == [ProducerRecord("t", b"1", b"k", [("h", b"x")])]
    assert producer.history()[0].future is future
    assert producer.uncommitted() == producer.aborted() == []


def test_aborted_records_are_kept_apart(producer: MockProducer) -> None:
    for value, how in ((b"1", "commit"), (b"2", "abort"), (b"3", "commit"), (b"4", "abort")):
        producer.begin_transaction()
        producer.send("t", value)
        getattr(producer, f"{how}_transaction")()
    assert values(producer.history()) == [b"1", b"3"]
    assert values(producer.aborted()) == [b"2", b"4"]


def test_rows_belong_to_the_transaction(producer: MockProducer) -> None:
    with producer.transaction():
        producer.send_many("t", [b"1", b"2"])
        assert values(producer.uncommitted()) == [b"1", b"2"]
    assert values(producer.history()) == [b"1", b"2"]


def test_the_flags_follow_the_transaction() -> None:
    def flags(producer: MockProducer) -> list[bool]:
        return [
            producer.transaction_initialized,
            producer.in_transaction,
            producer.transaction_committed,
            producer.transaction_aborted,
        ]

    with MockProducer(transactional_id="mine") as producer:
        assert flags(producer) == [False, False, False, False]
        producer.init_transactions()
        assert flags(producer) == [True, False, False, False]
        producer.begin_transaction()
        assert flags(producer) == [True, True, False, False]
        producer.commit_transaction()
        assert flags(producer) == [True, False, True, False]
        producer.begin_transaction()
        assert flags(producer) == [True, True, False, False]
        producer.abort_transaction()
        assert flags(producer) == [True, False, False, True]
        producer.begin_transaction()
        producer.prepare_transaction()
        assert flags(producer) == [True, True, False, False]
        producer.commit_transaction()
        assert producer.commit_count == 2


def test_offsets_are_committed_with_the_transaction(producer: MockProducer) -> None:
    member = ConsumerGroupMetadata("g", 3, "m")
    producer.begin_transaction()
    producer.send_offsets_to_transaction({}, member)
    assert not producer.sent_offsets
    producer.send_offsets_to_transaction({PLACE: 5}, member)
    assert producer.sent_offsets
    assert producer.uncommitted_offsets == {"g": {PLACE: OffsetAndMetadata(5)}}
    assert producer.committed_offsets == {}
    producer.abort_transaction()
    assert producer.uncommitted_offsets == producer.committed_offsets == {}
    producer.begin_transaction()
    assert not producer.sent_offsets
    producer.send_offsets_to_transaction({PLACE: 5, ("in", 1): (7, "text")}, member)
    producer.send_offsets_to_transaction({PLACE: 1}, "other")
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({PLACE: 6}, member)
    producer.commit_transaction()
    assert producer.committed_offsets == {
        "g": {PLACE: OffsetAndMetadata(6), TopicPartition("in", 1): OffsetAndMetadata(7, "text")},
        "other": {PLACE: OffsetAndMetadata(1)},
    }
    # A copy.
    producer.committed_offsets["g"].clear()
    assert producer.committed_offsets["g"]


def test_clear_forgets_everything_but_the_state(producer: MockProducer) -> None:
    for how in ("commit", "abort"):
        producer.begin_transaction()
        producer.send("t", b"1")
        producer.send_offsets_to_transaction({PLACE: 5}, "g")
        getattr(producer, f"{how}_transaction")()
    producer.begin_transaction()
    producer.send("t", b"2")
    producer.send_offsets_to_transaction({PLACE: 6}, "g")
    producer.clear()
    assert producer.history() == producer.uncommitted() == producer.aborted() == []
    assert producer.committed_offsets == producer.uncommitted_offsets == {}
    assert producer.in_transaction
    assert not producer.sent_offsets
    producer.send("t", b"3")
    producer.commit_transaction()
    assert values(producer.history()) == [b"3"]


def test_a_prepared_transaction_says_where_its_records_are(producer: MockProducer) -> None:
    producer.set_partitions("t", 2)
    with producer.transaction():
        producer.send("t", b"0", partition=1)
    producer.begin_transaction()
    for _ in range(3):
        producer.send("t", b"v", partition=1)
    prepared = producer.prepare_transaction()
    assert (prepared.transactional_id, prepared.empty) == ("mine", False)
    assert prepared.offsets == {TopicPartition("t", 1): (1, 3)}
    with pytest.raises(errors.IllegalStateError, match=r"send\(\): prepared"):
        producer.send("t", b"late")
    assert values(producer.history()) == [b"0"]
    producer.commit_transaction()
    assert len(producer.history()) == 4
    producer.begin_transaction()
    assert producer.prepare_transaction().empty
    producer.abort_transaction()


# Pending records


def test_a_commit_acknowledges_what_is_pending_and_runs_its_callbacks() -> None:
    with made(auto_complete=False) as producer:
        seen: list[int] = []
        producer.begin_transaction()
        for _ in range(3):
            producer.send("t", b"v").add_callback(lambda metadata: seen.append(metadata.offset))
        producer.commit_transaction()
        assert seen == [0, 1, 2]


def test_an_abort_fails_what_is_pending() -> None:
    with made(auto_complete=False) as producer:
        producer.begin_transaction()
        done, pending = producer.send("t", b"1"), producer.send("t", b"2")
        producer.complete_next()
        producer.abort_transaction()
        assert done.succeeded()
        with pytest.raises(errors.TransactionAbortedError, match=r"abort_transaction\(\) was called"):
            pending.get(0)
        assert values(producer.aborted()) == [b"1", b"2"]
        assert not producer.complete_next()


def test_a_record_that_failed_must_be_aborted() -> None:
    with made(auto_complete=False) as producer:
        producer.begin_transaction()
        first, second = producer.send("t", b"1"), producer.send("t", b"2")
        producer.error_next(REFUSED)
        assert first.failed()
        # As with a broker, what was not sent yet fails, too.
        assert isinstance(second.exception, errors.TransactionAbortedError)
        for call in (producer.commit_transaction, lambda: producer.send("t", b"3")):
            with pytest.raises(errors.AbortableError) as raised:
                call()
            assert raised.value.__cause__ == REFUSED
        assert producer.in_transaction
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"4")
            producer.complete_next()
        assert values(producer.history()) == [b"4"]


def test_a_record_that_send_refused_must_be_aborted(producer: MockProducer) -> None:
    producer.begin_transaction()
    with pytest.raises(TypeError):
        producer.send("t", 5)
    # At once.
    with pytest.raises(errors.AbortableError):
        producer.send("t", b"v")
    with pytest.raises(errors.AbortableError) as raised:
        producer.commit_transaction()
    assert isinstance(raised.value.__cause__, TypeError)
    producer.abort_transaction()
    producer.begin_transaction()
    assert producer.send("t", bytes(2_000_000)).failed()
    with pytest.raises(errors.AbortableError, match="RecordTooLargeError"):
        producer.commit_transaction()


def test_a_fatal_code_ends_the_producer() -> None:
    with made(auto_complete=False) as producer:
        producer.begin_transaction()
        producer.send("t", b"1")
        producer.error_next(errors.ProducerFencedError("gone"))
        with pytest.raises(errors.ProducerFencedError, match="gone"):
            producer.abort_transaction()


def test_a_commit_waits_for_callbacks_and_may_be_called_again() -> None:
    release = threading.Event()
    with made(auto_complete=False) as producer:
        producer.begin_transaction()
        producer.send("t", b"v").add_callback(lambda _: release.wait(PATIENCE_S))
        with pytest.raises(
            errors.KafkaTimeoutError, match=r"commit_transaction\(\) not complete within 0.05"
        ):
            producer.commit_transaction(0.05)
        assert producer.history() == []
        release.set()
        producer.commit_transaction()
        assert values(producer.history()) == [b"v"]


# Errors


def test_calls_out_of_order_are_those_of_a_kafka_producer() -> None:
    with MockProducer(transactional_id="mine") as producer:
        for call in (
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            producer.fence,
            lambda: producer.send("t", b"v"),
            lambda: producer.send_offsets_to_transaction({PLACE: 1}, "g"),
        ):
            with pytest.raises(errors.IllegalStateError, match=r"init_transactions\(\)|not initialized"):
                call()
        producer.init_transactions()
        with pytest.raises(errors.IllegalStateError, match=r"init_transactions\(\) is called once"):
            producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction, producer.prepare_transaction):
            with pytest.raises(errors.IllegalStateError, match=r"call begin_transaction\(\) first"):
                end()
        with pytest.raises(errors.IllegalStateError, match=r"call begin_transaction\(\) before it"):
            producer.send("t", b"v")
        producer.begin_transaction()
        with pytest.raises(errors.IllegalStateError, match="commit or abort it first"):
            producer.begin_transaction()
        # None of it has harmed the transaction.
        producer.commit_transaction()


def test_without_a_transactional_id_there_are_none() -> None:
    with MockProducer() as producer:
        for call in (producer.init_transactions, producer.begin_transaction, producer.transaction):
            with pytest.raises(errors.IllegalStateError, match="needs a transactional_id"):
                call()
        with pytest.raises(errors.IllegalStateError, match="nothing to take over"):
            producer.fence()
        producer.send("t", b"v")
        assert values(producer.history()) == [b"v"]
        assert not producer.transaction_initialized
        assert not producer.in_transaction


def test_a_fenced_producer_says_so_in_every_call() -> None:
    with made(auto_complete=False) as producer:
        producer.begin_transaction()
        pending = producer.send("t", b"v")
        producer.fence()
        assert isinstance(pending.exception, errors.TransactionAbortedError)
        for call in (
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            producer.prepare_transaction,
            producer.init_transactions,
            lambda: producer.send("t", b"w"),
            lambda: producer.send_offsets_to_transaction({PLACE: 1}, "g"),
        ):
            with pytest.raises(errors.ProducerFencedError, match="the test has fenced"):
                call()
        assert not producer.in_transaction
        assert producer.history() == producer.aborted() == []
    with made() as idle:
        idle.fence()
        with pytest.raises(errors.ProducerFencedError):
            idle.begin_transaction()


@pytest.mark.parametrize(
    "method",
    [
        "init_transactions",
        "begin_transaction",
        "send_offsets_to_transaction",
        "commit_transaction",
        "abort_transaction",
        "prepare_transaction",
    ],
)
def test_each_call_fails_on_demand_and_changes_nothing(method: str) -> None:
    calls: list[tuple[str, Callable[[MockProducer], object]]] = [
        ("init_transactions", MockProducer.init_transactions),
        ("begin_transaction", MockProducer.begin_transaction),
        ("send_offsets_to_transaction", lambda p: p.send_offsets_to_transaction({PLACE: 1}, "g")),
        ("prepare_transaction", MockProducer.prepare_transaction),
        ("commit_transaction", MockProducer.commit_transaction),
        ("begin_transaction", MockProducer.begin_transaction),
        ("abort_transaction", MockProducer.abort_transaction),
    ]
    with MockProducer(transactional_id="mine") as producer:
        for name, call in calls:
            if name == method:
                setattr(producer, f"{name}_exception", errors.KafkaTimeoutError("asked for"))
                with pytest.raises(errors.KafkaTimeoutError, match="asked for"):
                    call(producer)
                setattr(producer, f"{name}_exception", None)
            call(producer)
        assert producer.committed_offsets == {"g": {PLACE: OffsetAndMetadata(1)}}
        assert producer.transaction_aborted


def test_a_block_whose_commit_fails_on_demand_is_aborted(producer: MockProducer) -> None:
    producer.commit_transaction_exception = errors.TransactionFailedError("asked for")
    with pytest.raises(errors.TransactionFailedError, match="asked for"), producer.transaction():
        producer.send("t", b"v")
    assert producer.transaction_aborted
    assert values(producer.aborted()) == [b"v"]


def test_a_block_that_raises_is_aborted(producer: MockProducer) -> None:
    def block() -> None:
        with producer.transaction():
            producer.send("t", b"v")
            raise LookupError

    with pytest.raises(LookupError):
        block()
    assert values(producer.aborted()) == [b"v"]


def test_asyncio_has_the_same(producer: MockProducer) -> None:
    async def main() -> None:
        async with producer.transaction():
            await producer.send_async("t", b"1")
            await producer.send_offsets_to_transaction_async({PLACE: 5}, "g")
        with pytest.raises(asyncio.CancelledError):
            await block()

    async def block() -> None:
        async with producer.transaction():
            await producer.send_async("t", b"2")
            raise asyncio.CancelledError

    asyncio.run(main())
    assert (values(producer.history()), values(producer.aborted())) == ([b"1"], [b"2"])
    assert producer.committed_offsets == {"g": {PLACE: OffsetAndMetadata(5)}}


# The end


@pytest.mark.parametrize("timeout", [None, 0])
def test_close_aborts_what_is_open(timeout: float | None) -> None:
    producer = made(auto_complete=False)
    producer.begin_transaction()
    future = producer.send("t", b"v")
    producer.close(timeout)
    assert isinstance(future.exception, errors.TransactionAbortedError)
    assert values(producer.aborted()) == [b"v"]
    assert producer.transaction_aborted
    producer.close()
    for call in (producer.begin_transaction, producer.init_transactions, producer.commit_transaction):
        with pytest.raises(errors.ProducerClosedError):
            call()


def test_close_leaves_a_prepared_transaction_open() -> None:
    producer = made()
    producer.begin_transaction()
    producer.send("t", b"v")
    producer.prepare_transaction()
    producer.close()
    assert values(producer.uncommitted()) == [b"v"]
    assert producer.history() == producer.aborted() == []


def test_close_ends_a_commit_that_has_timed_out() -> None:
    release = threading.Event()
    producer = made(auto_complete=False)
    producer.begin_transaction()
    producer.send("t", b"v").add_callback(lambda _: release.wait(PATIENCE_S))
    with pytest.raises(errors.KafkaTimeoutError):
        producer.commit_transaction(0.05)
    release.set()
    producer.close()
    assert values(producer.history()) == [b"v"]
    assert producer.transaction_committed


@needs_fork
def test_a_child_of_a_fork_begins_anew(producer: MockProducer) -> None:
    producer.begin_transaction()
    producer.send("t", b"parent")

    def child() -> list[Any]:
        assert not producer.transaction_initialized
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"child")
        return values(producer.history())

    assert in_child(child) == [b"child"]
    producer.commit_transaction()
    assert values(producer.history()) == [b"parent"]


def test_threads_share_one_transaction(producer: MockProducer) -> None:
    producer.begin_transaction()

    def send() -> None:
        for _ in range(200):
            producer.send("t", b"v")

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.commit_transaction()
    futures: list[Any] = [record.future for record in producer.history()]
    assert sorted(future.get(0).offset for future in futures) == list(range(800))
