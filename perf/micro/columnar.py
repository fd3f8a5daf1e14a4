"""Measures the cost of ``send_arrow()`` and ``send_many()``, compared with ``send()`` and a bare socket.

    python perf/micro/columnar.py            # throughput, then the next two
    python perf/micro/columnar.py small      # one row per call
    python perf/micro/columnar.py beside     # send() while another thread sends tables

A null broker acknowledges at once. Throughput: for each method of sending a million values of 100 bytes, the
CPU seconds of this process (with appending, checksums, sending and receiving) and records/s; medians of nine
rounds. The bare socket writes prepared Produce requests and reads the responses: no client can be faster.

Small: the fastest of many rounds of calls with one value, as multiples of ``send()``. The cost of pyarrow's
export of a batch is shown separately, and subtracted.

Beside: the duration of a ``send()`` every half millisecond, in alternating rounds: alone; while another
thread only computes and needs neither the GIL nor the producer (which shows the limits of the machine); and
while another thread sends tables or sequences. For each percentile the median of the rounds (min-max).
"""

import socket
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Callable

import pyarrow as pa

from cyproducer import KafkaProducer
from perf.null_broker import NullBroker
from perf.runs.measuring import cpu_s
from perf.runs.raw import batch, produce_frame

RECORDS = 1_000_000
ROUNDS = 9
PARTITIONS = 8
IN_FLIGHT = 5
A_BATCH = 1200
SMALL_ROUNDS = 400
BESIDE_ROUNDS = 9
BESIDE_S = 1.0
PERCENTILES = (0.5, 0.95, 0.99)


def measure(name: str, send: Callable[[], object], records: int) -> None:
    cpus, rates = [], []
    for _ in range(ROUNDS):
        cpu, wall = cpu_s(), time.perf_counter()
        send()
        cpus.append((cpu_s() - cpu) / records * 1e6)
        rates.append(records / (time.perf_counter() - wall) / 1e6)
    cpu, rate = statistics.median(cpus), statistics.median(rates)
    print(f"{name:<44}{cpu:8.4f} CPU s/M ({min(cpus):.4f}-{max(cpus):.4f}){rate:8.2f} M/s", flush=True)


