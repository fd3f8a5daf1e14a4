"""Connections that reach another broker than the one that they were meant for (KIP-1242)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.base.clock import monotonic_s
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
def crossed(
    version: str, broker_options: dict[str, Any] | None = None, **options: Any
) -> Iterator[tuple[Route, KafkaProducer, list[str]]]:
    with EmbeddedBroker(
        brokers=2, kafka_version=version, topics={"t": 2}, process=False, **broker_options or {}
    ) as broker:
        requests: list[str] = []
        broker._log_requests(requests.append)
        route = Route(broker.bootstrap_servers.split(","))
        options = {"delivery_timeout_ms": 20_000, "request_timeout_ms": 10_000, **options}
        with KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, broker_address=route, **options
        ) as producer:
            yield route, producer, requests


def handshakes(requests: list[str]) -> list[tuple[str, str]]:
    """Versions and outcomes of ApiVersions in a broker's lines: time, node, client, request, version, "->",
    outcome."""
    return [(words[4], words[6]) for words in map(str.split, requests) if words[3] == "ApiVersions"]


SASL = {"security_protocol": "SASL_PLAINTEXT"}
LOGIN = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "alice", "sasl_plain_password": "secret"}


@pytest.mark.parametrize("sasl", [False, True])
def test_no_record_goes_to_the_wrong_broker(sasl: bool, caplog: pytest.LogCaptureFixture) -> None:
    broker: dict[str, Any] = {**SASL, "users": {"alice": "secret"}} if sasl else {}
    login = {**SASL, **LOGIN} if sasl else {}
    with crossed("4.4", broker, **login) as (route, producer, requests):
        futures = [producer.send("t", b"v", partition=partition) for partition in (0, 1)]
        until(lambda: handshakes(requests).count(("v5", "REBOOTSTRAP_REQUIRED")) >= 2, "two refusals")
        assert not any(" Produce " in line for line in requests)
        assert {outcome for version, outcome in handshakes(requests) if version == "v5"} == {
            "REBOOTSTRAP_REQUIRED"
        }
        route.crossed = False
        assert [future.get(PATIENCE_S).offset for future in futures] == [0, 0]
        assert handshakes(requests)[-1] == ("v5", "ok")
    refused = next(line for line in caplog.messages if "is not node" in line)
    assert "its name, a proxy or a load balancer leads elsewhere" in refused
    assert "metadata_cluster_check_enable=False" in refused


def test_a_client_that_is_always_led_astray_connects_at_the_pace_of_its_backoff() -> None:
    backoff = {"reconnect_backoff_ms": 400, "reconnect_backoff_max_ms": 400}
    options: dict[str, Any] = {"delivery_timeout_ms": 1000, "request_timeout_ms": 900, **backoff}
    with crossed("4.4", **options) as (route, producer, _):
        began_s = monotonic_s()
        future = producer.send("t", b"v", partition=0)
        with pytest.raises(DeliveryTimeoutError, match=r"is not node . of cluster"):
            future.get(PATIENCE_S)
        # Two brokers, each after 320 ms at the earliest: 8 in the second that this takes on a fast machine.
        assert route.calls <= 2 * (1 + (monotonic_s() - began_s) / 0.32)


def test_bootstrap_servers_are_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    """They have no node id, and may be load balancers: a client that starts again takes whom it gets."""
    with crossed("4.4", connections_max_idle_ms=100) as (route, producer, _):
        route.crossed = False
        assert producer.send("t", b"v", partition=0).get(PATIENCE_S).offset == 0
        route.crossed = True
        until(lambda: producer.metrics()["producer-metrics"]["connection-count"] == 0, "no connection")
        future = producer.send("t", b"v", partition=0)
        until(lambda: "starting over from bootstrap_servers" in caplog.text, "a new start")
        route.crossed = False
        assert future.get(PATIENCE_S).offset == 1


@pytest.mark.parametrize(
    "options", [{"metadata_cluster_check_enable": False}, {"metadata_recovery_strategy": "none"}]
)
def test_a_client_that_does_not_say_what_it_expects_is_not_checked(options: dict[str, Any]) -> None:
    options = {"delivery_timeout_ms": 1000, "request_timeout_ms": 900, **options}
    with crossed("4.4", **options) as (_, producer, requests):
        future = producer.send("t", b"v", partition=0)
        with pytest.raises(DeliveryTimeoutError, match="NotLeaderForPartitionError"):
            future.get(PATIENCE_S)
        assert {version for version, _ in handshakes(requests)} == {"v4"}


def test_only_brokers_that_offer_it_are_asked_for_the_check() -> None:
    """Two releases in one cluster, as during an upgrade. The first broker is the bootstrap server."""
    with (
        ScriptedCluster(2, orders=2) as cluster,
        producing(cluster, bootstrap_servers=cluster.bootstrap_servers[:1]) as producer,
    ):
        cluster.nodes[1].versions[API_VERSIONS] = (0, 5)
        for partition in (0, 1):
            assert producer.send("orders", b"v", partition=partition).get(WAIT_S).offset == 0
        asked = {
            node.id: [
                [each.header.version for each in connection.requests if each.api_key == API_VERSIONS]
                for connection in node.connections
            ]
            for node in cluster.nodes.values()
        }
    assert asked == {1: [[4], [4, 5]], 2: [[4]]}
