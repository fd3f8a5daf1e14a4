"""Transactional ids that nobody has used for long, against a real Kafka: the broker forgets them, and what it
says to the producer that comes back must end it. A new identity would let a zombie write.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cyproducer import errors, transactions
from cyproducer.transactions import Outcome
from tests.integration.transaction_rig import TransactionRig
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import TRANSACTIONAL_ID_NOT_FOUND, BrokerRefusedError
from tools.harness.until import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

EXPIRY = {
    "transactional.id.expiration.ms": 2_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
}


@pytest.fixture(scope="module")
def expiring_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(1, EXPIRY, directory=tmp_path_factory.mktemp("expiring-kafka")) as cluster:
        yield cluster


def has_expired(rig: TransactionRig) -> bool:
    try:
        rig.transactions.describe(rig.id())
    except BrokerRefusedError as error:
        if error.code != TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return True
    return False


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
@pytest.mark.parametrize("level", [2, 0])
def test_a_producer_whose_id_has_expired_is_at_its_end(
    expiring_kafka: KafkaCluster, level: int, used: bool
) -> None:
    with TransactionRig(expiring_kafka, f"expired-{level}-{used}") as rig:
        rig.transactions.set_level(level)
        topic = rig.topic()
        with rig.ready() as producer:
            if used:
                with producer.transaction():
                    producer.send(topic, b"before", partition=0)
            until(lambda: has_expired(rig), "the expiry")
            producer.begin_transaction()
            late = producer.send(topic, b"late", partition=0)
            with pytest.raises(errors.InvalidProducerIdMappingError) as first:
                producer.commit_transaction()
            assert late.failed()
            for call in (producer.abort_transaction, producer.begin_transaction, producer.commit_transaction):
                with pytest.raises(errors.InvalidProducerIdMappingError) as again:
                    call()
                assert again.value.args == first.value.args
            # It has taken no identity by itself.
            assert has_expired(rig)
        with rig.ready() as successor, successor.transaction():
            successor.send(topic, b"after", partition=0)

        assert rig.committed(topic, 1 + used) == [[b"before"] * used + [b"after"], []]


def test_nobody_knows_how_a_transaction_of_an_expired_id_has_ended(expiring_kafka: KafkaCluster) -> None:
    with TransactionRig(expiring_kafka, "expired-prepared") as rig:
        topic = rig.topic()
        with rig.ready() as producer:
            producer.begin_transaction()
            producer.send(topic, b"prepared", partition=0)
            prepared = producer.prepare_transaction()
            producer.commit_transaction()
        until(lambda: has_expired(rig), "the expiry")
        config = {"bootstrap_servers": expiring_kafka.bootstrap_servers}
        for end in (transactions.commit, transactions.abort):
            assert end(prepared, config).outcome is Outcome.UNKNOWN_ID
        with pytest.raises(errors.TransactionalIdNotFoundError):
            transactions.describe_transaction(rig.id(), config)
        assert rig.committed(topic, 1) == [[b"prepared"], []]


def test_a_bump_of_an_expired_id_takes_no_new_identity(expiring_kafka: KafkaCluster) -> None:
    """A raised level asks for a bump, which the broker answers with another producer id."""
    with TransactionRig(expiring_kafka, "expired-bump") as rig:
        rig.transactions.set_level(0)
        topic = rig.topic()
        with rig.ready() as producer:
            with producer.transaction():
                producer.send(topic, b"before", partition=0)
            until(lambda: has_expired(rig), "the expiry")
            rig.transactions.set_level(2)
            producer.begin_transaction()
            producer.send(topic, b"late", partition=0)
            with pytest.raises(errors.InvalidProducerIdMappingError, match="the id has expired"):
                producer.commit_transaction()
        with rig.ready() as successor, successor.transaction():
            successor.send(topic, b"after", partition=0)

        assert rig.committed(topic, 2) == [[b"before", b"after"], []]
