"""Sends source code from files through Spark to Kafka, as a batch and as a stream, and verifies the result.
Also kills the driver of a stream in the middle of a commit, with both guarantees, and starts it again.

    make demo-spark                          # all source code of this Python and of its installed packages
    make demo-spark DEMO="--rows 100000"     # fewer lines
    python demo_spark/run.py --source DIR    # other source code

Starts a Kafka and a local Spark, both on 127.0.0.1 and in a temporary directory, and stops them. Needs Java
17 or newer, and Maven the first time. Exit code: 0 if each topic holds exactly the expected rows, each once;
1 if not, or if something failed; 2 if something is not installed; 130 after Ctrl-C.

Owns the order of the steps, the output, and the cleanup. The main thread does the work and handles Ctrl-C;
another thread shows progress.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from cyproducer.cli.console import Progress, one_line
from tools.harness.kafka_install import KafkaUnavailableError, classpath, missing_tools

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from demo_spark.checking import Outcome
    from tools.harness.kafka_cluster import KafkaCluster

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
MODULES = ("pyspark", "pyarrow", "confluent_kafka")
LOOK_S = 0.2
LOG_LINES = 15
MISSING, INTERRUPTED = 2, 130
DRIVER_MEMORY = "2g"


def missing() -> str | None:
    """Returns a sentence that says what to install, or None if nothing is missing."""
    if (reason := missing_tools()) is not None:
        return reason
    lacking = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not found: pip install 'cyproducer[testing,spark]'"
    return None


class FailedError(Exception):
    """A Spark job failed. The message is that of its error."""


class Pipeline:
    """One run, with a running Spark and a running Kafka. For the main thread. Writes below ``directory``."""

    def __init__(self, options: argparse.Namespace, spark: Any, kafka: KafkaCluster, directory: Path) -> None:
        from confluent_kafka.admin import AdminClient

        self._options = options
        self._spark = spark
        self._kafka = kafka
        self._directory = directory
        self._lines = directory / "lines"
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def run(self) -> list[Outcome]:
        from demo_spark import pipeline

        sources = self._options.source or pipeline.default_sources()
        print(f"Reading source code below {', '.join(map(str, sources))}")
        spark, lines_path, began_s = self._spark, self._lines, time.monotonic()
        found = self._follow_tasks(
            "reading and cleaning", lambda: pipeline.clean(spark, sources, self._options.rows, lines_path)
        )
        elapsed_s = time.monotonic() - began_s
        print(
            f"  {found['files']:,} files, {found['lines']:,} lines in {elapsed_s:.1f} s; left out: "
            f"{found['blank']:,} blank, {found['long']:,} longer than {pipeline.LONGEST:,} characters"
        )
        lines = spark.read.parquet(str(lines_path))
        rows = pipeline.line_records(lines)
        files = pipeline.file_records(lines)
        expected = self._follow_tasks("hashing the lines", lambda: pipeline.expected_hashes(rows))
        expected_files = self._follow_tasks("hashing the files", lambda: pipeline.expected_hashes(files))
        print(f"  {len(expected):,} lines and {len(expected_files):,} files to write")
        checkpoint = self._directory / "checkpoint"
        return [
            self._write("source-lines", expected, lambda options: pipeline.write_batch(rows, options)),
            self._write("source-files", expected_files, lambda options: pipeline.write_batch(files, options)),
            self._write(
                "source-lines-streamed",
                expected,
                lambda options: pipeline.write_stream(spark, lines_path, checkpoint, options),
            ),
            self._write_killed("killed-at-least-once", expected, "at-least-once"),
            self._write_killed("killed-exactly-once", expected, "exactly-once"),
        ]

    def _write_killed(self, topic: str, expected: Any, guarantee: str) -> Outcome:
        """Streams the lines with a driver that is killed in the middle of a commit and started again."""
        from cyproducer.transactions import list_transactions
        from demo_spark import checking

        kafka, partitions, total = self._kafka, self._options.partitions, len(expected)
        kafka.create_topic(topic, partitions)
        began_s = time.monotonic()
        for life in ("until it is killed", "from its checkpoint"):

            def acknowledged(_began_s: float, life: str = life) -> tuple[int, str]:
                done = _end_offsets(self._admin, topic, partitions)
                return min(done, total), f"{topic}, {life}: {done:,} offsets used"

            killed = _follow(lambda: self._live(topic, guarantee), total, acknowledged)
            if killed:
                done = _end_offsets(self._admin, topic, partitions)
                print(f"  {topic}: the driver was killed in the middle of a commit, at {done:,} offsets")
        elapsed_s = time.monotonic() - began_s
        print(f"  {topic}: written in {elapsed_s:.1f} s, with two starts of Spark")
        with _progress(total) as progress:
            back = checking.read_back(
                kafka.bootstrap_servers,
                topic,
                lambda done: progress.update(done, f"{topic}: {done:,} rows read back"),
            )
        left = list_transactions(
            {"bootstrap_servers": kafka.bootstrap_servers}, states=("Ongoing",), prefix="demo."
        )
        logs = kafka.log_dir(kafka.node_ids[0]).glob(f"{topic}-[0-9]*/*.log")
        once = guarantee == "exactly-once"
        return checking.Outcome(
            topic=topic,
            mode="killed driver",
            expected=expected,
            found=back,
            summary_rows=None,
            elapsed_s=elapsed_s,
            disk_bytes=sum(path.stat().st_size for path in logs),
            partitions=partitions,
            p99_ms=float("nan"),
            may_double=not once,
            transactional=once,
            open_transactions=len(left) if once else 0,
        )

    def _live(self, topic: str, guarantee: str) -> bool:
        """Runs a driver until it ends, or waits in the middle of a commit, where it is killed. Returns
        whether it was."""
        from demo_spark import killed, pipeline

        place = self._directory / topic
        place.mkdir(exist_ok=True)
        held = place / killed.HELD
        before = held.exists()
        command = [sys.executable, "-P", killed.__file__, str(self._directory), self._kafka.bootstrap_servers]
        with open(self._directory / "spark.log", "ab") as log:
            driver = subprocess.Popen(
                [*command, topic, guarantee, self._options.compression],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    killed.PLACE_VARIABLE: str(place),
                    killed.BATCH_VARIABLE: str(pipeline.micro_batches(self._lines) // 3),
                },
                # The JVM is of the same group.
                start_new_session=True,
            )
            try:
                while driver.poll() is None and (before or not held.exists()):
                    time.sleep(LOOK_S)
                if driver.poll() is None or not (place / "ended").exists():
                    if before or not held.exists():
                        raise RuntimeError(f"the driver of {topic} failed")
                    return True
                return False
            finally:
                # Python and the JVM, at the same time. Its workers notice that the JVM is gone.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()

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
        _follow(lambda: write(sink), total, acknowledged)
        elapsed_s += time.monotonic()
        print(f"  {topic}: written in {elapsed_s:.1f} s")
        with _progress(total) as progress:
            back = checking.read_back(
                kafka.bootstrap_servers,
                topic,
                lambda done: progress.update(done, f"{topic}: {done:,} rows read back"),
            )
        told = summaries.kept(Path(os.environ[summaries.FILE_VARIABLE]))
        logs = kafka.log_dir(kafka.node_ids[0]).glob(f"{topic}-[0-9]*/*.log")
        return checking.Outcome(
            topic=topic,
            mode="batch" if len(told) == 1 else f"{len(told)} micro-batches",
            expected=expected,
            found=back,
            summary_rows=sum(each.rows for each in told),
            elapsed_s=elapsed_s,
            disk_bytes=sum(path.stat().st_size for path in logs),
            partitions=partitions,
            p99_ms=max((each.p99_ms for each in told), default=float("nan")),
        )

    def _follow_tasks(self, name: str, work: Callable[[], T]) -> T:
        """Runs a job; shows the number of its completed tasks as progress."""
        status = self._spark.sparkContext.statusTracker()

        def tasks(_began_s: float) -> tuple[int, str]:
            stages = [status.getStageInfo(stage) for stage in status.getActiveStageIds()]
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            total = sum(stage.numTasks for stage in stages if stage is not None)
            return (1000 * done // total if total else 0), f"{name}: {done} of {total} tasks"

        return _follow(work, 1000, tasks)


def _end_offsets(admin: AdminClient, topic: str, partitions: int) -> int:
    """Returns the number of records in a topic from which nothing was deleted."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for number in range(partitions)}
    return sum(future.result().offset for future in admin.list_offsets(asked).values())


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Progress]:
    progress = Progress(sys.stderr, total)
    try:
        yield progress
    finally:
        progress.close()


