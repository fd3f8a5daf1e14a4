"""Measures this producer with many topics, large metadata, many producers and many brokers. Linux only.

Every run starts a null broker of its own, because it needs more nodes than the others, and commands it while
it measures. The broker is another process, whose CPU is not counted.
"""

import gc
import random
import resource
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from cyproducer import KafkaProducer, RecordFuture
from perf import null_broker
from perf.footprint import descriptors, heap_bytes, resident_bytes, threads
from perf.null_broker import NullBroker
from perf.runs.measuring import FLUSH_S, WARM_UP_S, Args, Figures, Measured, SkippedError, percentile

BROKERS = 1_000
"""The nodes of a large cluster."""
REFRESH_S = 1.0
"""The time between two refreshes of the metadata, in which all leaders move once."""
GROUPS = 200
"""The number of topics that are met at the same time when memory is measured."""
MEETING = 256
"""How many threads wait for the metadata of topics before a run begins."""
SHORTEST_GAP_S = 0.001
"""Shorter gaps between two looks at the clock are no pauses."""
DOWN_MS = 300
"""For how long each broker of a rolling restart is down."""
FEW_PARTITIONS = 3
"""Partitions whose batches are large, to compare with."""
ROUNDS = 5
"""How often one thread and several are compared."""
BETWEEN_S = 0.02
"""The time between the restarts of two brokers."""


def _broker(brokers: int, partitions: int, *, check: bool = False) -> NullBroker:
    if problem := null_broker.unavailable():
        raise SkippedError(problem)
    # A connection to each broker, or four descriptors for each producer.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return NullBroker(brokers, partitions=partitions, check=check)


def _names(args: Args) -> list[str]:
    return [f"{args.topic}-{number}" for number in range(args.topics)]


def topics_in_turn(args: Args) -> Figures:
    """Measures the CPU per topic of a program that meets its topics one after the other."""
    return _topics(args, lambda future: future.get(WARM_UP_S))


def topics_at_once(args: Args) -> Figures:
    """Measures the CPU per topic of a program that sends to all topics before it waits."""
    return _topics(args, lambda future: None)


def _topics(args: Args, after_each: Callable[[RecordFuture], object]) -> Figures:
    with _broker(3, args.partitions) as broker, _producer(broker) as own:
        own.send("first", b"value").get(WARM_UP_S)
        with Measured() as measured:
            for name in _names(args):
                after_each(own.send(name, b"value"))
            own.flush(FLUSH_S)
    return {"topic_us": measured.cpu / args.topics * 1e6}


def topic_memory(args: Args) -> Figures:
    """Measures the memory of an idle producer that has sent one record to each topic."""
    with _broker(3, args.partitions) as broker:
        with _producer(broker) as first:
            first.send("first", b"value").get(WARM_UP_S)
        del first
        names = _names(args)
        resident, heap = _memory()
        with _producer(broker) as own:
            _meet(own, names)
            now = _memory()
    return {
        "resident_kb": (now[0] - resident) / args.topics / 1e3,
        "heap_kb": (now[1] - heap) / args.topics / 1e3,
    }


def topic_objects(args: Args) -> Figures:
    """Measures the part of the topics' memory that Python's allocators own; see ``topic_memory``."""
    with _broker(3, args.partitions) as broker:
        names = _names(args)
        with _producer(broker) as own:
            own.send("first", b"value").get(WARM_UP_S)
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            _meet(own, names)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
    return {"python_kb": grown / args.topics / 1e3}


def _meet(own: KafkaProducer, names: list[str]) -> None:
    for count, name in enumerate(names, 1):
        own.send(name, b"value")
        # Not all at once: malloc would keep the pages of such a burst.
        if count % GROUPS == 0:
            own.flush(FLUSH_S)
    own.flush(FLUSH_S)


def _memory() -> tuple[int, int]:
    gc.collect()
    return resident_bytes(), heap_bytes()


def get_while_leaders_move(args: Args) -> Figures:
    """Measures ``send().get()`` to one topic while the leaders of all others move.

    ``get_cpu_ms`` is the most CPU time that this process used during one call: what the longest wait would be
    on a machine without other work, if nothing ran in parallel.
    The metadata is refreshed each second, and all leaders move once between two refreshes.
    """
    taken: list[float] = []
    used: list[float] = []

    def once(own: KafkaProducer) -> None:
        began, cpu = time.monotonic(), time.process_time()
        own.send("steady", b"value").get(WARM_UP_S)
        taken.append(time.monotonic() - began)
        used.append(time.process_time() - cpu)

    figures = _while_leaders_move(args, once)
    taken.sort()
    return {
        **figures,
        "get_ms": taken[-1] * 1e3,
        "get_p99_ms": percentile(taken, 0.99) * 1e3,
        "get_cpu_ms": max(used) * 1e3,
    }


