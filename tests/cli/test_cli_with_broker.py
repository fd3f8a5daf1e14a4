"""``python -m cyproducer produce`` as a process, with the real producer and the embedded broker."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import read_all

COMMAND = [sys.executable, "-m", "cyproducer", "produce"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(partitions=2) as broker:
        yield broker


def run(
    broker: EmbeddedBroker, topic: str, *options: str, stdin: bytes
) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, "-b", broker.bootstrap_servers, "-t", topic, *options]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


def test_json_lines_arrive_with_all_their_fields(broker: EmbeddedBroker) -> None:
    broker.create_topic("json")
    lines = (
        b'{"key": "k", "value": {"a": 1}, "headers": {"h": "1"}, "partition": 1, "timestamp_ms": 17000000}\n'
        b'{"key": "gone", "value": null, "partition": 1}\n'
    )

    sent = run(broker, "json", "--json", "-z", "zstd", stdin=lines)

    assert (sent.returncode, sent.stderr) == (0, b"")
    assert sent.stdout.startswith(b"2 records delivered")
    first, second = read_all(broker.bootstrap_servers, "json", expected=2)
    assert (first.key, first.value, first.headers) == (b"k", b'{"a":1}', [("h", b"1")])
    assert (first.partition, first.timestamp_ms) == (1, 17_000_000)
    assert (second.key, second.value) == (b"gone", None)


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


def test_an_unreachable_broker_is_reported_in_one_line_without_a_traceback() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        command = [*COMMAND, "-b", address, "-t", "x", "--connect-timeout", "1"]
        sent = subprocess.run(command, input=b"x\n", capture_output=True, timeout=10, check=False)

    assert sent.returncode == 1
    told = [line for line in sent.stderr.decode().splitlines() if line.startswith("cyproducer: ")]
    assert len(told) == 1
    assert address in told[0]
    assert b"Traceback" not in sent.stderr


def test_an_interrupt_sends_the_lines_typed_so_far(broker: EmbeddedBroker) -> None:
    broker.create_topic("typed", 1)
    command = [*COMMAND, "-b", broker.bootstrap_servers, "-t", "typed"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as typing:
        assert typing.stdin is not None
        typing.stdin.write(b"typed\n")
        typing.stdin.flush()
        # The record has arrived, so the process is waiting in its read again.
        assert [record.value for record in read_all(broker.bootstrap_servers, "typed", expected=1)] == [
            b"typed"
        ]
        typing.send_signal(signal.SIGINT)
        # The pipe is still open: only the interrupt can have ended the process.
        assert typing.wait(30) == 130
        assert typing.stdout is not None
        assert typing.stdout.read().startswith(b"1 records delivered")
