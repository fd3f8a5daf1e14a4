"""Measures the cost of ``send()`` for the calling thread, compared with an empty Python function.

    python perf/micro/send.py

Prints nanoseconds of the calling thread's CPU time per call, loop included: the minimum over many rounds,
because other load on the machine can only add. The null broker receives the records between the rounds.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer import KafkaProducer
from perf.null_broker import NullBroker

CALLS = 50_000
ROUNDS = 40
TOPIC = "perf"
VALUE = b"x" * 100
KEY = b"0123456789abcdef"


def cost_ns(calls: Callable[[], None], after: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time_ns()
        calls()
        best = min(best, (time.thread_time_ns() - began) / CALLS)
        after()
    return best


def measure(bootstrap: str, rounds: int) -> dict[str, float]:
    """Returns nanoseconds per call, by kind of call. ``empty_ns`` is a Python function that does nothing."""
    with KafkaProducer(bootstrap_servers=bootstrap, buffer_memory=256 << 20, batch_size=65536) as producer:
        producer.send(TOPIC, VALUE).get(10)
        send = producer.send

        def empty(topic: str, value: bytes, key: bytes | None = None) -> None:
            return None

        def nothing() -> None:
            for _ in range(CALLS):
                empty(TOPIC, VALUE)

        def positional() -> None:
            for _ in range(CALLS):
                send(TOPIC, VALUE)

        def keyword() -> None:
            for _ in range(CALLS):
                send(TOPIC, value=VALUE)

        def keyed() -> None:
            for _ in range(CALLS):
                send(TOPIC, VALUE, KEY)

        def headers() -> None:
            for _ in range(CALLS):
                send(TOPIC, VALUE, headers=[("name", b"value")])

        ways = {
            "empty_ns": nothing,
            "positional_ns": positional,
            "keyword_ns": keyword,
            "keyed_ns": keyed,
            "headers_ns": headers,
        }
        return {name: cost_ns(calls, lambda: producer.flush(60), rounds) for name, calls in ways.items()}


def main() -> None:
    with NullBroker(partitions=3) as broker:
        found = measure(broker.bootstrap_servers, ROUNDS)
    for name, what in (
        ("empty_ns", "an empty Python function"),
        ("positional_ns", "send(topic, value)"),
        ("keyword_ns", "send(topic, value=value)"),
        ("keyed_ns", "send(topic, value, key of 16 bytes)"),
        ("headers_ns", "send(topic, value, headers=[one])"),
    ):
        print(f"{what:<40}{found[name]:8.0f} ns")


if __name__ == "__main__":
    main()
