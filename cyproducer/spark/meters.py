"""Reads what a producer has counted since a task began.

Owns the difference between two snapshots of a producer's counters. Does not count: the sender does
(``base/meters``). A producer outlives its tasks, so its totals include all of them. ``metrics()`` is not used
because it would compute every metric of every topic. Tasks that use the same producer at the same time also
count each other's records. One thread at a time.
"""

from collections.abc import Mapping
from typing import Final

from cyproducer.accumulator.metric_snapshot import Reading, read_producer
from cyproducer.producer import KafkaProducer

_LATENCY: Final = "acknowledged_ns"
_RETRIES: Final = "records_retried"
_NS_PER_MS: Final = 1e6


class SinceThen:
    """A producer's counters since this object was made. All values are 0 if ``metrics_enabled`` is False."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer
        before = self._read()
        self._buckets = {} if before is None else dict(before.buckets(_LATENCY))
        self._retries = 0 if before is None else before.total(_RETRIES)

    def _read(self) -> Reading | None:
        if not self._producer.config.metrics_enabled:
            return None
        return read_producer(self._producer._runtime.accumulator)

    def retries_and_p99_ms(self) -> tuple[int, float]:
        """Returns the number of records sent again (a record counts each time), and the 99th percentile,
        accurate to 1.6 %, of the milliseconds from a batch's first record to the batch's acknowledgement; 0.0
        if no batch was acknowledged."""
        now = self._read()
        if now is None:
            return 0, 0.0
        p99 = percentile(self._buckets, dict(now.buckets(_LATENCY)), 0.99) / _NS_PER_MS
        return now.total(_RETRIES) - self._retries, p99


def percentile(before: Mapping[float, int], after: Mapping[float, int], share: float) -> float:
    """Returns the percentile (``share``: 0 to 1, nearest rank) of the samples that were added between two
    snapshots of a histogram, which map a bucket's midpoint to its cumulative count; 0.0 if there are none."""
    counted = [(middle, count - before.get(middle, 0)) for middle, count in sorted(after.items())]
    total = sum(count for _, count in counted)
    below = 0
    for middle, count in counted:
        below += count
        if count and below >= share * total:
            return middle
    return 0.0
