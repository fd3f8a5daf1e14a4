"""Implements ``Cluster`` on Kafka, with this package's own producer and its connections for transactions.

Owns the requests of one batch's plan or commit. Does not own their order (``driver``). Not thread-safe.

Spark plans and commits in processes that it keeps for the next batch. The connections, in ``_admins``,
outlive a batch. The state of transactions does not.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from cyproducer.base.clock import monotonic_s
from cyproducer.base.forks import in_child
from cyproducer.clients.topic_admin import READ, WRITE
from cyproducer.errors import (
    AbortableError,
    ApplicationRecoverableError,
    InvalidReplicationFactorError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnsupportedVersionError,
)
from cyproducer.producer import KafkaProducer
from cyproducer.spark.exactly_once.cluster import End, NotDecidedError
from cyproducer.spark.exactly_once.decisions import (
    Decision,
    DecisionLogError,
    History,
    Identity,
    Place,
    TaskTransaction,
    decode,
)
from cyproducer.spark.exactly_once.names import Sink
from cyproducer.spark.sharing import SharedConfig
from cyproducer.structs import PreparedTransaction
from cyproducer.transactions import DescribedTransaction, Outcome, TransactionAdmin

if TYPE_CHECKING:
    from cyproducer.clients.transaction_client import TransactionClient
    from cyproducer.wire.record_decoder import Batch, Record

log: Final = logging.getLogger("cyproducer.spark")

LEVEL: Final = 2
"""The level of ``transaction.version`` whose EndTxn ends an epoch. The protocol depends on this (KIP-890)."""
_LEAST_S: Final = 60.0
_LOG_TIMEOUT_MS: Final = 900_000
"""Upper bound of the timeout of the log's transactions: the brokers' default maximum. Up to this bound they
have the tasks' timeout, because they may copy what a task has written."""
_REPLICAS: Final = 3
_CONFIG: Final = {
    "cleanup.policy": "compact",
    # Small segments: only segments that are no longer written to are compacted, and each plan reads all of
    # them.
    "segment.bytes": str(1 << 20),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    # Otherwise transaction markers, two per batch, are kept for a day.
    "delete.retention.ms": "60000",
    # For batches of very many tasks, with a larger max.request.size.
    "max.message.bytes": str(16 << 20),
    "unclean.leader.election.enable": "false",
}
_ENDS: Final = {
    Outcome.COMMITTED: End.COMMITTED,
    Outcome.COMMITTED_BEFORE: End.COMMITTED,
    Outcome.ABORTED: End.ABORTED,
    Outcome.ABORTED_BEFORE: End.ABORTED,
}

_lock = threading.Lock()
_admins: dict[str, TransactionAdmin] = {}


def admin_for(config: SharedConfig) -> TransactionAdmin:
    """Returns the process's connections for a configuration. Thread-safe."""
    with _lock:
        if config.key not in _admins:
            _admins[config.key] = TransactionAdmin(config.config)
        return _admins[config.key]


def close_admins() -> None:
    """Closes the connections of this process. For tests."""
    with _lock:
        for admin in _admins.values():
            admin.close()
        _admins.clear()


def _forget() -> None:
    """Resets the state in a forked child: the connections belong to the parent."""
    global _lock
    _lock = threading.Lock()
    _admins.clear()


in_child(_forget)


def described_open(
    admin: TransactionAdmin, prefix: str, wanted: Callable[[str], object], timeout_s: float
) -> list[DescribedTransaction]:
    """Returns descriptions of the open transactions whose ids begin with ``prefix`` and are ``wanted``."""
    listed = admin.list_transactions(states=("Ongoing",), prefix=prefix, timeout=timeout_s)
    names = [each.transactional_id for each in listed if wanted(each.transactional_id)]
    described = admin._describe_all(names, timeout_s)
    return [each for each in described if each is not None and each.state == "Ongoing"]


