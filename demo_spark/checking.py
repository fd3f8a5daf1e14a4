"""Compares a topic's records with those that Spark computed, and prints the result as a table.

Owns the hashes of the records read back, the comparison, the table and the verdict. Does not own the pipeline
(`pipeline`). Runs on the main thread.

A record's hash is the first 60 bits of the MD5 of its key, a zero byte and its value. Spark and Python both
have MD5 built in, and 60 bits fit Spark's bigint. Multisets of hashes are compared, so order does not matter
and duplicates are found.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cyproducer.cli.console import amount

if TYPE_CHECKING:
    from confluent_kafka import Consumer

HASH_SQL = (
    "cast(conv(substr(md5(concat(cast(key as binary), X'00', cast(value as binary))), 1, 15), 16, 10) "
    "as bigint) as hash"
)
"""`record_hash` as a Spark SQL expression over the columns ``key`` and ``value``."""
POLL_S = 0.2
READ_AT_ONCE = 10_000
STALLED_S = 60.0
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"


class ReadBack(NamedTuple):
    """A topic's records, as read by librdkafka's consumer."""

    hashes: pa.Array
    payload_bytes: int
    """Bytes of keys and values."""
    end_offsets: int
    """Sum over the partitions. Without transactions, this is the number of appended records. With them, it
    also counts the markers that end them, and the records of aborted ones."""
    elapsed_s: float


class Killed(NamedTuple):
    """Where the driver of a stream was killed."""

    batch: int
    """The micro-batch that it committed then, from 0."""
    batches: int
    """The micro-batches of the stream."""


class Difference(NamedTuple):
    """Numbers of records that differ. A record counts once per missing or surplus copy."""

    lost: int
    duplicates: int
    foreign: int
    """Records unknown to Spark: corrupted, or written by another producer."""


@dataclass(frozen=True)
class Outcome:
    """One topic's column of the table."""

    topic: str
    mode: str
    """``batch``, or the number of micro-batches."""
    expected: pa.Array
    found: ReadBack
    summary_rows: int
    """Acknowledged rows, according to the sink's summaries."""
    elapsed_s: float
    """From the start to the end of Spark's job or stream."""
    disk_bytes: int
    partitions: int
    p99_ms: float
    delivery: str = AT_LEAST_ONCE
    """The delivery guarantee: `AT_LEAST_ONCE` or `EXACTLY_ONCE`."""
    killed: Killed | None = None
    open_transactions: int = 0
    """Transactions of the topic's writers that have not ended."""

    @property
    def repeats(self) -> bool:
        """Whether rows are expected to be written twice: its driver was killed, and nothing prevents it."""
        return self.killed is not None and self.delivery == AT_LEAST_ONCE

    @property
    def difference(self) -> Difference:
        return compare(self.expected, self.found.hashes)


def record_hash(key: bytes | None, value: bytes | None) -> int:
    """Returns a record's hash (see the module). Does not distinguish ``None`` from empty: the pipeline has
    neither."""
    digest = hashlib.md5((key or b"") + b"\0" + (value or b""), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big") >> 4


def compare(expected: pa.Array, found: pa.Array) -> Difference:
    """Returns how the multiset ``found`` differs from ``expected``."""
    counts = _counts(expected, "expected").join(_counts(found, "found"), "hash", join_type="full outer")
    wanted, there = (pc.fill_null(counts[name], 0) for name in ("expected", "found"))
    surplus = pc.subtract(there, wanted)
    known = pc.greater(wanted, 0)

    def total(condition: Any, values: Any) -> int:
        return int(pc.sum(pc.filter(values, condition)).as_py() or 0)

    more = pc.greater(surplus, 0)
    return Difference(
        lost=-total(pc.less(surplus, 0), surplus),
        duplicates=total(pc.and_(more, known), surplus),
        foreign=total(pc.and_(more, pc.invert(known)), surplus),
    )


def _counts(hashes: pa.Array, name: str) -> pa.Table:
    table = pa.table({"hash": hashes}).group_by("hash").aggregate([([], "count_all")])
    return table.rename_columns(
        [{"hash": "hash", "count_all": name}[column] for column in table.column_names]
    )


def checksum(hashes: pa.Array) -> str:
    """Returns the lower 64 bits of the sum of all hashes, in hexadecimal. Does not depend on the order."""
    # Arrow's sum of signed 64-bit integers wraps around, as intended.
    total = pc.sum(hashes).as_py() or 0
    return f"{total & (1 << 64) - 1:016x}"


def read_back(bootstrap: str, topic: str, on_progress: Callable[[int], None]) -> ReadBack:
    """Reads a whole topic, up to its first open transaction. Calls ``on_progress`` with the number of records
    read so far.

    Raises:
        TimeoutError: No record arrived for a minute, before the end of the topic.
    """
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo-spark",
            "enable.auto.commit": False,
            # A topic may end with the markers of transactions, which have offsets but are never returned.
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "isolation.level": "read_committed",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        return _read(consumer, topic, on_progress)
    finally:
        consumer.close()


def _read(consumer: Consumer, topic: str, on_progress: Callable[[int], None]) -> ReadBack:
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

    began_s = heard_s = time.monotonic()
    partitions = consumer.list_topics(topic, timeout=STALLED_S).topics[topic].partitions
    ends = {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=STALLED_S)[1]
        for number in partitions
    }
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    hashes = array("q")
    payload_bytes = 0
    left = set(partitions)
    while left:
        messages = consumer.consume(READ_AT_ONCE, POLL_S)
        now_s = time.monotonic()
        if messages:
            heard_s = now_s
        elif now_s - heard_s > STALLED_S:
            raise TimeoutError(
                f"topic {topic!r}: no record for {STALLED_S:.0f} s; partitions not read to their end: {left}"
            )
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                left.discard(message.partition())
                continue
            key, value = message.key() or b"", message.value() or b""
            hashes.append(record_hash(key, value))
            payload_bytes += len(key) + len(value)
        on_progress(len(hashes))
    found = pa.Array.from_buffers(pa.int64(), len(hashes), [None, pa.py_buffer(hashes)])
    return ReadBack(found, payload_bytes, sum(ends.values()), time.monotonic() - began_s)


