"""Shows and ends the transactions that exactly-once sinks have left open: for operators, when no query does
it.

Owns the view of a prefix. Does not own ending a sink's transactions: the sink's next plan, which ``driver``
executes, ends them.
"""

import re
from contextlib import closing
from typing import NamedTuple

from cyproducer.spark.exactly_once.decisions import Decision, History
from cyproducer.spark.exactly_once.driver import Accepted, Driver
from cyproducer.spark.exactly_once.kafka_cluster import KafkaCluster, admin_for, described_open
from cyproducer.spark.exactly_once.names import Sink, decision_topic
from cyproducer.spark.sharing import SharedConfig
from cyproducer.transactions import AbortedTransaction, DescribedTransaction

_ANY_TASK = r"\.([0-9a-f]{8})\.\d+\.\d+"


class SinkState(NamedTuple):
    """A sink in the decision log, and its open transactions."""

    sink: Sink
    last: Decision
    open: tuple[DescribedTransaction, ...]

    @property
    def undecided(self) -> tuple[DescribedTransaction, ...]:
        """Open transactions that belong to no decision."""
        decided = {(each.transactional_id, each.identity) for each in self.last.tasks}
        return tuple(
            each
            for each in self.open
            if (each.transactional_id, (each.producer_id, each.epoch)) not in decided
        )


class PrefixState(NamedTuple):
    """What is known about a prefix. ``others``: open transactions of sinks that never decided anything."""

    sinks: tuple[SinkState, ...]
    others: tuple[DescribedTransaction, ...]


class Recovery:
    """Shows the sinks of a prefix, and ends the transactions that they have left open. Not thread-safe.

    Args:
        config: the producer's options.
        prefix: ``transactionalIdPrefix``.
        topic: ``decisionLogTopic``; None: the default.
        timeout_s: how long a sink's recovery may take.
    """

    def __init__(self, config: SharedConfig, prefix: str, topic: str | None, timeout_s: float) -> None:
        self._config = config
        self._prefix = prefix
        self._topic = topic or decision_topic(prefix)
        self._timeout_s = timeout_s
        self._admin = admin_for(config)

    def _cluster(self, sink: Sink) -> KafkaCluster:
        return KafkaCluster(self._config, sink, self._topic, int(self._timeout_s * 1000))

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until a broker has answered.

        Raises:
            NoBrokersAvailable: no broker has answered.
        """
        self._admin.wait_ready(timeout_s)

    def state(self) -> PrefixState:
        """Returns the state of the prefix, and changes nothing.

        Raises:
            DecisionLogError: the log can't be used.
            KafkaError: an error of brokers or permissions.
        """
        history: History = self._cluster(Sink(self._prefix, "", "")).history(create=False)
        of_task = re.compile(re.escape(self._prefix) + _ANY_TASK).fullmatch
        described = described_open(self._admin, f"{self._prefix}.", of_task, self._timeout_s)
        sinks = []
        for key, last in sorted(history.items()):
            kind, _, name = key.partition(":")
            sink = Sink(self._prefix, kind, name)
            own = tuple(each for each in described if sink.owns(each.transactional_id))
            sinks.append(SinkState(sink, last, own))
        known = {each.transactional_id for state in sinks for each in state.open}
        others = tuple(each for each in described if each.transactional_id not in known)
        return PrefixState(tuple(sinks), others)

    def end(self, sink: Sink) -> None:
        """Completes what a sink has decided, and aborts the rest, as its next batch would. Fences a running
        driver.

        Raises:
            DecidedError: it can't be completed now.
            DecisionLogError: records of the decided batch are lost.
        """
        with closing(self._cluster(sink)) as cluster:
            Driver(cluster, sink).plan()

    def abort(self, others: tuple[DescribedTransaction, ...]) -> list[AbortedTransaction]:
        """Aborts transactions of sinks that never decided anything."""
        return [
            aborted
            for each in others
            for aborted in self._admin.abort_open(each.transactional_id, timeout=self._timeout_s)
        ]

    def accept(self, sink: Sink) -> Accepted:
        """Completes a decided batch without those of its transactions whose records are lost, or whose
        outcome can no longer be determined. Fences a running driver.

        Raises:
            DecisionLogError: the sink has nothing that is decided and not complete.
            DecidedError: it can't be completed now.
        """
        with closing(self._cluster(sink)) as cluster:
            return Driver(cluster, sink).accept()
