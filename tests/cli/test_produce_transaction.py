"""``produce -X transactional.id=ID``: all records of a run are one transaction."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cyproducer.cli import produce
from cyproducer.cli.main import main
from cyproducer.errors import (
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalIdAuthorizationFailedError,
    TransactionFailedError,
)
from cyproducer.testing import EmbeddedBroker
from tests.cli.conftest import Piped, Stdin
from tests.cli.fake_producer import Future, Producer
from tests.integration.consume import read_all

REQUIRED = ["produce", "-b", "broker:9092", "-t", "topic", "-X", "transactional.id=my id"]
BIG = b"x" * 2_000_000
Capture = pytest.CaptureFixture[str]


def raising(error: BaseException) -> Callable[[Any], Any]:
    def fails(_: Any) -> Any:
        raise error

    return staticmethod(fails)


def test_all_records_are_committed_at_the_end(fake: type[Producer], piped: Piped) -> None:
    def on_commit(timeout: float) -> None:
        committed.append(fake.made[0].values)
        assert fake.made[0].flushed

    committed: list[list[bytes | None]] = []
    fake.on_commit = staticmethod(on_commit)
    told = piped(b"1\n2\n")
    assert fake.made[0].steps == ["init", "begin", "commit"]
    assert committed == [[b"1", b"2"]]
    assert fake.made[0].closed_with == produce.CLOSE_TIMEOUT_S
    assert told.startswith("2 records committed in ")
    assert told.endswith(" records/s (2 B of keys and values); 0 failed\n")


def test_a_transactional_id_that_is_refused(fake: type[Producer], piped: Piped) -> None:
    fake.on_init = raising(TransactionalIdAuthorizationFailedError("no"))
    told = piped(b"1\n", status=1)
    assert fake.made[0].sent == []
    assert fake.made[0].closed_with == 0
    assert "TransactionalIdAuthorizationFailedError: no" in told


def test_a_producer_without_an_id_has_no_transaction(fake: type[Producer], stdin: Stdin) -> None:
    stdin(b"1\n")

    assert main(REQUIRED[:-2]) == 0

    assert fake.made[0].steps == []


@pytest.mark.parametrize("quiet", [False, True])
def test_a_line_that_is_refused_aborts_and_nothing_more_is_read(
    quiet: bool, fake: type[Producer], piped: Piped, tmp_path: Path
) -> None:
    for name, text in {"a": '{"value": 1}\n{"value": 2}\nbad\n', "b": '{"value": 3}\n'}.items():
        (tmp_path / name).write_text(text)
    names = [str(tmp_path / name) for name in ("a", "b")]
    told = piped(b"", "--json", *(["-q"] if quiet else []), *names, status=1)
    assert fake.made[0].values == [b"1", b"2"]
    assert fake.made[0].steps == ["init", "begin", "abort"]
    assert fake.made[0].closed_with == produce.CLOSE_TIMEOUT_S
    bad, aborted, *summary = told.splitlines()
    assert bad.startswith(f"{names[0]}:3: not JSON")
    assert aborted == "cyproducer: the transaction was aborted: none of its 2 records is committed"
    if quiet:
        assert summary == []
    else:
        assert summary[0].startswith("0 records committed in ")
        assert summary[0].endswith(", 0 records/s (0 B of keys and values); 1 failed")
        assert summary[1:] == [f"  1 x not JSON, first at {names[0]}:3"]


def test_a_record_that_is_not_delivered_aborts(fake: type[Producer], piped: Piped) -> None:
    fake.on_record = staticmethod(
        lambda record: Future(exception=KafkaTimeoutError("late") if record["value"] == b"2" else None)
    )
    told = piped(b"1\n2\n3\n", status=1)
    assert fake.made[0].steps == ["init", "begin", "abort"]
    shown, aborted, *_ = told.splitlines()
    assert shown == "stdin:2: KafkaTimeoutError: late"
    assert aborted == "cyproducer: the transaction was aborted: none of its 3 records is committed"


@pytest.mark.parametrize("outcome", ["failed", "missing"])
def test_an_outcome_at_the_end_aborts(
    outcome: str, fake: type[Producer], piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Future(is_done=False)

    def flush(timeout: float) -> None:
        if outcome == "failed":
            late.is_done, late.exception = True, KafkaTimeoutError("late")
            return
        now_s[0] += timeout
        raise KafkaTimeoutError("flush")

    now_s = [0.0]
    monkeypatch.setattr("cyproducer.cli.interrupts.monotonic_s", lambda: now_s[0])
    fake.on_record = staticmethod(lambda record: late)
    monkeypatch.setattr(fake, "send_many", lambda self, topic, values, **rest: self.send(topic, values[0]))
    fake.on_flush = staticmethod(flush)
    piped(b"1\n", status=1)
    assert fake.made[0].steps == ["init", "begin", "abort"]


def test_what_an_abort_fails_is_not_counted_as_failed(fake: type[Producer], piped: Piped) -> None:
    def on_abort(timeout: float) -> None:
        late.is_done, late.exception = True, TransactionAbortedError("aborted")

    late = Future(is_done=False)
    fake.on_record = staticmethod(lambda record: late)
    fake.on_abort = staticmethod(on_abort)
    told = piped(b'{"value": 1, "headers": {"a": "b"}}\nbad\n', "--json", status=1)
    assert "; 1 failed\n" in told
    assert "TransactionAbortedError" not in told


@pytest.mark.parametrize("explained", [False, True])
def test_a_record_that_failed_because_of_another_is_shown_only_without_it(
    explained: bool, fake: type[Producer], piped: Piped
) -> None:
    errors: dict[bytes, BaseException] = {b"1": TransactionAbortedError("because of another")}
    if explained:
        errors[b"3"] = KafkaTimeoutError("late")
    fake.on_record = staticmethod(lambda record: Future(record["value"] != b"2", errors.get(record["value"])))
    text = b"".join(b'{"value": "%d", "headers": {"a": "b"}}\n' % number for number in (1, 2, 3))
    told = piped(text, "--json", "-q", status=1)
    # The outcome of the second is not known when the abort begins.
    assert fake.made[0].flushed == []
    assert told.splitlines()[:-1] == [
        "stdin:3: KafkaTimeoutError: late"
        if explained
        else "stdin:1: TransactionAbortedError: because of another"
    ]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_aborts_without_waiting_for_outcomes(
    number: signal.Signals, status: int, fake: type[Producer], piped: Piped
) -> None:
    def on_record(record: dict[str, Any]) -> Future:
        if record["value"] == b"2":
            os.kill(os.getpid(), number)
            raise AssertionError("the signal did not interrupt")
        return Future(is_done=False)

    fake.on_record = staticmethod(on_record)
    told = piped(b'{"value": 1, "headers": {"a": "b"}}\n{"value": 2}\n', "--json", status=status)
    assert fake.made[0].steps == ["init", "begin", "abort"]
    assert fake.made[0].flushed == []
    stopped, aborted, summary = told.splitlines()
    assert stopped == f"cyproducer: {number.name}: stopped reading at stdin:2"
    assert aborted == "cyproducer: the transaction was aborted: none of its 1 records is committed"
    assert summary.startswith("0 records committed")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_signal_after_the_input_has_ended_aborts(quiet: bool, fake: type[Producer], piped: Piped) -> None:
    fake.on_flush = staticmethod(lambda timeout: os.kill(os.getpid(), signal.SIGTERM))
    told = piped(b"1\n", *(["-q"] if quiet else []), status=143).splitlines()
    assert fake.made[0].steps == ["init", "begin", "abort"]
    aborted = "cyproducer: the transaction was aborted: none of its 1 records is committed"
    assert told[:-1] == ([] if quiet else ["cyproducer: SIGTERM: stopped", aborted])
    assert told[-1] == aborted if quiet else told[-1].startswith("0 records committed")


class Clock:
    """Time passes while an end of a transaction is awaited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []
        monkeypatch.setattr("cyproducer.cli.interrupts.monotonic_s", lambda: self.now_s)

    def timing_out(self, timeout: float) -> None:
        self.waits.append(timeout)
        self.now_s += timeout
        raise KafkaTimeoutError("no answer")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_commit_that_times_out_has_no_known_outcome(
    clock: Clock, fake: type[Producer], piped: Piped
) -> None:
    fake.on_commit = staticmethod(clock.timing_out)
    told = piped(b"1\n", status=1)
    assert clock.now_s == 160
    assert max(clock.waits) <= 0.5
    assert "abort" not in fake.made[0].steps
    assert fake.made[0].closed_with == 0
    assert told == (
        "cyproducer: the outcome of the transaction of 1 records is not known: `cyproducer transactions "
        "describe 'my id'` tells it (KafkaTimeoutError: no answer)\n"
    )


