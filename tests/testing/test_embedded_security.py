"""TLS, SASL and rights of the embedded broker, with this package's producer and confluent-kafka's."""

import shutil
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from cryptography import x509

from cyproducer import KafkaProducer, errors
from cyproducer.testing import EmbeddedBroker, EmbeddedBrokerError
from tools.harness.tls import Authority, key_pem
from tools.harness.until import PATIENCE_S, until

PASSWORD = "pä,=ss"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


def owner_of(token: str) -> str:
    if token != "good":
        raise ValueError("the token is old")
    return "carol"


class Token:
    def __init__(self, text: str) -> None:
        self.text = text

    def token(self) -> str:
        return self.text


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(
        security_protocol="SASL_SSL", users={"alice": PASSWORD}, oauth_validator=owner_of
    ) as broker:
        yield broker


def options(broker: EmbeddedBroker, mechanism: str = "PLAIN", password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": broker.ssl_cafile,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_authenticates_by_password(broker: EmbeddedBroker, mechanism: str) -> None:
    with KafkaProducer(**options(broker, mechanism)) as producer:
        assert producer.send("t", b"1").get(PATIENCE_S)
    reports: list[Any] = []
    theirs = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": broker.ssl_cafile,
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
            "log_level": 0,
        }
    )
    theirs.produce("t", b"2", on_delivery=lambda error, _: reports.append(error))
    assert theirs.flush(PATIENCE_S) == 0
    assert reports == [None]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused(broker: EmbeddedBroker, mechanism: str) -> None:
    with (
        KafkaProducer(**options(broker, mechanism, "wrong")) as producer,
        pytest.raises(errors.SaslAuthenticationFailedError, match=f"refused user 'alice' by {mechanism}"),
    ):
        producer.send("t", b"1").get(PATIENCE_S)


@pytest.mark.parametrize(("token", "error"), [("good", None), ("old", "the token is old")])
def test_the_validator_decides_about_tokens(broker: EmbeddedBroker, token: str, error: str | None) -> None:
    given = options(broker, "OAUTHBEARER") | {"sasl_oauth_token_provider": Token(token)}
    for name in ("sasl_plain_username", "sasl_plain_password"):
        del given[name]
    with KafkaProducer(**given) as producer:
        future = producer.send("t", b"1")
        if error is None:
            assert future.get(PATIENCE_S)
        else:
            with pytest.raises(errors.SaslAuthenticationFailedError, match=error):
                future.get(PATIENCE_S)


def test_passwords_can_be_changed(broker: EmbeddedBroker) -> None:
    broker.set_user("alice", "new")
    try:
        with KafkaProducer(**options(broker, password="new")) as producer:
            assert producer.send("t", b"1").get(PATIENCE_S)
        broker.set_user("alice", None)
        with (
            KafkaProducer(**options(broker, password="new")) as producer,
            pytest.raises(errors.SaslAuthenticationFailedError),
        ):
            producer.send("t", b"1").get(PATIENCE_S)
    finally:
        broker.set_user("alice", PASSWORD)


def test_a_session_is_renewed(broker: EmbeddedBroker) -> None:
    with (
        EmbeddedBroker(
            security_protocol="SASL_PLAINTEXT", users={"alice": PASSWORD}, session_lifetime_ms=1500
        ) as expiring,
        KafkaProducer(
            **options(expiring) | {"security_protocol": "SASL_PLAINTEXT", "ssl_cafile": None}
        ) as producer,
    ):
        lines: list[str] = []
        expiring._log_requests(lines.append)
        assert producer.send("t", b"1").get(PATIENCE_S)
        seen = len(lines)
        until(lambda: any("SaslAuthenticate" in line for line in lines[seen:]), "a re-authentication")
        assert producer.send("t", b"2").get(PATIENCE_S)


# Rights


