"""Soak test: a long run against a broker that fails all the time. Checks memory, and that each record arrives
once.

    python perf/soak.py                        200 million records, some minutes
    python perf/soak.py --records 2000000 --strength 10 --seed 7
    python perf/soak.py --secured              with SASL_SSL, and sessions that end; needs trustme

All options, sizes and faults of a run are derived from its seed and printed. ``verdicts`` has the checks; the
exit code is 1 if one fails. Needs Linux and a C compiler (see ``null_broker``).
"""

import argparse
import json
import logging
import os
import platform
import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

# At the end: an installed package comes before the sources.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from cyproducer import KafkaProducer
from cyproducer.cli.console import Progress, amount, table
from perf.footprint import Held, Medians, Memory, descriptors, resident_bytes, threads
from perf.null_broker import MODULUS, NullBroker, Report
from perf.soak_phases import PHASES, Phase
from perf.soak_plan import Plan, make_plan

TOPIC = "soak"
CHURN_TOPIC = "churn"
CHUNK = 2000
"""Number of consecutive records with the same shape. One future per chunk is kept and checked."""
CALLBACK_EVERY = 5
"""One in this many kept futures has a callback."""
SENDER_SHIFT = 56
CHURN_RECORDS = 300
SESSION_MS = 5000
"""How long a SASL session lasts with ``--secured``."""
LINE_EVERY_S = 30.0
"""Interval of progress lines if there is no progress bar."""
HEAP_GROWTH = 0.01
"""Allowed growth of malloc's allocations at the end, unless ``--growth-mb`` allows more.

Without the pool, which has its own bound: it grows to ``buffer_memory`` when the broker first falls that far
behind, which may be near the end of a short run."""
RESIDENT_GROWTH = 0.5
"""Allowed growth of resident memory, as a share of ``buffer_memory``. Resident memory includes the gaps
between malloc's allocations. As buffers of many sizes are allocated and freed, the gaps vary by some
megabytes."""


class Log(logging.Handler):
    """Counts the producer's log messages. Warnings are expected here; errors are not."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: Counter[str] = Counter()
        self.errors: deque[str] = deque(maxlen=5)

    def emit(self, record: logging.LogRecord) -> None:
        self.levels[record.levelname] += 1
        if record.levelno >= logging.ERROR:
            self.errors.append(record.getMessage())


@dataclass
class Tally:
    """The senders' counts. Each sender writes only its own entries."""

    sent: list[int]
    looked_at: list[int]
    failures: Counter[str] = field(default_factory=Counter)
    callbacks_wanted: list[int] = field(default_factory=list)
    callbacks: int = 0
    """Written only by the producer's callback thread."""

    def records(self) -> int:
        return sum(self.sent)

    def called_back(self, _outcome: object) -> None:
        self.callbacks += 1


def send_share(producer: KafkaProducer, plan: Plan, sender: int, count: int, tally: Tally) -> None:
    """Sends one sender's records. Each value starts with the sender and an increasing number."""
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


