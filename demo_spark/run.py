"""Sends source code from files through Spark to Kafka, as a batch and as a stream, and verifies the result.

Then kills the driver of such a stream in the middle of a micro-batch and starts it again, once with each
delivery guarantee: at-least-once writes that micro-batch twice, exactly-once does not.

    make demo-spark                          # all source code of this Python and of its installed packages
    make demo-spark DEMO="--rows 100000"     # fewer lines
    python demo_spark/run.py --source DIR    # other source code

Starts a Kafka and a local Spark, both on 127.0.0.1 and in a temporary directory, and stops them. Needs Java
17 or newer, and Maven the first time. Exit code: 0 if each topic holds exactly the expected rows, each once,
or at least once where a driver is killed that writes at-least-once; 1 if not, or if a transaction is left
open, or if something failed; 2 if something is not installed; 130 after Ctrl-C.

Owns the order of the steps, the output, and the cleanup. The main thread does the work and handles Ctrl-C;
another thread shows progress.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from cyproducer.cli.console import one_line
from demo_spark.following import FailedError, follow, progress
from tools.harness.kafka_install import KafkaUnavailableError, classpath, missing_tools

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from cyproducer.spark import WriteSummary
    from demo_spark.checking import Killed, Outcome
    from tools.harness.kafka_cluster import KafkaCluster

T = TypeVar("T")
TOPICS = (
    "source-lines",
    "source-files",
    "source-lines-streamed",
    "killed-at-least-once",
    "killed-exactly-once",
)
MODULES = ("pyspark", "pyarrow", "confluent_kafka")
LOG_LINES = 15
MISSING, INTERRUPTED = 2, 130
TRANSACTIONS_END_S = 10.0
UNENDED = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""States of transactions that hold readers back."""


def missing() -> str | None:
    """Returns a sentence that says what to install, or None if nothing is missing."""
    if (reason := missing_tools()) is not None:
        return reason
    lacking = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not found: pip install 'cyproducer[testing,spark]'"
    return None


