"""Checks that each C compiler of this machine accepts the extensions, by its own default and by newer ones.

Newer compilers refuse what older ones warn about: gcc 14 refuses incompatible pointers, and gcc 15 reads C23
by default. This check finds with an older compiler what a newer one refuses. Each generated C file of
``build_dist`` is parsed, not compiled: ten seconds per compiler and language.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tools.build_dist import build

# Errors since gcc 14, clang 16. gcc 12 knows all but the last.
ERRORS = (
    "incompatible-pointer-types",
    "int-conversion",
    "implicit-function-declaration",
    "implicit-int",
    "return-mismatch",
)
COMPILERS = ("gcc", "clang")
CPP_COMPILERS = ("g++", "clang++")
# gnu2x is gnu23 in compilers older than the standard. These lack nullptr, which Python's headers use.
NEWEST_C = (("-std=gnu23",), ("-std=gnu2x", "-Dnullptr=((void*)0)"))


def accepts(command: Sequence[str], directory: Path) -> bool:
    """Whether the compiler knows all options of the command."""
    empty = directory / "empty.c"
    empty.write_text("typedef int nothing;\n")
    done = subprocess.run([*command, "-fsyntax-only", str(empty)], capture_output=True, check=False)
    return done.returncode == 0


def commands() -> list[list[str]]:
    """The commands that must accept each file: each compiler, in its default language, in C23 and as C++."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for compiler in filter(shutil.which, COMPILERS):
            # -Werror: clang only warns about an option that it does not know.
            errors = [
                option
                for option in (f"-Werror={error}" for error in ERRORS)
                if accepts([compiler, "-Werror", option], directory)
            ]
            found.append([compiler, *errors])
            newest = [options for options in NEWEST_C if accepts([compiler, *options], directory)]
            found += [[compiler, *options, *errors] for options in newest[:1]]
        # Some build systems compile everything as C++. clang++ warns that it treats C as C++.
        found += [[compiler, "-x", "c++"] for compiler in filter(shutil.which, CPP_COMPILERS)]
    return found


def check(command: Sequence[str], includes: Sequence[str], source: Path) -> str:
    """Returns what the compiler prints about a file that it refuses; an empty string if it accepts it."""
    done = subprocess.run(
        [*command, "-fsyntax-only", *includes, "-DCYTHON_WITHOUT_ASSERTIONS=1", str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout or f"ended with {done.returncode}" if done.returncode else ""


def main() -> int:
    built = build().sources
    package = built / "cyproducer"
    generated = built / "build" / "cython"
    sources = [
        (generated / path.relative_to(built)).with_suffix(".c") for path in sorted(package.rglob("*.pyx"))
    ]
    headers = {path.parent for path in package.rglob("*.h")}
    includes = [f"-I{path}" for path in (sysconfig.get_path("include"), *sorted(map(str, headers)))]
    if not (found := commands()):
        print("check_compilers: this machine has neither gcc nor clang", file=sys.stderr)
        return 1
    failed = False
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for command in found:
            results = pool.map(partial(check, command, includes), sources)
            complaints = [text for text in results if text]
            print(f"{'FAILED' if complaints else 'ok':8}{' '.join(command)}", flush=True)
            print("\n".join(complaints), end="")
            failed = failed or bool(complaints)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
