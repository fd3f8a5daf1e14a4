"""On a free-threaded Python the package leaves the GIL off."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import cyproducer

PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(sys._is_gil_enabled())
"""


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL")
def test_no_extension_switches_the_gil_on() -> None:
    root = Path(cyproducer.__file__).resolve().parent
    names = sorted(
        ".".join((root.name, *path.relative_to(root).parent.parts, path.name.partition(".")[0]))
        for path in root.rglob("*.so")
    )
    assert len(names) > 50
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    environment["PYTHONPATH"] = str(root.parent)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
