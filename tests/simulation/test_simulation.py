"""Runs thousands of histories, each of which must keep every promise; see README.md."""

import os

import pytest

from tests.simulation.model_sasl import FAULTS, KINDS
from tests.simulation.simulate import run_history

HISTORIES = int(os.environ.get("CYPRODUCER_HISTORIES", "2000"))
"""How many histories to run; ``make simulate`` runs 100,000."""
FIRST = int(os.environ.get("CYPRODUCER_FIRST_HISTORY", "1"))
CHUNKS = 40


def chunk(number: int) -> range:
    size = -(-HISTORIES // CHUNKS)
    return range(FIRST + number * size, FIRST + min(HISTORIES, (number + 1) * size))


@pytest.mark.parametrize("number", range(CHUNKS))
def test_every_history_keeps_the_promises(number: int) -> None:
    broken = []
    for seed in chunk(number):
        if wrong := run_history(seed):
            broken.append(f"python -m tests.simulation {seed} --trace\n    " + "\n    ".join(wrong))
    assert not broken, f"{len(broken)} histories\n" + "\n".join(broken[:10])


@pytest.mark.parametrize("seed", [3, 24, 79, 82, 84, 111, 333, 557, 980])
def test_the_same_seed_gives_the_same_history(seed: int) -> None:
    """Otherwise a failure could not be reproduced."""
    first: list[str] = []
    second: list[str] = []
    run_history(seed, trace=first.append)
    run_history(seed, trace=second.append)
    assert len(first) > 10
    assert first == second


def test_the_histories_contain_every_kind_of_trouble() -> None:
    """A promise that no event threatens is not tested."""
    lines: list[str] = []
    for seed in range(1, 1000):
        run_history(seed, trace=lines.append)
    text = "\n".join(lines)
    for trouble in (
        "bytes still reach the broker",
        "swallows everything",
        "stall for",
        "refuses a connection",
        "crashes",
        "pauses for",
        "the client freezes",
        "uncleanly, 1 batches lost",
        "handles zombie request",
        "to a closed connection: {",
        "assigns producer id",
        "refuses a producer id",
        "expired in",
        "sequences start over",
        "continues after sequence",
        "0 wrap",
        "no memory for a record",
        "the topic is deleted",
        "no longer exists: the topic was recreated",
        "no partition ",
        "are too large together",
        "they may have been written",
        "they were not written",
        "records fail: ",
        "no metadata of topic",
        "at -1",
        *(f": {kind}: {fault}" for kind in KINDS for fault in FAULTS),
        "re-authentication succeeds",
        "its session has ended",
        "the vault is closed",
        "background tasks take up to",
        "trying again, as the session still lasts",
        *(f"({code}, -1)" for code in (-1, 2, 3, 6, 7, 10, 19, 20, 45, 46, 47, 56, 59, 87)),
    ):
        assert trouble in text, trouble
