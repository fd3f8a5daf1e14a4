"""This producer's runs over a range of threads, codecs or partitions, and ``send()`` alone."""

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
    """Runs ``send().get()`` in several threads on one producer. ``records`` is the total over all threads."""
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
    """Measures the calling thread's CPU per ``send()``, warm, in nanoseconds; see ``micro/send.py``."""
    return micro_send.measure(args.bootstrap, max(1, args.records // micro_send.CALLS))


def codec(args: Args) -> Figures:
    """Measures total CPU of compressed records, and the CPU of the codec's library for the same batches."""
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
    # Several batches, because values repeat: each batch starts with a different value.
    alone = codec_s(name, batches(data, per_batch, 8)) * records
    return figures(
        measured,
        records,
        codec_s_per_million=alone / records * 1e6,
        beside_codec=measured.cpu / alone,
        records_per_batch=per_batch,
    )


def batches(data: list[bytes], per_batch: int, count: int) -> list[tuple[bytes, int]]:
    """Returns batches of encoded records without the batch header, ready to compress, with their record
    counts."""
    from cyproducer.records.record_batch import encode_batch

    source = cycle(data)
    made = []
    for _ in range(count):
        records = [(TIMESTAMP_MS, None, value, b"\x00") for value in islice(source, per_batch)]
        made.append((encode_batch(records)[BATCH_HEADER:], len(records)))
    return made


def codec_s(name: str, of: list[tuple[bytes, int]]) -> float:
    """Returns the CPU seconds per record of the codec's library, called directly: the best of several
    runs."""
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
    """Returns the library's function that compresses a batch at the codec's default level."""
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
    """Returns every partition of every topic, alternating between topics."""
    return [(f"{args.topic}-{t}", p) for p in range(args.partitions) for t in range(args.topics)]


def partitions(args: Args) -> Figures:
    """Sends records to many partitions: to the topics in turn, or to each partition in turn."""
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
    """Measures the memory of an idle producer that has sent one record to each of many partitions."""
    before_it = [resident_bytes(), heap_bytes()]
    # A first producer loads libraries and code, and is freed before the measurement.
    with producer(args) as first:
        first.send(f"{args.topic}-0", b"value").get(WARM_UP_S)
    del first
    before = [resident_bytes(), heap_bytes()]
    with producer(args) as own:
        for count, (topic, partition) in enumerate(places(args), 1):
            own.send(topic, b"value", partition=partition)
            # Not all at once: malloc would keep the pages of such a burst.
            if count % args.topics == 0:
                own.flush(FLUSH_S)
        after = [resident_bytes(), heap_bytes()]
        assert own.metrics()["producer-metrics"]["record-send-total"] == args.topics * args.partitions
    if not after[1]:
        raise SkippedError("the C library does not report its allocations (glibc does)")
    grown = [(a - b) / 1e6 for a, b in zip(after, before, strict=True)]
    return {
        "idle_resident_mb": grown[0],
        "idle_heap_mb": grown[1],
        "with_libraries_mb": (after[0] - before_it[0]) / 1e6,
    }
