"""Measures what a million records cost in one transaction, the client and the broker.

    python perf/micro/large_transactions.py            # 18 rounds, half a minute
    python perf/micro/large_transactions.py --rounds 5

Columns of a 16-byte key and a 100-byte value, in calls of 10,000 rows, as the Spark sink sends them. Median
(min-max). The kinds take turns. CPU and minor page faults are from ``/proc``; the broker is on the same
machine. Needs Java and Maven.

- *kept*: no transaction, one producer for all rounds, as the tasks of a worker have with at-least-once.
- *new*: no transaction, a producer for each round.
- *transaction*: a transactional producer for each round, up to ``prepare_transaction()``, as each task has
  with exactly-once.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer import KafkaProducer
from perf.comparison.brokers import AS_INSTALLED
from perf.comparison.figures import Spread, table
from tools.harness.kafka_cluster import KafkaCluster

TOPIC = "perf-large"
ROWS, CALLS = 10_000, 100
WARM_UP = 6
TICKS = os.sysconf("SC_CLK_TCK")


def used(pid: int) -> tuple[float, float, int]:
    """Returns the user seconds, system seconds and minor faults of a process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS, int(fields[7])


def measure(bootstrap: str, broker: int, rounds: int) -> dict[str, list[list[float]]]:
    """Returns for each kind and round: seconds, then ``used`` of this process and of the broker, a pid."""
    rows = pa.record_batch(
        [[b"%016d" % n for n in range(ROWS)], [(b"%d:" % n).ljust(100, b"x") for n in range(ROWS)]],
        names=["key", "value"],
    )

    def new(**more: Any) -> KafkaProducer:
        return KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, batch_size=1 << 19, **more)

    def send(producer: KafkaProducer) -> None:
        for _ in range(CALLS):
            producer.send_arrow(TOPIC, rows, key="key", value="value")
        producer.flush()

    def in_transaction(producer: KafkaProducer) -> None:
        producer.init_transactions()
        producer.begin_transaction()
        send(producer)
        producer.prepare_transaction()

    found: dict[str, list[list[float]]] = {"kept": [], "new": [], "transaction": []}

    def note(kind: str, work: Callable[[], object]) -> None:
        before, began = (*used(os.getpid()), *used(broker)), time.perf_counter()
        work()
        wall = time.perf_counter() - began
        after = (*used(os.getpid()), *used(broker))
        found[kind].append([wall, *(b - a for a, b in zip(before, after, strict=True))])

    with new() as kept:
        for number in range(WARM_UP + rounds):
            for kind in list(found)[:: 1 if number % 2 else -1]:
                if kind == "kept":
                    note(kind, partial(send, kept))
                elif kind == "new":
                    with new() as producer:
                        note(kind, partial(send, producer))
                else:
                    with new(transactional_id="perf-large") as producer:
                        note(kind, partial(in_transaction, producer))
                        producer.commit_transaction()
    return {kind: values[WARM_UP:] for kind, values in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=18)
    given = parser.parse_args()
    with KafkaCluster(jvm_options=AS_INSTALLED) as kafka:
        kafka.create_topic(TOPIC, 3)
        broker = kafka.pid(kafka.node_ids[0])
        assert broker is not None
        found = measure(kafka.bootstrap_servers, broker, given.rounds)
    rows = []
    for kind, rounds in found.items():
        spreads = [Spread.of(list(values)) for values in zip(*rounds, strict=True)]
        rows.append([kind, *(spread.text() if spread else "-" for spread in spreads)])
    head = ["", "s", "client: user s", "system s", "page faults", "broker: user s", "system s", "page faults"]
    print(table(head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
