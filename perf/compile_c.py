"""Compiles the C files of these tools when they have changed. Safe to use from several processes at once.

Owns the choice of the compiler and the cache of its output (``.cache/`` at the root). Does not own the
sources.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache"


class CompileError(Exception):
    """There is no compiler, or it failed. The message has its output."""


def compiler() -> list[str] | None:
    """Returns the command of the C compiler: ``$CC``, or the system's. None: there is none."""
    given = shlex.split(os.environ.get("CC", ""))
    if given:
        return given if shutil.which(given[0]) else None
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def compiled(source: Path, *, shared: bool = False) -> Path:
    """Returns the program, or the shared library for ctypes, built from one C file. Compiles it if it is not
    cached.

    Raises:
        CompileError: there is no compiler, or it failed.
    """
    command = compiler()
    if command is None:
        raise CompileError(f"compiling {source} needs cc, gcc, clang, or one named by $CC")
    command += ["-std=gnu11", "-O2", "-Wall", "-Wextra", *(["-shared", "-fPIC"] if shared else [])]
    text = source.read_bytes()
    digest = hashlib.sha256(text + repr(command).encode()).hexdigest()[:16]
    made = CACHE / f"{source.stem}-{digest}{'.so' if shared else ''}"
    if not made.exists():
        CACHE.mkdir(exist_ok=True)
        # Compiled in a temporary directory and renamed, so that concurrent processes don't interfere.
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            out = Path(directory) / "made"
            done = subprocess.run([*command, "-o", str(out), str(source)], capture_output=True, text=True)
            if done.returncode:
                raise CompileError(f"compiling {source} failed:\n{done.stderr}")
            out.rename(made)
    return made
