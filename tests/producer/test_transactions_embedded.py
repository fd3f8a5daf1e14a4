"""Transactions over librdkafka's mock cluster, which has the first protocol, and fences nobody by itself."""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from cyproducer import KafkaProducer, errors
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import Fetched, read_all
from tests.scripted.producing import WAIT_S

PARTITIONS = 3
numbers = itertools.count()
RETRIED = ["CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=3, kafka_version="3.9") as running:
        yield running


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"topic-{next(numbers)}"
    broker.create_topic(name, PARTITIONS)
    return name


@contextlib.contextmanager
def producing(broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id=f"id-{next(numbers)}",
        retry_backoff_ms=10,
    ) as producer:
        producer.init_transactions(WAIT_S)
        yield producer


def read(broker: EmbeddedBroker, topic: str, expected: int) -> list[Fetched]:
    return read_all(broker.bootstrap_servers, topic, expected, check_crcs=False)


def test_committed_records_are_on_all_partitions(broker: EmbeddedBroker, topic: str) -> None:
    with producing(broker) as producer:
        for number in range(20):
            with producer.transaction(WAIT_S):
                futures = [
                    producer.send(topic, b"%d" % number, partition=partition)
                    for partition in range(PARTITIONS)
                ]
            assert all(future.succeeded() for future in futures)
    found = read(broker, topic, 20 * PARTITIONS)
    values = [str(number).encode() for number in range(20)]
    assert [(record.partition, record.value) for record in found] == [
        (partition, value) for partition in range(PARTITIONS) for value in values
    ]


def test_an_abort_fails_what_was_not_sent_and_the_next_transaction_commits(
    broker: EmbeddedBroker, topic: str
) -> None:
    with producing(broker) as producer:
        producer.begin_transaction()
        sent = producer.send(topic, b"sent", partition=0)
        sent.get(WAIT_S)
        producer.send(topic, b"perhaps sent", partition=0)
        producer.abort_transaction(WAIT_S)
        producer.begin_transaction()
        # Nothing was sent in this one.
        producer.abort_transaction(WAIT_S)
        with producer.transaction(WAIT_S):
            last = producer.send(topic, b"last", partition=0)
    assert sent.succeeded()
    assert last.get(0).offset > sent.get(0).offset


def test_offsets_of_a_consumer_are_accepted(broker: EmbeddedBroker, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"group of {topic}"})
    try:
        with producing(broker) as producer, producer.transaction(WAIT_S):
            producer.send(topic, b"v")
            positions = [TopicPartition(topic, 0, 1), TopicPartition(topic, 1)]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT_S)
    finally:
        consumer.close()


@pytest.mark.parametrize("error", RETRIED)
@pytest.mark.parametrize(
    "request_name", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
)
def test_an_error_that_passes_is_not_seen(
    broker: EmbeddedBroker, topic: str, request_name: str, error: str
) -> None:
    # Before the producer is made, for InitProducerId.
    broker.fail(request_name, error)
    with producing(broker) as producer, producer.transaction(WAIT_S):
        future = producer.send(topic, b"v")
        producer.send_offsets_to_transaction({(topic, 0): 1}, "group", WAIT_S)
    assert future.succeeded()


@pytest.mark.parametrize(
    ("request_name", "error", "cause"),
    [
        ("Produce", "TOPIC_AUTHORIZATION_FAILED", errors.TopicAuthorizationFailedError),
        ("Produce", "INVALID_PRODUCER_EPOCH", errors.InvalidProducerEpochError),
        ("AddPartitionsToTxn", "TOPIC_AUTHORIZATION_FAILED", errors.TopicAuthorizationFailedError),
        ("AddOffsetsToTxn", "GROUP_AUTHORIZATION_FAILED", errors.GroupAuthorizationFailedError),
        ("TxnOffsetCommit", "ILLEGAL_GENERATION", errors.IllegalGenerationError),
    ],
)
def test_an_error_of_the_transaction_aborts_it(
    broker: EmbeddedBroker, topic: str, request_name: str, error: str, cause: type[Exception]
) -> None:
    with producing(broker) as producer:
        broker.fail(request_name, error)
        with pytest.raises(errors.AbortableError) as raised:
            _transaction(producer, topic)
        assert isinstance(raised.value.__cause__, cause)
        _transaction(producer, topic)


def _transaction(producer: KafkaProducer, topic: str) -> None:
    with producer.transaction(WAIT_S):
        producer.send(topic, b"v")
        producer.send_offsets_to_transaction({(topic, 0): 1}, "group", WAIT_S)


@pytest.mark.parametrize("request_name", ["AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"])
def test_a_fenced_producer_says_so_in_every_call(
    broker: EmbeddedBroker, topic: str, request_name: str
) -> None:
    with producing(broker) as producer:
        broker.fail(request_name, "PRODUCER_FENCED")
        with pytest.raises(errors.ProducerFencedError):
            _transaction(producer, topic)
        for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(errors.ProducerFencedError):
                call()


def test_an_id_that_is_refused_may_be_granted(broker: EmbeddedBroker, topic: str) -> None:
    broker.fail("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="refused") as producer:
        with pytest.raises(errors.TransactionalIdAuthorizationFailedError):
            producer.init_transactions(WAIT_S)
        producer.init_transactions(WAIT_S)
        _transaction(producer, topic)


def test_a_transaction_survives_changes_of_leaders_and_lost_connections(topic: str) -> None:
    # Of its own: no other test may use a broker that is down.
    with EmbeddedBroker(brokers=2, topics={topic: 1}) as broker, producing(broker) as producer:
        with producer.transaction(WAIT_S):
            for number in range(6):
                broker.move_leader(topic, 0, number % 2 + 1)
                producer.send(topic, b"%d" % number).get(WAIT_S)
        with producer.transaction(WAIT_S):
            for broker_id in (1, 2):
                broker.take_down(broker_id)
                broker.bring_up(broker_id)
                producer.send(topic, b"%d" % (5 + broker_id)).get(WAIT_S)
        values = [record.value for record in read(broker, topic, 8)]
        assert values == [b"%d" % number for number in range(8)]


def test_transactions_from_asyncio(broker: EmbeddedBroker, topic: str) -> None:
    async def main(producer: KafkaProducer) -> None:
        for _ in range(3):
            async with producer.transaction(WAIT_S):
                future = await producer.send_async(topic, b"v", partition=0)
                await producer.send_offsets_to_transaction_async({(topic, 0): 1}, "group", WAIT_S)
            assert future.succeeded()

    with producing(broker) as producer:
        asyncio.run(main(producer))
    assert [record.value for record in read(broker, topic, 3)] == [b"v"] * 3