def threads_while_leaders_move(args: Args) -> Figures:
    """Measures for how long a Python thread stands that only looks at the clock, while all leaders move."""
    gaps: list[float] = []
    used: list[float] = []
    last = began = time.monotonic()
    cpu = 0.0

    def once(own: KafkaProducer) -> None:
        nonlocal last, cpu
        if last == began:
            last, cpu = time.monotonic(), time.process_time()
        for _ in range(1000):
            now, now_cpu = time.monotonic(), time.process_time()
            if now - last > SHORTEST_GAP_S:
                gaps.append(now - last)
                used.append(now_cpu - cpu)
            last, cpu = now, now_cpu

    figures = _while_leaders_move(args, once)
    gaps.sort()
    return {
        **figures,
        "pause_ms": gaps[-1] * 1e3,
        "pause_p99_ms": percentile(gaps, 0.99) * 1e3,
        "pause_cpu_ms": max(used) * 1e3,
    }


def _while_leaders_move(args: Args, once: Callable[[KafkaProducer], None]) -> Figures:
    """Calls ``once`` for ``args.seconds``, with all topics met; returns the refreshes and CPU of each."""
    over = threading.Event()
    moves = 0
    with (
        _broker(BROKERS, args.partitions) as broker,
        _producer(broker, metadata_max_age_ms=REFRESH_S * 1e3) as own,
    ):
        own.send("steady", b"value").get(WARM_UP_S)
        with ThreadPoolExecutor(MEETING) as meeting:
            # At the same time, because each response has 1,000 nodes.
            list(meeting.map(own.partitions_for, _names(args)))

        def move() -> None:
            nonlocal moves
            while not over.wait(REFRESH_S):
                broker.shift(args.topic)
                moves += 1

        moving = threading.Thread(target=move)
        asked = broker.report().requests["metadata"]
        moving.start()
        with Measured() as measured:
            until = time.monotonic() + args.seconds
            while time.monotonic() < until:
                once(own)
        over.set()
        moving.join()
        refreshes = broker.report().requests["metadata"] - asked
    return {"refreshes": refreshes, "moves": moves, "refresh_cpu_ms": measured.cpu / refreshes * 1e3}


def send_in_threads(args: Args) -> Figures:
    """Measures the rate of threads that send to partitions of their own, over that of one thread.

    ``rate_ratio`` is what they gain until all records are acknowledged, ``python_ratio`` what they gain in
    Python code that shares nothing: with a GIL both are about 1. ``cpu_ratio`` is the CPU of a record over
    that of one thread: what is above 1 is waiting for locks and for memory that cores share.
    ``python_cpu_ratio`` is the same of the Python code: what is above 1 is the machine, such as two cores
    that are threads of one. Each thread sends ``records``; the figures are medians of ``ROUNDS`` rounds.
    """
    with (
        _broker(3, args.threads) as broker,
        _producer(broker, linger_ms=5, buffer_memory=256 << 20) as own,
    ):
        for partition in range(args.threads):
            own.send(args.topic, b"", partition=partition).get(WARM_UP_S)

        def fill(number: int) -> None:
            # Without a GIL, threads that share an object contend for its reference count. So each has a
            # value of its own, and the producer in a local variable: a method that was looked up before the
            # loop holds a reference to the producer, which each call counts.
            producer, topic, value = own, args.topic, b"x" * args.size
            for _ in range(args.records):
                producer.send(topic, value, partition=number)

        def compute(number: int) -> None:
            total = 0
            for i in range(args.records):
                total += i ^ number

        pairs, python_pairs = [], []
        for _ in range(ROUNDS):
            python_pairs.append(_pair(compute, args.threads))
            pairs.append(_pair(fill, args.threads, lambda: own.flush(FLUSH_S)))
    count = args.threads
    return {
        "rate_ratio": median(count * one.wall / several.wall for one, several in pairs),
        "python_ratio": median(count * one.wall / several.wall for one, several in python_pairs),
        "cpu_ratio": median(several.cpu / count / one.cpu for one, several in pairs),
        "python_cpu_ratio": median(several.cpu / count / one.cpu for one, several in python_pairs),
        "record_us": median(several.cpu / count / args.records for _, several in pairs) * 1e6,
    }


