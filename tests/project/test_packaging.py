"""Checks that tox tests the wheel, and that the wheel contains the files that users need."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import cyproducer

SOURCES = Path(__file__).resolve().parents[2] / "cyproducer"
INSTALLED = Path(cyproducer.__file__).resolve().parent

pytestmark = pytest.mark.skipif(
    os.environ.get("CYPRODUCER_TEST_INSTALLED") != "1", reason="only tox installs the package"
)


def test_the_package_under_test_is_the_installed_one() -> None:
    assert INSTALLED != SOURCES
    assert INSTALLED.parent.name == "site-packages"


def test_child_processes_import_the_installed_package_too() -> None:
    # `python -m` and `python -c` put the working directory first unless this is set.
    assert os.environ["PYTHONSAFEPATH"] == "1"
    assert Path.cwd() != SOURCES.parent


@pytest.mark.parametrize("kind", ["*.py", "*.pyi", "*.pxd", "*.h", "py.typed"])
def test_the_wheel_holds_every_file_of_the_kind(kind: str) -> None:
    def files(root: Path) -> set[str]:
        return {str(path.relative_to(root)) for path in root.rglob(kind)}

    assert files(INSTALLED) == files(SOURCES)


def test_the_wheel_holds_every_extension_and_no_source_of_it() -> None:
    built = {str(path.relative_to(INSTALLED)).split(".")[0] for path in INSTALLED.rglob("*.so")}

    assert built == {str(path.relative_to(SOURCES).with_suffix("")) for path in SOURCES.rglob("*.pyx")}
    assert not list(INSTALLED.rglob("*.c"))


def test_pytest_finds_the_plugin() -> None:
    (plugin,) = entry_points(group="pytest11", name="pytest_cyproducer")

    module = plugin.load()
    assert Path(module.__file__).parent.parent == INSTALLED.parent
    assert {"mock_producer", "kafka_broker", "kafka_producer"} <= set(vars(module))
