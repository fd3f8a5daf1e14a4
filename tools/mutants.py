"""Mutation testing: breaks lines of the product, and reports the mutants that nothing detects.

``python tools/mutants.py [NAME ...]``: copies the tree to a temporary directory, and runs what should detect
the mutants there on the unchanged product. Then, for one mutant after the other: applies it, builds the
changed file (with ccache if it is installed) and runs its tests and histories. A mutant survives if they
pass; then the exit status is 1. A NAME is one of a mutant, or the path of a module or folder of the product.
Needs the dependencies of the build and of the unit tests, and the extensions built in place. A mutant takes
some 15 seconds, one that only histories detect up to some minutes.

``mutants.txt`` holds the mutants, and describes its format. Tests of many events are histories: one seed of
``tests.simulation`` after the other runs until one fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "mutants.txt"
PARTS = (
    "cyproducer", "pyspark_cyproducer", "pytest_cyproducer", "tests", "perf", "tools", "demo_spark", "build",
    "setup.py", "pyproject.toml", "README.md", "LICENSE",
)  # fmt: skip
PERTURB = "glibc.malloc.tcache_count=0:glibc.malloc.perturb=165"
"""For ``GLIBC_TUNABLES``: overwrites freed memory at once, so that reading it fails a test."""
BUILT = (".pyx", ".h")
"""Sources of the extensions."""
LIMIT_S = 180.0
"""If the tests take longer, the mutant hangs, which counts as detected."""
HISTORIES = {"histories": (), "histories of transactions": ("--transactions",)}
"""What may stand for a test -> its arguments for ``tests.simulation``."""
HISTORIES_LIMIT_S = 600.0
HISTORIES_UNBROKEN = 20
"""How many histories the unchanged product must pass."""


class Mutant(NamedTuple):
    """``tests`` or ``histories`` fail if the lines ``old`` of ``path`` are replaced with ``new``."""

    name: str
    why: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    histories: tuple[str, ...]
    """Keys of ``HISTORIES``."""
    perturbed: bool
    """Only detected if freed memory is overwritten."""

    def applied(self, text: str) -> str:
        """Raises: ``ValueError`` if the old lines are not in the text exactly once."""
        changed, times = re.subn("^" + re.escape(self.old), lambda _: self.new, text, flags=re.MULTILINE)
        if times != 1:
            raise ValueError(f"{self.name} does not apply: its old lines are {times} times in {self.path}")
        return changed


def parse(text: str, source: str = str(TABLE)) -> list[Mutant]:
    """Raises: ``ValueError`` with the place in ``source``, if the text does not have the form."""
    mutants: list[Mutant] = []
    path = ""
    # Of the mutant that is being read: where it began, its header, and its lines by their first character.
    began, header = 0, ""
    body: list[str] = []
    tests: list[str] = []

    def wrong(number: int, problem: str) -> ValueError:
        return ValueError(f"{source}:{number}: {problem}")

    def finish() -> None:
        name, _, why = header.partition(": ")
        old = "".join(line[1:] + "\n" for line in body if line[0] in " -")
        new = "".join(line[1:] + "\n" for line in body if line[0] in " +")
        if not old or old == new:
            raise wrong(began, f"{name} needs a line to find, and one that it removes or adds")
        if not tests:
            raise wrong(began, f"{name} names nothing that detects it")
        if any(name == mutant.name for mutant in mutants):
            raise wrong(began, f"{name} exists already")
        histories = tuple(test for test in tests if test in HISTORIES)
        units = tuple(test.removeprefix("perturbed ") for test in tests if test not in HISTORIES)
        perturbed = any(test.startswith("perturbed ") for test in tests)
        mutants.append(Mutant(name, why, path, old, new, units, histories, perturbed))

    for number, line in enumerate([*text.splitlines(), ""], 1):
        if header and not line:
            finish()
            header, body, tests = "", [], []
        elif header and line[0] in " -+" and not tests:
            body.append(line)
        elif header and line.startswith("> "):
            tests.append(line[2:])
            if tests[-1] not in HISTORIES and not tests[-1].removeprefix("perturbed ").startswith("tests/"):
                raise wrong(number, f"{tests[-1]!r} is neither a test nor one of {', '.join(HISTORIES)}")
        elif header:
            raise wrong(number, f"expected a line of the diff, a test, or an empty line: {line!r}")
        elif line.startswith("=== "):
            path = line[4:].strip()
        elif line.startswith("== ") and path:
            began, header = number, line[3:].strip()
        elif line.startswith("== "):
            raise wrong(number, "the mutant is below no module: '=== PATH' is missing")
        elif line and not line.startswith("#"):
            raise wrong(number, f"expected '=== PATH', '== NAME' or a comment: {line!r}")
    return mutants


class Tree:
    """A copy of the sources and of the build's output."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONSAFEPATH": "1"}
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                skipped = shutil.ignore_patterns("__pycache__", "lib.*")
                shutil.copytree(source, root / part, ignore=skipped, dirs_exist_ok=True)
            elif source.exists():
                shutil.copy2(source, root / part)

    def build(self) -> str:
        """Builds the tree. Returns the error, or an empty string."""
        environ = dict(os.environ)
        if "CC" not in environ and shutil.which("ccache"):
            environ["CC"] = "ccache cc"
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=self.root, env=environ, capture_output=True, text=True)
        return f"does not build: {done.stderr[-500:]}" if done.returncode else ""

    def test(self, tests: tuple[str, ...], perturbed: bool = False) -> tuple[bool | None, str]:
        """Runs tests. Returns whether they pass (None if none was run), and the end of their output."""
        environ = {**self.environ, "GLIBC_TUNABLES": PERTURB} if perturbed else self.environ
        command = [
            sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--rootdir", str(self.root),
            "--import-mode", "importlib", "-q", "-x", "-p", "no:cacheprovider", *tests,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environ, capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return False, f"still running after {LIMIT_S:g} s"
        said = (done.stdout.strip() or done.stderr.strip() or f"status {done.returncode}").splitlines()
        words = "; ".join(
            [line for line in said if line.startswith(("FAILED tests", "ERROR tests"))][:1] + said[-1:]
        )
        # 1: a test failed. 2 to 5: pytest had nothing to run, or could not run. A crash ends with a signal.
        return None if done.returncode in (2, 3, 4, 5) else done.returncode == 0, words

    def simulate(self, kind: str, first: int, most: int) -> tuple[bool, str]:
        """Runs up to ``most`` histories. Returns whether they pass, and the first that does not."""
        command = [sys.executable, "-m", "tests.simulation", str(first), "--count", str(most), "--most", "1"]
        command += HISTORIES[kind]
        try:
            done = subprocess.run(
                command, cwd=self.root, env=self.environ, capture_output=True, text=True,
                timeout=HISTORIES_LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False, f"still running after {HISTORIES_LIMIT_S:g} s"
        said = done.stdout.splitlines()
        if done.returncode == 0:
            return True, f"{most} {kind} passed"
        if not said or "histories" not in said[-1]:
            return False, f"ends the run: {done.stderr[-300:].strip()}"
        return False, f"history {said[0]}"

    def run(self, mutant: Mutant, first: int, most: int) -> tuple[bool, str]:
        """Runs what should detect a mutant. Returns whether it does, and the reason."""
        path = self.root / mutant.path
        # Restored below with their old modification times, so that they are not built again: the extension in
        # place, the one below build/ that a later build would copy there, and their C and object files.
        kept = [path]
        if path.suffix in BUILT:
            # Any extension may include a header.
            stem = "*" if path.suffix == ".h" else path.stem
            for pattern in (f"{stem}.*.so", f"{stem}.[co]"):
                kept += [*(self.root / "cyproducer").rglob(pattern), *(self.root / "build").rglob(pattern)]
        with tempfile.TemporaryDirectory() as store:
            saved = [(each, Path(store) / str(number)) for number, each in enumerate(kept)]
            for each, copy in saved:
                shutil.copy2(each, copy)
            try:
                return self._run(mutant, path, first, most)
            finally:
                for each, copy in saved:
                    shutil.copy2(copy, each)

    def _run(self, mutant: Mutant, path: Path, first: int, most: int) -> tuple[bool, str]:
        try:
            text = mutant.applied(path.read_text())
            if path.suffix == ".py":
                compile(text, str(path), "exec")
        except (ValueError, SyntaxError) as error:
            return False, str(error)
        path.write_text(text)
        if path.suffix in BUILT and (problem := self.build()):
            return False, problem
        words = ""
        if mutant.tests:
            passed, words = self.test(mutant.tests, mutant.perturbed)
            if passed is None:
                return False, f"no test was run: {words}"
            if not passed:
                return True, words
        for kind in mutant.histories:
            passed, words = self.simulate(kind, first, most)
            if not passed:
                return True, words
        return False, words

    def passes(self, mutants: list[Mutant]) -> tuple[bool, str]:
        """Runs the tests and some histories on the unchanged product. Returns whether they pass."""
        if problem := self.build():
            return False, problem
        tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        passed, words = self.test(tests) if tests else (True, "")
        for kind in HISTORIES:
            if passed and any(kind in mutant.histories for mutant in mutants):
                passed, more = self.simulate(kind, 1, HISTORIES_UNBROKEN)
                words = "; ".join(filter(None, (words, more)))
        return bool(passed), words


def chosen(mutants: list[Mutant], names: list[str]) -> list[Mutant]:
    """The mutants of these names, modules or folders; all of them without any.

    Raises: ``ValueError`` for a name that chooses nothing.
    """

    def fits(mutant: Mutant, name: str) -> bool:
        return name.rstrip("/") in (mutant.name, *map(str, (Path(mutant.path), *Path(mutant.path).parents)))

    for name in names:
        if not any(fits(mutant, name) for mutant in mutants):
            raise ValueError(f"no mutant, module or folder with mutants is called {name}")
    return [mutant for mutant in mutants if not names or any(fits(mutant, name) for name in names)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a mutant, or a module or folder of the product; default: all",
    )
    parser.add_argument("--tree", type=Path, help="a directory for the copy, kept for the next run")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first history")
    parser.add_argument("--most", type=int, default=2000, help="the maximum number of histories of a mutant")
    given = parser.parse_args(arguments)
    try:
        mutants = chosen(parse(TABLE.read_text()), given.names)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory(prefix="mutants") as temporary:
        tree = Tree(given.tree or Path(temporary))
        passed, words = tree.passes(mutants)
        print(f"without a mutant: {words}", flush=True)
        if not passed:
            return 2
        survivors = []
        for mutant in mutants:
            noticed, words = tree.run(mutant, given.first, given.most)
            print(f"{mutant.name:32} {'detected' if noticed else 'SURVIVES'}: {words[:150]}", flush=True)
            if not noticed:
                survivors.append(mutant.name)
    print(
        f"{len(mutants) - len(survivors)} of {len(mutants)} detected"
        + "".join(f", not {s}" for s in survivors)
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
