"""Runs mypy's stubtest on every extension of the installed package: checks that the .pyi matches the module.

stubtest imports the modules it checks, so the sources, which hold no extensions, must not be on sys.path.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ALLOWLIST = Path(__file__).with_name("stubtest_allowlist.txt")
# Every extension type is a disjoint base, but our oldest Python's typing has no decorator to declare that.
OPTIONS = ["--allowlist", str(ALLOWLIST), "--ignore-disjoint-bases"]


def main() -> int:
    stubs = sorted((ROOT / "cyproducer").rglob("*.pyi"))
    modules = [".".join(stub.relative_to(ROOT).with_suffix("").parts) for stub in stubs]
    if not modules:
        print("no extension has a .pyi yet")
        return 0
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", *OPTIONS, *modules]
    # Not in the root: there, mypy would find the unbuilt package instead of the installed one.
    return subprocess.run(command, cwd=ROOT / "tools", check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
