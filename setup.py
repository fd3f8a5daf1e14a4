"""Builds every ``.pyx`` below ``cyproducer/`` as a separate extension.

Sets the compiler directives of all modules; no module sets its own. ``CYPRODUCER_DEBUG=1`` builds with
assertions and line tracing, without optimisation. ``CYPRODUCER_SANITIZE=address,undefined`` adds the
compiler's sanitizers, which abort the process at the first finding; ``tests/fuzz`` runs such a build.
``CYPRODUCER_DEV=1`` builds without optimisation and debug symbols, for short compile times.
``CYPRODUCER_ONLY="a.pyx b.pyx"`` builds only these: looking for changes in all takes a second.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("CYPRODUCER_DEBUG", "") not in ("", "0")
SANITIZE = os.environ.get("CYPRODUCER_SANITIZE", "")
ROOT = Path(__file__).parent

# Without freethreading_compatible: futures and the lists of them rely on the GIL. A free-threaded Python then
# enables the GIL on import, with a warning.
COMPILER_DIRECTIVES = {
    "language_level": "3",
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
    "embedsignature.format": "python",
    "always_allow_keywords": True,
    # There are no doctests: without this, each module gets an unused `__test__`.
    "autotestdict": False,
    "linetrace": DEBUG,
}

# For development builds: without optimisation and debug symbols gcc takes a quarter of the time.
DEV = os.environ.get("CYPRODUCER_DEV", "") not in ("", "0")
ONLY = os.environ.get("CYPRODUCER_ONLY", "").split()
# Under sanitizers -O3 takes twice as long to compile, and hides stack frames from their reports.
OPTIMIZE = ["-O1", "-g1"] if SANITIZE else ["-O0", "-g0"] if DEV else ["-O3", "-g1"]
compile_args = ["-O0", "-g", "-UNDEBUG"] if DEBUG else OPTIMIZE
compile_args += ["-fvisibility=hidden", "-Wall", "-Wno-unused-function", "-Wno-unreachable-code"]
link_args: list[str] = []
macros: list[tuple[str, str | None]] = []
if DEBUG:
    macros += [("CYTHON_TRACE_NOGIL", "1"), ("CYPRODUCER_DEBUG", "1")]
else:
    macros.append(("CYTHON_WITHOUT_ASSERTIONS", "1"))
if SANITIZE:
    compile_args += [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    link_args += [f"-fsanitize={SANITIZE}"]
if sys.platform != "win32":
    link_args.append("-lpthread")


HEADERS = [str(header.relative_to(ROOT)) for header in sorted((ROOT / "cyproducer").rglob("*.h"))]


def extensions() -> list[Extension]:
    found = []
    for path in sorted((ROOT / "cyproducer").rglob("*.pyx")):
        relative = path.relative_to(ROOT)
        if ONLY and str(relative) not in ONLY:
            continue
        found.append(
            Extension(
                ".".join(relative.with_suffix("").parts),
                [str(relative)],
                include_dirs=["cyproducer/base", "cyproducer/records", "cyproducer/network"],
                define_macros=macros,
                extra_compile_args=compile_args,
                extra_link_args=link_args,
                depends=[
                    str(header.relative_to(ROOT)) for header in sorted((ROOT / "cyproducer").rglob("*.h"))
                ],
            )
        )
    return found


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Holds a file lock: tox may build for two Pythons in this directory at once, to the same files."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


with one_at_a_time():
    setup(
        options={
            # Compiling the extensions in parallel takes half the time.
            "build_ext": {"parallel": os.cpu_count() or 1},
            # A wheel must not take object files that were compiled without optimisation.
            "build": {"build_base": "build/dev" if DEV else "build"},
        },
        ext_modules=cythonize(
            extensions(),
            compiler_directives=COMPILER_DIRECTIVES,
            build_dir="build/cython",
            nthreads=os.cpu_count() or 1,
            annotate=os.environ.get("CYPRODUCER_ANNOTATE", "") not in ("", "0"),
        ),
    )
