"""A program that has a Ctrl-C handler of its own, and amounts at the edges of their units."""

from __future__ import annotations

import signal
from types import FrameType

import pytest

from cyproducer.cli.console import amount
from cyproducer.cli.interrupts import Interrupts


def test_a_handler_of_the_calling_program_is_there_again_afterwards() -> None:
    got: list[int] = []

    def noting(number: int, _frame: FrameType | None) -> None:
        got.append(number)

    before = signal.signal(signal.SIGINT, noting)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert (interrupts.count, got) == (1, [])
        assert signal.getsignal(signal.SIGINT) is noting
        with pytest.raises(LookupError), Interrupts():
            raise LookupError
        signal.raise_signal(signal.SIGINT)
        assert got == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (999.4, "999 B"),
        (999.7, "1.0 kB"),
        (999_940, "999.9 kB"),
        (999_960, "1.0 MB"),
        (1_000_000, "1.0 MB"),
        (999_999_999, "1.0 GB"),
        (1e12, "1.0 TB"),
        (1e15, "1000.0 TB"),
    ],
)
def test_an_amount_that_is_rounded_up_to_the_next_unit_has_that_unit(size: float, text: str) -> None:
    assert amount(size) == text
