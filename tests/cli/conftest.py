"""Fixtures for tests of the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator

import pytest

import cyproducer
from tests.cli.fake_producer import Producer


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Producer]]:
    """Takes the place of ``KafkaProducer``."""

    class Fake(Producer):
        made = []  # noqa: RUF012 - typed where it is declared

    monkeypatch.setattr(cyproducer, "KafkaProducer", Fake, raising=False)
    yield Fake
    assert all(producer.closed_with is not None for producer in Fake.made), "a producer was left open"


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Sets what standard input contains."""

    def set_stdin(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return set_stdin
