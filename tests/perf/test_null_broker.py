"""Tests the null broker: it counts records once, by Kafka's rules, and injects the requested faults."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.errors import SaslAuthenticationFailedError
from perf import null_broker
from perf.null_broker import NullBroker, NullBrokerError
from perf.null_broker.secured import SecuredBroker
from tests.perf.produce import Connection, batch, produce_request
from tools.harness.until import until

NOT_LEADER, CORRUPT, UNKNOWN_TOPIC = 6, 2, 3
OUT_OF_ORDER, DUPLICATE, INVALID_EPOCH, SASL_FAILED = 45, 46, 47, 58
LAST_SEQUENCE = 2**31 - 1

pytestmark = pytest.mark.skipif(null_broker.unavailable() is not None, reason=str(null_broker.unavailable()))


@pytest.fixture
def broker() -> Iterator[NullBroker]:
    with NullBroker(2, topics={"t": 2}, check=True) as broker:
        yield broker


@pytest.fixture
def connection(broker: NullBroker) -> Iterator[Connection]:
    """A connection to the leader of t-0."""
    with Connection(broker.ports[0]) as connection:
        yield connection


def numbers(count: int, sender: int = 0) -> list[bytes]:
    return [(sender << 56 | n).to_bytes(8, "big") for n in range(count)]


# With clients


@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 10, 11, 12, 13])
def test_the_null_broker_serves_this_producer_in_each_version(version: int) -> None:
    with (
        NullBroker(2, partitions=3, produce_version=version, check=True) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        futures = [producer.send("new", value, partition=0) for value in numbers(1000)]
        assert [future.get(20).offset for future in futures] == list(range(1000))
        report = broker.report()

    assert len(report.topics["new"]) == 3
    assert report.records("new") == producer.metrics()["producer-metrics"]["record-send-total"] == 1000
    assert report.total("new", "bytes") == producer.metrics()["producer-metrics"]["byte-total"]
    assert report.total("new", "corrupt") == report.total("new", "disorder") == 0


@pytest.mark.slow
def test_the_null_broker_serves_librdkafka(broker: NullBroker) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True}
    )
    for value in numbers(1000):
        producer.produce("t", value)

    assert producer.flush(20) == 0
    assert (broker.report().records("t"), broker.report().total("t", "corrupt")) == (1000, 0)


def test_the_null_broker_serves_kafka_python(broker: NullBroker) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for value in numbers(1000):
        producer.send("t", value)
    producer.flush(20)
    producer.close()

    assert (broker.report().records("t"), broker.report().total("t", "corrupt")) == (1000, 0)


# Counting


def test_records_without_a_producer_id_are_counted_each_time(
    broker: NullBroker, connection: Connection
) -> None:
    assert connection.produce("t", 0, batch(3)) == (0, 0)
    assert connection.produce("t", 0, batch(3)) == (0, 3)
    assert broker.report().records("t") == 6


def test_each_of_the_last_five_batches_is_recognised(broker: NullBroker, connection: Connection) -> None:
    batches = [batch(2, producer_id=1, epoch=0, sequence=2 * n) for n in range(6)]
    for number, one in enumerate(batches):
        assert connection.produce("t", 0, one) == (0, 2 * number)

    for number, one in list(enumerate(batches))[1:]:
        assert connection.produce("t", 0, one) == (0, 2 * number)
    assert connection.produce("t", 0, batches[0]).error_code == DUPLICATE

    report = broker.report()
    assert (report.records("t"), report.total("t", "duplicates"), report.stale) == (12, 5, 1)


def test_a_gap_in_sequences_is_refused(broker: NullBroker, connection: Connection) -> None:
    connection.produce("t", 0, batch(2, producer_id=1, epoch=0, sequence=0))

    assert connection.produce("t", 0, batch(1, producer_id=1, epoch=0, sequence=3)) == (OUT_OF_ORDER, -1)
    report = broker.report()
    assert (report.records("t"), report.total("t", "out_of_order")) == (2, 1)


def test_each_producer_and_partition_has_its_own_sequence(broker: NullBroker, connection: Connection) -> None:
    assert connection.produce("t", 0, batch(2, producer_id=1, epoch=0, sequence=0)) == (0, 0)
    assert connection.produce("t", 0, batch(2, producer_id=2, epoch=0, sequence=0)) == (0, 2)
    with Connection(broker.ports[1]) as other:
        assert other.produce("t", 1, batch(2, producer_id=1, epoch=0, sequence=0)) == (0, 0)


def test_a_new_epoch_starts_at_sequence_zero_and_fences_the_old_one(connection: Connection) -> None:
    connection.produce("t", 0, batch(2, producer_id=1, epoch=0, sequence=0))

    assert connection.produce("t", 0, batch(1, producer_id=1, epoch=1, sequence=2)).error_code == OUT_OF_ORDER
    assert connection.produce("t", 0, batch(1, producer_id=1, epoch=1, sequence=0)) == (0, 2)
    assert (
        connection.produce("t", 0, batch(1, producer_id=1, epoch=0, sequence=2)).error_code == INVALID_EPOCH
    )


def test_sequences_wrap_inside_a_batch(connection: Connection) -> None:
    connection.produce("t", 0, batch(1, producer_id=1, epoch=0, sequence=LAST_SEQUENCE - 1))

    assert connection.produce("t", 0, batch(3, producer_id=1, epoch=0, sequence=LAST_SEQUENCE)) == (0, 1)
    assert connection.produce("t", 0, batch(1, producer_id=1, epoch=0, sequence=2)) == (0, 4)
    assert connection.produce("t", 0, batch(3, producer_id=1, epoch=0, sequence=LAST_SEQUENCE)) == (0, 1)


def test_only_the_leader_accepts_records(broker: NullBroker, connection: Connection) -> None:
    assert connection.produce("t", 1, batch(1)).error_code == NOT_LEADER
    assert connection.produce("t", 2, batch(1)).error_code == UNKNOWN_TOPIC
    assert connection.produce("nothing", 0, batch(1)).error_code == UNKNOWN_TOPIC
    assert broker.report().records("t") == 0


def test_a_batch_with_a_wrong_checksum_is_refused(broker: NullBroker, connection: Connection) -> None:
    assert connection.produce("t", 0, batch(1)[:-1] + b"\xff").error_code == CORRUPT
    assert (broker.report().records("t"), broker.report().total("t", "corrupt")) == (0, 1)


def test_numbers_in_values_are_summed(broker: NullBroker, connection: Connection) -> None:
    connection.produce("t", 0, batch(numbers(100)))
    connection.produce("t", 0, batch(numbers(50, sender=3)))

    counted = [*range(100), *range(50)]
    assert broker.report().sums("t") == tuple(sum(n**power for n in counted) for power in (1, 2, 3))
    assert broker.report().total("t", "disorder") == broker.report().total("t", "unnumbered") == 0


def test_a_number_that_does_not_increase_is_counted(broker: NullBroker, connection: Connection) -> None:
    one, two = numbers(2)
    connection.produce("t", 0, batch([two, one, one]))

    assert broker.report().total("t", "disorder") == 2


def test_values_without_a_number_are_counted(broker: NullBroker, connection: Connection) -> None:
    connection.produce("t", 0, batch([b"short", b"\xffno sender"]))

    assert broker.report().total("t", "unnumbered") == 2


# Faults


@pytest.mark.parametrize(
    "fault",
    [
        *("cut_in", "cut_out", "lose", "stall", "delay", "split", "throttle"),
        *("refuse", "after", "move", "down", "leaderless", "no_id"),
    ],
)
def test_each_fault_happens_and_loses_nothing(broker: NullBroker, fault: str) -> None:
    broker.faults(**{fault: 0.3}, seed=5, delay_ms=5, stall_ms=50, down_ms=20)
    options: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "retry_backoff_ms": 1,
        "reconnect_backoff_ms": 1,
        "reconnect_backoff_max_ms": 10,
        "request_timeout_ms": 200 if fault == "lose" else 5000,
    }
    sent = 0

    def happened() -> int:
        nonlocal sent
        # A new producer each time, because some faults only affect its start.
        with KafkaProducer(**options) as producer:
            producer.send("t", sent.to_bytes(8, "big")).get(60)
        sent += 1
        return broker.report().faults[fault]

    until(happened, fault)
    report = broker.report()

    assert [name for name, count in report.faults.items() if count] == [fault]
    assert report.records("t") == sent
    assert report.total("t", "disorder") == 0


def test_a_seed_reproduces_the_faults() -> None:
    def outcomes(seed: int) -> list[int]:
        with NullBroker(topics={"t": 1}) as broker, Connection(broker.ports[0]) as connection:
            broker.faults(seed=seed, refuse=0.5)
            return [connection.produce("t", 0, batch(1)).error_code for _ in range(50)]

    assert outcomes(1) == outcomes(1)
    assert outcomes(1) != outcomes(2)
    assert {0, 3, 7, 19, 56} >= set(outcomes(1)) > {0}


def test_a_response_can_be_lost_after_counting(broker: NullBroker, connection: Connection) -> None:
    broker.faults(cut_out=1)
    with pytest.raises(ConnectionError):
        connection.produce("t", 0, batch(1, producer_id=1, epoch=0, sequence=0))
    assert broker.report().records("t") == 1

    broker.faults()
    with Connection(broker.ports[0]) as again:
        assert again.produce("t", 0, batch(1, producer_id=1, epoch=0, sequence=0)) == (0, 0)
    assert broker.report().records("t") == 1


def test_a_request_that_is_cut_off_is_not_counted(broker: NullBroker, connection: Connection) -> None:
    broker.faults(cut_in=1)
    with pytest.raises(ConnectionError):
        connection.produce("t", 0, batch(1))

    assert broker.report().records("t") == 0


def test_a_connection_that_lost_a_response_stays_silent(broker: NullBroker, connection: Connection) -> None:
    broker.faults(lose=1)
    connection.send(produce_request("t", 0, batch(1)))
    until(lambda: broker.report().records("t") == 1, "the first batch")
    broker.faults()
    connection.send(produce_request("t", 0, batch(2)))
    until(lambda: broker.report().records("t") == 3, "the second batch")

    assert connection.is_silent()


def test_a_broker_that_is_down_closes_connections_at_once(broker: NullBroker, connection: Connection) -> None:
    broker.faults(down=1, down_ms=1_000_000_000)
    with pytest.raises(ConnectionError):
        connection.produce("t", 0, batch(1))
    broker.faults()

    with pytest.raises(ConnectionError), Connection(broker.ports[0]) as again:
        again.produce("t", 0, batch(1))
    with Connection(broker.ports[1]) as other:
        assert other.produce("t", 1, batch(1)).error_code == 0


def test_with_acks_0_an_error_closes_the_connection(broker: NullBroker, connection: Connection) -> None:
    connection.send(produce_request("t", 0, batch(1), acks=0))
    connection.send(produce_request("t", 1, batch(1), acks=0))

    with pytest.raises(ConnectionError):
        connection.receive()
    assert broker.report().records("t") == 1


# SASL and TLS


def authenticate(connection: Connection, message: bytes) -> int:
    """Returns the error code of SaslAuthenticate v0."""
    connection.send(struct.pack(">hhihh", 17, 1, 1, -1, 5) + b"PLAIN")
    assert connection.receive()[4:6] == bytes(2)
    connection.send(struct.pack(">hhihi", 36, 0, 2, -1, len(message)) + message)
    return int.from_bytes(connection.receive()[4:6])


def test_only_authenticated_connections_are_served() -> None:
    with NullBroker(topics={"t": 1}, session_ms=0) as broker:
        with Connection(broker.ports[0]) as stranger, pytest.raises(ConnectionError):
            stranger.produce("t", 0, batch(1))
        with Connection(broker.ports[0]) as connection:
            assert authenticate(connection, b"\0soak\0wrong") == SASL_FAILED
            with pytest.raises(ConnectionError):
                connection.produce("t", 0, batch(1))
        with Connection(broker.ports[0]) as connection:
            assert authenticate(connection, b"\0soak\0secret") == 0
            assert connection.produce("t", 0, batch(1)).error_code == 0
        report = broker.report()
    assert (report.requests["sasl_authenticate"], report.expired) == (2, 0)


def test_a_session_ends() -> None:
    with NullBroker(topics={"t": 1}, session_ms=1) as broker, Connection(broker.ports[0]) as connection:
        assert authenticate(connection, b"\0soak\0secret") == 0
        time.sleep(0.002)
        with pytest.raises(ConnectionError):
            connection.produce("t", 0, batch(1))
        assert broker.report().expired == 1
        with Connection(broker.ports[0]) as connection:
            assert authenticate(connection, b"\0soak\0secret") == 0


@pytest.mark.slow
def test_a_secured_broker_is_reached_by_tls_with_sasl_and_renews_sessions() -> None:
    with SecuredBroker(2, topics={"t": 2}, session_ms=3000) as broker:
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **broker.client_options) as producer:
            metrics = producer.metrics
            for partition in (0, 1):
                producer.send("t", b"value", partition=partition).get(20)
            made = metrics()["producer-metrics"]["connection-creation-total"]
            first = broker.report().requests["sasl_authenticate"]
            until(
                lambda: (
                    producer.send("t", b"value", partition=0).get(20)
                    and broker.report().requests["sasl_authenticate"] > first
                ),
                "a renewed session",
            )
            assert metrics()["producer-metrics"]["connection-creation-total"] == made
        options = {**broker.client_options, "sasl_plain_password": "wrong"}
        with (
            KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer,
            pytest.raises(SaslAuthenticationFailedError, match="refused user 'soak'"),
        ):
            producer.send("t", b"value").get(20)
        assert broker.report().expired == 0


@pytest.mark.slow
def test_a_secured_broker_passes_on_cuts_and_loses_nothing() -> None:
    options: dict[str, Any] = {"retry_backoff_ms": 5, "reconnect_backoff_ms": 5, "linger_ms": 0}
    with SecuredBroker(2, topics={"t": 2}, check=True) as broker:
        broker.faults(seed=3, cut_in=0.05, cut_out=0.05, down=0.01, down_ms=50)
        options |= broker.client_options
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
            for value in numbers(200):
                producer.send("t", value, partition=0).get(60)
            assert producer.metrics()["producer-metrics"]["connection-creation-total"] > 3
        report = broker.report()
    assert report.records("t") == 200
    assert report.total("t", "disorder") == report.total("t", "corrupt") == 0


# The process


def test_a_malformed_request_closes_only_its_connection(broker: NullBroker, connection: Connection) -> None:
    with Connection(broker.ports[0]) as other:
        other.send(struct.pack(">hhih", 0, 7, 1, 500))
        with pytest.raises(ConnectionError):
            other.receive()

    assert connection.produce("t", 0, batch(1)) == (0, 0)


def test_unknown_commands_are_errors(broker: NullBroker) -> None:
    with pytest.raises(NullBrokerError, match="rain=1"):
        broker.faults(rain=1)
    with pytest.raises(NullBrokerError, match="topic t 1"):
        broker.topic("t", 1)


def test_the_process_ends_with_the_block() -> None:
    with NullBroker() as broker:
        assert Path(f"/proc/{broker.pid}").exists()

    assert not Path(f"/proc/{broker.pid}").exists()


def test_the_process_ends_with_its_parent() -> None:
    program = (
        "from perf.null_broker import NullBroker\nimport os\nprint(NullBroker().pid, flush=True)\nos._exit(1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONSAFEPATH": ""},
        capture_output=True,
        text=True,
    )
    pid = int(done.stdout)

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            # The second if it ends between opening and reading.
            return True

    until(gone, "the end of the null broker")


def test_without_a_compiler_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")

    assert (
        null_broker.unavailable() == "the null broker needs a C compiler: cc, gcc, clang, or one named by $CC"
    )
    with pytest.raises(NullBrokerError, match="needs a C compiler"):
        NullBroker()
