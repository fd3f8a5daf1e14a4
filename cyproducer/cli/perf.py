"""Implements ``cyproducer perf``: sends records and reports rates and latencies.

Owns the load, the measurement and its output. Records are sent on the main thread. Latencies are measured on
the producer's callback thread, by one callback per call of ``send_many``.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
import threading
import uuid
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from cyproducer.base.clock import monotonic_ns, monotonic_s
from cyproducer.base.unpatched import sleep
from cyproducer.cli import log
from cyproducer.cli.console import complain, say
from cyproducer.cli.failures import Failures
from cyproducer.cli.interrupts import Interrupts, accept
from cyproducer.cli.line_producer import connect
from cyproducer.cli.run_transaction import ENDED, RunTransaction, State
from cyproducer.cli.settings import (
    add_connection_options,
    at_least,
    name_and_text,
    producer_settings,
    rate,
    separator,
)
from cyproducer.errors import BulkSendError, KafkaConfigurationError, KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from cyproducer import KafkaProducer

BLOCK_BYTES = 64 * 1024
"""Bytes of values per call of ``send_many``: half of a batch, so that a call's records are acknowledged at
nearly the same time."""
BLOCK_RECORDS = 1000
PAYLOAD_BYTES = 16 * 1024 * 1024
PAYLOADS = 100_000
"""The maximum number of generated values. They are sent repeatedly in the same order. The distance between
repetitions is far larger than a batch, so that no codec finds a value twice."""
LONGEST_PAUSE_S = 0.1
INTERRUPTED_DRAIN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
MEGABYTE = 1024 * 1024
EMBEDDED_PARTITIONS = 3
TRANSACTION_MS = 3000

DESCRIPTION = """\
Send records as fast as possible, or at a given rate, and report what was reached.

examples:
  cyproducer perf --embedded --topic test --num-records 1000000 --record-size 100
  cyproducer perf -b localhost:9092 -t test --num-records 5000000 --record-size 100 --throughput -1 \\
      --producer-props acks=all linger.ms=5 compression.type=lz4
  cyproducer perf -b localhost:9092 -t test --num-records 60000 --throughput 1000 --warmup-records 5000 \\
      --payload-file lines.txt
  cyproducer perf -b localhost:9092 -t test --num-records 1000000 --record-size 100 \\
      --transaction-duration-ms 100
"""

EPILOG = """\
what is measured: records are sent in blocks of up to 64 KiB and 1000 records, fewer if --throughput allows
fewer. The latency of each record of a block is the time from the beginning of the block's send_many() to
the outcome of its last record. It includes waiting for memory, lingering, compression, requests, retries
and the way to a callback, and is never shorter than the record's own. With --throughput, it does not
include that a block was due earlier than it was sent. Percentiles are exact to 1 %. Rates count
acknowledged records; MB is 1024 * 1024 bytes of values. Failed records are counted apart.

transactions: one after the other; each is committed when its time is over, and at the end. No record is sent
during a commit. A commit's time is that of commit_transaction(), which first waits for the records without an
outcome. A commit that fails ends the run.

exit status: 0 all records were delivered; 1 some were not; 2 wrong usage; 130 after SIGINT (Ctrl-C) and 143
after SIGTERM: what was accepted is awaited first, for at most 10 seconds; a second signal stops at once.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds ``perf`` to the subcommands; returns its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "perf",
        help="measure rate and latency of sending to a topic",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-t", "--topic", required=True)
    add("-c", "--num-records", type=at_least(1), required=True, metavar="N", help="records to send")
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument(
        "--record-size", type=at_least(1), metavar="BYTES", help="values are this many random capital letters"
    )
    payload.add_argument(
        "--payload-file",
        metavar="FILE",
        help="values are the records of this file, in order, again and again",
    )
    add(
        "--payload-delimiter",
        type=separator,
        default=b"\n",
        metavar="DELIM",
        help=r"ends a record of the file (default: \n; also \t \r \0 \\ \xNN)",
    )
    add(
        "--throughput",
        type=rate,
        default=math.inf,
        metavar="RATE",
        help="records per second at most; -1 (default): no limit",
    )
    add(
        "--warmup-records",
        type=at_least(0),
        default=0,
        metavar="N",
        help="of the records, the first N with an outcome are not part of the summary",
    )
    add(
        "--reporting-interval",
        type=at_least(1),
        default=5000,
        metavar="MS",
        help="time between two lines about the records since the last one (default: %(default)s)",
    )
    add(
        "--transactional-id",
        metavar="ID",
        help="send in transactions, with this id; the same as -X transactional.id=ID",
    )
    add(
        "--transaction-duration-ms",
        type=at_least(1),
        metavar="MS",
        help=f"send in transactions, and commit each after MS (default: {TRANSACTION_MS}); without an id, "
        "with a random one",
    )
    add("--print-metrics", action="store_true", help="print the producer's metrics at the end")
    add(
        "--embedded",
        action="store_true",
        help="start a broker in memory for the test",
    )
    add_connection_options(parser)
    add(
        "--producer-props",
        type=name_and_text,
        nargs="+",
        action="extend",
        dest="properties",
        metavar="NAME=VALUE",
        help="the same as -X for each",
    )
    return parser


