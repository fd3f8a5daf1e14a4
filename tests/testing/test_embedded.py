"""EmbeddedBroker from its users' point of view, with librdkafka's client and this package's."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import Producer

from cyproducer import KafkaProducer
from cyproducer.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NoError,
    PolicyViolationError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
)
from cyproducer.testing import EmbeddedBroker, EmbeddedBrokerError
from cyproducer.testing.embedded import ERRORS
from tests.integration.consume import read_all
from tools.harness.until import PATIENCE_S

PRODUCE = 0
MESSAGE_TOO_LARGE = 10
NOT_LEADER = 6


@pytest.fixture(scope="module", params=[False, True], ids=["thread", "process"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=2, process=request.param) as broker:
        yield broker


def produce(
    broker: EmbeddedBroker, topic: str, value: bytes, **options: object
) -> list[ConfluentError | None]:
    """What librdkafka reports for one record: ``[None]`` if it was written, ``[]`` if nothing yet."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "log_level": 0,
            "message.timeout.ms": 20_000,
            **options,
        }
    )
    reports: list[ConfluentError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: reports.append(error))
    producer.flush(20)
    return reports


def partitions_of(broker: EmbeddedBroker, topic: str) -> int:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    return len(producer.list_topics(topic, timeout=10).topics[topic].partitions)


def refuses_connections(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


@pytest.mark.slow
def test_written_records_can_be_read_back(broker: EmbeddedBroker) -> None:
    assert produce(broker, "echo", b"hello", **{"enable.idempotence": True}) == [None]

    assert [record.value for record in read_all(broker.bootstrap_servers, "echo", 1)] == [b"hello"]


def test_every_broker_listens_on_the_loopback_address(broker: EmbeddedBroker) -> None:
    addresses = broker.bootstrap_servers.split(",")

    assert [address.rsplit(":")[0] for address in addresses] == ["127.0.0.1"] * 2
    assert not any(refuses_connections(address) for address in addresses)


@pytest.mark.parametrize(("topic", "asked", "partitions"), [("default", None, 3), ("seven", 7, 7)])
def test_create_topic_makes_the_requested_partitions(
    broker: EmbeddedBroker, topic: str, asked: int | None, partitions: int
) -> None:
    broker.create_topic(topic, asked)

    assert partitions_of(broker, topic) == partitions


def test_topics_given_to_the_constructor_exist_from_the_start() -> None:
    with EmbeddedBroker(topics={"one": 1, "two": 2}) as broker:
        assert (partitions_of(broker, "one"), partitions_of(broker, "two")) == (1, 2)


def test_an_existing_topic_is_not_created_again(broker: EmbeddedBroker) -> None:
    broker.create_topic("twice")

    with pytest.raises(
        EmbeddedBrokerError, match=r"creating topic 'twice' with 3 partitions failed: .*exists"
    ):
        broker.create_topic("twice")


def test_fail_next_responds_with_the_error_codes_in_turn(broker: EmbeddedBroker) -> None:
    broker.create_topic("fails", 1)
    broker.fail_next(PRODUCE, NOT_LEADER, MESSAGE_TOO_LARGE)

    # The first code is retried, the second is final.
    (error,) = produce(broker, "fails", b"x")

    assert error is not None
    assert error.code() == MESSAGE_TOO_LARGE
    assert produce(broker, "fails", b"y") == [None]


@pytest.mark.parametrize(
    "error", ["MESSAGE_TOO_LARGE", "MESSAGE_SIZE_TOO_LARGE", MessageSizeTooLargeError, RecordTooLargeError]
)
def test_fail_takes_an_errors_name_or_class(
    broker: EmbeddedBroker, error: str | type[BrokerResponseError]
) -> None:
    broker.fail("Produce", error)

    (reported,) = produce(broker, "by-name", b"x")
    assert reported is not None
    assert reported.code() == MESSAGE_TOO_LARGE
    assert produce(broker, "by-name", b"y") == [None]


def test_fail_lets_as_many_requests_fail_as_asked() -> None:
    with (
        EmbeddedBroker(topics={"t": 1}) as broker,
        KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=1, enable_idempotence=False
        ) as producer,
    ):
        broker.fail("Produce", "NOT_ENOUGH_REPLICAS", times=3)
        assert producer.send("t", b"v").get(PATIENCE_S).offset == 0
        assert producer.metrics()["producer-metrics"]["record-retry-total"] == 3


