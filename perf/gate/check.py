"""Compares instructions per record with the stored bounds.

    python perf/gate/check.py            # exits with 1 if a workload needs at least 10% more instructions
    python perf/gate/check.py --update   # stores the counts for this Python: check the change with git diff

If it can't count, because there is no valgrind or no bounds for this Python, prints that and exits with 0.
"""

import argparse
import sys
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from perf.gate import bounds, counting


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="store the counts as the new bounds")
    args = parser.parse_args()
    kind = bounds.kind()
    known = bounds.stored().get(kind)
    problem = counting.unavailable()
    if problem is None and known is None and not args.update:
        problem = f"no bounds are stored for {kind}; `{parser.prog} --update` stores them"
    if problem is not None:
        print(f"skipped: {problem}")
        return 1 if args.update else 0
    try:
        counts = counting.count()
    except counting.CountingError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"instructions per record, {kind}")
    verdicts = bounds.judge(counts.per_record, known or {})
    for verdict in verdicts:
        print(f"  {verdict.line()}")
    for line in counts.skipped:
        print(f"  {line}")
    if args.update:
        bounds.store(counts.per_record, kind)
        print(f"stored in {bounds.FILE}")
        return 0
    if any(verdict.failed for verdict in verdicts):
        print("If this is intended, run: python perf/gate/check.py --update", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
