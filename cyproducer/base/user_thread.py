"""Runs users' code that a sender thread triggers: log handlers and metric reporters.

Owns one daemon thread per process, which starts with its first job and ends after ``IDLE_S`` without one; its
job queue; and starting a thread from any place where the garbage collector may run. Does not own log lines
(``log``) or reporters (``registry``).

A log handler may send through the producer that logs, flush that producer, wait for a lock that a sending
thread holds, or never return. On the sender thread each of these would block the producer, and
``delivery_timeout_ms`` would not be enforced: a handler that waits for a record there would wait for itself.

Only ``drain`` waits. No function here takes a lock that is held while Python code runs: the sender would wait
for any signal handler or finalizer that interrupts the thread holding it. The module uses ``deque`` and the
locks of ``_thread`` instead (``base/unpatched``, in a patched process). Their methods are atomic, and no
function waits for a lock. So every function is reentrant: another call of it may interrupt it.
"""

from __future__ import annotations

import itertools
import logging
import sys
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from cyproducer.base import greenlet_hubs
from cyproducer.base.greenlets import Event, look_for_hubs
from cyproducer.base.threads import new_thread
from cyproducer.base.unpatched import allocate_lock, get_ident, start_new_thread

MOST_LINES = 1000
"""While this many jobs are queued, further log lines are dropped and counted."""
IDLE_S = 0.2
"""How long the thread waits for a job before it ends."""
DRAIN_S = 1.0
"""How long closing a producer, or ending the process, waits for log handlers and reporters."""
NAME = "cyproducer-user-code"


class UserThread:
    """Runs jobs one at a time on a thread of its own. Thread-safe and reentrant."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forgets everything. For a forked child: the jobs are the parent's, and there is no such thread."""
        self._jobs: deque[Callable[[], object]] = deque()
        # Held while a thread runs jobs, or is about to.
        self._running = allocate_lock()
        # Held while the thread has nothing to do; released by the thread that adds a job.
        self._asleep = allocate_lock()
        self._asleep.acquire()
        self._ident = 0
        # In a patched process, greenlets run the jobs; this starts one.
        self._spawn: Callable[[], object] | None = None
        # Every dropped line and every check of the count takes one number: a plain += could lose some.
        self._dropped = itertools.count()
        self._looks = 0
        self._reported = 0

    def is_current(self) -> bool:
        """Returns whether the caller is a log handler or a metric reporter that runs on this thread."""
        return self._ident == (get_ident() if self._spawn is None else greenlet_hubs.greenlet_ident())

    def put(self, job: Callable[[], object]) -> bool:
        """Adds a job; returns whether a thread will run it. For jobs that cannot accumulate."""
        self._jobs.append(job)
        return self._ensure_thread()

    def put_line(self, job: Callable[[], object]) -> None:
        """Adds a job that emits a log line, unless ``MOST_LINES`` jobs are queued."""
        if len(self._jobs) >= MOST_LINES:
            next(self._dropped)
        else:
            self.put(job)

    def drain(self, timeout_s: float) -> bool:
        """Waits until all jobs so far are done, up to ``timeout_s`` seconds; False when the time ran out.

        Returns False at once on the user thread itself. Must not be called on a sender thread.
        """
        if self.is_current():
            return False
        if not self._jobs and not self._running.locked():
            return True
        done = Event()
        if self.put(done.set):
            return done.wait(timeout_s)
        self.run_stranded()
        return True

    def run_stranded(self) -> None:
        """Runs the jobs here if no thread can be started for them. Must not be called on a sender thread.

        From Python 3.12 on, no thread can be started once the interpreter has begun to shut down. Without
        this, the lines about records that cannot be delivered would appear after the wait for these records.
        """
        if self._jobs and not self.is_current() and not self._ensure_thread():
            self._work(self._jobs)

    def use_greenlet(self) -> None:
        """Runs the jobs in greenlets of this thread from now on, if necessary (``greenlet_hubs.spawner``)."""
        if self._spawn is None and look_for_hubs():
            self._spawn = greenlet_hubs.spawner(self._run_in_hub)

    def _run_in_hub(self) -> None:
        jobs, running = self._jobs, self._running
        # One greenlet at a time, as handlers may switch to another greenlet.
        while jobs and jobs is self._jobs and running.acquire(blocking=False):
            self._ident = greenlet_hubs.greenlet_ident()
            try:
                self._work(jobs)
            finally:
                self._ident = 0
                running.release()

    def _ensure_thread(self) -> bool:
        if (spawn := self._spawn) is not None:
            try:
                spawn()
                return True
            except Exception:
                # The hub was destroyed: use a thread instead.
                self._spawn = None
        if self._running.acquire(blocking=False):
            try:
                start_thread(NAME, self._run)
            except RuntimeError:
                # No thread can be started now. The next job tries again, or drain() runs the jobs itself.
                self._running.release()
                return False
        # If the release fails, the thread is awake: it looks for jobs before it sleeps again.
        with suppress(RuntimeError):
            self._asleep.release()
        return True

    def _run(self) -> None:
        jobs, running = self._jobs, self._running
        while True:
            self._ident = get_ident()
            while self._asleep.acquire(timeout=IDLE_S):
                self._work(jobs)
                if jobs is not self._jobs:
                    # A job forked, and this is the child.
                    return
            # Before a new job can start another thread: the system reuses idents.
            self._ident = 0
            running.release()
            # A job that was added just before the release found a thread running and started none.
            if not jobs or not running.acquire(blocking=False):
                return

    def _work(self, jobs: deque[Callable[[], object]]) -> None:
        while jobs is self._jobs:
            try:
                job = jobs.popleft()
            except IndexError:
                return
            self._report_dropped()
            try:
                job()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and not self.is_current():
                    # The main thread runs the jobs, and Ctrl-C is meant for the call that it waits in.
                    raise
                # The handler raised an exception, possibly SystemExit. The following jobs must still run.
                _print_error()

    def _report_dropped(self) -> None:
        dropped = next(self._dropped) - self._looks
        self._looks += 1
        if dropped > self._reported:
            new, self._reported = dropped - self._reported, dropped
            try:
                logging.getLogger("cyproducer").warning(
                    "%d log lines were dropped: %d jobs were already waiting for log handlers or metric "
                    "reporters that did not return",
                    new,
                    MOST_LINES,
                )
            except BaseException:
                _print_error()


user_thread = UserThread()
"""The instance of this process."""


def _print_error() -> None:
    """Prints an exception that a handler raised, as logging's own ``Handler.handleError`` does."""
    if logging.raiseExceptions and sys.stderr is not None:
        with suppress(BaseException):
            traceback.print_exc()


def start_thread(name: str, target: Callable[..., object], *args: object) -> None:
    """Starts a daemon thread without waiting, so that a finalizer can use it on a thread that must not wait.

    ``threading.Thread.start`` waits until the new thread runs, and takes a lock that the code interrupted by
    the garbage collector may hold. So an intermediate thread, which is started without ``threading``, calls
    it.

    Raises:
        RuntimeError: the system cannot start more threads.
    """

    def start() -> None:
        try:
            new_thread(partial(target, *args), name).start()
        except RuntimeError:
            target(*args)

    start_new_thread(start, ())