def test_a_commit_that_is_slow_is_asked_for_again(clock: Clock, fake: type[Producer], piped: Piped) -> None:
    def on_commit(timeout: float) -> None:
        if len(clock.waits) < 3:
            clock.timing_out(timeout)

    fake.on_commit = staticmethod(on_commit)
    piped(b"1\n")
    assert fake.made[0].steps == ["init", "begin", *["commit"] * 4]


def test_an_abort_that_times_out_commits_nothing(clock: Clock, fake: type[Producer], piped: Piped) -> None:
    fake.on_abort = staticmethod(clock.timing_out)
    told = piped(b"bad\n", "--json", "-q", status=1)
    assert clock.now_s == 60
    assert fake.made[0].closed_with == 0
    assert told.splitlines()[1] == (
        "cyproducer: the transaction could not be aborted, but none of its 0 records is committed: the "
        "brokers abort it after transaction_timeout_ms=60000, if nothing else does before "
        "(KafkaTimeoutError: no answer)"
    )


@pytest.mark.parametrize("end", ["on_commit", "on_abort"])
def test_a_signal_shortens_the_wait_for_an_end(
    end: str, clock: Clock, fake: type[Producer], piped: Piped
) -> None:
    def interrupted(timeout: float) -> None:
        if not clock.waits:
            os.kill(os.getpid(), signal.SIGTERM)
        clock.timing_out(timeout)

    setattr(fake, end, staticmethod(interrupted))
    piped(b"bad\n", *(["--json"] if end == "on_abort" else []), status=143)
    assert clock.now_s == 10.5


