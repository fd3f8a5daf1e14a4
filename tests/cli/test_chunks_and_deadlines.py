"""A line's end that is cut in two by reading, and an interrupt shortly before the time to drain is over."""

from __future__ import annotations

import io
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer.cli import line_producer
from cyproducer.cli.console import Progress
from cyproducer.cli.line_format import whole_line
from cyproducer.cli.line_producer import Interrupts, LineProducer
from cyproducer.errors import KafkaTimeoutError


class Stuck:
    """A producer that acknowledges nothing, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.values: list[bytes] = []

    def send(self, topic: str, *, value: bytes, **record: Any) -> Any:
        self.values.append(value)
        return SimpleNamespace(is_done=False)

    def flush(self, timeout: float) -> None:
        self.now_s += timeout
        raise KafkaTimeoutError("stuck")


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Stuck:
    stuck = Stuck()
    monkeypatch.setattr(line_producer, "time", SimpleNamespace(monotonic=lambda: stuck.now_s))
    return stuck


def lines_of(stuck: Any) -> LineProducer:
    return LineProducer(stuck, "t", whole_line, progress=Progress(io.StringIO()))


class Chunks:
    """A stream that is read in these pieces."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)

    def read1(self, _size: int) -> bytes:
        return self.chunks.pop(0) if self.chunks else b""


def test_a_carriage_return_is_cut_off_where_the_line_feed_comes_with_the_next_chunk(stuck: Stuck) -> None:
    chunks: Any = Chunks(b"1\r", b"\n2", b"2\r\n3\r", b"3\r\n", b"4")
    chunks.read = chunks.read1
    with Interrupts() as interrupts:
        lines_of(stuck).run([("stdin", chunks)], interrupts)
    assert stuck.values == [b"1", b"22", b"3\r3", b"4"]


@pytest.mark.parametrize(("timeout_s", "interrupted_s", "waited_s"), [(3, 10, 3), (30, 10, 10), (30, 0, 0)])
def test_an_interrupt_makes_no_time_longer(
    stuck: Stuck, timeout_s: float, interrupted_s: float, waited_s: float
) -> None:
    lines = lines_of(stuck)
    with Interrupts() as interrupts:
        lines.run([("stdin", io.BytesIO(b"1\n"))], interrupts)
        signal.raise_signal(signal.SIGINT)
        lines.drain(timeout_s, interrupted_s, interrupts)
    assert stuck.now_s == 100 + waited_s
    assert lines.unknown == 1
