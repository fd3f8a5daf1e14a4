"""Tests the instruction gate: how it computes counts, and that it fails if a count grows.

Whether the real counts stay within their bounds is checked by ``perf/gate/check.py``, which `make test` runs.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from perf.gate import bounds, check, counting
from perf.gate.bounds import Verdict
from perf.gate.counting import CountingError, Counts


def dump(name: str, total: int) -> str:
    return f"desc: Trigger: Client Request: {name}\nsummary: {total}\n\nfn=x\n1 2\ntotals: {total}\n"


def test_one_time_costs_are_not_counted() -> None:
    dumps = [
        dump("preparation", 5_000_000),
        dump("send|1000", 100_000 + 1_500_000),
        dump("send|2000", 100_000 + 3_000_000),
        dump("sender|10", 470),
        dump("sender|20", 940),
        "desc: Trigger: Program termination\ntotals: 7\n",
    ]

    assert counting.per_record(dumps) == {"send": 1500, "sender": 47}


@pytest.mark.parametrize(
    "sizes", [["send|10"], ["send|10", "send|30"], ["send|10", "send|20", "send|40"]], ids=str
)
def test_a_workload_that_was_not_counted_twice_is_an_error(sizes: list[str]) -> None:
    with pytest.raises(CountingError, match="not with N and 2 N"):
        counting.per_record([dump(name, 1) for name in sizes])


@pytest.mark.parametrize(
    ("counted", "failed", "told"),
    [
        (1099.0, False, "+9.9%"),
        (1100.0, True, "+10.0%   FAILED: must be less than 10% more"),
        (1250.0, True, "+25.0%   FAILED: must be less than 10% more"),
        (1000.0, False, "+0.0%"),
        (850.0, False, "-15.0%   improved: store the new bound"),
    ],
)
def test_ten_percent_more_fails_and_reports_the_growth(counted: float, failed: bool, told: str) -> None:
    verdict = Verdict("send", counted, 1000.0)

    assert verdict.failed is failed
    assert verdict.line().endswith(told)


def test_a_workload_without_a_bound_does_not_fail() -> None:
    (verdict,) = bounds.judge({"new": 5.0}, {"send": 1.0})

    assert not verdict.failed
    assert "no stored bound" in verdict.line()


def test_storing_keeps_other_machines_and_uncounted_workloads(tmp_path: Path) -> None:
    file = tmp_path / "bounds.json"
    bounds.store({"send": 1.234, "columnar": 9.0}, "CPython 3.12 x86_64", file)
    bounds.store({"send": 7.0}, "CPython 3.13 x86_64", file)
    bounds.store({"send": 2.0}, "CPython 3.12 x86_64", file)

    assert bounds.stored(file) == {
        "CPython 3.12 x86_64": {"send": 2.0, "columnar": 9.0},
        "CPython 3.13 x86_64": {"send": 7.0},
    }
    assert bounds.stored(tmp_path / "nothing") == {}


@pytest.fixture
def _counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulates a machine on which send() takes 1200 instructions, and 1000 are stored."""
    monkeypatch.setattr(counting, "unavailable", lambda: None)
    monkeypatch.setattr(counting, "count", lambda: Counts({"send": 1200.0}, ["columnar: not there"]))
    monkeypatch.setattr(bounds, "FILE", tmp_path / "bounds.json")
    monkeypatch.setattr(bounds, "stored", lambda: {bounds.kind(): {"send": 1000.0}})
    monkeypatch.setattr(sys, "argv", ["check.py"])


@pytest.mark.usefixtures("_counted")
def test_the_check_exits_with_1_if_a_workload_needs_more_instructions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check.main() == 1
    out, err = capsys.readouterr()
    assert "+20.0%   FAILED" in out
    assert "columnar: not there" in out
    assert "--update" in err


@pytest.mark.usefixtures("_counted")
def test_a_skipped_check_prints_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bounds, "stored", dict)
    assert check.main() == 0
    assert capsys.readouterr().out.startswith(f"skipped: no bounds are stored for {bounds.kind()}")

    monkeypatch.setattr(counting, "unavailable", lambda: "valgrind is not installed")
    assert check.main() == 0
    assert capsys.readouterr().out == "skipped: valgrind is not installed\n"

    # With --update, the exit code also reports that nothing was stored.
    monkeypatch.setattr(sys, "argv", ["check.py", "--update"])
    assert check.main() == 1


def test_without_valgrind_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert counting.unavailable() == "valgrind is not installed"
