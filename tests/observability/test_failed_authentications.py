"""Connections whose TLS handshake or SASL authentication failed are counted, and no others."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.errors import (
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from tests.scripted.scripted_broker import SASL_AUTHENTICATE, ScriptedCluster
from tests.scripted.scripted_model import Act
from tests.scripted.scripted_sasl import SaslServer
from tools.harness.tls import Authority
from tools.harness.until import until

WAIT_S = 60.0


def producer(cluster: ScriptedCluster, **options: Any) -> KafkaProducer:
    usual: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "reconnect_backoff_ms": 10}
    return KafkaProducer(**usual | options)


def with_sasl(cluster: ScriptedCluster, **options: Any) -> KafkaProducer:
    usual = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
    }
    return producer(cluster, **usual | options)


def counted(ours: KafkaProducer) -> tuple[float, float, float]:
    """The authentications that have failed, in all and per second, and the connections that have ended."""
    found = ours.metrics()["producer-metrics"]
    names = ("failed-authentication-total", "failed-authentication-rate", "connection-close-total")
    total, rate, closed = (found[name] for name in names)
    return total, rate, closed


def test_a_wrong_password_is_counted_once() -> None:
    with (
        ScriptedCluster(sasl=SaslServer(), t=1) as cluster,
        with_sasl(cluster, sasl_plain_password="wrong") as ours,
    ):
        with pytest.raises(SaslAuthenticationFailedError):
            ours.send("t", b"v").get(WAIT_S)
        # It is not tried again for a while.
        total, rate, _ = counted(ours)
        assert total == 1
        assert rate > 0


@pytest.mark.parametrize("mechanisms", [("PLAIN",), None])
def test_a_broker_without_the_mechanism_or_without_sasl_is_counted(mechanisms: tuple[str] | None) -> None:
    sasl = SaslServer(mechanisms=mechanisms) if mechanisms else None
    with ScriptedCluster(sasl=sasl, t=1) as cluster, with_sasl(cluster) as ours:
        with pytest.raises((UnsupportedSaslMechanismError, IllegalSaslStateError)):
            ours.send("t", b"v").get(WAIT_S)
        assert counted(ours)[0] == 1


def unknown_authority(authority: Authority, server: ssl.SSLContext, path: Path) -> dict[str, Any]:
    return {"ssl_cafile": Authority("Another Authority").file(path)}


def no_certificate(authority: Authority, server: ssl.SSLContext, path: Path) -> dict[str, Any]:
    server.verify_mode = ssl.CERT_REQUIRED
    authority.ca.configure_trust(server)
    # With this version the broker's refusal follows a handshake that this side has completed.
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    return {"ssl_cafile": authority.file(path)}


@pytest.mark.parametrize("refused", [unknown_authority, no_certificate])
def test_tls_handshakes_that_fail_are_counted(refused: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    authority = Authority()
    server = authority.server()
    options = refused(authority, server, tmp_path)
    with ScriptedCluster(tls=server, t=1) as cluster:
        with producer(cluster, security_protocol="SSL", **options) as ours:
            until(lambda: counted(ours)[0] >= 2, "two attempts that fail")
        total, _, closed = counted(ours)
    # Each attempt, but for one that closing may have ended.
    assert total in (closed, closed - 1)


def test_connections_that_end_otherwise_are_not_counted() -> None:
    with ScriptedCluster(t=1) as cluster:
        with producer(cluster) as ours:
            ours.send("t", b"v").get(WAIT_S)
            cluster.nodes[1].drop_connections()
            ours.send("t", b"v").get(WAIT_S)
        assert counted(ours)[2] > 0
        assert counted(ours)[:2] == (0, 0)
    # This client does not authenticate itself, and the broker closes the connection.
    with ScriptedCluster(sasl=SaslServer(), t=1) as cluster, producer(cluster) as ours:
        until(lambda: counted(ours)[2] >= 2, "two connections that end")
        assert counted(ours)[:2] == (0, 0)


@pytest.mark.slow
def test_a_session_whose_renewal_is_refused_is_not_counted() -> None:
    server = SaslServer(lifetime_ms=1200)
    with (
        ScriptedCluster(sasl=server, t=1) as cluster,
        with_sasl(cluster, authentication_backoff_ms=100) as ours,
    ):
        ours.send("t", b"0").get(WAIT_S)
        server.users.clear()
        hold = threading.Event()
        before = len(cluster.received(SASL_AUTHENTICATE))
        cluster.act(SASL_AUTHENTICATE, Act(hold=hold))
        cluster.wait_for_requests(SASL_AUTHENTICATE, before + 1)
        future = ours.send("t", b"1")
        server.users["alice"] = "secret"
        hold.set()
        assert future.get(WAIT_S).offset == 1
        total, _, closed = counted(ours)
        assert closed > 0
        assert total == 0
