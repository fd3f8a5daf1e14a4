"""What holds for the tests of the measuring tools, which are no part of the package."""

import sys
from pathlib import Path

# At the end: an installed package comes before the sources, which stand beside these tools.
sys.path.append(str(Path(__file__).resolve().parents[2]))
