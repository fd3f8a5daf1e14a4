"""What is kept while lines are sent, and how long outcomes are awaited."""

from __future__ import annotations

import contextlib
import ctypes
import io
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer.cli import line_producer
from cyproducer.cli.console import Progress
from cyproducer.cli.failures import MOST_CAUSES, Failures
from cyproducer.cli.interrupts import Interrupts, accept, accept_each
from cyproducer.cli.line_format import JsonFormat, LineError, TextFormat
from cyproducer.cli.line_producer import LineProducer, Source
from cyproducer.errors import KafkaTimeoutError
from tests.cli.fake_producer import Future, Producer


def lines_of(producer: Any, interrupts: Interrupts, format: Any = None) -> LineProducer:
    return LineProducer(
        producer,
        "t",
        format or TextFormat(),
        failures=Failures(lambda line: None),
        progress=Progress(io.StringIO()),
        interrupts=interrupts,
    )


def source(stream: Any) -> Source:
    return "stdin", contextlib.nullcontext(stream)


class Chunks:
    """A stream that is read in these pieces."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.read = lambda _size: next(chunks, b"")


@pytest.mark.parametrize("header", ["", ', "headers": {"a": "b"}'])
def test_futures_are_let_go_of_while_lines_are_read(header: str) -> None:
    kept: list[int] = []

    def chunks() -> Iterator[bytes]:
        for _ in range(5):
            kept.append(len(lines._pending))
            yield f'{{"value": 1{header}}}\n'.encode() * 10

    with Interrupts() as interrupts:
        lines = lines_of(Producer(), interrupts, JsonFormat())
        lines.run([source(Chunks(chunks()))])
    assert kept == [0] * 5
    assert lines.delivered == 50


@pytest.mark.parametrize("interrupted", [False, True])
def test_records_that_are_sent_one_by_one_wait_for_the_oldest_beyond_a_number(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: list[int] = []

    class Waited(Future):
        def __init__(self) -> None:
            super().__init__(is_done=False)
            self.asked = 0

        def get(self, timeout: float) -> None:
            most.append(len(lines._pending))
            self.asked += 1
            if interrupted:
                signal.raise_signal(signal.SIGTERM)
            if self.asked == 1:
                raise KafkaTimeoutError("not yet")
            self.is_done = True

    class Slow(Producer):
        on_record = staticmethod(lambda record: Waited())

    monkeypatch.setattr(line_producer, "MOST_PENDING", 3)
    with Interrupts() as interrupts:
        lines = lines_of(Slow(), interrupts, JsonFormat())
        lines.run([source(io.BytesIO(b'{"value": 1, "headers": {"a": "b"}}\n' * 5))])
    if interrupted:
        assert (lines.delivered, lines.unsent, lines.stopped_at) == (0, 2, "stdin:4")
    else:
        assert (lines.delivered, lines.unsent) == (2, 0)
        assert most == [3] * 4


def test_a_signal_after_the_last_of_several_calls_leaves_nothing_unsent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def accepted(*arguments: Any) -> tuple[list[Any], BaseException | None]:
        futures, error = accept_each(*arguments)
        assert error is None
        # Python runs the handler after the calls, which are one step for it.
        with contextlib.suppress(KeyboardInterrupt), interrupts.breaking():
            signal.raise_signal(signal.SIGTERM)
        return futures, KeyboardInterrupt()

    monkeypatch.setattr(line_producer, "accept_each", accepted)
    with Interrupts() as interrupts:
        lines = lines_of(Producer(), interrupts, JsonFormat())
        lines.run([source(io.BytesIO(b'{"value": 1, "headers": {"a": "b"}}\n' * 3))])
    assert (lines.delivered, lines.unsent, lines.stopped_at) == (3, 0, "stdin:4")


@pytest.mark.parametrize("whole", [False, True])
def test_a_signal_while_a_named_pipe_is_opened(whole: bool) -> None:
    class Pipe(contextlib.nullcontext[Any]):
        def __enter__(self) -> Any:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("the signal did not interrupt")

    with Interrupts() as interrupts:
        lines = lines_of(Producer(), interrupts)
        run = lines.run_whole if whole else lines.run
        run([("pipe", Pipe()), ("next", Pipe())])
    assert lines.stopped_at == ("pipe" if whole else "pipe:1")
    assert interrupts.count == 1


@pytest.mark.parametrize(("timeout_s", "interrupted_s", "waited_s"), [(3, 10, 3), (30, 10, 10), (30, 0, 0)])
def test_an_interrupt_makes_no_time_longer(
    timeout_s: float, interrupted_s: float, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]

    class Stuck(Producer):
        def flush(self, timeout: float) -> None:
            now_s[0] += timeout
            raise KafkaTimeoutError("stuck")

    Stuck.on_record = staticmethod(lambda record: Future(is_done=False))
    monkeypatch.setattr("cyproducer.cli.interrupts.monotonic_s", lambda: now_s[0])
    with Interrupts() as interrupts:
        lines = lines_of(Stuck(), interrupts)
        lines.run([source(io.BytesIO(b"1\n"))])
        signal.raise_signal(signal.SIGINT)
        lines.drain(timeout_s, interrupted_s)
    assert now_s[0] == 100 + waited_s
    assert lines.unknown == 1


def test_a_signal_after_a_call_has_returned_does_not_lose_its_future() -> None:
    # C code, as a producer's methods are: Python runs the handler at the next step after its return.
    send = getattr(ctypes.CDLL(None), "raise")
    with Interrupts() as interrupts:
        found = accept(send, signal.SIGTERM, 1, interrupts)
        assert interrupts.count == 1
    # raise() returns 0.
    assert found == (0, 1, None)


def test_a_signal_between_calls_in_c_loses_none_of_their_futures() -> None:
    send = getattr(ctypes.CDLL(None), "raise")
    with Interrupts() as interrupts:
        # raise(0) does nothing.
        futures, error = accept_each(send, ([0, signal.SIGTERM, 0],), interrupts)
        assert interrupts.count == 1
    assert futures == [0, 0, 0]
    assert isinstance(error, KeyboardInterrupt)


def test_an_error_ends_the_calls_and_leaves_the_futures_before_it() -> None:
    with Interrupts() as interrupts:
        futures, error = accept_each(int, (["1", "2", "three", "4"],), interrupts)
    assert futures == [1, 2]
    assert isinstance(error, ValueError)


def test_a_call_after_a_signal_is_not_made() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        future, accepted, error = accept(lambda given: "future", None, 1, interrupts)
    assert (future, accepted) == (None, 0)
    assert isinstance(error, KeyboardInterrupt)


def test_causes_whose_text_comes_from_the_input_are_bounded() -> None:
    shown: list[str] = []
    failures = Failures(shown.append)
    for number in range(MOST_CAUSES + 10):
        failures.add(f"stdin:{number}", LineError(f"cause {number}"))

    assert failures.count == MOST_CAUSES + 10
    assert len(failures.summary()) == MOST_CAUSES + 1 == len(shown)
    assert failures.summary()[-1] == f"10 x other causes, first at stdin:{MOST_CAUSES}"
