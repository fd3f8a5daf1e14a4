"""What a forked child renews before it uses anything of its parent's."""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import pytest

from cyproducer.base import forks
from tests.forked import Child, in_child, needs_fork
from tools.harness.until import Running

pytestmark = needs_fork

T = TypeVar("T")


def in_grandchild(renewals: Sequence[Callable[[], object]], function: Callable[[], T]) -> T:
    """Runs ``function`` in a child that C code has forked, where these functions renew something.

    Its parent is a child of this process, so that nothing stays registered here.
    """

    def register_and_fork() -> T:
        for renew in renewals:
            forks.in_child(renew)
        result: T = Child(function, ctypes.PyDLL(None).fork).outcome()  # type: ignore[assignment]
        return result

    return in_child(register_and_fork)


def test_each_function_is_called_once_and_in_order() -> None:
    called: list[int] = []

    def look() -> list[list[int]]:
        seen = [list(called)]
        for _ in range(2):
            forks.ensure_own_process()
            seen.append(list(called))
        return seen

    renewals = [partial(called.append, number) for number in range(3)]
    assert in_grandchild(renewals, look) == [[], [0, 1, 2], [0, 1, 2]]


def test_an_interrupted_renewal_begins_again() -> None:
    called: list[int] = []

    def interrupted() -> None:
        called.append(1)
        if len(called) == 2:
            raise KeyboardInterrupt

    def look() -> list[int]:
        with pytest.raises(KeyboardInterrupt):
            forks.ensure_own_process()
        forks.ensure_own_process()
        forks.ensure_own_process()
        return called

    assert in_grandchild([lambda: called.append(0), interrupted], look) == [0, 1, 0, 1]


def test_a_function_may_use_what_looks_for_a_fork() -> None:
    def look() -> bool:
        forks.ensure_own_process()
        return True

    assert in_grandchild([forks.ensure_own_process], look)


def test_other_threads_wait_until_everything_is_renewed() -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        begun.set()
        assert go_on.wait(20)
        done.append("renewed")

    def use() -> None:
        forks.ensure_own_process()
        done.append("used")

    def look() -> list[str]:
        first = Running(use)
        assert begun.wait(20)
        second = Running(use)
        # It would be here by now if it did not wait.
        second.thread.join(0.05)
        assert not done
        go_on.set()
        first.outcome()
        second.outcome()
        return done

    assert in_grandchild([slow], look) == ["renewed", "used", "used"]


def test_a_fork_by_python_is_noticed_at_once() -> None:
    called: list[int] = []

    def register_and_fork() -> object:
        forks.in_child(lambda: called.append(os.getpid()))
        return Child(lambda: len(called)).outcome()

    assert in_child(register_and_fork) == 1
