"""Tests the soak test: a short run of what `make soak` does, and that it detects each failed condition."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perf import footprint, null_broker, soak
from perf.footprint import Held, Medians
from perf.soak import CHURN_TOPIC, TOPIC, Run
from perf.soak_phases import PHASES, Phase
from perf.soak_plan import make_plan

PROGRAM = Path(soak.__file__)
STEADY = Medians(resident=70e6, heap=16e6, pool=10e6, rest=6e6)

pytestmark = pytest.mark.skipif(null_broker.unavailable() is not None, reason=str(null_broker.unavailable()))


@pytest.mark.slow
@pytest.mark.parametrize("secured", [False, True])
def test_two_million_records_arrive_once_in_order_and_leave_nothing_behind(
    tmp_path: Path, secured: bool
) -> None:
    figures_file = tmp_path / "figures.json"
    # In this short a run, memory is still growing to its limit: without the pool, by less than 1 MB.
    options = (
        "--records 2000000 --producers 20 --strength 3 --seed 7 --growth-mb 2 --warm-up 0.3 --sample-s 0.02"
        f" --phase-s 0{' --secured' if secured else ''}"
    )

    done = subprocess.run(
        [sys.executable, str(PROGRAM), *options.split(), "--json", str(figures_file)],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(figures_file.read_text())
    assert figures["metrics"]["record-send-total"] == figures["plan"]["records"] == 2_000_000
    assert sum(figures["faults"].values()) > 20
    assert figures["duplicate_batches"] > 0
    # Beside the cut connections, sessions end.
    assert (figures["requests"]["sasl_authenticate"] > 5) == secured
    assert figures["futures_looked_at"] == 1000
    assert set(figures["verdicts"].values()) == {True}


def test_a_plan_depends_only_on_its_arguments() -> None:
    assert make_plan(1, 10, 10, 1) == make_plan(1, 10, 10, 1)
    assert make_plan(1, 10, 10, 1) != make_plan(2, 10, 10, 1)


def test_power_sums_are_those_of_the_sent_numbers() -> None:
    numbers = [*range(1000), *range(77)]

    assert soak.power_sums([1000, 77]) == tuple(sum(n**power for n in numbers) for power in (1, 2, 3))
    assert soak.power_sums([2**40])[2] == (2**39 * (2**40 - 1)) ** 2 % 2**64


@pytest.fixture(scope="module")
def run() -> Run:
    run = soak.soak(make_plan(3, 40_000, 4, 2), 0.1, 0.001, 1)
    # Ignores other threads of this process, and memory, which means nothing in this short a run.
    run.left_threads = run.left_descriptors = 0
    run.held = [Held(0, 0)] * 4
    run.memory = (STEADY, STEADY)
    assert [what for what, holds in run.verdicts().items() if not holds] == []
    return run


Harm = Callable[[Run], object]


def counted(what: str, more: int = 1, topic: str = TOPIC) -> Harm:
    """The broker counts other than it should."""

    def harm(run: Run) -> None:
        run.report.topics[topic][0][what] += more

    return harm


def measured(metric: str, more: int = 1) -> Harm:
    """The producer's metric is other than it should be."""

    def harm(run: Run) -> None:
        run.metrics[metric] += more

    return harm


def having(name: str, value: object) -> Harm:
    return lambda run: setattr(run, name, value)


def holding(place: int, left: Held) -> Harm:
    def harm(run: Run) -> None:
        run.held[place] = left

    return harm


def _double(run: Run) -> None:
    run.report.topics[TOPIC][0]["sums"][0] += 1


def _miss_a_callback(run: Run) -> None:
    run.tally.callbacks -= 1


def _send_less(run: Run) -> None:
    run.tally.sent[0] -= 1


def _more_requests_than_sent(run: Run) -> None:
    run.report.requests["produce"] = int(run.metrics["produce-request-total"]) + 1


def _grow(run: Run) -> None:
    run.growth_bytes = 1e6
    run.memory = (STEADY, STEADY._replace(rest=STEADY.rest + 1.1e6))


def _grow_the_pool_too_far(run: Run) -> None:
    run.memory = (STEADY, STEADY._replace(pool=run.plan.options["buffer_memory"] + 1))