def _pair(
    work: Callable[[int], None], count: int, after: Callable[[], object] = lambda: None
) -> tuple[Measured, Measured]:
    """Measures ``work`` in one thread, then in ``count`` threads. ``after`` is called by the caller's own
    thread and belongs to both."""
    found = []
    for started in (1, count):
        running = [threading.Thread(target=work, args=(number,)) for number in range(started)]
        with Measured() as measured:
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            after()
        found.append(measured)
    return found[0], found[1]


def many_partitions(args: Args) -> Figures:
    """Measures the CPU per record of keys at random, with few records per batch or one.

    ``few_us`` is that of ``FEW_PARTITIONS`` partitions at the same time: what the machine is worth now.
    """
    values = random.Random(0)
    keys = [values.randbytes(8) for _ in range(args.records)]
    figures: Figures = {}
    for partitions, name in ((FEW_PARTITIONS, "few_us"), (args.partitions, "record_us")):
        with _broker(3, partitions) as broker, _producer(broker, **args.options) as own:
            for partition in range(partitions):
                own.send(args.topic, b"", partition=partition)
            own.flush(FLUSH_S)
            value = b"x" * args.size
            with Measured() as measured:
                for key in keys:
                    own.send(args.topic, value, key=key)
                own.flush(FLUSH_S)
            figures[name] = measured.cpu / args.records * 1e6
    return figures


def producers(args: Args) -> Figures:
    """Measures what each of many producers in a process costs, with ``args.threads`` producers."""
    count, value = args.threads, b"x" * args.size
    with _broker(3, args.partitions) as broker:
        with _producer(broker) as first:
            first.send(args.topic, value).get(WARM_UP_S)
        del first
        resident, heap = _memory()
        before = threads(), descriptors()
        began = Measured()
        with began:
            every = [_producer(broker, client_id=f"tenant-{number}") for number in range(count)]
            for own in every:
                own.send(args.topic, value).get(WARM_UP_S)
        now = _memory()
        after = threads(), descriptors()
        rounds = max(1, args.records // count)
        with Measured() as in_turn:
            for _ in range(rounds):
                for own in every:
                    own.send(args.topic, value)
            for own in every:
                own.flush(FLUSH_S)
        with Measured() as idle:
            time.sleep(1)
        for own in every:
            own.close()
    return {
        "resident_kb": (now[0] - resident) / count / 1e3,
        "heap_kb": (now[1] - heap) / count / 1e3,
        "threads": (after[0] - before[0]) / count,
        "descriptors": (after[1] - before[1]) / count,
        "start_ms": began.cpu / count * 1e3,
        "record_us": in_turn.cpu / (rounds * count) * 1e6,
        "idle_cpu_us": idle.cpu / count * 1e6,
    }


def rolling_restart(args: Args) -> Figures:
    """Restarts each broker of a large cluster once, one shortly after the other, while records are sent.

    Returns how many records were lost, failed, arrived twice or out of order.
    """
    sent = failed = 0
    names = _names(args)
    with _broker(args.threads, args.partitions, check=True) as broker, _producer(broker) as own:
        futures: list[RecordFuture] = []
        over = threading.Event()

        def restart() -> None:
            for number in range(args.threads):
                broker.down(number, DOWN_MS)
                if over.wait(BETWEEN_S):
                    return
            over.set()

        with ThreadPoolExecutor(MEETING) as meeting:
            list(meeting.map(own.partitions_for, names))
        restarting = threading.Thread(target=restart)
        restarting.start()
        with Measured() as measured:
            while not over.is_set():
                for name in names:
                    for partition in range(args.partitions):
                        futures.append(own.send(name, sent.to_bytes(8, "big"), partition=partition))
                        sent += 1
                failed += sum(future.is_done and future.failed() for future in futures)
                futures = [future for future in futures if not future.is_done]
                over.wait(BETWEEN_S)
            restarting.join()
            own.flush(FLUSH_S)
        failed += sum(future.failed() for future in futures)
        report = broker.report()
    arrived = sum(report.records(name) for name in names)
    sums = [sum(each) for each in zip(*(report.sums(name) for name in names), strict=True)]
    missing = sent - arrived or int(
        [each % null_broker.MODULUS for each in sums]
        != [sum(n**power for n in range(sent)) % null_broker.MODULUS for power in (1, 2, 3)]
    )
    return {
        "records": sent,
        "lost": missing,
        "failed": failed,
        "disorder": sum(report.total(name, "disorder") for name in names),
        "record_us": measured.cpu / sent * 1e6,
    }


def _producer(broker: NullBroker, **options: object) -> KafkaProducer:
    # Only some of the bootstrap servers: with 1,000 of them, a program names a few.
    servers = ",".join(broker.bootstrap_servers.split(",")[:3])
    return KafkaProducer(bootstrap_servers=servers, **options)  # type: ignore[arg-type]
