"""Programs that tests run in an interpreter of their own, to see how that ends."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

ROOT = Path(__file__).parent.parent


COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


def shared_library(source: Path, directory: Path, *options: str) -> Path:
    """Compiles a C file. The tests that do so are marked with ``needs_compiler``."""
    assert COMPILER is not None
    library = directory / source.with_suffix(".so").name
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", *options, "-o", library, source, "-ldl"], check=True)
    return library


def program_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    environment = {**os.environ, **(more or {})}
    if "CYPRODUCER_TEST_INSTALLED" not in environment:
        paths = [environment["PYTHONPATH"]] if more and "PYTHONPATH" in more else []
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *paths])
    return environment


def _command(script: str, arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *arguments]


def run_to_exit(
    script: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python source with arguments until it ends by itself, 50 seconds at most.

    ``environment``: in addition to that of the tests.
    """
    return subprocess.run(
        _command(script, arguments),
        capture_output=True,
        text=True,
        timeout=50,
        env=program_environment(environment),
        check=False,
    )


class Program:
    """Python source that runs in parallel to the test. It ends, with all its forks, when the context ends.

    ``said`` has its stdout and stderr as one text, as far as read.
    """

    def __init__(self, script: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> None:
        self.said = ""
        # A session of its own, to distinguish its children from all other processes.
        self._process = subprocess.Popen(
            _command(script, arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=program_environment(),
            pass_fds=pass_fds,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """The process id of the interpreter, which is also that of its session."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def hear(self, beginning: str) -> str:
        """Returns the rest of the next line with this beginning; fails if the program ends without one."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        raise AssertionError(f"no {beginning!r} in:\n{self.said}")

    def end(self, with_signal: signal.Signals | None = None) -> int:
        """Waits for the end of the program and its forks, maybe after a signal; returns its exit status."""
        if with_signal is not None:
            self._process.send_signal(with_signal)
        assert self._process.stdout is not None
        # Reads on from the same stream: some of it may have been read ahead.
        self.said += self._process.stdout.read()
        return self._process.wait(50)