def churn(plan: Plan, options: dict[str, Any], broker: NullBroker, progress: Progress) -> list[Held]:
    """Runs short-lived producers with all codecs. Returns allocated memory after a quarter of them and after
    all."""
    rng = random.Random(f"{plan.seed} churn")
    held = []
    for number in range(plan.producers):
        codec = (None, "gzip", "snappy", "lz4", "zstd")[number % 5]
        own = {**options, "linger_ms": rng.choice([0, 2]), "compression_type": codec}
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **own) as producer:
            for _ in range(CHURN_RECORDS):
                producer.send(CHURN_TOPIC, rng.randbytes(rng.randint(8, 200)))
            if number % 2:
                producer.flush(60)
        if number + 1 in (plan.producers // 4, plan.producers):
            held.append(Held.now())
        progress.update(plan.records + number, f"producer {number + 1} of {plan.producers}")
    return held


def power_sums(counts: list[int]) -> tuple[int, ...]:
    """Returns the sums of 0 ... n-1, of their squares and of their cubes, over all senders, modulo 2**64."""
    sums = [0, 0, 0]
    for n in counts:
        m = n - 1
        sums[0] += m * n // 2
        sums[1] += m * n * (2 * m + 1) // 6
        sums[2] += (m * n // 2) ** 2
    return tuple(s % MODULUS for s in sums)


@dataclass
class Run:
    """The results of a run."""

    plan: Plan
    elapsed_s: float
    churn_s: float
    tally: Tally
    metrics: dict[str, float]
    report: Report
    memory: tuple[Medians, Medians]
    """Of the first tenth after the warm-up and of the last tenth."""
    course: list[tuple[int, int, int, int]]
    """Memory over time; see ``Memory.course``."""
    held: list[Held]
    """After the first record, the long run, a quarter of the short-lived producers, and all of them."""
    growth_bytes: float
    left_threads: int
    left_descriptors: int
    log: Log

    def verdicts(self) -> dict[str, bool]:
        """Returns each condition that must hold, and whether it did."""
        report, metrics, tally = self.report, self.metrics, self.tally
        first, last = self.memory
        return {
            "every record was sent": tally.records() == self.plan.records,
            "every kept future succeeded": not tally.failures,
            "every callback was called": tally.callbacks == sum(tally.callbacks_wanted),
            "no record failed": metrics["record-error-total"] == 0,
            "every record was acknowledged": metrics["record-send-total"] == self.plan.records,
            "the broker has as many records": report.records(TOPIC) == self.plan.records,
            "each record once": report.sums(TOPIC) == power_sums(tally.sent),
            "in order within each partition": report.total(TOPIC, "disorder") == 0,
            "no record is corrupt": report.total(TOPIC, "corrupt") + report.total(TOPIC, "unnumbered") == 0,
            "batches: metrics and broker agree": metrics["batch-total"] == report.total(TOPIC, "batches"),
            "bytes: metrics and broker agree": metrics["byte-total"] == report.total(TOPIC, "bytes"),
            "requests: no more arrived than were sent": metrics["produce-request-total"]
            >= report.requests["produce"],
            "nothing is in flight": metrics["requests-in-flight"] == 0,
            "the pool is complete": metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"],
            "memory in use is flat, without the pool": last.rest - first.rest
            < max(self.growth_bytes, first.heap * HEAP_GROWTH),
            "the pool keeps its limit": max(first.pool, last.pool) <= self.plan.options["buffer_memory"],
            "resident memory is flat, except for pool and gaps": last.resident - first.resident
            < max(0, last.pool - first.pool)
            + max(self.growth_bytes, self.plan.options["buffer_memory"] * RESIDENT_GROWTH),
            "everything was freed": not self.held[0].grew(self.held[1]),
            "short-lived producers: each record once": report.records(CHURN_TOPIC)
            == self.plan.producers * CHURN_RECORDS,
            "short-lived producers: everything was freed": not self.held[-2].grew(self.held[-1]),
            "no thread is left": self.left_threads == 0,
            "no descriptor is left": self.left_descriptors == 0,
            "no error was logged": not self.log.errors,
        }

    def figures(self) -> dict[str, Any]:
        """Returns all figures, for JSON."""
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
            "memory_first": self.memory[0]._asdict(),
            "memory_last": self.memory[1]._asdict(),
            "memory_course": self.course,
            "churn_s": round(self.churn_s, 1),
            "held": self.held,
            "logged": dict(self.log.levels),
            "left_threads": self.left_threads,
            "left_descriptors": self.left_descriptors,
            "verdicts": self.verdicts(),
        }


def machine() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count()} cores, {platform.machine()}, {python}"


def occupied_by_buffers(producer: KafkaProducer) -> Callable[[], int]:
    """Returns a function that returns the bytes of a producer's buffers, in use and cached."""
    pool = producer._runtime.accumulator.pool
    return lambda: pool.used_bytes + pool.cached_bytes


