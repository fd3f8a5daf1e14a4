"""Which connections a producer makes and keeps, and what it does where they fail."""

import functools
import socket
import threading
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.network import connector
from cyproducer.network.cluster import ClusterClient
from cyproducer.network.dns import Resolver
from tests.network import odd_servers
from tests.network.odd_servers import odd_server, refusing_address
from tests.network.producing import WAIT_S, producing
from tests.network.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster

pytestmark = pytest.mark.timeout(60)

NOT_ENOUGH_REPLICAS = 19


# Connections


def test_one_bootstrap_server_that_answers_is_enough() -> None:
    with odd_server(odd_servers.hangs_up) as odd, ScriptedCluster(orders=1) as cluster:
        servers = [refusing_address(), odd, *cluster.bootstrap_servers, refusing_address()]
        with producing(cluster, bootstrap_servers=servers) as producer:
            producer.wait_ready(WAIT_S)
            assert producer.bootstrap_connected()
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0


def test_a_producer_waits_for_a_broker_that_is_not_up_yet() -> None:
    with ScriptedCluster(orders=1) as cluster:
        cluster.nodes[1].stop()
        with producing(cluster) as producer:
            future = producer.send("orders", b"1")
            with pytest.raises(errors.NoBrokersAvailable):
                producer.wait_ready(0.1)
            cluster.nodes[1].start()
            assert future.get(WAIT_S).offset == 0


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedCluster(orders=1) as cluster:
        port = cluster.nodes[1].port

        def look_up(host: str, *args: Any, **kwargs: Any) -> Any:
            assert host == "kafka.example"
            tcp = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            # Nobody listens on the first two.
            return [
                (socket.AF_INET6, *tcp, ("::1", port, 0, 0)),
                (socket.AF_INET, *tcp, ("127.0.0.2", port)),
                (socket.AF_INET, *tcp, ("127.0.0.1", port)),
            ]

        monkeypatch.setattr(connector, "Resolver", functools.partial(Resolver, getaddrinfo=look_up))
        with producing(
            bootstrap_servers=[f"kafka.example:{port}"],
            reconnect_backoff_ms=9000,
            reconnect_backoff_max_ms=9000,
        ) as producer:
            producer.wait_ready(5)
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0


@pytest.mark.parametrize("client_dns_lookup", ["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"])
def test_both_ways_to_look_names_up_reach_the_broker(client_dns_lookup: str) -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(
            bootstrap_servers=[f"localhost:{cluster.nodes[1].port}"], client_dns_lookup=client_dns_lookup
        ) as producer,
    ):
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0


def test_an_idle_connection_is_closed_and_made_again_when_needed() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, connections_max_idle_ms=100) as producer:
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        cluster.wait_for(lambda: all(c.closed for c in cluster.nodes[1].connections))
        assert not producer.bootstrap_connected()
        assert producer.send("orders", b"2").get(WAIT_S).offset == 1


def test_a_connection_with_a_request_under_way_is_not_idle() -> None:
    held = threading.Event()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, connections_max_idle_ms=60) as producer:
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(hold=held))
        future = producer.send("orders", b"1")
        cluster.wait_for_requests(PRODUCE, 1)
        (request,) = cluster.received(PRODUCE)
        assert not held.wait(0.3)
        assert not request.connection.closed
        held.set()
        assert future.get(WAIT_S).offset == 0


def test_a_connection_with_metadata_under_way_is_not_idle() -> None:
    with (
        ScriptedCluster(orders=1, late=1) as cluster,
        producing(cluster, connections_max_idle_ms=60) as producer,
    ):
        producer.send("orders", b"1").get(WAIT_S)
        hold = threading.Event()
        cluster.act(METADATA, Act(hold=hold))
        future = producer.send("late", b"1")
        cluster.wait_for(lambda: cluster.received(METADATA)[-1].topics == ["late"])
        connection = cluster.received(METADATA)[-1].connection
        assert not threading.Event().wait(0.2)
        assert not connection.closed
        hold.set()
        assert future.get(WAIT_S).offset == 0


def test_an_idle_time_that_is_over_amid_a_request_keeps_nobody_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    held, ticks = threading.Event(), []
    tick = ClusterClient.tick

    def counted(client: ClusterClient, now_ms: float) -> float:
        ticks.append(now_ms)
        return tick(client, now_ms)

    monkeypatch.setattr(ClusterClient, "tick", counted)
    with ScriptedCluster(orders=1) as cluster, producing(cluster, connections_max_idle_ms=50) as producer:
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(hold=held))
        future = producer.send("orders", b"1")
        cluster.wait_for_requests(PRODUCE, 1)
        assert not held.wait(0.5)
        held.set()
        assert future.get(WAIT_S).offset == 0
    # Every 50 ms at most, and what else there was: not thousands.
    assert len(ticks) < 100


def test_a_handshake_that_the_socket_takes_in_pieces_succeeds() -> None:
    with ScriptedCluster(orders=1) as cluster:
        cluster.nodes[1].narrow()
        with producing(cluster, client_id="x" * 32_000, send_buffer_bytes=1) as producer:
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        assert {received.header.client_id for received in cluster.requests} == {"x" * 32_000}


def test_all_brokers_gone_means_back_to_the_bootstrap_servers() -> None:
    """The cluster was replaced by one at other addresses; the name in bootstrap_servers leads there."""
    with ScriptedCluster(orders=1) as old, ScriptedCluster(orders=1) as new:
        old.nodes[1].host = "127.0.0.1"
        servers = [*old.bootstrap_servers, *new.bootstrap_servers]
        # Until the old cluster is gone only that one is known.
        new.nodes[1].stop()
        with producing(old, bootstrap_servers=servers) as producer:
            producer.send("orders", b"1").get(WAIT_S)
            old.nodes[1].stop()
            new.nodes[1].start()
            assert producer.send("orders", b"2").get(WAIT_S).offset == 0
        assert new.topics["orders"].values == [b"2"]


def test_a_broker_at_a_new_address_is_found_there() -> None:
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster) as producer:
        producer.send("orders", b"0", partition=1).get(WAIT_S)
        moved = cluster.nodes[2]
        moved.stop()
        moved.port = 0
        moved.start()
        assert producer.send("orders", b"1", partition=1).get(WAIT_S).offset == 1
