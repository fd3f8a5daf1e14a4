"""Transactions of ``cyproducer.confluent.Producer``, beside those of confluent-kafka."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import confluent_kafka
import pytest
from confluent_kafka import Consumer, TopicPartition

import cyproducer.confluent as ours
from cyproducer.confluent import KafkaError, KafkaException, Message, Producer, SerializingProducer
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata
from cyproducer.testing import EmbeddedBroker
from tests.confluent.conftest import Make
from tests.forked import in_child, needs_fork
from tests.scripted.odd_servers import refusing_address
from tests.scripted.producing import WAIT_S
from tests.scripted.scripted_broker import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Act,
    ScriptedCluster,
)
from tests.scripted.scripted_transactions import CommitOffsets
from tests.scripted.transacting import ended
from tools.harness.until import until, until_blocked

P = TypeVar("P", bound=Producer)
MINE = {"transactional.id": "mine"}
PRODUCER_FENCED, TOPIC_AUTHORIZATION_FAILED = 90, 29
ADD_PARTITIONS = 24


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": 1}, kafka_version="3.9") as running:
        yield running


def refused(call: Callable[..., object], *arguments: object) -> tuple[str, bool, bool, bool]:
    """The error of a call: code, whether it is retriable, fatal, and requires an abort."""
    with pytest.raises((KafkaException, confluent_kafka.KafkaException)) as caught:
        call(*arguments)
    error = caught.value.args[0]
    return error.name(), error.retriable(), error.fatal(), error.txn_requires_abort()


def begun(producer: P) -> P:
    """The producer, in its first transaction."""
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    return producer


# As confluent-kafka does


@pytest.mark.parametrize("client", [confluent_kafka, ours], ids=["confluent-kafka", "cyproducer"])
class TestBoth:
    """What a program sees from both."""

    def make(self, client: Any, broker: EmbeddedBroker, **options: Any) -> Any:
        common = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "linger.ms": 0}
        return client.Producer(common | {"transactional.id": f"{client.__name__}-{id(self)}"} | options)

    def test_calls_out_of_order(self, client: Any, broker: EmbeddedBroker) -> None:
        state = ("_STATE", False, False, False)
        producer = self.make(client, broker)
        assert refused(producer.begin_transaction) == state
        producer.init_transactions(WAIT_S)
        assert refused(producer.init_transactions) == state
        assert refused(producer.produce, "orders", b"v") == state
        assert refused(producer.commit_transaction) == state
        assert refused(producer.abort_transaction) == state
        producer.begin_transaction()
        assert refused(producer.begin_transaction) == state
        producer.commit_transaction()
        assert refused(producer.commit_transaction) == state
        assert refused(producer.produce, "orders", b"v") == state

    def test_without_a_transactional_id(self, client: Any, broker: EmbeddedBroker) -> None:
        producer = client.Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for call in (
            producer.init_transactions,
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
        ):
            assert refused(call) == ("_NOT_CONFIGURED", False, False, False)

    def test_a_call_that_timed_out_comes_first(self, client: Any, broker: EmbeddedBroker) -> None:
        conflict = ("_CONFLICT", True, False, False)
        producer = self.make(client, broker, **{"bootstrap.servers": refusing_address()})
        for _ in range(2):
            assert refused(producer.init_transactions, 0.1) == ("_TIMED_OUT", True, False, False)
        assert refused(producer.begin_transaction) == conflict
        assert refused(producer.commit_transaction) == conflict
        assert refused(producer.abort_transaction) == conflict

    def test_a_record_that_failed_makes_an_abort_necessary(self, client: Any, broker: EmbeddedBroker) -> None:
        reports: list[str | None] = []
        producer = begun(self.make(client, broker))
        broker.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
        producer.produce("orders", b"v", on_delivery=lambda error, _: reports.append(error and error.name()))
        denied = ("TOPIC_AUTHORIZATION_FAILED", False, False, True)
        assert refused(producer.commit_transaction) == denied
        assert reports == ["TOPIC_AUTHORIZATION_FAILED"]
        assert refused(producer.commit_transaction) == denied
        assert refused(producer.begin_transaction) == denied
        assert refused(producer.produce, "orders", b"v")[:3] == ("_STATE", False, False)
        producer.abort_transaction()
        producer.begin_transaction()

    def test_what_was_not_sent_is_purged(self, client: Any, broker: EmbeddedBroker) -> None:
        reports: list[str | None] = []
        producer = begun(self.make(client, broker, **{"linger.ms": 5000}))
        for _ in range(3):
            producer.produce("orders", b"v", callback=lambda error, _: reports.append(error and error.name()))
        producer.abort_transaction()
        assert reports == ["_PURGE_QUEUE"] * 3
        assert len(producer) == 0

    def test_a_fenced_producer_can_do_nothing_more(self, client: Any, broker: EmbeddedBroker) -> None:
        producer = begun(self.make(client, broker))
        broker.fail_next(ADD_PARTITIONS, PRODUCER_FENCED)
        producer.produce("orders", b"v")
        fenced = ("_FENCED", False, True, False)
        assert refused(producer.commit_transaction) == fenced
        assert refused(producer.commit_transaction) == fenced
        assert refused(producer.produce, "orders", b"v")[0] == "_FATAL"
        producer.flush(WAIT_S)

    def test_flush_raises_once_that_it_is_fenced(self, client: Any, broker: EmbeddedBroker) -> None:
        told: list[Any] = []
        producer = begun(self.make(client, broker, error_cb=told.append))
        broker.fail_next(ADD_PARTITIONS, PRODUCER_FENCED)
        producer.produce("orders", b"v")
        assert refused(producer.flush, WAIT_S) == ("_FENCED", False, True, False)
        assert producer.flush(WAIT_S) == 0
        assert told == []

    def test_what_produce_refuses_is_no_part_of_it(self, client: Any, broker: EmbeddedBroker) -> None:
        producer = begun(self.make(client, broker))
        assert refused(producer.produce, "orders", bytes(2_000_000))[0] == "MSG_SIZE_TOO_LARGE"
        producer.commit_transaction()

    def test_wrong_arguments_for_offsets(self, client: Any, broker: EmbeddedBroker) -> None:
        producer = begun(self.make(client, broker))
        with pytest.raises(TypeError):
            producer.send_offsets_to_transaction([TopicPartition("orders", 0, 1)], None)
        with pytest.raises(TypeError):
            producer.send_offsets_to_transaction(["orders"], _metadata(broker))

    def test_partitions_without_a_position_are_left_out(self, client: Any, broker: EmbeddedBroker) -> None:
        producer = begun(self.make(client, broker))
        producer.send_offsets_to_transaction([TopicPartition("orders", 0)], _metadata(broker))
        producer.commit_transaction()


def _metadata(broker: EmbeddedBroker) -> Any:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers", "log_level": 0}
    )
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def test_a_commit_that_fails_at_once_has_reported_the_records(broker: EmbeddedBroker) -> None:
    reports: list[object] = []
    options = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "transactional.id": "failed"}
    producer = begun(Producer(options))
    broker.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
    producer.produce("orders", b"v", on_delivery=lambda error, _: reports.append(error and error.name()))
    transactions = producer._engine()._runtime.client.transaction_client
    assert transactions is not None
    until(lambda: transactions.machine.failed, "the failure of the record")
    assert refused(producer.commit_transaction)[0] == "TOPIC_AUTHORIZATION_FAILED"
    assert reports == ["TOPIC_AUTHORIZATION_FAILED"]
    producer.abort_transaction()


# Callbacks


@pytest.mark.parametrize("level", [None, 2], ids=["first protocol", "second protocol"])
def test_commit_calls_the_callbacks_on_its_thread_before_it_commits(
    cluster: ScriptedCluster, make: Make, level: int | None
) -> None:
    cluster.set_transaction_version(level, 1)
    seen: list[tuple[int, int | None, list[bool]]] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None
        seen.append((threading.get_ident(), message.offset(), ended(cluster)))

    producer = make(MINE | {"linger.ms": 60_000 / 3, "on_delivery": report})
    producer.init_transactions(WAIT_S)
    for number in range(2):
        producer.begin_transaction()
        producer.produce("orders", b"a")
        producer.produce("orders", b"b")
        producer.commit_transaction(WAIT_S)
        here = threading.get_ident()
        done = [True] * number
        assert seen[2 * number :] == [(here, 2 * number, done), (here, 2 * number + 1, done)]
    assert ended(cluster) == [True, True]
    assert cluster.topics["orders"].values == [b"a", b"b"] * 2


@pytest.mark.parametrize("go_on", ["commit_transaction", "abort_transaction"])
def test_an_exception_in_a_callback_comes_before_the_commit(
    cluster: ScriptedCluster, make: Make, go_on: str
) -> None:
    def report(error: KafkaError | None, message: Message) -> None:
        raise ValueError(f"offset {message.offset()}")

    producer = begun(make(MINE))
    producer.produce("orders", b"v", on_delivery=report)
    with pytest.raises(ValueError, match="offset 0"):
        producer.commit_transaction(WAIT_S)
    assert ended(cluster) == []
    getattr(producer, go_on)(WAIT_S)
    assert ended(cluster) == [go_on == "commit_transaction"]


def test_an_exception_in_a_callback_comes_after_the_abort(cluster: ScriptedCluster, make: Make) -> None:
    def report(error: KafkaError | None, message: Message) -> None:
        assert error is not None
        raise LookupError(error.name())

    producer = begun(make(MINE | {"linger.ms": 5000}))
    producer.produce("orders", b"v", on_delivery=report)
    with pytest.raises(LookupError, match="_PURGE_QUEUE"):
        producer.abort_transaction(WAIT_S)
    producer.begin_transaction()


def test_a_record_in_flight_has_its_own_outcome_when_the_transaction_is_aborted(
    cluster: ScriptedCluster, held: threading.Event, make: Make
) -> None:
    reports: list[KafkaError | None] = []
    producer = begun(make(MINE))
    producer.produce("orders", b"v", on_delivery=lambda error, _: reports.append(error))
    cluster.wait_for_requests(PRODUCE, 1)
    aborting = threading.Thread(target=producer.abort_transaction, args=(WAIT_S,))
    aborting.start()
    until_blocked(aborting)
    assert reports == []
    held.set()
    aborting.join(WAIT_S)
    assert reports == [None]
    assert ended(cluster) == [False]


# Timeouts, and several threads


def test_a_commit_that_timed_out_is_resumed(cluster: ScriptedCluster, make: Make) -> None:
    held = threading.Event()
    cluster.act(END_TXN, Act(hold=held))
    producer = begun(make(MINE))
    producer.produce("orders", b"v")
    assert refused(producer.commit_transaction, 0.2) == ("_TIMED_OUT", True, False, False)
    assert refused(producer.abort_transaction) == ("_CONFLICT", True, False, False)
    held.set()
    producer.commit_transaction(WAIT_S)
    assert ended(cluster) == [True]
    producer.begin_transaction()


def test_a_commit_that_timed_out_before_its_records_is_resumed(
    cluster: ScriptedCluster, held: threading.Event, make: Make
) -> None:
    producer = begun(make(MINE))
    producer.produce("orders", b"v")
    with pytest.raises(KafkaException, match="1 records are not delivered or not reported") as caught:
        producer.commit_transaction(0.2)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    held.set()
    producer.commit_transaction(WAIT_S)
    assert ended(cluster) == [True]


def test_without_a_timeout_a_call_ends_with_the_transactions_time(make: Make) -> None:
    producer = make(MINE | {"transaction.timeout.ms": 50, "linger.ms": 0}, alone=True)
    with pytest.raises(KafkaException, match=r"init_transactions\(\) not complete within 0.1 s"):
        producer.init_transactions()


def test_the_same_call_on_two_threads(cluster: ScriptedCluster, make: Make) -> None:
    held = threading.Event()
    cluster.act(INIT_PRODUCER_ID, Act(hold=held))
    producer = make(MINE)
    first = threading.Thread(target=producer.init_transactions, args=(WAIT_S,))
    first.start()
    cluster.wait_for_requests(INIT_PRODUCER_ID, 1)
    assert refused(producer.init_transactions) == ("_PREV_IN_PROGRESS", True, False, False)
    assert refused(producer.begin_transaction) == ("_CONFLICT", True, False, False)
    held.set()
    first.join(WAIT_S)
    producer.begin_transaction()


# Offsets


def test_offsets_of_confluent_kafkas_consumer_are_sent_whole(cluster: ScriptedCluster, make: Make) -> None:
    producer = begun(make(MINE))
    metadata = b"CGMDv2:" + (9).to_bytes(4, "little") + b"readers\0member\0\1"
    positions = [TopicPartition("orders", 0, 5, "text"), TopicPartition("orders", 1)]
    producer.send_offsets_to_transaction(positions, metadata, WAIT_S)
    producer.commit_transaction(WAIT_S)
    (received,) = cluster.received(TXN_OFFSET_COMMIT)
    asked = received.transaction
    assert isinstance(asked, CommitOffsets)
    assert asked.group == ConsumerGroupMetadata("readers", 9, "member")
    assert asked.offsets == {("orders", 0): OffsetAndMetadata(5, "text")}
    assert cluster.coordinator.committed == {"readers": asked.offsets}


def test_a_member_that_lost_its_partitions_must_abort(cluster: ScriptedCluster, make: Make) -> None:
    cluster.act(TXN_OFFSET_COMMIT, Act(error=KafkaError.ILLEGAL_GENERATION))
    producer = begun(make(MINE))
    positions = [TopicPartition("orders", 0, 5)]
    group = ConsumerGroupMetadata("readers", 9, "member")
    illegal = ("ILLEGAL_GENERATION", False, False, True)
    assert refused(producer.send_offsets_to_transaction, positions, group) == illegal
    assert refused(producer.commit_transaction) == illegal
    producer.abort_transaction(WAIT_S)


def test_offsets_that_timed_out_go_on_with_the_commit(cluster: ScriptedCluster, make: Make) -> None:
    held = threading.Event()
    cluster.act(TXN_OFFSET_COMMIT, Act(hold=held))
    producer = begun(make(MINE))
    positions = [TopicPartition("orders", 0, 5)]
    timed_out = ("_TIMED_OUT", True, False, False)
    assert refused(producer.send_offsets_to_transaction, positions, "readers", 0.1) == timed_out
    assert refused(producer.commit_transaction, 0.1) == timed_out
    held.set()
    producer.commit_transaction(WAIT_S)
    assert cluster.coordinator.committed["readers"] == {("orders", 0): OffsetAndMetadata(5)}


def test_offsets_that_are_none(cluster: ScriptedCluster, make: Make) -> None:
    producer = begun(make(MINE))
    positions = [TopicPartition("orders", 0, confluent_kafka.OFFSET_END)]
    assert refused(producer.send_offsets_to_transaction, positions, "readers") == (
        "_INVALID_ARG", False, False, False
    )  # fmt: skip


# Errors


@pytest.mark.parametrize(
    ("api_key", "error", "expected"),
    [
        (INIT_PRODUCER_ID, 53, ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False, False, False)),
        (INIT_PRODUCER_ID, 50, ("INVALID_TRANSACTION_TIMEOUT", False, False, False)),
        (END_TXN, 47, ("_FENCED", False, True, False)),
        (END_TXN, 49, ("INVALID_PRODUCER_ID_MAPPING", False, True, False)),
        (END_TXN, 53, ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False, False, True)),
        (ADD_PARTITIONS_TO_TXN, 120, ("TRANSACTION_ABORTABLE", False, False, True)),
        (ADD_PARTITIONS_TO_TXN, 35, ("_UNSUPPORTED_FEATURE", False, True, False)),
    ],
)
def test_codes_of_brokers(
    cluster: ScriptedCluster, make: Make, api_key: int, error: int, expected: tuple[str, bool, bool, bool]
) -> None:
    cluster.act(api_key, Act(error=error))
    producer = make(MINE)

    def whole() -> None:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce("orders", b"v")
        producer.commit_transaction(WAIT_S)

    assert refused(whole) == expected


def test_an_abort_that_is_refused_must_be_repeated(cluster: ScriptedCluster, make: Make) -> None:
    producer = begun(make(MINE))
    producer.produce("orders", b"v")
    producer.flush(WAIT_S)
    cluster.act(END_TXN, Act(error=53))
    assert refused(producer.abort_transaction, WAIT_S) == (
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False, False, True
    )  # fmt: skip
    producer.abort_transaction(WAIT_S)
    producer.begin_transaction()


def test_a_refused_id_may_be_granted_later(cluster: ScriptedCluster, make: Make) -> None:
    cluster.act(INIT_PRODUCER_ID, Act(error=53))
    producer = make(MINE)
    assert refused(producer.init_transactions, WAIT_S)[0] == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    producer.init_transactions(WAIT_S)


def test_a_record_that_timed_out_is_an_inconsistency(cluster: ScriptedCluster, make: Make) -> None:
    cluster.act(PRODUCE, Act(silent=True))
    producer = begun(make(MINE | {"message.timeout.ms": 300}))
    producer.produce("orders", b"v")
    assert refused(producer.commit_transaction, WAIT_S) == ("_INCONSISTENT", False, False, True)
    assert refused(producer.produce, "orders", b"v") == ("_STATE", False, False, True)


def test_a_producer_that_failed_says_so_in_every_call(cluster: ScriptedCluster, make: Make) -> None:
    cluster.act(ADD_PARTITIONS_TO_TXN, Act(error=PRODUCER_FENCED))
    producer = begun(make(MINE))
    producer.produce("orders", b"v")
    fenced = ("_FENCED", False, True, False)
    assert refused(producer.flush, WAIT_S) == fenced
    assert refused(producer.produce, "orders", b"v") == ("_FATAL", False, True, False)
    assert refused(producer.commit_transaction) == fenced
    assert refused(producer.abort_transaction) == fenced
    assert refused(producer.begin_transaction) == fenced


def test_options_that_exclude_transactions(make: Make) -> None:
    for options in ({"acks": 1}, {"enable.idempotence": False}, {"max.in.flight": 6}):
        with pytest.raises(KafkaException, match=r"transactional\.id='mine'") as caught:
            make(MINE | options)
        assert caught.value.args[0].code() == KafkaError._INVALID_ARG


# The rest


def test_a_serializing_producer_has_transactions(cluster: ScriptedCluster) -> None:
    with SerializingProducer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": "mine",
            "value.serializer": lambda value, context: f"{context.topic} {value}".encode(),
        }
    ) as producer:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce("orders", value=7)
        producer.commit_transaction(WAIT_S)
    assert cluster.topics["orders"].values == [b"orders 7"]
    assert ended(cluster) == [True]


def test_close_aborts_what_is_open(cluster: ScriptedCluster, make: Make) -> None:
    held = threading.Event()
    cluster.act(END_TXN, Act(hold=held))
    producer = begun(make(MINE))
    producer.produce("orders", b"v")
    closing = threading.Thread(target=producer.close)
    closing.start()
    cluster.wait_for_requests(END_TXN, 1)
    until_blocked(closing)
    # It waits for the answer.
    assert closing.is_alive()
    held.set()
    closing.join(WAIT_S)
    assert ended(cluster) == [False]
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.commit_transaction()


@needs_fork
def test_a_child_of_a_fork_begins_anew(cluster: ScriptedCluster, make: Make) -> None:
    producer = begun(make(MINE))
    producer.produce("orders", b"parent")

    def child() -> list[Any]:
        found = [refused(producer.commit_transaction)]
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.commit_transaction(WAIT_S)
        return found

    # As if another thread were in a call.
    with producer._one_call("init_transactions"):
        assert in_child(child) == [("_STATE", False, False, False)]
    producer.commit_transaction(WAIT_S)
    assert cluster.topics["orders"].values == [b"parent"]
    assert isinstance(producer, Producer)
