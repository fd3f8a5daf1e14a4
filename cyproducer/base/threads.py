"""System threads, and the condition they wait for, also in a process that gevent or eventlet has patched.

Owns starting a producer's threads, their names, and ``Condition``. Does not own what they run. In a process
that is not patched, a thread is an ordinary ``threading.Thread``, which debuggers and profilers know.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

from cyproducer.base.clock import monotonic_s
from cyproducer.base.durations import waitable
from cyproducer.base.greenlets import Event, RLock
from cyproducer.base.unpatched import get_ident, start_new_thread

LOOK_S = 0.5
"""The interval at which a waiting thread looks by itself, in case it was not woken."""
_names: dict[int, str] = {}
"""Ident -> name, of the threads that ``threading`` does not know."""


class SystemThread:
    """The part of ``threading.Thread`` that a producer needs, without ``threading``. A daemon thread."""

    def __init__(self, target: Callable[[], object], name: str) -> None:
        self.name = name
        self.ident: int | None = None
        self._target = target
        self._ended = Event()

    def start(self) -> None:
        """Starts the thread.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        self.ident = start_new_thread(self._run, ())

    def _run(self) -> None:
        _names[get_ident()] = self.name
        try:
            self._target()
        finally:
            _names.pop(get_ident(), None)
            self._ended.set()

    def is_alive(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self.ident is not None and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Waits up to ``timeout`` seconds for the thread to end."""
        self._ended.wait(timeout)


def new_thread(target: Callable[[], object], name: str) -> threading.Thread | SystemThread:
    """Makes a daemon thread, not started yet."""
    if _thread.start_new_thread is start_new_thread:
        return threading.Thread(target=target, name=name, daemon=True)
    return SystemThread(target, name)


def current_name() -> str:
    """The name of the calling thread."""
    # In a patched process, threading.current_thread() takes a patched lock.
    return _names.get(get_ident()) or threading.current_thread().name


class Condition:
    """``threading.Condition`` with a reentrant lock. Threads and greenlets may wait together."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._waiters: list[Event] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits up to ``timeout`` seconds; returns whether ``notify_all`` was called. Requires the lock."""
        changed = Event()
        self._waiters.append(changed)
        held: Any = self._lock.release_all()
        try:
            return changed.wait(None if timeout is None else waitable(timeout))
        finally:
            self._lock.acquire_again(held)
            if changed in self._waiters:
                self._waiters.remove(changed)

    def wait_until(self, deadline: float) -> bool:
        """Waits until ``notify_all`` is called, or for ``LOOK_S``; returns False at once after the deadline.

        ``deadline``: in the time of ``monotonic_s()``. Requires the lock.
        """
        left = deadline - monotonic_s()
        if left <= 0:
            return False
        self.wait(min(left, LOOK_S))
        return True

    def notify_all(self) -> None:
        """Wakes all waiters. Requires the lock."""
        for waiting in self._waiters:
            waiting.set()
        self._waiters.clear()
