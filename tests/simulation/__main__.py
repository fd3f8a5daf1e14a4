"""Runs histories on their own: ``python -m tests.simulation SEED --trace``, or ``FIRST --count N``."""

import argparse
import sys
import time

from tests.simulation.history import history_of
from tests.simulation.simulate import run_history


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many histories")
    parser.add_argument("--trace", action="store_true", help="print all events")
    parser.add_argument("--most", type=int, default=20, help="stop after this many failures")
    parser.add_argument("--idempotence", choices=("on", "off"), help="override the seed's choice")
    given = parser.parse_args()
    idempotence = None if given.idempotence is None else given.idempotence == "on"
    began, failures, seed = time.process_time(), 0, given.seed
    if given.trace:
        print(history_of(given.seed, idempotence))
    for seed in range(given.seed, given.seed + given.count):
        wrong = run_history(seed, idempotence, print if given.trace else None)
        failures += bool(wrong)
        for sentence in wrong:
            print(f"{seed}: {sentence}")
        if failures >= given.most:
            break
    took = time.process_time() - began
    done = seed - given.seed + 1
    print(f"{done} histories, {failures} failed, {took:.1f} s, {took / done * 1000:.2f} ms each")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
