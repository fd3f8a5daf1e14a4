"""Runs blocking calls and users' code on separate threads, and wakes the loop when they finish.

Owns one daemon thread per running task. Does not own the tasks' code, such as reading certificates or calling
a function that returns a password. The sender's thread starts and polls tasks; it never waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from cyproducer.base.unpatched import allocate_lock
from cyproducer.base.user_thread import start_thread

T = TypeVar("T")

MOST_TASKS = 64
"""The most calls that run concurrently. More would mean that calls hang; each would cost another thread."""


class Task(Generic[T]):
    """One call. ``done`` is set last: once it is set, ``result`` or ``error`` is final."""

    __slots__ = ("done", "error", "result")

    def __init__(self) -> None:
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None


class Background:
    """Starts tasks. ``wake`` is called from their threads when one is done; it must return quickly."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # Held while calling wake(), so that no task wakes up a loop that no longer exists.
        self._lock = allocate_lock()
        self._closed = False
        self._running = 0

    def start(self, function: Callable[[], T]) -> Task[T]:
        """Calls the function on a new thread. If no thread can be started, the task fails with that error."""
        task: Task[T] = Task()
        with self._lock:
            self._running += 1
            too_many = self._running > MOST_TASKS
        try:
            if too_many:
                raise RuntimeError(f"{MOST_TASKS} earlier calls of this kind have not returned")
            start_thread("cyproducer-background", self._run, task, function)
        except RuntimeError as error:
            task.error = error
            self._end(task)
        return task

    def _run(self, task: Task[T], function: Callable[[], T]) -> None:
        try:
            task.result = function()
        except BaseException as error:
            task.error = error
        self._end(task)

    def _end(self, task: Task[T]) -> None:
        task.done = True
        with self._lock:
            self._running -= 1
            if not self._closed:
                self._wake()

    def close(self) -> None:
        """Ensures that ``wake`` is not called once this method returns. Running tasks end on their own."""
        with self._lock:
            self._closed = True
