"""What a log handler sees of a line that waited, and who the thread is once it has ended."""

import logging
import threading

import pytest

from cyproducer.base import log
from cyproducer.base import user_thread as module
from cyproducer.base.log import Log
from cyproducer.base.user_thread import UserThread
from tools.harness.until import PATIENCE_S


def test_the_times_of_a_line_are_those_at_which_it_was_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as past:
        past.setattr(log, "unix_ms", lambda: 1_000_250)
        Log("cyproducer.tests").warning("long ago")
        assert module.user_thread.drain(PATIENCE_S)
    (record,) = caplog.records
    now = logging.makeLogRecord({})
    began_s = now.created - now.relativeCreated / 1000
    assert (record.created, record.msecs) == (1000.25, 250)
    assert record.relativeCreated == pytest.approx((1000.25 - began_s) * 1000, abs=5)


def test_a_new_thread_with_the_ended_one_s_identifier_is_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Systems use identifiers again, and the thread itself must not wait for its jobs, which others may."""
    thread = UserThread()
    ran: list[threading.Thread] = []
    thread.put(lambda: ran.append(threading.current_thread()))
    assert thread.drain(PATIENCE_S)
    ran[0].join(PATIENCE_S)
    assert not ran[0].is_alive()
    monkeypatch.setattr(module, "get_ident", lambda: ran[0].ident)
    assert not thread.is_current()
