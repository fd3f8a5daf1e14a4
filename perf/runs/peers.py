"""The runs of the other clients: confluent-kafka, kafka-python, aiokafka.

With the shared settings each uses acks=all and idempotence. With ``defaults`` nothing is set. ``module`` is
``cyproducer.confluent`` or ``cyproducer.aio`` where this package's class with the same API does the task.
"""

import asyncio
import importlib
import threading
from dataclasses import replace
from functools import partial
from typing import Any

from perf.runs.measuring import (
    FLUSH_S,
    WARM_UP_S,
    Args,
    Figures,
    Measured,
    SkippedError,
    far_bound,
    figures,
    json_values,
    latencies,
    round_trips,
    under_pressure,
    values,
)

BATCH = 10_000
"""Number of dicts per call of ``produce_batch``."""
FULL_QUEUE_S = 0.001
GATHERED = 1_000
"""Number of futures per call of ``asyncio.gather``."""


def confluent_producer(args: Args, **more: Any) -> Any:
    Producer = importlib.import_module(args.module or "confluent_kafka").Producer
    alike: dict[str, Any] = {
        "acks": "all",
        "enable.idempotence": True,
        # Space for all records: measures sending, not the application's handling of BufferError.
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 2_000_000,
    }
    given = {} if args.defaults else alike
    return Producer({"bootstrap.servers": args.bootstrap, **given, **more, **args.options})


def patient(producer: Any, produce: Any) -> Any:
    """Returns a ``produce`` that waits while the queue is full, as a program with default settings would."""

    def wait_and_produce(*positional: Any, **named: Any) -> Any:
        while True:
            try:
                return produce(*positional, **named)
            except BufferError:
                producer.poll(FULL_QUEUE_S)

    return wait_and_produce


def confluent_ready(args: Args, data: list[bytes], **more: Any) -> tuple[Any, Any]:
    """Returns a producer that has sent a record, and its function to call."""
    producer = confluent_producer(args, **more)
    producer.produce(args.topic, data[0])
    producer.flush(WARM_UP_S)
    return producer, patient(producer, producer.produce) if args.defaults else producer.produce


