"""What ``send_arrow()`` and ``send_many()`` cost, beside ``send()`` and a bare socket.

    python perf/micro/columnar.py

A null broker acknowledges at once. Of each way of sending a million values of 100 bytes: CPU seconds of this
process, appending, checksums, sending and receiving included, and records/s, the median of nine rounds. The
bare socket writes Produce requests that were made before, and reads the answers: what no client can beat.
"""

import resource
import socket
import statistics
import time
from collections.abc import Callable

import pyarrow as pa

from cyproducer import KafkaProducer
from cyproducer.records.record_batch import encode_batch
from perf.null_broker import NullBroker

RECORDS = 1_000_000
ROUNDS = 9
PARTITIONS = 8
IN_FLIGHT = 5
A_BATCH = 1200


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(name: str, send: Callable[[], object], records: int) -> None:
    cpus, rates = [], []
    for _ in range(ROUNDS):
        cpu, wall = cpu_s(), time.perf_counter()
        send()
        cpus.append((cpu_s() - cpu) / records * 1e6)
        rates.append(records / (time.perf_counter() - wall) / 1e6)
    cpu, rate = statistics.median(cpus), statistics.median(rates)
    print(f"{name:<44}{cpu:8.4f} CPU s/M ({min(cpus):.4f}-{max(cpus):.4f}){rate:8.2f} M/s", flush=True)


def produce_request(topic: str, partition: int, values: list[bytes]) -> bytes:
    """A Produce request, version 3. Source: Kafka protocol guide, "Produce API"."""
    batch = encode_batch([(1_700_000_000_000, None, value, b"\0") for value in values])
    name = topic.encode()
    body = b"".join(
        (
            (0).to_bytes(2, "big") + (3).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff",
            b"\xff\xff" + b"\xff\xff" + (30_000).to_bytes(4, "big"),
            (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name,
            (1).to_bytes(4, "big") + partition.to_bytes(4, "big") + len(batch).to_bytes(4, "big") + batch,
        )
    )
    return len(body).to_bytes(4, "big") + body


class Socket:
    """Writes requests that are there already, up to five ahead of their answers."""

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
        assert len(data) == size, "the broker hung up"
        return data


def main() -> None:
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
            produce_request("t", i % PARTITIONS, values[at : at + A_BATCH])
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
    main()
