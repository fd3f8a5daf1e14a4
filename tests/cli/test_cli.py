"""``produce``: options, counts, messages and exit codes, with a fake producer that records its calls."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import cyproducer
from cyproducer.cli import produce
from cyproducer.cli.line_format import JsonFormat
from cyproducer.cli.main import main
from cyproducer.config.option_kinds import Secret
from cyproducer.errors import (
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NoBrokersAvailable,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from tests.cli.conftest import Piped, Stdin
from tests.cli.fake_producer import MAX_REQUEST_SIZE, Future, Producer

REQUIRED = ["produce", "-b", "broker:9092", "-t", "topic"]
Capture = pytest.CaptureFixture[str]


def test_each_line_is_a_record_with_any_line_ending(fake: type[Producer], piped: Piped) -> None:
    told = piped(b"one\ntwo\r\n\nlast")
    assert fake.made[0].values == [b"one", b"two", b"", b"last"]
    assert fake.made[0].sent[0] == {
        "topic": "topic",
        "value": b"one",
        "key": None,
        "headers": [],
        "partition": None,
        "timestamp_ms": None,
    }
    assert told.startswith("4 records delivered in ")
    assert told.endswith("(10 B of keys and values); 0 failed\n")


def test_lines_that_are_read_together_are_sent_together(fake: type[Producer], piped: Piped) -> None:
    piped(b"1\n2\n3\n")
    assert fake.made[0].calls == [3]


def test_quiet_prints_only_errors(fake: type[Producer], piped: Piped) -> None:
    told = piped(b"a:1\nbad\n", "-K", ":", "-q", "--progress", status=1)
    assert told == "stdin:2: no separator ':' between key and value: 'bad'\n"


def test_files_are_sent_in_order_and_the_dash_is_standard_input(
    fake: type[Producer], piped: Piped, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"a1\na2\n")
    piped(b"in\n", str(tmp_path / "a"), "-")
    assert fake.made[0].values == [b"a1", b"a2", b"in"]


@pytest.mark.parametrize(
    ("arguments", "text", "values"),
    [
        # A delimiter of several characters, with escapes.
        (["-D", r"\x01|"], b"one\r\n\x01|two\x01|", [b"one\r\n", b"two"]),
        # A carriage return stays if a delimiter is given.
        (["-D", r"\n"], b"one\r\ntwo\n", [b"one\r", b"two"]),
        # Blank lines are not part of a count.
        (["--json", "-c", "2"], b'\n{"value": 1}\n\n{"value": 2}\n{"value": 3}\n', [b"1", b"2"]),
    ],
)
def test_the_values_of_a_text(
    arguments: list[str], text: bytes, values: list[bytes], fake: type[Producer], piped: Piped
) -> None:
    piped(text, *arguments)
    assert fake.made[0].values == values


def test_whole_files_are_records(fake: type[Producer], piped: Piped, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a1\na2\n")
    (tmp_path / "big").write_bytes(b"x" * (MAX_REQUEST_SIZE + 1))
    (tmp_path / "most").write_bytes(b"y" * MAX_REQUEST_SIZE)
    names = [str(tmp_path / name) for name in ("a", "big", "most")]
    told = piped(b"in\n", "--whole-file", "-k", "key", *names, "-", status=1)
    assert fake.made[0].values == [b"a1\na2\n", b"y" * MAX_REQUEST_SIZE, b"in\n"]
    assert {record["key"] for record in fake.made[0].sent} == {b"key"}
    assert f"{tmp_path}/big: file too large: more than max_request_size={MAX_REQUEST_SIZE} bytes\n" in told
    assert "3 records delivered" in told


def test_a_file_that_cannot_be_read_does_not_stop_the_others(
    fake: type[Producer], piped: Piped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(tmp_path / name) for name in ("a", "gone", "b")]
    for name in names:
        Path(name).write_text("line\n")

    def removed(name: str, mode: int) -> bool:
        # It disappears between this look and the time when it is read.
        if name == names[1]:
            os.unlink(name)
        return True

    monkeypatch.setattr(os, "access", removed)
    told = piped(b"", "--progress", *names[:1], names[2], names[1], status=1)
    assert fake.made[0].values == [b"line", b"line"]
    assert f"{names[1]}: FileNotFoundError: " in told


def test_the_key_the_partition_and_the_time_of_records_without(fake: type[Producer], piped: Piped) -> None:
    text = b'{"key": "own", "value": "1"}\n{"value": "2", "partition": 5, "timestamp_ms": 6}\n'
    piped(text, "--json", "-k", "\udcff", "-p", "3", "--timestamp-ms", "7")
    first, second = fake.made[0].sent
    assert (first["key"], first["partition"], first["timestamp_ms"]) == (b"own", 3, 7)
    assert (second["key"], second["partition"], second["timestamp_ms"]) == (b"\xff", 5, 6)


def test_headers_of_all_records_come_before_their_own(fake: type[Producer], piped: Piped) -> None:
    text = b'{"value": "a"}\n{"value": "b", "headers": {"own": "2"}}'
    piped(text, "--json", "-H", "all=1=1", "-H", "nothing")
    first, second = fake.made[0].sent
    assert first["headers"] == [("all", b"1=1"), ("nothing", None)]
    assert second["headers"] == [("all", b"1=1"), ("nothing", None), ("own", b"2")]


def test_null_markers_and_empty_text_as_null(fake: type[Producer], piped: Piped) -> None:
    text = b"k\\N\nNULL:\nNULL:v\nk:NULL\n:v\n"
    piped(text, "-K", ":", "--null-marker", "NULL", "-Z", "-k", "fixed", status=1)
    assert [(record["key"], record["value"]) for record in fake.made[0].sent] == [
        (b"fixed", None),
        (b"fixed", b"v"),
        (b"k", None),
        (b"fixed", b"v"),
    ]


def test_headers_in_lines_with_separators_of_ones_own(fake: type[Producer], piped: Piped) -> None:
    separators = ["--headers-delimiter", "|", "--headers-separator", ";", "--headers-key-separator", "="]
    piped(b"a=1;b=2|key:value\n", "-K", ":", "--parse-headers", *separators)
    (record,) = fake.made[0].sent
    assert (record["key"], record["value"]) == (b"key", b"value")
    assert record["headers"] == [("a", b"1"), ("b", b"2")]


@pytest.mark.parametrize("format", [[], ["--json"], ["--whole-file"]])
def test_a_count_ends_the_command_after_as_many_records(
    format: list[str], fake: type[Producer], piped: Piped, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text('{"value": 1}\n' * (1 if format == ["--whole-file"] else 2))
    names = [str(tmp_path / name) for name in ("a", "b", "a")]
    told = piped(b"", *format, "-c", "3", *names, *names)
    assert len(fake.made[0].sent) == 3
    assert told.startswith("3 records delivered")


@pytest.mark.parametrize(
    ("more", "calls"),
    [
        ("", [4]),
        (', "headers": {"a": "b"}', [1] * 4),
        (', "partition": 1', [1] * 4),
        (', "timestamp_ms": 1', [1] * 4),
    ],
)
def test_lines_of_one_read_are_sent_in_order_by_one_call_or_one_by_one(
    more: str, calls: list[int], fake: type[Producer], piped: Piped
) -> None:
    piped(b'{"value": "1"}\n{"value": "2"}\n{"value": "3"%b}\n\n{"value": "4"}\n' % more.encode(), "--json")
    assert fake.made[0].values == [b"1", b"2", b"3", b"4"]
    assert fake.made[0].calls == calls
    plain: dict[str, Any] = {
        "topic": "topic",
        "key": None,
        "headers": [],
        "partition": None,
        "timestamp_ms": None,
    }
    others = [sent for sent in fake.made[0].sent if sent["value"] != b"3"]
    assert others == [plain | {"value": sent["value"]} for sent in others]


@pytest.mark.parametrize("stops", [False, True])
def test_records_that_are_refused_among_those_that_are_sent_one_by_one(
    stops: bool, fake: type[Producer], piped: Piped
) -> None:
    def on_record(record: dict[str, Any]) -> Future:
        if record["value"] == b"big":
            raise MessageSizeTooLargeError("too big")
        if record["partition"] == 9:
            raise UnknownTopicOrPartitionError("no partition 9")
        return Future()

    fake.on_record = staticmethod(on_record)
    lines = [{"value": "1", "key": "k"}, {"value": "big"}, {"value": "3", "partition": 9}, {"value": "4"}]
    text = "\n\n".join(map(json.dumps, lines)).encode()
    told = piped(text, "--json", *(["--stop-on-error"] if stops else []), status=1)
    assert "stdin:3: [Error 10] MessageSizeTooLargeError: " in told
    if stops:
        assert fake.made[0].values == [b"1"]
        assert "1 records delivered" in told
        assert "(2 B of keys and values); 1 failed; 2 read, but not sent" in told
        assert "the first that was not sent is at stdin:5\n" in told
    else:
        assert fake.made[0].values == [b"1", b"4"]
        assert "stdin:5: [Error 3] UnknownTopicOrPartitionError: no partition 9" in told
        assert "2 records delivered" in told
        assert "(3 B of keys and values); 2 failed\n" in told


def test_a_partition_of_all_records_that_is_missing_stops_reading(fake: type[Producer], piped: Piped) -> None:
    def on_record(record: dict[str, Any]) -> Future:
        raise UnknownTopicOrPartitionError("no partition 9")

    fake.on_record = staticmethod(on_record)
    told = piped(b"1\n2\n3\n", "-p", "9", "-H", "a=b", status=1)
    assert fake.made[0].calls == [1]
    assert "; 1 failed; 2 read, but not sent; the first that was not sent is at stdin:2\n" in told


def test_options_become_the_producers_settings(fake: type[Producer], piped: Piped) -> None:
    options = ["-z", "lz4", "--acks", "1", "--linger-ms", "5", "--connect-timeout", "7"]
    more = ["-o", "batch_size=65536", "-X", "client.id=12", "-X", "sasl.password=12", "-o", "acks=all"]
    piped(b"", *options, *more)
    assert fake.made[0].settings == {
        "bootstrap_servers": "broker:9092",
        "compression_type": "lz4",
        "acks": "all",
        "linger_ms": 5,
        "batch_size": 65536,
        "client_id": "12",
        "sasl_plain_password": Secret("12"),
    }
    assert fake.made[0].waited == 7


def test_a_properties_file_as_kafkas_own_tools_take(
    fake: type[Producer], stdin: Stdin, tmp_path: Path, capsys: Capture
) -> None:
    stdin(b"")
    file = tmp_path / "client.properties"
    file.write_text(
        "# for all clients\nbootstrap.servers=other:9092\nsecurity.protocol=SASL_SSL\nlinger.ms=1\n"
        "sasl.mechanism=PLAIN\nsasl.jaas.config=C required \\\n  username=u;\ngroup.id=readers\n"
        "ssl.truststore.location=/etc/ca.pem\n"
    )
    given = ["produce", "-t", "topic", "--command-config", str(file)]

    assert main([*given, "--linger-ms", "7", "-X", "ssl.truststore.location=/other.pem"]) == 0

    assert fake.made[0].settings == {
        "bootstrap_servers": "other:9092",
        "security_protocol": "SASL_SSL",
        "linger_ms": 7,
        "sasl_mechanism": "PLAIN",
        "sasl_jaas_config": Secret("C required username=u;"),
        "ssl_cafile": "/other.pem",
    }
    assert "ignoring group.id: no options of a producer" in capsys.readouterr().err

    assert main([*given, "-b", "broker:9092", "--security-protocol", "sasl_plaintext"]) == 0
    assert fake.made[1].settings["bootstrap_servers"] == "broker:9092"
    assert fake.made[1].settings["security_protocol"] == "SASL_PLAINTEXT"


def test_a_file_of_kcats_has_librdkafkas_names_and_no_escapes(
    fake: type[Producer], stdin: Stdin, tmp_path: Path, capsys: Capture
) -> None:
    stdin(b"")
    file = tmp_path / "kcat.conf"
    file.write_text(
        "# kcat\nmetadata.broker.list = kafka:9092\r\nsecurity.protocol=sasl_ssl\nsasl.mechanisms=PLAIN\n"
        "sasl.username=me\nsasl.password=a\\b=c#d\nssl.ca.location=/ca.pem\ntopic.request.required.acks=1\n"
        "queue.buffering.max.kbytes=9\nenable.ssl.certificate.verification=false\n\ncompression.codec=lz4\n"
    )

    assert main(["produce", "-F", str(file), "-t", "topic", "-z", "none"]) == 0

    assert fake.made[0].settings == {
        "bootstrap_servers": "kafka:9092",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": Secret("a\\b=c#d"),
        "ssl_cafile": "/ca.pem",
        "acks": "1",
        "compression_type": None,
    }
    assert capsys.readouterr().err.startswith(
        f"{file}: ignoring queue.buffering.max.kbytes, enable.ssl.certificate.verification: "
    )


def test_a_line_of_a_file_that_is_no_property_is_not_shown(
    fake: type[Producer], stdin: Stdin, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "kcat.conf"
    file.write_text("client.id=me\nhunter2\n")

    with pytest.raises(SystemExit) as ended:
        main(["produce", "-F", str(file), "-t", "topic"])

    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"-F/--config-file {file}: line 2 is not NAME=VALUE" in told
    assert "hunter2" not in told


def test_unset_options_keep_the_producer_s_defaults(fake: type[Producer], piped: Piped) -> None:
    piped(b"")
    assert fake.made[0].settings == {"bootstrap_servers": "broker:9092"}


def test_bad_lines_are_counted_by_cause_and_the_first_is_shown(
    fake: type[Producer], piped: Piped, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b'{"value": "1"}\nbad\n{"value": "3"}\n' + b"worse\n" * 12 + b"[]\n")

    told = piped(b"", "--json", str(file), status=1)
    assert fake.made[0].values == [b"1", b"3"]
    first, second, summary, *causes = told.splitlines()
    assert first == f"{file}:2: not JSON: Expecting value: line 1 column 1 (char 0): 'bad'"
    assert second == f"{file}:16: not a JSON object: '[]'"
    assert summary.startswith("2 records delivered in ")
    assert summary.endswith("(2 B of keys and values); 14 failed")
    assert causes == [
        f"  13 x not JSON, first at {file}:2",
        f"  1 x not a JSON object, first at {file}:16",
    ]


def test_records_that_are_refused_or_not_delivered_are_reported_by_line(
    fake: type[Producer], piped: Piped
) -> None:
    def on_record(record: dict[str, Any]) -> Future:
        if record["value"] == b"big":
            raise MessageSizeTooLargeError("too big")
        return Future(exception=KafkaTimeoutError("expired") if record["value"] == b"late" else None)

    fake.on_record = staticmethod(on_record)
    told = piped(b"a:big\nb:late\nc:fine\n", "-K", ":", status=1).splitlines()
    assert told[0].startswith("stdin:1: ")
    assert "too big" in told[0]
    assert told[1] == "stdin:2: KafkaTimeoutError: expired"
    assert told[2].startswith("1 records delivered")
    assert told[2].endswith("; 2 failed")
    # All at once were refused for the first, so each was sent by itself.
    assert fake.made[0].calls == [3, 1, 1, 1]
    assert [record["key"] for record in fake.made[0].sent] == [b"b", b"c"]


def test_some_of_the_records_of_one_call_failed(fake: type[Producer], piped: Piped) -> None:
    def on_record(record: dict[str, Any]) -> Future:
        number = int(record["value"])
        return Future(exception=KafkaTimeoutError(f"late {number}") if number % 2 else None)

    fake.on_record = staticmethod(on_record)
    shown, summary, cause = piped(b"0\n1\n2\n3\n4\n", status=1).splitlines()
    assert shown == "stdin:2: KafkaTimeoutError: late 1"
    assert summary.startswith("3 records delivered")
    assert cause == "  2 x KafkaTimeoutError, first at stdin:2"


def test_an_error_that_would_affect_every_record_stops_reading(
    fake: type[Producer], piped: Piped, tmp_path: Path
) -> None:
    def on_record(record: dict[str, Any]) -> Future:
        raise KafkaTimeoutError("no leader")

    fake.on_record = staticmethod(on_record)
    (tmp_path / "more").write_text("5\n")
    told = piped(b"1\n2\n3\n4\n", "-", str(tmp_path / "more"), status=1).splitlines()
    assert fake.made[0].calls == [4]
    assert told[:2] == [
        "stdin:1: KafkaTimeoutError: no leader",
        "cyproducer: stopped: the next records would have failed the same way",
    ]
    assert told[2].startswith("0 records delivered")
    assert told[2].endswith("; 1 failed; 3 read, but not sent; the first that was not sent is at stdin:2")


def test_the_records_that_a_failing_call_accepted_are_counted(
    fake: type[Producer], piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_of(self: Producer, topic: str, values: list[bytes], **rest: Any) -> Future:
        error: Any = KafkaTimeoutError("full")
        error.accepted, error.future = 2, Future()
        raise error

    monkeypatch.setattr(fake, "send_many", two_of)
    told = piped(b"1\n2\n3\n4\n", status=1)
    assert told.startswith("stdin:3: KafkaTimeoutError: full\n")
    assert "\n2 records delivered in " in told
    assert told.splitlines()[2].endswith(
        "; 1 failed; 1 read, but not sent; the first that was not sent is at stdin:4"
    )


@pytest.mark.parametrize("text", [b'{"value": 1}\n{"value": 2}\nbad\n{"value": 3}\n' * 2])
def test_stop_on_error_sends_what_came_before_it(text: bytes, fake: type[Producer], piped: Piped) -> None:
    told = piped(text, "--json", "--stop-on-error", status=1)
    assert fake.made[0].values == [b"1", b"2"]
    assert "2 records delivered" in told
    assert "1 failed; 5 read, but not sent; the first that was not sent is at stdin:4\n" in told


def test_a_last_line_that_failed_was_not_left_unread(fake: type[Producer], piped: Piped) -> None:
    told = piped(b'{"value": 1}\nbad', "--json", "--stop-on-error", status=1)
    assert "1 failed; the first that was not sent is at stdin:3\n" in told


class Unread(io.RawIOBase):
    """Standard input that fails the test when more is read of it than these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [*pieces]

    def readable(self) -> bool:
        return True

    def read1(self, _size: int) -> bytes:
        return self.pieces.pop(0)