def complaints(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns a sentence for each topic whose records are not as expected."""
    said = []
    for outcome in outcomes:
        expected, wrong = len(outcome.expected), []
        lost, duplicates, foreign = outcome.difference
        if lost:
            wrong.append(f"{lost:,} lost")
        if duplicates and not outcome.repeats:
            wrong.append(f"{duplicates:,} more than once")
        if outcome.repeats and not duplicates:
            wrong.append("none written twice, although its driver was killed")
        if foreign:
            wrong.append(f"{foreign:,} unknown to Spark")
        if outcome.open_transactions:
            wrong.append(f"{outcome.open_transactions:,} transactions left open")
        # With transactions, markers have offsets, too. And the sink has no summary of a micro-batch whose
        # commit another driver has completed.
        if outcome.delivery == AT_LEAST_ONCE:
            written = expected + (duplicates if outcome.repeats else 0)
            if outcome.found.end_offsets != written:
                wrong.append(f"end offsets of {outcome.found.end_offsets:,}")
            if outcome.summary_rows != written:
                wrong.append(f"{outcome.summary_rows:,} in the sink's summaries")
        if wrong:
            said.append(f"topic {outcome.topic!r}: {expected:,} rows expected, but {', '.join(wrong)}")
    return said


def conclusion(outcomes: Sequence[Outcome]) -> str:
    """Returns what the table shows, if there are no `complaints`."""
    killed = [each for each in outcomes if each.killed is not None]
    if not killed:
        return "Each topic holds exactly the rows that Spark computed, each once."
    said = ["Each topic holds the rows that Spark computed, and no others."]
    for each in killed:
        if each.repeats:
            duplicates = each.difference.duplicates
            said.append(
                f"{each.topic}: {duplicates:,} rows are there twice, which at-least-once allows:\n"
                "  its driver was killed after they were acknowledged and before Spark had noted that."
            )
        else:
            said.append(
                f"{each.topic}: each row is there once, although its driver was killed while it committed."
            )
    said.append("All other topics: each row is there once.")
    return "\n".join(said)


def grid(outcomes: Sequence[Outcome]) -> str:
    """Returns the table, with one column per topic. Topics whose drivers were killed are in a second part."""
    whole = [each for each in outcomes if each.killed is None]
    killed = [each for each in outcomes if each.killed is not None]
    parts = [_lines(part) for part in (whole, killed) if part]
    first = max(len(name) for part in parts for name in part)
    said = "\n\n".join(_part(part, first) for part in parts)
    if any(each.delivery == EXACTLY_ONCE for each in outcomes):
        said += (
            "\n\n  offsets used: one for each row; with exactly-once also one for each marker that ends a "
            "transaction\n  in a partition, and for each row of an aborted transaction. Readers see neither."
        )
    return said


def _lines(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}

    def line(name: str, value: str) -> None:
        lines.setdefault(name, []).append(value)

    for o in outcomes:
        difference = o.difference
        line("topic", o.topic)
        line("written as", o.mode)
        if o.killed is not None:
            line("delivery guarantee", o.delivery)
            line("driver killed in", f"micro-batch {o.killed.batch + 1} of {o.killed.batches}")
        line("rows, by Spark", f"{len(o.expected):,}")
        line("rows read back", f"{len(o.found.hashes):,}")
        line("lost", f"{difference.lost:,}")
        line("duplicates", f"{difference.duplicates:,}")
        line("foreign", f"{difference.foreign:,}")
        if o.killed is not None:
            line("open transactions", f"{o.open_transactions:,}")
        line("offsets used", f"{o.found.end_offsets:,}")
        line("checksum, by Spark", checksum(o.expected))
        line("checksum, read back", checksum(o.found.hashes))
        line("partitions", f"{o.partitions}")
        line("keys and values", amount(o.found.payload_bytes))
        line("on the broker's disk", amount(o.disk_bytes))
        if o.killed is None:
            line("seconds, whole Spark job", f"{o.elapsed_s:.1f}")
            line("rows/s", f"{len(o.expected) / o.elapsed_s:,.0f}")
        else:
            line("seconds, with both starts", f"{o.elapsed_s:.1f}")
        line("p99, record to acknowledgement", f"{o.p99_ms:.1f} ms")
        line("seconds to read back", f"{o.found.elapsed_s:.1f}")
    return lines


def _part(lines: dict[str, list[str]], first: int) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*lines.values(), strict=True)]
    return "\n".join(
        "  ".join([f"  {name:<{first}}", *(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))])
        for name, cells in lines.items()
    )
