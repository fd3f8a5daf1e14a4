"""Runs tox with every Python of this machine, then prints pytest's counts for each environment.

tox looks for interpreters on PATH; this script also passes it those of pyenv. All arguments are passed to
tox. Without arguments, runs all environments, two at a time, in the order of ``env_list``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".tox" / "reports"


def pyenv_pythons() -> Iterator[Path]:
    """Yields the Pythons that pyenv has installed, activated or not, newest first."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    if not root.is_dir() and (pyenv := shutil.which("pyenv")):
        found = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False)
        root = Path(found.stdout.strip() or root)
    yield from sorted(root.glob("versions/3.*/bin/python3"), key=_version, reverse=True)


def _version(python: Path) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in python.parents[1].name.split(".")]


def counts(report: Path) -> str:
    """Returns a summary of a JUnit report in pytest's format: ``py312: 517 passed, 0 failed, 3 skipped``."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return f"{report.stem}: {total - failed - skipped} passed, {failed} failed, {skipped} skipped"


def main(arguments: list[str]) -> int:
    shutil.rmtree(REPORTS, ignore_errors=True)
    # setuptools packs everything in build/lib.*, including modules that no longer exist in the sources.
    for leftover in (ROOT / "build").glob("lib.*"):
        shutil.rmtree(leftover)
    if arguments:
        status = tox("run", arguments)
    else:
        # Runs and reports all environments, even if one fails.
        status = tox("run-parallel", ["--parallel", "2", "--parallel-live"])
    for report in sorted(REPORTS.glob("*.xml")):
        print(counts(report), flush=True)
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