class Socket:
    """Writes prepared requests, with up to five in flight."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests = requests

    def run(self) -> None:
        ahead = 0
        for request in self.requests:
            self.sock.sendall(request)
            ahead += 1
            if ahead == IN_FLIGHT:
                self.answer()
                ahead -= 1
        for _ in range(ahead):
            self.answer()

    def answer(self) -> None:
        size = int.from_bytes(self.read(4), "big")
        self.read(size)

    def read(self, size: int) -> bytes:
        data = self.sock.recv(size, socket.MSG_WAITALL)
        assert len(data) == size, "the broker closed the connection"
        return data


def fastest(call: Callable[..., object], *arguments: object) -> float:
    """Returns the seconds per call in the fastest round of fifty calls."""
    best = float("inf")
    for _ in range(SMALL_ROUNDS):
        begun = time.perf_counter()
        for _ in range(50):
            call(*arguments)
        best = min(best, time.perf_counter() - begun)
    return best / 50


def small(producer: KafkaProducer) -> None:
    value = b"x" * 100
    row = pa.record_batch({"value": pa.array([value], pa.binary())})
    singly = many = arrow = export = float("inf")
    for _ in range(3):
        singly = min(singly, fastest(producer.send, "t", value))
        many = min(many, fastest(producer.send_many, "t", [value]))
        arrow = min(arrow, fastest(producer.send_arrow, "t", row))
        export = min(export, fastest(row.__arrow_c_array__))
        producer.flush(60)
    print(f"send(), one value                       {singly * 1e6:8.2f} us")
    print(f"send_many(), one value                  {many * 1e6:8.2f} us{many / singly:8.1f} times send()")
    print(f"send_arrow(), one row                   {arrow * 1e6:8.2f} us{arrow / singly:8.1f} times send()")
    print(f"pyarrow's export of it                  {export * 1e6:8.2f} us")
    print(f"send_arrow() without that               {(arrow - export) * 1e6:8.2f} us", end="")
    print(f"{(arrow - export) / singly:8.1f} times send()", flush=True)


def latencies(producer: KafkaProducer, other: Callable[[], object]) -> list[float]:
    """Returns the microseconds of each ``send()``, sorted, while another thread calls ``other``
    repeatedly."""
    ended = threading.Event()
    begun = threading.Event()

    def run() -> None:
        while not ended.is_set():
            other()
            begun.set()

    found = []
    thread = threading.Thread(target=run)
    thread.start()
    try:
        begun.wait()
        until = time.perf_counter() + BESIDE_S
        while time.perf_counter() < until:
            at = time.perf_counter()
            producer.send("t", b"x" * 100)
            found.append((time.perf_counter() - at) * 1e6)
            time.sleep(0.0005)
    finally:
        ended.set()
        thread.join()
    producer.flush(60)
    return sorted(found)


def beside(producer: KafkaProducer) -> None:
    values = [bytes([i % 251]) * 100 for i in range(RECORDS)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    megabytes = b"x" * (16 << 20)
    others: dict[str, Callable[[], object]] = {
        "alone": lambda: time.sleep(0.01),
        "beside a thread that computes": lambda: zlib.crc32(megabytes),
        "beside send_arrow() of tables": lambda: producer.send_arrow("t", table).get(60),
        "beside send_many()": lambda: producer.send_many("t", values).get(60),
    }
    seen: dict[str, list[list[float]]] = {name: [] for name in others}
    for _ in range(BESIDE_ROUNDS):
        for name, other in others.items():
            found = latencies(producer, other)
            seen[name].append([found[int(len(found) * each)] for each in PERCENTILES])
    for name, rounds in seen.items():
        print(f"send() {name:<37}", end="")
        for i, percentile in enumerate(PERCENTILES):
            of_rounds = [each[i] for each in rounds]
            print(
                f"  p{percentile * 100:.0f} {statistics.median(of_rounds):.0f} us "
                f"({min(of_rounds):.0f}-{max(of_rounds):.0f})",
                end="",
            )
        print(flush=True)


def main(what: list[str]) -> None:
    if not what:
        throughput()
    with (
        NullBroker(partitions=PARTITIONS) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        producer.send("t", b"first").get(10)
        if not what or "small" in what:
            small(producer)
        if not what or "beside" in what:
            beside(producer)


def throughput() -> None:
    some = [bytes([i % 251]) * 100 for i in range(1000)]
    values = some * (RECORDS // 1000)
    column = pa.array(values, pa.binary())
    keys = pa.array([b"key-%012d" % i for i in range(RECORDS)], pa.binary())
    plain = pa.table({"value": column})
    keyed = pa.table({"value": column, "key": keys})
    views = pa.table({"value": column.cast(pa.binary_view())})
    words = pa.table({"value": column.dictionary_encode()})
    with (
        NullBroker(partitions=PARTITIONS) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        producer.send("t", b"first").get(10)
        requests = [
            produce_frame("t", {i % PARTITIONS: batch(values[at : at + A_BATCH])})
            for i, at in enumerate(range(0, RECORDS, A_BATCH))
        ]
        measure("a socket", Socket(broker.ports[0], requests).run, RECORDS)
        measure("send_arrow(values)", lambda: producer.send_arrow("t", plain).get(60), RECORDS)
        measure(
            "send_arrow(values and keys of 16 bytes)",
            lambda: producer.send_arrow("t", keyed, key="key").get(60),
            RECORDS,
        )
        measure("send_arrow(values as views)", lambda: producer.send_arrow("t", views).get(60), RECORDS)
        measure(
            "send_arrow(values of a dictionary)", lambda: producer.send_arrow("t", words).get(60), RECORDS
        )
        measure("send_many(values)", lambda: producer.send_many("t", values).get(60), RECORDS)

        def singly() -> None:
            send = producer.send
            for value in values[: RECORDS // 10]:
                send("t", value)
            producer.flush(60)

        measure("send(value), one by one", singly, RECORDS // 10)


if __name__ == "__main__":
    main(sys.argv[1:])
