"""Runs histories on their own: ``python -m tests.simulation SEED --trace``, or ``FIRST --count N``."""

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation.history import history_of
from tests.simulation.simulate import run_history
from tests.simulation.transaction_history import transaction_history_of
from tests.simulation.transaction_simulate import run_transaction_history


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many histories")
    parser.add_argument("--trace", action="store_true", help="print all events")
    parser.add_argument("--most", type=int, default=20, help="stop after this many failures")
    parser.add_argument("--idempotence", choices=("on", "off"), help="override the seed's choice")
    parser.add_argument("--authentication", choices=("on", "off"), help="override the seed's choice")
    parser.add_argument("--transactions", action="store_true", help="histories of transactions")
    parser.add_argument("--tally", action="store_true", help="print how often what happened")
    given = parser.parse_args()
    # Options with secrets in clear text cause warnings.
    logging.getLogger("cyproducer").addHandler(logging.NullHandler())
    authentication = None if given.authentication is None else given.authentication == "on"
    tally: Counter[str] = Counter()
    idempotence = None if given.idempotence is None else given.idempotence == "on"
    began, failures, seed = time.process_time(), 0, given.seed
    trace = print if given.trace else None
    if given.trace and given.transactions:
        print(transaction_history_of(given.seed))
    elif given.trace:
        print(history_of(given.seed, idempotence, authentication))
    for seed in range(given.seed, given.seed + given.count):
        if given.transactions:
            wrong = run_transaction_history(seed, trace, tally)
        else:
            wrong = run_history(seed, idempotence, trace, authentication, tally)
        failures += bool(wrong)
        for sentence in wrong:
            print(f"{seed}: {sentence}")
        if failures >= given.most:
            break
    for what, times in sorted(tally.items()) if given.tally else ():
        print(f"{times:8}  {what}")
    took = time.process_time() - began
    done = seed - given.seed + 1
    print(f"{done} histories, {failures} failed, {took:.1f} s, {took / done * 1000:.2f} ms each")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
