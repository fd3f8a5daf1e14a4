"""The thread that runs log handlers and metric reporters, tested alone."""

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from cyproducer.base import log
from cyproducer.base import user_thread as module
from cyproducer.base.log import Log
from cyproducer.base.user_thread import MOST_LINES, NAME, UserThread
from tests.forked import in_child, needs_fork
from tools.harness.until import PATIENCE_S, until


class Held:
    """A job that blocks until the test releases it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[UserThread, Held]]:
    """A thread that is busy with a job; the package's log lines go to this thread."""
    thread, job = UserThread(), Held()
    monkeypatch.setattr(module, "user_thread", thread)
    monkeypatch.setattr(log, "user_thread", thread)
    thread.put(job)
    assert job.begun.wait(PATIENCE_S)
    yield thread, job
    job.go_on.set()
    assert thread.drain(PATIENCE_S)


def test_jobs_run_in_order_on_a_daemon_thread_that_ends_without_jobs() -> None:
    ran: list[int] = []
    thread = UserThread()
    assert thread.drain(0)
    for round_ in range(3):
        job = Held()
        thread.put(job)
        for number in range(100):
            thread.put(partial(ran.append, number))
        assert job.begun.wait(PATIENCE_S)
        assert ran == []
        job.go_on.set()
        assert thread.drain(PATIENCE_S)
        assert ran == list(range(100))
        ran.clear()
        assert job.thread is not None
        assert (job.thread.name, job.thread.daemon) == (NAME, True)
        if round_ > 0:
            job.thread.join(PATIENCE_S)
            assert not job.thread.is_alive()


def test_many_threads_may_add_jobs_while_it_starts_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0)
    thread, ran = UserThread(), []

    def give() -> None:
        for _ in range(300):
            thread.put(lambda: ran.append(1))

    givers = [threading.Thread(target=give) for _ in range(4)]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join(PATIENCE_S)
    # A thread also runs the last job.
    until(lambda: len(ran) == 1200, "all jobs")


def test_a_job_added_while_the_thread_ends_is_run() -> None:
    """
    1. The thread has had no job for a while.
    2. A job comes, and finds the thread running.
    3. The thread ends.
    """
    thread, ran = UserThread(), threading.Event()

    class Ending:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.once = iter([ran.set])

        def acquire(self, blocking: bool = True) -> bool:
            return self.lock.acquire(blocking)

        def locked(self) -> bool:
            return self.lock.locked()

        def release(self) -> None:
            for job in self.once:
                assert thread.put(job)
            self.lock.release()

    thread._running = Ending()  # type: ignore[assignment]
    thread.put(lambda: None)
    assert ran.wait(PATIENCE_S)


def test_drain_ends_in_time_and_at_once_on_the_thread_itself(
    held_up: tuple[UserThread, Held],
) -> None:
    thread, job = held_up
    assert not thread.is_current()
    assert not thread.drain(0.01)
    asked: list[bool] = []
    thread.put(lambda: asked.extend((thread.is_current(), thread.drain(PATIENCE_S))))
    job.go_on.set()
    assert thread.drain(PATIENCE_S)
    assert asked == [True, False]


def test_drain_runs_the_jobs_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    thread, ran = UserThread(), []
    with monkeypatch.context() as refused:
        refused.setattr(module, "start_new_thread", refuse)
        thread.put(lambda: ran.append(threading.current_thread()))
        assert ran == []
        assert thread.drain(PATIENCE_S)
        assert ran == [threading.current_thread()]
    thread.put(lambda: ran.append(threading.current_thread()))
    until(lambda: len(ran) == 2, "a thread, now that there can be one")
    assert ran[1].name == NAME


def test_ctrl_c_in_a_job_that_the_waiting_thread_runs_ends_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "start_thread", refuse)
    thread = UserThread()
    ran: list[int] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    thread.put(interrupted)
    thread.put(partial(ran.append, 1))
    with pytest.raises(KeyboardInterrupt):
        thread.run_stranded()
    assert ran == []
    thread.run_stranded()
    assert ran == [1]


def test_lines_beyond_the_limit_are_dropped_and_counted(
    held_up: tuple[UserThread, Held], caplog: pytest.LogCaptureFixture
) -> None:
    thread, job = held_up
    log = Log("cyproducer.tests")
    for number in range(MOST_LINES + 7):
        log.warning("line %d", number)
    assert caplog.records == []
    job.go_on.set()
    assert thread.drain(PATIENCE_S)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("7 log lines were dropped")
    assert lines[1:] == [f"line {number}" for number in range(MOST_LINES)]
    log.warning("another")
    assert thread.drain(PATIENCE_S)
    assert [record.getMessage() for record in caplog.records][MOST_LINES + 1 :] == ["another"]


