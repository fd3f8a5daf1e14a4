"""Makes the benchmark tools, which are not part of the package, importable in these tests."""

import sys
from pathlib import Path

# At the end: an installed package comes before the sources, which are in the same directory as these tools.
sys.path.append(str(Path(__file__).resolve().parents[2]))
