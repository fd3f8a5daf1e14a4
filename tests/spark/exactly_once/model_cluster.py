"""A model of a cluster for the exactly-once protocol: transactional ids, partitions and a decision log.

It has the rules of the second protocol for transactions that the sink stands on, as measured on Kafka 4.1: an
epoch is a lock, of which one commit or abort wins; whoever has an older epoch can neither write nor end
anything. Before and after each effect it calls ``on_step``, where a test lets the process die, lets another
one run, or lets brokers time out transactions.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from cyproducer.errors import KafkaError, TopicAuthorizationFailedError
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

TOPIC = "t"


@dataclass
class Id:
    """A transactional id at its coordinator."""

    producer_id: int
    epoch: int = 0
    state: str = "Empty"


@dataclass
class Written:
    """Records of one transaction, with their outcome; None: it is open."""

    name: str
    identity: Identity
    rows: list[str]
    decision: bytes | None = None
    committed: bool | None = None


@dataclass
class Broker:
    """The state that outlives processes."""

    ids: dict[str, Id] = field(default_factory=dict)
    log: list[Written] = field(default_factory=list)
    forgets: set[str] = field(default_factory=set)
    """Rows of aborted transactions that the cleaner has taken."""
    denied: set[str] = field(default_factory=set)
    """Topics on which a right is missing that writing does not need."""
    checked: list[list[str]] = field(default_factory=list)
    """The topics of each check of rights."""
    clusters: int = 0
    """How many views of it were made."""
    timeouts: list[float | None] = field(default_factory=list)
    """Those of each look for open transactions, and of each abort."""
    on_step: Callable[[str], None] = lambda name: None

    def init(self, name: str) -> Identity:
        """InitProducerId without an identity."""
        found = self.ids.get(name)
        if found is None:
            found = self.ids[name] = Id(len(self.ids))
        else:
            if found.state == "Ongoing":
                self._settle(name, False)
            found.epoch += 1
            found.state = "Empty"
        return Identity(found.producer_id, found.epoch)

    def append(
        self, name: str, identity: Identity, rows: Sequence[str], decision: bytes | None = None
    ) -> None:
        """A Produce request; adds to the transaction."""
        found = self.ids[name]
        if (found.producer_id, found.epoch) != identity:
            raise KafkaError(f"{name}: INVALID_PRODUCER_EPOCH")
        found.state = "Ongoing"
        self.log.append(Written(name, identity, list(rows), decision))

    def end(self, name: str, identity: Identity, commit: bool) -> Identity | None:
        """EndTxn of version 5: returns the next identity; None: refused."""
        found = self.ids.get(name)
        if found is None or found.producer_id != identity.producer_id:
            return None
        if found.epoch == identity.epoch:
            if found.state != "Ongoing" and commit:
                return None
            self._settle(name, commit)
            found.state = "CompleteCommit" if commit else "CompleteAbort"
            found.epoch += 1
        elif not (
            found.epoch == identity.epoch + 1
            and found.state == ("CompleteCommit" if commit else "CompleteAbort")
        ):
            return None
        return Identity(found.producer_id, found.epoch)

    def time_out(self, task_ids_only: bool = True) -> None:
        """The brokers abort every open transaction of tasks."""
        for name, found in self.ids.items():
            if found.state == "Ongoing" and not (task_ids_only and name.endswith(".log")):
                self._settle(name, False)
                found.state = "CompleteAbort"
                found.epoch += 1

    def _settle(self, name: str, commit: bool) -> None:
        for each in self.log:
            if each.name == name and each.committed is None:
                each.committed = commit

    @property
    def visible(self) -> list[str]:
        """What ``read_committed`` shows."""
        return sorted(row for each in self.log if each.committed for row in each.rows)

    @property
    def open_ids(self) -> list[str]:
        return [name for name, each in self.ids.items() if each.state == "Ongoing"]


class ModelCluster:
    """Implements ``Cluster`` for one process."""

    def __init__(self, broker: Broker, sink: Sink) -> None:
        self.broker = broker
        self.sink = sink

    def _step(self, name: str) -> None:
        self.broker.on_step(name)

    def act_for(self, sink: Sink) -> None:
        self.sink = sink

    def take_over(self) -> Identity:
        self._step("before taking over")
        identity = self.broker.init(self.sink.log_id)
        self._step("after taking over")
        return identity

    def history(self) -> History:
        self._step("before reading the log")
        found: dict[str, Decision] = {}
        for each in self.broker.log:
            if each.decision is not None and each.committed:
                decision = decode(each.decision)
                found[decision.sink] = decision
        self._step("after reading the log")
        return found

    def check_rights(self, topics: Collection[str]) -> None:
        self.broker.checked.append(list(topics))
        if lacking := self.broker.denied.intersection(topics):
            raise TopicAuthorizationFailedError(f"{lacking}: the principal lacks Read")

    def committed_ids(self) -> list[str]:
        return [
            name
            for name, each in self.broker.ids.items()
            if self.sink.owns(name) and each.state == "CompleteCommit"
        ]

    def _write(self, identity: Identity, decision: Decision, rows: Sequence[str], what: str) -> Identity:
        self._step(f"before {what}")
        try:
            self.broker.append(self.sink.log_id, identity, rows, decision.encode())
        except KafkaError as error:
            raise NotDecidedError(str(error)) from error
        self._step(f"after the record of {what}")
        following = self.broker.end(self.sink.log_id, identity, True)
        if following is None:
            raise NotDecidedError(f"{what}: fenced")
        self._step(f"after {what}")
        return following

    def write(self, identity: Identity, decision: Decision) -> Identity:
        return self._write(identity, decision, (), "done" if decision.done else "decided")

    def copy(self, identity: Identity, aborted: Sequence[TaskTransaction], decision: Decision) -> Identity:
        self._step("before reading for copies")
        rows = [row for transaction in aborted for row in self._rows(transaction)]
        if self.broker.forgets.intersection(rows):
            raise DecisionLogError("records were deleted while they were copied")
        return self._write(identity, decision, rows, "copying")

    def give_up(self, identity: Identity) -> bool:
        self._step("before giving up")
        following = self.broker.end(self.sink.log_id, identity, False)
        self._step("after giving up")
        return following is not None

    def missing(self, transaction: TaskTransaction) -> str | None:
        gone = self.broker.forgets.intersection(self._rows(transaction))
        return f"the records {gone} are gone" if gone else None

    def _rows(self, transaction: TaskTransaction) -> list[str]:
        return [
            row
            for each in self.broker.log
            if (each.name, each.identity) == (transaction.transactional_id, transaction.identity)
            for row in each.rows
        ]

    def open_transactions(self, timeout_s: float | None = None) -> list[TaskTransaction]:
        self.broker.timeouts.append(timeout_s)
        self._step("before listing the open ones")
        return [
            TaskTransaction(name, each.producer_id, each.epoch)
            for name, each in self.broker.ids.items()
            if each.state == "Ongoing" and self.sink.owns(name)
        ]

    def not_open(self, transactions: Sequence[TaskTransaction]) -> list[str]:
        self._step("before the check")
        found = [
            each.transactional_id
            for each in transactions
            if self.broker.ids[each.transactional_id].state != "Ongoing"
            or (
                self.broker.ids[each.transactional_id].producer_id,
                self.broker.ids[each.transactional_id].epoch,
            )
            != each.identity
        ]
        self._step("after the check")
        return found

    def commit(self, transactions: Sequence[TaskTransaction]) -> list[End]:
        ends = []
        for number, each in enumerate(transactions):
            self._step(f"before commit {number}")
            state = self.broker.ids[each.transactional_id]
            if self.broker.end(each.transactional_id, each.identity, True) is not None:
                ends.append(End.COMMITTED)
            elif state.state == "CompleteAbort" and state.epoch == each.epoch + 1:
                ends.append(End.ABORTED)
            else:
                ends.append(End.UNKNOWN)
            self._step(f"after commit {number}")
        return ends

    def abort(self, transactions: Sequence[TaskTransaction], timeout_s: float | None = None) -> None:
        self.broker.timeouts.append(timeout_s)
        for number, each in enumerate(transactions):
            self._step(f"before abort {number}")
            self.broker.end(each.transactional_id, each.identity, False)
            self._step(f"after abort {number}")

    def outcome(self, transaction: TaskTransaction) -> End:
        for each in self.broker.log:
            if (each.name, each.identity) == (transaction.transactional_id, transaction.identity):
                assert each.committed is not None
                return End.COMMITTED if each.committed else End.ABORTED
        return End.UNKNOWN


def write_task(broker: Broker, name: str, rows: Sequence[str]) -> TaskTransaction | None:
    """What a task does: takes its id over, writes, and leaves the transaction open."""
    identity = broker.init(name)
    broker.on_step(f"after the id of {rows}")
    if not rows:
        return None
    broker.append(name, identity, rows)
    broker.on_step(f"after the rows {rows}")
    return TaskTransaction(name, *identity, (Place(TOPIC, 0, 0, len(rows)),))