def test_fail_refuses_a_producer_id() -> None:
    with EmbeddedBroker(topics={"t": 1}) as broker:
        # It asks for its id as soon as it is connected, and again: the first time may be before send().
        broker.fail("InitProducerId", ClusterAuthorizationFailedError, times=100)
        with (
            KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
            pytest.raises(ClusterAuthorizationFailedError),
        ):
            producer.send("t", b"v").get(PATIENCE_S)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("Consume", "NOT_LEADER_OR_FOLLOWER"), "request='Consume': must be one of ApiVersions, Metadata"),
        (
            ("Produce", "NOT_LEADER"),
            "error='NOT_LEADER': .*, CORRUPT_MESSAGE, .*NOT_LEADER_OR_FOLLOWER",
        ),
        (("Produce", "NO_ERROR"), "error='NO_ERROR': must be an error's class or one of UNKNOWN, "),
        (("Produce", KafkaTimeoutError), "KafkaTimeoutError'>: must be a class of cyproducer.errors with"),
        (("Produce", NoError), "NoError'>: must be a class of cyproducer.errors with an error code"),
        (("Produce", 6), "error=6: must be a class of cyproducer.errors with an error code"),
        (("Produce", "NOT_LEADER_OR_FOLLOWER", 0), "times=0: must be at least 1, or -1 for all"),
    ],
)
def test_fail_refuses_what_it_cannot_do(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EmbeddedBroker().fail(*arguments)


def test_the_names_of_errors_are_the_protocols() -> None:
    for code, name in [
        (-1, "UNKNOWN_SERVER_ERROR"),
        (6, "NOT_LEADER_OR_FOLLOWER"),
        (10, "MESSAGE_TOO_LARGE"),
        (17, "INVALID_TOPIC_EXCEPTION"),
        (29, "TOPIC_AUTHORIZATION_FAILED"),
    ]:
        assert ERRORS[name] == code
    assert 0 not in ERRORS.values()


def test_move_leader_makes_the_producer_find_the_new_one(broker: EmbeddedBroker) -> None:
    broker.create_topic("moves", 1)
    leaders = []
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=1) as producer:
        for node in (1, 2, 1):
            broker.move_leader("moves", 0, node)
            producer.send("moves", b"v").get(PATIENCE_S)
            reader = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
            leaders.append(reader.list_topics("moves", timeout=10).topics["moves"].partitions[0].leader)
    assert leaders == [1, 2, 1]
    assert len(read_all(broker.bootstrap_servers, "moves", 3)) == 3


def test_move_leader_refuses_what_does_not_exist(broker: EmbeddedBroker) -> None:
    with pytest.raises(ValueError, match="broker_id=3: must be 1 to 2"):
        broker.move_leader("t", 0, 3)
    broker.create_topic("one-partition", 1)
    with pytest.raises(EmbeddedBrokerError, match="moving the leader of one-partition-1 to broker 2 failed"):
        broker.move_leader("one-partition", 1, 2)


def test_a_broker_that_is_down_refuses_connections_until_brought_up(broker: EmbeddedBroker) -> None:
    second = broker.bootstrap_servers.split(",")[1]

    broker.take_down(2)
    assert refuses_connections(second)
    broker.bring_up(2)
    assert not refuses_connections(second)


def test_a_broker_that_does_not_exist_cannot_be_taken_down(broker: EmbeddedBroker) -> None:
    with pytest.raises(EmbeddedBrokerError, match="taking broker 9 down failed"):
        broker.take_down(9)


