"""Which log lines a command shows."""

from __future__ import annotations

import logging

import pytest

from cyproducer.cli import log


def emit() -> None:
    logger = logging.getLogger("cyproducer.part")
    logger.info("an address")
    logger.warning("no broker at %s", "address")
    logger.error("%d records failed", 3)
    try:
        raise LookupError
    except LookupError:
        logger.exception("user code raised")


@pytest.mark.parametrize(
    ("quiet", "begins"), [(False, ["no broker at address", "user code raised"]), (True, ["user code raised"])]
)
def test_failed_records_are_not_shown_once_for_each_batch(
    quiet: bool, begins: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with log.shown(quiet):
        emit()

    told = capsys.readouterr().err
    assert told.splitlines()[: len(begins)] == begins
    assert told.endswith("\nLookupError\n")
    emit()
    assert capsys.readouterr().err == ""