class KafkaCluster:
    """A sink's view of a cluster, for one plan or commit. Call ``close()`` when done.

    Args:
        config: the producer's options.
        sink: the sink whose transactional ids and decisions this view handles.
        topic: the topic with the decisions.
        transaction_timeout_ms: the timeout of the tasks' transactions. Calls may take that long, or a minute
            if that is longer.
    """

    def __init__(self, config: SharedConfig, sink: Sink, topic: str, transaction_timeout_ms: int) -> None:
        self._config = config
        self._sink = sink
        self._topic = topic
        self._timeout_ms = transaction_timeout_ms
        self._deadline = monotonic_s() + max(transaction_timeout_ms / 1000, _LEAST_S)
        self._admin = admin_for(config)
        self._producer: KafkaProducer | None = None

    def close(self) -> None:
        """Closes the log's producer. The connections stay for the next batch."""
        if self._producer is not None:
            self._producer.close(0)
            self._producer = None

    @property
    def _left_s(self) -> float:
        return max(1.0, self._deadline - monotonic_s())

    def _within(self, timeout_s: float | None) -> float:
        return self._left_s if timeout_s is None else min(timeout_s, self._left_s)

    def act_for(self, sink: Sink) -> None:
        self.close()
        self._sink = sink

    # The log's identity

    def take_over(self) -> Identity:
        producer = self._log_producer()
        producer.init_transactions(self._left_s)
        level = _client(producer).level
        if level < LEVEL:
            raise UnsupportedVersionError(
                f"deliveryGuarantee 'exactly-once' needs transaction.version {LEVEL}, and the brokers have "
                f"finalized {level}: it comes with Kafka 4.0; after an upgrade from an older one, run "
                f"kafka-features.sh --bootstrap-server ... upgrade --feature transaction.version={LEVEL}"
            )
        return Identity(*_client(producer).identity)

    def _log_producer(self) -> KafkaProducer:
        self.close()
        options = {
            **self._config.config,
            "transactional_id": self._sink.log_id,
            "transaction_timeout_ms": min(self._timeout_ms, _LOG_TIMEOUT_MS),
            "allow_auto_create_topics": False,
            "linger_ms": 0,
        }
        self._producer = KafkaProducer(**options)
        return self._producer

    def _as(self, identity: Identity) -> KafkaProducer:
        """Returns the log's producer with that identity, for its next transaction."""
        producer = self._producer
        if producer is None or _client(producer).identity != identity:
            producer = self._log_producer()
            _client(producer).resume(*identity)
        return producer

    def give_up(self, identity: Identity) -> bool:
        return self._admin._end_identity(self._sink.log_id, *identity, self._left_s)

    # The decision log

    def history(self, create: bool = True) -> History:
        """As in ``Cluster``. ``create``: whether to create the topic if it is missing."""
        self._check_topic(create)
        reading, deadline, seconds = self._admin._reading, self._deadline, self._left_s
        first, end = reading.offsets(self._topic, 0, deadline, seconds)
        # Producer id -> the records of its open transaction.
        open_ones: dict[int, list[tuple[str, Decision]]] = {}
        found: dict[str, Decision] = {}
        for batch in reading.batches(self._topic, 0, first, end, deadline, seconds):
            if not batch.control:
                if not batch.transactional:
                    raise DecisionLogError(
                        f"topic {self._topic!r} has records that are no decisions, at offset "
                        f"{batch.base_offset}: give the option 'decisionLogTopic' a topic of its own"
                    )
                pending = open_ones.setdefault(batch.producer_id, [])
                for record in batch.records():
                    decision = decode(record.value or b"")
                    pending.append((decision.sink, decision))
            elif batch.control_type() == "commit":
                found.update(open_ones.pop(batch.producer_id, ()))
            else:
                open_ones.pop(batch.producer_id, None)
        if any(key == self._sink.key for pending in open_ones.values() for key, _ in pending):
            raise DecisionLogError(
                f"topic {self._topic!r} has a decision about {self._sink.key!r} whose transaction has not "
                "ended: another program writes to it, or the log has lost records"
            )
        return found

    def _check_topic(self, create: bool) -> None:
        reading, deadline, seconds = self._admin._reading, self._deadline, self._left_s
        topic = reading.topic(self._topic, deadline, seconds)
        if topic is None and not create:
            raise DecisionLogError(
                f"there is no topic {self._topic!r}: no sink has written under prefix "
                f"{self._sink.prefix!r}, or it has another 'decisionLogTopic'"
            )
        if topic is None and self._create_topic():
            return
        configs: dict[str, str] | None = None
        while configs is None:
            # Waits for the topic, which another driver may have created just now.
            reading.topic(self._topic, deadline, seconds, wait=True)
            configs = reading.topic_configs([self._topic], deadline, seconds).get(self._topic)
        policy = configs.get("cleanup.policy")
        if policy != "compact":
            raise DecisionLogError(
                f"topic {self._topic!r}, the decision log, has cleanup.policy={policy!r}: must be 'compact'; "
                "otherwise decisions are deleted, and rows may be written twice. kafka-configs.sh "
                f"--bootstrap-server ... --alter --topic {self._topic} --add-config cleanup.policy=compact"
            )

    def _create_topic(self) -> bool:
        """Creates the decision log; returns whether it did not exist."""
        reading, deadline, seconds = self._admin._reading, self._deadline, self._left_s
        try:
            config = {**_CONFIG, "min.insync.replicas": "2"}
            created = reading.create_topic(self._topic, 1, _REPLICAS, config, deadline, seconds)
        except InvalidReplicationFactorError:
            # There are fewer brokers than replicas.
            created = reading.create_topic(self._topic, 1, -1, _CONFIG, deadline, seconds)
        if created:
            log.info("the decision log %r was created", self._topic)
            reading.topic(self._topic, deadline, seconds, wait=True)
        return created

    def check_rights(self, topics: Collection[str]) -> None:
        names = [self._topic, *topics]
        denied = self._admin._reading.denied(names, (READ, WRITE), self._deadline, self._left_s)
        for name, operations in denied.items():
            lacks = " and ".join("Read" if each == READ else "Write" for each in operations)
            raise TopicAuthorizationFailedError(
                f"topic {name!r}: the principal lacks {lacks}. deliveryGuarantee 'exactly-once' needs Read "
                "and Write on the topics that it writes and on the decision log: kafka-acls.sh "
                "--bootstrap-server ... --add --allow-principal User:... --operation Read --operation Write "
                f"--topic {name}"
            )

    def write(self, identity: Identity, decision: Decision) -> Identity:
        return self._transaction(identity, decision, lambda producer: None)

    def _transaction(
        self, identity: Identity, decision: Decision, more: Callable[[KafkaProducer], None]
    ) -> Identity:
        producer = self._as(identity)
        client = _client(producer)
        try:
            producer.begin_transaction()
            more(producer)
            producer.send(self._topic, decision.encode(), decision.sink.encode(), partition=0)
        except KafkaError as error:
            self._abort_decision(producer, error)
            if isinstance(error, DecisionLogError):
                raise
            raise NotDecidedError(str(error)) from error
        try:
            producer.commit_transaction(self._left_s)
        except AbortableError as error:
            # If the abort succeeds, no other client has ended this identity.
            self._abort_decision(producer, error)
            raise NotDecidedError(str(error)) from error
        except ApplicationRecoverableError as error:
            if client.end_in_doubt:
                raise
            raise NotDecidedError(f"another driver has taken over {self._sink.log_id!r}: {error}") from error
        return Identity(*client.identity)

    def _abort_decision(self, producer: KafkaProducer, error: KafkaError) -> None:
        try:
            producer.abort_transaction(self._left_s)
        except ApplicationRecoverableError as fenced:
            if _client(producer).end_in_doubt:
                raise
            raise NotDecidedError(f"another driver has taken over {self._sink.log_id!r}: {error}") from fenced

    # Transactions of tasks

    def committed_ids(self) -> list[str]:
        listed = self._admin.list_transactions(
            states=("CompleteCommit",), prefix=self._sink.id_prefix, timeout=self._left_s
        )
        return [each.transactional_id for each in listed if self._sink.owns(each.transactional_id)]

    def open_transactions(self, timeout_s: float | None = None) -> list[TaskTransaction]:
        within = self._within(timeout_s)
        found = described_open(self._admin, self._sink.id_prefix, self._sink.owns, within)
        return [TaskTransaction(each.transactional_id, each.producer_id, each.epoch) for each in found]

    def not_open(self, transactions: Sequence[TaskTransaction]) -> list[str]:
        described = self._admin._describe_all([each.transactional_id for each in transactions], self._left_s)
        problems = []
        for wanted, found in zip(transactions, described, strict=True):
            if found is None:
                problems.append(f"{wanted.transactional_id}: unknown to its coordinator")
            elif (found.producer_id, found.epoch) != wanted.identity:
                problems.append(
                    f"{wanted.transactional_id}: {found.state}, epoch {found.epoch} and not {wanted.epoch}: "
                    "its timeout was over, or another attempt has taken its id"
                )
            elif found.state != "Ongoing":
                problems.append(f"{wanted.transactional_id}: {found.state}")
        return problems

    def commit(self, transactions: Sequence[TaskTransaction]) -> list[End]:
        ended = self._admin.commit_all([_prepared(each) for each in transactions], self._left_s)
        return [_ENDS.get(each.outcome, End.UNKNOWN) for each in ended]

    def abort(self, transactions: Sequence[TaskTransaction], timeout_s: float | None = None) -> None:
        self._admin.abort_all([_prepared(each) for each in transactions], self._within(timeout_s))

    def outcome(self, transaction: TaskTransaction) -> End:
        for place in transaction.places:
            for batch in self._from(place):
                # In the second transaction protocol, EndTxn and timeouts write the marker with the next
                # epoch.
                if (
                    batch.control
                    and batch.producer_id == transaction.producer_id
                    and batch.epoch in (transaction.epoch, transaction.epoch + 1)
                ):
                    return End.COMMITTED if batch.control_type() == "commit" else End.ABORTED
        return End.UNKNOWN

    def copy(self, identity: Identity, aborted: Sequence[TaskTransaction], decision: Decision) -> Identity:
        def copies(producer: KafkaProducer) -> None:
            for transaction in aborted:
                copied = 0
                for topic, partition, record in self._records(transaction):
                    headers = list(record.headers)
                    producer.send(topic, record.value, record.key, headers, partition, record.timestamp)
                    copied += 1
                if copied != transaction.records:
                    raise DecisionLogError(
                        f"brokers have deleted records of {transaction.transactional_id!r} while they were "
                        f"copied: {copied} of {transaction.records} were there. Nothing was copied"
                    )

        return self._transaction(identity, decision, copies)

    def missing(self, transaction: TaskTransaction) -> str | None:
        for place in transaction.places:
            found = sum(batch.count for batch in self._batches(transaction, place))
            if found != place.records:
                return (
                    f"{place.topic}-{place.partition} has {found} of the {place.records} records that "
                    f"transactional id {transaction.transactional_id!r} had written from offset "
                    f"{place.offset} on: the brokers have aborted its transaction after it was decided, and "
                    "have deleted records since, so that they can't be copied"
                )
        return None

    def _records(self, transaction: TaskTransaction) -> "Iterator[tuple[str, int, Record]]":
        for place in transaction.places:
            for batch in self._batches(transaction, place):
                for record in batch.records():
                    yield place.topic, place.partition, record

    def _from(self, place: Place) -> "Iterator[Batch]":
        """Reads a partition from the offset at which a transaction's records begin, or from the first offset
        that is left after it. Yields nothing if the topic was deleted."""
        reading, deadline, seconds = self._admin._reading, self._deadline, self._left_s
        if reading.topic(place.topic, deadline, seconds) is None:
            return iter(())
        first, end = reading.offsets(place.topic, place.partition, deadline, seconds)
        start = max(first, place.offset)
        return reading.batches(place.topic, place.partition, start, end, deadline, seconds)

    def _batches(self, transaction: TaskTransaction, place: Place) -> "Iterator[Batch]":
        """Yields the transaction's batches in a partition. The epoch, which is new for each transaction,
        identifies them."""
        for batch in self._from(place):
            if batch.control:
                if batch.producer_id == transaction.producer_id and batch.epoch > transaction.epoch:
                    return
            elif (batch.producer_id, batch.epoch) == transaction.identity:
                yield batch


def _prepared(transaction: TaskTransaction) -> PreparedTransaction:
    return PreparedTransaction(
        transaction.transactional_id, transaction.producer_id, transaction.epoch, LEVEL, False, {}
    )


def _client(producer: KafkaProducer) -> "TransactionClient":
    client = producer._runtime.client.transaction_client
    assert client is not None
    return client
