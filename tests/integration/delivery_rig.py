"""What the tests of delivery under faults have in common: ways to produce, and the check at the end.

Owns the producers' options, which promise goes with which, and the order of the checks.
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
from tests.integration.kafka_cluster import KafkaCluster
from tests.integration.ledger import Reckoning, Writer
from tests.integration.log_dump import DumpedPartition, dump_partitions

PARTITIONS = 5
SEED = os.environ.get("FAULTS_SEED", "1")
"""Set it in the environment for other faults than the usual ones."""
PATIENCE = float(os.environ.get("FAULTS_PATIENCE", "1"))
"""A factor on how long the faults last, for a longer run."""


@dataclass(frozen=True)
class Way:
    """A way to produce, and what it promises of records whose leaders come and go."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    twice: bool = False
    """A record may be there more than once."""
    lost: bool = False
    """An acknowledged record may go with a leader that dies."""


def idempotent(codec: str | None) -> Way:
    options = {"enable_idempotence": True, "acks": "all", "compression_type": codec}
    return Way(f"idempotent-{codec}", options)


def repeating(acks: int | str, codec: str | None = None) -> Way:
    """Without idempotence: what is sent again may be there twice, but never out of order."""
    options = {"enable_idempotence": False, "acks": acks, "compression_type": codec}
    return Way(f"acks-{acks}-{codec}", options, twice=True, lost=acks == 1)


def producer(bootstrap_servers: str, way: Way, **options: Any) -> KafkaProducer:
    """A producer that notices and retries within tests' time, with many small batches on their way."""
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
    """A producer of its own that writes to a topic until the end of the block; then all is settled."""
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
    """Reads everything back and checks it, then the sequences in the leaders' files.

    Args:
        deaths: Whether leaders have died or moved, which is where acks=1 may lose records.
        failed_until_s: As `Reckoning` has it.
        since_s: As `Reckoning` has it.
        restarts: As `Reckoning` has it.
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
        # What is missing is for the reckoning to say.
        return read_all(cluster.bootstrap_servers, topic, 0)


def check_sequences(cluster: KafkaCluster, writer: Writer, *, fresh: bool = True) -> None:
    """That batches in the leaders' files are whole and numbered without a gap, epoch by epoch.

    ``fresh``: whether the first batches of the topic begin at 0, as those of a new producer do.
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
    """What is wrong with the batches that one idempotent producer wrote to a partition."""
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
