"""What ``send()`` alone costs the thread that calls it, beside an empty Python function.

    python perf/micro/send.py

Nanoseconds of the calling thread's own CPU time per call, loop included: the least of many rounds, since
whatever else a shared machine does only adds. An embedded broker takes the records between the rounds.
"""

import time
from collections.abc import Callable

from cyproducer import KafkaProducer
from cyproducer.testing import EmbeddedBroker

CALLS = 50_000
ROUNDS = 40
VALUE = b"x" * 100
KEY = b"0123456789abcdef"


def cost_ns(calls: Callable[[], None], after: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        calls()
        best = min(best, (time.thread_time_ns() - began) / CALLS)
        after()
    return best


def main() -> None:
    with (
        EmbeddedBroker() as broker,
        KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, buffer_memory=256 << 20, batch_size=65536
        ) as producer,
    ):
        producer.send("t", VALUE).get(10)
        send = producer.send

        def empty(topic: str, value: bytes, key: bytes | None = None) -> None:
            return None

        def nothing() -> None:
            for _ in range(CALLS):
                empty("t", VALUE)

        def positional() -> None:
            for _ in range(CALLS):
                send("t", VALUE)

        def keyword() -> None:
            for _ in range(CALLS):
                send("t", value=VALUE)

        def keyed() -> None:
            for _ in range(CALLS):
                send("t", VALUE, KEY)

        def headers() -> None:
            for _ in range(CALLS):
                send("t", VALUE, headers=[("name", b"value")])

        def flush() -> None:
            producer.flush(60)

        print(f"{'an empty Python function':<40}{cost_ns(nothing, flush):8.0f} ns")
        print(f"{'send(topic, value)':<40}{cost_ns(positional, flush):8.0f} ns")
        print(f"{'send(topic, value=value)':<40}{cost_ns(keyword, flush):8.0f} ns")
        print(f"{'send(topic, value, key of 16 bytes)':<40}{cost_ns(keyed, flush):8.0f} ns")
        print(f"{'send(topic, value, headers=[one])':<40}{cost_ns(headers, flush):8.0f} ns")


if __name__ == "__main__":
    main()
