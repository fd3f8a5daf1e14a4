"""Tests a broker that creates no topics automatically, checks ACLs, and on Kafka logs every request."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cyproducer import KafkaProducer, errors
from tests.integration.consume import read_all
from tests.integration.old_kafka import in_file, requests_of
from tools.harness.embedded_kafka import EmbeddedKafka
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

pytestmark = pytest.mark.either_broker

PROPERTIES = {
    "auto.create.topics.enable": "false",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:nobody-here",
}
LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
logger.requests.name = kafka.request.logger
logger.requests.level = debug
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %m%n
"""


@pytest.fixture(scope="module")
def restricted(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    if broker == "embedded":
        with EmbeddedKafka(auto_create=False) as embedded:
            yield embedded
        return
    directory = tmp_path_factory.mktemp("restricted")
    config = tmp_path_factory.mktemp("log4j") / "log4j2.properties"
    config.write_text(LOG4J.format(file=directory / "node-1" / "broker.log"))
    options = [f"-Dlog4j2.configurationFile={config}"]
    with KafkaCluster(1, PROPERTIES, jvm_options=options, directory=directory) as cluster:
        yield cluster


@pytest.fixture
def producer(restricted: KafkaCluster) -> Iterator[KafkaProducer]:
    with KafkaProducer(bootstrap_servers=restricted.bootstrap_servers, max_block_ms=20_000) as producer:
        yield producer


@pytest.fixture(scope="module")
def acls(restricted: KafkaCluster) -> Acls:
    if isinstance(restricted, EmbeddedKafka):
        return EmbeddedAcls(restricted)
    return Acls(restricted.bootstrap_servers)


class Acls:
    """Revokes and restores everyone's permissions for a topic. Returns once the broker applies the change.

    If a topic has any rule, everything that no rule allows is denied.
    """

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def allow_only(self, topic: str, operation: AclOperation) -> None:
        rule = self._rule(AclBinding, topic, operation, AclPermissionType.ALLOW)
        for done in self._admin.create_acls([rule]).values():
            done.result(30)

    def deny(self, topic: str) -> None:
        rule = self._rule(AclBinding, topic, AclOperation.ALL, AclPermissionType.DENY)
        for done in self._admin.create_acls([rule]).values():
            done.result(30)

    def allow_all_again(self, topic: str) -> None:
        rules = self._rule(AclBindingFilter, topic, AclOperation.ANY, AclPermissionType.ANY)
        for done in self._admin.delete_acls([rules]).values():
            assert len(done.result(30)) == 1

    @staticmethod
    def _rule(kind: type[Any], topic: str, operation: AclOperation, permission: AclPermissionType) -> Any:
        pattern = ResourcePatternType.LITERAL
        return kind(ResourceType.TOPIC, topic, pattern, "User:ANONYMOUS", "*", operation, permission)


class EmbeddedAcls(Acls):
    """The same on the embedded broker, whose rights are not changed by requests."""

    def __init__(self, cluster: EmbeddedKafka) -> None:
        (self._broker,) = cluster.brokers.values()

    def allow_only(self, topic: str, operation: AclOperation) -> None:
        self._broker.allow("User:ANONYMOUS", operation.name, topic=topic)

    def deny(self, topic: str) -> None:
        self._broker.deny("User:ANONYMOUS", "ALL", topic=topic)

    def allow_all_again(self, topic: str) -> None:
        self._broker.clear_rights()


@pytest.mark.kafka_only("it writes no log of requests to a file")
def test_the_newest_versions_of_kafka_4_1_are_used(restricted: KafkaCluster) -> None:
    restricted.create_topic("versions")
    with KafkaProducer(bootstrap_servers=restricted.bootstrap_servers, client_id="versions") as producer:
        assert producer.send("versions", b"x").get(30).offset == 0

    log = partial(in_file, restricted.broker_log(1))
    assert requests_of("versions", log, until="PRODUCE") == {
        ("API_VERSIONS", 4),
        ("METADATA", 13),
        ("INIT_PRODUCER_ID", 5),
        ("PRODUCE", 13),
    }


@pytest.mark.slow
def test_a_missing_topic_fails_in_bounded_time_with_the_reason(restricted: KafkaCluster) -> None:
    restricted.create_topic("there")
    with KafkaProducer(bootstrap_servers=restricted.bootstrap_servers, max_block_ms=500) as producer:
        started = time.monotonic()
        future = producer.send("missing", b"x")
        # Other topics still work.
        assert producer.send("there", b"x").get(30).offset == 0
        with pytest.raises(errors.KafkaTimeoutError, match=r"'missing'.*UnknownTopicOrPartitionError"):
            future.get(30)
        took = time.monotonic() - started
        with pytest.raises(errors.KafkaTimeoutError, match="'missing'"):
            producer.partitions_for("missing")

    assert 0.5 <= took < 5


def test_a_topic_without_write_permission_fails_alone(
    restricted: KafkaCluster, acls: Acls, producer: KafkaProducer
) -> None:
    restricted.create_topic("read-only")
    restricted.create_topic("open")
    acls.allow_only("read-only", AclOperation.DESCRIBE)

    refused = [producer.send("read-only", b"x") for _ in range(3)]
    accepted = [producer.send("open", b"x") for _ in range(3)]

    assert [future.get(30).offset for future in accepted] == [0, 1, 2]
    for future in refused:
        with pytest.raises(errors.TopicAuthorizationFailedError, match="read-only"):
            future.get(30)
        assert not future.retriable()
    acls.allow_all_again("read-only")
    assert producer.send("read-only", b"y").get(30).offset == 0
    assert len(read_all(restricted.bootstrap_servers, "read-only", 1)) == 1


def test_a_topic_without_describe_permission_fails_alone(
    restricted: KafkaCluster, acls: Acls, producer: KafkaProducer
) -> None:
    restricted.create_topic("hidden")
    restricted.create_topic("visible")
    acls.deny("hidden")

    refused = producer.send("hidden", b"x")
    assert producer.send("visible", b"x").get(30).offset == 0
    with pytest.raises(errors.TopicAuthorizationFailedError, match="hidden"):
        refused.get(30)
    with pytest.raises(errors.TopicAuthorizationFailedError, match="hidden"):
        producer.partitions_for("hidden")

    acls.allow_all_again("hidden")
    assert _offset_once_allowed(producer, "hidden") == 0
    assert len(read_all(restricted.bootstrap_servers, "hidden", 1)) == 1


def test_records_sent_right_after_a_refusal_are_refused_as_well(
    restricted: KafkaCluster, acls: Acls, producer: KafkaProducer
) -> None:
    restricted.create_topic("hidden-again")
    acls.deny("hidden-again")

    for _ in range(20):
        with pytest.raises(errors.TopicAuthorizationFailedError, match="hidden-again"):
            producer.send("hidden-again", b"x").get(10)


def test_a_topic_hidden_while_in_use_fails_and_recovers(restricted: KafkaCluster, acls: Acls) -> None:
    restricted.create_topic("revoked")
    with KafkaProducer(bootstrap_servers=restricted.bootstrap_servers, metadata_max_age_ms=100) as producer:
        assert producer.send("revoked", b"x").get(30).offset == 0
        acls.deny("revoked")
        with pytest.raises(errors.TopicAuthorizationFailedError, match="revoked"):
            producer.send("revoked", b"x").get(30)
        acls.allow_all_again("revoked")
        assert _offset_once_allowed(producer, "revoked") == 1


def _offset_once_allowed(producer: KafkaProducer, topic: str) -> int:
    """Sends a record until it is accepted, and returns its offset. A refusal is cached for
    retry_backoff_ms."""
    for _ in looks(15):
        with contextlib.suppress(errors.TopicAuthorizationFailedError):
            offset: int = producer.send(topic, b"allowed").get(30).offset
            return offset
    raise TimeoutError(f"records for {topic!r} are still refused")
