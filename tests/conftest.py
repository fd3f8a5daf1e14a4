"""Settings for all tests."""

import signal
import sys
from pathlib import Path

from hypothesis import settings

# Makes `tools`, `perf` and `demo_spark` importable. At the end: an installed package comes before the
# sources, which are in the same directory.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# A shell without job control starts background programs with Ctrl-C ignored, and Python keeps it ignored.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No time limit per example: the first one imports what it needs, and other programs use the machine too.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
