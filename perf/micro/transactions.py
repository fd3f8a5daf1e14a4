"""Measures the parts of small transactions on a real broker: what the broker takes, and no client can save.

    python perf/micro/transactions.py            # 300 transactions of each kind
    python perf/micro/transactions.py --count 50

One partition, one record at a time. Milliseconds: median (5th to 95th percentile). Needs Java and Maven.

- *acknowledged, no transaction*: ``send().get()`` of an idempotent producer.
- *first of a transaction, after a pause*: the same for the first record, 100 ms after the last commit.
- *first of a transaction, at once*: right after the last commit, whose markers are being written.
- *commit*: ``commit_transaction()`` when all records are acknowledged, which is EndTxn.

The floor of back-to-back transactions is a commit and a first record at once.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer import KafkaProducer
from perf.comparison.brokers import Brokers
from perf.comparison.figures import table

TOPIC = "perf-parts"
WARM_UP = 50
PAUSE_S = 0.1


def taken_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def measure(bootstrap: str, count: int) -> dict[str, list[float]]:
    """Returns milliseconds, by part."""
    found: dict[str, list[float]] = {}

    def note(part: str, work: Callable[[], object]) -> None:
        found.setdefault(part, []).append(taken_ms(work))

    plain = KafkaProducer(bootstrap_servers=bootstrap)
    ours = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="perf-parts")
    with plain, ours:
        ours.init_transactions(60)

        def one(producer: KafkaProducer) -> None:
            producer.send(TOPIC, b"x" * 100, partition=0).get(60)

        for _ in range(WARM_UP + count):
            note("acknowledged, no transaction", lambda: one(plain))
        for _ in range(WARM_UP + count):
            ours.begin_transaction()
            note("first of a transaction, at once", lambda: one(ours))
            note("commit", ours.commit_transaction)
        found = {part: values[WARM_UP:] for part, values in found.items()}
        for _ in range(count // 3):
            time.sleep(PAUSE_S)
            ours.begin_transaction()
            note("first of a transaction, after a pause", lambda: one(ours))
            ours.commit_transaction()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300)
    given = parser.parse_args()
    with Brokers() as brokers:
        found = measure(brokers.bootstrap("real", {TOPIC: 1}), given.count)
    rows = []
    for part, values in found.items():
        cuts = statistics.quantiles(values, n=20)
        rows.append([part, f"{statistics.median(values):.2f} ({cuts[0]:.2f}-{cuts[-1]:.2f})"])
    print(table(["part", "ms"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
