"""Measures what pushing metrics to a broker costs the process (KIP-714).

    python perf/micro/telemetry.py               # 10 and 1,000 topics
    python perf/micro/telemetry.py --topics 100 --codec gzip

A producer that sends no records pushes all metrics of its topics to an embedded broker in a process of its
own. Prints the CPU time of the producer's process per push (getrusage, user and system).
"""

import argparse
import resource
import statistics
import sys
import threading
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer import KafkaProducer
from cyproducer.clients.telemetry_client import Collected
from cyproducer.control.telemetry import Subscription
from cyproducer.testing import EmbeddedBroker

INTERVAL_MS = 20
WARM_UP = 3
"""The first pushes import modules."""
PATIENCE_S = 600


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(topics: int, pushes: int, codec: str) -> tuple[float, int]:
    """Returns the CPU seconds of a push, and its bytes before compression."""
    names = [f"topic-{number}" for number in range(topics)]
    with EmbeddedBroker(process=True, topics=dict.fromkeys(names, 1)) as broker:
        broker.subscribe_telemetry("*", push_interval_ms=INTERVAL_MS, compression=[codec], max_bytes=1 << 24)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        telemetry = producer._runtime.client.telemetry
        assert telemetry is not None
        collect = telemetry.collect
        assert collect is not None
        for name in names:
            producer.send(name, b"x" * 100)
        producer.flush()
        times: list[float] = []
        done = threading.Event()

        def noted(subscription: Subscription) -> Collected:
            times.append(cpu_s())
            if len(times) > WARM_UP + pushes:
                done.set()
            return collect(subscription)

        telemetry.collect = noted
        if not done.wait(PATIENCE_S):
            raise SystemExit(f"only {len(times)} pushes came within {PATIENCE_S} s")
        producer.close()
        return (times[WARM_UP + pushes] - times[WARM_UP]) / pushes, len(broker.telemetry()[-1].metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--pushes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--codec", default="zstd")
    given = parser.parse_args()
    for topics in given.topics:
        found = [measure(topics, given.pushes, given.codec) for _ in range(given.rounds)]
        times = [seconds * 1e3 for seconds, _ in found]
        print(
            f"{topics} topics: {found[0][1]} bytes, {statistics.median(times):.2f} ms of CPU per push"
            f" ({min(times):.2f}-{max(times):.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
