"""Retention in an embedded cluster: which batches are too old or too many, and when this is checked.

Owns the rules for logs, and the periodic checks. Does not own deleting from a log (``cluster``), or which
offsets of groups are too old (``groups``).

The rules are Kafka's for segments, and every batch is a segment: batches are deleted from the start of a log,
only below the high watermark, and the log start offset moves to the first batch that is kept. A batch is too
old if its largest timestamp is more than ``retention.ms`` ago (KIP-33). The batches in excess of
``retention.bytes`` are deleted, so that at least that many bytes are kept. Batches of open transactions are
kept.
"""

from collections.abc import Iterable
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Final

from cyproducer.testing.broker import batches
from cyproducer.testing.broker.partitions import Entry, Partition
from cyproducer.testing.broker.world import NS_PER_MS

if TYPE_CHECKING:
    from cyproducer.testing.broker.cluster import EmbeddedCluster

LOG_CHECK_MS: Final = 5 * 60_000
"""``log.retention.check.interval.ms``"""
OFFSETS_CHECK_MS: Final = 10 * 60_000
"""``offsets.retention.check.interval.ms``"""


def begin(cluster: "EmbeddedCluster") -> None:
    """Schedules the periodic checks."""
    cluster.world.after(LOG_CHECK_MS, _check_logs, cluster)
    cluster.world.after(OFFSETS_CHECK_MS, _check_offsets, cluster)


def _check_offsets(cluster: "EmbeddedCluster") -> None:
    cluster.groups.expire()
    cluster.world.after(OFFSETS_CHECK_MS, _check_offsets, cluster)


def _check_logs(cluster: "EmbeddedCluster") -> None:
    for partition in cluster.topics.partitions():
        by_time(cluster, partition)
        by_size(cluster, partition)
    cluster.world.after(LOG_CHECK_MS, _check_logs, cluster)


def by_time(cluster: "EmbeddedCluster", partition: Partition) -> None:
    """Deletes the batches that are older than ``retention.ms``."""
    most_ms = _limit(cluster, partition, "retention.ms")
    if most_ms >= 0:
        now_ms = cluster.world.now_ns // NS_PER_MS
        old = takewhile(lambda entry: now_ms - _newest_ms(entry) > most_ms, partition.entries)
        _delete(cluster, partition, old)


def by_size(cluster: "EmbeddedCluster", partition: Partition) -> None:
    """Deletes the oldest batches in excess of ``retention.bytes``."""
    most = _limit(cluster, partition, "retention.bytes")
    if most >= 0:
        excess = sum(entry.size for entry in partition.entries) - most
        sums = accumulate(entry.size for entry in partition.entries)
        surplus = takewhile(lambda pair: pair[1] <= excess, zip(partition.entries, sums, strict=True))
        _delete(cluster, partition, (entry for entry, _ in surplus))


def _limit(cluster: "EmbeddedCluster", partition: Partition, name: str) -> int:
    """Returns a limit of a topic; -1 if there is none."""
    deletes = "delete" in cluster.config(partition.topic, "cleanup.policy")
    return int(cluster.config(partition.topic, name)) if deletes else -1


def _newest_ms(entry: Entry) -> int:
    """Returns the largest timestamp of a batch in milliseconds. Without one, it is the time of the append."""
    stamp_ms = -1 if entry.commits is not None else batches.read(entry.data).max_ms
    return stamp_ms if stamp_ms >= 0 else entry.written_ns // NS_PER_MS


def _delete(cluster: "EmbeddedCluster", partition: Partition, condemned: Iterable[Entry]) -> None:
    """Deletes these batches, which are the first ones of the log, up to the first open transaction."""
    stable, start = partition.last_stable, partition.log_start
    for entry in takewhile(lambda entry: entry.end <= stable, condemned):
        start = entry.end
    cluster.delete_before(partition, start)
