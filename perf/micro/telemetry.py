"""Measures what pushing metrics to a broker costs the producer's process (KIP-714).

    python perf/micro/telemetry.py               # a push of 10 and of 1,000 topics
    python perf/micro/telemetry.py --topics 100 --codec gzip
    python perf/micro/telemetry.py --sending     # records with and without a subscription

The embedded broker runs in a process of its own. CPU time is getrusage's of this process, user and system:
median (least to greatest). With ``--sending``, the pairs alternate which of the two comes first.
"""

import argparse
import statistics
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer import KafkaProducer
from cyproducer.clients.telemetry_client import Collected
from cyproducer.testing import EmbeddedBroker
from cyproducer.wire.telemetry_api import GetTelemetrySubscriptionsResponse
from perf.runs.measuring import cpu_s

INTERVAL_MS = 20
WARM_UP = 3
"""The first pushes import modules."""
WARM_UP_RECORDS = 20_000
VALUE = b"x" * 100
PATIENCE_S = 600


def of_push(topics: int, pushes: int, codec: str) -> tuple[float, int]:
    """Returns the CPU seconds of a push, and its bytes before compression. The producer sends no records."""
    names = [f"topic-{number}" for number in range(topics)]
    with EmbeddedBroker(process=True, topics=dict.fromkeys(names, 1)) as broker:
        broker.subscribe_telemetry("*", push_interval_ms=INTERVAL_MS, compression=[codec], max_bytes=1 << 24)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        telemetry = producer._runtime.client.telemetry
        assert telemetry is not None
        collect = telemetry.collect
        assert collect is not None
        for name in names:
            producer.send(name, VALUE)
        producer.flush()
        times: list[float] = []
        done = threading.Event()

        def noted(subscription: GetTelemetrySubscriptionsResponse) -> Collected:
            times.append(cpu_s())
            if len(times) > WARM_UP + pushes:
                done.set()
            return collect(subscription)

        telemetry.collect = noted
        if not done.wait(PATIENCE_S):
            raise SystemExit(f"only {len(times)} pushes came within {PATIENCE_S} s")
        producer.close()
        return (times[WARM_UP + pushes] - times[WARM_UP]) / pushes, len(broker.telemetry()[-1].metrics)


def of_record(broker: EmbeddedBroker, records: int, pushes: bool) -> float:
    """Returns the CPU seconds of a record, with or without a subscription to metrics."""
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_metrics_push=pushes) as producer:
        if pushes:
            producer.client_instance_id()
        for _ in range(WARM_UP_RECORDS):
            producer.send("t", VALUE)
        producer.flush()
        began_s = cpu_s()
        for _ in range(records):
            producer.send("t", VALUE)
        producer.flush()
        return (cpu_s() - began_s) / records


def shown(values: Sequence[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--pushes", type=int, default=50)
    parser.add_argument("--codec", default="zstd")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sending", action="store_true")
    parser.add_argument("--records", type=int, default=500_000)
    given = parser.parse_args()
    if not given.sending:
        for topics in given.topics:
            found = [of_push(topics, given.pushes, given.codec) for _ in range(given.rounds)]
            times = [seconds * 1e3 for seconds, _ in found]
            print(f"{topics} topics, {found[0][1]} bytes: {shown(times)} ms of CPU per push", flush=True)
        return
    pairs = []
    for number in range(given.rounds):
        order = (False, True) if number % 2 else (True, False)
        with EmbeddedBroker(process=True, topics={"t": 6}) as broker:
            # With the interval that brokers have by default, so that the pushes themselves are not measured.
            broker.subscribe_telemetry("*")
            pairs.append({pushes: of_record(broker, given.records, pushes) * 1e9 for pushes in order})
        print(f"without {pairs[-1][False]:.0f}, with {pairs[-1][True]:.0f} ns of CPU per record", flush=True)
    print(f"with/without: {shown([pair[True] / pair[False] for pair in pairs], 3)}")


if __name__ == "__main__":
    main()
