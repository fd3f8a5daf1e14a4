"""Runs one client once in this process, and prints the measurements as a JSON line.

Not run by hand: ``compare.py`` starts one process per run, so that memory and CPU are the client's own. CPU
is the process's user and system time (getrusage) from the first measured record to the last acknowledgement.
Connecting and one warm-up record come before. The memory peak is that of the whole process.
"""

import argparse
import json
import sys
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from perf.footprint import peak_bytes
from perf.runs.measuring import Args, RunFunction, SkippedError


def run_named(name: str) -> RunFunction:
    """Returns a run function by name: ``peers.confluent`` is ``confluent`` in ``runs/peers.py``."""
    module, _, function = name.partition(".")
    # Imported by name, so that no other client's modules count towards this one.
    found: RunFunction = getattr(__import__(f"perf.runs.{module}", fromlist=[function]), function)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="MODULE.FUNCTION in perf/runs")
    parser.add_argument("args", type=json.loads, help="JSON: the run's arguments (perf/runs/measuring.Args)")
    given = parser.parse_args()
    try:
        found = run_named(given.run)(Args(**given.args))
    except SkippedError as reason:
        found = {"skipped": str(reason)}
    else:
        found.setdefault("peak_mb", peak_bytes() / 1e6)
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