def perf(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run ``perf`` with the given options; returns the exit code."""
    if options.warmup_records >= options.num_records:
        parser.error("--warmup-records must be less than --num-records")
    payloads = (
        random_payloads(options.record_size)
        if options.payload_file is None
        else file_payloads(options.payload_file, options.payload_delimiter)
    )
    with contextlib.ExitStack() as stack:
        if options.embedded:
            if options.bootstrap_servers is not None:
                parser.error("-b/--bootstrap-server: not allowed with --embedded")
            from cyproducer.testing import EmbeddedBroker

            broker = stack.enter_context(
                EmbeddedBroker(topics={options.topic: EMBEDDED_PARTITIONS}, process=True)
            )
            options.bootstrap_servers = broker.bootstrap_servers
        settings = producer_settings(options)
        if options.transactional_id is not None:
            settings["transactional_id"] = options.transactional_id
        elif options.transaction_duration_ms is not None:
            settings.setdefault("transactional_id", f"cyproducer-perf-{uuid.uuid4()}")
        stack.enter_context(log.shown())
        interrupts = stack.enter_context(Interrupts())
        try:
            with interrupts.breaking():
                producer = connect(settings, options.connect_timeout)
        except KeyboardInterrupt:
            return complain(f"{interrupts.name}: nothing was sent", interrupts.exit_status)
        return _perf(options, producer, payloads, interrupts)


def _perf(
    options: argparse.Namespace, producer: KafkaProducer, payloads: list[bytes], interrupts: Interrupts
) -> int:
    failures = Failures(lambda line: say(sys.stderr, line))
    measured = Measured(options.warmup_records, failures)
    transactions = None
    if producer.config.transactional_id is not None:
        run = RunTransaction(producer, interrupts, INTERRUPTED_DRAIN_TIMEOUT_S)
        transactions = Transactions(run, (options.transaction_duration_ms or TRANSACTION_MS) / 1000)
    load = Load(
        producer,
        options.topic,
        payloads,
        measured,
        options.reporting_interval / 1000,
        interrupts,
        transactions,
    )
    try:
        load.send(options.num_records, options.throughput)
        if transactions is None or transactions.run.state in ENDED:
            load.drain(producer.config.delivery_timeout_ms / 1000 + 30)
        unknown = load.accepted - measured.end()
        metrics = producer.metrics() if options.print_metrics else {}
        producer.close(0 if unknown else CLOSE_TIMEOUT_S)
    except KeyboardInterrupt:
        unknown, metrics = load.accepted - measured.end(), {}
        producer.close(0)
    except BaseException:
        producer.close(0)
        raise

    uncommitted = False
    if load.stopped_by is not None:
        failures.add(f"record {load.accepted + 1:,}", load.stopped_by)
    say(sys.stdout, measured.summary())
    if transactions is not None:
        say(sys.stdout, transactions.summary())
        if (ended := transactions.run.ended(transactions.records)) is not None:
            complain(ended)
            uncommitted = True
    for group, values in metrics.items():
        for name, value in values.items():
            say(sys.stdout, f"{group}:{name} : {value:g}")
    unsent = options.num_records - load.accepted
    if failures.count or unknown or unsent:
        text = f"{failures.count:,} records failed, {unsent:,} were not accepted"
        complain(text + (f", {unknown:,} had no outcome in time" if unknown else ""))
        for cause in failures.summary():
            say(sys.stderr, f"  {cause}")
    if interrupts.requested:
        return complain(f"stopped by {interrupts.name}", interrupts.exit_status)
    return 1 if failures.count or unknown or unsent or uncommitted else 0


class Latencies:
    """Times of records, in buckets whose width is at most 1/64 of the time."""

    def __init__(self) -> None:
        self.records = 0
        self.max_ns = 0
        self._sum_ns = 0
        self._buckets: dict[int, int] = {}

    def add(self, ns: int, records: int) -> None:
        """Count ``records`` with this time."""
        self.records += records
        self._sum_ns += ns * records
        self.max_ns = max(self.max_ns, ns)
        shift = max(0, ns.bit_length() - 7)
        bucket = shift << 7 | ns >> shift
        self._buckets[bucket] = self._buckets.get(bucket, 0) + records

    @property
    def average_ms(self) -> float:
        """NaN if there are no records."""
        return self._sum_ns / self.records / 1e6 if self.records else math.nan

    @property
    def max_ms(self) -> float:
        """NaN if there are no records."""
        return self.max_ns / 1e6 if self.records else math.nan

    def percentile_ms(self, share: float) -> float:
        """The time that ``share`` (0 to 1) of the records did not exceed, by nearest rank. NaN if there are
        no records."""
        rank = max(1, math.ceil(share * self.records))
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank <= 0:
                shift = bucket >> 7
                middle = ((bucket & 127) << shift) + (1 << shift) // 2
                return min(middle, self.max_ns) / 1e6
        return math.nan


class Period:
    """The records that were acknowledged in a period of time. Not thread-safe."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.ended_ns = began_ns
        self.value_bytes = 0
        self.latencies = Latencies()

    def add(self, now_ns: int, latency_ns: int, records: int, value_bytes: int) -> None:
        """Count ``records`` that were acknowledged now."""
        if records:
            self.ended_ns = now_ns
            self.value_bytes += value_bytes
            self.latencies.add(latency_ns, records)

    def line(self, ended_ns: int) -> str:
        """The line in the format of Kafka's own performance tool."""
        seconds = max(ended_ns - self.began_ns, 1) / 1e9
        records, times = self.latencies.records, self.latencies
        return (
            f"{records} records sent, {records / seconds:.1f} records/sec "
            f"({self.value_bytes / seconds / MEGABYTE:.2f} MB/sec), {times.average_ms:.2f} ms avg latency, "
            f"{times.max_ms:.2f} ms max latency"
        )


class Measured:
    """Counts outcomes. `arrived` runs on the callback thread, everything else on the main thread."""

    def __init__(self, warmup: int, failures: Failures) -> None:
        self._lock = threading.Lock()
        """Guards everything here."""
        self._warmup = warmup
        self._failures = failures
        now_ns = monotonic_ns()
        self._whole = Period(now_ns)
        self._recent = Period(now_ns)
        self._outcomes = 0
        self._over = False

    def arrived(self, number: int, sizes: Iterable[int], began_ns: int, outcome: Any) -> None:
        """Count the outcome of the block whose first record is ``number`` and whose values have ``sizes``."""
        now_ns = monotonic_ns()
        sizes = [*sizes]
        failed: list[tuple[int, BaseException, int]] = []
        if isinstance(outcome, BulkSendError):
            for each in outcome.failures:
                failed.append((number + each.rows[0], each.error, len(each.rows)))
        elif isinstance(outcome, BaseException):
            failed.append((number, outcome, len(sizes)))
        lost = sum(records for _, _, records in failed)
        delivered = len(sizes) - lost
        # Which rows of a block failed would affect only a sum of bytes: use the average size.
        value_bytes = sum(sizes) * delivered // len(sizes)
        with self._lock:
            if self._over:
                return
            self._outcomes += len(sizes)
            counted = min(self._outcomes - self._warmup, len(sizes))
            if counted <= 0:
                # The summary begins when the last warm-up record has its outcome.
                counted, self._whole.began_ns = 0, now_ns
            latency_ns, records = now_ns - began_ns, len(sizes)
            self._recent.add(now_ns, latency_ns, delivered, value_bytes)
            part = delivered * counted // records, value_bytes * counted // records
            self._whole.add(now_ns, latency_ns, *part)
            for first, error, records in failed:
                self._failures.add(f"record {first + 1:,}", error, records)

    def end(self) -> int:
        """Stop counting, for example the records that fail when the producer is closed. Returns the number of
        records with an outcome."""
        with self._lock:
            self._over = True
            return self._outcomes

    def report(self) -> str:
        """The line about the time since the last call."""
        with self._lock:
            recent, self._recent = self._recent, Period(monotonic_ns())
        return recent.line(self._recent.began_ns) + "."

    def summary(self) -> str:
        """The line about all records after the warm-up, until the last one was acknowledged."""
        with self._lock:
            whole = self._whole
            times = whole.latencies
            percentiles = ", ".join(
                f"{times.percentile_ms(share):.2f} ms {name}th"
                for share, name in ((0.5, "50"), (0.95, "95"), (0.99, "99"), (0.999, "99.9"))
            )
            text = f"{whole.line(whole.ended_ns)}, {percentiles}."
            return f"after {self._warmup} warm-up records: {text}" if self._warmup else text


class Transactions:
    """The transactions of a run, one after the other. Not thread-safe.

    Args:
        run: Begins and ends the transactions.
        duration_s: A transaction is committed when it has been open for this long.
    """

    def __init__(self, run: RunTransaction, duration_s: float) -> None:
        self.run = run
        self.records = 0
        """Records that were accepted in the last transaction."""
        self._duration_s = duration_s
        self._began_s = 0.0
        self._commits = Latencies()

    def ready(self) -> None:
        """Begin a transaction if none is open.

        Raises:
            ApplicationRecoverableError: Another producer has taken over the transactional id.
        """
        if self.run.state is not State.OPEN:
            self.run.begin()
            self.records = 0
            self._began_s = monotonic_s()

    @property
    def is_due(self) -> bool:
        """Whether the open transaction has reached its duration."""
        return self.run.state is State.OPEN and monotonic_s() - self._began_s >= self._duration_s

    def commit(self) -> bool:
        """Commit the open transaction; returns whether it is committed."""
        began_ns = monotonic_ns()
        if not self.run.commit():
            return False
        self._commits.add(monotonic_ns() - began_ns, 1)
        return True

    def summary(self) -> str:
        """The line about the committed transactions."""
        times = self._commits
        return (
            f"{times.records} transactions committed, {times.average_ms:.2f} ms avg commit time, "
            f"{times.max_ms:.2f} ms max commit time."
        )


class Load:
    """Sends records at a rate, and prints a progress line at intervals. Not thread-safe."""

    def __init__(
        self,
        producer: KafkaProducer,
        topic: str,
        payloads: list[bytes],
        measured: Measured,
        report_every_s: float,
        interrupts: Interrupts,
        transactions: Transactions | None = None,
    ) -> None:
        self._producer = producer
        self._transactions = transactions
        self._send_many = partial(producer.send_many, topic)
        self._payloads = payloads
        self._measured = measured
        self._every_s = report_every_s
        self._next_report_s = monotonic_s() + report_every_s
        self._interrupts = interrupts
        self._block = max(
            1, min(BLOCK_RECORDS, BLOCK_BYTES * len(payloads) // max(1, sum(map(len, payloads))))
        )
        self.accepted = 0
        self.stopped_by: BaseException | None = None
        """The error that would also have affected all records after it."""

    def send(self, records: int, per_second: float) -> None:
        """Send ``records``; returns early after a signal, or after an error that would affect all records.

        With transactions, the sent records are committed, even after a signal.
        """
        self._send(records, per_second)
        if self._transactions is not None and self._transactions.run.state is State.OPEN:
            self._transactions.commit()

    def _send(self, records: int, per_second: float) -> None:
        payloads, at = self._payloads, 0
        began_s = monotonic_s()
        while self.accepted < records and not self._interrupts.requested:
            self._report()
            if (
                self._transactions is not None
                and self._transactions.is_due
                and not self._transactions.commit()
            ):
                return
            most = min(self._block, records - self.accepted)
            if per_second < math.inf:
                due = int((monotonic_s() - began_s) * per_second) + 1 - self.accepted
                if due <= 0:
                    next_s = began_s + self.accepted / per_second
                    sleep(min(LONGEST_PAUSE_S, max(0.0, next_s - monotonic_s())))
                    continue
                most = min(most, due)
            if self._transactions is not None:
                try:
                    self._transactions.ready()
                except KafkaError as fenced:
                    self.stopped_by = fenced
                    return
            values = payloads[at : at + most]
            at = (at + len(values)) % len(payloads)
            began_ns = monotonic_ns()
            future, accepted, error = accept(self._send_many, values, len(values), self._interrupts)
            if accepted:
                sizes = [*map(len, values[:accepted])]
                future.add_both(self._measured.arrived, self.accepted, sizes, began_ns)
                self.accepted += accepted
                if self._transactions is not None:
                    self._transactions.records += accepted
            if error is not None:
                if not isinstance(error, KeyboardInterrupt):
                    self.stopped_by = error
                return

    def drain(self, timeout_s: float) -> None:
        """Wait for all outcomes, at most ``timeout_s`` seconds, or a few seconds after a signal."""
        with contextlib.suppress(KafkaTimeoutError):
            self._interrupts.in_slices(
                self._producer.flush, timeout_s, INTERRUPTED_DRAIN_TIMEOUT_S, self._report
            )

    def _report(self) -> None:
        now_s = monotonic_s()
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + self._every_s
            say(sys.stdout, self._measured.report())


def random_payloads(size: int) -> list[bytes]:
    """Values of ``size`` random capital letters each; the same in every run."""
    count = max(1, min(PAYLOADS, PAYLOAD_BYTES // size))
    letters = bytes(ord("A") + byte % 26 for byte in range(256))
    data = random.Random(0).randbytes(count * size).translate(letters)
    return [data[at : at + size] for at in range(0, count * size, size)]


def file_payloads(path: str, delimiter: bytes) -> list[bytes]:
    """The records of a file.

    Raises:
        KafkaConfigurationError: The file can't be read, or has no records.
    """
    try:
        with open(path, "rb") as file:
            payloads = file.read().removesuffix(delimiter).split(delimiter)
    except OSError as error:
        raise KafkaConfigurationError(f"--payload-file {path}: {error.strerror}") from error
    if payloads == [b""]:
        raise KafkaConfigurationError(f"--payload-file {path}: is empty")
    return payloads
