"""The handshake with brokers of all ages, and which versions follow from it."""

import pytest

from cyproducer import errors
from tests.network.producing import WAIT_S, producing
from tests.network.scripted_broker import API_VERSIONS, METADATA, PRODUCE, Act, Received, ScriptedCluster

pytestmark = pytest.mark.timeout(60)


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
        # Topic ids come with Metadata v10; without them Produce names topics.
        (version,) = {received.header.version for received in cluster.received(PRODUCE)}
        assert version == (13 if metadata >= 10 else 12)


@pytest.mark.parametrize("highest", range(5))
@pytest.mark.parametrize("tells_ranges", [True, False])
def test_a_broker_with_an_older_handshake_is_asked_again_in_its_version(
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


def test_brokers_of_different_ages_are_each_spoken_to_in_their_version() -> None:
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster) as producer:
        cluster.nodes[1].versions[PRODUCE] = (0, 8)
        for partition in (0, 1):
            producer.send("orders", b"1", partition=partition).get(WAIT_S)
        versions = {r.connection.node.id: r.header.version for r in cluster.received(PRODUCE)}
        assert versions == {1: 8, 2: 13}


def test_the_client_names_itself() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="shop ä") as producer:
        producer.send("orders", b"1").get(WAIT_S)
        assert {received.header.client_id for received in cluster.requests} == {"shop ä"}


def test_bootstrap_connections_are_closed_once_brokers_are_known_by_their_ids() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        first, second = cluster.nodes[1].connections
        cluster.wait_for(lambda: first.closed)
        assert not second.closed
        assert [r.api_key for r in second.requests][:2] == [API_VERSIONS, PRODUCE]


@pytest.mark.parametrize("api_key", [API_VERSIONS, METADATA])
def test_an_answer_cut_at_any_byte_is_overcome(api_key: int) -> None:
    sizes: list[int] = []

    def measure(response: bytes) -> bytes:
        sizes.append(len(response))
        return response

    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        cluster.act(api_key, Act(rewrite=measure))
        producer.send("orders", b"1").get(WAIT_S)
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(
            cluster,
            reconnect_backoff_ms=0,
            reconnect_backoff_max_ms=0,
            retry_backoff_ms=0,
            retry_backoff_max_ms=0,
        ) as producer,
    ):
        cluster.act(api_key, *(Act(cut=size) for size in range(sizes[0])))
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        assert len(cluster.received(api_key)) > sizes[0]


@pytest.mark.parametrize("api_key", [API_VERSIONS, METADATA])
def test_one_wrong_byte_in_an_answer_never_ends_the_producer(api_key: int) -> None:
    """The answer may mean anything then; what matters is that a right one is understood afterwards."""
    with ScriptedCluster(orders=1) as cluster:
        at = 0

        def spoil(response: bytes) -> bytes:
            nonlocal at
            at += 1
            # All but the throttle time: that is to be believed, and silences the client for a minute.
            throttle = range(9, 13) if api_key == METADATA else range(len(response) - 5, len(response) - 1)
            places = [place for place in range(8, len(response)) if place not in throttle]
            place = places[at % len(places)]
            return response[:place] + bytes([response[place] ^ 0xFF]) + response[place + 1 :]

        def script(received: Received) -> Act | None:
            if at >= 150:
                return None
            # A handshake that was taken is followed by another, on another connection.
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
            # A byte that hides InitProducerId says that the cluster lacks it: final after a few times.
            enable_idempotence=False,
        ) as producer:
            cluster.wait_for(lambda: at >= 150)
            cluster.script = lambda received: None
            assert producer.send("orders", b"1").get(WAIT_S).partition == 0


def test_metadata_with_an_error_or_without_brokers_are_asked_for_again() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        cluster.act(METADATA, Act(error=41), Act(error=129))
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        assert len(cluster.received(METADATA)) >= 3
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        cluster.unlisted.add(1)
        with pytest.raises(errors.NoBrokersAvailable, match="metadata response without brokers"):
            producer.wait_ready(0.3)
        cluster.unlisted.clear()
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