def _follow(work: Callable[[], T], total: int, look: Callable[[float], tuple[int, str]]) -> T:
    """Runs ``work`` on the calling thread, while another thread shows the progress that ``look`` returns.

    ``work`` must run on the main thread: Spark looks up Python data sources in the calling thread's session,
    and only the main thread has one.

    Raises:
        FailedError: ``work`` failed.
    """
    ended = threading.Event()
    began_s = time.monotonic()

    def watch() -> None:
        with _progress(total) as progress:
            while not ended.wait(LOOK_S):
                # Errors while showing progress must not fail the run.
                with contextlib.suppress(Exception):
                    progress.update(*look(began_s))

    watcher = threading.Thread(target=watch, name="progress")
    watcher.start()
    try:
        return work()
    except Exception as error:
        # Get the text now: Spark's errors fetch their message from the JVM, which must still be running. Cut
        # off the JVM's stack trace.
        raise FailedError(one_line(error).partition(" at org.apache.spark.")[0]) from None
    finally:
        ended.set()
        watcher.join()


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Processes that are started in the block write their standard error to ``path``."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(path, "ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _spark(directory: Path, log: Path) -> Iterator[Any]:
    """Starts a local Spark whose processes write to ``log``, so that they do not disturb the progress bar."""
    from demo_spark import pipeline, summaries
    from tools.harness.spark_session import spark_session

    # Spark's processes inherit this environment, and must be able to import `summaries`.
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    environment = {
        "PYTHONPATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1",
        summaries.FILE_VARIABLE: str(directory / "summaries"),
    }
    settings = {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.ui.showConsoleProgress": "false",
        **pipeline.SCAN_SETTINGS,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(environment))
        with _stderr_to(log):
            session = spark_session(
                directory, "local[*]", **{name.replace(".", "__"): value for name, value in settings.items()}
            )
            spark = stack.enter_context(session)
        yield spark


def _run(options: argparse.Namespace, terminal: TextIO) -> int:
    from tools.harness.kafka_cluster import KafkaCluster

    with tempfile.TemporaryDirectory(prefix="demo-spark-") as scratch:
        directory = Path(scratch)
        log = directory / "spark.log"
        print("Starting Kafka and Spark (the first time, Maven fetches Kafka)", flush=True)
        classpath()
        try:
            with (
                KafkaCluster(directory=directory / "kafka", properties={"log.retention.ms": -1}) as kafka,
                _spark(directory, log) as spark,
            ):
                print(f"  Kafka at {kafka.bootstrap_servers}, Spark {spark.version}", flush=True)
                outcomes = Pipeline(options, spark, kafka, directory).run()
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
        text = "Each topic holds exactly the rows that Spark computed, each once"
        if any(outcome.may_double for outcome in outcomes):
            doubled = sum(outcome.difference.duplicates for outcome in outcomes if outcome.may_double)
            text += f"; but at-least-once has {doubled:,} more, as its driver was killed"
        print(f"{text}.")
    if any(outcome.transactional for outcome in outcomes):
        print("In a topic of transactions, markers and aborted rows have offsets, too.")
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
