"""Missing rights on a real Kafka with an authorizer: errors of their own, other topics go on, later rights
count."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from cyproducer import KafkaProducer
from cyproducer.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError
from tools.harness import sasl
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.until import looks

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

USERS = {"alice": "secret", "bob": "secret"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    nodes = KafkaCluster(
        properties={
            **sasl.broker_properties("OPEN", USERS),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # The nodes themselves, and the tests' administration client.
            "super.users": "User:ANONYMOUS",
            "auto.create.topics.enable": "false",
        },
        listeners={"OPEN": "SASL_PLAINTEXT"},
        directory=tmp_path_factory.mktemp("kafka-acls"),
    )
    with nodes:
        for topic in ("allowed", "denied", "later"):
            nodes.create_topic(topic, 1)
        yield nodes


def allow(cluster: KafkaCluster, user: str, topic: str, operation: AclOperation) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    rule = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for done in admin.create_acls([rule]).values():
        done.result(30)


def producer(cluster: KafkaCluster, user: str, **options: Any) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=cluster.bootstrap("OPEN"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=user,
        sasl_plain_password=USERS[user],
        **options,
    )


def test_a_denied_topic_fails_at_once_and_others_go_on(cluster: KafkaCluster) -> None:
    allow(cluster, "alice", "allowed", AclOperation.WRITE)
    with producer(cluster, "alice") as ours:
        for _ in looks(20):
            # The rule reaches the broker a moment after it was made.
            try:
                ours.send("allowed", b"v").get(30)
            except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError):
                continue
            break
        futures = [ours.send("allowed", b"v") for _ in range(100)]
        began = time.monotonic()
        with pytest.raises(TopicAuthorizationFailedError, match="denied"):
            ours.send("denied", b"v").get(30)
        with pytest.raises(TopicAuthorizationFailedError, match="does-not-exist"):
            ours.send("does-not-exist", b"v").get(30)
        assert time.monotonic() - began < 5
        assert all(future.get(30).offset >= 0 for future in futures)


def test_rights_that_are_granted_later_are_noticed(cluster: KafkaCluster) -> None:
    allow(cluster, "alice", "allowed", AclOperation.WRITE)
    with producer(cluster, "alice") as ours:
        with pytest.raises(TopicAuthorizationFailedError):
            ours.send("later", b"v").get(30)
        allow(cluster, "alice", "later", AclOperation.WRITE)
        for _ in looks(20):
            try:
                ours.send("later", b"v").get(30)
            except TopicAuthorizationFailedError:
                continue
            break
        assert ours.send("later", b"v").get(30).offset >= 1


def test_a_right_to_describe_is_not_a_right_to_write(cluster: KafkaCluster) -> None:
    allow(cluster, "bob", "denied", AclOperation.DESCRIBE)
    with producer(cluster, "bob", enable_idempotence=False) as ours:
        for _ in looks(20):
            with pytest.raises(TopicAuthorizationFailedError, match="denied") as caught:
                ours.send("denied", b"v").get(30)
            # Until the rule has reached the broker, Metadata refuses the topic; then Produce does.
            if caught.value.maybe_written is False:
                break


def test_no_right_to_write_anywhere_refuses_the_producer_id_and_says_what_to_do(
    cluster: KafkaCluster,
) -> None:
    allow(cluster, "bob", "denied", AclOperation.DESCRIBE)
    with producer(cluster, "bob") as ours:
        for _ in looks(20):
            with pytest.raises((ClusterAuthorizationFailedError, TopicAuthorizationFailedError)) as caught:
                ours.send("denied", b"v").get(30)
            if isinstance(caught.value, ClusterAuthorizationFailedError):
                break
        assert "IdempotentWrite" in str(caught.value)
        allow(cluster, "bob", "denied", AclOperation.WRITE)
        for _ in looks(20):
            try:
                ours.send("denied", b"v").get(30)
            except (ClusterAuthorizationFailedError, TopicAuthorizationFailedError):
                continue
            break
        assert ours.send("denied", b"v").get(30).offset >= 1
