"""This producer and its peers against one broker, in turn, each run in a process of its own.

    python perf/end_to_end.py                                # starts a real Kafka (Java and Maven needed)
    python perf/end_to_end.py --bootstrap-server HOST:PORT   # uses yours

Prints medians over the rounds with their least and greatest value, and for each peer the ratio to
cyproducer of the same round (median over rounds): the machine's own drift cancels out in a pair that runs
back to back. The peers come from ``pip install confluent-kafka kafka-python aiokafka``; those that are
missing are left out.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# (client, module it needs, records as a share of --records: the slow ones get fewer)
STREAMING = [
    ("cyproducer", "cyproducer", 1.0),
    ("confluent", "confluent_kafka", 1.0),
    ("confluent-callback", "confluent_kafka", 1.0),
    ("aiokafka", "aiokafka", 0.05),
    ("kafka-python", "kafka", 0.02),
]
BLOCKING = [
    ("cyproducer-blocking", "cyproducer", 1.0),
    ("confluent-blocking", "confluent_kafka", 1.0),
]


@contextmanager
def broker(given: str | None) -> Iterator[str]:
    """The bootstrap address to use; a real Kafka of three-partition topics where none is given."""
    if given is not None:
        yield given
        return
    sys.path.insert(0, str(HERE.parent))
    from tests.integration.kafka_cluster import KafkaCluster

    with KafkaCluster(nodes=1) as cluster:
        yield cluster.bootstrap_servers


def run(client: str, bootstrap: str, records: int, args: argparse.Namespace) -> dict[str, Any]:
    command = [
        *(sys.executable, "-P", str(HERE / "clients.py"), client, "--bootstrap", bootstrap),
        *("--records", str(records), "--size", str(args.size), "--topic", args.topic),
    ]
    if args.idempotence:
        command.append("--idempotence")
    given = {"cyproducer": args.option, "confluent": args.peer_option}
    for option in given.get(client.split("-")[0], []):
        command += ["--option", option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{client} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def spread(results: list[dict[str, Any]], name: str, scale: float = 1.0, digits: int = 2) -> str:
    found = sorted(result[name] * scale for result in results)
    middle = statistics.median(found)
    return f"{middle:.{digits}f} ({found[0]:.{digits}f}-{found[-1]:.{digits}f})"


def ratio(peer: list[dict[str, Any]], own: list[dict[str, Any]], name: str) -> str:
    return f"{statistics.median(p[name] / o[name] for p, o in zip(peer, own, strict=True)):.2f}"


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    print(f"\n{title}\n")
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


def measure(
    clients: list[tuple[str, str, float]], bootstrap: str, records: int, args: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    present = [c for c in clients if importlib.util.find_spec(c[1]) and c[0] not in args.without]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in present}
    began = time.monotonic()
    for number in range(args.rounds):
        for name, _, share in present:
            print(
                f"round {number + 1}/{args.rounds}: {name:<20} {time.monotonic() - began:5.0f} s",
                file=sys.stderr,
            )
            results[name].append(run(name, bootstrap, max(1000, int(records * share)), args))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--topic", default="perf")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--round-trips", type=int, default=5_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idempotence", action="store_true", help="for the peers")
    parser.add_argument("--without", action="append", default=[], metavar="CLIENT")
    parser.add_argument("--option", action="append", default=[], metavar="N=V", help="cyproducer's")
    parser.add_argument(
        "--peer-option", action="append", default=[], metavar="NAME=VALUE", help="confluent's"
    )
    args = parser.parse_args()
    with broker(args.bootstrap_server) as bootstrap:
        streaming = measure(STREAMING, bootstrap, args.records, args)
        blocking = measure(BLOCKING, bootstrap, args.round_trips, args)
    own = streaming["cyproducer"]
    table(
        f"{args.records} records of {args.size} B, acks=all, median of {args.rounds} rounds (least-greatest)",
        [
            "client",
            "records/s, M",
            "CPU s per million",
            "peak MB",
            "rate / cyproducer's",
            "CPU / cyproducer's",
        ],
        [
            [
                name,
                spread(found, "records_per_s", 1e-6),
                spread(found, "cpu_s_per_million"),
                spread(found, "peak_mb", 1.0, 0),
                ratio(found, own, "records_per_s"),
                ratio(found, own, "cpu_s_per_million"),
            ]
            for name, found in streaming.items()
        ],
    )
    own = blocking["cyproducer-blocking"]
    table(
        f"{args.round_trips} blocking sends, one after the other",
        ["client", "round trips/s", "p50 us", "p99 us", "rate / cyproducer's"],
        [
            [
                name,
                spread(found, "records_per_s", 1.0, 0),
                spread(found, "p50_us", 1.0, 0),
                spread(found, "p99_us", 1.0, 0),
                ratio(found, own, "records_per_s"),
            ]
            for name, found in blocking.items()
        ],
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
