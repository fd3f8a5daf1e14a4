"""Missing rights on a real Kafka with an authorizer: errors of their own, other topics go on, later rights
count."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from cyproducer import KafkaProducer
from cyproducer.errors import (
    AbortableError,
    AuthorizationError,
    ClusterAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from cyproducer.spark.exactly_once.driver import Driver, Plan
from cyproducer.spark.exactly_once.kafka_cluster import KafkaCluster as SinksCluster
from cyproducer.spark.exactly_once.kafka_cluster import close_admins
from cyproducer.spark.exactly_once.names import STREAM, Sink
from cyproducer.spark.sharing import SharedConfig
from cyproducer.transactions import TransactionAdmin
from tests.integration.consume import read_all
from tools.harness import sasl
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import Transactions
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
        for topic in ("allowed", "denied", "later", "described"):
            nodes.create_topic(topic, 1)
        yield nodes


def allow(cluster: KafkaCluster, user: str, topic: str, operation: AclOperation) -> None:
    add_rule(cluster, ResourceType.TOPIC, topic, user, operation, AclPermissionType.ALLOW)


def add_rule(cluster: KafkaCluster, kind: ResourceType, name: str, user: str, *rule: Any) -> None:
    """``rule``: the operation, and whether it is allowed."""
    binding = AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", *rule)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for done in admin.create_acls([binding]).values():
        done.result(30)


def remove_rule(cluster: KafkaCluster, kind: ResourceType, name: str, user: str, *rule: Any) -> None:
    binding = AclBindingFilter(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", *rule)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for done in admin.delete_acls([binding]).values():
        done.result(30)


def once_granted(call: Callable[[], object]) -> None:
    """Repeats a call until the rule that allows it has reached the broker, a moment after it was made."""
    for _ in looks(20):
        try:
            call()
        except AuthorizationError:
            continue
        return
    raise AssertionError("the rule does not count")


def producer_options(cluster: KafkaCluster, user: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap("OPEN"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": USERS[user],
    }


def producer(cluster: KafkaCluster, user: str, **options: Any) -> KafkaProducer:
    return KafkaProducer(**producer_options(cluster, user), **options)


def test_a_denied_topic_fails_at_once_and_others_go_on(cluster: KafkaCluster) -> None:
    allow(cluster, "alice", "allowed", AclOperation.WRITE)
    with producer(cluster, "alice") as ours:
        once_granted(lambda: ours.send("allowed", b"v").get(30))
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
        once_granted(lambda: ours.send("later", b"v").get(30))
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
        once_granted(lambda: ours.send("denied", b"v").get(30))
        assert ours.send("denied", b"v").get(30).offset >= 1


@pytest.fixture(params=[2, 0], ids="level{}".format)
def level(request: pytest.FixtureRequest, cluster: KafkaCluster) -> int:
    """The level of ``transaction.version``: one for each version of the protocol of transactions."""
    Transactions(cluster).set_level(request.param)
    return int(request.param)


def values(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    """What readers of committed records see."""
    return [record.value for record in read_all(cluster.bootstrap_servers, topic, 0)]


def test_rights_on_a_transactional_id_may_come_and_go(cluster: KafkaCluster, level: int) -> None:
    """What is refused may be tried again, in the middle of a transaction, too."""
    topic = name = f"id-rights-{level}"
    cluster.create_topic(topic, 1)
    allow(cluster, "alice", topic, AclOperation.WRITE)
    with producer(cluster, "alice", transactional_id=name) as ours:
        with pytest.raises(TransactionalIdAuthorizationFailedError, match="grant this principal Write"):
            ours.init_transactions()
        kind = ResourceType.TRANSACTIONAL_ID
        add_rule(cluster, kind, name, "alice", AclOperation.WRITE, AclPermissionType.ALLOW)
        once_granted(ours.init_transactions)
        with ours.transaction():
            ours.send(topic, b"first")
        before = Transactions(cluster).describe(name)

        ours.begin_transaction()
        ours.send(topic, b"denied").get(30)
        denial = kind, name, "alice", AclOperation.ALL, AclPermissionType.DENY
        add_rule(cluster, *denial)
        with TransactionAdmin(ours.config) as admin:
            # The rule reaches the broker a moment after it was made.
            for _ in looks(20):
                try:
                    admin.describe_transaction(name)
                except TransactionalIdAuthorizationFailedError:
                    break
        with pytest.raises(AbortableError) as caught:
            ours.commit_transaction()
        assert isinstance(caught.value.__cause__, TransactionalIdAuthorizationFailedError)
        with pytest.raises(TransactionalIdAuthorizationFailedError):
            ours.abort_transaction()
        remove_rule(cluster, *denial)
        once_granted(ours.abort_transaction)
        with ours.transaction():
            ours.send(topic, b"last")
        after = Transactions(cluster).describe(name)
        # No new identity was needed: each end of the protocol's second version gives the next epoch.
        assert after.producer_id == before.producer_id
        assert after.epoch - before.epoch == (2 if level == 2 else 0)
    assert values(cluster, topic) == [b"first", b"last"]


def test_a_transaction_with_a_denied_topic_writes_to_none(cluster: KafkaCluster, level: int) -> None:
    name = f"topic-rights-{level}"
    cluster.create_topic(name, 1)
    allow(cluster, "alice", name, AclOperation.WRITE)
    kind = ResourceType.TRANSACTIONAL_ID
    add_rule(cluster, kind, name, "alice", AclOperation.WRITE, AclPermissionType.ALLOW)
    with producer(cluster, "alice", transactional_id=name) as ours:
        once_granted(ours.init_transactions)
        # Metadata is known, so that a broker of transactions refuses it.
        allow(cluster, "alice", "described", AclOperation.DESCRIBE)
        for topic in ("described", name):
            once_granted(partial(ours.partitions_for, topic))
        ours.begin_transaction()
        for _ in range(10):
            ours.send(name, b"v")
            ours.send("described", b"v")
        with pytest.raises(AbortableError) as caught:
            ours.commit_transaction()
        assert isinstance(caught.value.__cause__, TopicAuthorizationFailedError)
        assert "described" in str(caught.value.__cause__)
        ours.abort_transaction()
        with ours.transaction():
            ours.send(name, b"next")
    assert values(cluster, name) == [b"next"]
    assert values(cluster, "described") == []


@pytest.fixture
def spark_plan(cluster: KafkaCluster) -> Iterator[Callable[[], Plan]]:
    config = producer_options(cluster, "alice")
    sink = Sink("once", STREAM, "/checkpoint")

    def plan() -> Plan:
        of_sink = SinksCluster(SharedConfig(config), sink, "once.decisions", 30_000)
        with closing(of_sink) as found:
            return Driver(found, sink, "once-rows").plan()

    yield plan
    close_admins()


def test_exactly_once_from_spark_says_at_the_start_which_right_is_missing(
    cluster: KafkaCluster, spark_plan: Callable[[], Plan]
) -> None:
    cluster.create_topic("once-rows", 1)
    Transactions(cluster).set_level(2)
    topic, transactional = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    log = Sink("once", STREAM, "/checkpoint").log_id
    rights = [
        (transactional, log, AclOperation.WRITE, "TransactionalIdAuthorizationFailedError"),
        (topic, "once.decisions", AclOperation.DESCRIBE, "once.decisions"),
        (topic, "once.decisions", AclOperation.CREATE, "once.decisions"),
        (topic, "once.decisions", AclOperation.DESCRIBE_CONFIGS, "once.decisions"),
        (topic, "once.decisions", AclOperation.READ, "once.decisions"),
        (topic, "once.decisions", AclOperation.WRITE, "topic 'once.decisions': the principal lacks Write."),
        (topic, "once-rows", AclOperation.READ, "topic 'once-rows': the principal lacks Read and Write."),
        (topic, "once-rows", AclOperation.WRITE, "topic 'once-rows': the principal lacks Write."),
    ]
    for kind, name, operation, says in rights:
        said: list[str] = []

        def refused(says: str = says, said: list[str] = said) -> bool:
            with pytest.raises(AuthorizationError) as caught:
                spark_plan()
            said.append(str(caught.value))
            return says in said[-1]

        assert any(refused() for _ in looks(20)), said[-1]
        add_rule(cluster, kind, name, "alice", operation, AclPermissionType.ALLOW)
    once_granted(spark_plan)
