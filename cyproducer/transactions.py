"""Administers transactions: ends prepared ones from any process, finds open ones, and aborts them.

Owns the public calls and the connections of ``TransactionAdmin``. Does not own what a response means
(``control/transaction_ending``) or which broker gets a request (``clients/transaction_admin``).

``commit()``, ``abort()`` and the others open connections and close them again. ``TransactionAdmin`` keeps
them, for programs that call often: opening them takes longer than a call. All of it is thread-safe.
"""

import os
import random
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from cyproducer import errors
from cyproducer._runtime import Runtime, finish
from cyproducer.base.clock import monotonic_s
from cyproducer.base.durations import duration
from cyproducer.base.user_thread import DRAIN_S, user_thread
from cyproducer.clients.topic_admin import Reading
from cyproducer.clients.transaction_admin import Coordinators
from cyproducer.config import ProducerConfig, hide, option_name
from cyproducer.control.partitioners import resolve_partitioner
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.control.transaction_ending import (
    ONGOING,
    Describing,
    Ended,
    Ending,
    EndingIdentity,
    Outcome,
)
from cyproducer.structs import PreparedTransaction, TopicPartition
from cyproducer.wire.transaction_api import TransactionListing

__all__ = [
    "AbortedTransaction",
    "DescribedTransaction",
    "Ended",
    "Outcome",
    "PreparedTransaction",
    "TransactionAdmin",
    "TransactionListing",
    "abort",
    "abort_open",
    "commit",
    "describe_transaction",
    "list_transactions",
]

_NOT_OURS = frozenset(
    {
        "transactional_id",
        "transaction_timeout_ms",
        "enable_idempotence",
        "acks",
        "key_serializer",
        "value_serializer",
        "interceptors",
        "partitioner",
        "metrics_enabled",
    }
)
"""Options of a producer that are ignored here, so that a producer's whole configuration can be given."""


class DescribedTransaction(NamedTuple):
    """A transactional id as its coordinator knows it (KIP-664).

    ``state`` is the coordinator's name for it: ``Empty``, ``Ongoing``, ``PrepareCommit``, ``PrepareAbort``,
    ``CompleteCommit``, ``CompleteAbort``. ``start_time_ms`` is by the coordinator's clock, in milliseconds
    since the epoch, None without a transaction. ``partitions`` are those of an open transaction that have no
    marker yet. ``coordinator`` is the node id of the broker that has returned this.
    """

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    start_time_ms: int | None
    partitions: list[TopicPartition]
    coordinator: int


class AbortedTransaction(NamedTuple):
    """An open transaction that ``abort_open()`` has found, and how it ended; None in a dry run."""

    transaction: DescribedTransaction
    ended: Ended | None


Config = Mapping[str, Any]
"""A producer's options: bootstrap servers, security and so on, by any of their names."""


