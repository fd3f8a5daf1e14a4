"""Runs tox with every Python of this machine, and closes with what pytest counted in each environment.

tox looks for interpreters on PATH; those that only pyenv knows are told to it here. All arguments are tox's;
without any, everything is run, two environments at a time, in the order of ``env_list``.
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
    """What pyenv installed, newest first within each minor version, whether or not it is activated."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    if not root.is_dir() and (pyenv := shutil.which("pyenv")):
        found = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False)
        root = Path(found.stdout.strip() or root)
    yield from sorted(root.glob("versions/3.*/bin/python3"), key=_version, reverse=True)


def _version(python: Path) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in python.parents[1].name.split(".")]


def counts(report: Path) -> str:
    """A line in pytest's words, such as ``py312: 517 passed, 0 failed, 3 skipped``, from its JUnit report."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return f"{report.stem}: {total - failed - skipped} passed, {failed} failed, {skipped} skipped"


def main(arguments: list[str]) -> int:
    shutil.rmtree(REPORTS, ignore_errors=True)
    # setuptools packs whatever it finds in here, be it of modules that are gone from the sources.
    for leftover in (ROOT / "build").glob("lib.*"):
        shutil.rmtree(leftover)
    if arguments:
        status = tox("run", arguments)
    else:
        # Whatever fails, all of it is run and told of.
        status = tox("run-parallel", ["--parallel", "2", "--parallel-live"])
    for report in sorted(REPORTS.glob("*.xml")):
        print(counts(report), flush=True)
    return status


def tox(subcommand: str, arguments: list[str]) -> int:
    """Its exit status."""
    discover = [str(python) for python in pyenv_pythons()]
    behind = arguments.index("--") if "--" in arguments else len(arguments)
    command = [sys.executable, "-m", "tox", subcommand, "-c", str(ROOT / "tox.ini"), *arguments[:behind]]
    if discover:
        # The last option, as it takes every word that follows, up to what the environments' commands get.
        command += ["--discover", *discover]
    command += arguments[behind:]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
