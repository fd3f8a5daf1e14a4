"""The command line as a process, with the real producer and the embedded broker."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import pytest

from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import read_all

COMMAND = [sys.executable, "-m", "cyproducer"]
PATIENCE_S = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(partitions=2) as broker:
        yield broker


def run(
    broker: EmbeddedBroker, topic: str, *options: str, stdin: bytes
) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, "produce", "-b", broker.bootstrap_servers, "-t", topic, *options]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE_S, check=False)


class Running:
    """A command whose streams are pipes. It is killed if it has not ended when the context ends."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        pipes = self.process.stdin, self.process.stdout, self.process.stderr
        assert None not in pipes
        self.stdin: IO[bytes]
        self.stdout: IO[bytes]
        self.stderr: IO[bytes]
        self.stdin, self.stdout, self.stderr = pipes  # type: ignore[assignment]

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        with self.process:
            pass

    def write(self, text: bytes) -> None:
        self.stdin.write(text)
        self.stdin.flush()

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Waits for the end, maybe after a signal; returns the exit status and what stderr has said."""
        if number is not None:
            self.process.send_signal(number)
        told = self.stderr.read().decode()
        return self.process.wait(PATIENCE_S), told


@pytest.mark.slow
def test_json_lines_arrive_with_all_their_fields(broker: EmbeddedBroker) -> None:
    broker.create_topic("json")
    lines = (
        b'{"key": "k", "value": {"a": 1}, "headers": [["h", "1"], ["h", null]], "partition": 1, '
        b'"timestamp_ms": 17000000}\n'
        b'{"key": "gone", "value": null, "partition": 1}\n'
    )

    sent = run(broker, "json", "--json", "-z", "zstd", stdin=lines)

    assert (sent.returncode, sent.stdout) == (0, b"")
    assert sent.stderr.startswith(b"2 records delivered")
    first, second = read_all(broker.bootstrap_servers, "json", expected=2)
    assert (first.key, first.value, first.headers) == (b"k", b'{"a":1}', [("h", b"1"), ("h", None)])
    assert (first.partition, first.timestamp_ms) == (1, 17_000_000)
    assert (second.key, second.value) == (b"gone", None)


@pytest.mark.slow
def test_many_lines_arrive_exactly_once_and_in_order_per_key(broker: EmbeddedBroker) -> None:
    broker.create_topic("many")
    lines = b"".join(b"%d:%d\n" % (number % 7, number) for number in range(20_000))

    sent = run(broker, "many", "-K", ":", "-z", "lz4", "--linger-ms", "5", stdin=lines)

    assert sent.returncode == 0, sent.stderr
    arrived: dict[bytes | None, list[int]] = {}
    for record in read_all(broker.bootstrap_servers, "many", expected=20_000):
        arrived.setdefault(record.key, []).append(int(record.value or b""))
    assert arrived == {b"%d" % key: list(range(key, 20_000, 7)) for key in range(7)}


def test_an_unknown_option_is_wrong_usage(broker: EmbeddedBroker) -> None:
    sent = run(broker, "x", "-o", "no_such_option=1", stdin=b"")

    assert sent.returncode == 2
    assert b"no_such_option" in sent.stderr
    assert b"Traceback" not in sent.stderr


def test_a_missing_partition_is_reported_by_line(broker: EmbeddedBroker) -> None:
    broker.create_topic("two")

    sent = run(broker, "two", "-p", "9", "-o", "max_block_ms=2000", stdin=b"x\n")

    assert sent.returncode == 1
    assert sent.stderr.startswith(b"stdin:1: ")
    assert b"Traceback" not in sent.stderr


@pytest.mark.slow
def test_an_unreachable_broker_is_reported_in_one_line_without_a_traceback() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        command = [*COMMAND, "produce", "-b", address, "-t", "x", "--connect-timeout", "1"]
        sent = subprocess.run(command, input=b"x\n", capture_output=True, timeout=PATIENCE_S, check=False)

    assert sent.returncode == 1
    told = [line for line in sent.stderr.decode().splitlines() if line.startswith("cyproducer: ")]
    assert len(told) == 1
    assert address in told[0]
    assert b"Traceback" not in sent.stderr


def test_a_line_with_a_partition_that_is_missing_does_not_stop_the_others(broker: EmbeddedBroker) -> None:
    broker.create_topic("some", 1)
    lines = b'{"value": 1}\n{"value": 2, "partition": 9}\n{"value": 3}\n'

    sent = run(broker, "some", "--json", stdin=lines)

    assert sent.returncode == 1
    told = sent.stderr.decode()
    assert told.startswith("stdin:2: [Error 3] UnknownTopicOrPartitionError: ")
    assert "\n2 records delivered" in told
    arrived = [record.value for record in read_all(broker.bootstrap_servers, "some", expected=2)]
    assert arrived == [b"1", b"3"]


def test_records_that_are_too_large_or_tombstones_without_keys_fail_alone(broker: EmbeddedBroker) -> None:
    broker.create_topic("large", 1)
    lines = b"1\n" + b"x" * 2_000_000 + b"\n3\nNULL\n5\n"

    sent = run(broker, "large", "--null-marker", "NULL", stdin=lines)

    assert sent.returncode == 1
    told = sent.stderr.decode()
    assert "stdin:2: RecordTooLargeError: " in told
    assert "stdin:4: ValueError: a record needs a value or a key" in told
    assert "\n3 records delivered" in told
    arrived = [record.value for record in read_all(broker.bootstrap_servers, "large", expected=3)]
    assert arrived == [b"1", b"3", b"5"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_delivers_the_lines_typed_so_far(
    number: signal.Signals, status: int, broker: EmbeddedBroker
) -> None:
    topic = f"typed-{number.name}"
    broker.create_topic(topic, 1)
    with Running("produce", "-b", broker.bootstrap_servers, "-t", topic) as typing:
        typing.write(b"typed\n")
        # The record has arrived, so the process is waiting in its read again.
        (record,) = read_all(broker.bootstrap_servers, topic, expected=1)
        assert record.value == b"typed"
        # The pipe is still open: only the signal can end the process.
        ended, told = typing.end(number)
    assert ended == status
    assert f"cyproducer: {number.name}: stopped reading at stdin:2" in told
    assert "\n1 records delivered" in told


def test_a_failure_is_shown_while_standard_input_is_silent(broker: EmbeddedBroker) -> None:
    broker.create_topic("silent", 1)
    broker.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
    with Running("produce", "-b", broker.bootstrap_servers, "-t", "silent") as typing:
        typing.write(b"typed\n")
        # Nothing else is written, and the pipe stays open.
        assert b"stdin:1: [Error 29] TopicAuthorizationFailedError" in typing.stderr.readline()
        typing.stdin.close()
        assert typing.end()[0] == 1


@pytest.mark.slow
def test_a_signal_ends_a_command_whose_broker_is_dead_and_whose_memory_is_full() -> None:
    with EmbeddedBroker(topics={"dead": 1}) as broker:
        options = ["-b", broker.bootstrap_servers, "-t", "dead", "-X", "buffer.memory=300000"]
        with Running("produce", *options, "-X", "batch.size=1000", "-X", "linger.ms=0") as sending:
            sending.write(b"first\n")
            read_all(broker.bootstrap_servers, "dead", expected=1)
            broker.take_down(1)
            # Ends when nothing more is read, because the producer's memory is full.
            descriptor = sending.stdin.fileno()
            written = 0
            while written < 100_000_000 and select.select([], [descriptor], [], 3)[1]:
                written += os.write(descriptor, b"x" * 999 + b"\n")
            assert written < 100_000_000
            ended, told = sending.end(signal.SIGTERM)
    assert ended == 143
    assert "\n1 records delivered" in told
    assert " accepted, but without an outcome in time: they may have been written; " in told
    assert " read, but not sent; the first that was not sent is at stdin:" in told


@pytest.mark.slow
def test_output_that_nobody_reads_is_no_failure(broker: EmbeddedBroker) -> None:
    broker.create_topic("head", 1)
    options = ["-b", broker.bootstrap_servers, "-t", "head"]
    many = ["--num-records", "2000", "--record-size", "10", "--reporting-interval", "1"]
    with Running("perf", *options, *many, "--throughput", "2000") as measuring:
        assert b" records sent, " in measuring.stdout.readline()
        measuring.stdout.close()
        assert measuring.end() == (0, "")
    assert len(read_all(broker.bootstrap_servers, "head", expected=2000)) == 2000


@pytest.mark.slow
def test_failures_of_a_measurement_are_shown_once_for_each_cause(broker: EmbeddedBroker) -> None:
    broker.create_topic("refused", 1)
    broker.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=3)
    options = ["-b", broker.bootstrap_servers, "-t", "refused", "--num-records", "3", "--record-size", "9"]
    with Running("perf", *options, "--throughput", "3") as measuring:
        ended, told = measuring.end()
    assert ended == 1
    shown, summary, cause = told.splitlines()
    assert shown.startswith("record 1: [Error 29] TopicAuthorizationFailedError: ")
    assert summary == "cyproducer: 3 records failed, 0 were not accepted"
    assert cause == "  3 x TopicAuthorizationFailedError, first at record 1"


@pytest.mark.parametrize("command", ["produce", "version"])
def test_streams_without_a_reader_are_no_failure(command: str, broker: EmbeddedBroker) -> None:
    broker.create_topic(command, 1)
    produce = ["produce", "-b", broker.bootstrap_servers, "-t", command, "--progress"]
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [*COMMAND, *(produce if command == "produce" else ["--version"])],
        input=b"x\n",
        stdout=write,
        stderr=write,
        # Output is buffered, and only the end of Python finds that it cannot be written.
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(write)
    assert ended.returncode == 0
