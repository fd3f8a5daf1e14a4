"""SASL: PLAIN and SCRAM with and without TLS, renewed sessions, refusals."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer import KafkaProducer, TopicPartition, transactions
from cyproducer.errors import (
    IllegalSaslStateError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from cyproducer.transactions import Outcome, TransactionAdmin
from tests.integration.consume import end_offset, read_all
from tests.integration.traffic import send_for
from tools.harness import sasl, tls
from tools.harness.embedded_kafka import EmbeddedKafka
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.either_broker(slow=True)

AUTHORITY = tls.Authority()
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "alice", "secret"
ESCAPED = "n,a=m", "pä ﬁ"
"""A user and a password with letters that SCRAM escapes."""
REAUTH_MS = 5000


@pytest.fixture(scope="module")
def cluster(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("kafka-sasl")
    if broker == "embedded":
        users = dict([(USER, PASSWORD), ESCAPED])
        secure = {
            **tls.embedded_options(AUTHORITY, directory, "SECURE"),
            "security_protocol": "SASL_SSL",
            "users": users,
            "session_lifetime_ms": REAUTH_MS,
        }
        listeners = {"SECURE": secure, "OPEN": {"security_protocol": "SASL_PLAINTEXT", "users": users}}
        reading = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": AUTHORITY.pem,
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
        with EmbeddedKafka(listeners=listeners, clients={"SECURE": reading}) as embedded:
            yield embedded
        return
    nodes = KafkaCluster(
        properties={
            **tls.broker_properties("SECURE", AUTHORITY, directory),
            **sasl.broker_properties("SECURE", {USER: PASSWORD}, REAUTH_MS),
            **sasl.broker_properties("OPEN", {USER: PASSWORD}),
        },
        listeners={"SECURE": "SASL_SSL", "OPEN": "SASL_PLAINTEXT"},
        directory=directory / "nodes",
    )
    with nodes:
        for mechanism, iterations in (("SCRAM-SHA-256", 4096), ("SCRAM-SHA-512", 16384)):
            sasl.create_scram_user(nodes, USER, PASSWORD, mechanism, iterations)
            sasl.create_scram_user(nodes, *ESCAPED, mechanism)
        yield nodes


def producer(cluster: KafkaCluster, listener: str = "SECURE", **options: Any) -> KafkaProducer:
    secure = {"security_protocol": "SASL_SSL", "ssl_context": AUTHORITY.client()}
    given = {
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
        **(secure if listener == "SECURE" else {"security_protocol": "SASL_PLAINTEXT"}),
        **options,
    }
    return KafkaProducer(bootstrap_servers=cluster.bootstrap(listener), **given)


@pytest.mark.parametrize("listener", ["SECURE", "OPEN"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_records_arrive(cluster: KafkaCluster, listener: str, mechanism: str) -> None:
    topic = f"{listener}-{mechanism}"
    cluster.create_topic(topic, 2)
    with producer(cluster, listener, sasl_mechanism=mechanism) as ours:
        futures = [ours.send(topic, b"%d" % i, partition=i % 2) for i in range(1000)]
        assert [future.get(30).offset for future in futures] == [i // 2 for i in range(1000)]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_transactions_and_their_end_by_another_client(cluster: KafkaCluster, mechanism: str) -> None:
    topic = f"transactions-{mechanism}"
    cluster.create_topic(topic, 1)
    with producer(cluster, sasl_mechanism=mechanism, transactional_id=topic) as ours:
        ours.init_transactions()
        with ours.transaction():
            ours.send(topic, b"by the producer")
        ours.begin_transaction()
        ours.send(topic, b"by another client")
        prepared = ours.prepare_transaction()
        # The producer's own options.
        with TransactionAdmin(ours.config) as admin:
            assert [each.state for each in admin.list_transactions(prefix=topic)] == ["Ongoing"]
            assert admin.describe_transaction(topic).partitions == [TopicPartition(topic, 0)]
            assert admin.commit(prepared).outcome is Outcome.COMMITTED
        assert transactions.abort(prepared, ours.config).outcome is Outcome.COMMITTED_BEFORE
    wanted = [b"by the producer", b"by another client"]
    found = read_all(cluster.reading("SECURE"), topic, 2, isolation="read_committed")
    assert [record.value for record in found] == wanted


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_scram_user_with_letters_that_are_escaped(cluster: KafkaCluster, mechanism: str) -> None:
    user, password = ESCAPED
    given = {"sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": password}
    with producer(cluster, **given) as ours:
        ours.send("escaped", b"v").get(30)


def test_java_s_options(cluster: KafkaCluster) -> None:
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required "
    java = {
        "bootstrap.servers": cluster.bootstrap("SECURE"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.certificates": AUTHORITY.pem,
        "ssl.truststore.type": "PEM",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{jaas} username="{USER}" password="{PASSWORD}";',
    }
    with KafkaProducer(java) as ours:
        ours.send("java", b"v").get(30)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_sessions_are_renewed_under_load_without_losing_the_connection(
    cluster: KafkaCluster, mechanism: str
) -> None:
    topic = f"renewed-{mechanism}"
    cluster.create_topic(topic, 1)
    with producer(cluster, sasl_mechanism=mechanism) as ours:
        ours.send(topic, b"first").get(30)
        made = ours.metrics()["producer-metrics"]["connection-creation-total"]
        # Three sessions.
        count = 1 + send_for(3 * REAUTH_MS / 1000, ours, topic, first_offset=1)
        assert ours.metrics()["producer-metrics"]["connection-creation-total"] == made
    # Each offset was seen once. Millions of records would take the consumer longer than the test.
    assert end_offset(cluster.reading("SECURE"), topic, 0) == count


@pytest.mark.slow
def test_an_idle_connection_outlives_its_session(cluster: KafkaCluster) -> None:
    with producer(cluster) as ours:
        ours.send("idle", b"1").get(30)
        made = ours.metrics()["producer-metrics"]["connection-creation-total"]
        time.sleep(1.5 * REAUTH_MS / 1000)
        ours.send("idle", b"2").get(30)
        assert ours.metrics()["producer-metrics"]["connection-creation-total"] == made


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_said_at_once(cluster: KafkaCluster, mechanism: str) -> None:
    with producer(cluster, sasl_mechanism=mechanism, sasl_plain_password="wrong") as ours:
        began = time.monotonic()
        with pytest.raises(SaslAuthenticationFailedError, match=f"refused user 'alice' by {mechanism}"):
            ours.send("t", b"v").get(30)
        assert time.monotonic() - began < 5


@pytest.mark.slow
def test_what_the_listener_does_not_have(cluster: KafkaCluster) -> None:
    plain: dict[str, Any] = {
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    with (
        KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, security_protocol="SASL_PLAINTEXT", **plain
        ) as ours,
        pytest.raises(
            (IllegalSaslStateError, UnsupportedSaslMechanismError), match="has no SASL: set security_protocol"
        ),
    ):
        ours.send("t", b"v").get(30)
    with (
        KafkaProducer(bootstrap_servers=cluster.bootstrap("OPEN"), max_block_ms=3000) as ours,
        pytest.raises(KafkaTimeoutError, match="set security_protocol='SASL_PLAINTEXT' and sasl_mechanism"),
    ):
        ours.send("t", b"v").get(30)
