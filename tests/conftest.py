"""Settings for all tests."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

# Makes `tools`, `perf` and `demo_spark` importable. At the end: an installed package comes before the
# sources, which are in the same directory.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# A shell without job control starts background programs with Ctrl-C ignored, and Python keeps it ignored.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No time limit per example: the first one imports what it needs, and other programs use the machine too.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile(os.environ.get("CYPRODUCER_HYPOTHESIS", "full"))

deselected: Counter[str] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        deselected["kafka" if item.get_closest_marker("kafka") else "slow"] += 1


def pytest_sessionfinish() -> None:
    """Reports what a run leaves out to tools/run_tox.py. All workers of pytest-xdist write the same."""
    if (path := os.environ.get("CYPRODUCER_DESELECTED")) and deselected:
        Path(path).write_text(json.dumps(deselected))
