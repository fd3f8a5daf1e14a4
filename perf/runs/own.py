"""This producer's runs that are compared with a peer or a raw socket."""

import importlib
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

LOOK_EVERY = 100_000
"""Number of futures that are kept before they are checked."""
ROUND_TRIP_MS = 20
"""Round-trip time to the broker in runs under pressure."""
COLUMN_ROWS = 10_000
"""Rows per columnar call, the same number as in a peer's call."""


def producer(args: Args) -> Any:
    """Returns a producer with default options, which include acks=all and idempotence."""
    from cyproducer import KafkaProducer

    return KafkaProducer(bootstrap_servers=args.bootstrap, **args.options)


def futures(args: Args) -> Figures:
    """Sends with a future for every record, and checks all of them."""
    data = values(args.size)
    with producer(args) as own:
        own.send(args.topic, data[0]).get(WARM_UP_S)
        send, topic = own.send, args.topic
        kept: list[Any] = []
        keep = kept.append
        rounds = max(1, args.records // len(data))
        with Measured() as measured:
            for _ in range(rounds):
                for value in data:
                    keep(send(topic, value))
                # Drops acknowledged futures, as a program would that checks them regularly.
                if len(kept) >= LOOK_EVERY:
                    failed = sum(1 for future in kept if future.failed())
                    assert failed == 0
                    kept.clear()
            own.flush(FLUSH_S)
        assert all(future.succeeded() for future in kept)
        return figures(measured, rounds * len(data), batch_bytes=batch_bytes(own))


def blocking(args: Args) -> Figures:
    """``send().get()``, one after the other."""
    value = values(args.size)[0]
    with producer(args) as own:
        own.send(args.topic, value).get(WARM_UP_S)
        send, topic = own.send, args.topic
        return round_trips(args.records, lambda: send(topic, value).get(WARM_UP_S))


def columnar(args: Args) -> Figures:
    """Sends rows in columns, ten thousand per call, with one future per call."""
    try:
        pyarrow = importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise SkippedError("pyarrow isn't installed") from error
    data = values(args.size)
    column = pyarrow.array([data[row % len(data)] for row in range(COLUMN_ROWS)], type=pyarrow.binary())
    rows = pyarrow.record_batch({"value": column})
    with producer(args) as own:
        own.send(args.topic, data[0]).get(WARM_UP_S)
        calls = max(1, args.records // COLUMN_ROWS)
        with Measured() as measured:
            sent = [own.send_arrow(args.topic, rows, value="value") for _ in range(calls)]
            own.flush(FLUSH_S)
        assert all(future.succeeded() for future in sent)
    return figures(measured, calls * COLUMN_ROWS)


def latency(args: Args) -> Figures:
    """Measures latency with callbacks."""
    value = values(args.size)[0]
    with producer(args) as own:
        own.send(args.topic, value).get(WARM_UP_S)
        send = partial(own.send, args.topic, value)
        return latencies(args, send, lambda called: send().add_callback(called), own.flush)


def pressure(args: Args) -> Figures:
    """Sends values of 1 kB to one partition with round trips of 20 ms, so that buffer memory is exhausted."""
    from perf.null_broker import NullBroker

    data = [value for value in json_values(args.size, 1000) for _ in range(2)]
    with (
        NullBroker(1, partitions=1) as broker,
        producer(replace(args, bootstrap=broker.bootstrap_servers)) as own,
    ):
        own.send(args.topic, data[0]).get(WARM_UP_S)
        broker.faults(latency_ms=ROUND_TRIP_MS)
        send, topic = own.send, args.topic

        def send_each() -> int:
            for value in data[:100]:
                send(topic, value)
            return 100

        def send_rows() -> int:
            if args.way == "send_many":
                own.send_many(topic, data)
            else:
                own.send_arrow(topic, rows, value="value")
            return len(data)

        if args.way == "send_arrow":
            pyarrow = importlib.import_module("pyarrow")
            rows = pyarrow.record_batch({"value": pyarrow.array(data, type=pyarrow.binary())})

        return under_pressure(
            args,
            send_each if args.way == "send" else send_rows,
            lambda: own.flush(FLUSH_S),
            batch_bytes=lambda: batch_bytes(own),
        )


def batch_bytes(own: Any) -> float:
    """Returns the average size of a producer's batches."""
    return float(own.metrics()["producer-metrics"]["batch-size-avg"])


def first_ack(args: Args) -> Figures:
    """Measures the time from the constructor to the first acknowledged record."""
    from cyproducer import KafkaProducer

    with Measured() as measured:
        own = KafkaProducer(bootstrap_servers=args.bootstrap, **args.options)
        own.send(args.topic, b"value").get(WARM_UP_S)
    own.close()
    return {"first_ack_ms": measured.wall * 1e3, "first_ack_cpu_ms": measured.cpu * 1e3}


def far(args: Args) -> Figures:
    """Sends as much as a far broker takes: it answers each request after ``args.answer_ms``."""
    from perf.null_broker import NullBroker

    data = values(args.size)
    with NullBroker(1, partitions=args.partitions) as broker:
        broker.faults(latency_ms=args.answer_ms)
        with producer(replace(args, bootstrap=broker.bootstrap_servers)) as own:
            own.send(args.topic, data[0]).get(WARM_UP_S)
            send, topic = own.send, args.topic

            def send_each() -> int:
                for value in data:
                    send(topic, value)
                return len(data)

            found = under_pressure(
                args, send_each, lambda: own.flush(FLUSH_S), batch_bytes=lambda: batch_bytes(own)
            )
    return {**found, "of_bound": found["last_quarter"] / far_bound(args)}