def test_a_jobs_exception_does_not_stop_other_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: type[BaseException]) -> Callable[[], None]:
        def job() -> None:
            raise error("on purpose")

        return job

    thread, ran = UserThread(), []
    for error in (ValueError, SystemExit, KeyboardInterrupt):
        thread.put(fail(error))
    thread.put(lambda: ran.append(1))
    assert thread.drain(PATIENCE_S)
    assert ran == [1]
    assert capsys.readouterr().err.count("on purpose") >= 3


# Log


def test_the_loggers_levels_apply() -> None:
    parent = logging.getLogger("cyproducer.tests.levels")
    child = logging.getLogger("cyproducer.tests.levels.child")
    try:
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            for own in (logging.NOTSET, logging.INFO, logging.ERROR):
                for above in (logging.NOTSET, logging.WARNING):
                    for disabled in (logging.NOTSET, logging.INFO):
                        parent.setLevel(above)
                        child.setLevel(own)
                        logging.disable(disabled)
                        assert log._enabled(child, level) == child.isEnabledFor(level)
        child.disabled = True
        assert not log._enabled(child, logging.CRITICAL)
    finally:
        logging.disable(logging.NOTSET)
        child.disabled = False


def test_logging_takes_no_lock_of_the_logging_module() -> None:
    """``logging.config`` holds its lock while it constructs handlers, which may connect to something."""
    log, done = Log("cyproducer.tests.locked"), threading.Event()
    logging.getLogger("cyproducer.tests.locked").setLevel(logging.ERROR)

    def run() -> None:
        log.warning("not enabled")
        done.set()

    with logging._lock:  # type: ignore[attr-defined]
        threading.Thread(target=run).start()
        assert done.wait(PATIENCE_S)


def test_an_error_is_logged_with_its_exception(caplog: pytest.LogCaptureFixture) -> None:
    log = Log("cyproducer.tests")
    try:
        raise LookupError("100% gone")
    except LookupError:
        log.exception("looking for %s failed", "100%")
    log.error("100% as it is")
    assert module.user_thread.drain(PATIENCE_S)
    first, second = caplog.records
    assert first.getMessage() == "looking for 100% failed"
    assert first.exc_info is not None
    assert str(first.exc_info[1]) == "100% gone"
    assert first.filename == "test_user_thread.py"
    assert first.funcName == "test_an_error_is_logged_with_its_exception"
    assert second.getMessage() == "100% as it is"


def test_filters_run_on_the_thread() -> None:
    threads: list[str] = []

    def choose(record: logging.LogRecord) -> bool:
        threads.append(threading.current_thread().name)
        return False

    logger = logging.getLogger("cyproducer.tests")
    logger.addFilter(choose)
    try:
        Log("cyproducer.tests").error("chosen")
        assert module.user_thread.drain(PATIENCE_S)
    finally:
        logger.removeFilter(choose)
    assert threads == [NAME]


# Forks


@needs_fork
def test_a_child_has_its_own_thread_and_not_the_parents_jobs(
    held_up: tuple[UserThread, Held],
) -> None:
    thread, _ = held_up
    ran: list[str] = []
    thread.put(lambda: ran.append("the parent's"))

    def work() -> list[str]:
        thread.renew()
        thread.put(lambda: ran.append(threading.current_thread().name))
        assert thread.drain(PATIENCE_S)
        return ran

    assert in_child(work) == [NAME]


def test_the_thread_that_forks_drops_the_parents_jobs_in_the_child() -> None:
    """In the child it is the only thread. It finishes the job that forked, and then ends."""
    thread, job, ran = UserThread(), Held(), []
    thread.put(job)
    assert job.begun.wait(PATIENCE_S)
    thread.put(thread.renew)
    thread.put(lambda: ran.append(1))
    job.go_on.set()
    assert job.thread is not None
    job.thread.join(PATIENCE_S)
    assert not job.thread.is_alive()
    assert ran == []


@needs_fork
def test_a_handler_may_fork() -> None:
    """In the child the thread is the only one. It finishes the job that forked, and runs no other."""
    said: list[object] = []

    def work() -> bool:
        return module.user_thread.is_current()

    module.user_thread.put(lambda: said.append(in_child(work)))
    module.user_thread.put(lambda: said.append("the parent's"))
    assert module.user_thread.drain(PATIENCE_S)
    assert said == [False, "the parent's"]
