"""A long run against a broker that breaks all the time: does memory stay flat, and is everything there exactly once?

    python perf/soak.py                        200 million records, some minutes
    python perf/soak.py --records 2000000 --strength 10 --seed 7

Everything about a run is drawn from its seed and printed: options, sizes, faults. What is checked at the end stands
in ``verdicts``; the exit code is 1 where one of them is bad. Needs Linux and a C compiler (see ``null_broker``).
"""

import argparse
import ctypes
import gc
import json
import logging
import os
import platform
import random
import statistics
import sys
import threading
import time
from array import array
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from cyproducer import KafkaProducer
from cyproducer.console import Progress, amount, table
from perf.null_broker import MODULUS, NullBroker, Report

TOPIC = "soak"
CHURN_TOPIC = "churn"
CHUNK = 2000
"""Records that are sent alike; of each chunk one future is kept and looked at."""
CALLBACK_EVERY = 5
"""Of the kept futures, how many have a callback: one in so many."""
SENDER_SHIFT = 56
CHURN_RECORDS = 300
FAULTS = {
    "cut_in": 1e-3,
    "cut_out": 1e-3,
    "lose": 1e-4,
    "stall": 1e-4,
    "delay": 5e-3,
    "split": 2e-3,
    "throttle": 1e-3,
    "refuse": 1e-3,
    "after": 1e-3,
    "move": 2e-3,
    "down": 1e-4,
    "leaderless": 2e-3,
    "no_id": 2e-2,
}
"""Probabilities where ``--strength`` is 1."""
GROWTH_SHARE = 0.01
"""By how much resident memory may have grown at the end, unless it is less than ``--growth-mb``."""
LEFT_BYTES = 200_000
LEFT_BLOCKS = 3000
"""How much more the C heap, and Python's, may hold after a producer than before it: what is loaded late."""


class Shape(NamedTuple):
    """What the records of a chunk look like."""

    value_size: int
    key_size: int
    headers: int
    to_partition: bool
    """Whether the application says which partition."""


@dataclass(frozen=True)
class Plan:
    """All that a run depends on, but for the machine."""

    seed: int
    records: int
    producers: int
    brokers: int
    partitions: int
    produce_version: int
    senders: int
    options: dict[str, Any]
    faults: dict[str, float]
    shapes: list[Shape]


