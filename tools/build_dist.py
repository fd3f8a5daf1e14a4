"""Builds what is released: a source package of this checkout, and a wheel of what is in the source package.

Both go into ``.tox/dist``, with the unpacked sources that the wheel was built in, and the C code in their
``build/cython``. Does nothing if they are newer than everything that goes into them. Needs the package
``build``. A minute or two, mostly compiling.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / ".tox" / "dist"
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi", ".h")


class Dist(NamedTuple):
    source_package: Path
    sources: Path
    wheel: Path


def inputs() -> Iterator[Path]:
    yield from (ROOT / name for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md"))
    for package in ("cyproducer", "pyspark_cyproducer", "pytest_cyproducer", "docs"):
        yield from (path for path in (ROOT / package).rglob("*") if path.suffix in (*SUFFIXES, ".md"))


def only(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


def unpack(archive: tarfile.TarFile, directory: Path) -> None:
    """Unpacks an archive that this checkout has made."""
    # Extraction filters came with CPython 3.11.4; Debian 12 has 3.11.2.
    if hasattr(tarfile, "data_filter"):
        archive.extractall(directory, filter="data")
    else:
        archive.extractall(directory)


def fresh(wheel_tag: str) -> Dist | None:
    """Returns what the last build has made; None if it is older than the sources, or of another Python."""
    try:
        dist = Dist(only(DIST, "*.tar.gz"), only(DIST / "sources", "*"), only(DIST, f"*-{wheel_tag}-*.whl"))
    except ValueError:
        return None
    newest = max(path.stat().st_mtime for path in inputs())
    return dist if min(dist.source_package.stat().st_mtime, dist.wheel.stat().st_mtime) > newest else None


def build() -> Dist:
    """Returns the packages of this checkout, for this Python. Raises CalledProcessError if building fails."""
    tag = f"cp{sysconfig.get_config_var('py_version_nodot')}"
    if (dist := fresh(tag)) is not None:
        return dist
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(parents=True)
    command = [sys.executable, "-m", "build", "--outdir", str(DIST)]
    subprocess.run([*command, "--sdist", str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(only(DIST, "*.tar.gz")) as archive:
        unpack(archive, DIST / "sources")
    sources = only(DIST / "sources", "*")
    subprocess.run([*command, "--wheel", str(sources)], check=True, stdout=subprocess.DEVNULL)
    return Dist(only(DIST, "*.tar.gz"), sources, only(DIST, "*.whl"))


if __name__ == "__main__":
    print(build().wheel)