def test_nothing_is_read_after_the_count_is_reached(
    fake: type[Producer], piped: Piped, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    piped(Unread(), "-c", "2", str(tmp_path / "a"), "-")
    piped(Unread(b"1\n2\n3\n"), "-c", "2")
    assert [producer.values for producer in fake.made] == [[b"1", b"2"]] * 2


def test_nothing_is_read_after_a_failure_that_stops(fake: type[Producer], piped: Piped) -> None:
    fake.on_record = staticmethod(lambda record: Future(exception=TopicAuthorizationFailedError()))
    piped(Unread(b"1\n"), "--stop-on-error", status=1)


def test_a_failure_that_stops_is_noticed_while_standard_input_is_silent(
    fake: type[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bool] = []

    class Late(Future):
        @property
        def is_done(self) -> bool:
            looked.append(True)
            return len(looked) > 3

        @is_done.setter
        def is_done(self, value: bool) -> None:
            pass

    fake.on_record = staticmethod(lambda record: Late(exception=TopicAuthorizationFailedError()))
    monkeypatch.setattr(fake, "send_many", lambda self, topic, values, **rest: self.send(topic, values[0]))
    read, write = os.pipe()
    os.write(write, b"1\n")
    with os.fdopen(read, "rb") as stream, io.TextIOWrapper(stream) as text:
        monkeypatch.setattr(sys, "stdin", text)
        # The pipe stays open: only the failure can end the command.
        assert main([*REQUIRED, "--stop-on-error"]) == 1
    os.close(write)


def test_a_record_after_a_call_that_failed_for_all_is_not_sent(fake: type[Producer], piped: Piped) -> None:
    def on_record(record: dict[str, Any]) -> Future:
        assert record["value"] == b"1"
        raise KafkaTimeoutError("no leader")

    fake.on_record = staticmethod(on_record)
    told = piped(b'{"value": 1}\n{"value": 2, "headers": {"a": "b"}}\n{"value": 3}\n', "--json", status=1)
    assert "; 1 failed; 2 read, but not sent; the first that was not sent is at stdin:2\n" in told


def test_records_that_are_sent_one_by_one_stop_at_an_error_for_all(
    fake: type[Producer], piped: Piped
) -> None:
    def on_record(record: dict[str, Any]) -> Future:
        assert record["value"] != b"3"
        raise MessageSizeTooLargeError("big") if record["value"] == b"big" else KafkaTimeoutError("no leader")

    fake.on_record = staticmethod(on_record)
    told = piped(b"big\n2\n3\n", status=1)
    assert "; 2 failed; 1 read, but not sent; the first that was not sent is at stdin:3\n" in told


def test_a_line_of_progress_is_removed_before_a_failure_is_shown(
    fake: type[Producer], piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    piped(Unread(b'{"value": 1}\n', b"bad\n", b""), "--json", status=1)
    before, failure = terminal.getvalue().split("stdin:2: ")[:2]
    assert before.split("\r")[1].startswith("1 delivered, 0 failed, 0 on their way, 13 B read")
    assert before.split("\r")[2].isspace()
    assert before.endswith("\r")
    assert failure.startswith("not JSON")


def test_stop_on_error_stops_before_the_next_file(fake: type[Producer], piped: Piped, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("line\n")
    fake.on_record = staticmethod(lambda record: Future(exception=TopicAuthorizationFailedError()))
    names = [str(tmp_path / name) for name in ("a", "b")]

    for whole in ([], ["--whole-file"]):
        told = piped(b"", "--stop-on-error", *whole, *names, status=1)
        assert len(fake.made[-1].sent) == 1
        place = names[1] if whole else f"{names[0]}:2"
        assert f"; the first that was not sent is at {place}\n" in told


def test_a_line_that_is_too_long_is_skipped(fake: type[Producer], piped: Piped) -> None:
    most = 8 * MAX_REQUEST_SIZE
    told = piped(b"1\n" + b"x" * most + b"\n" + b"y" * (most + 1) + b"\n4\n", status=1)
    assert fake.made[0].values == [b"1", b"x" * most, b"4"]
    assert told.startswith("stdin:3: line too long: more than 800,000 bytes; skipped up to its end\n")


def test_records_without_an_outcome_at_the_timeout_are_unknown(
    fake: type[Producer], piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(timeout: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        fake.on_flush = staticmethod(times_out)
        times_out(timeout)

    def times_out(timeout: float) -> None:
        raise KafkaTimeoutError("flush")

    monkeypatch.setattr(produce, "INTERRUPTED_DRAIN_TIMEOUT_S", 0.01)
    fake.on_record = staticmethod(lambda record: Future(is_done=record["value"] == b"1"))
    fake.on_flush = staticmethod(interrupted)
    told = piped(b'{"value": 1, "headers": {"a": "b"}}\n{"value": 2}\n{"value": 3}\n', "--json", status=143)
    assert "\n1 records delivered" in told
    assert told.endswith(
        "; 0 failed; 2 accepted, but without an outcome in time: they may have been written\n"
    )
    assert fake.made[0].closed_with == 0
    assert max(fake.made[0].flushed[1:], default=0) <= 0.01


def test_outcomes_are_awaited_for_longer_than_the_delivery_timeout(
    fake: type[Producer], piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def times_out(timeout: float) -> None:
        now_s[0] += timeout
        raise KafkaTimeoutError("flush")

    monkeypatch.setattr("cyproducer.cli.interrupts.monotonic_s", lambda: now_s[0])
    fake.on_record = staticmethod(lambda record: Future(is_done=False))
    fake.on_flush = staticmethod(times_out)
    piped(b"1\n", status=1)
    assert now_s[0] == 130


def test_an_unreachable_broker_is_reported_in_one_line(fake: type[Producer], piped: Piped) -> None:
    fake.ready = NoBrokersAvailable("broker:9092 refused")
    told = piped(b"x\n", status=1)
    assert told == "cyproducer: NoBrokersAvailable: broker:9092 refused\n"
    assert fake.made[0].closed_with == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["produce", "-t", "topic"], "-b/--bootstrap-server is required, or bootstrap.servers in a file"),
        (["produce", "-t", "t", "--command-config", "/nowhere"], "--command-config /nowhere: No such file"),
        (["produce", "-t", "t", "-F", "/nowhere"], "-F/--config-file /nowhere: No such file"),
        ([*REQUIRED, "--security-protocol", "tls"], "invalid choice: 'TLS'"),
        ([*REQUIRED, "--json", "-K", ":"], "-K/--key-separator is for lines of text, not for --json"),
        ([*REQUIRED, "--json", "-Z"], "-Z/--empty-as-null is for lines of text, not for --json"),
        ([*REQUIRED, "--whole-file", "--parse-headers"], "is for lines of text, not for --whole-file"),
        ([*REQUIRED, "--whole-file", "--null-marker", ""], "is for lines of text, not for --whole-file"),
        ([*REQUIRED, "--whole-file", "-D", ";"], "divides files into records, which --whole-file does not"),
        ([*REQUIRED, "--whole-file", "--json"], "not allowed with"),
        ([*REQUIRED, "--parse-headers", "--headers-delimiter", ":"], "must differ from each other"),
        ([*REQUIRED, "-K", ""], "must not be empty"),
        ([*REQUIRED, "-D", r"\q"], "after a backslash must come n, r, t, 0, xNN or a backslash"),
        ([*REQUIRED, "--acks", "2"], "'2' is not one of 0, 1, all"),
        ([*REQUIRED, "--linger-ms", "-1"], "'-1' is not a whole number >= 0"),
        ([*REQUIRED, "-p", "x"], "'x' is not a whole number >= 0"),
        ([*REQUIRED, "-c", "0"], "'0' is not a whole number >= 1"),
        ([*REQUIRED, "-H", "=value"], "'=value' is neither NAME=VALUE nor NAME"),
        ([*REQUIRED, "-o", "=1"], "-o/--option: must be NAME=VALUE"),
        ([*REQUIRED, "-X", "secret"], "must be NAME=VALUE\n"),
        ([*REQUIRED, "-o", "unknown=1"], "unknown is not an option"),
        ([*REQUIRED, "/does/not/exist"], "/does/not/exist: not a readable file"),
        ([*REQUIRED, "/"], "/: not a readable file"),
    ],
)
def test_wrong_usage_is_exit_code_two(
    arguments: list[str], reason: str, fake: type[Producer], stdin: Stdin, capsys: Capture
) -> None:
    stdin(b"")
    with pytest.raises(SystemExit) as stop:
        main(arguments)

    assert stop.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_standard_input_that_is_closed_is_wrong_usage(
    fake: type[Producer], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    # Python starts like this after `<&-`.
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(SystemExit) as stop:
        main(REQUIRED)

    assert stop.value.code == 2
    assert "standard input is closed: name a file" in capsys.readouterr().err


def test_without_a_command_the_commands_are_listed(capsys: Capture) -> None:
    assert main([]) == 2

    told = capsys.readouterr().err
    for command in ("produce", "perf", "demo"):
        assert f"\n    {command} " in told


def test_the_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"cyproducer {cyproducer.__version__}\n"


# Signals


class Endless(io.RawIOBase):
    """Standard input that returns two lines and a half, and then a signal comes while it is waited for."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        self.reads = 0

    def readable(self) -> bool:
        return True

    def read1(self, _size: int) -> bytes:
        self.reads += 1
        if self.reads > 1:
            os.kill(os.getpid(), self.number)
        return b"1\n2\nunfini"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_a_waiting_read_delivers_the_lines_read_so_far(
    number: signal.Signals, status: int, fake: type[Producer], piped: Piped
) -> None:
    handler = signal.getsignal(number)
    first, summary = piped(Endless(number), status=status).splitlines()
    assert fake.made[0].values == [b"1", b"2"]
    assert (
        first == f"cyproducer: {number.name}: stopped reading at stdin:3; what was accepted before was sent"
    )
    assert summary.startswith("2 records delivered")
    assert summary.endswith("; 0 failed; 1 read, but not sent; the first that was not sent is at stdin:3")
    assert signal.getsignal(number) is handler


def test_a_signal_before_the_end_of_a_line_does_not_send_the_line_in_part(
    fake: type[Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"1\nunfini")
    fake.on_record = staticmethod(lambda record: Future(is_done=len(fake.made[0].flushed) > 0))

    class Poll:
        """Nothing comes any more, but a signal while the outcome of the first record is awaited."""

        def __init__(self) -> None:
            self.calls = 0

        def register(self, *arguments: int) -> None:
            pass

        def poll(self, timeout: float) -> list[int]:
            self.calls += 1
            if self.calls == 1:
                return [reader]
            if timeout:
                os.kill(os.getpid(), signal.SIGTERM)
            return []

    monkeypatch.setattr("select.poll", Poll)
    with os.fdopen(reader, "rb") as stream, io.TextIOWrapper(stream) as text:
        monkeypatch.setattr(sys, "stdin", text)
        assert main(REQUIRED) == 143
    os.close(writer)

    assert fake.made[0].values == [b"1"]


def test_a_signal_during_a_call_that_waits_ends_it(fake: type[Producer], piped: Piped) -> None:
    def waits(record: dict[str, Any]) -> Future:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal did not interrupt")

    fake.on_record = staticmethod(waits)
    told = piped(b"1\n2\n", status=143)
    assert "0 records delivered" in told
    assert told.endswith("; 0 failed; 2 read, but not sent; the first that was not sent is at stdin:1\n")


def test_a_signal_before_lines_are_sent_sends_none_of_them(
    fake: type[Producer], piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(line: bytes) -> Any:
        if b"2" in line:
            os.kill(os.getpid(), signal.SIGINT)
        return parse(line)

    parse = JsonFormat().parse
    monkeypatch.setattr(JsonFormat, "parse", staticmethod(interrupted))
    told = piped(b'{"value": 1, "headers": {"a": "b"}}\n{"value": 2}\n{"value": 3}\n', "--json", status=130)
    assert fake.made[0].values == []
    assert told.endswith("; 0 failed; 3 read, but not sent; the first that was not sent is at stdin:1\n")


def test_a_second_signal_stops_at_once(fake: type[Producer], piped: Piped) -> None:
    def interrupted_twice(timeout: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal did not interrupt")

    fake.on_record = staticmethod(lambda record: Future(is_done=False))
    fake.on_flush = staticmethod(interrupted_twice)
    told = piped(b"1\n2\n", status=143)
    assert fake.made[0].closed_with == 0
    assert "; 2 accepted, but without an outcome in time" in told


def test_a_second_signal_during_a_call_stops_at_once(fake: type[Producer], piped: Piped) -> None:
    def interrupted_twice(record: dict[str, Any]) -> Future:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal did not interrupt")

    fake.on_record = staticmethod(interrupted_twice)
    piped(b"1\n2\n", status=130)
    assert fake.made[0].flushed == []
    assert fake.made[0].closed_with == 0


def test_a_signal_while_connecting(fake: type[Producer], piped: Piped) -> None:
    def connects(self: Producer, timeout: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal did not interrupt")

    fake.wait_ready = connects  # type: ignore[method-assign]
    told = piped(b"1\n", status=143)
    assert told == "cyproducer: SIGTERM: nothing was sent\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-X", "linger.ms=5ms"], "linger.ms='5ms': must be a number"),
        (["-X", "queue.buffering.max.ms=5ms"], "queue.buffering.max.ms='5ms': must be a number"),
        (["-X", "delivery.timeout.ms=1"], "must be at least linger.ms + request.timeout.ms"),
        (["-o", "delivery_timeout_ms=1"], "delivery_timeout_ms=1: must be at least linger.ms"),
    ],
)
def test_errors_name_options_as_the_command_line_does(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    with pytest.raises(SystemExit):
        main(["produce", "-b", "127.0.0.1:1", "-t", "t", *arguments])
    assert says in capsys.readouterr().err
