"""A broker that rejects a version of ApiVersions which it says it supports, and one that is too old."""

import struct

import pytest

from tests.scripted import scripted_wire as wire
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import API_VERSIONS, PRODUCE, Act, ScriptedCluster


@pytest.mark.parametrize("offered", [(-9, -5), (3, -5), (5, 2)])
def test_a_range_that_cannot_be_is_no_range(offered: tuple[int, int]) -> None:
    def rejects(response: bytes) -> bytes:
        (correlation_id,) = struct.unpack_from(">i", response, 4)
        return wire.write_api_versions(0, correlation_id, {API_VERSIONS: offered}, error=35)

    with ScriptedCluster(orders=1) as cluster:
        cluster.act(API_VERSIONS, Act(rewrite=rejects))
        with producing(cluster) as producer:
            assert producer.send("orders", b"v").get(WAIT_S).offset == 0
        first = cluster.nodes[1].connections[0]
        asked = [each.header.version for each in first.requests if each.api_key == API_VERSIONS]
        assert asked == [4, max(0, offered[1])]


def test_a_rejected_version_is_not_asked_for_again() -> None:
    """The next request goes one version down, whatever range the broker names: else they never end."""

    def rejects(response: bytes) -> bytes:
        (correlation_id,) = struct.unpack_from(">i", response, 4)
        return wire.write_api_versions(0, correlation_id, {API_VERSIONS: (0, 4)}, error=35)

    with ScriptedCluster(orders=1) as cluster:
        cluster.act(API_VERSIONS, *[Act(rewrite=rejects)] * 3)
        with producing(cluster) as producer:
            assert producer.send("orders", b"v").get(WAIT_S).offset == 0
        first = cluster.nodes[1].connections[0]
        asked = [each.header.version for each in first.requests if each.api_key == API_VERSIONS]
        assert asked == [4, 3, 2, 1]


@pytest.mark.parametrize(("highest", "warnings"), [(6, 1), (7, 0)])
def test_a_broker_older_than_supported_is_named_once(
    highest: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedCluster(nodes=2, orders=2) as cluster:
        for node in cluster.nodes.values():
            node.versions[PRODUCE] = (0, highest)
        with producing(cluster) as producer:
            for partition in range(2):
                producer.send("orders", b"v", partition=partition).get(WAIT_S)
    said = [record.getMessage() for record in caplog.records if "older than" in record.getMessage()]
    assert len(said) == warnings
    assert all("127.0.0.1:" in text and "is older than Kafka 2.1, the oldest" in text for text in said)