def start_broker(plan: Plan) -> tuple[NullBroker, dict[str, Any]]:
    """Returns the broker of a plan, and the producers' options for it."""
    settings: dict[str, Any] = {
        "partitions": plan.partitions,
        "topics": {TOPIC: plan.partitions, CHURN_TOPIC: plan.partitions},
        "produce_version": plan.produce_version,
        "check": True,
    }
    if not plan.secured:
        return NullBroker(plan.brokers, **settings), plan.options
    # Here: it needs trustme.
    from perf.null_broker.secured import SecuredBroker

    secured = SecuredBroker(plan.brokers, session_ms=SESSION_MS, **settings)
    return secured, plan.options | secured.client_options


def soak(plan: Plan, warm_up: float, sample_s: float, growth_mb: float) -> Run:
    log = Log()
    logging.getLogger("cyproducer").addHandler(log)
    progress = Progress(sys.stderr, plan.records)
    tally = Tally([0] * plan.senders, [0] * plan.senders)
    tally.callbacks_wanted = [0] * plan.senders
    started, options = start_broker(plan)
    with started as broker:
        threads_before = threads()
        # Loads everything that is loaded once, such as a producer's libraries, before the measurement.
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
            producer.send("warm-up", b"value").get(30)
        threads_before, descriptors_before = threads(threads_before), descriptors()
        held = [Held.now()]
        requests_before = broker.report().requests
        broker.faults(**plan.faults)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options)
        memory = Memory(tally.records, sample_s, occupied_by_buffers(producer))
        bounds = [plan.records * number // plan.senders for number in range(plan.senders + 1)]
        senders = [
            threading.Thread(
                target=send_share, args=(producer, plan, number, until - since, tally), name=f"soak-{number}"
            )
            for number, (since, until) in enumerate(pairwise(bounds))
        ]
        memory.start()
        began = time.perf_counter()
        for sender in senders:
            sender.start()
        next_line = began + LINE_EVERY_S
        before: deque[tuple[float, int]] = deque([(began, 0)], maxlen=50)
        while any(sender.is_alive() for sender in senders):
            time.sleep(0.1)
            now, done = time.perf_counter(), tally.records()
            rate = (done - before[0][1]) / (now - before[0][0])
            before.append((now, done))
            state = f"{done:,} records, {rate:,.0f}/s, {amount(resident_bytes())}"
            progress.update(done, state)
            if not sys.stderr.isatty() and now >= next_line:
                next_line = now + LINE_EVERY_S
                print(state, file=sys.stderr, flush=True)
        for sender in senders:
            sender.join()
        producer.flush(180)
        elapsed_s = time.perf_counter() - began
        memory.stop()
        metrics = producer.metrics()["producer-metrics"]
        requests = {kind: count - requests_before[kind] for kind, count in broker.report().requests.items()}
        producer.close(60)
        del producer
        held.append(Held.now())
        began = time.perf_counter()
        held += churn(plan, options, broker, progress)
        churn_s = time.perf_counter() - began
        left_threads = threads(threads_before) - threads_before
        left_descriptors = descriptors() - descriptors_before
        report = broker.report()
        report.requests.update(requests)
    progress.close()

    def tenth(since: float) -> Medians:
        return memory.medians(since * plan.records, (since + 0.1) * plan.records)

    return Run(
        plan=plan,
        elapsed_s=elapsed_s,
        churn_s=churn_s,
        tally=tally,
        metrics=metrics,
        report=report,
        memory=(tenth(warm_up), tenth(0.9)),
        course=memory.course(100),
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
        *(
            [
                (
                    "connections, authentications",
                    f"{run.metrics['connection-creation-total']:,.0f}, "
                    f"{report.requests['sasl_authenticate']:,}",
                )
            ]
            if run.plan.secured
            else []
        ),
        ("Produce requests", f"{run.metrics['produce-request-total']:,.0f}"),
        ("batches", f"{run.metrics['batch-total']:,.0f}"),
        ("  that arrived twice", f"{report.total(TOPIC, 'duplicates'):,}"),
        ("  initially out of order", f"{report.total(TOPIC, 'out_of_order'):,}"),
        ("records sent again", f"{run.metrics['record-retry-total']:,.0f}"),
        ("futures checked", f"{sum(run.tally.looked_at):,}"),
        *(
            (
                f"memory in use (without the pool; resident), {when}",
                f"{amount(memory.heap)} ({amount(memory.rest)}; {amount(memory.resident)})",
            )
            for when, memory in zip(("first tenth after the warm-up", "last tenth"), run.memory, strict=True)
        ),
        ("malloc before, after", f"{run.held[0].bytes:,} B, {run.held[1].bytes:,} B"),
        ("short-lived producers", f"{run.plan.producers:,}"),
        ("malloc after a quarter, after all", f"{run.held[-2].bytes:,} B, {run.held[-1].bytes:,} B"),
    ]


def markdown(run: Run) -> str:
    return (
        f"| {run.plan.records / 1e6:,.0f} M records, {sum(run.report.faults.values()):,} faults, "
        f"{run.report.total(TOPIC, 'duplicates'):,} batches that arrived twice, "
        f"{run.plan.producers} more producers | seed {run.plan.seed}, {machine()} | "
        f"{run.elapsed_s:.0f} s, {run.plan.records / run.elapsed_s / 1e6:.2f} M records/s | "
        + ", ".join(f"{memory.heap / 1e6:.1f} ({memory.resident / 1e6:.1f}) MB" for memory in run.memory)
        + " |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200_000_000)
    parser.add_argument("--producers", type=int, default=200, help="short-lived producers after the long run")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument(
        "--secured", action="store_true", help=f"SASL_SSL, with sessions of {SESSION_MS / 1000:g} s"
    )
    parser.add_argument("--strength", type=float, default=1.0, help="multiplier of the fault probabilities")
    parser.add_argument(
        "--warm-up", type=float, default=0.1, help="share of the records before memory is compared"
    )
    parser.add_argument(
        "--growth-mb", type=float, default=1.0, help="allowed growth of memory, if more than 1 %%"
    )
    parser.add_argument("--sample-s", type=float, default=1.0, help="seconds between two memory samples")
    parser.add_argument(
        "--phase-s",
        type=float,
        default=30.0,
        help="seconds of each phase under pressure, after the run; 0: none",
    )
    parser.add_argument("--phase", choices=PHASES, action="append", help="run only these phases")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    if args.phase:
        return report(phases(args.phase, args.phase_s))
    plan = make_plan(args.seed, args.records, args.producers, args.strength, args.secured)
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
    found = phases(list(PHASES), args.phase_s) if args.phase_s else []
    return max(1 if bad else 0, report(found))


def phases(names: list[str], seconds: float) -> list[Phase]:
    """Runs phases under pressure, one after the other."""
    # Warnings are expected; failures are counted.
    logging.getLogger("cyproducer").addHandler(logging.NullHandler())
    found = []
    for name in names:
        print(f"phase {name}, {seconds:g} s", file=sys.stderr, flush=True)
        found.append(PHASES[name](seconds))
    return found


def report(found: list[Phase]) -> int:
    """Prints the results of phases. Returns 1 if a condition did not hold, else 0."""
    if not found:
        return 0
    print(
        table(
            [
                (
                    phase.name,
                    f"{phase.second_quarter:,.0f} then {phase.last_quarter:,.0f} {phase.unit} "
                    f"({phase.steady:.2f}), memory +{phase.growth_bytes / 1e6:.0f} MB",
                )
                for phase in found
            ]
        )
    )
    bad = [what for phase in found for what, holds in phase.verdicts().items() if not holds]
    for what in bad:
        print(f"NOT TRUE: {what}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
