"""``perf``: what is counted, and the figures that are derived from it."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cyproducer.cli import perf
from cyproducer.cli.failures import Failures
from cyproducer.cli.main import main
from cyproducer.cli.perf import Latencies, Measured, file_payloads, random_payloads
from cyproducer.errors import (
    BulkSendError,
    KafkaConfigurationError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionFailedError,
)
from cyproducer.structs import FailedRows
from cyproducer.testing import EmbeddedBroker
from tests.cli.fake_producer import Future, Producer
from tests.integration.consume import read_all

Capture = pytest.CaptureFixture[str]
REQUIRED = ["perf", "-b", "broker:9092", "-t", "topic"]
LINE = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+|nan) ms avg latency, "
    r"([\d.]+|nan) ms max latency"
)
PERCENTILES = re.compile(r", ([\d.]+) ms 50th, ([\d.]+) ms 95th, ([\d.]+) ms 99th, ([\d.]+) ms 99\.9th\.$")
Run = Callable[..., Any]


@pytest.fixture
def run(capsys: Capture) -> Run:
    """Sends as many records of this size; returns what stdout and stderr got."""

    def run(records: int, *more: str, size: int = 1, status: int = 0) -> Any:
        numbers = ["--num-records", f"{records}", "--record-size", f"{size}"]
        assert main([*REQUIRED, *numbers, *more]) == status
        return capsys.readouterr()

    return run


@pytest.mark.parametrize("ns", [0, 1, 127, 128, 1000, 1_234_567, 10**9, 3 * 10**11])
def test_a_percentile_is_within_one_percent(ns: int) -> None:
    times = Latencies()
    times.add(ns, 1)
    times.add(10**12, 1)

    assert times.percentile_ms(0.5) * 1e6 == pytest.approx(ns, rel=0.01, abs=0.5)
    assert times.percentile_ms(0.51) == 1e6
    assert times.max_ms == 1e6


def test_latencies_are_weighed_by_records() -> None:
    times = Latencies()
    for ms, records in ((1, 90), (2, 9), (3, 1)):
        times.add(ms * 1_000_000, records)

    found = [times.percentile_ms(share) for share in (0.01, 0.9, 0.91, 0.99, 0.999)]
    assert found == pytest.approx([1, 1, 2, 2, 3], rel=0.01)
    assert times.average_ms == pytest.approx(1.11)
    assert times.records == 100


def test_the_latency_of_nothing_is_not_a_number() -> None:
    times = Latencies()

    assert math.isnan(times.percentile_ms(0.5))
    assert math.isnan(times.average_ms)
    assert math.isnan(times.max_ms)


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("cyproducer.cli.perf.monotonic_ns", clock)
    return clock


def numbers(line: str) -> list[float]:
    found = LINE.search(line)
    assert found is not None, line
    return [float(number) for number in found.groups()]


def test_the_rates_of_a_period_and_of_all(clock: Clock) -> None:
    measured = Measured(0, Failures(print))
    clock.ns = 500_000_000
    measured.arrived(0, [1024, 1024], 100_000_000, object())
    clock.ns = 1_000_000_000
    assert numbers(measured.report()) == [2, 2, 0, 400, 400]
    clock.ns = 1_500_000_000
    measured.arrived(2, [1024 * 1024] * 2, 1_490_000_000, object())
    clock.ns = 2_000_000_000
    assert numbers(measured.report()) == [2, 2, 2, 10, 10]

    # Until the last record, and not until the summary is asked for.
    assert numbers(measured.summary()) == [4, 2.7, 1.33, 205, 400]


def test_a_warm_up_is_not_part_of_the_summary(clock: Clock) -> None:
    measured = Measured(3, Failures(print))
    clock.ns = 1_000_000_000
    measured.arrived(0, [1] * 3, 0, object())
    clock.ns = 2_000_000_000
    measured.arrived(3, [1] * 7, 1_900_000_000, object())

    summary = measured.summary()
    assert summary.startswith("after 3 warm-up records: 7 records sent, ")
    assert numbers(summary)[:2] == [7, 7]
    assert numbers(summary)[3:] == [100, 100]
    assert numbers(measured.report())[0] == 10


def test_failed_records_are_counted_apart(clock: Clock) -> None:
    shown: list[str] = []
    failures = Failures(shown.append)
    measured = Measured(0, failures)
    late: Any = FailedRows(0, KafkaTimeoutError("late"), [1, 3])  # type: ignore[arg-type]
    clock.ns = 10**9
    measured.arrived(10, [100] * 4, 0, BulkSendError("some", failures=[late]))

    assert numbers(measured.summary())[0] == 2
    assert measured._whole.value_bytes == 200
    assert shown == ["record 12: KafkaTimeoutError: late"]
    assert failures.count == 2
    assert measured.end() == 4
    measured.arrived(14, [100], 0, KafkaTimeoutError("closed"))
    assert (failures.count, measured.end()) == (2, 4)


@pytest.mark.slow
def test_random_values_have_the_size_and_repeat_only_far_beyond_a_batch() -> None:
    values = random_payloads(100)

    assert {len(value) for value in values} == {100}
    assert len(set(values)) == len(values)
    assert sum(map(len, values)) > 8_000_000
    assert re.fullmatch(b"[A-Z]+", b"".join(values[:10]))
    assert len(random_payloads(100_000_000)) == 1


def test_values_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "values"
    file.write_bytes(b"a||b\n||c||")

    assert file_payloads(str(file), b"||") == [b"a", b"b\n", b"c"]
    file.write_bytes(b"")
    with pytest.raises(KafkaConfigurationError, match="is empty"):
        file_payloads(str(file), b"\n")
    with pytest.raises(KafkaConfigurationError, match="No such file"):
        file_payloads(str(tmp_path / "none"), b"\n")


def test_a_run_against_the_embedded_broker(capsys: Capture) -> None:
    arguments = ["--embedded", "-t", "perf", "--num-records", "5000", "--record-size", "10"]

    assert main(["perf", *arguments, "--warmup-records", "100", "--print-metrics"]) == 0

    told = capsys.readouterr()
    assert told.err == ""
    summary = next(line for line in told.out.splitlines() if "warm-up" in line)
    assert numbers(summary)[0] == 4900
    found = PERCENTILES.search(summary)
    assert found is not None
    percentiles = [float(number) for number in found.groups()]
    assert percentiles[0] > 0
    assert percentiles == sorted(percentiles)
    assert percentiles[-1] <= numbers(summary)[4]
    assert "\nproducer-metrics:record-send-total : 5000\n" in told.out


def test_the_records_of_a_file_are_sent_in_order_again_and_again(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "values"
    file.write_text("a b c ")
    with EmbeddedBroker(topics={"file": 1}) as broker:
        arguments = ["-b", broker.bootstrap_servers, "-t", "file", "--num-records", "7"]
        more = ["--payload-file", str(file), "--payload-delimiter", r"\x20"]
        props = ["--producer-props", "acks=all", "client.id=me", "-z", "lz4"]
        assert main(["perf", *arguments, *more, *props]) == 0
        arrived = [record.value for record in read_all(broker.bootstrap_servers, "file", expected=7)]
    assert arrived == [b"a", b"b", b"c", b"a", b"b", b"c", b"a"]


class Acknowledged(Future):
    def add_both(self, call: Any, *arguments: Any) -> None:
        call(*arguments, self.exception)


@pytest.fixture
def quick(fake: type[Producer], monkeypatch: pytest.MonkeyPatch) -> type[Producer]:
    """A producer whose records are acknowledged at once."""

    def send_many(self: Producer, topic: str, values: list[bytes]) -> Acknowledged:
        self.calls.append(len(values))
        return Acknowledged(exception=type(self).on_record({"value": values}).exception)

    monkeypatch.setattr(fake, "send_many", send_many)
    return fake


def test_options_become_the_producers_settings(quick: type[Producer], run: Run) -> None:
    more = ["--producer-props", "acks=1", "linger.ms=5", "-X", "client.id=me", "--acks", "all"]
    run(1, *more)
    assert quick.made[0].settings == {
        "bootstrap_servers": "broker:9092",
        "acks": "1",
        "linger_ms": "5",
        "client_id": "me",
    }


def test_records_are_sent_in_blocks_of_limited_size(quick: type[Producer], run: Run) -> None:
    run(2500, "--throughput", "-1", size=10)
    run(10, size=20000)
    assert quick.made[0].calls == [1000, 1000, 500]
    assert quick.made[1].calls == [3, 3, 3, 1]


def test_blocks_that_end_before_the_payloads_continue_with_the_next(
    quick: type[Producer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    def on_record(record: dict[str, Any]) -> Future:
        sent.append(b"".join(value[:1] for value in record["value"]))
        return Future()

    (tmp_path / "values").write_bytes(b"\n".join(letter * 30_000 for letter in (b"a", b"b", b"c")))
    quick.on_record = staticmethod(on_record)

    assert main([*REQUIRED, "--num-records", "8", "--payload-file", str(tmp_path / "values")]) == 0

    assert sent == [b"ab", b"c", b"ab", b"c", b"ab"]


def test_lines_are_printed_while_records_are_sent_and_awaited(
    quick: type[Producer], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def on_record(record: dict[str, Any]) -> Future:
        now_s[0] += 0.5
        return Future()

    def on_flush(timeout: float) -> None:
        now_s[0] += timeout
        if len(quick.made[0].flushed) < 5:
            raise KafkaTimeoutError("flush")

    monkeypatch.setattr("cyproducer.cli.perf.monotonic_s", lambda: now_s[0])
    quick.on_record = staticmethod(on_record)
    quick.on_flush = staticmethod(on_flush)
    told = run(5000, "--reporting-interval", "1000")
    *lines, summary = told.out.splitlines()
    assert [numbers(line)[0] for line in lines] == [2000, 2000, 1000, 0]
    assert numbers(summary)[0] == 5000


def test_the_rate_is_not_exceeded(quick: type[Producer], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    sent_at: list[tuple[float, int]] = []

    def sleep(seconds: float) -> None:
        assert 0 < seconds <= perf.LONGEST_PAUSE_S
        now_s[0] += seconds

    def on_record(record: dict[str, Any]) -> Future:
        sent_at.append((now_s[0], len(record["value"])))
        # Every call takes long enough that some more records are due.
        now_s[0] += 0.25
        return Future()

    monkeypatch.setattr("cyproducer.cli.perf.monotonic_s", lambda: now_s[0])
    monkeypatch.setattr("cyproducer.cli.perf.sleep", sleep)
    quick.on_record = staticmethod(on_record)
    run(20, "--throughput", "10")
    first = [*sent_at]
    sent_at.clear()
    began_s = now_s[0]
    run(3, "--throughput", "2")
    assert sum(count for _, count in first) == 20
    total = 0
    for at_s, count in first:
        total += count
        assert total <= at_s * 10 + 1
    assert first[-1][0] == pytest.approx(2.0, abs=0.3)
    assert [count for _, count in sent_at] == [1, 1, 1]
    assert [at_s - began_s for at_s, _ in sent_at] == pytest.approx([0, 0.5, 1.0])


def test_an_error_that_would_affect_every_record_ends_the_run(
    quick: type[Producer], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Producer, topic: str, values: list[bytes]) -> Acknowledged:
        error: Any = KafkaTimeoutError("full")
        error.accepted, error.future = 2, Acknowledged()
        raise error

    monkeypatch.setattr(quick, "send_many", full)
    told = run(10, status=1)
    assert told.out.startswith("2 records sent, ")
    assert told.err.splitlines() == [
        "record 3: KafkaTimeoutError: full",
        "cyproducer: 1 records failed, 8 were not accepted",
        "  1 x KafkaTimeoutError, first at record 3",
    ]


def test_failed_records_are_told(quick: type[Producer], run: Run) -> None:
    quick.on_record = staticmethod(lambda record: Future(exception=KafkaTimeoutError("late")))
    told = run(10, status=1)
    assert told.out.startswith("0 records sent, ")
    assert "cyproducer: 10 records failed, 0 were not accepted\n" in told.err


def interrupt(quick: type[Producer], number: signal.Signals) -> None:
    """Makes the second call of ``send_many()`` end with a signal."""

    def interrupted(record: dict[str, Any]) -> Future:
        if len(quick.made[0].calls) == 2:
            os.kill(os.getpid(), number)
            raise AssertionError("the signal did not interrupt")
        return Future()

    quick.on_record = staticmethod(interrupted)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_a_summary(
    number: signal.Signals, status: int, quick: type[Producer], run: Run
) -> None:
    interrupt(quick, number)
    told = run(5000, status=status)
    assert told.out.startswith("1000 records sent, ")
    assert f"cyproducer: stopped by {number.name}\n" in told.err
    assert "0 records failed, 4,000 were not accepted\n" in told.err


def test_records_without_an_outcome_after_a_signal(
    quick: type[Producer], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush(timeout: float) -> None:
        if len(quick.made[0].flushed) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        raise KafkaTimeoutError("flush")

    monkeypatch.setattr(perf, "INTERRUPTED_DRAIN_TIMEOUT_S", 0.01)
    monkeypatch.setattr(Acknowledged, "add_both", lambda *_: None)
    quick.on_flush = staticmethod(flush)
    told = run(10, status=143)
    assert quick.made[0].closed_with == 0
    assert "0 records failed, 0 were not accepted, 10 had no outcome in time" in told.err


TRANSACTIONS = re.compile(
    r"^(\d+) transactions committed, ([\d.]+|nan) ms avg commit time, ([\d.]+|nan) ms max commit time\.$",
    re.M,
)


def transactions_of(told: str) -> tuple[str, ...]:
    found = TRANSACTIONS.search(told)
    assert found is not None, told
    return found.groups()


@pytest.fixture
def timed(quick: type[Producer], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds. Each send_many takes 0.4 s, the commits take 0.25 s, 0.5 s, 0.75 s and so on."""

    def on_record(record: dict[str, Any]) -> Future:
        now_s[0] += 0.4
        quick.made[0].steps.append(f"send {len(record['value'])}")
        return Future()

    def on_commit(timeout: float) -> None:
        now_s[0] += 0.25 * quick.made[0].steps.count("commit")

    now_s = [0.0]
    monkeypatch.setattr("cyproducer.cli.perf.monotonic_s", lambda: now_s[0])
    monkeypatch.setattr("cyproducer.cli.perf.monotonic_ns", lambda: int(now_s[0] * 1e9))
    quick.on_record = staticmethod(on_record)
    quick.on_commit = staticmethod(on_commit)
    return now_s


