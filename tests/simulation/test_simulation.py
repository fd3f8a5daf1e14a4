"""Runs thousands of histories, each of which must keep every promise; see README.md."""

import os
import re
from collections.abc import Callable, Iterable

import pytest

from tests.simulation.history import LARGEST_FAR_RECORD, history_of
from tests.simulation.model_sasl import FAULTS, KINDS
from tests.simulation.simulate import run_history
from tests.simulation.transaction_simulate import run_transaction_history

HISTORIES = int(os.environ.get("CYPRODUCER_HISTORIES", "2000"))
"""How many histories to run, and as many of transactions; ``make simulate`` runs 100,000 of each."""
FIRST = int(os.environ.get("CYPRODUCER_FIRST_HISTORY", "1"))
CHUNKS = 40


def text_of(lines: Iterable[str]) -> str:
    """Returns a history's lines with the numbers of error codes, which may be those of an enum."""
    return re.sub(r"<ErrorCode\.\w+: (-?\d+)>", r"\1", "\n".join(lines))


def chunk(number: int) -> range:
    size = -(-HISTORIES // CHUNKS)
    return range(FIRST + number * size, FIRST + min(HISTORIES, (number + 1) * size))


RUNS: dict[str, Callable[..., list[str]]] = {"": run_history, " --transactions": run_transaction_history}
"""The option of ``tests.simulation`` -> what it runs."""
each_kind = pytest.mark.parametrize("option", RUNS, ids=["records", "transactions"])


@pytest.mark.parametrize("number", range(CHUNKS))
@each_kind
def test_every_history_keeps_the_promises(option: str, number: int) -> None:
    broken = []
    for seed in chunk(number):
        if wrong := RUNS[option](seed):
            told = "\n    ".join(wrong)
            broken.append(f"python -m tests.simulation {seed}{option} --trace\n    {told}")
    assert not broken, f"{len(broken)} histories\n" + "\n".join(broken[:10])


@pytest.mark.parametrize("seed", [3, 24, 79, 82, 84, 111, 333, 557, 980])
@each_kind
def test_the_same_seed_gives_the_same_history(option: str, seed: int) -> None:
    """Otherwise a failure could not be reproduced."""
    first: list[str] = []
    second: list[str] = []
    RUNS[option](seed, trace=first.append)
    RUNS[option](seed, trace=second.append)
    assert len(first) > 10
    assert first == second


@pytest.mark.slow
def test_batches_grow_in_histories_with_far_brokers() -> None:
    """In some of them brokers refuse those that have grown, and they are split."""
    grown = split = 0
    for seed in range(1, 400):
        history = history_of(seed)
        if not history.is_far:
            continue
        lines: list[str] = []
        assert not run_history(seed, trace=lines.append)
        sizes = [int(line.split()[-2]) for line in lines if " handles " in line and line.endswith(" bytes")]
        # A batch may exceed batch_size by one record.
        if max(sizes, default=0) > history.options["batch_size"] + LARGEST_FAR_RECORD:
            grown += 1
            split += "(10, -1)" in text_of(lines)
    assert grown >= 5
    assert split >= 2


@pytest.mark.slow
def test_the_histories_contain_every_kind_of_trouble() -> None:
    """A promise that no event threatens is not tested."""
    lines: list[str] = []
    for seed in range(1, 1000):
        run_history(seed, trace=lines.append)
    text = text_of(lines)
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
        "flush() returns",
        "trying again, as the session still lasts",
        *(f"({code}, -1)" for code in (-1, 2, 3, 6, 7, 10, 19, 20, 45, 46, 47, 56, 59, 87)),
    ):
        assert trouble in text, trouble


@pytest.mark.slow
def test_the_histories_of_transactions_contain_every_kind_of_trouble() -> None:
    missing = {
        "bytes still reach the broker",
        "swallows everything",
        "handles zombie request",
        "answers to a closed connection EndTxn",
        "crashes",
        "coordinates id x in term",
        "coordinates group g in term",
        "transaction.version 2 becomes 0",
        "transaction.version 0 becomes 2",
        "is wedged",
        "has timed out",
        "expires",
        "freezes for",
        "is killed",
        "kills itself",
        "is lost",
        "program z starts",
        "has failed for good",
        "has no rights on id x",
        "has no rights on topic t",
        "has no rights on group g",
        "is rebalanced",
        "epoch 32766",
        "producer id 1002, epoch 0",
        *(f"{call}_transaction() times out" for call in ("commit", "abort", "prepare")),
        *(
            f"commit_transaction() raises {error}"
            for error in ("TransactionFailedError", "ProducerFencedError")
        ),
        *(f"abort_transaction() raises {error}" for error in ("IllegalStateError", "ProducerFencedError")),
        *(f"v{version}: (0, " for version in (1, 3, 4, 5)),
        *(f"v5: ({code}, -1" for code in (14, 15, 16, 48, 51, 90)),
        *(f"({code}, -1)" for code in (6, 10, 19, 29, 45, 47, 48, 49, 51, 87, 120)),
        "error 53, identity (-1, -1)",
    }
    for seed in range(1, 1500):
        lines: list[str] = []
        run_transaction_history(seed, lines.append)
        text = text_of(lines)
        missing = {trouble for trouble in missing if trouble not in text}
        if not missing:
            # Rare ones are in one history of some hundreds, and which these are changes with each draw.
            return
    assert not missing
