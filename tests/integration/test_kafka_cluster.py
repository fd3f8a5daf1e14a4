"""Tests the fixtures on which the other integration tests rely."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.integration.consume import read_all
from tools.harness.embedded_kafka import EmbeddedKafka
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.kafka_node import KafkaStartError

REPOSITORY = Path(__file__).parents[2]


def produce(cluster: KafkaCluster, topic: str, values: list[bytes], partition: int = 0) -> None:
    """Writes values with librdkafka. Returns once the in-sync replicas have acknowledged all."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    failures: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for value in values:
        producer.produce(
            topic, value, key=b"key", partition=partition, headers=[("h", b"1")], on_delivery=delivered
        )
    assert producer.flush(60) == 0
    assert failures == []


def refuses_connections(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def await_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            assert select.select([descriptor], [], [], 20)[0], f"process {pid} is still there"
        finally:
            os.close(descriptor)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.either_broker
@pytest.mark.smoke
def test_one_node_returns_the_records_written_to_it(kafka: KafkaCluster) -> None:
    kafka.create_topic("smoke", partitions=2)
    produce(kafka, "smoke", [b"a", b"b"], partition=0)
    produce(kafka, "smoke", [b"c"], partition=1)

    records = read_all(kafka.bootstrap_servers, "smoke", expected=3)

    assert [(r.partition, r.offset, r.value) for r in records] == [(0, 0, b"a"), (0, 1, b"b"), (1, 0, b"c")]
    assert {(r.key, r.timestamp_type) for r in records} == {(b"key", "CreateTime")}
    assert records[0].headers == [("h", b"1")]


@pytest.mark.either_broker
def test_only_the_run_on_a_real_kafka_is_marked_so(
    request: pytest.FixtureRequest, broker: str, kafka: KafkaCluster
) -> None:
    marked = request.node.get_closest_marker("kafka") is not None
    assert marked == (broker == "kafka") == (not isinstance(kafka, EmbeddedKafka))


@pytest.mark.either_broker
def test_an_automatically_created_topic_has_three_partitions(kafka: KafkaCluster) -> None:
    produce(kafka, "automatic", [b"x"], partition=2)

    assert [r.partition for r in read_all(kafka.bootstrap_servers, "automatic", expected=1)] == [2]


@pytest.mark.either_broker
def test_the_name_of_a_topic_with_other_partitions_is_refused_at_once(kafka: KafkaCluster) -> None:
    kafka.create_topic("taken")
    kafka.create_topic("taken")

    with pytest.raises(KafkaStartError, match=r"topic 'taken' exists with 1 partitions, not with 2"):
        kafka.create_topic("taken", partitions=2)


@pytest.mark.slow
@pytest.mark.either_broker
def test_read_all_reports_how_many_records_are_missing(kafka: KafkaCluster) -> None:
    kafka.create_topic("short")
    produce(kafka, "short", [b"only"])

    with pytest.raises(TimeoutError, match=r"read 1 of 2 records of 'short'"):
        read_all(kafka.bootstrap_servers, "short", expected=2, timeout=2)


@pytest.mark.kafka
def test_dump_log_shows_batches_and_records(kafka: KafkaCluster) -> None:
    kafka.create_topic("dumped")
    produce(kafka, "dumped", [b"what was written"])

    dump = kafka.dump_log("dumped", 0)

    assert "isvalid: true" in dump
    assert "payload: what was written" in dump


@pytest.mark.kafka
def test_the_brokers_log_is_kept_in_a_file(kafka: KafkaCluster) -> None:
    assert "Kafka Server started" in kafka.broker_log(1).read_text()


@pytest.mark.either_broker(slow=True)
def test_three_nodes_keep_every_record_when_the_leader_is_killed(kafka_cluster: KafkaCluster) -> None:
    kafka_cluster.create_topic("survives", configs={"min.insync.replicas": "2"})
    produce(kafka_cluster, "survives", [b"before"])
    leader = kafka_cluster.leader("survives", 0)

    kafka_cluster.kill(leader)
    produce(kafka_cluster, "survives", [b"after"])

    assert kafka_cluster.leader("survives", 0) not in (leader, -1)
    assert kafka_cluster.pid(leader) is None
    assert [r.value for r in read_all(kafka_cluster.bootstrap_servers, "survives", 2)] == [
        b"before",
        b"after",
    ]

    kafka_cluster.restart(leader)
    kafka_cluster.create_topic("whole-again", partitions=3)


@pytest.mark.either_broker(slow=True)
@pytest.mark.kafka_only("its nodes share a process")
def test_a_paused_node_keeps_its_connections_and_continues_when_resumed(kafka_cluster: KafkaCluster) -> None:
    kafka_cluster.create_topic("paused", replication=1)
    leader = kafka_cluster.leader("paused", 0)
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "log_level": 0})
    producer.produce("paused", b"1")
    assert producer.flush(10) == 0

    kafka_cluster.pause(leader)
    producer.produce("paused", b"2")
    assert producer.flush(1) == 1
    assert not refuses_connections(f"127.0.0.1:{kafka_cluster.port(leader)}")
    kafka_cluster.resume(leader)

    assert producer.flush(60) == 0
    assert [r.value for r in read_all(kafka_cluster.bootstrap_servers, "paused", 2)] == [b"1", b"2"]


@pytest.mark.kafka
@pytest.mark.slow
def test_stop_leaves_no_process_no_port_and_no_file() -> None:
    with KafkaCluster(1, listeners={"SECOND": "PLAINTEXT"}) as cluster:
        pid = cluster.pid(1)
        directory = cluster.log_dir(1)
        addresses = [
            cluster.bootstrap("PLAINTEXT"),
            cluster.bootstrap("SECOND"),
            cluster.bootstrap("CONTROLLER"),
        ]
        assert pid is not None
        assert directory.exists()
        assert not any(refuses_connections(address) for address in addresses)
        cluster.pause(1)

    assert not is_alive(pid)
    assert not directory.exists()
    assert all(refuses_connections(address) for address in addresses)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a foreign process with Linux's pidfd")
def test_brokers_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import os, pathlib, signal
        from tools.harness.kafka_cluster import KafkaCluster
        cluster = KafkaCluster(1, directory=pathlib.Path({str(tmp_path)!r})).start()
        print(cluster.pid(1), cluster.bootstrap_servers, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    parent = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    pid, address = parent.stdout.split()

    assert parent.returncode == -9
    await_end(int(pid))
    assert refuses_connections(address)


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
@pytest.mark.slow
def test_without_java_the_run_reports_it_and_fails_in_ci(ci: str, outcome: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib"),
            *("-c", REPOSITORY / "pyproject.toml", "-k", "one_node_returns", Path(__file__)),
        ],
        # This PATH has no programs, so no java.
        env={"PATH": str(tmp_path), "CI": ci},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert outcome in run.stdout.splitlines()[-1]
    assert "java is not on PATH: install Java 17" in run.stdout
    assert ("1 tests did NOT run against a real Kafka" in run.stdout) == (ci == "")
