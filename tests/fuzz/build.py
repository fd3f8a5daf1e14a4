"""Builds the package and the fuzz targets with sanitizers and coverage, in a separate directory.

    python -m tests.fuzz.build build/fuzz

Needs gcc with its sanitizers, Cython and setuptools. Only ``run.py`` can run the result, because it preloads
the libraries. Skips files that are newer than their sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SANITIZERS = "address,undefined"
TARGETS = ("fuzz_network", "fuzz_records", "fuzz_buffers")


def compiler_flags() -> list[str]:
    return [
        "-O1",
        "-g1",
        f"-fsanitize={SANITIZERS}",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
        "-fsanitize-coverage=trace-pc,trace-cmp",
        "-Wno-unused-function",
    ]


def build_package(into: Path) -> None:
    environment = {
        **os.environ,
        "CYPRODUCER_SANITIZE": SANITIZERS,
        "CFLAGS": "-fsanitize-coverage=trace-pc,trace-cmp",
    }
    places = ["--build-lib", str(into / "lib"), "--build-temp", str(into / "temp")]
    command = [sys.executable, "setup.py", "-q", "build", *places]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def build_targets(into: Path) -> None:
    # Imported here, because run.py imports this module for its constants and needs no compiler for that.
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension  # type: ignore[import-untyped]

    os.chdir(ROOT)
    includes = [str(ROOT / "cyproducer" / part) for part in ("base", "records", "net")]
    extensions = [
        Extension(
            name,
            [str((HERE / f"{name}.pyx").relative_to(ROOT))],
            include_dirs=includes,
            extra_compile_args=compiler_flags(),
            extra_link_args=[f"-fsanitize={SANITIZERS}", "-lpthread"],
        )
        for name in TARGETS
    ]
    directives = {"language_level": "3", "wraparound": False, "boundscheck": False, "cdivision": True}
    built = cythonize(  # type: ignore[no-untyped-call]
        extensions,
        include_path=[str(ROOT), str(HERE)],
        compiler_directives=directives,
        build_dir=str(into / "cython"),
    )
    distribution = Distribution({"name": "fuzz-targets", "ext_modules": built})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(into / "lib"), str(into / "temp")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()


def build_coverage(into: Path) -> None:
    flags = ["-O2", "-Wall", "-Werror", "-fPIC", "-shared"]
    target = into / "coverage.so"
    subprocess.run(["gcc", *flags, "-o", str(target), str(HERE / "coverage.c")], check=True)


def main(arguments: list[str]) -> int:
    into = Path(arguments[0] if arguments else ROOT / "build" / "fuzz").resolve()
    if shutil.which("gcc") is None:
        print("fuzzing needs gcc: other compilers' sanitizers use other libraries", file=sys.stderr)
        return 1
    into.mkdir(parents=True, exist_ok=True)
    build_coverage(into)
    build_package(into)
    build_targets(into)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