@pytest.mark.slow
def test_delay_delays_responses() -> None:
    with EmbeddedBroker(topics={"slow": 1}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        producer.produce("slow", b"first")
        assert producer.flush(10) == 0

        broker.delay(1, 700)
        producer.produce("slow", b"second")
        assert producer.flush(0.3) == 1
        assert producer.flush(10) == 0


def test_stop_leaves_no_process_and_no_port() -> None:
    broker = EmbeddedBroker(process=True).start()
    pid, address = broker.pid, broker.bootstrap_servers
    assert pid is not None

    broker.stop()
    broker.stop()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert refuses_connections(address)
    assert broker.pid is None
    with pytest.raises(EmbeddedBrokerError, match="not running"):
        _ = broker.bootstrap_servers
    with pytest.raises(EmbeddedBrokerError, match="create_topic needs a running"):
        broker.create_topic("late")


def test_a_stopped_broker_starts_again_empty() -> None:
    broker = EmbeddedBroker(topics={"again": 2})
    for _ in range(2):
        with broker:
            assert produce(broker, "again", b"x") == [None]
            assert len(read_all(broker.bootstrap_servers, "again", 1)) == 1


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a foreign process with Linux's pidfd")
def test_the_broker_ends_when_its_parent_is_killed() -> None:
    script = textwrap.dedent("""
        import os, signal
        from cyproducer.testing import EmbeddedBroker
        broker = EmbeddedBroker(process=True).start()
        print(broker.pid, broker.bootstrap_servers, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    parent = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=30, check=False
    )
    pid, address = parent.stdout.split()

    assert parent.returncode == -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(int(pid))
        try:
            assert select.select([descriptor], [], [], 10)[0], "the broker is still there"
        finally:
            os.close(descriptor)
    assert refuses_connections(address)


def test_a_process_that_died_is_reported(broker: EmbeddedBroker) -> None:
    with EmbeddedBroker(process=True) as doomed:
        assert doomed.pid is not None
        os.kill(doomed.pid, signal.SIGKILL)
        with pytest.raises(EmbeddedBrokerError, match="process ended with status -9"):
            doomed.create_topic("x")


@pytest.mark.parametrize(
    ("protocol", "says"),
    [
        ("SSL", r"a port without TLS\? Then set security_protocol='PLAINTEXT'"),
        ("SASL_SSL", r"a port without TLS\? Then set security_protocol='SASL_PLAINTEXT'"),
        ("SASL_PLAINTEXT", "has no SASL: set security_protocol='PLAINTEXT'"),
    ],
)
@pytest.mark.slow
def test_a_producer_with_tls_or_sasl_is_told_that_the_broker_has_neither(
    broker: EmbeddedBroker, protocol: Any, says: str
) -> None:
    sasl = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "u", "sasl_plain_password": "p"}
    given: dict[str, Any] = sasl if "SASL" in protocol else {}
    with (
        KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol=protocol,
            max_block_ms=3000,
            reconnect_backoff_ms=10,
            **given,
        ) as producer,
        pytest.raises(KafkaError, match=says),
    ):
        producer.send("t", b"v").get(30)


@pytest.mark.parametrize("wrong", [{"brokers": 0}, {"partitions": 0}, {"topics": {"t": -1}}])
def test_numbers_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        EmbeddedBroker(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kafka_version": "5.0"}, "kafka_version='5.0': must be 2.1 to 4.4"),
        ({"kafka_version": "new"}, "kafka_version='new': must be a release of Kafka"),
        ({"topics": {"no topic": 1}}, "no topic"),
        ({"max_bytes": 0}, "max_bytes is 0: must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EmbeddedBroker(**wrong)


# What was written


def test_records_returns_what_was_written(broker: EmbeddedBroker) -> None:
    broker.create_topic("kept", 2)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("kept", b"1", b"k", [("h", b"x")], 0, 1000).get(PATIENCE_S)
        producer.send("kept", b"2", partition=1, timestamp_ms=2000).get(PATIENCE_S)
    assert broker.records("kept") == [
        ("kept", 0, 0, 1000, b"k", b"1", (("h", b"x"),)),
        ("kept", 1, 0, 2000, None, b"2", ()),
    ]
    assert [record.value for record in broker.records("kept", 1)] == [b"2"]
    assert broker.topics["kept"] == 2
    with pytest.raises(EmbeddedBrokerError, match="reading kept-2 failed: the topic has 2 partitions"):
        broker.records("kept", 2)
    with pytest.raises(EmbeddedBrokerError, match="reading topic 'none' failed: there is none"):
        broker.records("none")


@pytest.mark.parametrize("kafka_version", ["2.5", "3.9", "4.1"])
def test_records_of_transactions_are_there_once_they_are_committed(kafka_version: str) -> None:
    with (
        EmbeddedBroker(topics={"t": 1}, kafka_version=kafka_version) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="id") as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"aborted").get(PATIENCE_S)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("t", b"committed").get(PATIENCE_S)
        assert broker.records("t") == []
        everything = broker.records("t", committed=False)
        assert [record.value for record in everything] == [b"aborted", b"committed"]
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
        assert [record.value for record in broker.records("t")] == [b"committed"]


def test_a_transaction_times_out_when_the_test_moves_the_time() -> None:
    with (
        EmbeddedBroker(topics={"t": 1}) as broker,
        KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="id", transaction_timeout_ms=60_000
        ) as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"1").get(PATIENCE_S)
        broker.advance(62_000)
        with pytest.raises(KafkaError):
            producer.commit_transaction()
        assert broker.records("t") == []


def test_a_full_broker_says_so() -> None:
    with (
        EmbeddedBroker(topics={"t": 1}, max_bytes=5000) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        producer.send("t", bytes(2000)).get(PATIENCE_S)
        with pytest.raises(PolicyViolationError, match=r"is full: it holds \d+ bytes, and max_bytes=5000"):
            producer.send("t", bytes(4000)).get(PATIENCE_S)
        assert len(broker.records("t")) == 1


def test_without_automatic_creation_a_topic_must_exist() -> None:
    with (
        EmbeddedBroker(topics={"t": 1}, auto_create=False) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers, max_block_ms=500) as producer,
    ):
        assert producer.send("t", b"1").get(PATIENCE_S).offset == 0
        with pytest.raises(KafkaTimeoutError, match="other"):
            producer.send("other", b"1").get(PATIENCE_S)
        assert broker.topics == {"t": 1}


# Trouble for single topics, and for connections


def test_a_fault_may_concern_one_partition(broker: EmbeddedBroker) -> None:
    broker.create_topic("part", 2)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        broker.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic="part", partition=1)
        good, bad = (producer.send("part", b"v", partition=index) for index in (0, 1))
        assert good.get(PATIENCE_S).offset == 0
        with pytest.raises(TopicAuthorizationFailedError):
            bad.get(PATIENCE_S)
        assert producer.send("part", b"v", partition=1).get(PATIENCE_S).offset == 0


@pytest.mark.parametrize("handled", [False, True])
def test_a_cut_connection_neither_loses_nor_repeats_a_record(broker: EmbeddedBroker, handled: bool) -> None:
    topic = f"cut-{handled}"
    broker.create_topic(topic, 1)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=1) as producer:
        producer.send(topic, b"0").get(PATIENCE_S)
        broker.cut("Produce", handled=handled)
        assert producer.send(topic, b"1").get(PATIENCE_S).offset == 1
    assert [record.value for record in broker.records(topic)] == [b"0", b"1"]


def test_a_throttled_producer_waits(broker: EmbeddedBroker) -> None:
    broker.create_topic("throttled", 1)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        broker.throttle("Produce", 50)
        producer.send("throttled", b"0").get(PATIENCE_S)
        producer.send("throttled", b"1").get(PATIENCE_S)
        assert producer.metrics()["producer-metrics"]["produce-throttle-time-max"] == 50


def test_faults_can_be_cleared(broker: EmbeddedBroker) -> None:
    broker.create_topic("cleared", 1)
    broker.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=-1)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for _ in range(2):
            with pytest.raises(TopicAuthorizationFailedError):
                producer.send("cleared", b"v").get(PATIENCE_S)
        broker.clear_faults()
        assert producer.send("cleared", b"v").get(PATIENCE_S).offset == 0


def test_a_coordinator_can_be_moved(broker: EmbeddedBroker) -> None:
    broker.create_topic("coordinated", 1)
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="moves", retry_backoff_ms=1
    ) as producer:
        producer.init_transactions()
        for node in (1, 2, 1):
            producer.begin_transaction()
            producer.send("coordinated", b"v")
            broker.move_coordinator("transactional_id", "moves", node)
            producer.commit_transaction()
    assert len(broker.records("coordinated")) == 3
    with pytest.raises(ValueError, match="kind='topic': must be 'group' or 'transactional_id'"):
        broker.move_coordinator("topic", "moves", 1)