def confluent(args: Args) -> Figures:
    """Sends without callbacks, so without reports of the outcome."""
    data = values(args.size)
    producer, produce = confluent_ready(args, data)
    topic, rounds = args.topic, max(1, args.records // len(data))
    with Measured() as measured:
        for _ in range(rounds):
            for value in data:
                produce(topic, value)
        producer.flush(FLUSH_S)
    return figures(measured, rounds * len(data))


def confluent_callback(args: Args) -> Figures:
    """Sends with a delivery callback for every record, to compare with a future for every record."""
    data = values(args.size)
    producer, produce = confluent_ready(args, data)
    done = 0

    def delivered(error: Any, _message: Any) -> None:
        nonlocal done
        assert error is None, error
        done += 1

    poll, topic, rounds = producer.poll, args.topic, max(1, args.records // len(data))
    with Measured() as measured:
        for _ in range(rounds):
            for value in data:
                produce(topic, value, on_delivery=delivered)
            poll(0)
        producer.flush(FLUSH_S)
    assert done == rounds * len(data)
    return figures(measured, done)


def confluent_blocking(args: Args) -> Figures:
    """Calls ``produce`` and ``flush`` in turn, with linger 0."""
    value = values(args.size)[0]
    producer, _ = confluent_ready(args, [value], **{"linger.ms": 0})

    def once() -> None:
        producer.produce(args.topic, value)
        assert producer.flush(WARM_UP_S) == 0

    return round_trips(args.records, once)


def confluent_batch(args: Args) -> Figures:
    """Calls ``produce_batch`` with dicts."""
    producer, _ = confluent_ready(args, values(args.size))
    if not hasattr(producer, "produce_batch"):
        raise SkippedError("this confluent-kafka has no produce_batch()")
    data = values(args.size)
    calls = max(1, args.records // BATCH)
    # Built before the measurement, as the columns are for this producer.
    messages = [{"value": data[number % len(data)]} for number in range(BATCH)]
    with Measured() as measured:
        for _ in range(calls):
            assert producer.produce_batch(args.topic, messages) == BATCH
            producer.poll(0)
        producer.flush(FLUSH_S)
    return figures(measured, calls * BATCH)


def confluent_pressure(args: Args) -> Figures:
    """Like ``own.pressure``, with this client's default queue limits. Polls while the queue is full."""
    from perf.null_broker import NullBroker
    from perf.runs.own import ROUND_TRIP_MS

    data = json_values(args.size, 1000)
    with NullBroker(1, partitions=1) as broker:
        there = replace(args, bootstrap=broker.bootstrap_servers, defaults=True)
        producer, produce = confluent_ready(there, data, **{"linger.ms": 5, "enable.idempotence": True})
        broker.faults(latency_ms=ROUND_TRIP_MS)

        def send() -> int:
            for value in data[:100]:
                produce(args.topic, value)
            return 100

        return under_pressure(args, send, lambda: producer.flush(FLUSH_S))


def confluent_far(args: Args) -> Figures:
    """Like ``own.far``, with this client's default queue limits. Polls while the queue is full."""
    from perf.null_broker import NullBroker

    data = values(args.size)
    with NullBroker(1, partitions=args.partitions) as broker:
        broker.faults(latency_ms=args.answer_ms)
        there = replace(args, bootstrap=broker.bootstrap_servers, defaults=True)
        producer, produce = confluent_ready(there, data, **{"enable.idempotence": True})

        def send() -> int:
            for value in data:
                produce(args.topic, value)
            return len(data)

        found = under_pressure(args, send, lambda: producer.flush(FLUSH_S))
    return {**found, "of_bound": found["last_quarter"] / far_bound(args)}


def confluent_latency_polling(args: Args) -> Figures:
    """Like ``confluent_latency``, but the sending loop polls while it waits for the next record to be due."""
    producer, send = confluent_without_linger(args)
    return latencies(args, send, lambda called: send(on_delivery=called), producer.flush, producer.poll)


def confluent_latency(args: Args) -> Figures:
    """Measures latency with callbacks. Linger is 0 unless set."""
    producer, send = confluent_without_linger(args)
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            producer.poll(0.1)

    poller = threading.Thread(target=poll)
    poller.start()
    found = latencies(args, send, lambda called: send(on_delivery=called), producer.flush)
    over.set()
    poller.join()
    return found


def confluent_without_linger(args: Args) -> tuple[Any, Any]:
    """Returns a producer, and its function that sends a value."""
    value = values(args.size)[0]
    more = {} if args.defaults else {"linger.ms": 0}
    producer, produce = confluent_ready(args, [value], **more)
    return producer, partial(produce, args.topic, value)


def confluent_first_ack(args: Args) -> Figures:
    """From the constructor to the first acknowledged record."""
    import confluent_kafka  # noqa: F401  # Not counted.

    with Measured() as measured:
        producer = confluent_producer(args, **{"linger.ms": 0})
        producer.produce(args.topic, b"value")
        assert producer.flush(WARM_UP_S) == 0
    return {"first_ack_ms": measured.wall * 1e3, "first_ack_cpu_ms": measured.cpu * 1e3}


def kafka_python_producer(args: Args) -> Any:
    from kafka import KafkaProducer  # type: ignore[import-untyped]

    given = {} if args.defaults else {"acks": "all", "enable_idempotence": True}
    return KafkaProducer(bootstrap_servers=args.bootstrap, **given)


def kafka_python(args: Args) -> Figures:
    """Sends with a future for every record."""
    data = values(args.size)
    producer = kafka_python_producer(args)
    producer.send(args.topic, data[0]).get(WARM_UP_S)
    rounds = max(1, args.records // len(data))
    futures = []
    with Measured() as measured:
        for _ in range(rounds):
            for value in data:
                futures.append(producer.send(args.topic, value))
        producer.flush(FLUSH_S)
    assert all(future.succeeded() for future in futures)
    producer.close()
    return figures(measured, rounds * len(data))


def kafka_python_first_ack(args: Args) -> Figures:
    """From the constructor to the first acknowledged record."""
    import kafka  # noqa: F401  # Not counted.

    with Measured() as measured:
        producer = kafka_python_producer(args)
        producer.send(args.topic, b"value").get(WARM_UP_S)
    producer.close()
    return {"first_ack_ms": measured.wall * 1e3, "first_ack_cpu_ms": measured.cpu * 1e3}


def aiokafka_producer(args: Args) -> Any:
    producer = importlib.import_module(args.module or "aiokafka").AIOKafkaProducer
    given = {} if args.defaults else {"acks": "all", "enable_idempotence": True}
    return producer(bootstrap_servers=args.bootstrap, **given, **args.options)


def aiokafka(args: Args) -> Figures:
    """Sends with a future for every record, in an event loop."""
    data = values(args.size)

    async def run() -> Figures:
        producer = aiokafka_producer(args)
        await producer.start()
        await producer.send_and_wait(args.topic, data[0])
        rounds = max(1, args.records // len(data))
        futures = []
        with Measured() as measured:
            for _ in range(rounds):
                for value in data:
                    futures.append(await producer.send(args.topic, value))
            await producer.flush()
            await asyncio.gather(*futures)
        await producer.stop()
        return figures(measured, rounds * len(data))

    return asyncio.run(run())


def aiokafka_gather(args: Args) -> Figures:
    """Awaits a thousand ``send()``, then their futures with ``gather()``, and so on."""
    data = values(args.size)
    values_of_a_round = [data[number % len(data)] for number in range(GATHERED)]

    async def run() -> Figures:
        producer = aiokafka_producer(args)
        await producer.start()
        await producer.send_and_wait(args.topic, data[0])
        send, topic, rounds = producer.send, args.topic, max(1, args.records // GATHERED)
        with Measured() as measured:
            for _ in range(rounds):
                futures = [await send(topic, value) for value in values_of_a_round]
                await asyncio.gather(*futures)
        await producer.stop()
        return figures(measured, rounds * GATHERED)

    return asyncio.run(run())