def _grow_by_gaps(run: Run) -> None:
    run.growth_bytes = 1e6
    pool = STEADY.pool + 1e6
    resident = STEADY.resident + 1e6 + run.plan.options["buffer_memory"] / 2
    run.memory = (STEADY, STEADY._replace(pool=pool, resident=resident))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "noticed"),
    [
        (counted("records", -1), "the broker has as many records"),
        (_double, "each record once"),
        (counted("disorder"), "in order within each partition"),
        (counted("corrupt"), "no record is corrupt"),
        (counted("unnumbered"), "no record is corrupt"),
        (counted("batches"), "batches: metrics and broker agree"),
        (counted("bytes"), "bytes: metrics and broker agree"),
        (counted("records", -1, CHURN_TOPIC), "short-lived producers: each record once"),
        (lambda run: run.tally.failures.update(error=1), "every kept future succeeded"),
        (_miss_a_callback, "every callback was called"),
        (_send_less, "every record was sent"),
        (measured("record-error-total"), "no record failed"),
        (measured("record-send-total", -1), "every record was acknowledged"),
        (_more_requests_than_sent, "requests: no more arrived than were sent"),
        (measured("requests-in-flight"), "nothing is in flight"),
        (measured("buffer-available-bytes", -512), "the pool is complete"),
        (_grow, "memory in use is flat, without the pool"),
        (_grow_the_pool_too_far, "the pool keeps its limit"),
        (_grow_by_gaps, "resident memory is flat, except for pool and gaps"),
        (holding(1, Held(footprint.LEFT_BYTES + 1, 0)), "everything was freed"),
        (holding(3, Held(0, footprint.LEFT_BLOCKS + 1)), "short-lived producers: everything was freed"),
        (having("left_threads", 1), "no thread is left"),
        (having("left_descriptors", 1), "no descriptor is left"),
        (lambda run: run.log.errors.append("the sender failed"), "no error was logged"),
    ],
)
def test_a_failed_condition_is_detected(run: Run, harm: Harm, noticed: str) -> None:
    log, run.log = run.log, soak.Log()
    harmed = copy.copy(run)
    harmed.report, harmed.tally = copy.deepcopy(run.report), copy.deepcopy(run.tally)
    harmed.metrics, harmed.held = dict(run.metrics), list(run.held)
    run.log = log

    harm(harmed)

    assert not harmed.verdicts()[noticed]


@pytest.mark.slow
def test_a_pool_that_fills_late_does_not_count_as_growth(run: Run) -> None:
    # As in a short run in which the broker first falls behind near the end.
    room = run.plan.options["buffer_memory"] - STEADY.pool
    late = Medians(STEADY.resident + room, STEADY.heap + room, STEADY.pool + room, STEADY.rest)
    filled = copy.copy(run)
    filled.growth_bytes, filled.memory = 0, (STEADY, late)

    assert [what for what, holds in filled.verdicts().items() if not holds] == []


def test_allocated_memory_is_measured_to_the_byte() -> None:
    # In a separate process: memory that other tests have left may be freed at any time.
    program = """
import footprint
before = footprint.Held.now()
kept = bytes(1_000_000)
after = footprint.Held.now()
grew = before.grew(after)
del kept
print(before.bytes, after.bytes - before.bytes, grew, before.grew(footprint.Held.now()))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(PROGRAM.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    held, more, grew, still = done.stdout.split()
    if held == "0":
        pytest.skip("this C library does not report its allocations")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("without a GIL Python allocates its objects with mimalloc, which malloc does not report")
    assert 1_000_000 <= int(more) < 1_100_000
    assert (grew, still) == ("True", "False")


@pytest.mark.slow
@pytest.mark.parametrize("name", PHASES)
def test_a_phase_under_pressure_has_no_failures_and_makes_progress(name: str) -> None:
    """In this short a time, a busy machine alone may halve a rate. Real decay is more than that."""
    phase = PHASES[name](3.0)
    verdicts = {what.rpartition(": ")[2]: holds for what, holds in phase.verdicts().items()}
    assert verdicts["nothing failed"]
    assert verdicts["memory holds"]
    assert phase.second_quarter > 0
    assert phase.steady > 0.2


def test_a_phase_that_slows_down_grows_or_fails_is_detected() -> None:
    good = Phase("p", "records/s", 1000.0, 990.0, 1 << 20, 0)
    assert all(good.verdicts().values())
    for bad, what in (
        (replace(good, last_quarter=700.0), "p: the rate holds"),
        (replace(good, growth_bytes=100 << 20), "p: memory holds"),
        (replace(good, failed=1), "p: nothing failed"),
        (replace(good, second_quarter=0.0, last_quarter=0.0), "p: the rate holds"),
    ):
        assert [name for name, holds in bad.verdicts().items() if not holds] == [what]
    assert soak.report([good]) == 0
    assert soak.report([good, replace(good, failed=1)]) == 1
