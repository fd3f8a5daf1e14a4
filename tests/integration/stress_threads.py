"""Calls one producer at random from many threads, and checks that every accepted record is acknowledged once
and in order.

    python tests/integration/stress_threads.py --seconds 60 --seed 7 --threads 4

Against the null broker, which cuts connections and loses responses meanwhile. Each round opens a producer
with random options; in every third round it is closed while the threads send. Checks after each round:

- every accepted record is acknowledged, and each callback was called once,
- the broker has as many records, in batches with right checksums, and each offset belongs to one record,
- without a codec, which the null broker cannot unpack: they have the same numbers,
- the records that a thread sent to a partition have ascending offsets.

For free-threaded Pythons, and for others with a short switch interval. The seed chooses the calls; their
order among threads is the machine's. The exit code is 1 if a check fails. Linux only.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import sysconfig
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Literal

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cyproducer import KafkaProducer, RecordFuture
from cyproducer.errors import ProducerClosedError
from cyproducer.futures.bulk_future import BulkFuture
from perf.null_broker import MODULUS, NullBroker

PARTITIONS = 6
ROUND_S = 3.0
PATIENCE_S = 120.0
FAULTS = {"cut_in": 1e-3, "lose": 1e-4}
NUMBER_BYTES = 8
"""Values begin with the record's number: the broker adds these up."""


class Sender(threading.Thread):
    """One thread's random calls, and what it sent, in order."""

    def __init__(
        self, own: KafkaProducer, topics: list[str], number: int, seed: str, shared: list[RecordFuture]
    ) -> None:
        super().__init__(name=f"sender-{number}")
        self.own, self.topics, self.rng, self.shared = own, topics, random.Random(seed), shared
        self.next = number << 40
        self.sent: list[tuple[str, list[int], RecordFuture | BulkFuture]] = []
        self.called: Counter[int] = Counter()
        self.expected: list[int] = []
        self.error: BaseException | None = None
        self.ends = threading.Event()

    def value(self) -> bytes:
        self.next += 1
        return self.next.to_bytes(NUMBER_BYTES, "big") + b"v" * self.rng.randrange(300)

    def run(self) -> None:
        calls = [self.send] * 60 + [self.send_many] * 3 + [self.look] * 3
        calls += [self.wait, self.own_metrics, self.ask_partitions, self.flush]
        try:
            while not self.ends.is_set():
                for _ in range(50):
                    self.rng.choice(calls)()
        except ProducerClosedError:
            pass  # another thread closed it
        except BaseException as error:
            self.error = error

    def send(self) -> None:
        rng, topic = self.rng, self.rng.choice(self.topics)
        key = rng.choice((None, None, b"k%d" % rng.randrange(50)))
        value = self.value()
        number = self.next
        future = self.own.send(
            topic, value, key, partition=rng.choice((None, None, rng.randrange(PARTITIONS)))
        )
        self.sent.append((topic, [number], future))
        if rng.random() < 0.2:
            self.expected.append(number)
            future.add_both(lambda _: self.called.update((number,)))
        if rng.random() < 0.02:
            self.shared.append(future)

    def send_many(self) -> None:
        topic, first = self.rng.choice(self.topics), self.next + 1
        values = [self.value() for _ in range(self.rng.randrange(1, 400))]
        numbers = list(range(first, self.next + 1))
        try:
            self.sent.append((topic, numbers, self.own.send_many(topic, values)))
        except ProducerClosedError as error:
            # Closed in the middle of the call: the first rows were accepted.
            if error.future is not None:
                self.sent.append((topic, numbers[: error.accepted], error.future))
            raise

    def look(self) -> None:
        """Uses another thread's future."""
        if self.shared:
            future = self.rng.choice(self.shared)
            future.add_callback(lambda _: None)
            repr(future)
            if future.done():
                assert future.value is not None

    def wait(self) -> None:
        if self.sent:
            self.sent[-1][2].get(PATIENCE_S)

    def own_metrics(self) -> None:
        assert self.own.metrics()

    def ask_partitions(self) -> None:
        assert len(self.own.partitions_for(self.rng.choice(self.topics))) == PARTITIONS

    def flush(self) -> None:
        self.own.flush(PATIENCE_S)


