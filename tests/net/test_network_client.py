"""The handshake with brokers of different ages, and the versions that it selects."""

import pytest

from cyproducer import errors
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import API_VERSIONS, METADATA, PRODUCE, Act, Received, ScriptedCluster


@pytest.mark.parametrize("produce", range(3, 14))
def test_the_highest_produce_version_of_both_is_used(produce: int) -> None:
    with ScriptedCluster(orders=2) as cluster:
        cluster.nodes[1].versions[PRODUCE] = (0, produce)
        with producing(cluster) as producer:
            assert producer.send("orders", b"1", partition=1).get(WAIT_S).offset == 0
        assert {received.header.version for received in cluster.received(PRODUCE)} == {produce}


@pytest.mark.parametrize("metadata", range(1, 14))
def test_the_highest_metadata_version_of_both_is_used(metadata: int) -> None:
    with ScriptedCluster(2, orders=2) as cluster:
        for node in cluster.nodes.values():
            node.versions[METADATA] = (0, metadata)
        with producing(cluster) as producer:
            assert producer.send("orders", b"1", partition=1).get(WAIT_S).offset == 0
        assert {received.header.version for received in cluster.received(METADATA)} == {metadata}
        # Metadata v10 introduced topic ids; without them, Produce requests use topic names.
        (version,) = {received.header.version for received in cluster.received(PRODUCE)}
        assert version == (13 if metadata >= 10 else 12)


@pytest.mark.parametrize("highest", range(5))
@pytest.mark.parametrize("tells_ranges", [True, False])
def test_an_older_broker_gets_another_handshake_request_in_its_version(
    highest: int, tells_ranges: bool
) -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        cluster.nodes[1].versions[API_VERSIONS] = (0, highest)
        cluster.nodes[1].tells_ranges_with_35 = tells_ranges
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        (first, *others) = [
            r.header.version for r in cluster.nodes[1].connections[-1].requests if r.api_key == API_VERSIONS
        ]
        assert first == 4
        expected = [] if highest == 4 else [highest] if tells_ranges else [0]
        assert others == expected


def test_each_broker_gets_requests_in_its_own_version() -> None:
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster) as producer:
        cluster.nodes[1].versions[PRODUCE] = (0, 8)
        for partition in (0, 1):
            producer.send("orders", b"1", partition=partition).get(WAIT_S)
        versions = {r.connection.node.id: r.header.version for r in cluster.received(PRODUCE)}
        assert versions == {1: 8, 2: 13}


def test_requests_have_the_client_id() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="shop ä") as producer:
        producer.send("orders", b"1").get(WAIT_S)
        assert {received.header.client_id for received in cluster.requests} == {"shop ä"}


def test_bootstrap_connections_are_closed_once_a_broker_is_connected_by_its_id() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        first, second = cluster.nodes[1].connections
        cluster.wait_for(lambda: first.closed)
        assert not second.closed
        assert [r.api_key for r in second.requests][:2] == [API_VERSIONS, PRODUCE]


@pytest.mark.parametrize("api_key", [API_VERSIONS, METADATA])
def test_the_producer_recovers_from_a_response_truncated_at_any_byte(api_key: int) -> None:
    sizes: list[int] = []

    def measure(response: bytes) -> bytes:
        sizes.append(len(response))
        return response

    # Before the producer, whose first request may come at once.
    with ScriptedCluster(orders=1) as cluster:
        cluster.act(api_key, Act(rewrite=measure))
        with producing(cluster) as producer:
            producer.send("orders", b"1").get(WAIT_S)
    backoffs = (
        "reconnect_backoff_ms",
        "reconnect_backoff_max_ms",
        "retry_backoff_ms",
        "retry_backoff_max_ms",
    )
    with ScriptedCluster(orders=1) as cluster:
        cluster.act(api_key, *(Act(cut=size) for size in range(sizes[0])))
        with producing(cluster, **dict.fromkeys(backoffs, 0)) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
            assert len(cluster.received(api_key)) > sizes[0]


@pytest.mark.parametrize("api_key", [API_VERSIONS, METADATA])
def test_the_producer_recovers_from_one_wrong_byte_in_a_response(api_key: int) -> None:
    """The changed response may mean anything; a correct response must be understood afterwards."""
    with ScriptedCluster(orders=1) as cluster:
        at = 0

        def spoil(response: bytes) -> bytes:
            nonlocal at
            at += 1
            # All bytes except the throttle time: the client would obey it, and send nothing for a minute.
            throttle = range(9, 13) if api_key == METADATA else range(len(response) - 5, len(response) - 1)
            places = [place for place in range(8, len(response)) if place not in throttle]
            place = places[at % len(places)]
            return response[:place] + bytes([response[place] ^ 0xFF]) + response[place + 1 :]

        def script(received: Received) -> Act | None:
            if at >= 150:
                return None
            # A successful handshake is followed by another one, on another connection.
            return Act(rewrite=spoil) if received.api_key == api_key else Act(drop=api_key == API_VERSIONS)

        cluster.script = script
        with producing(
            cluster,
            socket_connection_setup_timeout_ms=200,
            reconnect_backoff_ms=0,
            reconnect_backoff_max_ms=1,
            retry_backoff_ms=0,
            retry_backoff_max_ms=1,
            metadata_max_age_ms=1,
            # A changed byte can hide InitProducerId; after a few times, the cluster counts as lacking it.
            enable_idempotence=False,
        ) as producer:
            cluster.wait_for(lambda: at >= 150)
            cluster.script = lambda received: None
            assert producer.send("orders", b"1").get(WAIT_S).partition == 0


@pytest.mark.slow
def test_metadata_with_an_error_or_without_brokers_is_requested_again() -> None:
    # Before the producer, whose first request may come at once.
    with ScriptedCluster(orders=1) as cluster:
        cluster.act(METADATA, Act(error=41), Act(error=129))
        with producing(cluster) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
            assert len(cluster.received(METADATA)) >= 3
    with ScriptedCluster(orders=1) as cluster:
        cluster.unlisted.add(1)
        with producing(cluster) as producer:
            with pytest.raises(errors.NoBrokersAvailable, match="metadata response without brokers"):
                producer.wait_ready(1)
            cluster.unlisted.clear()
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
