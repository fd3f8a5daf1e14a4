"""Parked records move to their partition while malloc fails, at each possible point."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cyproducer

ROOT = Path(__file__).parents[2]
PACKAGE = Path(cyproducer.__file__).parent
SOURCE = Path(__file__).with_name("refuse_memory.c")
COMPILER = shutil.which("cc")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="replaces glibc's allocator")
@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.slow
def test_a_failing_allocation_loses_no_parked_record_and_no_callback(tmp_path: Path) -> None:
    assert COMPILER is not None
    library = tmp_path / "refuse_memory.so"
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-O1", f'-DPACKAGE="{PACKAGE}/"', "-o", library, SOURCE, "-ldl"],
        check=True,
    )
    # Appended to the path: an installed package takes precedence over the sources next to these tests.
    program = (
        f"import sys; sys.path.append({str(ROOT)!r}); "
        "from tests.accumulator.without_memory import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(library)},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing is lost\n", "")
