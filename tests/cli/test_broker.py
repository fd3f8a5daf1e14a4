"""``cyproducer broker``, as a process."""

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cyproducer import KafkaProducer
from cyproducer.cli.main import main
from tools.harness.until import PATIENCE_S


@contextlib.contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Runs the command; yields the process, and the rows of its table."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cyproducer", "broker", "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert "in memory, for development and tests" in process.stdout.readline()
        rows: dict[str, str] = {}
        while "topics" not in rows:
            name, _, value = process.stdout.readline().strip().partition("  ")
            rows[name] = value.strip()
        yield process, rows
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(number: signal.Signals) -> None:
    with running("--topics", "orders:2,users", "--log", "requests") as (process, rows):
        assert rows["topics"] == "orders:2, users:3"
        with KafkaProducer(bootstrap_servers=rows["bootstrap.servers"], client_id="me") as producer:
            assert producer.send("orders", b"v", partition=1).get(PATIENCE_S).offset == 0
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert " 1 me Produce v13 orders-1 (1 record, 69 B) -> ok" in output


def test_it_has_users_and_a_certificate() -> None:
    with running("--sasl", "alice:secret", "--tls") as (_, rows):
        assert (rows["security.protocol"], rows["users"]) == ("SASL_SSL", "alice")
        with KafkaProducer(
            bootstrap_servers=rows["bootstrap.servers"],
            security_protocol="SASL_SSL",
            ssl_cafile=rows["ssl.ca.location, ssl_cafile"],
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="alice",
            sasl_plain_password="secret",
        ) as producer:
            assert producer.send("t", b"v").get(PATIENCE_S)


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["broker", "--port", str(port)]) == 1
    assert f"{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--topics", "orders:x"], "'orders:x': must be NAME or NAME:PARTITIONS"),
        (["--topics", "no topic"], "no topic"),
        (["--sasl", "alice"], "must be USER:PASSWORD"),
        (["--kafka-version", "9.9"], "kafka_version='9.9': must be 2.1 to 4.4"),
    ],
)
def test_wrong_usage(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["broker", *options])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err
