"""The usual program, once per client: dicts as values, a key, and a callback for each record.

Each ``..._program`` is what a program needs, as the client's documentation writes it; its lines of code are a
figure of the comparison. It gets the dicts, the function that serializes one to bytes, and the callback's
counter, and returns when all records have been reported. Everything is in the measurement but the imports:
constructing, connecting, closing.
"""

import asyncio
import importlib
import inspect
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

from perf.runs.measuring import Args, Figures, Measured, SkippedError, figures

Order = dict[str, Any]
Dumps = Callable[[Order], bytes]
KINDS = 10_000
"""Number of different dicts."""


class Reports:
    """Counts what the callbacks report."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed: list[Any] = []


def own_program(bootstrap: str, topic: str, orders: Iterable[Order], dumps: Dumps, reports: Reports) -> None:
    from cyproducer import KafkaProducer

    def delivered(metadata: Any) -> None:
        reports.delivered += 1

    with KafkaProducer(
        bootstrap_servers=bootstrap, key_serializer=str.encode, value_serializer=dumps
    ) as producer:
        for order in orders:
            producer.send(topic, order, key=order["customer"]).add_callback(delivered)


def confluent_program(
    bootstrap: str, topic: str, orders: Iterable[Order], dumps: Dumps, reports: Reports, module: str
) -> None:
    Producer = importlib.import_module(module).Producer

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            reports.delivered += 1
        else:
            reports.failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for order in orders:
        while True:
            try:
                producer.produce(topic, dumps(order), key=order["customer"], on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()


def kafka_python_program(
    bootstrap: str, topic: str, orders: Iterable[Order], dumps: Dumps, reports: Reports
) -> None:
    from kafka import KafkaProducer  # type: ignore[import-untyped]

    def delivered(metadata: Any) -> None:
        reports.delivered += 1

    with KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        key_serializer=str.encode,
        value_serializer=dumps,
    ) as producer:
        for order in orders:
            producer.send(topic, order, key=order["customer"]).add_callback(delivered)


async def aiokafka_program(
    bootstrap: str, topic: str, orders: Iterable[Order], dumps: Dumps, reports: Reports, module: str
) -> None:
    AIOKafkaProducer = importlib.import_module(module).AIOKafkaProducer

    def delivered(future: Any) -> None:
        if future.exception() is None:
            reports.delivered += 1
        else:
            reports.failed.append(future.exception())

    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        key_serializer=str.encode,
        value_serializer=dumps,
    ) as producer:
        for order in orders:
            future = await producer.send(topic, order, key=order["customer"])
            future.add_done_callback(delivered)


def own(args: Args) -> Figures:
    return measured(args, "cyproducer", own_program)


def confluent(args: Args) -> Figures:
    """``module``: ``cyproducer.confluent`` for the same program with this package's class."""
    module = args.module or "confluent_kafka"
    return measured(args, module, confluent_program, module)


def kafka_python(args: Args) -> Figures:
    return measured(args, "kafka", kafka_python_program)


def aiokafka(args: Args) -> Figures:
    """``module``: ``cyproducer.aio`` for the same program with this package's class."""
    module = args.module or "aiokafka"
    return measured(args, module, lambda *given: asyncio.run(aiokafka_program(*given)), module)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "cyproducer": own_program,
    "confluent_kafka": confluent_program,
    "cyproducer.confluent": confluent_program,
    "kafka": kafka_python_program,
    "aiokafka": aiokafka_program,
    "cyproducer.aio": aiokafka_program,
}


def measured(args: Args, module: str, program: Callable[..., Any], *more: Any) -> Figures:
    importlib.import_module(module)
    dumps = serializer(args.way)
    orders = some_orders()
    reports = Reports()
    rounds = max(1, args.records // KINDS)
    with Measured() as found:
        every = (order for _ in range(rounds) for order in orders)
        program(args.bootstrap, args.topic, every, dumps, reports, *more)
    assert not reports.failed, reports.failed[0]
    assert reports.delivered == rounds * KINDS, reports.delivered
    return figures(found, rounds * KINDS, lines=lines_of(PROGRAMS[module]))


def serializer(way: str) -> Dumps:
    """``json`` or ``orjson``."""
    if way == "json":
        return lambda order: json.dumps(order).encode()
    try:
        dumps: Dumps = importlib.import_module("orjson").dumps
    except ImportError as missing:
        raise SkippedError("orjson isn't installed") from missing
    return dumps


def some_orders() -> list[Order]:
    """Returns the dicts, the same ones each time: about 130 bytes each as JSON."""
    rng = random.Random(1)
    return [
        {
            "id": number,
            "customer": f"customer-{rng.randrange(5000)}",
            "status": rng.choice(["paid", "open", "sent"]),
            "total": round(rng.random() * 500, 2),
            "items": [{"sku": f"sku-{rng.randrange(900)}", "count": rng.randrange(1, 5)}],
        }
        for number in range(KINDS)
    ]


def lines_of(program: Callable[..., Any]) -> int:
    """Returns the lines of a program's body, without blank ones."""
    source = inspect.getsource(program)
    _, _, body = source.partition("-> None:\n")
    return sum(bool(line.strip()) for line in body.splitlines())
