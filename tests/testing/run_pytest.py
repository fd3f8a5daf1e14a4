"""Runs pytest with the plugin in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(directory: Path) -> tuple[str, dict[str, int]]:
    """Runs the tests in ``directory``; returns the output, and the numbers of the summary by its words."""
    # The sources come after an installed package.
    path = os.pathsep.join((*sys.path, str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_cyproducer", "-p", "no:cacheprovider", "."],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    summary = done.stdout.splitlines()[-1]
    assert " in " in summary, done.stdout
    return done.stdout, {word.rstrip("s"): int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", summary)}
