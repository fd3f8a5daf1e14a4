"""A standalone Spark cluster for tests: a master and two workers, on loopback, as processes of this machine.

Owns: starting and stopping them, their directories and logs. Does not own: the session (``spark_session``,
to which ``master`` is given), nor what executors do. Not thread-safe.

Each worker has an address of its own, 127.0.0.1 and 127.0.0.2, and so have the executors that it starts:
for Spark they are different hosts, without which it starts no second copy of a task. Whatever was started
dies with the test run, be that killed: the master and the workers below ``supervise.py``, executors when
their worker goes, and Python's workers with their executor.
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

from tests.integration.kafka_node import SUPERVISE, java
from tests.integration.process_table import below, until_gone
from tests.until import looks

HOSTS = ("127.0.0.1", "127.0.0.2")
START_S = 240.0
STOP_S = 60.0


def missing_hosts() -> str | None:
    """Why this machine can't have the workers' addresses; None where it can. Linux has all of 127.0.0.0/8."""
    for host in HOSTS:
        with socket.socket() as probe:
            try:
                probe.bind((host, 0))
            except OSError as error:
                return f"{host} is no address of this machine: {error}"
    return None


class StandaloneSpark:
    """The cluster, from ``__enter__`` to ``__exit__``; ``cores`` are those of each worker."""

    def __init__(self, directory: Path, cores: int = 1, memory: str = "512m") -> None:
        self._directory = directory
        self._cores = cores
        self._memory = memory
        self._running: list[_Daemon] = []
        self.master = ""
        """The address that a session is given."""

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
        """Stops the workers, then the master. Fails, and kills them, where executors or their Python workers
        stay."""
        started = {each.pid for daemon in self._running for each in below(daemon.pid)}
        with ExitStack() as stack:
            stack.callback(until_gone, started, "processes of the Spark cluster are")
            # The last one pushed goes first.
            for daemon in self._running:
                stack.callback(daemon.stop)
        self._running = []

    def logs(self) -> str:
        """The end of what they and their executors wrote."""
        files = [daemon.log for daemon in self._running] + sorted(self._directory.glob("work-*/*/*/stderr"))
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def _start(self, name: str, of: str, host: str, *arguments: str) -> _Daemon:
        daemon = _Daemon(self._directory, name, of, host, *arguments)
        self._running.append(daemon)
        return daemon


class _Daemon:
    """A master or a worker: a JVM below ``supervise.py``, on free ports of ``host``."""

    def __init__(self, directory: Path, name: str, of: str, host: str, *arguments: str) -> None:
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
            # What it and its executors listen on is this address's, the page for browsers too.
            "SPARK_LOCAL_IP": host,
            # By these a worker finds what its executors are made of; Spark's scripts set them.
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": next(home.glob("jars/spark-core_*.jar")).name.split("_")[1].split("-")[0],
        }
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SUPERVISE), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        """The JVM's."""

    def says(self, pattern: str) -> str:
        """Waits for a line of its log; the pattern's group, or else all of it."""
        text = ""
        for _ in looks(START_S, 0.1):
            text = self.log.read_text(errors="replace")
            if (found := re.search(pattern, text)) is not None:
                return found[found.lastindex or 0]
            if self._process.poll() is not None:
                break
        raise RuntimeError(f"{self.name} did not say {pattern!r}:\n{text[-3000:]}")

    def stop(self) -> None:
        """Asks it to end, so that a worker ends its executors, and kills it where it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write("SIGTERM\n")
            self._process.stdin.flush()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            # The end of its stdin has ``supervise.py`` kill the JVM.
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait(STOP_S)
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                stream.close()
