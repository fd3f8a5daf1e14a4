"""Runs a standalone Spark cluster for tests: a master and two workers, on loopback, as processes of this
machine.

Owns their start and stop, their directories and logs. Does not own the session (``spark_session``, which
takes ``master``) or the executors' work. Not thread-safe.

Each worker and its executors have their own address, 127.0.0.1 or 127.0.0.2: Spark sees different hosts,
without which it starts no second copy of a task. All processes die with the test run, even if it is killed:
the master and the workers run under ``supervise.py``, executors end with their worker, and Python workers
with their executor.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from tests.integration.process_table import below, until_gone
from tools.harness.kafka_node import SUPERVISE, java
from tools.harness.until import looks

HOSTS = ("127.0.0.1", "127.0.0.2")
START_S = 240.0
STOP_S = 60.0


def missing_hosts() -> str | None:
    """Returns why the workers' addresses are not available, or None. On Linux all of 127.0.0.0/8 is."""
    for host in HOSTS:
        with socket.socket() as probe:
            try:
                probe.bind((host, 0))
            except OSError as error:
                return f"{host} is not an address of this machine: {error}"
    return None


def missing_namespaces() -> str | None:
    """Returns why a directory can't be hidden from the workers, or None."""
    try:
        # As ``_Daemon`` does it, over a directory in which nothing is looked for.
        subprocess.run([*_without(Path("/mnt")), "true"], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        return "needs the program unshare"
    except subprocess.CalledProcessError as error:
        return f"needs the right to mount, as root: {error.stderr.strip()}"
    return None


def _without(hidden: Path) -> list[str]:
    """Returns what begins a command that sees an empty directory in place of that one."""
    return ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden)]


class StandaloneSpark:
    """The cluster; a context manager. ``cores`` and ``memory`` are per worker. ``hidden``: a directory that
    the workers and their executors see empty, as if they were other machines."""

    def __init__(
        self, directory: Path, cores: int = 1, memory: str = "512m", hidden: Path | None = None
    ) -> None:
        self._directory = directory
        self._hidden = hidden
        self._cores = cores
        self._memory = memory
        self._running: list[_Daemon] = []
        self.master = ""
        """The address for a session."""

    def __enter__(self) -> Self:
        if (reason := missing_hosts()) is not None:
            raise RuntimeError(reason)
        try:
            master = self._start("master", "master.Master", HOSTS[0])
            self.master = master.says(r"Starting Spark master at (spark://\S+)")
            master.says(r"New state: ALIVE")
            workers = [
                self._start(
                    f"worker-{number}",
                    "worker.Worker",
                    host,
                    *("--cores", str(self._cores), "--memory", self._memory),
                    *("--work-dir", str(self._directory / f"work-{number}")),
                    self.master,
                    hidden=self._hidden,
                )
                for number, host in enumerate(HOSTS)
            ]
            for worker in workers:
                worker.says(r"Successfully registered with master (\S+)")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops the workers, then the master. If executors or their Python workers remain, kills them and
        fails."""
        started = {each.pid for daemon in self._running for each in below(daemon.pid)}
        with ExitStack() as stack:
            stack.callback(until_gone, started, "processes of the Spark cluster are")
            # The last one pushed is called first.
            for daemon in self._running:
                stack.callback(daemon.stop)
        self._running = []

    def logs(self) -> str:
        """Returns the ends of the logs of all processes, executors included."""
        files = [daemon.log for daemon in self._running] + sorted(self._directory.glob("work-*/*/*/stderr"))
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def _start(self, name: str, of: str, host: str, *arguments: str, hidden: Path | None = None) -> _Daemon:
        daemon = _Daemon(self._directory, name, of, host, *arguments, hidden=hidden)
        self._running.append(daemon)
        return daemon


class _Daemon:
    """A master or a worker: a JVM under ``supervise.py``, on free ports of ``host``."""

    def __init__(
        self, directory: Path, name: str, of: str, host: str, *arguments: str, hidden: Path | None = None
    ) -> None:
        import pyspark

        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = directory / f"{name}.log"
        home = Path(pyspark.__file__).parent
        command = java(
            f"{home}/jars/*",
            f"org.apache.spark.deploy.{of}",
            *("--host", host, "--port", "0", "--webui-port", "0"),
            *arguments,
            options=["-Dspark.master.rest.enabled=false", f"-Dspark.local.dir={directory / 'local'}"],
        )
        environment = {
            **os.environ,
            # The address for all sockets of it and its executors, including the web UI.
            "SPARK_LOCAL_IP": host,
            # A worker needs these to start executors. Normally Spark's scripts set them.
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": next(home.glob("jars/spark-core_*.jar")).name.split("_")[1].split("-")[0],
        }
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SUPERVISE), *(_without(hidden) if hidden is not None else ()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        """The JVM's pid."""

    def says(self, pattern: str) -> str:
        """Waits until its log matches ``pattern``. Returns the pattern's last group, or the whole match."""
        text = ""
        for _ in looks(START_S, 0.1):
            text = self.log.read_text(errors="replace")
            if (found := re.search(pattern, text)) is not None:
                return found[found.lastindex or 0]
            if self._process.poll() is not None:
                break
        raise RuntimeError(f"{self.name} did not log {pattern!r}:\n{text[-3000:]}")

    def stop(self) -> None:
        """Sends SIGTERM, so that a worker stops its executors. Kills the process if it does not exit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write("SIGTERM\n")
            self._process.stdin.flush()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            # At the end of its stdin, ``supervise.py`` kills the JVM.
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait(STOP_S)
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                stream.close()
