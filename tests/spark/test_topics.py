"""Tests the requests to the administration client and the handling of its errors. Uses a fake client."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from cyproducer.config import ProducerConfig
from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark.topics import TopicCreationError, create_missing
from tools.harness.tls import Authority


class ClientError(Exception):
    pass


class TopicAlreadyExistsError(ClientError):
    pass


class NewTopic:
    def __init__(self, **given: Any) -> None:
        self.given = given


class Admin:
    """A fake client that records its requests. ``made`` lists all clients of a test."""

    DEFAULT_CONFIG = dict.fromkeys(("bootstrap_servers", "client_id", "request_timeout_ms", "ssl_cafile"))
    made: "list[Admin]"
    error: Exception | None

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.asked: list[tuple[dict[str, Any], int]] = []
        self.closed = False
        self.made.append(self)

    def create_topics(self, topics: list[NewTopic], timeout_ms: int) -> None:
        self.asked += [(topic.given, timeout_ms) for topic in topics]
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Admin]]:
    monkeypatch.setattr(Admin, "made", [], raising=False)
    monkeypatch.setattr(Admin, "error", None, raising=False)
    modules = {name: ModuleType(name) for name in ("kafka", "kafka.admin", "kafka.errors")}
    vars(modules["kafka.admin"]).update(KafkaAdminClient=Admin, NewTopic=NewTopic)
    vars(modules["kafka.errors"]).update(
        KafkaError=ClientError, TopicAlreadyExistsError=TopicAlreadyExistsError
    )
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    yield Admin
    assert all(each.closed for each in Admin.made)


CONFIG = ProducerConfig(bootstrap_servers="a:1,b:2", client_id="me", request_timeout_ms=1234, linger_ms=7)


@pytest.mark.parametrize(("replication", "told"), [(None, -1), (3, 3)])
def test_a_topic_is_created_as_the_options_say(
    admin: type[Admin], replication: int | None, told: int
) -> None:
    assert create_missing(CONFIG, "t", 12, replication) is True
    (made,) = admin.made
    assert made.asked == [({"name": "t", "num_partitions": 12, "replication_factor": told}, 1234)]
    # Options that are set and that both clients have, with addresses as strings. None of the producer's own.
    assert made.settings == {
        "bootstrap_servers": ["a:1", "b:2"],
        "client_id": "me",
        "request_timeout_ms": 1234,
    }


def test_an_existing_topic_is_not_an_error(admin: type[Admin]) -> None:
    admin.error = TopicAlreadyExistsError("t")
    assert create_missing(CONFIG, "t", 1, None) is False


@pytest.mark.parametrize(("replication", "says"), [(None, "default"), (2, "2")])
def test_a_refusal_has_the_brokers_error_message(
    admin: type[Admin], replication: int | None, says: str
) -> None:
    admin.error = ClientError("not you")
    with pytest.raises(TopicCreationError) as caught:
        create_missing(CONFIG, "t", 5, replication)
    assert str(caught.value).endswith(
        f"topic 't' with 5 partitions, replication factor {says}: ClientError: not you"
    )
    assert caught.value.__cause__ is admin.error


def test_without_kafka_python_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "kafka"]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        @staticmethod
        def find_spec(name: str, *given: object) -> None:
            if name.partition(".")[0] == "kafka":
                raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    with pytest.raises(KafkaConfigurationError, match="needs kafka-python on the driver: pip install"):
        create_missing(CONFIG, "t", 1, None)


def test_passwords_are_text_for_the_client_and_hidden_in_its_log(
    admin: type[Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("bootstrap_servers", "sasl_plain_username", "sasl_plain_password", "proxy_url")
    monkeypatch.setattr(Admin, "DEFAULT_CONFIG", dict.fromkeys(names))
    config = ProducerConfig(
        bootstrap_servers="a:1",
        sasl_plain_username=lambda: "alice",
        sasl_plain_password="geheim",
        proxy_url="socks5://u:geheim@h:1",
    )
    assert create_missing(config, "t", 1, None) is True
    (made,) = admin.made
    assert made.settings == {
        "bootstrap_servers": ["a:1"],
        "sasl_plain_username": "alice",
        "sasl_plain_password": "geheim",
        "proxy_url": "socks5://u:geheim@h:1",
    }
    assert all(isinstance(value, str) for name, value in made.settings.items() if name != "bootstrap_servers")
    assert "geheim" not in repr(made.settings)


def test_the_client_gets_a_context_that_has_certificates_given_as_text(
    admin: type[Admin],
) -> None:
    authority = Authority()
    config = ProducerConfig(
        bootstrap_servers="a:1", security_protocol="SSL", ssl_truststore_certificates=authority.pem
    )
    assert create_missing(config, "t", 1, None) is True
    (made,) = admin.made
    context = made.settings["ssl_context"]
    assert [each["subject"] for each in context.get_ca_certs()] == [
        each["subject"] for each in authority.client().get_ca_certs()
    ]


@pytest.mark.parametrize(
    ("mechanism", "name", "value"),
    [
        ("OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url", "file:/run/token"),
        ("AWS_MSK_IAM", "sasl_jaas_config", 'a.IAMLoginModule required awsProfileName="p";'),
        ("GSSAPI", "sasl_kerberos_keytab", "/run/keytab"),
    ],
)
def test_topics_are_not_created_as_another_user(
    admin: type[Admin], mechanism: str, name: str, value: str
) -> None:
    config = ProducerConfig({"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, name: value})
    with pytest.raises(KafkaConfigurationError, match=f"'createTopic.partitions' can't be given with {name}"):
        create_missing(config, "t", 1, None)
    assert admin.made == []


def test_a_login_module_of_aws_without_options_is_left_out(admin: type[Admin]) -> None:
    config = ProducerConfig(
        bootstrap_servers="a:1", sasl_mechanism="AWS_MSK_IAM", sasl_jaas_config="a.IAMLoginModule required;"
    )
    assert create_missing(config, "t", 1, None) is True