def test_rights_decide_who_may_do_what(broker: EmbeddedBroker) -> None:
    def write(topic: str, value: bytes) -> None:
        with KafkaProducer(**options(broker)) as producer:
            producer.send(topic, value).get(PATIENCE_S)

    broker.create_topic("mine", 1)
    broker.allow("User:bob", "ALL", topic="mine")
    with pytest.raises(errors.TopicAuthorizationFailedError):
        write("mine", b"1")
    broker.allow("User:alice", "WRITE", topic="mi*")
    write("mine", b"2")
    broker.deny("User:*", "WRITE", topic="mine")
    with pytest.raises(errors.TopicAuthorizationFailedError):
        write("mine", b"3")
    # What has no right of its own is open to all.
    write("other", b"4")
    broker.clear_rights()
    write("mine", b"5")
    assert [record.value for record in broker.records("mine")] == [b"2", b"5"]
    broker.allow("User:bob", "WRITE", transactional_id="*")
    with (
        KafkaProducer(**options(broker), transactional_id="id") as producer,
        pytest.raises(errors.TransactionalIdAuthorizationFailedError),
    ):
        producer.init_transactions(PATIENCE_S)
    broker.clear_rights()


@pytest.mark.parametrize(
    ("operation", "resource", "says"),
    [
        ("SING", {"topic": "t"}, "operation='SING': must be ALL or one of READ, WRITE"),
        ("READ", {"table": "t"}, "resource: must be one of topic="),
        ("READ", {"topic": "t", "group": "g"}, "resource: must be one of topic="),
    ],
)
def test_rights_that_cannot_be_are_refused(
    broker: EmbeddedBroker, operation: str, resource: dict[str, str], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        broker.allow("User:alice", operation, **resource)


# TLS


def test_a_client_certificate_says_who_it_is(tmp_path: Path) -> None:
    authority = Authority()
    ca = authority.file(tmp_path)
    server, client = authority.issue("127.0.0.1"), authority.ca.issue_cert("client", common_name="dora")
    paths = {}
    for name, issued in (("server", server), ("client", client)):
        certificate, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_text(key_pem(issued))
        paths[name] = certificate, key
    with EmbeddedBroker(
        security_protocol="SSL",
        ssl_certfile=paths["server"][0],
        ssl_keyfile=paths["server"][1],
        ssl_client_cafile=ca,
    ) as broker:
        assert broker.ssl_cafile is None
        given: dict[str, Any] = {
            "bootstrap_servers": broker.bootstrap_servers,
            "security_protocol": "SSL",
            "ssl_cafile": str(ca),
        }
        own: dict[str, Any] = {
            "ssl_certfile": str(paths["client"][0]),
            "ssl_keyfile": str(paths["client"][1]),
        }
        broker.create_topic("t")
        broker.allow("User:nobody", "WRITE", topic="t")
        with KafkaProducer(**given, **own) as producer, pytest.raises(errors.TopicAuthorizationFailedError):
            producer.send("t", b"1").get(PATIENCE_S)
        subject = x509.load_pem_x509_certificate(client.cert_chain_pems[0].bytes()).subject
        broker.allow(f"User:{subject.rfc4514_string()}", "WRITE", topic="t")
        with KafkaProducer(**given, **own) as producer:
            assert producer.send("t", b"1").get(PATIENCE_S)
        # The alert arrives, not only the end of the connection.
        with (
            KafkaProducer(**given, max_block_ms=1000) as producer,
            pytest.raises(errors.KafkaTimeoutError, match="asks for a client certificate"),
        ):
            producer.send("t", b"1").get(PATIENCE_S)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no command openssl")
def test_without_trustme_the_command_openssl_makes_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with EmbeddedBroker(security_protocol="SSL") as broker:
        assert broker.ssl_cafile is not None
        ssl.create_default_context(cafile=broker.ssl_cafile)
        with KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SSL",
            ssl_cafile=broker.ssl_cafile,
        ) as producer:
            assert producer.send("t", b"1").get(PATIENCE_S)


def test_without_either_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedBrokerError, match="pip install trustme"):
        EmbeddedBroker(security_protocol="SSL").start()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"security_protocol": "TLS"}, "security_protocol='TLS': must be one of PLAINTEXT, SSL"),
        ({"users": {"a": "b"}}, "security_protocol='PLAINTEXT' has no SASL: use 'SASL_PLAINTEXT'"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "needs users or an oauth_validator"),
        ({"ssl_certfile": "x"}, "ssl_certfile and ssl_keyfile go together"),
        ({"ssl_client_cafile": "x"}, "security_protocol='PLAINTEXT' has no TLS: use 'SSL'"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "users": {"a": "b"}, "sasl_mechanisms": ["GSSAPI"]},
            "sasl_mechanisms: 'GSSAPI' must be one of PLAIN",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanisms": ["OAUTHBEARER"]},
            "OAUTHBEARER needs an oauth_validator",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EmbeddedBroker(**wrong)
