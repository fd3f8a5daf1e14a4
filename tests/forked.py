"""Running a function of a test in a forked child, and hearing what it returned or raised."""

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
PATIENCE_S = 30.0

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to count descriptors")


def needs_module(name: str) -> pytest.MarkDecorator:
    """For tests whose programs import it. Not imported here: picklers that are there change what is said."""
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")


class Child:
    """A forked child that runs ``function`` and nothing else."""

    def __init__(self, function: Callable[[], object]) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Python warns that a fork with threads may deadlock: that it does not is what is tested.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
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
        """What the function returned; raises what it raised. A child that says nothing is killed."""
        try:
            if not select.select([self._reading], [], [], PATIENCE_S)[0]:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError("the forked child hangs")
            said = os.read(self._reading, 1 << 16)
        finally:
            os.close(self._reading)
            os.waitpid(self.pid, 0)
        assert said, "the forked child ended without a word"
        result, error = pickle.loads(said)
        if error is not None:
            raise error
        return result


def in_child(function: Callable[[], T]) -> T:
    """What ``function`` returns in a forked child of this process."""
    result: T = Child(function).outcome()  # type: ignore[assignment]
    return result


def descriptors() -> dict[int, str]:
    """This process's descriptors: number and what they are of, but the one that lists them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return found


def tasks() -> int:
    """Threads of this process, whoever started them."""
    return len(os.listdir("/proc/self/task"))


def own_threads() -> list[str]:
    """The names of this package's threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("cyproducer")]
