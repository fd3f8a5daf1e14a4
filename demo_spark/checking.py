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


class ReadBack(NamedTuple):
    """A topic's records, as read by librdkafka's consumer."""

    hashes: pa.Array
    payload_bytes: int
    """Bytes of keys and values."""
    end_offsets: int
    """Sum over the partitions. Without transactions, this is the number of appended records; with them, it
    also counts markers, and records that were aborted."""
    elapsed_s: float


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
    summary_rows: int | None
    """Acknowledged rows, according to the sink's summaries; None: its driver was killed, and some were not
    told."""
    elapsed_s: float
    """From the start to the end of Spark's job or stream."""
    disk_bytes: int
    partitions: int
    p99_ms: float
    may_double: bool = False
    """Whether rows may be there more than once: the driver was killed, and the guarantee is at-least-once."""
    transactional: bool = False
    open_transactions: int = 0

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
    """Reads a whole topic. Calls ``on_progress`` with the number of records read so far.

    Raises:
        TimeoutError: No record arrived for a minute, before the end of the topic.
    """
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo-spark",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
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
    left = set(ends)
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
                # The last offset may be a marker's, which is no message.
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
        if duplicates and not outcome.may_double:
            wrong.append(f"{duplicates:,} more than once")
        if foreign:
            wrong.append(f"{foreign:,} unknown to Spark")
        if outcome.open_transactions:
            wrong.append(f"{outcome.open_transactions:,} transactions left open")
        if not (outcome.may_double or outcome.transactional) and outcome.found.end_offsets != expected:
            wrong.append(f"end offsets of {outcome.found.end_offsets:,}")
        if outcome.summary_rows not in (None, expected):
            wrong.append(f"{outcome.summary_rows:,} in the sink's summaries")
        if wrong:
            said.append(f"topic {outcome.topic!r}: {expected:,} rows expected, but {', '.join(wrong)}")
    return said


def grid(outcomes: Sequence[Outcome]) -> str:
    """Returns the table, with one column per topic."""
    lines: dict[str, list[str]] = {}

    def line(name: str, value: str) -> None:
        lines.setdefault(name, []).append(value)

    for o in outcomes:
        difference = o.difference
        line("topic", o.topic)
        line("written as", o.mode)
        line("rows, by Spark", f"{len(o.expected):,}")
        line("offsets used", f"{o.found.end_offsets:,}")
        line("rows read back", f"{len(o.found.hashes):,}")
        line("lost", f"{difference.lost:,}")
        line("duplicates", f"{difference.duplicates:,}")
        line("foreign", f"{difference.foreign:,}")
        line("checksum, by Spark", checksum(o.expected))
        line("checksum, read back", checksum(o.found.hashes))
        line("partitions", f"{o.partitions}")
        line("keys and values", amount(o.found.payload_bytes))
        line("on the broker's disk", amount(o.disk_bytes))
        line("seconds, whole Spark job", f"{o.elapsed_s:.1f}")
        line("rows/s", f"{len(o.expected) / o.elapsed_s:,.0f}")
        line("p99, record to acknowledgement", "-" if o.summary_rows is None else f"{o.p99_ms:.1f} ms")
        line("seconds to read back", f"{o.found.elapsed_s:.1f}")
    first = max(map(len, lines))
    widths = [max(len(cell) for cell in column) for column in zip(*lines.values(), strict=True)]
    return "\n".join(
        "  ".join([f"  {name:<{first}}", *(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))])
        for name, cells in lines.items()
    )
