"""The account of records while they are sent: it is kept up to date, whatever files they come from."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer.cli import line_producer
from cyproducer.cli.console import Progress
from cyproducer.cli.line_format import whole_line
from cyproducer.cli.line_producer import Interrupts, LineProducer


class Quick:
    """A producer whose records are acknowledged at once."""

    def send(self, topic: str, **record: Any) -> Any:
        return SimpleNamespace(is_done=True, exception=None)

    def flush(self, timeout: float) -> None:
        pass


@pytest.mark.parametrize(("files", "lines_each"), [(1, 25), (25, 1), (5, 5)])
def test_futures_are_let_go_of_while_lines_are_read(
    files: int, lines_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_producer, "SETTLE_EVERY", 10)
    quick: Any = Quick()
    lines = LineProducer(quick, "t", whole_line, progress=Progress(io.StringIO()))
    sources = [(f"file-{number}", io.BytesIO(b"line\n" * lines_each)) for number in range(files)]
    with Interrupts() as interrupts:
        lines.run(sources, interrupts)
        assert lines.delivered == 20
        lines.drain(1, 1, interrupts)
    assert (lines.delivered, lines.failed, lines.unknown) == (25, 0, 0)