def test_transactions_are_committed_when_their_time_is_over_and_at_the_end(
    timed: list[float], quick: type[Producer], run: Run
) -> None:
    told = run(4500, "--transactional-id", "mine", "--transaction-duration-ms", "500")
    assert quick.made[0].settings["transactional_id"] == "mine"
    assert quick.made[0].steps == [
        "init",
        *["begin", "send 1000", "send 1000", "commit"] * 2,
        *["begin", "send 500", "commit"],
    ]
    assert transactions_of(told.out) == ("3", "500.00", "750.00")
    assert numbers(told.out)[0] == 4500
    assert told.err == ""


@pytest.mark.parametrize(
    ("options", "name", "duration_s"),
    [
        (["--transactional-id", "mine"], "mine", 3),
        (["--transactional-id", "mine", "--producer-props", "transactional.id=other"], "mine", 3),
        (["--producer-props", "transactional.id=mine"], "mine", 3),
        (["--producer-props", "transactional.id=mine", "--transaction-duration-ms", "1000"], "mine", 1),
        (["--transaction-duration-ms", "1000"], r"cyproducer-perf-[0-9a-f-]{36}", 1),
    ],
)
def test_what_makes_transactions(
    options: list[str], name: str, duration_s: float, timed: list[float], quick: type[Producer], run: Run
) -> None:
    run(20000, *options)
    assert re.fullmatch(name, quick.made[0].settings["transactional_id"])
    calls = quick.made[0].steps[: quick.made[0].steps.index("commit")].count("send 1000")
    # The first number of calls of 0.4 s each that take as long.
    assert calls == math.ceil(duration_s / 0.4)


