"""One measured run of one client, in this process: prints a JSON line with what it cost.

Not run by hand: ``end_to_end.py`` starts a process for each run, so that peak memory and CPU are the
client's own. CPU is user and system time of the process (getrusage) from the first measured record to the
last acknowledgement; connecting and one warm-up record come before.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def values(size: int) -> list[bytes]:
    """A few different values, so that a codec has something to do; none of them is built while measuring."""
    return [os.urandom(size // 2) + b"x" * (size - size // 2) for _ in range(64)]


class Measured:
    """Wall and CPU seconds of a ``with`` block."""

    def __enter__(self) -> "Measured":
        self.cpu, self.wall = cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, cpu_s() - self.cpu


def report(measured: Measured, records: int, **more: Any) -> dict[str, Any]:
    return {
        "records": records,
        "records_per_s": records / measured.wall,
        "cpu_s_per_million": measured.cpu / records * 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **more,
    }


def options(given: list[str]) -> dict[str, str]:
    return dict(option.split("=", 1) for option in given)


def cyproducer_futures(args: argparse.Namespace) -> dict[str, Any]:
    """A future for every record, all of them asked at the end."""
    from cyproducer import KafkaProducer

    data = values(args.size)
    with KafkaProducer(bootstrap_servers=args.bootstrap, acks="all", **options(args.option)) as producer:
        producer.send(args.topic, data[0]).get(30)
        send, topic = producer.send, args.topic
        futures: list[Any] = []
        keep = futures.append
        rounds = args.records // len(data)
        with Measured() as measured:
            for _ in range(rounds):
                # Futures are dropped where acknowledged, as a program does that checks them in turn.
                for value in data:
                    keep(send(topic, value))
                if len(futures) >= 100_000:
                    failed = sum(1 for future in futures if future.failed())
                    assert failed == 0
                    futures.clear()
            producer.flush(120)
        assert all(future.succeeded() for future in futures)
        sent = producer.metrics()["producer-metrics"]
    return report(measured, rounds * len(data), batch_bytes=sent["batch-size-avg"])


def cyproducer_columnar(args: argparse.Namespace) -> dict[str, Any]:
    """Tables of 100,000 rows, a future for each; ``--keys`` gives every row a key of its own."""
    import pyarrow as pa

    from cyproducer import KafkaProducer

    rows = min(100_000, args.records)
    data = values(args.size)
    columns = {"value": pa.array([data[i % len(data)] for i in range(rows)], pa.binary())}
    if args.keys:
        columns["key"] = pa.array([b"key-%012d" % i for i in range(rows)], pa.binary())
    table = pa.table(columns)
    key = "key" if args.keys else None
    with KafkaProducer(bootstrap_servers=args.bootstrap, acks="all", **options(args.option)) as producer:
        producer.send(args.topic, data[0]).get(30)
        rounds = args.records // rows
        with Measured() as measured:
            futures = [producer.send_arrow(args.topic, table, key=key) for _ in range(rounds)]
            producer.flush(120)
        assert sum(future.get(0).count for future in futures) == rounds * rows
        sent = producer.metrics()["producer-metrics"]
    return report(measured, rounds * rows, batch_bytes=sent["batch-size-avg"])


def cyproducer_many(args: argparse.Namespace) -> dict[str, Any]:
    """Lists of 10,000 values, a future for each."""
    from cyproducer import KafkaProducer

    some = values(args.size)
    rows = min(10_000, args.records)
    data = [some[i % len(some)] for i in range(rows)]
    with KafkaProducer(bootstrap_servers=args.bootstrap, acks="all", **options(args.option)) as producer:
        producer.send(args.topic, data[0]).get(30)
        rounds = args.records // rows
        with Measured() as measured:
            futures = [producer.send_many(args.topic, data) for _ in range(rounds)]
            producer.flush(120)
        assert sum(future.get(0).count for future in futures) == rounds * rows
    return report(measured, rounds * rows)


def cyproducer_blocking(args: argparse.Namespace) -> dict[str, Any]:
    """``send().get()``, one after the other."""
    from cyproducer import KafkaProducer

    value = values(args.size)[0]
    with KafkaProducer(bootstrap_servers=args.bootstrap, acks="all", **options(args.option)) as producer:
        producer.send(args.topic, value).get(30)
        return round_trips(args, lambda: producer.send(args.topic, value).get(30))


def round_trips(args: argparse.Namespace, once: Callable[[], Any]) -> dict[str, Any]:
    taken = []
    with Measured() as measured:
        for _ in range(args.records):
            began = time.perf_counter()
            once()
            taken.append(time.perf_counter() - began)
    taken.sort()
    return report(
        measured,
        args.records,
        p50_us=taken[len(taken) // 2] * 1e6,
        p99_us=taken[len(taken) * 99 // 100] * 1e6,
    )


def confluent(args: argparse.Namespace) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": args.bootstrap,
            "acks": "all",
            "enable.idempotence": args.idempotence,
            # Room for all: the measure is sending, not the application's handling of BufferError.
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            **options(args.option),
        }
    )


def confluent_no_callback(args: argparse.Namespace) -> dict[str, Any]:
    producer = confluent(args)
    data = values(args.size)
    producer.produce(args.topic, data[0])
    producer.flush()
    produce, topic = producer.produce, args.topic
    rounds = args.records // len(data)
    with Measured() as measured:
        for _ in range(rounds):
            for value in data:
                produce(topic, value)
        producer.flush()
    return report(measured, rounds * len(data))


def confluent_batches(args: argparse.Namespace) -> dict[str, Any]:
    """``produce_batch`` of lists of dicts of 10,000 records, made before."""
    producer = confluent(args)
    some = values(args.size)
    rows = min(10_000, args.records)
    producer.produce(args.topic, some[0])
    producer.flush()
    batch = [{"value": some[i % len(some)]} for i in range(rows)]
    rounds = args.records // rows
    taken = 0
    with Measured() as measured:
        for _ in range(rounds):
            taken += producer.produce_batch(args.topic, batch)
        producer.flush()
    assert taken == rounds * rows
    return report(measured, taken)


def confluent_callback(args: argparse.Namespace) -> dict[str, Any]:
    """A delivery callback for every record: what a future is compared with."""
    producer = confluent(args)
    data = values(args.size)
    producer.produce(args.topic, data[0])
    producer.flush()
    done = 0

    def delivered(error: Any, _message: Any) -> None:
        nonlocal done
        assert error is None
        done += 1

    produce, poll, topic = producer.produce, producer.poll, args.topic
    rounds = args.records // len(data)
    with Measured() as measured:
        for _ in range(rounds):
            for value in data:
                produce(topic, value, on_delivery=delivered)
            poll(0)
        producer.flush()
    assert done == rounds * len(data)
    return report(measured, done)


def confluent_blocking(args: argparse.Namespace) -> dict[str, Any]:
    producer = confluent(args)
    value = values(args.size)[0]

    def once() -> None:
        producer.produce(args.topic, value)
        assert producer.flush(30) == 0

    once()
    return round_trips(args, once)


def kafka_python(args: argparse.Namespace) -> dict[str, Any]:
    from kafka import KafkaProducer  # type: ignore[import-untyped]

    data = values(args.size)
    producer = KafkaProducer(
        bootstrap_servers=args.bootstrap, acks="all", enable_idempotence=args.idempotence
    )
    producer.send(args.topic, data[0]).get(30)
    rounds = args.records // len(data)
    futures = []
    with Measured() as measured:
        for _ in range(rounds):
            for value in data:
                futures.append(producer.send(args.topic, value))
        producer.flush(120)
    assert all(future.succeeded() for future in futures)
    producer.close()
    return report(measured, rounds * len(data))


def aiokafka(args: argparse.Namespace) -> dict[str, Any]:
    from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

    data = values(args.size)

    async def run() -> dict[str, Any]:
        producer = AIOKafkaProducer(
            bootstrap_servers=args.bootstrap, acks="all", enable_idempotence=args.idempotence
        )
        await producer.start()
        await producer.send_and_wait(args.topic, data[0])
        rounds = args.records // len(data)
        futures = []
        with Measured() as measured:
            for _ in range(rounds):
                for value in data:
                    futures.append(await producer.send(args.topic, value))
            await producer.flush()
            await asyncio.gather(*futures)
        await producer.stop()
        return report(measured, rounds * len(data))

    return asyncio.run(run())


CLIENTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "cyproducer": cyproducer_futures,
    "columnar": cyproducer_columnar,
    "many": cyproducer_many,
    "cyproducer-blocking": cyproducer_blocking,
    "confluent": confluent_no_callback,
    "confluent-batches": confluent_batches,
    "confluent-callback": confluent_callback,
    "confluent-blocking": confluent_blocking,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", default="perf")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--keys", action="store_true", help="columnar: a key for every row")
    parser.add_argument("--idempotence", action="store_true")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    json.dump(CLIENTS[args.client](args), sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
