"""What a producer runs on, when a part of it cannot be started, closed, or waited for in time."""

import errno
import logging
import os
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cyproducer import _runtime
from cyproducer._runtime import Runtime, close_all
from cyproducer.producer import KafkaProducer
from tests.scripted.odd_servers import refusing_address
from tests.scripted.producing import options
from tools.harness.until import until


def test_a_producer_whose_thread_cannot_be_started_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a container bounds the number of threads: the program may try again for hours."""
    made: list[Runtime] = []

    def start(self: threading.Thread) -> None:
        made.extend(each for each in _runtime._runtimes if each.thread is self)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            KafkaProducer(**options(bootstrap_servers=refusing_address()))
    (failed,) = made
    assert failed.closed
    with pytest.raises(ValueError, match="closed"):
        failed.selector.select(0)
    assert failed.accumulator.counters()["records_failed"] == 0


class Closing:
    """A runtime as far as ``close_all()`` looks."""

    closed = False

    def __init__(self, client_id: str, error: Exception | None = None) -> None:
        self.config = SimpleNamespace(client_id=client_id, close_timeout_ms=1000)
        self.accumulator = SimpleNamespace(close=lambda: None)
        self.error = error
        self.closes = 0

    def close(self, timeout_s: float, unasked: bool) -> int:
        assert 0 <= timeout_s <= 1
        assert unasked
        self.closes += 1
        if self.error is not None:
            raise self.error
        return 0


def test_a_producer_that_cannot_be_closed_at_the_exit_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = OSError(errno.EBADF, os.strerror(errno.EBADF))
    all_of_them = [Closing("first"), Closing("odd", broken), Closing("last")]
    monkeypatch.setattr(_runtime, "_runtimes", all_of_them)
    with caplog.at_level(logging.ERROR, "cyproducer"):
        close_all()
        until(lambda: caplog.records, "the line about it")
    assert [each.closes for each in all_of_them] == [1, 1, 1]
    (line,) = caplog.records
    assert line.getMessage() == "closing the producer 'odd' at exit failed"


def test_callbacks_have_what_the_records_left_of_the_time_of_a_flush() -> None:
    given: list[float] = []

    def flush(timeout_s: float) -> bool:
        given.append(timeout_s)
        began = time.monotonic()
        while time.monotonic() - began < 0.001:
            pass
        return True

    def wait_idle(timeout_s: float) -> bool:
        given.append(timeout_s)
        return True

    parts: Any = SimpleNamespace(
        accumulator=SimpleNamespace(flush=flush), callbacks=SimpleNamespace(wait_idle=wait_idle)
    )
    assert Runtime._flush(cast(Runtime, parts), 30.0) is None
    for_records, for_callbacks = given
    assert for_records == 30
    assert 0 < for_callbacks <= 30 - 0.001