class TransactionAdmin:
    """Connections to a cluster for the calls of this module. Thread-safe; a context manager.

    ``config`` has a producer's options; those about records and about the producer's own transactions are
    ignored. The constructor returns at once. A forked child must make its own.

    Raises:
        KafkaConfigurationError: an option is unknown or its value is not allowed.
    """

    def __init__(self, config: Config) -> None:
        config = hide(config)
        given = {key: value for key, value in config.items() if option_name(key) not in _NOT_OURS}
        self.config = ProducerConfig(given | {"enable_idempotence": False, "metrics_enabled": False})
        self._backoff = ExponentialBackoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        self._pid = os.getpid()
        self._runtime = Runtime(self.config, resolve_partitioner(self.config.partitioner))
        self._runtime.start()
        client = self._runtime.client
        self._coordinators = Coordinators(client.application_requests)
        self._reader = Reading(client.application_requests)
        self._finalizer = weakref.finalize(self, finish, self._runtime)
        # Not at exit: all producers are closed then, at the same time.
        self._finalizer.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Calls that wait in other threads raise ``ProducerClosedError``."""
        if self._finalizer.detach() is not None and self._pid == os.getpid():
            self._runtime.close(0)
            # Log lines reach their handlers before this returns.
            user_thread.drain(DRAIN_S)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until a broker has responded, up to ``timeout`` seconds (None: ``max_block_ms``).

        Raises:
            NoBrokersAvailable: none has; the message says what failed for each address.
        """
        self._runtime.client.wait_ready(self._seconds(timeout))

    def commit(self, prepared: PreparedTransaction, timeout: float | None = None) -> Ended:
        """Commits a prepared transaction; see the function of the same name."""
        return self.commit_all([prepared], timeout)[0]

    def abort(
        self, prepared: PreparedTransaction, timeout: float | None = None, *, fence: bool = False
    ) -> Ended:
        """Aborts a prepared transaction; see the function of the same name."""
        return self.abort_all([prepared], timeout, fence=fence)[0]

    def commit_all(
        self, prepared: Iterable[PreparedTransaction], timeout: float | None = None
    ) -> list[Ended]:
        """Commits several transactions concurrently, and returns their outcomes in the same order.

        They are not committed atomically. If one fails, the others are still tried, and then its error is
        raised. The same call can be repeated.
        """
        return self._end_all(prepared, True, False, timeout)

    def abort_all(
        self, prepared: Iterable[PreparedTransaction], timeout: float | None = None, *, fence: bool = False
    ) -> list[Ended]:
        """Aborts several transactions, as ``commit_all()`` commits them."""
        return self._end_all(prepared, False, fence, timeout)

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        prefix: str | None = None,
        older_than_s: float | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """Lists transactional ids; see the function of the same name."""
        deadline, seconds = self._deadline(timeout)
        return self._asking.listing(
            tuple(states), tuple(producer_ids), prefix, older_than_s, deadline, seconds
        )

    def describe_transaction(
        self, transactional_id: str, timeout: float | None = None
    ) -> DescribedTransaction:
        """Describes a transactional id; see the function of the same name."""
        deadline, seconds = self._deadline(timeout)
        call = Describing(transactional_id, self._backoff, random.random)
        self._asking.run([call], deadline, seconds)
        return _described(call)

    def _describe_all(
        self, transactional_ids: Iterable[str], timeout: float | None = None
    ) -> list[DescribedTransaction | None]:
        """Describes several ids concurrently; None: there is no such id, or it has expired."""
        deadline, seconds = self._deadline(timeout)
        calls = [Describing(name, self._backoff, random.random) for name in transactional_ids]
        self._asking.run(calls, deadline, seconds, ignore=errors.TransactionalIdNotFoundError)
        return [None if call.result is None else _described(call) for call in calls]

    def _end_identity(
        self, transactional_id: str, producer_id: int, epoch: int, timeout: float | None = None
    ) -> bool:
        """Ends an identity; returns whether it was valid. See ``EndingIdentity``."""
        deadline, seconds = self._deadline(timeout)
        prepared = PreparedTransaction(transactional_id, producer_id, epoch, 2, False, {})
        call = EndingIdentity(prepared, False, False, self._backoff, random.random)
        self._asking.run([call], deadline, seconds)
        return call.ended

    def abort_open(
        self,
        prefix: str,
        *,
        older_than_s: float = 0,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[AbortedTransaction]:
        """Aborts open transactions; see the function of the same name."""
        if not prefix:
            raise ValueError("prefix is empty: that would abort every open transaction of the cluster")
        age_s = duration("older_than_s", older_than_s)
        deadline, seconds = self._deadline(timeout)

        def listed() -> dict[str, int]:
            found = self._asking.listing((ONGOING,), (), prefix, age_s, deadline, seconds)
            return {each.transactional_id: each.producer_id for each in found}

        calls = [Describing(name, self._backoff, random.random) for name in listed()]
        self._asking.run(calls, deadline, seconds, ignore=errors.TransactionalIdNotFoundError)
        found = [_described(call) for call in calls if call.result is not None]
        if age_s:
            # A described transaction may have begun after the id was listed. If the id is listed again, its
            # current transaction is old enough, and so is the one that was described.
            still = listed()
            found = [each for each in found if still.get(each.transactional_id) == each.producer_id]
        found = [each for each in found if each.state == ONGOING]
        if dry_run:
            return [AbortedTransaction(each, None) for each in found]
        endings = [
            Ending(
                PreparedTransaction(each.transactional_id, each.producer_id, each.epoch, 2, False, {}),
                False,
                True,
                self._backoff,
                random.random,
                each.start_time_ms,
            )
            for each in found
        ]
        self._asking.run(endings, deadline, seconds)
        return [AbortedTransaction(each, end.result) for each, end in zip(found, endings, strict=True)]

    # Asking

    def _seconds(self, timeout: float | None) -> float:
        return self.config.max_block_ms / 1000 if timeout is None else duration("timeout", timeout)

    def _deadline(self, timeout: float | None) -> tuple[float, float]:
        seconds = self._seconds(timeout)
        return monotonic_s() + seconds, seconds

    def _end_all(
        self, prepared: Iterable[PreparedTransaction], commit: bool, fence: bool, timeout: float | None
    ) -> list[Ended]:
        deadline, seconds = self._deadline(timeout)
        calls = []
        for each in prepared:
            if not isinstance(each, PreparedTransaction):
                raise TypeError(f"{each!r:.100} is not a PreparedTransaction")
            calls.append(Ending(each, commit, fence, self._backoff, random.random))
        self._asking.run(calls, deadline, seconds)
        return [call.result for call in calls if call.result is not None]

    @property
    def _asking(self) -> Coordinators:
        self._refuse_a_child()
        return self._coordinators

    @property
    def _reading(self) -> Reading:
        """Reads topics over the same connections; its calls take what ``_deadline`` returns."""
        self._refuse_a_child()
        return self._reader

    def _refuse_a_child(self) -> None:
        if self._pid != os.getpid():
            raise errors.IllegalStateError("this TransactionAdmin was made before a fork: make another one")


def _described(call: Describing) -> DescribedTransaction:
    found = call.result
    assert found is not None
    assert call.coordinator is not None
    return DescribedTransaction(
        found.transactional_id,
        found.state,
        found.producer_id,
        found.producer_epoch,
        found.timeout_ms,
        None if found.start_time_ms < 0 else found.start_time_ms,
        [
            TopicPartition(topic, each)
            for topic, parts in sorted(found.partitions.items())
            for each in sorted(parts)
        ],
        call.coordinator,
    )


def commit(prepared: PreparedTransaction, config: Config, timeout: float | None = None) -> Ended:
    """Commits a prepared transaction, from any process.

    ``config``: a producer's options; those about records and the producer's own transactions are ignored.
    ``timeout`` is in seconds, None: ``max_block_ms``.

    **Look at the outcome**: ``COMMITTED`` and ``COMMITTED_BEFORE`` mean that the records are there. With
    ``ABORTED_BEFORE`` they are lost, for example because the broker's timeout expired. With ``FENCED`` and
    ``UNKNOWN_ID`` the outcome is unknown. All of these are returned, not raised. The call can be repeated.

    Raises:
        KafkaTimeoutError: the coordinator has not responded in time; the message says what was waited for.
            The transaction may be committed or still open: call again.
        AuthorizationError: the principal may not Write or Describe the TransactionalId.
        AbortableError: the broker requires an abort instead.
        KafkaConfigurationError: ``config`` has an option that is unknown or not allowed.
    """
    config = hide(config)
    with TransactionAdmin(config) as admin:
        return admin.commit(prepared, timeout)


def abort(
    prepared: PreparedTransaction, config: Config, timeout: float | None = None, *, fence: bool = False
) -> Ended:
    """Aborts a prepared transaction, from any process. Arguments, outcomes and errors: see ``commit``.

    ``fence``: True if the transaction's producer may still be writing, because it has not called
    ``prepare_transaction()``. Then the producer's epoch must also end. The second protocol always ends the
    epoch. With the first, an InitProducerId request follows, and a repeated call returns ``FENCED``.
    """
    config = hide(config)
    with TransactionAdmin(config) as admin:
        return admin.abort(prepared, timeout, fence=fence)


def list_transactions(
    config: Config,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    prefix: str | None = None,
    older_than_s: float | None = None,
    timeout: float | None = None,
) -> list[TransactionListing]:
    """Lists the transactional ids of the cluster that the principal may describe, sorted.

    Requests the list from every broker, and fails if one of them does not respond. ``states``: only ids in
    these states, see ``DescribedTransaction``; empty: in all. ``producer_ids``: only these; empty: all.
    ``prefix``: of the id. ``older_than_s``: only open transactions that began more than this many seconds
    ago, by the brokers' clocks; 0: all open ones. ``timeout`` is in seconds, None: ``max_block_ms``.

    Raises:
        KafkaTimeoutError: not all brokers have responded in time.
        UnsupportedVersionError: a broker is older than Kafka 3.0, or than 3.8 if ``older_than_s`` is above 0.
        ValueError: there is no such state, or ``older_than_s`` is given with states that are not open.
    """
    config = hide(config)
    with TransactionAdmin(config) as admin:
        return admin.list_transactions(
            states=states,
            producer_ids=producer_ids,
            prefix=prefix,
            older_than_s=older_than_s,
            timeout=timeout,
        )


def describe_transaction(
    transactional_id: str, config: Config, timeout: float | None = None
) -> DescribedTransaction:
    """Requests the state of a transactional id from its coordinator. ``timeout`` is that of ``commit``.

    Raises:
        TransactionalIdNotFoundError: there is no such id, or it has expired.
        KafkaTimeoutError: the coordinator has not responded in time.
        UnsupportedVersionError: the coordinator is older than Kafka 3.0.
    """
    config = hide(config)
    with TransactionAdmin(config) as admin:
        return admin.describe_transaction(transactional_id, timeout)


def abort_open(
    prefix: str,
    config: Config,
    *,
    older_than_s: float = 0,
    dry_run: bool = False,
    timeout: float | None = None,
) -> list[AbortedTransaction]:
    """Aborts the open transactions whose transactional ids begin with ``prefix``.

    Each is aborted by EndTxn with the identity that its coordinator describes, so that a transaction that
    begins meanwhile is not aborted. Its producer, if it still runs, is fenced: it can neither write nor
    commit. With the first protocol, which keeps the epoch from one transaction to the next, there is a gap of
    milliseconds, see docs/transactions.md. Transactions that are already committed or aborted and wait for
    their markers are not aborted.

    ``older_than_s``: only those that have been open for longer, by the brokers' clocks. ``dry_run``: returns
    them without aborting them. ``timeout`` is that of ``commit``.

    Raises:
        ValueError: ``prefix`` is empty.
        KafkaTimeoutError: not everything was done in time; call again.
        UnsupportedVersionError: as for ``list_transactions``.
    """
    config = hide(config)
    with TransactionAdmin(config) as admin:
        return admin.abort_open(prefix, older_than_s=older_than_s, dry_run=dry_run, timeout=timeout)
