"""Writes a stream whose driver is killed in the middle, and is started again from its checkpoint.

Owns the driver's process: its start, its kill with SIGKILL, and that nothing of it is left. Does not own what
it does (`driver`), or where it waits for the kill (`held`). Runs on the main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from demo_spark import held, session
from demo_spark.following import LOOK_S, FailedError
from tools.harness.until import looks

GONE_S = 10.0


class DriverProcess:
    """A driver that runs. A context manager: kills the driver at the end, if it runs.

    Args:
        arguments: Those of `driver.main`.
        directory: For all of its files.
        log: Where it and its JVM write what they have to say.
        hold: The micro-batch while whose commit it waits to be killed. None: it runs to its end.
    """

    def __init__(self, arguments: list[str], directory: Path, log: Path, hold: int | None = None) -> None:
        self._held = directory / "held"
        self._held.unlink(missing_ok=True)
        environment: Mapping[str, str] = {
            **session.driver_environment(directory),
            **({} if hold is None else {held.BATCH_VARIABLE: str(hold)}),
            held.FILE_VARIABLE: str(self._held),
        }
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "demo_spark.driver", *arguments],
                env=environment,
                cwd=directory,
                # It ends when this end of the pipe is closed, even if this process is killed.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # A process group for the driver and its JVM, to kill both at the same time. Ctrl-C reaches
                # only the demo, which then kills them.
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def until_held(self) -> held.Held:
        """Waits until the driver is held.

        Raises:
            FailedError: It ended before.
        """
        while (found := held.held(self._held)) is None:
            if (code := self._process.poll()) is not None:
                raise FailedError(f"the driver ended with exit code {code} before it was killed")
            time.sleep(LOOK_S)
        return found

    def until_ended(self) -> None:
        """Waits for the end of the stream.

        Raises:
            FailedError: The driver failed.
        """
        if (code := self._process.wait()) != 0:
            raise FailedError(f"the driver that was started again ended with exit code {code}")

    def kill(self) -> None:
        """Kills the driver's Python process and its JVM with SIGKILL, and the process that is held; returns
        when they are gone. Spark's Python workers end by themselves with the JVM."""
        group = self._process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if (found := held.held(self._held)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGKILL)
        self._held.unlink(missing_ok=True)
        for _ in looks(GONE_S):
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return
