"""The calls of ``KafkaProducer`` that begin and end transactions, and their asyncio versions.

Owns arguments, default timeouts, and ``with producer.transaction()``. Does not own which call is allowed in
which state (``control/transaction_machine``), or waiting (``clients/transaction_client``). Every method is
thread-safe, but the records of several threads go to the same transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cyproducer import errors
from cyproducer.base.clock import monotonic_ns
from cyproducer.base.durations import duration
from cyproducer.base.text import line_prefix
from cyproducer.structs import PreparedTransaction, TopicPartition

if TYPE_CHECKING:
    from cyproducer._runtime import Runtime
    from cyproducer.clients.transaction_client import TransactionClient
    from cyproducer.config import ProducerConfig
    from cyproducer.control.transaction_calls import Ending, Prepared

log = logging.getLogger("cyproducer")


class TransactionalCalls:
    """A part of ``KafkaProducer``; see the module's docstring."""

    if TYPE_CHECKING:
        config: ProducerConfig

        @property
        def _runtime(self) -> Runtime: ...
        def _not_in_callback(self, method: str) -> None: ...

    _warned_of_group: bool = False

    def init_transactions(self, timeout: float | None = None) -> None:
        """Takes over the ``transactional_id``: fences older producers, and aborts their open transaction.

        Call it once, before the first transaction. ``timeout`` is in seconds, None: ``max_block_ms``. After a
        timeout the request continues; call this again to wait for it.

        Raises:
            KafkaTimeoutError: no coordinator has responded in time.
            InvalidSetupError: the principal is not authorized for it, ``transaction_timeout_ms`` is longer
                than the brokers allow, or a broker is older than Kafka 2.5.
            IllegalStateError: it was called before, or in a callback.
        """
        client, seconds = self._transactions("init_transactions"), self._seconds(timeout)
        with self._timed("init"):
            client.init(seconds)

    def begin_transaction(self) -> None:
        """Begins a transaction: ``send()`` accepts records from now on. Sends nothing.

        Raises:
            IllegalStateError: a transaction is open, or ``init_transactions()`` has not succeeded yet.
            ApplicationRecoverableError: this producer was fenced, or has failed otherwise.
        """
        client = self._transactions("begin_transaction")
        with self._timed("begin"):
            client.begin()

    def send_offsets_to_transaction(self, offsets: Any, group: Any, timeout: float | None = None) -> None:
        """Makes positions of a consumer group part of the transaction: they are committed with its records.

        ``offsets``: {TopicPartition: offset or OffsetAndMetadata}, the next offset to read of each partition;
        kafka-python's, aiokafka's and confluent-kafka's objects are accepted as they are. ``group``: what the
        consumer's ``consumer_group_metadata()`` returns, so that a member that has lost its partitions is
        refused (KIP-447), or a group id, with which no member is refused. ``timeout`` is in seconds, None:
        ``max_block_ms``.

        Raises:
            AbortableError: the group or a partition refuses the offsets: abort the transaction. If the group
                has rebalanced, the cause says so.
            KafkaTimeoutError: not acknowledged in time; repeat the call with the same offsets to wait on.
            TypeError, ValueError: the arguments; nothing was sent.
            IllegalStateError: no transaction is open.
        """
        from cyproducer._consumer_offsets import is_fenced, read_group, read_offsets

        client, seconds = self._transactions("send_offsets_to_transaction"), self._seconds(timeout)
        member, positions = read_group(group), read_offsets(offsets)
        if not is_fenced(member) and not self._warned_of_group:
            self._warned_of_group = True
            log.warning(
                "%ssend_offsets_to_transaction() for group %r without the group's metadata: a member that "
                "has lost its partitions is not refused, and may process records twice; pass what the "
                "consumer's consumer_group_metadata() returns",
                line_prefix(self.config.client_id),
                member.group_id,
            )
        with self._timed("send-offsets"):
            client.send_offsets(member, positions, seconds)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Waits for all records and their callbacks, then commits the records and the offsets atomically.

        ``timeout`` is in seconds, None: the sum of ``delivery_timeout_ms`` and ``max_block_ms``. After a
        timeout the commit may still succeed: call this again to get the outcome. Until then
        ``abort_transaction()`` is refused, unless the commit still waits for records.

        Raises:
            AbortableError: a record has failed, or was not accepted by ``send()``: call
                ``abort_transaction()``. The cause is the first error.
            ApplicationRecoverableError: this producer was fenced, or has failed otherwise: make a new one.
                All futures are done.
            KafkaTimeoutError: the outcome is not known yet.
            IllegalStateError: no transaction is open.
        """
        self._end("commit_transaction", "commit", timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Aborts the transaction: readers with ``read_committed`` never see its records.

        Records that were not sent yet fail with ``TransactionAbortedError``; all futures are done when this
        returns. ``timeout`` is in seconds, None: ``max_block_ms``.

        Raises:
            ApplicationRecoverableError: this producer was fenced, or has failed otherwise: make a new one.
                All futures are done.
            KafkaTimeoutError: not acknowledged in time; call this again to continue waiting.
            IllegalStateError: no transaction is open, or its commit may already have been sent.
        """
        self._end("abort_transaction", "abort", timeout)

    def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction:
        """Waits for all records and their callbacks. From then on any process can end the transaction.

        Returns what ``cyproducer.transactions.commit()`` and ``abort()`` need, in any process. This relies on
        EndTxn, which a coordinator accepts from any client that knows the transactional id, producer id and
        epoch. The broker aborts the transaction ``transaction_timeout_ms`` after its first record.
        ``close()`` leaves a prepared transaction open. ``commit_transaction()`` and ``abort_transaction()``
        of this producer also end it. ``timeout`` and errors are those of ``commit_transaction()``.
        """
        prepared: Prepared = self._end("prepare_transaction", "prepare", timeout)
        written = self._runtime.sender.written_offsets()
        assert self.config.transactional_id is not None
        return PreparedTransaction(
            self.config.transactional_id,
            prepared.producer_id,
            prepared.epoch,
            prepared.protocol,
            prepared.empty,
            {TopicPartition(*place): offsets for place, offsets in sorted(written.items())},
        )

    def transaction(self, timeout: float | None = None) -> Transaction:
        """A block that is one transaction: ``with producer.transaction():``, or ``async with``.

        Begins at the start and commits at the end. If the block or the commit raises, the transaction is
        aborted, and the exception propagates. ``timeout`` is that of the commit and of the abort.
        """
        self._transactions("transaction")
        return Transaction(self, timeout)

    # For asyncio

    async def init_transactions_async(self, timeout: float | None = None) -> None:
        """``init_transactions()`` for asyncio: lets the loop run."""
        await self._in_thread(self.init_transactions, timeout)

    async def send_offsets_to_transaction_async(
        self, offsets: Any, group: Any, timeout: float | None = None
    ) -> None:
        """``send_offsets_to_transaction()`` for asyncio: lets the loop run."""
        await self._in_thread(self.send_offsets_to_transaction, offsets, group, timeout)

    async def commit_transaction_async(self, timeout: float | None = None) -> None:
        """``commit_transaction()`` for asyncio: lets the loop run. Cancelling the task does not stop it."""
        await self._in_thread(self.commit_transaction, timeout)

    async def abort_transaction_async(self, timeout: float | None = None) -> None:
        """``abort_transaction()`` for asyncio: lets the loop run. Cancelling the task does not stop it."""
        await self._in_thread(self.abort_transaction, timeout)

    async def prepare_transaction_async(self, timeout: float | None = None) -> PreparedTransaction:
        """``prepare_transaction()`` for asyncio: lets the loop run."""
        prepared: PreparedTransaction = await self._in_thread(self.prepare_transaction, timeout)
        return prepared

    async def _in_thread(self, method: Any, *arguments: Any) -> Any:
        # Imported here: asyncio would double the import time of this package.
        from cyproducer._asyncio_thread import in_thread

        return await in_thread(f"cyproducer-{method.__name__} | {self.config.client_id}", method, *arguments)

    # Common

    def _drop_refused(self) -> None:
        """For dead letters: transactions may be committed without records that are refused for their
        content, which the caller must handle."""
        self._transactions("begin_transaction").machine.drops_refused = True

    def _transactions(self, method: str) -> TransactionClient:
        self._not_in_callback(method)
        client = self._runtime.client.transaction_client
        if client is None:
            raise errors.IllegalStateError(
                f"{method}() needs a transactional_id, and this producer has none: "
                "KafkaProducer(transactional_id=...)"
            )
        return client

    def _seconds(self, timeout: float | None) -> float:
        return self.config.max_block_ms / 1000 if timeout is None else duration("timeout", timeout)

    def _end(self, method: str, ending: Ending, timeout: float | None) -> Any:
        self._transactions(method)
        seconds = self._seconds(timeout)
        if timeout is None and ending != "abort":
            seconds += self.config.delivery_timeout_ms / 1000
        with self._timed("abort" if ending == "abort" else "commit"):
            return self._runtime.end_transaction(ending, seconds)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        """Adds the time of a block to the metrics."""
        began_ns = monotonic_ns()
        try:
            yield
        finally:
            self._runtime.accumulator.add_transaction_time(step, monotonic_ns() - began_ns)


class Transaction:
    """One transaction as a block. ``KafkaProducer.transaction()`` makes it."""

    def __init__(self, producer: TransactionalCalls, timeout: float | None) -> None:
        self._producer = producer
        self._timeout = timeout

    def __enter__(self) -> Self:
        self._producer.begin_transaction()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort(error)
            return
        try:
            self._producer.commit_transaction(self._timeout)
        except errors.AbortableError as failed:
            self._abort(failed)
            raise

    def _abort(self, error: BaseException) -> None:
        """Aborts because of ``error``. An error of the abort itself must not hide it."""
        try:
            self._producer.abort_transaction(self._timeout)
        except errors.KafkaError as second:
            error.add_note(f"aborting the transaction failed, too: {second}")

    async def __aenter__(self) -> Self:
        self._producer.begin_transaction()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._abort_async(error)
            return
        try:
            await self._producer.commit_transaction_async(self._timeout)
        except errors.AbortableError as failed:
            await self._abort_async(failed)
            raise

    async def _abort_async(self, error: BaseException) -> None:
        try:
            await self._producer.abort_transaction_async(self._timeout)
        except errors.KafkaError as second:
            error.add_note(f"aborting the transaction failed, too: {second}")
