"""Fixtures for tests of the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cyproducer
from cyproducer.cli.main import main
from tests.cli.fake_producer import Producer

Stdin = Callable[[bytes | io.RawIOBase], None]
Piped = Callable[..., str]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Producer]]:
    """Takes the place of ``KafkaProducer``."""

    class Fake(Producer):
        made = []  # noqa: RUF012 - typed where it is declared

    monkeypatch.setattr(cyproducer, "KafkaProducer", Fake, raising=False)
    yield Fake
    assert all(producer.closed_with is not None for producer in Fake.made), "a producer was left open"


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Stdin:
    """Sets what standard input contains."""

    def set_stdin(content: bytes | io.RawIOBase) -> None:
        raw: Any = io.BytesIO(content) if isinstance(content, bytes) else content
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))

    return set_stdin


@pytest.fixture
def piped(request: pytest.FixtureRequest, stdin: Stdin, capsys: pytest.CaptureFixture[str]) -> Piped:
    """Runs the module's command with this standard input, and more arguments; returns what stderr got."""

    def piped(content: bytes | io.RawIOBase, *arguments: str, status: int = 0) -> str:
        stdin(content)
        assert main([*request.module.REQUIRED, *arguments]) == status
        told = capsys.readouterr()
        assert told.out == ""
        return told.err

    return piped
