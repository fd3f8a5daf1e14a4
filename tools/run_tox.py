"""Runs tox with every Python of this machine, and ends with a table of what ran and what was skipped.

tox looks for interpreters on PATH; this script also passes it those of pyenv. Without arguments it runs the
environments of ``make test``, with the argument ``all`` those of ``make test-all``, two at a time, in order:
tox's ``env_list`` without the quick tests on the Python on which ``make test`` runs them. Any other arguments
are passed to tox.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".tox" / "reports"

# The environments of `make test`. The longest comes first.
TEST = ("unit", "types", "package", "lint")
# The Python that runs the slow unit tests, too.
ALL_TESTS = "py312"
# The quick tests on this Python, which are those of `make test`, too.
OWN = f"py3{sys.version_info.minor}"
# What `make test` leaves out besides whole environments, by the counts in deselected.json.
LEFT_OUT = {"slow": "slow tests", "kafka": "tests against a real Kafka, other than the smoke tests"}


def pyenv_pythons() -> Iterator[Path]:
    """Yields the Pythons that pyenv has installed, activated or not, newest first."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    if not root.is_dir() and (pyenv := shutil.which("pyenv")):
        found = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False)
        root = Path(found.stdout.strip() or root)
    yield from sorted(root.glob("versions/3.*/bin/python3"), key=_version, reverse=True)


def _version(python: Path) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in python.parents[1].name.split(".")]


@dataclass
class Counts:
    """What pytest counted in one environment, from its JUnit report.

    ``reasons``: of skipped tests. ``failures``: the names of tests that failed.
    """

    total: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> int:
        return self.total - self.failed - self.skipped


def counts(report: Path) -> Counts:
    found = Counts()
    root = ElementTree.parse(report).getroot()
    for suite in root.iter("testsuite"):
        found.total += int(suite.get("tests", 0))
        found.failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        found.skipped += int(suite.get("skipped", 0))
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            found.failures.append(f"{case.get('classname')}::{case.get('name')}")
    for skipped in root.iter("skipped"):
        found.reasons[(skipped.get("message") or "no reason given").removeprefix("Skipped: ")] += 1
    return found


def summary(results: dict[str, Any], reports: dict[str, Counts]) -> str:
    """A table: one line per environment, then the tests that failed, then why tests and environments were
    skipped.

    ``results``: tox's ``testenvs``. ``reports``: those of the environments that run pytest.
    """
    rows = [("environment", "result", "time", "passed", "failed", "skipped")]
    reasons: dict[str, list[str]] = {}
    for name, environment in results.items():
        result = environment.get("result")
        if result is None:
            # What tox builds packages in, and environments that it only knows.
            continue
        outcome = "skipped" if result.get("skipped") else "ok" if result.get("success") else "FAILED"
        if outcome == "skipped":
            reasons.setdefault("this machine lacks the Python", []).append(name)
        counted = reports.get(name)
        numbers = (
            ("", "", "") if counted is None else map(str, (counted.passed, counted.failed, counted.skipped))
        )
        rows.append((name, outcome, f"{result.get('duration', 0):.0f} s", *numbers))
        for reason, count in (counted.reasons if counted else Counter[str]()).items():
            reasons.setdefault(reason, []).append(f"{name} ({count})")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    failures = [f"  {name}: {each}" for name in results if name in reports for each in reports[name].failures]
    if failures:
        lines += ["", "Failed:", *failures]
    if reasons:
        lines += ["", "Skipped:"]
        lines += [f"  {reason}: {', '.join(where)}" for reason, where in sorted(reasons.items())]
    return "\n".join(line.rstrip() for line in lines)


def not_run(deselected: dict[str, int]) -> list[str]:
    """What ``make test`` leaves to ``make test-all``."""
    settings = ConfigParser(interpolation=None)
    settings.read(ROOT / "tox.ini")
    lines = ["Not run, because it takes long; `make test-all` runs it:"]
    lines += [f"  {count} {LEFT_OUT[kind]}" for kind, count in sorted(deselected.items())]
    for name in settings["tox"]["env_list"].split(", "):
        section = f"testenv:{name}"
        if name == OWN != ALL_TESTS:
            continue
        known = section in settings
        if known:
            what = settings[section]["description"]
        else:
            what = f"the {'' if name == ALL_TESTS else 'quick '}unit tests on this Python"
        lines.append(f"  {name}: {what}")
    return lines


def built_wheel() -> str:
    """Builds what is released, once for all environments, and returns the path of the wheel."""
    print("Building the source package, and a wheel of it (a minute or two; only after changes)", flush=True)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "build_dist.py")],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout.split()[-1]


def main(arguments: list[str]) -> int:
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    # setuptools packs everything in build/lib.*, including modules that no longer exist in the sources.
    for leftover in (ROOT / "build").glob("lib.*"):
        shutil.rmtree(leftover)
    result = REPORTS / "tox.json"
    # run-parallel runs and reports all environments, even if one fails.
    parallel = ["--parallel", "2", "--parallel-live", "--result-json", str(result)]
    if not arguments:
        status = tox("run-parallel", [*parallel, "-e", ",".join(TEST), "--installpkg", built_wheel()])
    elif arguments == ["all"]:
        status = tox("run-parallel", [*parallel, *([f"--skip-env={OWN}$"] if OWN != ALL_TESTS else [])])
    else:
        status = tox("run", ["--result-json", str(result), *arguments])
    if result.exists():
        reports = {report.stem: counts(report) for report in REPORTS.glob("*.xml")}
        print(f"\n{summary(json.loads(result.read_text())['testenvs'], reports)}", flush=True)
    if not arguments:
        report = REPORTS / "deselected.json"
        deselected = json.loads(report.read_text()) if report.exists() else {}
        print("", *not_run(deselected), sep="\n", flush=True)
    return status


def tox(subcommand: str, arguments: list[str]) -> int:
    """Runs tox and returns its exit status."""
    discover = [str(python) for python in pyenv_pythons()]
    behind = arguments.index("--") if "--" in arguments else len(arguments)
    command = [sys.executable, "-m", "tox", subcommand, "-c", str(ROOT / "tox.ini"), *arguments[:behind]]
    if discover:
        # The last option before "--", because it takes all words that follow.
        command += ["--discover", *discover]
    command += arguments[behind:]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
