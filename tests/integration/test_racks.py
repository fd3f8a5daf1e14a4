"""Records without a key on three nodes in three racks (KIP-1123), while a node stops and comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from cyproducer import KafkaProducer
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RACKS = ["a", "b", "c"]
PARTITIONS = 9
COUNT = 600
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    # A node that comes back leads its partitions again after seconds, not minutes.
    properties = {
        "leader.imbalance.check.interval.seconds": 2,
        "leader.imbalance.per.broker.percentage": 0,
    }
    with KafkaCluster(3, properties, racks=RACKS, directory=tmp_path_factory.mktemp("racks")) as cluster:
        yield cluster


def shares(cluster: KafkaCluster, producer: KafkaProducer, topic: str) -> Counter[str]:
    """Sends records, and returns how many went to leaders in each rack."""
    leaders = {partition: cluster.leader(topic, partition) for partition in range(PARTITIONS)}
    futures = [producer.send(topic, b"v" * 100) for _ in range(COUNT)]
    found: Counter[str] = Counter()
    for future in futures:
        found[RACKS[leaders[future.get(timeout=PATIENCE_S).partition] - 1]] += 1
    return found


def await_shares(
    cluster: KafkaCluster, producer: KafkaProducer, topic: str, wanted: set[str]
) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in looks(PATIENCE_S):
        found = shares(cluster, producer, topic)
        if set(found) == wanted:
            return found
    raise AssertionError(f"records went to racks {found}, not to {wanted}")


def test_records_go_to_the_clients_rack_unless_its_node_is_down(racks: KafkaCluster) -> None:
    racks.create_topic("t", PARTITIONS)
    with KafkaProducer(
        bootstrap_servers=racks.bootstrap_servers,
        partitioner_rack_aware=True,
        client_rack="b",
        batch_size=1000,
        request_timeout_ms=2_000,
        metadata_max_age_ms=1_000,
    ) as producer:
        assert shares(racks, producer, "t") == {"b": COUNT}
        racks.kill(2)
        # Until the node's session ends, its partitions have no other leader.
        meanwhile = await_shares(racks, producer, "t", {"a", "c"})
        assert min(meanwhile.values()) > COUNT // 5
        racks.restart(2)
        assert await_shares(racks, producer, "t", {"b"}) == {"b": COUNT}


def test_without_the_option_a_rack_means_nothing(racks: KafkaCluster) -> None:
    racks.create_topic("everywhere", PARTITIONS)
    with KafkaProducer(
        bootstrap_servers=racks.bootstrap_servers, client_rack="b", batch_size=1000
    ) as producer:
        found = shares(racks, producer, "everywhere")
    assert set(found) == set(RACKS)
    assert min(found.values()) > COUNT // 6
