"""``python -m cyproducer demo``: sends Python's standard library, line by line, to an embedded broker.

Owns the broker, the records, the table and the read-back. Runs on the main thread, except that latencies are
measured on the callback thread.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cyproducer.base.clock import monotonic_s
from cyproducer.cli.console import Progress, amount, table
from cyproducer.cli.line_producer import connect
from cyproducer.testing import EmbeddedBroker

if TYPE_CHECKING:
    from cyproducer import KafkaProducer

TOPIC = "standard-library"
SAMPLE_EVERY = 997
"""Records per latency sample: enough samples for a p99, too few to slow down the run. It is a prime number,
so that the samples do not align with files or batches."""
FLUSH_TIMEOUT_S = 60.0
SHOWN = 5
SEARCHED = 200
"""How many records at the end of a partition are searched for records to show: many lines are blank."""


class Totals(NamedTuple):
    """The data passed to the producer, and the time until all of it was acknowledged."""

    records: int
    payload_bytes: int
    elapsed_s: float
    latencies_ms: list[float]


def demo(options: argparse.Namespace) -> int:
    """Run the demo; returns the exit code: 0 if the broker holds as many records as were sent."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(source_files(root))
    print(
        f"Sending every line of {len(files):,} files of Python {sys.version.split()[0]}'s standard library, "
        f"keyed by file, to an embedded broker ({options.partitions} partitions, {options.compression})"
    )
    with EmbeddedBroker(topics={TOPIC: options.partitions}, process=True) as broker:
        settings: dict[str, Any] = {
            "bootstrap_servers": broker.bootstrap_servers,
            "linger_ms": options.linger_ms,
        }
        if options.compression != "none":
            settings["compression_type"] = options.compression
        producer = connect(settings)
        try:
            totals = send_lines(producer, root, files)
            metrics = producer.metrics().get("producer-metrics", {})
        finally:
            producer.close(5)
        print()
        print("\n".join(table(rows(totals, metrics))))
        held = read_back(broker)
    if held != totals.records:
        print(f"the broker holds {held:,} records, but {totals.records:,} were sent", file=sys.stderr)
        return 1
    return 0


def source_files(root: Path) -> Iterator[Path]:
    """The ``.py`` files below ``root``, without packages that are installed in the same directory."""
    for path in root.rglob("*.py"):
        if not {"site-packages", "dist-packages"} & set(path.relative_to(root).parts):
            yield path


def send_lines(producer: KafkaProducer, root: Path, files: list[Path]) -> Totals:
    """Send each line as a record with its file as key; returns when all are acknowledged.

    A latency is the time from just before `send` to the callback of the record's future. It includes the time
    until the batch is full, the time in the broker, and the callback's own wait for the GIL.
    """
    progress = Progress(sys.stderr, sum(path.stat().st_size for path in files))
    latencies_ms: list[float] = []
    records = payload_bytes = read_bytes = 0
    send, now = producer.send, monotonic_s

    def arrived(sent_s: float, _metadata: object) -> None:
        latencies_ms.append((now() - sent_s) * 1000)

    began_s = now()
    for path in files:
        key = str(path.relative_to(root)).encode()
        content = path.read_bytes()
        lines = content.splitlines()
        for line in lines:
            if records % SAMPLE_EVERY == 0:
                sent_s = now()
                send(TOPIC, line, key).add_callback(arrived, sent_s)
            else:
                send(TOPIC, line, key)
            records += 1
        read_bytes += len(content)
        payload_bytes += sum(map(len, lines)) + len(key) * len(lines)
        rate = records / max(now() - began_s, 1e-9)
        progress.update(read_bytes, f"{records:,} records, {rate:,.0f}/s")
    producer.flush(FLUSH_TIMEOUT_S)
    elapsed_s = now() - began_s
    progress.close()
    return Totals(records, payload_bytes, elapsed_s, latencies_ms)


def rows(totals: Totals, metrics: dict[str, float]) -> list[tuple[str, str]]:
    """The rows of the table: totals counted here, batches and compression from the producer's metrics."""

    def metric(name: str, form: str, scale: float = 1.0) -> str:
        value = metrics.get(name)
        return "-" if value is None else form.format(value * scale)

    rate = metrics.get("compression-rate-avg")
    average = metrics.get("batch-size-avg")
    latencies = sorted(totals.latencies_ms)
    sampled = f" ({len(latencies):,} sampled)"
    return [
        ("records", f"{totals.records:,}"),
        ("keys and values", amount(totals.payload_bytes)),
        ("time until all were acknowledged", f"{totals.elapsed_s:.2f} s"),
        ("records/s", f"{totals.records / totals.elapsed_s:,.0f}"),
        ("batches", metric("batch-total", "{:,.0f}")),
        ("average batch, as sent", "-" if average is None else amount(average)),
        ("compression ratio", "-" if not rate else f"{1 / rate:.2f}"),
        ("latency p50, send to acknowledgement" + sampled, f"{quantile(latencies, 0.50):.2f} ms"),
        ("latency p99", f"{quantile(latencies, 0.99):.2f} ms"),
    ]


def quantile(ordered: list[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; NaN if there are none."""
    if not ordered:
        return float("nan")
    rank = -int(-share * len(ordered) // 1)
    return ordered[max(rank, 1) - 1]


def read_back(broker: EmbeddedBroker) -> int:
    """Print a few records as the broker holds them; returns the number of records in the broker."""
    ends = broker.end_offsets(TOPIC)
    fullest = ends.index(max(ends))
    print(f"\nRead back from partition {fullest}:")
    last = broker.records(TOPIC, fullest, offset=max(0, ends[fullest] - SEARCHED))
    for record in [each for each in last if (each.value or b"").strip()][:SHOWN]:
        key, value = (record.key or b"").decode(), (record.value or b"").decode(errors="replace")
        print(f"  offset {record.offset:>7}  {key}  {value.strip()[:60]!r}")
    return sum(ends)
