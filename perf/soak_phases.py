"""The soak test's phases of sustained load: checks that the rate does not decay.

Owns the load of each phase and the measurement of its rate. Does not own the long run with faults (``soak``).
Each phase has its own producer and null broker, and lasts ``seconds``. The rate of its last quarter is
compared with that of the second quarter; in the first, buffers fill up.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cyproducer import KafkaProducer, errors
from perf.footprint import resident_bytes
from perf.null_broker import NullBroker

TOPIC = "phase"
VALUE = bytes(200) + b"0123456789" * 80
STEADY = 0.8
"""Minimum ratio of the last quarter's rate to the second quarter's. Real decay shows as a half or less within
a minute; on a shared machine, runs differ by a tenth anyway."""
MOST_GROWTH = 48 << 20
"""Maximum growth of resident memory, in bytes, between a phase's second quarter and its end."""
QUARTERS = 4


@dataclass(frozen=True)
class Phase:
    """The measurements of one phase."""

    name: str
    unit: str
    second_quarter: float
    last_quarter: float
    growth_bytes: int
    failed: int
    """Number of records or calls that failed unexpectedly."""

    @property
    def steady(self) -> float:
        return self.last_quarter / self.second_quarter if self.second_quarter else 0.0

    def verdicts(self) -> dict[str, bool]:
        """Returns each condition that must hold, and whether it did."""
        return {
            f"{self.name}: the rate holds": self.steady >= STEADY,
            f"{self.name}: memory holds": self.growth_bytes <= MOST_GROWTH,
            f"{self.name}: nothing failed": self.failed == 0,
        }


class Rates:
    """Counts the work done in each quarter of the time."""

    def __init__(self, seconds: float) -> None:
        self._quarter_s = seconds / QUARTERS
        self._counts = [0] * QUARTERS
        self._resident = [0] * QUARTERS

    def measure(self, work: Callable[[], int]) -> None:
        """Calls ``work``, which returns the amount of work it did, until the time is over."""
        began = time.perf_counter()
        seen = -1
        while True:
            done = work()
            quarter = int((time.perf_counter() - began) / self._quarter_s)
            if quarter >= QUARTERS:
                break
            self._counts[quarter] += done
            if quarter != seen:
                seen, self._resident[quarter] = quarter, resident_bytes()
        self._resident[-1] = resident_bytes()

    def phase(self, name: str, unit: str, failed: int) -> Phase:
        second, last = (self._counts[at] / self._quarter_s for at in (1, QUARTERS - 1))
        return Phase(name, unit, second, last, self._resident[-1] - self._resident[1], failed)


@contextmanager
def running(broker: NullBroker, **options: Any) -> Iterator[KafkaProducer]:
    """Yields a producer that has sent a record, and closes it and the broker."""
    with broker, KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
        producer.send(TOPIC, VALUE).get(30)
        yield producer


def send_many_times(producer: KafkaProducer, count: int = 100) -> int:
    for _ in range(count):
        producer.send(TOPIC, VALUE)
    return count


def failed_records(producer: KafkaProducer) -> int:
    return int(producer.metrics()["producer-metrics"]["record-error-total"])


def slow_broker(seconds: float) -> Phase:
    """Sends to one partition with round trips of 20 ms: the broker accepts less than is sent."""
    rates = Rates(seconds)
    broker = NullBroker(1, partitions=1)
    with running(broker) as producer:
        broker.faults(latency_ms=20)
        rates.measure(lambda: send_many_times(producer))
        producer.flush(60)
        return rates.phase("slow broker", "records/s", failed_records(producer))


def full_pool(seconds: float) -> Phase:
    """Sends from four threads, with a codec and a buffer pool of eight batches."""
    rates = Rates(seconds)
    counts = [0] * 4
    over = threading.Event()
    broker = NullBroker(3, partitions=12)
    with running(broker, buffer_memory=1 << 20, compression_type="lz4") as producer:
        broker.faults(latency_ms=2)

        def run(number: int) -> None:
            while not over.is_set():
                counts[number] += send_many_times(producer)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(counts))]
        for thread in threads:
            thread.start()
        seen = 0

        def since() -> int:
            nonlocal seen
            time.sleep(0.02)
            before, seen = seen, sum(counts)
            return seen - before

        try:
            rates.measure(since)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        producer.flush(60)
        return rates.phase("a pool that is always full", "records/s", failed_records(producer))


def slow_callbacks(seconds: float) -> Phase:
    """Sends records whose callbacks take a tenth of a millisecond each."""
    rates = Rates(seconds)
    called = 0

    def slow(outcome: object) -> None:
        nonlocal called
        time.sleep(0.0001)
        called += 1

    broker = NullBroker(1, partitions=3)
    with running(broker, buffer_memory=1 << 20, max_pending_callbacks=1000) as producer:
        sent = 0

        def send() -> int:
            nonlocal sent
            for _ in range(50):
                producer.send(TOPIC, VALUE).add_callback(slow)
            sent += 50
            return 50

        rates.measure(send)
        producer.flush(120)
        return rates.phase("slow callbacks", "records/s", failed_records(producer) + sent - called)


def missing_topic(seconds: float) -> Phase:
    """One thread floods a topic that does not exist; another waits for each record to an existing topic."""
    rates = Rates(seconds)
    over = threading.Event()
    broker = NullBroker(1, topics={TOPIC: 3})
    with running(broker, max_block_ms=2000, allow_auto_create_topics=False) as producer:

        def flood() -> None:
            while not over.is_set():
                try:
                    producer.send("missing", VALUE)
                except errors.KafkaTimeoutError:
                    continue

        thread = threading.Thread(target=flood)
        thread.start()

        def trip() -> int:
            producer.send(TOPIC, VALUE).get(10)
            return 1

        try:
            rates.measure(trip)
        finally:
            over.set()
            thread.join()
        # Failures of the flood are expected. A failed round trip would have raised.
        return rates.phase("a missing topic beside a good one", "round trips/s", 0)


class Through(logging.Handler):
    """A log handler that sends the producer's log messages through the producer, and waits for each."""

    def __init__(self, producer: KafkaProducer) -> None:
        super().__init__()
        self._producer = producer
        self.sent = 0

    def emit(self, record: logging.LogRecord) -> None:
        future = self._producer.send("logs", record.getMessage().encode())
        try:
            future.get(5)
        except errors.KafkaError:
            return
        self.sent += 1


def logging_handler(seconds: float) -> Phase:
    """Connections break, the producer logs warnings, and a log handler sends these through the producer."""
    rates = Rates(seconds)
    log = logging.getLogger("cyproducer")
    broker = NullBroker(2, partitions=4)
    with running(broker, retry_backoff_ms=5, reconnect_backoff_ms=5) as producer:
        handler = Through(producer)
        log.addHandler(handler)
        try:
            broker.faults(seed=1, cut_in=0.002, lose=0.0, refuse=0.005)
            rates.measure(lambda: send_many_times(producer))
            broker.faults()
            producer.flush(60)
        finally:
            log.removeHandler(handler)
        silent = 0 if handler.sent else 1
        return rates.phase(
            "a handler that logs through the producer", "records/s", failed_records(producer) + silent
        )


PHASES: dict[str, Callable[[float], Phase]] = {
    "slow-broker": slow_broker,
    "full-pool": full_pool,
    "slow-callbacks": slow_callbacks,
    "missing-topic": missing_topic,
    "logging-handler": logging_handler,
}
