"""Runs a test's function in a forked child, and returns or raises what the function did."""

import importlib.util
import os
import pickle
import select
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
PATIENCE_S = 60.0

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to count descriptors")


def needs_module(name: str) -> pytest.MarkDecorator:
    """For tests whose programs import a module. Not imported here: loaded picklers change error messages."""
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")


class Child:
    """A forked child that runs ``function`` and nothing else. ``fork``: for a ``fork()`` by C code."""

    def __init__(self, function: Callable[[], object], fork: Callable[[], int] | None = None) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Python warns that a fork with threads may deadlock. That it does not deadlock is under test.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = (fork or os.fork)()
        if self.pid == 0:
            try:
                os.close(reading)
                try:
                    said = pickle.dumps((function(), None))
                except BaseException as error:
                    said = pickle.dumps((None, error))
                os.write(writing, said)
            finally:
                os._exit(0)
        os.close(writing)
        self._reading = reading

    def outcome(self) -> object:
        """Returns what the function returned, or raises what it raised. A silent child is killed."""
        try:
            if not select.select([self._reading], [], [], PATIENCE_S)[0]:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError("the forked child hangs")
            said = os.read(self._reading, 1 << 16)
        finally:
            os.close(self._reading)
            os.waitpid(self.pid, 0)
        assert said, "the forked child ended without a result"
        result, error = pickle.loads(said)
        if error is not None:
            raise error
        return result


def in_child(function: Callable[[], T]) -> T:
    """Runs ``function`` in a forked child of this process and returns its result."""
    result: T = Child(function).outcome()  # type: ignore[assignment]
    return result


def descriptors() -> dict[int, str]:
    """This process's descriptors by number, and what they refer to; without the one used to list them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return found


def tasks() -> int:
    """Returns the number of threads of this process, including those that Python did not start."""
    return len(os.listdir("/proc/self/task"))


def own_threads() -> list[str]:
    """The names of this package's threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("cyproducer")]
