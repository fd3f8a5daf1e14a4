"""The interface to Kafka that the exactly-once protocol needs; ``kafka_cluster`` implements it.

The tests' model of a cluster also implements it. With the model, the protocol runs through every possible
crash.
"""

import enum
from collections.abc import Collection, Sequence
from typing import Protocol

from cyproducer.errors import KafkaError
from cyproducer.spark.exactly_once.decisions import Decision, History, Identity, TaskTransaction
from cyproducer.spark.exactly_once.names import Sink


class NotDecidedError(KafkaError):
    """A batch was not decided: none of its rows are visible, and none will be. Running it again is safe."""


class End(enum.Enum):
    """How a transaction has ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Cluster(Protocol):
    """One sink's view of a cluster. All calls are bounded in time, and raise ``KafkaError``."""

    def act_for(self, sink: Sink) -> None:
        """Switches this view to another sink of the same prefix."""

    def take_over(self) -> Identity:
        """Takes over the log's transactional id: earlier identities can no longer write, and their open
        transactions are aborted. Returns the new identity."""

    def history(self) -> History:
        """Reads the decision log: every decision that was committed before this call."""

    def check_rights(self, topics: Collection[str]) -> None:
        """Checks the permissions on the decision log and on topics of rows.

        Raises:
            TopicAuthorizationFailedError: a permission is missing that is needed, or that a copy would need.
        """

    def committed_ids(self) -> list[str]:
        """Returns the transactional ids of the sink's tasks whose last transaction was committed."""

    def write(self, identity: Identity, decision: Decision) -> Identity:
        """Writes a decision as one transaction; returns the identity for the next one.

        Raises:
            NotDecidedError: nothing was written: the identity is no longer valid, or the decision was
                refused, for example as too large.
            KafkaError: the decision may have been written.
        """

    def copy(self, identity: Identity, aborted: Sequence[TaskTransaction], decision: Decision) -> Identity:
        """Writes the records of aborted transactions again, and a decision, as one transaction; returns the
        identity for the next one.

        Raises:
            DecisionLogError: some of the records no longer exist. Nothing was written.
            NotDecidedError, KafkaError: as ``write``.
        """

    def give_up(self, identity: Identity) -> bool:
        """Ends an identity. Returns whether it was valid until now; if so, nothing was or will be written
        under it."""

    def open_transactions(self, timeout_s: float | None = None) -> list[TaskTransaction]:
        """Returns the open transactions of the sink's tasks, without their places. ``timeout_s`` applies to
        each of two requests; None: until the deadline of this view."""

    def not_open(self, transactions: Sequence[TaskTransaction]) -> list[str]:
        """Returns the state of each transaction that is no longer open, as text."""

    def commit(self, transactions: Sequence[TaskTransaction]) -> list[End]:
        """Commits prepared transactions concurrently; returns how each has ended, now or before."""

    def abort(self, transactions: Sequence[TaskTransaction], timeout_s: float | None = None) -> None:
        """Aborts those of the transactions that are still open. ``timeout_s`` None: until the deadline of
        this view."""

    def missing(self, transaction: TaskTransaction) -> str | None:
        """Returns a text about the records of a transaction that are no longer in the log; None: all are
        there."""

    def outcome(self, transaction: TaskTransaction) -> End:
        """Returns how a transaction has ended, according to its marker in a partition."""
