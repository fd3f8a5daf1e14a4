"""Connections that reach another broker than the one that they were meant for (KIP-1242)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.errors import DeliveryTimeoutError
from cyproducer.testing import EmbeddedBroker
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import API_VERSIONS, ScriptedCluster
from tools.harness.until import PATIENCE_S, until


class Route:
    """A ``broker_address`` hook that leads to the other one of two brokers, as long as ``crossed`` is set."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self.crossed = True
        self.calls = 0

    def __call__(self, host: str, port: int) -> tuple[str, int]:
        self.calls += 1
        place = self._addresses.index(f"{host}:{port}")
        host, _, number = self._addresses[1 - place if self.crossed else place].rpartition(":")
        return host, int(number)


@contextmanager
def crossed(version: str, **options: Any) -> Iterator[tuple[Route, KafkaProducer, list[str]]]:
    with EmbeddedBroker(brokers=2, kafka_version=version, topics={"t": 2}, process=False) as broker:
        requests: list[str] = []
        broker._log_requests(requests.append)
        route = Route(broker.bootstrap_servers.split(","))
        options = {"delivery_timeout_ms": 20_000, "request_timeout_ms": 10_000, **options}
        with KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, broker_address=route, **options
        ) as producer:
            yield route, producer, requests


def handshakes(requests: list[str]) -> list[str]:
    """The versions of ApiVersions in a broker's lines: time, node, client, request, version, outcome."""
    return [words[4] for words in map(str.split, requests) if words[3] == "ApiVersions"]


def test_the_client_starts_over_until_its_connections_reach_the_right_brokers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with crossed("4.4") as (route, producer, requests):
        futures = [producer.send("t", b"v", partition=partition) for partition in (0, 1)]
        until(
            lambda: "starting over from bootstrap_servers: the address of node" in caplog.text, "a new start"
        )
        assert not any(" Produce " in line for line in requests)
        route.crossed = False
        assert [future.get(PATIENCE_S).offset for future in futures] == [0, 0]
        # The bootstrap server's, and those of discovered brokers. A refusal lists no versions.
        assert set(handshakes(requests)[1:]) == {"v5"}
    refused = next(line for line in caplog.messages if "is not node" in line)
    assert "so its name, a proxy or a load balancer leads elsewhere" in refused
    assert "metadata_cluster_check_enable=False" in refused


def test_a_client_that_is_always_led_astray_starts_over_at_the_pace_of_its_backoff() -> None:
    options = {"reconnect_backoff_ms": 400, "reconnect_backoff_max_ms": 400, "request_timeout_ms": 900}
    with crossed("4.4", delivery_timeout_ms=1000, **options) as (route, producer, _):
        future = producer.send("t", b"v", partition=0)
        with pytest.raises(DeliveryTimeoutError, match=r"is not node . of cluster"):
            future.get(PATIENCE_S)
        assert 2 <= route.calls <= 6


@pytest.mark.parametrize(
    "options", [{"metadata_cluster_check_enable": False}, {"metadata_recovery_strategy": "none"}]
)
def test_a_client_that_does_not_say_what_it_expects_is_not_checked(options: dict[str, Any]) -> None:
    with crossed("4.4", delivery_timeout_ms=1000, request_timeout_ms=900, **options) as (
        _,
        producer,
        requests,
    ):
        future = producer.send("t", b"v", partition=0)
        with pytest.raises(DeliveryTimeoutError, match="NotLeaderForPartitionError"):
            future.get(PATIENCE_S)
        assert set(handshakes(requests)) == {"v4"}


def handshakes_of(*highest: int) -> list[list[int]]:
    """The versions of ApiVersions that each of two brokers is sent, which offer up to ``highest``.

    The first one is the bootstrap server.
    """
    with (
        ScriptedCluster(2, orders=2) as cluster,
        producing(cluster, bootstrap_servers=cluster.bootstrap_servers[:1]) as producer,
    ):
        for node, version in zip(cluster.nodes.values(), highest, strict=True):
            node.versions[API_VERSIONS] = (0, version)
        for partition in (0, 1):
            assert producer.send("orders", b"v", partition=partition).get(WAIT_S).offset == 0
        return [
            [
                received.header.version
                for connection in node.connections
                for received in connection.requests
                if received.api_key == API_VERSIONS
            ]
            for node in cluster.nodes.values()
        ]


def test_brokers_before_4_4_get_the_version_that_they_answer() -> None:
    assert handshakes_of(4, 4) == [[4, 4], [4]]


def test_a_broker_of_another_release_gets_a_second_request() -> None:
    assert handshakes_of(5, 4) == [[4, 5], [5, 4]]
