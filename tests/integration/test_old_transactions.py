"""Tests transactions with old brokers: the oldest whose transactions are supported, and one of 3.x. These
have only the first version of the protocol.
"""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cyproducer import KafkaProducer, errors
from tests.integration.consume import read_all
from tests.integration.old_kafka import OldKafka
from tests.integration.transaction_rig import await_assignment, group_offsets, member, producer

VERSIONS = {
    "2.5.1": {
        ("FIND_COORDINATOR", 3),
        ("INIT_PRODUCER_ID", 3),
        ("ADD_PARTITIONS_TO_TXN", 1),
        ("PRODUCE", 8),
        ("ADD_OFFSETS_TO_TXN", 1),
        ("TXN_OFFSET_COMMIT", 3),
        ("END_TXN", 1),
    },
    "3.7.2": {
        ("FIND_COORDINATOR", 4),
        ("INIT_PRODUCER_ID", 4),
        ("ADD_PARTITIONS_TO_TXN", 3),
        ("PRODUCE", 10),
        ("ADD_OFFSETS_TO_TXN", 3),
        ("TXN_OFFSET_COMMIT", 3),
        ("END_TXN", 3),
    },
}
PARTITIONS = 2


pytestmark = [
    pytest.mark.either_broker(slow=True),
    pytest.mark.parametrize("old", VERSIONS, indirect=True, scope="module"),
]


@pytest.fixture(scope="module")
def admin(old: OldKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": old.bootstrap_servers, "log_level": 0})


def create(admin: AdminClient, topic: str) -> str:
    new = NewTopic(topic, PARTITIONS, 1)
    admin.create_topics([new], operation_timeout=30)[topic].result(30)
    return topic


def send_to_all(producer: KafkaProducer, topic: str, value: bytes) -> None:
    for partition in range(PARTITIONS):
        producer.send(topic, value, partition=partition)


def committed(old: OldKafka, topic: str, expected: int) -> list[list[bytes | None]]:
    """Returns the values that readers see, by partition. The last transaction must be a committed one with a
    record in each: then they have got past what was aborted before."""
    found = read_all(old.bootstrap_servers, topic, expected)
    return [[record.value for record in found if record.partition == each] for each in range(PARTITIONS)]


def test_the_first_protocol_is_used(old: OldKafka, admin: AdminClient) -> None:
    topic = create(admin, "versions")
    with producer(old.bootstrap_servers, "versions", client_id="versions") as sender:
        sender.init_transactions()
        with sender.transaction():
            send_to_all(sender, topic, b"x")
            sender.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], "versions")

    found = old.requests("versions", until="END_TXN")
    assert {each for each in found if each[0] not in ("API_VERSIONS", "METADATA")} == VERSIONS[old.version]


def test_committed_records_are_seen_and_aborted_ones_are_not(old: OldKafka, admin: AdminClient) -> None:
    topic = create(admin, "outcomes")
    with producer(old.bootstrap_servers, "outcomes") as sender:
        sender.init_transactions()
        for value in (b"committed", b"aborted", b"last"):
            sender.begin_transaction()
            send_to_all(sender, topic, value)
            if value == b"aborted":
                sender.flush()
                sender.abort_transaction()
            else:
                sender.commit_transaction()

    assert committed(old, topic, 4) == [[b"committed", b"last"]] * PARTITIONS


def test_after_a_refused_batch_the_next_transactions_are_whole(old: OldKafka, admin: AdminClient) -> None:
    topic = create(admin, "refused")
    expected = []
    with producer(old.bootstrap_servers, "refused", max_request_size=4_000_000) as sender:
        sender.init_transactions()
        for turn in range(5):
            sender.begin_transaction()
            send_to_all(sender, topic, b"aborted")
            sender.send(topic, bytes(3_000_000), partition=0)
            with pytest.raises(errors.AbortableError):
                sender.commit_transaction()
            sender.abort_transaction()
            with sender.transaction():
                send_to_all(sender, topic, b"committed %d" % turn)
            expected.append(b"committed %d" % turn)

    assert committed(old, topic, 10) == [expected] * PARTITIONS


def test_a_second_producer_with_the_same_id_fences_the_first(old: OldKafka, admin: AdminClient) -> None:
    topic = create(admin, "fenced")
    with (
        producer(old.bootstrap_servers, "fenced") as first,
        producer(old.bootstrap_servers, "fenced") as second,
    ):
        first.init_transactions()
        first.begin_transaction()
        send_to_all(first, topic, b"zombie")
        first.flush()
        second.init_transactions()
        send_to_all(first, topic, b"zombie")
        with pytest.raises(errors.KafkaError):
            first.commit_transaction()
        # Before Kafka 2.7 it is InvalidProducerEpochError.
        with pytest.raises(errors.ApplicationRecoverableError):
            first.abort_transaction()
        with second.transaction():
            send_to_all(second, topic, b"successor")

    assert committed(old, topic, 2) == [[b"successor"]] * PARTITIONS


def test_offsets_go_with_the_transaction_and_those_of_a_zombie_are_refused(
    old: OldKafka, admin: AdminClient
) -> None:
    topic, group = create(admin, "offsets"), "offsets"
    offsets = [TopicPartition(topic, partition, 1) for partition in range(PARTITIONS)]

    def now() -> list[int]:
        return group_offsets(admin, group, topic, PARTITIONS)

    with producer(old.bootstrap_servers, "offsets") as sender:
        sender.init_transactions()
        with sender.transaction():
            send_to_all(sender, topic, b"x")
        zombie = member(old.bootstrap_servers, group, topic)
        await_assignment(zombie, partitions=PARTITIONS)
        stale = zombie.consumer_group_metadata()
        sender.begin_transaction()
        sender.send_offsets_to_transaction(offsets, stale)
        sender.abort_transaction()
        assert now() == [-1001] * PARTITIONS

        zombie.close()
        successor = member(old.bootstrap_servers, group, topic)
        await_assignment(successor, partitions=PARTITIONS)
        sender.begin_transaction()
        with pytest.raises(errors.AbortableError):
            sender.send_offsets_to_transaction(offsets, stale)
        sender.abort_transaction()
        assert now() == [-1001] * PARTITIONS

        with sender.transaction():
            sender.send_offsets_to_transaction(offsets, successor.consumer_group_metadata())
        assert now() == [1] * PARTITIONS
        successor.close()
