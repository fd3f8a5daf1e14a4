"""The thread that runs users' code which a sender's thread gives rise to: log handlers and metric reporters.

Owns: one daemon thread a process, started with its first job, ended when it has had none for a moment; the
queue of its jobs; ``Log``, with which everything logs that may run on a sender's thread; starting a thread
from wherever the garbage collector may run. Does not own: what is logged, nor reporters (``registry``).

Why: a log handler may send through the producer it is told of, flush it, wait for a lock that a sending
thread holds, or never return. On the sender's thread each of these ends the producer, and
``delivery_timeout_ms`` with it: whoever waits for a record there waits for itself.

No function here but ``drain`` waits, and none takes a lock that is held while Python code runs: the sender
would wait for whatever a signal's handler or a finalizer does to the thread that holds it. Instead there are
``deque`` and the locks of ``_thread``, whose methods are atomic, and which are only ever tried. That makes
all of it safe to be interrupted by itself, too.
"""

import itertools
import logging
import sys
import threading
import time
import traceback
from _thread import allocate_lock, get_ident, start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

MOST_LINES = 1000
"""Jobs that may wait when another log line comes; beyond them it is dropped, and counted."""
IDLE_S = 0.2
"""How long the thread stays without a job."""
DRAIN_S = 1.0
"""How long whoever closes a producer, or ends the process, waits for log handlers and reporters."""
NAME = "cyproducer-user-code"


class UserThread:
    """Runs jobs one after the other, on a thread of its own. Thread-safe, and reentrant."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forgets all; in a forked child, where the jobs are the parent's and the thread does not exist."""
        self._jobs: deque[Callable[[], object]] = deque()
        # Held while a thread runs jobs, or is about to.
        self._running = allocate_lock()
        # Held while the thread has nothing to do; whoever has a job for it releases it.
        self._asleep = allocate_lock()
        self._asleep.acquire()
        self._ident = 0
        # Each line that is dropped and each look at the number takes one: a plain += could lose some.
        self._dropped = itertools.count()
        self._looks = 0
        self._reported = 0

    def is_current(self) -> bool:
        """Whether the caller is a log handler or a metric reporter that this thread runs."""
        return self._ident == get_ident()

    def put(self, job: Callable[[], object]) -> bool:
        """Has a job run; whether there is a thread that will. For jobs that are few by themselves."""
        self._jobs.append(job)
        return self._ensure_thread()

    def put_line(self, job: Callable[[], object]) -> None:
        """Has a log line emitted, unless too much waits already."""
        if len(self._jobs) >= MOST_LINES:
            next(self._dropped)
        else:
            self.put(job)

    def drain(self, timeout_s: float) -> bool:
        """Waits until all jobs so far are done, up to ``timeout_s`` seconds; False when the time ran out.

        At once on the thread itself. Not for a sender's thread.
        """
        if self.is_current():
            return False
        if not self._jobs and not self._running.locked():
            return True
        done = allocate_lock()
        done.acquire()
        if self.put(done.release):
            return done.acquire(timeout=timeout_s)
        # There can be no more threads, such as at the very end of a process.
        self._work(self._jobs)
        return True

    def _ensure_thread(self) -> bool:
        if self._running.acquire(blocking=False):
            try:
                start_thread(NAME, self._run)
            except RuntimeError:
                # No more threads now; the next job tries again, or drain() does without.
                self._running.release()
                return False
        # Not asleep: it looks for jobs before it sleeps again.
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
                    # A job has forked, and this is the child.
                    return
            # Before a job that comes now may start another thread: idents are used again.
            self._ident = 0
            running.release()
            # A job that came just before has found a thread running, and started none.
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
            except BaseException:
                # A handler that lets out what it met, SystemExit included. It must not end those to come.
                _print_error()

    def _report_dropped(self) -> None:
        dropped = next(self._dropped) - self._looks
        self._looks += 1
        if dropped > self._reported:
            new, self._reported = dropped - self._reported, dropped
            try:
                logging.getLogger("cyproducer").warning(
                    "%d log lines were dropped: %d waited already for log handlers or metric reporters that "
                    "did not return",
                    new,
                    MOST_LINES,
                )
            except BaseException:
                _print_error()


user_thread = UserThread()
"""The process's."""


class Log:
    """A logger for what may run on a sender's thread: handlers and filters run on ``user_thread``.

    Whether the level is enabled is looked at here and now, without calling anything that a user can replace;
    and a line's arguments become text.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(logging.DEBUG, text, args)

    def info(self, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(logging.INFO, text, args)

    def warning(self, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(logging.WARNING, text, args)

    def error(self, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(logging.ERROR, text, args)

    def exception(self, text: str, *args: object) -> None:
        """Logs ``text % args`` as an error, with the exception that is being handled."""
        self._log(logging.ERROR, text, args, sys.exc_info())

    def log(self, level: int, text: str, *args: object) -> None:
        """Logs ``text % args``."""
        self._log(level, text, args)

    def _log(self, level: int, text: str, args: tuple[object, ...], exc_info: Any = None) -> None:
        if not _enabled(self._logger, level):
            return
        frame = sys._getframe(2)
        where = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        user_thread.put_line(
            partial(
                _emit,
                self._logger,
                level,
                text % args if args else text,
                where,
                exc_info,
                time.time(),
                get_ident(),
                threading.current_thread().name,
            )
        )


def _enabled(logger: logging.Logger | None, level: int) -> bool:
    """``Logger.isEnabledFor``, without its cache: who fills that takes logging's lock, under which
    ``logging.config`` has handlers made."""
    if logger is None or logger.disabled or logger.manager.disable >= level:
        return False
    while logger is not None:
        if logger.level:
            return level >= logger.level
        logger = logger.parent
    return True


def _emit(
    logger: logging.Logger,
    level: int,
    message: str,
    where: tuple[str, int, str],
    exc_info: Any,
    created: float,
    ident: int,
    thread_name: str,
) -> None:
    """Makes the record of a line as it was, and hands it to the filters and handlers."""
    path, line, function = where
    record = logger.makeRecord(logger.name, level, path, line, message, (), exc_info, function)
    record.relativeCreated -= (record.created - created) * 1000
    record.created = created
    record.msecs = int((created - int(created)) * 1000) + 0.0
    record.thread = ident
    record.threadName = thread_name
    logger.handle(record)


def _print_error() -> None:
    """What a handler raised goes where logging's own ``Handler.handleError`` writes it."""
    if logging.raiseExceptions and sys.stderr is not None:
        with suppress(BaseException):
            traceback.print_exc()


def start_thread(name: str, target: Callable[..., object], *args: object) -> None:
    """Starts a daemon thread, without waiting: also in a finalizer, on a thread that must not wait.

    ``threading.Thread.start`` waits for the new thread to run, and takes a lock that whoever the collector
    has interrupted may hold. So it is called on a thread that was started without it.

    Raises:
        RuntimeError: the system gives no more threads.
    """

    def start() -> None:
        try:
            threading.Thread(name=name, target=target, args=args, daemon=True).start()
        except RuntimeError:
            target(*args)

    start_new_thread(start, ())
