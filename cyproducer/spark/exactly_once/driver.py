"""Runs the exactly-once protocol on the driver: plans a batch, decides it, and completes or abandons it.

Owns the order of the steps. Does not own requests (``cluster``), the rules about batches (``rules``), or
Spark's interfaces (``source``, ``mapping``). A driver is for one batch and one thread. It keeps no state
between its calls: Spark plans and commits in different processes.

The protocol
------------

**Plan**, before the tasks. Take over the log's transactional id, which fences earlier drivers. Then read the
decision log. Complete what was decided. Abort every other open transaction of the sink. The identity and the
last decision are passed to the tasks, which return them in their messages.

**Write**, in each task attempt. Write under the attempt's own transactional id, and leave the transaction
open.

**Commit**. Unless all transactions are open, nothing is decided. Write *decided* under the plan's identity,
as one transaction. If another driver has planned since, it has fenced that identity, and the coordinator
refuses it. Commit each transaction. Write *done*. Abort the transactions that losing attempts have left open.

**Abort**. End the plan's identity. If that succeeds, nothing more can be decided under it, and it is safe to
abort the transactions. Otherwise *decided* may have been written; the next plan finds out.

**A decided transaction that the brokers have aborted**, because its timeout expired, is copied: its records
are still in the log. The copies and *done* are one transaction, so that no reader sees them twice.
"""

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from cyproducer.base.text import printable
from cyproducer.errors import KafkaError
from cyproducer.spark.exactly_once.cluster import Cluster, End, NotDecidedError
from cyproducer.spark.exactly_once.decisions import (
    Decision,
    DecisionLogError,
    History,
    Identity,
    TaskTransaction,
    following_queries,
)
from cyproducer.spark.exactly_once.names import Sink
from cyproducer.spark.exactly_once.rules import BatchOrderError, Standing, Verdict, sink_in, standing

log: Final = logging.getLogger("cyproducer.spark")

_NAMED: Final = 3
_AFTERWARDS_S: Final = 5.0
"""Timeout of each of the three requests that abort open transactions after a batch is complete."""


class DecidedError(KafkaError):
    """A batch was decided, or may have been, but is not complete: its rows are visible or will be. Run only
    the same batch again; for a batch job, with the same ``txnAppId`` and ``txnVersion``."""


@dataclass(frozen=True)
class Plan:
    """What the tasks of a batch get from the driver, and return to it. Pickled."""

    identity: Identity
    """The identity of the log's transactional id that can write the decision."""
    standing: Standing


@dataclass(frozen=True)
class TaskOutcome:
    """What a task has done with its rows. Pickled."""

    plan: Plan
    verdict: Verdict
    query: str | None
    batch: int
    rows: int
    """The number of rows that it has read."""
    transaction: TaskTransaction | None = None
    """None if it has written nothing."""


@dataclass(frozen=True)
class Committed:
    """What a commit has done. ``skipped``: the batch was written before."""

    batch: int
    rows: int
    skipped: bool = False


@dataclass(frozen=True)
class Accepted:
    """What ``accept`` has done. ``left_out``: for each transaction that could not be completed, the
    reason."""

    decision: Decision
    left_out: list[str]


