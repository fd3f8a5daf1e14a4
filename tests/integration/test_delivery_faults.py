"""Tests records that flow with all settings at once while nodes die and hang, leaders move, and topics are
recreated. Uses three nodes.

Each test has one writer per setting; the first is idempotent.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.integration.cluster_faults import ClusterFaults
from tests.integration.delivery_rig import (
    PARTITIONS,
    PATIENCE,
    Way,
    idempotent,
    repeating,
    settle,
    writing,
)
from tests.integration.fault_log import FaultLog
from tests.integration.ledger import Writer
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    # kafka-python reads its message definitions this way.
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

WAYS = (idempotent("lz4"), repeating("all"), repeating(1, "zstd"))


@contextlib.contextmanager
def writing_every_way(
    cluster: KafkaCluster, faults: ClusterFaults, log: FaultLog, topic: str
) -> Iterator[list[tuple[Way, Writer]]]:
    """Starts one writer per setting, each with its own topic, and waits until records are acknowledged."""
    with contextlib.ExitStack() as stack:
        writers = []
        for way in WAYS:
            name = f"{topic}-{way.name}"
            faults.create(name, PARTITIONS)
            writer = stack.enter_context(writing(cluster.bootstrap_servers, way, name, log))
            writers.append((way, writer))
        pass_by(writers)
        yield writers


def pass_by(writers: Sequence[tuple[Way, Writer]]) -> None:
    goals = [(writer, writer.goal()) for _, writer in writers]
    for writer, goal in goals:
        writer.pass_by(goal)


def rounds(usual: int) -> int:
    return max(1, round(usual * PATIENCE))


def test_killed_leaders(kafka_cluster: KafkaCluster, faults: ClusterFaults, log: FaultLog) -> None:
    rng = random.Random(log.seed)
    with writing_every_way(kafka_cluster, faults, log, "killed") as writers:
        for _ in range(rounds(1)):
            victim = rng.choice(faults.leaders(writers[0][1].topic, PARTITIONS))
            time.sleep(rng.uniform(0, 0.3))
            faults.kill(victim)
            pass_by(writers)
            faults.restart(victim)
            for _, writer in writers:
                # Wait before killing the next: with two replicas down nothing could be acknowledged.
                faults.await_in_sync(writer.topic)
            pass_by(writers)

    for way, writer in writers:
        settle(kafka_cluster, faults, writer, way, restarts=True)


def test_paused_brokers(kafka_cluster: KafkaCluster, faults: ClusterFaults, log: FaultLog) -> None:
    rng = random.Random(log.seed)
    with writing_every_way(kafka_cluster, faults, log, "paused") as writers:
        # Longer than request_timeout_ms, so that records are sent again. After a short pause the node is
        # still leader, and its old connections still have unread requests when it resumes.
        for pause_s in [rng.uniform(1.2, 3), rng.uniform(6, 7), rng.uniform(1.2, 3)] * rounds(1):
            victim = rng.choice(faults.leaders(writers[0][1].topic, PARTITIONS))
            faults.pause(victim)
            time.sleep(pause_s)
            faults.resume(victim)
            pass_by(writers)

    for way, writer in writers:
        settle(kafka_cluster, faults, writer, way)


def test_moved_partitions(kafka_cluster: KafkaCluster, faults: ClusterFaults, log: FaultLog) -> None:
    rng = random.Random(log.seed)
    nodes = kafka_cluster.node_ids
    with writing_every_way(kafka_cluster, faults, log, "moved") as writers:
        for _ in range(rounds(5)):
            for _, writer in writers:
                faults.move(writer.topic, [rng.sample(nodes, rng.choice((2, 3))) for _ in range(PARTITIONS)])
            time.sleep(rng.uniform(0.2, 1))
            for _, writer in writers:
                faults.elect(writer.topic, PARTITIONS)
            pass_by(writers)

    for way, writer in writers:
        settle(kafka_cluster, faults, writer, way)


def test_topics_deleted_and_made_again(
    kafka_cluster: KafkaCluster, faults: ClusterFaults, log: FaultLog
) -> None:
    with writing_every_way(kafka_cluster, faults, log, "phoenix") as writers:
        made_s: dict[str, float] = {}
        for _ in range(rounds(3)):
            for _, writer in writers:
                faults.delete(writer.topic)
                faults.create_at_once(writer.topic, PARTITIONS)
                made_s[writer.topic] = log.now_s()
            pass_by(writers)

    for way, writer in writers:
        # Records in flight to the old topic, with an unknown outcome, may fail, and must fail if the new
        # topic has later records.
        made = made_s[writer.topic]
        settle(kafka_cluster, faults, writer, way, failed_until_s=made, since_s=made)
