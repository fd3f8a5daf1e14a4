"""Compiles the C files of these tools where they changed. Any process, several at once.

Owns: which compiler, and the cache of what was made (``.cache/`` at the root). Does not own: what is
compiled.
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
    """There is no compiler, or it refuses; the message has what it said."""


def compiler() -> list[str] | None:
    """The command of the C compiler: ``$CC``, or the system's; None where there is none."""
    given = shlex.split(os.environ.get("CC", ""))
    if given:
        return given if shutil.which(given[0]) else None
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def compiled(source: Path, *, shared: bool = False) -> Path:
    """The program made of one C file, or the library that ctypes can load; compiled where it isn't there yet.

    Raises:
        CompileError: see there.
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
        # Compiled beside it and renamed, so that two who compile at once don't meet.
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            out = Path(directory) / "made"
            done = subprocess.run([*command, "-o", str(out), str(source)], capture_output=True, text=True)
            if done.returncode:
                raise CompileError(f"compiling {source} failed:\n{done.stderr}")
            out.rename(made)
    return made