def test_a_signal_after_the_commit_has_begun_is_too_late(fake: type[Producer], piped: Piped) -> None:
    fake.on_commit = staticmethod(lambda timeout: os.kill(os.getpid(), signal.SIGTERM))
    told = piped(b"1\n", "-q", status=143)
    assert told == "cyproducer: SIGTERM: too late: the transaction is committed\n"


@pytest.mark.parametrize("end", ["on_commit", "on_abort"])
def test_a_second_signal_ends_the_wait_at_once(end: str, fake: type[Producer], piped: Piped) -> None:
    def interrupted_twice(timeout: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal did not interrupt")

    setattr(fake, end, staticmethod(interrupted_twice))
    told = piped(b"bad\n", "-q", *(["--json"] if end == "on_abort" else []), status=143)
    assert fake.made[0].closed_with == 0
    assert ("the outcome of the transaction of 1 records is not known" in told) == (end == "on_commit")
    assert ("none of its 0 records is committed" in told) == (end == "on_abort")


def test_a_commit_that_the_producer_refuses_is_aborted(fake: type[Producer], piped: Piped) -> None:
    fake.on_commit = raising(TransactionFailedError("open for too long"))
    told = piped(b"1\n", "-q", status=1)
    assert fake.made[0].steps == ["init", "begin", "commit", "abort"]
    assert told == (
        "cyproducer: the transaction was aborted: none of its 1 records is committed "
        "(TransactionFailedError: open for too long)\n"
    )


def test_a_commit_after_which_no_abort_is_possible_has_no_known_outcome(
    fake: type[Producer], piped: Piped
) -> None:
    fake.on_commit = raising(TransactionFailedError("open for too long"))
    fake.on_abort = raising(ProducerFencedError("another producer"))
    told = piped(b"1\n", "-q", status=1)
    assert "is not known" in told
    # The first error says more.
    assert "open for too long" in told


def test_a_producer_that_was_fenced_cannot_tell(fake: type[Producer], piped: Piped) -> None:
    fake.on_commit = raising(ProducerFencedError("another producer"))
    told = piped(b"1\n", "-q", status=1)
    assert fake.made[0].steps == ["init", "begin", "commit"]
    assert "is not known" in told
    assert "another producer" in told


def test_after_a_record_has_failed_it_and_not_the_next_is_shown(fake: type[Producer], piped: Piped) -> None:
    first = Future(is_done=False)

    def on_record(record: dict[str, Any]) -> Future:
        if record["value"] == b"1":
            return first
        first.is_done, first.exception = True, KafkaTimeoutError("late")
        raise TransactionFailedError("cannot be committed")

    fake.on_record = staticmethod(on_record)
    text = b'{"value": 1, "headers": {"a": "b"}}\n{"value": 2}\n{"value": 3}\n'
    shown, aborted = piped(text, "--json", "-q", status=1).splitlines()
    assert shown == "stdin:1: KafkaTimeoutError: late"
    assert aborted.startswith("cyproducer: the transaction was aborted: none of its 1 records")


def test_an_error_for_all_of_a_transaction_is_shown_if_no_record_explains_it(
    fake: type[Producer], piped: Piped
) -> None:
    fake.on_record = raising(TransactionFailedError("cannot be committed"))
    told = piped(b"1\n2\n", "-q", status=1)
    assert told.splitlines() == [
        "stdin:1: TransactionFailedError: cannot be committed",
        "cyproducer: stopped: the next records would have failed the same way",
        "cyproducer: the transaction was aborted: none of its 0 records is committed",
    ]


def test_only_the_record_that_is_refused_is_sent_by_itself(fake: type[Producer], piped: Piped) -> None:
    def on_record(record: dict[str, Any]) -> Future:
        if record["value"] == b"big":
            raise MessageSizeTooLargeError("values[1]: too big")
        return Future()

    fake.on_record = staticmethod(on_record)
    told = piped(b"a:1\nb:big\nc:3\n", "-q", "-K", ":", status=1)
    assert fake.made[0].calls == [3, 1]
    assert told.startswith("stdin:2: [Error 10] MessageSizeTooLargeError: values[1]")


# With the real producer


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(kafka_version="3.9") as broker:
        yield broker


def command(broker: EmbeddedBroker, topic: str, *more: str) -> list[str]:
    broker.create_topic(topic, 1)
    servers = broker.bootstrap_servers
    return ["produce", "-b", servers, "-t", topic, "-X", f"transactional.id={topic}", *more]


def test_records_of_several_files_arrive(broker: EmbeddedBroker, tmp_path: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")

    assert main(command(broker, "files", str(tmp_path / "a"), str(tmp_path / "b"))) == 0

    assert capsys.readouterr().err.startswith("4 records committed")
    found = read_all(broker.bootstrap_servers, "files", 4, check_crcs=False)
    assert [record.value for record in found] == [b"a1", b"a2", b"b1", b"b2"]


@pytest.mark.parametrize("options", [[], ["-H", "a=b"]], ids=["together", "one by one"])
def test_a_record_that_is_too_large_is_named(
    options: list[str], broker: EmbeddedBroker, stdin: Stdin, capsys: Capture
) -> None:
    stdin(b"1\n" + BIG + b"\n3\n")

    assert main(command(broker, f"large-{len(options)}", "-q", *options)) == 1

    shown, *others = capsys.readouterr().err.splitlines()
    assert shown.startswith("stdin:2: RecordTooLargeError: a record for topic ")
    assert others[-1].startswith("cyproducer: the transaction was aborted: none of its ")


def test_an_error_of_the_broker_aborts(broker: EmbeddedBroker, stdin: Stdin, capsys: Capture) -> None:
    given = command(broker, "refused", "-q")
    broker.fail("AddPartitionsToTxn", "TOPIC_AUTHORIZATION_FAILED")
    stdin(b"1\n2\n")

    assert main(given) == 1

    told = capsys.readouterr().err
    assert "TopicAuthorizationFailedError" in told
    assert "cyproducer: the transaction was aborted: none of its 2 records is committed" in told
