"""Runs mypy's stubtest on every extension of the installed package: does the .pyi say what the module has?

stubtest imports what it checks, so this must not run with the sources on sys.path: they hold no extensions.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ALLOWLIST = Path(__file__).with_name("stubtest_allowlist.txt")
# Disjoint bases: every extension type is one, and typing's decorator to say so is younger than our Pythons.
OPTIONS = ["--allowlist", str(ALLOWLIST), "--ignore-disjoint-bases"]


def main() -> int:
    stubs = sorted((ROOT / "cyproducer").rglob("*.pyi"))
    modules = [".".join(stub.relative_to(ROOT).with_suffix("").parts) for stub in stubs]
    if not modules:
        print("no extension has a .pyi yet")
        return 0
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", *OPTIONS, *modules]
    # Anywhere but the root, whose unbuilt package mypy would otherwise take for the installed one.
    return subprocess.run(command, cwd=ROOT / "tools", check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