class Driver:
    """The driver's part of one batch. See the module's docstring.

    Args:
        cluster: the cluster to which the batch is written.
        sink: the sink that writes the batch.
        topic: the topic of all rows; None: each row names its own.
        dead_letter_topic: the topic of dead letters, if there is one.
        starting_batch: the option ``startingBatchId``.
    """

    def __init__(
        self,
        cluster: Cluster,
        sink: Sink,
        topic: str | None = None,
        dead_letter_topic: str | None = None,
        starting_batch: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._sink = sink
        self._topic = topic
        self._known_topics = {each for each in (topic, dead_letter_topic) if each is not None}
        self._starting_batch = starting_batch

    # Before the tasks

    def plan(self, version: int | None = None) -> Plan:
        """Fences earlier drivers, completes what they have decided, and aborts the rest.

        ``version``: the version of a batch job, which is checked here. A stream's batch is not known before
        its tasks run.

        Raises:
            BatchOrderError: ``version`` can't be the next one.
            DecisionLogError: the log has lost records, or can't be used; or the records of what was decided
                are lost.
            DecidedError: what was decided can't be completed now.
            KafkaError: an error of brokers, permissions or the configuration.
        """
        identity = self._cluster.take_over()
        history = self._cluster.history()
        if (known := sink_in(history, self._sink)) != self._sink:
            # The log has this sink under another name, so its transactional ids have another hash.
            self._act_for(known)
            identity = self._cluster.take_over()
            history = self._cluster.history()
        self._cluster.check_rights(sorted(self._known_topics))
        self._check_hash(history)
        last = history.get(self._sink.key)
        if last is None:
            self._check_is_new()
        elif not last.done:
            log.info("%r: completing batch %d, which was decided", self._sink.key, last.batch)
            identity = self._complete(last, identity)
        self._abort_open()
        found = standing(self._sink, history, self._topic, self._starting_batch)
        if version is not None:
            found.judge(None, version)
        return Plan(identity, found)

    def _act_for(self, sink: Sink) -> None:
        """Continues under another name of the same sink."""
        if sink != self._sink:
            self._sink = sink
            self._cluster.act_for(sink)

    def _check_hash(self, history: History) -> None:
        for key in history:
            kind, _, name = key.partition(":")
            other = Sink(self._sink.prefix, kind, name)
            if key != self._sink.key and other.hash == self._sink.hash:
                raise DecisionLogError(
                    f"{self._sink.key!r} and {key!r} have the same hash {other.hash}: use another "
                    "transactionalIdPrefix for one of them"
                )

    def _check_is_new(self) -> None:
        """A sink without a decision must not have committed anything."""
        if found := self._cluster.committed_ids():
            raise DecisionLogError(
                f"the decision log has nothing about {self._sink.key!r}, but its transactional ids have "
                f"committed before ({_some(found)}): the log has lost records, or was created again. Whether "
                "its last batch was written can't be known any more. Compare the output with the source; "
                "then use another transactionalIdPrefix, and 'startingBatchId' for a stream that goes on"
            )

    # After the tasks

    def commit(self, outcomes: Sequence[TaskOutcome | None]) -> Committed:
        """Decides a batch and makes it visible.

        Raises:
            NotDecidedError: nothing was decided: a transaction is no longer open, or another driver has taken
                over.
            DecidedError: it was decided, or may have been, and is not complete.
            DecisionLogError: it was decided, and records are lost.
            BatchOrderError: a batch that was written before now has other rows.
            TopicAuthorizationFailedError: a permission is missing on a topic that only rows name. Nothing was
                decided.
        """
        tasks = [each for each in outcomes if each is not None]
        first = tasks[0] if tasks else None
        if first is None or len(tasks) < len(outcomes):
            missing = len(outcomes) - len(tasks)
            raise NotDecidedError(f"{self._sink.key!r}: {missing} tasks left no message")
        plan, batch, query = first.plan, first.batch, first.query
        self._act_for(plan.standing.sink)
        of_one = (plan.identity, batch, query)
        if any((each.plan.identity, each.batch, each.query) != of_one for each in tasks):
            raise NotDecidedError(f"{self._sink.key!r}: the tasks of batch {batch} are of several plans")
        rows = sum(each.rows for each in tasks)
        if any(each.verdict is Verdict.SKIP for each in tasks):
            if any(each.verdict is not Verdict.SKIP for each in tasks):
                raise BatchOrderError(f"{self._sink.key!r}: only some tasks have skipped batch {batch}")
            plan.standing.check_rows(rows)
            return Committed(batch, rows, skipped=True)

        written = tuple(each.transaction for each in tasks if each.transaction is not None)
        topics = {place.topic for transaction in written for place in transaction.places}
        if unchecked := sorted(topics - self._known_topics):
            self._cluster.check_rights(unchecked)
        decision = Decision(
            self._sink.key,
            batch,
            rows,
            query,
            self._topic,
            # If there is nothing to commit, one record means both *decided* and *done*.
            done=not written,
            tasks=written,
            earlier_queries=following_queries(plan.standing.last, query),
        )
        try:
            identity = self._decide(plan.identity, decision)
        except NotDecidedError:
            # If another driver has ended the plan's identity, ``abort``, which Spark calls next, can't abort
            # these transactions. Those that this call can't abort either are aborted by their timeout.
            with suppress(KafkaError):
                self._cluster.abort(written)
            raise
        if written:
            self._complete(decision, identity)
        self._tidy_up(decision)
        return Committed(batch, rows)

    def _decide(self, identity: Identity, decision: Decision) -> Identity:
        """Writes a decision, if all its transactions are open; returns the next identity."""
        batch, written = decision.batch, decision.tasks
        if problems := self._cluster.not_open(written):
            raise NotDecidedError(
                f"{self._sink.key!r}, batch {batch}: {len(problems)} of {len(written)} transactions can't be "
                f"committed any more: {'; '.join(problems[:_NAMED])}. Nothing of the batch was written. If "
                "the tasks take longer than 'kafka.transaction.timeout.ms', raise it"
            )
        try:
            return self._cluster.write(identity, decision)
        except NotDecidedError:
            raise
        except KafkaError as error:
            raise DecidedError(
                f"{self._sink.key!r}: whether batch {batch} was decided is not known: {error}. "
                f"{_AFTER_DECISION}"
            ) from error

    def abort(self, outcomes: Sequence[TaskOutcome | None]) -> bool:
        """Aborts the transactions that the tasks of a failed batch have prepared. Returns whether that was
        possible. If not, the next plan completes or aborts them."""
        tasks = [each for each in outcomes if each is not None]
        if not tasks:
            return False
        plan = tasks[0].plan
        self._act_for(plan.standing.sink)
        if not self._cluster.give_up(plan.identity):
            return False
        self._cluster.abort([each.transaction for each in tasks if each.transaction is not None])
        return True

    def accept(self) -> Accepted:
        """Completes the last decision as far as that is possible, and writes that it is done.

        Raises:
            DecisionLogError: there is no decision that is not done.
            DecidedError: brokers did not answer.
        """
        identity = self._cluster.take_over()
        last = self._cluster.history().get(self._sink.key)
        if last is None or last.done:
            raise DecisionLogError(f"{self._sink.key!r} has nothing that is decided and not complete")
        with self._decided(last):
            aborted, left_out = self._outcomes(last.tasks)
            self._finish(last, identity, aborted)
        self._tidy_up(last)
        return Accepted(last, left_out)

    # Common

    def _complete(self, decision: Decision, identity: Identity) -> Identity:
        """Commits the transactions of a decision, and writes that it is done; returns the next identity."""
        with self._decided(decision):
            aborted, problems = self._outcomes(decision.tasks)
            if not problems:
                return self._finish(decision, identity, aborted)
        key = shlex.quote(self._sink.key)
        raise DecisionLogError(
            f"{self._sink.key!r}: batch {decision.batch} was decided and can't be completed: "
            f"{'; '.join(problems[:_NAMED])} ({len(problems)} of {len(decision.tasks)} transactions). "
            f"'python -m cyproducer spark-recover -b BROKERS --prefix {self._sink.prefix} --accept {key}' "
            "completes it without them, and lists them. Then compare the topic with the source, and write "
            "what is missing under another name"
        )

    @contextmanager
    def _decided(self, decision: Decision) -> Iterator[None]:
        """Raises a ``KafkaError`` of the block, unless it is a ``DecisionLogError``, as ``DecidedError``: the
        batch is decided but not complete."""
        try:
            yield
        except DecisionLogError:
            raise
        except KafkaError as error:
            raise DecidedError(
                f"{self._sink.key!r}: batch {decision.batch} was decided and is not complete: {error}. "
                f"{_AFTER_DECISION}"
            ) from error

    def _finish(self, decision: Decision, identity: Identity, aborted: list[TaskTransaction]) -> Identity:
        """Copies the records of transactions that the brokers have aborted, and writes that the decision is
        done; returns the next identity."""
        if not aborted:
            return self._cluster.write(identity, decision.as_done())
        log.warning(
            "%r, batch %d: the brokers have aborted %d transactions after they were decided (%s): copying "
            "their records",
            self._sink.key,
            decision.batch,
            len(aborted),
            _some([each.transactional_id for each in aborted]),
        )
        return self._cluster.copy(identity, aborted, decision.as_done())

    def _outcomes(self, tasks: Sequence[TaskTransaction]) -> tuple[list[TaskTransaction], list[str]]:
        """Commits transactions. Returns those that the brokers have aborted, and descriptions of those that
        can't be completed."""
        aborted, problems = [], []
        for transaction, end in zip(tasks, self._cluster.commit(tasks), strict=True):
            found = self._cluster.outcome(transaction) if end is End.UNKNOWN else end
            if found is End.UNKNOWN:
                problems.append(
                    f"whether the transaction of {transaction.transactional_id!r} (producer id "
                    f"{transaction.producer_id}, epoch {transaction.epoch}) was committed can't be known, as "
                    "neither its records nor its end are in the log"
                )
            elif found is End.ABORTED:
                if missing := self._cluster.missing(transaction):
                    problems.append(missing)
                else:
                    aborted.append(transaction)
        return aborted, problems

    def _abort_open(self, timeout_s: float | None = None) -> None:
        """Aborts the sink's open transactions. No decision needs them, and they block ``read_committed``
        consumers."""
        if found := self._cluster.open_transactions(timeout_s):
            log.info(
                "%r: aborting transactions that attempts have left open: %s",
                self._sink.key,
                _some([each.transactional_id for each in found]),
            )
            self._cluster.abort(found, timeout_s)

    def _tidy_up(self, decision: Decision) -> None:
        """Aborts transactions that attempts have left open, after a batch was completed. The next plan does
        the same, so a failure is only logged."""
        try:
            self._abort_open(_AFTERWARDS_S)
        except KafkaError as error:
            log.warning(
                "%r: batch %d is written; transactions that attempts have left open could not be looked for "
                "or aborted (%s): the next batch does that",
                self._sink.key,
                decision.batch,
                error,
            )


_AFTER_DECISION: Final = (
    "Its rows are there or will be: run the same batch again, for a batch job with the same txnAppId and "
    "txnVersion, or 'python -m cyproducer spark-recover --end'"
)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(printable, names[:_NAMED])) + more
