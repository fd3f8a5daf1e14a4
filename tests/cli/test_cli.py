"""The command line: options, counts and exit codes, with a fake producer that records its calls."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cyproducer
from cyproducer.cli import main as cli
from cyproducer.cli.main import main
from cyproducer.errors import (
    KafkaConfigurationError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NoBrokersAvailable,
)

REQUIRED = ["produce", "-b", "broker:9092", "-t", "topic"]


class Future:
    def __init__(self, is_done: bool = True, exception: Exception | None = None) -> None:
        self.is_done = is_done
        self.exception = exception


class Producer:
    """kafka-python's methods. ``on_send`` decides the outcome of a record."""

    made: list[Producer]
    on_send: Callable[[dict[str, Any]], Future] = staticmethod(lambda record: Future())
    on_flush: Callable[[float], None] = staticmethod(lambda timeout: None)
    ready: Exception | None = None

    def __init__(self, **settings: Any) -> None:
        if "unknown" in settings:
            raise KafkaConfigurationError("unknown is not an option")
        self.settings = settings
        self.sent: list[dict[str, Any]] = []
        self.closed_with: float | None = None
        self.made.append(self)

    def wait_ready(self, timeout: float) -> None:
        self.waited = timeout
        if self.ready is not None:
            raise self.ready

    def send(self, topic: str, **record: Any) -> Future:
        future = type(self).on_send(record)
        self.sent.append({"topic": topic, **record})
        return future

    def flush(self, timeout: float) -> None:
        type(self).on_flush(timeout)

    def close(self, timeout: float) -> None:
        self.closed_with = timeout


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Producer]]:
    class Fake(Producer):
        made = []  # noqa: RUF012 - typed where it is declared

    fake = Fake
    monkeypatch.setattr(cyproducer, "KafkaProducer", fake, raising=False)
    yield fake
    assert all(producer.closed_with is not None for producer in fake.made), "a producer was left open"


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def set_stdin(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return set_stdin


def values(fake: type[Producer]) -> list[bytes]:
    return [record["value"] for record in fake.made[0].sent]


def test_each_line_is_a_record_with_any_line_ending(
    fake: type[Producer], stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(b"one\ntwo\r\n\nlast")

    assert main(REQUIRED) == 0

    assert values(fake) == [b"one", b"two", b"", b"last"]
    assert fake.made[0].sent[0] == {
        "topic": "topic",
        "value": b"one",
        "key": None,
        "headers": [],
        "partition": None,
        "timestamp_ms": None,
    }
    assert capsys.readouterr().out.startswith("4 records delivered (10 B) in ")


def test_lines_longer_than_one_read_are_not_split(
    fake: type[Producer], stdin: Callable[[bytes], None]
) -> None:
    lines = [b"x" * 700_000, b"y", b"z" * 300_000]
    stdin(b"\n".join(lines))

    assert main(REQUIRED) == 0

    assert values(fake) == lines


def test_files_are_sent_in_order_and_the_dash_is_standard_input(
    fake: type[Producer], stdin: Callable[[bytes], None], tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"a1\na2\n")
    stdin(b"in\n")

    assert main([*REQUIRED, str(tmp_path / "a"), "-"]) == 0

    assert values(fake) == [b"a1", b"a2", b"in"]


def test_options_become_the_producers_settings(fake: type[Producer], stdin: Callable[[bytes], None]) -> None:
    stdin(b"")
    options = ["-z", "lz4", "--acks", "1", "--linger-ms", "5", "--connect-timeout", "7"]
    more = [
        "-o",
        "batch_size=65536",
        "-o",
        "client_id=me",
        "-o",
        'sasl_plain_password="12"',
        "-o",
        "acks=all",
    ]

    assert main([*REQUIRED, *options, *more]) == 0

    assert fake.made[0].settings == {
        "bootstrap_servers": "broker:9092",
        "compression_type": "lz4",
        "acks": "all",
        "linger_ms": 5,
        "batch_size": 65536,
        "client_id": "me",
        "sasl_plain_password": "12",
    }
    assert fake.made[0].waited == 7


def test_a_properties_file_as_kafkas_own_tools_take(
    fake: type[Producer],
    stdin: Callable[[bytes], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdin(b"")
    file = tmp_path / "client.properties"
    file.write_text(
        "# for all clients\nbootstrap.servers=other:9092\nsecurity.protocol=SASL_SSL\nlinger.ms=1\n"
        "sasl.mechanism=PLAIN\nsasl.jaas.config=C required \\\n  username=u;\ngroup.id=readers\n"
        "ssl.truststore.location=/etc/ca.pem\n"
    )
    given = ["produce", "-t", "topic", "--command-config", str(file)]

    assert main([*given, "--linger-ms", "7", "-o", "ssl.truststore.location=/other.pem"]) == 0

    assert fake.made[0].settings == {
        "bootstrap_servers": "other:9092",
        "security_protocol": "SASL_SSL",
        "linger_ms": 7,
        "sasl_mechanism": "PLAIN",
        "sasl_jaas_config": "C required username=u;",
        "ssl_cafile": "/other.pem",
    }
    assert "ignoring group.id: no options of a producer" in capsys.readouterr().err

    assert main([*given, "-b", "broker:9092", "--security-protocol", "sasl_plaintext"]) == 0
    assert fake.made[1].settings["bootstrap_servers"] == "broker:9092"
    assert fake.made[1].settings["security_protocol"] == "SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-t", "topic"], "-b/--bootstrap-server is required, or bootstrap.servers in a file"),
        (["-t", "topic", "--command-config", "/nowhere"], "--command-config /nowhere: No such file"),
        (["-b", "b", "-t", "topic", "--security-protocol", "tls"], "invalid choice: 'TLS'"),
    ],
)
def test_what_is_missing_is_wrong_usage(
    arguments: list[str],
    problem: str,
    stdin: Callable[[bytes], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdin(b"")
    with pytest.raises(SystemExit) as ended:
        main(["produce", *arguments])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_unset_options_keep_the_producer_s_defaults(
    fake: type[Producer], stdin: Callable[[bytes], None]
) -> None:
    stdin(b"")

    assert main([*REQUIRED, "-z", "none"]) == 0

    assert fake.made[0].settings == {"bootstrap_servers": "broker:9092"}


def test_a_record_s_own_partition_overrides_the_option_and_headers_are_combined(
    fake: type[Producer], stdin: Callable[[bytes], None]
) -> None:
    stdin(b'{"value": "a"}\n{"value": "b", "partition": 0, "headers": {"own": "2"}, "timestamp_ms": 9}')

    assert main([*REQUIRED, "--json", "-p", "4", "-H", "all=1=1"]) == 0

    first, second = fake.made[0].sent
    assert (first["partition"], first["headers"]) == (4, [("all", b"1=1")])
    assert (second["partition"], second["headers"]) == (0, [("all", b"1=1"), ("own", b"2")])
    assert second["timestamp_ms"] == 9


def test_a_tab_can_be_written_as_backslash_t(fake: type[Producer], stdin: Callable[[bytes], None]) -> None:
    stdin(b"k\tv")

    assert main([*REQUIRED, "-K", "\\t"]) == 0

    assert (fake.made[0].sent[0]["key"], values(fake)) == (b"k", [b"v"])


def test_bad_lines_are_reported_by_number_and_the_others_are_sent(
    fake: type[Producer],
    stdin: Callable[[bytes], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a:1\nbad\nc:3\n" + b"worse\n" * 12)

    assert main([*REQUIRED, "-K", ":", str(file)]) == 1

    told = capsys.readouterr()
    assert values(fake) == [b"1", b"3"]
    assert told.err.splitlines()[0] == f"{file}:2: no separator ':' between key and value: 'bad'"
    assert told.err.splitlines()[-1] == "... and 3 more"
    assert told.out.startswith("2 records delivered (4 B)")
    assert told.out.endswith("; 13 failed\n")


def test_a_record_that_is_refused_or_not_delivered_is_reported_by_line(
    fake: type[Producer], stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def on_send(record: dict[str, Any]) -> Future:
        if record["value"] == b"big":
            raise MessageSizeTooLargeError("too big")
        return Future(exception=KafkaTimeoutError("expired") if record["value"] == b"late" else None)

    fake.on_send = staticmethod(on_send)
    stdin(b"big\nlate\nfine\n")

    assert main(REQUIRED) == 1

    told = capsys.readouterr()
    assert "stdin:1: " in told.err
    assert "too big" in told.err
    assert "stdin:2: KafkaTimeoutError: expired" in told.err
    assert told.out.startswith("1 records delivered")
    assert told.out.endswith("; 2 failed\n")


def test_an_error_that_would_affect_every_record_stops_reading(
    fake: type[Producer], stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def on_send(record: dict[str, Any]) -> Future:
        calls.append(record)
        if len(calls) == 2:
            raise KafkaTimeoutError("no leader")
        return Future()

    fake.on_send = staticmethod(on_send)
    stdin(b"1\n2\n3\n4\n")

    assert main(REQUIRED) == 1

    told = capsys.readouterr()
    assert len(calls) == 2
    assert told.err.splitlines() == [
        "stdin:2: KafkaTimeoutError: no leader",
        "cyproducer: stopped reading at this line: the next records would have failed the same way",
    ]
    assert told.out.startswith("1 records delivered")


def test_records_without_an_outcome_at_the_timeout_are_unknown(
    fake: type[Producer],
    stdin: Callable[[bytes], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def times_out(timeout: float) -> None:
        raise KafkaTimeoutError("flush")

    monkeypatch.setattr(cli, "DRAIN_TIMEOUT_S", 0.05)
    fake.on_send = staticmethod(lambda record: Future(is_done=record["value"] == b"done"))
    fake.on_flush = staticmethod(times_out)
    stdin(b"open\ndone\nopen\n")

    assert main(REQUIRED) == 1

    out = capsys.readouterr().out
    assert out.startswith("1 records delivered")
    assert out.endswith("0 failed, 2 unknown\n")


def test_an_unreachable_broker_is_reported_in_one_line(
    fake: type[Producer], stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.ready = NoBrokersAvailable("broker:9092 refused")
    stdin(b"x\n")

    assert main(REQUIRED) == 1

    told = capsys.readouterr()
    assert told.err == "cyproducer: NoBrokersAvailable: broker:9092 refused\n"
    assert told.out == ""
    assert fake.made[0].closed_with == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "required: COMMAND"),
        (["produce", "-t", "topic"], "-b/--bootstrap-server is required"),
        ([*REQUIRED, "--json", "-K", ":"], "not allowed with"),
        ([*REQUIRED, "-K", ""], "must be text without line breaks"),
        ([*REQUIRED, "--acks", "2"], "'2' is not one of 0, 1, all"),
        ([*REQUIRED, "--linger-ms", "-1"], "'-1' is not a whole number >= 0"),
        ([*REQUIRED, "-p", "x"], "'x' is not a whole number >= 0"),
        ([*REQUIRED, "-H", "name"], "'name' is not NAME=VALUE"),
        ([*REQUIRED, "-o", "=1"], "'=1' is not NAME=VALUE"),
        ([*REQUIRED, "-o", "unknown=1"], "unknown is not an option"),
        ([*REQUIRED, "/does/not/exist"], "/does/not/exist: not a readable file"),
        ([*REQUIRED, "/"], "/: not a readable file"),
    ],
)
def test_wrong_usage_is_exit_code_two(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)

    assert stop.value.code == 2
    assert reason in capsys.readouterr().err


class Endless(io.RawIOBase):
    """Standard input that returns two lines and then sends SIGINT, like Ctrl-C during a waiting read."""

    def __init__(self) -> None:
        self.reads = 0

    def readable(self) -> bool:
        return True

    def read1(self, _size: int) -> bytes:
        self.reads += 1
        if self.reads > 1:
            os.kill(os.getpid(), signal.SIGINT)
        return b"1\n2\n"


def test_an_interrupt_during_a_waiting_read_sends_the_lines_read_so_far(
    fake: type[Producer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Endless()))  # type: ignore[type-var]

    assert main(REQUIRED) == 130

    told = capsys.readouterr()
    assert values(fake) == [b"1", b"2"]
    assert told.out.startswith("2 records delivered")
    assert "interrupted: the lines read so far were sent" in told.err
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_during_send_does_not_abort_it(
    fake: type[Producer], stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(record: dict[str, Any]) -> Future:
        if record["value"] == b"1":
            os.kill(os.getpid(), signal.SIGINT)
        return Future()

    fake.on_send = staticmethod(interrupted)
    stdin(b"1\n2\n")

    assert main(REQUIRED) == 130

    assert values(fake) == [b"1", b"2"]


def test_a_second_interrupt_stops_at_once(
    fake: type[Producer], stdin: Callable[[bytes], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted_twice(record: dict[str, Any]) -> Future:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return Future()

    fake.on_send = staticmethod(interrupted_twice)
    stdin(b"1\n2\n")

    assert main(REQUIRED) == 130

    assert fake.made[0].closed_with == 0
    assert capsys.readouterr().err == "cyproducer: interrupted\n"


def test_an_interrupt_while_draining_shortens_the_wait(
    fake: type[Producer],
    stdin: Callable[[bytes], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushes: list[float] = []

    def interrupted(timeout: float) -> None:
        flushes.append(timeout)
        if len(flushes) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        raise KafkaTimeoutError("flush")

    monkeypatch.setattr(cli, "INTERRUPTED_DRAIN_TIMEOUT_S", 0.01)
    fake.on_send = staticmethod(lambda record: Future(is_done=False))
    fake.on_flush = staticmethod(interrupted)
    stdin(b"1\n")

    assert main(REQUIRED) == 130

    assert max(flushes[1:], default=0) <= 0.01
    assert capsys.readouterr().out.endswith("1 unknown\n")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"cyproducer {cyproducer.__version__}\n"
