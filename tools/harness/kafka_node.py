"""Runs one broker of a `KafkaCluster`: its configuration files and its process.

Owns a node's directory (``server.properties``, ``broker.log``, ``jvm.log``, ``data/``) and its JVM, which
runs under ``supervise.py`` so that it dies with the test run. Does not know the other nodes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SUPERVISE = Path(__file__).with_name("supervise.py")

LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %-5p %c{{1}}: %m%n
"""


class KafkaStartError(RuntimeError):
    """A broker or one of Kafka's tools failed. The message has the end of its log."""


def java(classpath: str, main_class: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Returns the command that runs one of Kafka's classes.

    The flags trade peak speed for a short start and a small heap: tests start brokers often, and on few
    cores.
    """
    return [
        "java",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-Djava.awt.headless=true",
        *options,
        "-cp",
        classpath,
        main_class,
        *arguments,
    ]


class KafkaNode:
    """One broker and controller. Not thread-safe."""

    MAIN_CLASS = "kafka.Kafka"

    def __init__(
        self, node_id: int, directory: Path, classpath: str, jvm_options: Sequence[str] = ()
    ) -> None:
        self.node_id = node_id
        self.directory = directory
        self.ports: dict[str, int] = {}
        self.paused = False
        self._classpath = classpath
        self._jvm_options = jvm_options
        self._process: subprocess.Popen[str] | None = None
        self.pid: int | None = None
        """The JVM's pid while it runs."""

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    def configure(self, properties: Mapping[str, object]) -> None:
        """Writes the node's configuration files. Does not change its data."""
        self.directory.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        self.properties_file.write_text(text)
        log4j = LOG4J.format(file=self.directory / "broker.log")
        (self.directory / "log4j2.properties").write_text(log4j)

    def formatting(self, cluster_id: str) -> subprocess.Popen[bytes]:
        """Starts to format the data directory. `formatted` waits for it."""
        command = java(
            self._classpath,
            "kafka.tools.StorageTool",
            *("format", "-t", cluster_id, "-c", str(self.properties_file)),
            options=self._log_options("format"),
        )
        with open(self.directory / "format.log", "wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def formatted(self, formatting: subprocess.Popen[bytes]) -> None:
        if formatting.wait(timeout=60) != 0:
            raise KafkaStartError(
                f"formatting node {self.node_id} failed:\n{_tail(self.directory / 'format.log')}"
            )

    def start(self) -> None:
        """Starts the JVM. Returns before the broker responds."""
        if self.running:
            raise KafkaStartError(f"node {self.node_id} is already running (pid {self.pid})")
        command = java(
            self._classpath,
            self.MAIN_CLASS,
            str(self.properties_file),
            # Libraries that are unpacked there stay if the JVM is killed.
            options=[
                f"-Djava.io.tmpdir={self.directory}",
                "-XX:-UsePerfData",
                *self._log_options("log4j2"),
                *self._jvm_options,
            ],
        )
        with open(self.directory / "jvm.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, SUPERVISE, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C at the terminal must only reach the test run, which then stops its brokers in order.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        self.paused = False

    @property
    def running(self) -> bool:
        """Whether the JVM exists; it may be paused."""
        return self._process is not None and self._process.poll() is None

    def signal(self, name: str) -> bool:
        """Sends the JVM a signal such as ``SIGTERM``. Returns ``False`` if it has already exited."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        if name == "SIGSTOP" and self.paused:
            return True
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
        except BrokenPipeError:
            return False
        answered = process.stdout.readline() != ""
        if answered and name in ("SIGSTOP", "SIGCONT"):
            self.paused = name == "SIGSTOP"
        return answered

    def wait(self, timeout_s: float) -> bool:
        """Waits for the JVM to exit. Returns ``False`` if it still runs after ``timeout_s``."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process = None
        self.pid = None
        return True

    def logs(self) -> str:
        """Returns the ends of the node's logs, for an error message."""
        return "\n".join(f"--- {name}\n{_tail(self.directory / name)}" for name in ("jvm.log", "broker.log"))

    def lost_its_port(self) -> bool:
        """Returns whether the broker exited because another process had taken one of its ports."""
        return any(
            "Address already in use" in _tail(self.directory / name, 20_000)
            for name in ("jvm.log", "broker.log")
        )

    def _log_options(self, name: str) -> list[str]:
        if name == "format":
            return ["-Dlog4j2.level=ERROR"]
        return [f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"]


def _tail(path: Path, length: int = 3_000) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - length))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return "(none)"