def test_a_transaction_is_committed_while_no_record_is_due(
    timed: list[float], quick: type[Producer], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        timed[0] += max(seconds, 0.01)

    monkeypatch.setattr("cyproducer.cli.perf.sleep", sleep)
    run(2, "--throughput", "0.1", "--transaction-duration-ms", "1000")
    # None is empty.
    assert quick.made[0].steps == ["init", *["begin", "send 1", "commit"] * 2]


def test_a_commit_that_is_refused_ends_the_run(timed: list[float], quick: type[Producer], run: Run) -> None:
    def on_commit(timeout: float) -> None:
        if quick.made[0].steps.count("commit") == 2:
            raise TransactionFailedError("open for too long")

    quick.on_commit = staticmethod(on_commit)
    told = run(9000, "--transaction-duration-ms", "500", status=1)
    assert quick.made[0].steps[-2:] == ["commit", "abort"]
    assert transactions_of(told.out)[0] == "1"
    assert told.err.splitlines() == [
        "cyproducer: the transaction was aborted: none of its 2,000 records is committed "
        "(TransactionFailedError: open for too long)",
        "cyproducer: 0 records failed, 5,000 were not accepted",
    ]


def test_the_last_commit_counts_for_the_exit_code(
    timed: list[float], quick: type[Producer], run: Run
) -> None:
    def on_commit(timeout: float) -> None:
        raise ProducerFencedError("another producer")

    quick.on_commit = staticmethod(on_commit)
    told = run(9, "--transactional-id", "mine", status=1)
    # It waits for nothing more: that could take minutes.
    assert quick.made[0].flushed == []
    assert "the outcome of the transaction of 9 records is not known" in told.err


def test_a_producer_that_was_fenced_between_two_transactions(
    timed: list[float], quick: type[Producer], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = quick.begin_transaction

    def fenced(self: Producer) -> None:
        if "begin" in self.steps:
            raise ProducerFencedError("another producer")
        begin(self)

    monkeypatch.setattr(quick, "begin_transaction", fenced)
    told = run(9000, "--transaction-duration-ms", "500", status=1)
    assert transactions_of(told.out)[0] == "1"
    assert told.err.startswith("record 2,001: ")
    assert "another producer" in told.err


def test_a_signal_commits_what_was_sent(quick: type[Producer], run: Run) -> None:
    interrupt(quick, signal.SIGTERM)
    told = run(5000, "--transactional-id", "mine", status=143)
    assert quick.made[0].steps == ["init", "begin", "commit"]
    assert transactions_of(told.out)[0] == "1"


def test_transactions_against_the_embedded_broker(capsys: Capture) -> None:
    arguments = ["--embedded", "-t", "perf", "--num-records", "5000", "--record-size", "10"]

    assert main(["perf", *arguments, "--transaction-duration-ms", "1", "--print-metrics"]) == 0

    told = capsys.readouterr()
    assert told.err == ""
    committed, mean_ms, max_ms = map(float, transactions_of(told.out))
    assert 1 <= committed <= 5
    assert 0 < mean_ms <= max_ms
    assert "\nproducer-metrics:record-send-total : 5000\n" in told.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--num-records", "1"], "one of the arguments --record-size --payload-file is required"),
        (["--record-size", "1"], "the following arguments are required: -c/--num-records"),
        (["--num-records", "1", "--record-size", "0"], "'0' is not a whole number >= 1"),
        (
            ["--num-records", "1", "--record-size", "1", "--throughput", "0"],
            "'0' is neither a number above 0 nor -1, for no limit",
        ),
        (["--num-records", "1", "--record-size", "1", "--throughput", "nan"], "'nan' is neither"),
        (["--num-records", "1", "--record-size", "1", "--warmup-records", "1"], "must be less than"),
        (["--num-records", "1", "--record-size", "1", "--embedded"], "not allowed with --embedded"),
        (
            ["--num-records", "1", "--record-size", "1", "--transaction-duration-ms", "0"],
            "'0' is not a whole number >= 1",
        ),
        (["--num-records", "1", "--payload-file", "/nowhere"], "--payload-file /nowhere: No such file"),
        (["--num-records", "1", "--record-size", "1", "--producer-props", "secret"], "must be NAME=VALUE\n"),
    ],
)
def test_wrong_usage_is_exit_code_two(
    arguments: list[str], reason: str, quick: type[Producer], capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*REQUIRED, *arguments])

    assert ended.value.code == 2
    assert reason in capsys.readouterr().err
