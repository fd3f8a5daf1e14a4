"""The shared parts of the tests of delivery under faults: the producers' settings, and the final check.

Owns the producers' options, the guarantee of each setting, and the order of the checks.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cyproducer import KafkaProducer
from tests.integration.cluster_faults import ClusterFaults
from tests.integration.consume import Fetched, read_all
from tests.integration.fault_log import FaultLog
from tests.integration.ledger import Reckoning, Writer
from tests.integration.log_dump import DumpedPartition, dump_partitions
from tools.harness.kafka_cluster import KafkaCluster

PARTITIONS = 5
SEED = os.environ.get("FAULTS_SEED", "1")
"""The seed of the faults. Set FAULTS_SEED in the environment for other faults."""
PATIENCE = float(os.environ.get("FAULTS_PATIENCE", "1"))
"""A factor for the duration of the faults. Set FAULTS_PATIENCE for a longer run."""


@dataclass(frozen=True)
class Way:
    """A producer setting, and its guarantee for records while leaders change."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    twice: bool = False
    """Whether a record may be written more than once."""
    lost: bool = False
    """Whether an acknowledged record may be lost with a leader that dies."""


def idempotent(codec: str | None) -> Way:
    options = {"enable_idempotence": True, "acks": "all", "compression_type": codec}
    return Way(f"idempotent-{codec}", options)


def repeating(acks: int | str, codec: str | None = None) -> Way:
    """A setting without idempotence: a record may be written twice, but never out of order."""
    options = {"enable_idempotence": False, "acks": acks, "compression_type": codec}
    return Way(f"acks-{acks}-{codec}", options, twice=True, lost=acks == 1)


def producer(bootstrap_servers: str, way: Way, **options: Any) -> KafkaProducer:
    """Returns a producer with timeouts short enough for tests, and with many small batches in flight."""
    usual: dict[str, Any] = {
        "linger_ms": 0,
        "batch_size": 4_000,
        "max_in_flight_requests_per_connection": 5,
        "request_timeout_ms": 1_000,
        "retry_backoff_ms": 20,
        "retry_backoff_max_ms": 200,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 200,
        "allow_auto_create_topics": False,
    }
    return KafkaProducer(bootstrap_servers=bootstrap_servers, **usual | way.options | options)


@contextlib.contextmanager
def writing(bootstrap_servers: str, way: Way, topic: str, log: FaultLog, **options: Any) -> Iterator[Writer]:
    """Writes to a topic with a separate producer until the end of the block. Then all records have an
    outcome."""
    with (
        producer(bootstrap_servers, way, **options) as its_producer,
        Writer(its_producer, topic, PARTITIONS, log) as writer,
    ):
        yield writer


def settle(
    cluster: KafkaCluster,
    faults: ClusterFaults,
    writer: Writer,
    way: Way,
    *,
    deaths: bool = True,
    failed_until_s: float = 0,
    since_s: float = 0,
    restarts: bool = False,
) -> Reckoning:
    """Reads everything back and checks it, then checks the sequences in the leaders' files.

    Args:
        deaths: Whether leaders have died or moved, so that acks=1 may have lost records.
        failed_until_s: See `Reckoning`.
        since_s: See `Reckoning`.
        restarts: See `Reckoning`.
    """
    faults.await_in_sync(writer.topic)
    lost = way.lost and deaths
    expected = sum(
        entry.offset is not None and entry.sent_s >= since_s
        for entries in writer.entries
        for entry in entries
    )
    found = _read(cluster, writer.topic, 0 if lost else expected)
    reckoning = Reckoning(
        writer,
        found,
        twice=way.twice,
        lost=lost,
        failed_until_s=failed_until_s,
        since_s=since_s,
        restarts=restarts,
    )
    reckoning.check()
    if way.options["enable_idempotence"]:
        check_sequences(cluster, writer, fresh=since_s == 0)
    return reckoning


def _read(cluster: KafkaCluster, topic: str, expected: int) -> list[Fetched]:
    try:
        return read_all(cluster.bootstrap_servers, topic, expected, timeout=10)
    except TimeoutError:
        # Records are missing: let the reckoning report which.
        return read_all(cluster.bootstrap_servers, topic, 0)


def check_sequences(cluster: KafkaCluster, writer: Writer, *, fresh: bool = True) -> None:
    """Checks that batches in the leaders' files are valid and that sequences have no gap within an epoch.

    ``fresh``: whether the topic's first batches start at sequence 0, as those of a new producer do.
    """
    led = defaultdict(list)
    for index in range(writer.partitions):
        led[cluster.leader(writer.topic, index)].append((writer.topic, index))
    wrong = []
    for leader, partitions in led.items():
        dump = dump_partitions(cluster.log_dir(leader), partitions, deep=False)
        for (topic, index), partition in dump.items():
            complaints = sequence_complaints(partition, fresh=fresh)
            wrong += [f"{topic}-{index} on node {leader}: {complaint}" for complaint in complaints[:20]]
    if wrong:
        raise AssertionError("\n".join([*wrong, str(writer.log)]))


def sequence_complaints(partition: DumpedPartition, *, fresh: bool = True) -> list[str]:
    """Returns complaints about the batches that one idempotent producer wrote to a partition."""
    complaints = list(partition.complaints)
    previous = None
    for batch in partition.batches:
        if not batch.is_valid:
            complaints.append(f"the CRC is wrong: {batch}")
        if batch.producer_id < 0:
            complaints.append(f"not idempotent: {batch}")
        if batch.last_sequence != (batch.base_sequence + batch.record_count - 1) % 2**31:
            complaints.append(f"the last sequence does not fit the count: {batch}")
        place = (batch.producer_id, batch.producer_epoch)
        if previous is None:
            follows = batch.base_sequence == 0 or not fresh
        elif (previous.producer_id, previous.producer_epoch) == place:
            follows = batch.base_sequence == (previous.last_sequence + 1) % 2**31
        else:
            follows = batch.base_sequence == 0 and (
                batch.producer_id != previous.producer_id or batch.producer_epoch > previous.producer_epoch
            )
        if not follows:
            complaints.append(f"{batch} does not follow {previous}")
        previous = batch
    return complaints
