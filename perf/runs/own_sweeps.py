"""This producer's runs with something that varies: threads, codecs, partitions; and ``send()`` alone."""

import threading
import zlib
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from perf.footprint import heap_bytes, resident_bytes
from perf.micro import send as micro_send
from perf.runs.measuring import (
    FLUSH_S,
    WARM_UP_S,
    Args,
    Figures,
    Measured,
    SkippedError,
    cpu_s,
    figures,
    json_values,
    trip_times,
    values,
)
from perf.runs.own import producer

CODEC_REPEATS = 3
BATCH_HEADER = 61
TIMESTAMP_MS = 1_700_000_000_000


def threads(args: Args) -> Figures:
    """``send().get()`` from so many threads on one producer; ``records`` over all of them."""
    value = values(args.size)[0]
    each = max(1, args.records // args.threads)
    taken: list[list[float]] = [[] for _ in range(args.threads)]
    ready = threading.Barrier(args.threads + 1)
    with producer(args) as own:
        own.send(args.topic, value).get(WARM_UP_S)

        def run(keep: Callable[[float], None]) -> None:
            from time import perf_counter

            send, topic = own.send, args.topic
            ready.wait()
            for _ in range(each):
                began = perf_counter()
                send(topic, value).get(WARM_UP_S)
                keep((perf_counter() - began) * 1e6)

        running = [threading.Thread(target=run, args=(one.append,)) for one in taken]
        for thread in running:
            thread.start()
        ready.wait()
        with Measured() as measured:
            for thread in running:
                thread.join()
    every = [us for one in taken for us in one]
    assert len(every) == each * args.threads
    return figures(measured, len(every), **trip_times(every))


def send_alone(args: Args) -> Figures:
    """What ``send()`` takes of its caller's CPU, warm: nanoseconds, see ``micro/send.py``."""
    return micro_send.measure(args.bootstrap, max(1, args.records // micro_send.CALLS))


def codec(args: Args) -> Figures:
    """Total CPU of compressed records beside what the codec's library takes for the same batches."""
    data = json_values(args.size)
    name = args.options["compression_type"]
    with producer(args) as own:
        own.send(args.topic, data[0]).get(WARM_UP_S)
        send, topic = own.send, args.topic
        rounds = max(1, args.records // len(data))
        with Measured() as measured:
            for _ in range(rounds):
                for value in data:
                    send(topic, value)
            own.flush(FLUSH_S)
        metrics = own.metrics()["producer-metrics"]
    records = rounds * len(data)
    assert metrics["record-send-total"] == records + 1, metrics
    per_batch = max(1, round(records / metrics["batch-total"]))
    # Several batches, since values repeat: each begins with another one.
    alone = codec_s(name, batches(data, per_batch, 8)) * records
    return figures(
        measured,
        records,
        codec_s_per_million=alone / records * 1e6,
        beside_codec=measured.cpu / alone,
        records_per_batch=per_batch,
    )


def batches(data: list[bytes], per_batch: int, count: int) -> list[tuple[bytes, int]]:
    """Records as they stand in a batch, which is what is compressed; and how many there are."""
    from cyproducer.records.record_batch import encode_batch

    source = cycle(data)
    made = []
    for _ in range(count):
        records = [(TIMESTAMP_MS, None, value, b"\x00") for value in islice(source, per_batch)]
        made.append((encode_batch(records)[BATCH_HEADER:], len(records)))
    return made


def codec_s(name: str, of: list[tuple[bytes, int]]) -> float:
    """CPU seconds a record of the codec's library itself, called as it is meant to be: the best of some."""
    compress = library_call(name)
    best = float("inf")
    for _ in range(CODEC_REPEATS):
        began = cpu_s()
        calls = 0
        while cpu_s() - began < 0.3:
            for data, _ in of:
                compress(data)
            calls += 1
        best = min(best, (cpu_s() - began) / calls / sum(count for _, count in of))
    return best


def library_call(name: str) -> Callable[[bytes], Any]:
    """One call that compresses a batch at the codec's default level."""
    import cramjam
    import lz4.frame  # type: ignore[import-untyped]
    import zstandard

    calls: dict[str, Callable[[bytes], Any]] = {
        "gzip": lambda data: zlib.compress(data, -1, wbits=31),
        "snappy": cramjam.snappy.compress_raw,
        "lz4": lz4.frame.compress,
        "zstd": zstandard.ZstdCompressor(level=3).compress,
    }
    return calls[name]


def places(args: Args) -> list[tuple[str, int]]:
    """Every partition of every topic, neighbours of different topics."""
    return [(f"{args.topic}-{t}", p) for p in range(args.partitions) for t in range(args.topics)]


def partitions(args: Args) -> Figures:
    """Records to many partitions: to their topics in turn, or to each partition in turn."""
    value = values(args.size)[0]
    everywhere = places(args)
    with producer(args) as own:
        for future in [own.send(topic, value, partition=partition) for topic, partition in everywhere]:
            future.get(WARM_UP_S)
        send = own.send
        rounds = max(1, args.records // len(everywhere))
        with Measured() as measured:
            if args.even:
                for _ in range(rounds):
                    for topic, partition in everywhere:
                        send(topic, value, None, None, partition)
            else:
                for _ in range(rounds):
                    for topic, _ in everywhere:
                        send(topic, value)
            own.flush(FLUSH_S)
        metrics = own.metrics()["producer-metrics"]
    records = rounds * len(everywhere)
    assert metrics["record-send-total"] == records + len(everywhere), metrics
    return figures(measured, records, records_per_batch=metrics["record-send-total"] / metrics["batch-total"])


def idle_partitions(args: Args) -> Figures:
    """What a producer occupies that has sent one record to each of many partitions and has nothing to do."""
    before_it = [resident_bytes(), heap_bytes()]
    # Libraries and code are loaded, and first used, by a producer that is gone when it is looked at.
    with producer(args) as first:
        first.send(f"{args.topic}-0", b"value").get(WARM_UP_S)
    del first
    before = [resident_bytes(), heap_bytes()]
    with producer(args) as own:
        for count, (topic, partition) in enumerate(places(args), 1):
            own.send(topic, b"value", partition=partition)
            # Not all at once: that would be a burst, whose pages malloc keeps for the next one.
            if count % args.topics == 0:
                own.flush(FLUSH_S)
        after = [resident_bytes(), heap_bytes()]
        assert own.metrics()["producer-metrics"]["record-send-total"] == args.topics * args.partitions
    if not after[1]:
        raise SkippedError("the C library does not tell what it gave out (glibc does)")
    grown = [(a - b) / 1e6 for a, b in zip(after, before, strict=True)]
    return {
        "idle_resident_mb": grown[0],
        "idle_heap_mb": grown[1],
        "with_libraries_mb": (after[0] - before_it[0]) / 1e6,
    }
