"""One broker of a `KafkaCluster`: its configuration files and its process.

Owns a node's directory (``server.properties``, ``broker.log``, ``jvm.log``, ``data/``) and its JVM, which
runs below ``supervise.py`` so that it dies with the test run. Knows nothing of the other nodes.
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
    """A broker or one of Kafka's tools did not do its work; the message holds the end of its log."""


def java(classpath: str, main_class: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """The command that runs one of Kafka's classes.

    The flags trade peak speed for a short start and a small heap: tests start brokers often and on two cores.
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
        """The JVM's, while it runs."""

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    def configure(self, properties: Mapping[str, object]) -> None:
        """Write the node's files, without touching its data."""
        self.directory.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        self.properties_file.write_text(text)
        log4j = LOG4J.format(file=self.directory / "broker.log")
        (self.directory / "log4j2.properties").write_text(log4j)

    def formatting(self, cluster_id: str) -> subprocess.Popen[bytes]:
        """Start formatting the data directory; `formatted` waits for it."""
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
        """Start the JVM; returns before the broker answers."""
        if self.running:
            raise KafkaStartError(f"node {self.node_id} is already running (pid {self.pid})")
        command = java(
            self._classpath,
            self.MAIN_CLASS,
            str(self.properties_file),
            options=[*self._log_options("log4j2"), *self._jvm_options],
        )
        with open(self.directory / "jvm.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, SUPERVISE, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # A Ctrl-C at the terminal is for the test run, which then stops its brokers in order.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        self.paused = False

    @property
    def running(self) -> bool:
        """Whether the JVM is there, be it paused."""
        return self._process is not None and self._process.poll() is None

    def signal(self, name: str) -> bool:
        """Send the JVM a signal such as ``SIGTERM``; ``False`` where it is already gone."""
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
        """Wait for the JVM's end; ``False`` where it is still there after ``timeout_s``."""
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
        """The end of what the node wrote, for an error message."""
        return "\n".join(f"--- {name}\n{_tail(self.directory / name)}" for name in ("jvm.log", "broker.log"))

    def lost_its_port(self) -> bool:
        """Whether the broker died because another process took one of its ports first."""
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