def positions(future: RecordFuture | BulkFuture) -> list[tuple[int, int]]:
    """The partition and offset of each record; raises the error of records that failed."""
    if isinstance(future, BulkFuture):
        rows = future.get(PATIENCE_S).rows()
        return list(zip(rows.partitions, rows.offsets, strict=True))
    found = future.get(PATIENCE_S)
    return [(found.partition, found.offset)]


def check(senders: list[Sender], broker: NullBroker, topics: list[str], packed: bool) -> int:
    """Raises AssertionError if a promise is broken; returns the number of records. ``packed``: by a codec."""
    numbers: dict[str, list[int]] = {topic: [] for topic in topics}
    offsets: Counter[tuple[str, int, int]] = Counter()
    for sender in senders:
        if sender.error is not None:
            raise AssertionError(f"{sender.name} failed") from sender.error
        lines: dict[tuple[str, int], list[int]] = {}
        for topic, sent, future in sender.sent:
            places = positions(future)
            assert len(places) == len(sent), f"{len(places)} outcomes of {len(sent)} records"
            numbers[topic] += sent
            for partition, offset in places:
                offsets[topic, partition, offset] += 1
                lines.setdefault((topic, partition), []).append(offset)
        for place, line in lines.items():
            assert all(one < following for one, following in pairwise(line)), (
                f"disorder: {sender.name}, {place}"
            )
        wrong = [number for number in sender.expected if sender.called[number] != 1]
        assert not wrong, f"{len(wrong)} callbacks of {sender.name} not called once"
    assert max(offsets.values(), default=1) == 1, "two records have one offset"
    report = broker.report()
    for topic in topics:
        assert report.records(topic) == len(numbers[topic]), topic
        assert report.total(topic, "corrupt") == 0, topic
        if packed:
            continue
        sums = tuple(sum(number**power for number in numbers[topic]) % MODULUS for power in (1, 2, 3))
        assert report.sums(topic) == sums, topic
    return sum(map(len, numbers.values()))


def run_round(broker: NullBroker, number: int, seed: str, threads: int) -> int:
    rng = random.Random(seed)
    topics = [f"r{number}-{i}" for i in range(3)]
    codec: Literal["gzip"] | None = rng.choice((None, None, "gzip"))
    own = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        linger_ms=rng.choice((0, 2)),
        batch_size=rng.choice((1_000, 16_384, 131_072)),
        buffer_memory=rng.choice((1 << 20, 1 << 24)),
        compression_type=codec,
        # Responses are lost.
        request_timeout_ms=2_000,
    )
    shared: list[RecordFuture] = []
    senders = [Sender(own, topics, i + 1, f"{seed} {i}", shared) for i in range(threads)]
    for sender in senders:
        sender.start()
    senders[0].join(ROUND_S)
    if number % 3 != 2:
        for sender in senders:
            sender.ends.set()
            sender.join(PATIENCE_S)
    own.close(PATIENCE_S)
    for sender in senders:
        sender.join(PATIENCE_S)
        assert not sender.is_alive(), f"{sender.name} hangs"
    return check(senders, broker, topics, codec is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long; default: 60")
    parser.add_argument("--threads", type=int, default=4, help="threads that send; default: 4")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="default: a random one")
    args = parser.parse_args()
    print(f"seed {args.seed}, free-threaded: {bool(sysconfig.get_config_var('Py_GIL_DISABLED'))}", flush=True)
    sys.setswitchinterval(1e-4)
    # Of the broken connections.
    logging.getLogger("cyproducer").setLevel(logging.ERROR)
    ends, records, rounds = time.monotonic() + args.seconds, 0, 0
    while time.monotonic() < ends:
        with NullBroker(brokers=3, partitions=PARTITIONS, check=True) as broker:
            broker.faults(seed=args.seed + rounds, **FAULTS)
            records += run_round(broker, rounds, f"{args.seed} {rounds}", args.threads)
        rounds += 1
    print(f"{rounds} rounds, {records:,} records: each acknowledged once and in order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
