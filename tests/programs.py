"""Programs that tests run in an interpreter of their own, to see how it ends."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run_to_exit(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python source with arguments until it ends by itself; 50 seconds at most."""
    environment = dict(os.environ)
    if "CYPRODUCER_TEST_INSTALLED" not in environment:
        environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        env=environment,
        check=False,
    )