class Pipeline:
    """One run, with a running Kafka. For the main thread. Writes below ``directory``, and ``log``."""

    def __init__(self, options: argparse.Namespace, kafka: KafkaCluster, directory: Path, log: Path) -> None:
        from confluent_kafka.admin import AdminClient

        self._options = options
        self._kafka = kafka
        self._directory = directory
        self._log = log
        self._lines = directory / "lines"
        self._some_lines = directory / "some-lines"
        self._expected_some: Any = None
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def run(self, spark: Any) -> list[Outcome]:
        """Writes the lines as a batch and as a stream, and the files as a batch, with a running Spark."""
        from demo_spark import pipeline

        sources = self._options.source or pipeline.default_sources()
        print(f"Reading source code below {', '.join(map(str, sources))}", flush=True)
        lines_path, began_s = self._lines, time.monotonic()
        found = _follow_tasks(
            spark,
            "reading and cleaning",
            lambda: pipeline.clean(spark, sources, self._options.rows, lines_path),
        )
        elapsed_s = time.monotonic() - began_s
        print(
            f"  {found['files']:,} files, {found['lines']:,} lines in {elapsed_s:.1f} s; left out: "
            f"{found['blank']:,} blank, {found['long']:,} longer than {pipeline.LONGEST:,} characters"
        )
        lines = spark.read.parquet(str(lines_path))
        rows = pipeline.line_records(lines)
        files = pipeline.file_records(lines)
        expected = _follow_tasks(spark, "hashing the lines", lambda: pipeline.expected_hashes(rows))
        expected_files = _follow_tasks(spark, "hashing the files", lambda: pipeline.expected_hashes(files))
        print(f"  {len(expected):,} lines and {len(expected_files):,} files to write", flush=True)
        _follow_tasks(spark, "taking lines", lambda: pipeline.take_some(spark, lines_path, self._some_lines))
        some = pipeline.line_records(spark.read.parquet(str(self._some_lines)))
        self._expected_some = _follow_tasks(spark, "hashing them", lambda: pipeline.expected_hashes(some))
        checkpoint = self._directory / "checkpoint"
        writes: dict[str, tuple[Any, Callable[[dict[str, str]], None]]] = {
            "source-lines": (expected, lambda options: pipeline.write_batch(rows, options)),
            "source-files": (expected_files, lambda options: pipeline.write_batch(files, options)),
            "source-lines-streamed": (
                expected,
                lambda options: pipeline.write_stream(spark, lines_path, checkpoint, options),
            ),
        }
        return [self._write(topic, *writes[topic]) for topic in self._chosen(writes)]

    def run_killed(self) -> list[Outcome]:
        """Writes lines of `run` as streams whose drivers are killed, when its Spark runs no more."""
        from demo_spark import checking

        deliveries = {
            "killed-at-least-once": checking.AT_LEAST_ONCE,
            "killed-exactly-once": checking.EXACTLY_ONCE,
        }
        chosen = self._chosen(deliveries)
        if not chosen or not (count := len(self._expected_some)):
            return []
        print(
            f"Streaming {count:,} lines by drivers that are killed in the middle (SIGKILL to Python and JVM)",
            flush=True,
        )
        return [self._write_killed(topic, deliveries[topic]) for topic in chosen]

    def _chosen(self, topics: dict[str, Any]) -> list[str]:
        return [topic for topic in topics if topic in (self._options.only or topics)]

    def _write(self, topic: str, expected: Any, write: Callable[[dict[str, str]], None]) -> Outcome:
        """Creates a topic, writes it and reads it back."""
        from demo_spark import checking, pipeline, summaries

        kafka, partitions, total = self._kafka, self._options.partitions, len(expected)
        kafka.create_topic(topic, partitions)
        sink = pipeline.sink_options(kafka.bootstrap_servers, topic, self._options.compression)

        def acknowledged(began_s: float) -> tuple[int, str]:
            done = _end_offsets(self._admin, topic, partitions)
            rate = done / max(time.monotonic() - began_s, 1e-9)
            return done, f"{topic}: {done:,} rows in Kafka, {rate:,.0f}/s"

        elapsed_s = -time.monotonic()
        follow(lambda: write(sink), total, acknowledged)
        elapsed_s += time.monotonic()
        told = summaries.kept(self._directory / "summaries")
        mode = "batch" if len(told) == 1 else f"{len(told)} micro-batches"
        return self._outcome(topic, mode, expected, told, elapsed_s, checking.AT_LEAST_ONCE, None)

    def _write_killed(self, topic: str, delivery: str) -> Outcome:
        """Creates a topic, writes it by a driver that is killed and started again, and reads it back."""
        from demo_spark import checking, pipeline, summaries
        from demo_spark.killing import DriverProcess

        kafka, partitions, total = self._kafka, self._options.partitions, len(self._expected_some)
        kafka.create_topic(topic, partitions)
        directory = self._directory / topic
        directory.mkdir()
        batches = pipeline.micro_batches(self._some_lines)
        killed = checking.Killed(batches // 2, batches)
        arguments = [str(self._some_lines), str(directory), kafka.bootstrap_servers, topic]
        arguments += [self._options.compression, delivery]

        def written(_began_s: float) -> tuple[int, str]:
            done = _end_offsets(self._admin, topic, partitions)
            what = "rows in Kafka" if delivery == checking.AT_LEAST_ONCE else "offsets used in Kafka"
            return done, f"{topic}: {done:,} {what}" if done > before else f"{topic}: its driver starts"

        before, elapsed_s = 0, -time.monotonic()
        with DriverProcess(arguments, directory, self._log, hold=killed.batch) as driver:
            held = follow(driver.until_held, total, written)
            driver.kill()
        where = f"in micro-batch {killed.batch + 1} of {batches}"
        print(f"  {topic}: driver killed after {held.rows:,} rows, {where}: {held.step}", flush=True)
        before = _end_offsets(self._admin, topic, partitions)
        with DriverProcess(arguments, directory, self._log) as driver:
            print(f"  {topic}: driver started again, from its checkpoint", flush=True)
            follow(driver.until_ended, total, written)
        elapsed_s += time.monotonic()
        told = summaries.kept(directory / "summaries")
        mode = f"{batches} micro-batches"
        return self._outcome(topic, mode, self._expected_some, told, elapsed_s, delivery, killed)

    def _outcome(
        self,
        topic: str,
        mode: str,
        expected: Any,
        told: Sequence[WriteSummary],
        elapsed_s: float,
        delivery: str,
        killed: Killed | None,
    ) -> Outcome:
        """Reads a topic back, after it was written."""
        from demo_spark import checking

        kafka = self._kafka
        print(f"  {topic}: written in {elapsed_s:.1f} s", flush=True)
        left = 0
        if delivery == checking.EXACTLY_ONCE:
            left = _open_transactions(kafka.bootstrap_servers, topic)
        with progress(len(expected)) as shown:
            back = checking.read_back(
                kafka.bootstrap_servers,
                topic,
                lambda done: shown.update(done, f"{topic}: {done:,} rows read back"),
            )
        logs = kafka.log_dir(kafka.node_ids[0]).glob(f"{topic}-[0-9]*/*.log")
        return checking.Outcome(
            topic=topic,
            mode=mode,
            expected=expected,
            found=back,
            summary_rows=sum(each.rows for each in told),
            elapsed_s=elapsed_s,
            disk_bytes=sum(path.stat().st_size for path in logs),
            partitions=self._options.partitions,
            p99_ms=max((each.p99_ms for each in told), default=float("nan")),
            delivery=delivery,
            killed=killed,
            open_transactions=left,
        )


def _follow_tasks(spark: Any, name: str, work: Callable[[], T]) -> T:
    """Runs a job; shows the number of its completed tasks as progress."""
    status = spark.sparkContext.statusTracker()

    def tasks(_began_s: float) -> tuple[int, str]:
        stages = [status.getStageInfo(stage) for stage in status.getActiveStageIds()]
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        total = sum(stage.numTasks for stage in stages if stage is not None)
        return (1000 * done // total if total else 0), f"{name}: {done} of {total} tasks"

    return follow(work, 1000, tasks)


def _end_offsets(admin: AdminClient, topic: str, partitions: int) -> int:
    """Returns the number of offsets used in a topic. Without transactions, this is the number of records."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for number in range(partitions)}
    return sum(future.result().offset for future in admin.list_offsets(asked).values())


def _open_transactions(bootstrap: str, prefix: str) -> int:
    """Returns the number of transactions with a prefix that do not end. Brokers write the markers of a
    transaction a moment after its end is decided, so this waits for those."""
    from cyproducer.transactions import TransactionAdmin
    from tools.harness.until import looks

    left = 0
    with TransactionAdmin({"bootstrap_servers": bootstrap}) as admin:
        for _ in looks(TRANSACTIONS_END_S):
            if not (left := len(admin.list_transactions(states=UNENDED, prefix=f"{prefix}."))):
                break
    return left


def _run(options: argparse.Namespace, terminal: TextIO) -> int:
    from demo_spark.session import quiet_spark
    from tools.harness.kafka_cluster import KafkaCluster

    with tempfile.TemporaryDirectory(prefix="demo-spark-") as scratch:
        directory = Path(scratch)
        log = directory / "spark.log"
        print("Starting Kafka and Spark (the first time, Maven fetches Kafka)", flush=True)
        classpath()
        try:
            with KafkaCluster(directory=directory / "kafka", properties={"log.retention.ms": -1}) as kafka:
                demo = Pipeline(options, kafka, directory, log)
                with quiet_spark(directory, log) as spark:
                    print(f"  Kafka at {kafka.bootstrap_servers}, Spark {spark.version}", flush=True)
                    outcomes = demo.run(spark)
                # Without that Spark, whose memory the others need.
                outcomes += demo.run_killed()
        except Exception as error:
            words = str(error) if isinstance(error, FailedError) else one_line(error)
            print(f"failed: {words[:2000]}", file=terminal)
            if log.exists():
                said = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
                print("The end of Spark's log:", *said, sep="\n  ", file=terminal)
            return 1
    return tell(outcomes, terminal)


def tell(outcomes: Sequence[Outcome], terminal: TextIO) -> int:
    """Prints the table, and complaints to ``terminal``. Returns the exit code."""
    from demo_spark import checking

    print()
    print(checking.grid(outcomes))
    print()
    wrong = checking.complaints(outcomes)
    for sentence in wrong:
        print(sentence, file=terminal)
    if not wrong:
        print(checking.conclusion(outcomes))
    return 1 if wrong else 0


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=_count, help="maximum number of lines to write (default: all)")
    parser.add_argument(
        "--source",
        type=_directory,
        action="append",
        help="a directory with source code; may be repeated (default: Python's library, installed packages)",
    )
    parser.add_argument(
        "--only", action="append", choices=TOPICS, help="write this topic; may be repeated (default: all)"
    )
    parser.add_argument("--partitions", type=_count, default=4, help="partitions per topic (default: 4)")
    parser.add_argument(
        "--compression",
        default="zstd",
        choices=["none", "gzip", "snappy", "lz4", "zstd"],
        help="default: zstd",
    )
    return parser.parse_args(given)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)


def _directory(text: str) -> Path:
    path = Path(text).resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return path


def main(given: list[str] | None = None) -> int:
    """Runs the program and returns the exit code."""
    options = _arguments(given)
    if (reason := missing()) is not None:
        print(f"demo-spark: {reason}", file=sys.stderr)
        return MISSING

    # Spark's client also raises what it logs, and logs a useless stack trace on Ctrl-C.
    logging.getLogger().addHandler(logging.NullHandler())

    def end(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    # Like Ctrl-C, so that no process outlives the program.
    before = signal.signal(signal.SIGTERM, end)
    try:
        return _run(options, sys.stderr)
    except KafkaUnavailableError as error:
        print(f"demo-spark: {error}", file=sys.stderr)
        return MISSING
    except KeyboardInterrupt:
        print("\ninterrupted; Kafka and Spark are stopped", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
