"""Settings for all tests."""

import json
import os
import signal
import sys
import sysconfig
import tomllib
from collections import Counter
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]

# Makes `tools`, `perf` and `demo_spark` importable. At the end: an installed package comes before the
# sources, which are in the same directory.
sys.path.append(str(ROOT))

# A shell without job control starts background programs with Ctrl-C ignored, and Python keeps it ignored.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No time limit per example: the first one imports what it needs, and other programs use the machine too.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile(os.environ.get("CYPRODUCER_HYPOTHESIS", "full"))


class _NoWheels(MetaPathFinder):
    """Skips tests that import a package of the group `test` that has no wheel for this Python.

    A marker says so of a version. None can say it of free-threaded Pythons: there, what is missing has none.
    """

    def __init__(self) -> None:
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
        wanted = [Requirement(line) for line in groups["test"] if isinstance(line, str)]
        free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
        excluded = [
            each.name for each in wanted if free_threaded or (each.marker and not each.marker.evaluate())
        ]
        modules = [name.replace("-", "_") for name in excluded]
        # Somebody may have compiled it.
        self.modules = {module for module in modules if find_spec(module) is None}

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in self.modules:
            version = "{}.{}".format(*sys.version_info)
            pytest.skip(f"{name} has no wheel for Python {version}", allow_module_level=True)


sys.meta_path.insert(0, _NoWheels())

deselected: Counter[str] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        deselected["kafka" if item.get_closest_marker("kafka") else "slow"] += 1


def pytest_sessionfinish() -> None:
    """Reports what a run leaves out to tools/run_tox.py. All workers of pytest-xdist write the same."""
    if (path := os.environ.get("CYPRODUCER_DESELECTED")) and deselected:
        Path(path).write_text(json.dumps(deselected))
