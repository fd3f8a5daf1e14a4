"""Runs with transactions: this producer's, the same flushes without transactions, and confluent-kafka's.

Each transaction has the same number of records of one size, to one partition. With ``offsets`` it also
commits an offset of one partition for a group. confluent-kafka runs without callbacks.
"""

import time
import uuid
from collections.abc import Callable
from typing import Any

from perf.runs.measuring import FLUSH_S, WARM_UP_S, Args, Figures, Measured, figures, values

GROUP = "perf-group"


def transactional_id() -> str:
    return f"perf-{uuid.uuid4()}"


def repeated(args: Args, transaction: Callable[[int], None], count_requests: Callable[[], int]) -> Figures:
    """Runs transactions back to back; ``transaction`` gets the number of its records."""
    each = args.per_transaction
    taken: list[float] = []
    # The first ones find coordinators, and warm the broker up.
    for _ in range(20):
        transaction(min(each, 1000))
    requests = count_requests()
    count = max(1, args.records // each)
    with Measured() as measured:
        for _ in range(count):
            began = time.perf_counter()
            transaction(each)
            taken.append(time.perf_counter() - began)
    taken.sort()
    return figures(
        measured,
        count * each,
        transactions_per_s=count / measured.wall,
        cpu_ms_per_transaction=measured.cpu / count * 1000,
        p50_ms=taken[len(taken) // 2] * 1000,
        p99_ms=taken[int(len(taken) * 0.99)] * 1000,
        requests_per_transaction=(count_requests() - requests) / count,
    )


def own(args: Args) -> Figures:
    """This producer, with a future for every record."""
    from cyproducer import KafkaProducer

    data = values(args.size)
    with KafkaProducer(
        bootstrap_servers=args.bootstrap, transactional_id=transactional_id(), **args.options
    ) as producer:
        producer.init_transactions(WARM_UP_S)
        send, topic = producer.send, args.topic

        def transaction(records: int) -> None:
            producer.begin_transaction()
            for number in range(records):
                send(topic, data[number % len(data)], partition=0)
            if args.offsets:
                producer.send_offsets_to_transaction({(topic, 0): 1}, GROUP)
            producer.commit_transaction(FLUSH_S)

        return repeated(args, transaction, lambda: requests_of(producer))


def own_flushes(args: Args) -> Figures:
    """This producer without transactions: the same records, and ``flush()`` in place of the commit."""
    from cyproducer import KafkaProducer

    data = values(args.size)
    with KafkaProducer(bootstrap_servers=args.bootstrap, **args.options) as producer:
        send, topic = producer.send, args.topic

        def flushed(records: int) -> None:
            for number in range(records):
                send(topic, data[number % len(data)], partition=0)
            producer.flush(FLUSH_S)

        return repeated(args, flushed, lambda: requests_of(producer))


def requests_of(producer: Any) -> int:
    """The number of requests that a producer has sent, of all kinds."""
    found = producer.metrics()["producer-metrics"]
    return int(found["request-total"])


def confluent(args: Args) -> Figures:
    """confluent-kafka, without callbacks."""
    import json

    from confluent_kafka import Producer, TopicPartition

    data = values(args.size)
    seen = {"tx": 0}

    def on_statistics(text: str) -> None:
        seen["tx"] = json.loads(text)["tx"]

    producer: Any = Producer(
        {
            "bootstrap.servers": args.bootstrap,
            "transactional.id": transactional_id(),
            # The default of 5 ms, without which its transactions of many records make small batches.
            "linger.ms": 5,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "statistics.interval.ms": 100,
            "stats_cb": on_statistics,
            **args.options,
        }
    )
    producer.init_transactions(WARM_UP_S)
    topic, produce = args.topic, producer.produce
    group = group_metadata(args.bootstrap) if args.offsets else None

    def transaction(records: int) -> None:
        producer.begin_transaction()
        for number in range(records):
            produce(topic, data[number % len(data)], partition=0)
        if group is not None:
            producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], group)
        producer.commit_transaction(FLUSH_S)

    def requests() -> int:
        before, deadline = seen["tx"], time.monotonic() + 1
        # Statistics come by time; the next ones have the count of now.
        while seen["tx"] == before and time.monotonic() < deadline:
            producer.poll(0.1)
        return seen["tx"]

    return repeated(args, transaction, requests)


def group_metadata(bootstrap: str) -> Any:
    """The metadata of a group without members, as a bare group id is for this producer."""
    from confluent_kafka import Consumer

    consumer: Any = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    return metadata
