"""OAUTHBEARER with a broker that verifies tokens with the keys of their issuer (JWKS)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cyproducer import KafkaProducer
from cyproducer.errors import SaslAuthenticationFailedError
from tests.integration.consume import end_offset
from tests.integration.traffic import send_for
from tools.harness import sasl, tls
from tools.harness.embedded_kafka import EmbeddedKafka
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.token_server import Answer, Asked, TokenServer

pytestmark = pytest.mark.either_broker(slow=True)

AUTHORITY = tls.Authority()


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    with TokenServer() as running:
        yield running


@pytest.fixture(autouse=True)
def _as_it_was(server: TokenServer) -> Iterator[None]:
    yield
    server.asked.clear()
    server.answer = server.grant


@pytest.fixture(scope="module")
def cluster(
    broker: str, server: TokenServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("kafka-oauth")
    if broker == "embedded":
        listener = {
            **tls.embedded_options(AUTHORITY, directory, "TOKENS"),
            "security_protocol": "SASL_SSL",
            "oauth_validator": server.user,
            # The validator can't be sent to another process.
            "process": False,
        }
        with EmbeddedKafka(listeners={"TOKENS": listener}) as embedded:
            yield embedded
        return
    nodes = KafkaCluster(
        properties={
            **tls.broker_properties("TOKENS", AUTHORITY, directory),
            **sasl.token_properties("TOKENS", server),
        },
        listeners={"TOKENS": "SASL_SSL"},
        jvm_options=[f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={server.jwks_url}"],
        directory=directory / "nodes",
    )
    with nodes:
        yield nodes


def producer(cluster: KafkaCluster, **options: Any) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=cluster.bootstrap("TOKENS"),
        security_protocol="SASL_SSL",
        ssl_context=AUTHORITY.client(),
        sasl_mechanism="OAUTHBEARER",
        **options,
    )


def with_secret(server: TokenServer) -> dict[str, str]:
    return {
        "sasl_oauthbearer_token_endpoint_url": server.url,
        "sasl_oauthbearer_client_credentials_client_id": "alice",
        "sasl_oauthbearer_client_credentials_client_secret": "secret",
    }


def test_client_credentials(cluster: KafkaCluster, server: TokenServer) -> None:
    with producer(cluster, **with_secret(server), sasl_oauthbearer_extensions={"traceId": "t"}) as ours:
        ours.send("credentials", b"v").get(30)
    # One token for the bootstrap connection and the broker's.
    assert [asked.basic for asked in server.asked] == ["alice:secret"]


def test_a_provider_of_the_user_s(cluster: KafkaCluster, server: TokenServer) -> None:
    class Provider:
        async def token(self) -> str:
            return server.token()

    with producer(cluster, sasl_oauth_token_provider=Provider()) as ours:
        ours.send("provider", b"v").get(30)


def test_a_token_in_a_file(cluster: KafkaCluster, server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "token.jwt"
    file.write_text(server.token())
    with producer(cluster, sasl_oauthbearer_token_endpoint_url=file.as_uri()) as ours:
        ours.send("file", b"v").get(30)


@pytest.mark.kafka_only("sessions last for session_lifetime_ms, whatever their tokens say")
def test_sessions_end_with_their_tokens_and_are_renewed_under_load(
    cluster: KafkaCluster, server: TokenServer
) -> None:
    lifetime_s, topic = 10, "renewed"
    server.answer = lambda asked: granted(server, lifetime_s)
    cluster.create_topic(topic, 1)
    with producer(cluster, **with_secret(server)) as ours:
        ours.send(topic, b"first").get(30)
        made = ours.metrics()["producer-metrics"]["connection-creation-total"]
        # Two sessions.
        count = 1 + send_for(2 * lifetime_s, ours, topic, first_offset=1)
        assert ours.metrics()["producer-metrics"]["connection-creation-total"] == made
    assert len(server.asked) >= 2
    # Not read back: it is as many records as the machine can send in two sessions.
    assert end_offset(cluster.reading("TOKENS"), topic, 0) == count


def granted(server: TokenServer, lifetime_s: float) -> Answer:
    text = server.token(exp=time.time() + lifetime_s)
    return Answer(body=json.dumps({"access_token": text, "expires_in": lifetime_s}).encode())


@pytest.mark.parametrize(
    "claims", [{"aud": "another"}, {"iss": "another"}, {"exp": 1_000_000_000}, {"sub": None}], ids=str
)
def test_a_token_that_the_broker_refuses(
    cluster: KafkaCluster, server: TokenServer, claims: dict[str, Any]
) -> None:
    def refused(asked: Asked) -> Answer:
        return Answer(body=json.dumps({"access_token": server.token(**claims)}).encode())

    server.answer = refused
    with (
        producer(cluster, **with_secret(server)) as ours,
        pytest.raises(SaslAuthenticationFailedError, match="the broker's reason is status 'invalid_token'"),
    ):
        ours.send("refused", b"v").get(30)


def test_a_wrong_secret(cluster: KafkaCluster, server: TokenServer) -> None:
    server.answer = lambda _: Answer(401, b'{"error": "invalid_client"}')
    with (
        producer(cluster, **with_secret(server)) as ours,
        pytest.raises(SaslAuthenticationFailedError, match=r"/token answered 401 .*: invalid_client"),
    ):
        ours.send("wrong", b"v").get(30)
    assert len(server.asked) == 1


def test_an_endpoint_that_is_away_for_a_while(cluster: KafkaCluster, server: TokenServer) -> None:
    server.answer = lambda asked: Answer(503) if len(server.asked) < 4 else server.grant(asked)
    with producer(cluster, **with_secret(server)) as ours:
        ours.send("away", b"v").get(30)
    assert len(server.asked) == 4