def make_plan(seed: int, records: int, producers: int, strength: float) -> Plan:
    rng = random.Random(seed)
    faults = {name: min(0.5, chance * strength) for name, chance in FAULTS.items()}
    return Plan(
        seed=seed,
        records=records,
        producers=producers,
        brokers=rng.randint(2, 4),
        partitions=rng.randint(4, 16),
        produce_version=rng.choice([7, 8, 9, 10, 12, 13]),
        senders=rng.randint(1, 2),
        options={
            "batch_size": rng.choice([16384, 65536, 131072]),
            "linger_ms": rng.choice([0, 5]),
            "buffer_memory": rng.choice([16 << 20, 32 << 20]),
            "max_in_flight_requests_per_connection": rng.randint(2, 5),
            "request_timeout_ms": 1000,
            "retry_backoff_ms": 10,
            "reconnect_backoff_ms": 10,
            "reconnect_backoff_max_ms": 200,
            "metadata_max_age_ms": 5000,
        },
        faults={**faults, "seed": seed, "delay_ms": 20, "stall_ms": 1500, "down_ms": 200},
        # Everything once, then what chance brings: a tenth of the run sees them all, each several times.
        shapes=[
            Shape(8, 0, 0, False),
            Shape(100, 0, 0, True),
            Shape(40, 16, 0, False),
            Shape(20, 0, 1, True),
            *(
                Shape(rng.randint(8, 200), rng.choice([0, 0, 10]), rng.choice([0, 0, 0, 2]), rng.random() < 0.5)
                for _ in range(6)
            ),
        ],
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


class Held(NamedTuple):
    """What is allocated, to the byte: resident memory also has what allocators keep for later."""

    bytes: int
    """From malloc, where the C library is glibc and tells; else 0."""
    blocks: int
    """Python's objects."""

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
        if mallinfo2 is None:
            return cls(0, sys.getallocatedblocks())
        mallinfo2.restype = _Mallinfo2
        info = mallinfo2()
        return cls(info.uordblks + info.hblkhd, sys.getallocatedblocks())

    def grew(self, after: "Held") -> bool:
        return after.bytes - self.bytes > LEFT_BYTES or after.blocks - self.blocks > LEFT_BLOCKS


def descriptors() -> int:
    # The listing's own one is among them, always.
    return len(os.listdir("/proc/self/fd"))


def threads(at_most: int = 0) -> int:
    """The process's, as the system counts them: those of libraries too.

    One that was joined may still be on its way out: up to two seconds are given to come down to ``at_most``.
    """
    deadline = time.monotonic() + 2
    while (count := len(os.listdir("/proc/self/task"))) > at_most > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    return count


class Log(logging.Handler):
    """Counts what the producer logs: warnings are its daily bread here, an error would be news."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: Counter[str] = Counter()
        self.errors: deque[str] = deque(maxlen=5)

    def emit(self, record: logging.LogRecord) -> None:
        self.levels[record.levelname] += 1
        if record.levelno >= logging.ERROR:
            self.errors.append(record.getMessage())


class Memory(threading.Thread):
    """Takes samples of resident memory, each with how many records were sent by then."""

    def __init__(self, sent: "Tally", every_s: float) -> None:
        super().__init__(name="soak-memory", daemon=True)
        self.sent, self.every_s = sent, every_s
        self.at, self.bytes = array("q"), array("q")
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self.every_s):
            self.at.append(self.sent.records())
            self.bytes.append(resident_bytes())

    def stop(self) -> None:
        self._over.set()
        self.join()

    def median(self, first: float, last: float) -> float:
        """Of the samples taken between these shares of all records."""
        total = self.sent.total
        taken = [b for at, b in zip(self.at, self.bytes, strict=True) if first * total <= at <= last * total]
        return statistics.median(taken) if taken else float("nan")


@dataclass
class Tally:
    """What the senders did. Each writes its own places only."""

    total: int
    sent: list[int]
    looked_at: list[int]
    failures: Counter[str] = field(default_factory=Counter)
    callbacks_wanted: list[int] = field(default_factory=list)
    callbacks: int = 0
    """Counted by the producer's callback thread alone."""

    def records(self) -> int:
        return sum(self.sent)

    def called_back(self, _outcome: object) -> None:
        self.callbacks += 1


def send_share(producer: KafkaProducer, plan: Plan, sender: int, count: int, tally: Tally) -> None:
    """One sender's records, each value beginning with the sender and a number that grows."""
    rng = random.Random(f"{plan.seed} {sender}")
    send = producer.send
    kept: deque[Any] = deque()
    first = n = sender << SENDER_SHIFT
    end = n + count
    chunks = 0
    while n < end:
        shape = plan.shapes[chunks % len(plan.shapes)]
        partition = rng.randrange(plan.partitions) if shape.to_partition else None
        key = rng.randbytes(shape.key_size) or None
        headers = [("name", b"value")] * shape.headers or None
        rest = bytes(shape.value_size - 8)
        future = send(TOPIC, n.to_bytes(8, "big") + rest, key, headers, partition)
        if chunks % CALLBACK_EVERY == 0:
            future.add_both(tally.called_back)
            tally.callbacks_wanted[sender] += 1
        kept.append(future)
        stop = min(n + CHUNK, end)
        for number in range(n + 1, stop):
            send(TOPIC, number.to_bytes(8, "big") + rest, key, headers, partition)
        n = stop
        chunks += 1
        tally.sent[sender] = n - first
        while kept and kept[0].is_done:
            look_at(kept.popleft(), sender, tally)
    producer.flush(180)
    while kept:
        look_at(kept.popleft(), sender, tally)


def look_at(future: Any, sender: int, tally: Tally) -> None:
    tally.looked_at[sender] += 1
    if not future.succeeded():
        tally.failures[f"{future.exception!r}" if future.is_done else "not resolved by flush()"] += 1


def churn(plan: Plan, broker: NullBroker, progress: Progress) -> list[Held]:
    """Producers that come and go, of all codecs; returns what is held after a quarter of them and after all."""
    rng = random.Random(f"{plan.seed} churn")
    held = []
    for number in range(plan.producers):
        codec = (None, "gzip", "snappy", "lz4", "zstd")[number % 5]
        options = {**plan.options, "linger_ms": rng.choice([0, 2]), "compression_type": codec}
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
            for _ in range(CHURN_RECORDS):
                producer.send(CHURN_TOPIC, rng.randbytes(rng.randint(8, 200)))
            if number % 2:
                producer.flush(60)
        if number + 1 in (plan.producers // 4, plan.producers):
            held.append(Held.now())
        progress.update(plan.records + number, f"producer {number + 1} of {plan.producers}")
    return held


def power_sums(counts: list[int]) -> tuple[int, ...]:
    """Of 0 ... n-1, their squares and their cubes, over all senders, modulo 2**64."""
    sums = [0, 0, 0]
    for n in counts:
        m = n - 1
        sums[0] += m * n // 2
        sums[1] += m * n * (2 * m + 1) // 6
        sums[2] += (m * n // 2) ** 2
    return tuple(s % MODULUS for s in sums)


@dataclass
class Run:
    """What came of a run."""

    plan: Plan
    elapsed_s: float
    churn_s: float
    tally: Tally
    metrics: dict[str, float]
    report: Report
    memory: tuple[float, float]
    """Medians of the first tenth after the warm-up and of the last one."""
    peak_bytes: int
    samples: int
    held: list[Held]
    """After the first record of all, after the long run, after a quarter of the short-lived producers, at the end."""
    growth_bytes: float
    left_threads: int
    left_descriptors: int
    log: Log

    def verdicts(self) -> dict[str, bool]:
        """Each thing that must hold, and whether it did."""
        report, metrics, tally = self.report, self.metrics, self.tally
        growth = self.memory[1] - self.memory[0]
        return {
            "every record was sent": tally.records() == self.plan.records,
            "every kept future succeeded": not tally.failures,
            "every callback was called": tally.callbacks == sum(tally.callbacks_wanted),
            "no record failed": metrics["record-error-total"] == 0,
            "every record was acknowledged": metrics["record-send-total"] == self.plan.records,
            "the broker has as many": report.records(TOPIC) == self.plan.records,
            "each of them once": report.sums(TOPIC) == power_sums(tally.sent),
            "in order within each partition": report.total(TOPIC, "disorder") == 0,
            "none of them damaged": report.total(TOPIC, "corrupt") + report.total(TOPIC, "unnumbered") == 0,
            "batches: metrics and broker agree": metrics["batch-total"] == report.total(TOPIC, "batches"),
            "bytes: metrics and broker agree": metrics["byte-total"] == report.total(TOPIC, "bytes"),
            "requests: no more arrived than went": metrics["request-total"] >= report.requests["produce"],
            "nothing is in flight": metrics["requests-in-flight"] == 0,
            "the pool has everything back": metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"],
            "memory is flat": growth < self.growth_bytes or growth < self.memory[0] * GROWTH_SHARE,
            "everything was freed": not self.held[0].grew(self.held[1]),
            "short-lived producers: each record once": report.records(CHURN_TOPIC)
            == self.plan.producers * CHURN_RECORDS,
            "short-lived producers: everything was freed": not self.held[-2].grew(self.held[-1]),
            "no thread is left": self.left_threads == 0,
            "no descriptor is left": self.left_descriptors == 0,
            "no error was logged": not self.log.errors,
        }

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        report = self.report
        return {
            "plan": asdict(self.plan),
            "machine": machine(),
            "elapsed_s": round(self.elapsed_s, 1),
            "records_per_s": round(self.plan.records / self.elapsed_s),
            "metrics": self.metrics,
            "faults": report.faults,
            "requests": report.requests,
            "duplicate_batches": report.total(TOPIC, "duplicates"),
            "out_of_order_batches": report.total(TOPIC, "out_of_order"),
            "futures_looked_at": sum(self.tally.looked_at),
            "failures": dict(self.tally.failures.most_common(20)),
            "memory_first_bytes": self.memory[0],
            "memory_last_bytes": self.memory[1],
            "memory_peak_bytes": self.peak_bytes,
            "memory_samples": self.samples,
            "churn_s": round(self.churn_s, 1),
            "held": self.held,
            "logged": dict(self.log.levels),
            "left_threads": self.left_threads,
            "left_descriptors": self.left_descriptors,
            "verdicts": self.verdicts(),
        }


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_implementation()} {platform.python_version()}"


def soak(plan: Plan, warm_up: float, sample_s: float, growth_mb: float) -> Run:
    options: dict[str, Any] = plan.options
    log = Log()
    logging.getLogger("cyproducer").addHandler(log)
    progress = Progress(sys.stderr, plan.records)
    tally = Tally(plan.records, [0] * plan.senders, [0] * plan.senders)
    tally.callbacks_wanted = [0] * plan.senders
    with NullBroker(
        plan.brokers,
        partitions=plan.partitions,
        topics={TOPIC: plan.partitions, CHURN_TOPIC: plan.partitions},
        produce_version=plan.produce_version,
        check=True,
    ) as broker:
        # Whatever is loaded once, a producer's libraries for example, is loaded before anything is counted.
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
            producer.send("warm-up", b"value").get(30)
        threads_before, descriptors_before = threads(), descriptors()
        held = [Held.now()]
        broker.faults(**plan.faults)
        memory = Memory(tally, sample_s)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options)
        shares = [plan.records * (k + 1) // plan.senders - plan.records * k // plan.senders for k in range(plan.senders)]
        senders = [
            threading.Thread(target=send_share, args=(producer, plan, number, share, tally), name=f"soak-{number}")
            for number, share in enumerate(shares)
        ]
        memory.start()
        began = time.perf_counter()
        for sender in senders:
            sender.start()
        before: deque[tuple[float, int]] = deque([(began, 0)], maxlen=50)
        while any(sender.is_alive() for sender in senders):
            time.sleep(0.1)
            now, done = time.perf_counter(), tally.records()
            rate = (done - before[0][1]) / (now - before[0][0])
            before.append((now, done))
            progress.update(done, f"{done:,} records, {rate:,.0f}/s, {amount(resident_bytes())}")
        for sender in senders:
            sender.join()
        producer.flush(180)
        elapsed_s = time.perf_counter() - began
        memory.stop()
        metrics = producer.metrics()["producer-metrics"]
        requests = broker.report().requests
        producer.close(60)
        del producer
        held.append(Held.now())
        began = time.perf_counter()
        held += churn(plan, broker, progress)
        churn_s = time.perf_counter() - began
        left_threads = threads(threads_before) - threads_before
        left_descriptors = descriptors() - descriptors_before
        report = broker.report()
        report.requests.update(requests)
    progress.close()
    return Run(
        plan=plan,
        elapsed_s=elapsed_s,
        churn_s=churn_s,
        tally=tally,
        metrics=metrics,
        report=report,
        memory=(memory.median(warm_up, warm_up + 0.1), memory.median(0.9, 1.0)),
        peak_bytes=max(memory.bytes, default=0),
        samples=len(memory.bytes),
        held=held,
        growth_bytes=growth_mb * 1e6,
        left_threads=left_threads,
        left_descriptors=left_descriptors,
        log=log,
    )


def rows(run: Run) -> list[tuple[str, str]]:
    report, faults = run.report, run.report.faults
    return [
        ("records", f"{run.plan.records:,}"),
        ("time until all were acknowledged", f"{run.elapsed_s:.1f} s"),
        ("records/s", f"{run.plan.records / run.elapsed_s:,.0f}"),
        ("faults", f"{sum(faults.values()):,}"),
        *((f"  {name}", f"{count:,}") for name, count in faults.items()),
        ("Produce requests", f"{run.metrics['request-total']:,.0f}"),
        ("batches", f"{run.metrics['batch-total']:,.0f}"),
        ("  that arrived twice", f"{report.total(TOPIC, 'duplicates'):,}"),
        ("  out of order, at first", f"{report.total(TOPIC, 'out_of_order'):,}"),
        ("records sent again", f"{run.metrics['record-retry-total']:,.0f}"),
        ("futures looked at", f"{sum(run.tally.looked_at):,}"),
        ("memory, first tenth after the warm-up", amount(run.memory[0])),
        ("memory, last tenth", amount(run.memory[1])),
        ("held by C before, after", f"{run.held[0].bytes:,} B, {run.held[1].bytes:,} B"),
        ("short-lived producers", f"{run.plan.producers:,}"),
        ("held by C after a quarter, after all", f"{run.held[-2].bytes:,} B, {run.held[-1].bytes:,} B"),
    ]


def markdown(run: Run) -> str:
    return (
        f"| {run.plan.records / 1e6:,.0f} M records, {sum(run.report.faults.values()):,} faults, "
        f"{run.report.total(TOPIC, 'duplicates'):,} batches that arrived twice, "
        f"{run.plan.producers} more producers | seed {run.plan.seed}, {machine()} | "
        f"{run.elapsed_s:.0f} s, {run.plan.records / run.elapsed_s / 1e6:.2f} M records/s | "
        f"{run.memory[0] / 1e6:.1f} MB, {run.memory[1] / 1e6:.1f} MB |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000_000)
    parser.add_argument("--producers", type=int, default=200, help="short-lived ones, after the long run")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--strength", type=float, default=1.0, help="how many times the usual faults")
    parser.add_argument("--warm-up", type=float, default=0.1, help="share of the records before memory counts")
    parser.add_argument("--growth-mb", type=float, default=1.0, help="by how much memory may grow, if not by 1 %%")
    parser.add_argument("--sample-s", type=float, default=1.0, help="seconds between two looks at memory")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    args = parser.parse_args()
    plan = make_plan(args.seed, args.records, args.producers, args.strength)
    print(f"seed {plan.seed}: {json.dumps(asdict(plan))}", flush=True)
    run = soak(plan, args.warm_up, args.sample_s, args.growth_mb)
    print(table(rows(run)))
    if args.json:
        args.json.write_text(json.dumps(run.figures(), indent=2) + "\n")
    print(f"\n{markdown(run)}")
    bad = [what for what, holds in run.verdicts().items() if not holds]
    for what in bad:
        print(f"NOT TRUE: {what}", file=sys.stderr)
    for error, count in run.tally.failures.most_common(5):
        print(f"{count} futures failed: {error}", file=sys.stderr)
    for error in run.log.errors:
        print(f"logged: {error}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
