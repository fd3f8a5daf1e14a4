"""Builds every ``.pyx`` below ``cyproducer/`` as a separate extension.

What a machine lacks for that is said in one sentence, before anything is compiled.

Sets the compiler directives of all modules; no module sets its own. ``CYPRODUCER_DEBUG=1`` builds with
assertions and line tracing, without optimisation. ``CYPRODUCER_SANITIZE=address,undefined`` adds the
compiler's sanitizers, which abort the process at the first finding; ``tests/fuzz`` runs such a build.
``CYPRODUCER_FREE_THREADED=0`` does not declare that the extensions need no GIL: a free-threaded Python then
switches its GIL on when it imports them.
``CYPRODUCER_DEV=1`` builds without optimisation and debug symbols, for short compile times.
``CYPRODUCER_ONLY="a.pyx b.pyx"`` builds only these: looking for changes in all takes a second.
"""

import contextlib
import os
import runpy
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_path
from typing import Any, ClassVar

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("CYPRODUCER_DEBUG", "") not in ("", "0")
SANITIZE = os.environ.get("CYPRODUCER_SANITIZE", "")
FREE_THREADED = os.environ.get("CYPRODUCER_FREE_THREADED", "1") != "0"
ROOT = Path(__file__).parent

COMPILER_DIRECTIVES = {
    # docs/design.md names the lock or the rule of each structure that threads share. Without the directive a
    # free-threaded Python enables the GIL on import, with a warning. Other Pythons ignore it.
    "freethreading_compatible": FREE_THREADED,
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
                include_dirs=["cyproducer/base", "cyproducer/records", "cyproducer/net"],
                define_macros=macros,
                extra_compile_args=compile_args,
                extra_link_args=link_args,
                depends=HEADERS,
            )
        )
    if not found:
        sys.exit(f"cyproducer: there is no .pyx below {ROOT / 'cyproducer'}: these sources are incomplete")
    return found


class BuildExtensions(build_ext):
    """Cythonizes only when extensions are built: most of setuptools' commands do not need it."""

    def run(self) -> None:
        check_system()
        super().run()

    def build_extensions(self) -> None:
        """Called by `run`, which has set `compiler`."""
        check_compiler(self.compiler)
        made = {
            extension.name: extension
            for extension in cythonize(
                self.extensions,
                compiler_directives=COMPILER_DIRECTIVES,
                build_dir="build/cython",
                nthreads=os.cpu_count() or 1,
                annotate=os.environ.get("CYPRODUCER_ANNOTATE", "") not in ("", "0"),
            )
        }
        for extension in self.extensions:
            extension.sources = made[extension.name].sources
        super().build_extensions()


class Build(build):
    """Compiles first: otherwise what a machine lacks would follow a hundred lines about copied files."""

    sub_commands: ClassVar = sorted(build.sub_commands, key=lambda command: command[0] != "build_ext")


def check_system() -> None:
    """Ends with a sentence if the package does not run on this system."""
    if sys.platform == "win32":
        sys.exit("cyproducer does not run on Windows: install it in WSL, where Linux's wheels fit")


def check_compiler(compiler: Any) -> None:
    """Ends with a sentence if ``compiler``, setuptools' own object, cannot compile extensions here."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "probe.c")
        for text, missing in (
            (
                "int main(void) { return 0; }",
                f"a C compiler ({compiler.compiler[0]} does not work): on Debian `apt-get install gcc "
                "libc6-dev`, on macOS `xcode-select --install`",
            ),
            (
                "#include <Python.h>",
                f"the headers of Python {version}: on Debian `apt-get install python{version}-dev`",
            ),
        ):
            source.write_text(text)
            try:
                with silent():
                    compiler.compile([str(source)], directory, include_dirs=[get_path("include")])
            except Exception:  # setuptools has several classes for it, depending on its version
                sys.exit(f"cyproducer: building from source needs {missing}. Wheels need neither.")


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Discards what a compiler prints."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    with open(os.devnull, "w") as nothing:
        for number, _ in kept:
            os.dup2(nothing.fileno(), number)
    try:
        yield
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)


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


def description() -> str:
    """Returns the README, with links that work on PyPI."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        urls = tomllib.load(file)["project"].get("urls", {})
    version = runpy.run_path(str(ROOT / "cyproducer" / "version.py"))["VERSION"]
    text: str = runpy.run_path(str(ROOT / "tools" / "docs" / "links.py"))["for_pypi"](
        ROOT, urls.get("Repository"), version
    )
    return text


# Where multiprocessing does not fork (Python 3.14), the processes that cythonize load this file again.
if __name__ != "__mp_main__":
    with one_at_a_time():
        setup(
            long_description=description(),
            long_description_content_type="text/markdown",
            options={
                # Compiling the extensions in parallel takes half the time.
                "build_ext": {"parallel": os.cpu_count() or 1},
                # A wheel must not take object files that were compiled without optimisation.
                "build": {"build_base": "build/dev" if DEV else "build"},
            },
            cmdclass={"build": Build, "build_ext": BuildExtensions},
            ext_modules=extensions(),
        )
