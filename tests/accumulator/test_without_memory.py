"""Parked records move to their partition while malloc fails, at each possible point."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import cyproducer
from tests.programs import needs_compiler, shared_library

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="replaces glibc's allocator")
@needs_compiler
@pytest.mark.slow
def test_a_failing_allocation_loses_no_parked_record_and_no_callback(tmp_path: Path) -> None:
    source = Path(__file__).with_name("refuse_memory.c")
    library = shared_library(source, tmp_path, f'-DPACKAGE="{Path(cyproducer.__file__).parent}/"')
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
