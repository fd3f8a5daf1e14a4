"""Checks that each way of sending keeps no memory: 10 million records each, to the null broker.

    python perf/micro/leaks.py                       # all ways of runs/ways.py, five minutes
    python perf/micro/leaks.py --records 1000000     # a short run

Looks ten times what Python and malloc have in use, after a garbage collection. Prints for each way the size
at the first look, and the median and the largest growth between two looks. A leak grows each time, and one of
48 bytes per batch by 48 kB per million records; the pool of batch buffers and free lists grow only when more
of them are in use at once than ever before. Exits with 1 if the median is above a byte per hundred records.
Needs glibc 2.33 or later.
"""

import argparse
import statistics
import sys
from itertools import pairwise
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from perf.footprint import Held
from perf.null_broker import NullBroker
from perf.runs.measuring import Args
from perf.runs.ways import ROUND, WAYS

LOOKS = 10


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_000_000, help="records per way")
    given = parser.parse_args()
    rounds = max(1, given.records // ROUND // LOOKS)
    leaks = False
    with NullBroker() as broker:
        for name, prepare in WAYS.items():
            looks = []
            with prepare(Args(broker.bootstrap_servers)) as way:
                for _ in range(LOOKS):
                    for _ in range(rounds):
                        way.send()
                    looks.append(Held.now())
            growth = [after.bytes - before.bytes for before, after in pairwise(looks)]
            leaked = statistics.median(growth) > rounds * ROUND / 100
            leaks |= leaked
            print(
                f"{name:48} {looks[0].blocks:9,} blocks {looks[-1].blocks - looks[0].blocks:+7,}, "
                f"{looks[0].bytes / 1e6:6.2f} MB {statistics.median(growth):+9,.0f} ({max(growth):+,})"
                f"{'  LEAK' if leaked else ''}",
                flush=True,
            )
    return 1 if leaks else 0


if __name__ == "__main__":
    raise SystemExit(main())
