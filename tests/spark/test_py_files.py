"""Tests the error for a package in a zip file, which is how Spark's ``--py-files`` sends it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cyproducer
from tests.programs import program_environment

PACKAGE = Path(cyproducer.__file__).parent


@pytest.mark.slow
def test_an_import_from_a_zip_file_says_what_to_do(tmp_path: Path) -> None:
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in PACKAGE.rglob("*"):
            if path.suffix in (".py", ".so", ".pyd"):
                archive.write(path, path.relative_to(PACKAGE.parent))
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import cyproducer", str(packed)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=program_environment(),
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    said = ran.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: {packed / 'cyproducer'} is in a zip file")
    assert "not --py-files or addPyFile(), but install cyproducer on every machine" in said
