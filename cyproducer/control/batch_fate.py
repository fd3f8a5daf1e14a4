"""Decides the fate of a batch that failed or expired.

Owns the decision (from the facts about a batch to a verdict and orders for its partition) and the error that
its records fail with. Does not own the rules of idempotence (``idempotence``), the backoff (``retry``), the
cluster metadata (``metadata``), or applying the decision (``sender/batch_errors``). Does no I/O and reads no
clock. Only the thread that runs the sender loop calls it.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cyproducer import errors
from cyproducer.base.text import counted
from cyproducer.control.idempotence import (
    CONTENT_ERRORS,
    FENCING_ERRORS,
    RECORD_ERRORS,
    TOO_LARGE_ERRORS,
    Action,
    BatchFacts,
    Fate,
    Idempotence,
    Order,
    Verdict,
)
from cyproducer.control.log_limit import LogLimit
from cyproducer.control.metadata import ClusterMetadata
from cyproducer.control.retry import MARKERS_LAST_MS, LastErrors, RetryPolicy
from cyproducer.errors.error_code import ErrorCode
from cyproducer.structs import TopicPartition

if TYPE_CHECKING:
    from cyproducer.control.transaction_machine import TransactionMachine


class Failure(NamedTuple):
    """How an attempt to send a batch failed."""

    #: The broker's error code; 0 if there is a ``cause`` instead.
    code: int = 0
    #: The broker's error message.
    message: str | None = None
    #: Why there is no response.
    cause: Exception | None = None


class Decision(NamedTuple):
    """What to do: first ``orders`` for the batch's partition, in this order, then the batch's ``verdict``."""

    verdict: Verdict
    orders: tuple[Order, ...] = ()


class FatePolicy:
    """Decides about batches. See the module's docstring."""

    def __init__(
        self,
        retry: RetryPolicy,
        idempotence: Idempotence,
        metadata: ClusterMetadata,
        log: LogLimit,
        rng: Callable[[], float],
        diagnosis: Callable[[str], str],
    ) -> None:
        """
        Args:
            retry: when to retry, and for how long.
            idempotence: the producer's identity, and which partitions are held back.
            metadata: which brokers lead the partitions; updates are requested here if it looks stale.
            log: logs failures at a bounded rate.
            rng: returns a float in [0, 1), for jitter.
            diagnosis: takes what is already known and returns why nothing gets through, for error messages.
        """
        self._retry = retry
        self._idempotence = idempotence
        self._metadata = metadata
        self._log = log
        self._rng = rng
        self._diagnosis = diagnosis
        self._last_errors = LastErrors(retry.delivery_timeout_ms)
        #: The producer's transactions; None without a transactional id.
        self.transaction_machine: TransactionMachine | None = None
        #: Partitions whose new leader the current response named: their batches need no backoff (KIP-951).
        self.new_leaders: set[tuple[str, int]] = set()

    @property
    def identity(self) -> tuple[int, int]:
        """The producer id and epoch for new batches; -1, -1 while there is none."""
        return self._idempotence.producer_id, self._idempotence.epoch

    def decide(self, batch: BatchFacts, failure: Failure, written: bool, now_ms: float) -> Decision:
        """Decides about a batch that failed.

        Args:
            batch: the batch.
            failure: how the attempt ended.
            written: whether the request was written completely, so that the broker may have received it.
            now_ms: the current time.
        """
        where = f"{batch.topic}-{batch.partition}"
        more = ""
        if self.transaction_machine is not None and failure.code in FENCING_ERRORS:
            more = self.transaction_machine.age(now_ms)
        error = _error_of(batch, where, failure, more)
        self._last_errors.note(batch.topic, batch.partition, error, now_ms)
        if getattr(error, "invalid_metadata", False):
            self._metadata.request_update(f"{where}: {type(error).__name__}")
        fate, maybe = self._idempotence.judge(batch, failure.code, written)
        verdict = None
        if fate is Fate.ACKNOWLEDGE:
            verdict = Verdict(fate, maybe_written=maybe)
        elif batch.abandoned:
            verdict = Verdict(Fate.FAIL, 0, error, maybe)
        elif self.transaction_machine is not None and self.transaction_machine.failed:
            # The cause of the transaction's failure is already known; this batch came later.
            verdict = Verdict(
                Fate.FAIL, 0, errors.told(self.transaction_machine.record_error(), maybe), maybe
            )
        elif failure.code in TOO_LARGE_ERRORS and batch.records > 1 and not maybe:
            self._say(
                logging.INFO, now_ms, "%s: %d records are too large together: %s", where, batch.records, error
            )
            verdict = Verdict(Fate.SPLIT)
        elif failure.code == ErrorCode.CONCURRENT_TRANSACTIONS and now_ms < self._retry.deadline_ms(
            batch.created_ms
        ):
            # The partition is added while the last transaction's markers are written, which takes
            # milliseconds.
            verdict = Verdict(Fate.RETRY, now_ms + MARKERS_LAST_MS / 2 * (0.5 + self._rng()), None, maybe)
        elif failure.code in RECORD_ERRORS and batch.culprits and not maybe and self._can_drop():
            self._fail(
                batch.culprits,
                now_ms,
                "%s: %d of %d records fail: %s",
                where,
                batch.culprits,
                batch.records,
                error,
            )
            verdict = Verdict(Fate.EXCLUDE)
        elif failure.code in CONTENT_ERRORS and not maybe and self.transaction_machine and self._can_drop():
            verdict = Verdict(Fate.REFUSE, 0, self._final(batch, where, error, maybe, now_ms))
        elif self._metadata.is_gone(batch.topic, batch.partition):
            error = self._gone(batch)
        elif fate is not Fate.FAIL:
            retriable = fate is Fate.RETRY or isinstance(error, errors.KafkaProtocolError)
            # A broker's error for another request, such as a refused renewal of the session, ended the
            # connection: it says nothing about this batch.
            retriable |= isinstance(failure.cause, errors.BrokerResponseError)
            retriable |= bool(getattr(error, "retriable", False))
            verdict = self._try_again(batch, where, error, retriable, maybe, now_ms)
        if verdict is None:
            verdict = Verdict(Fate.FAIL, 0, self._final(batch, where, error, maybe, now_ms), maybe)
        orders = self._orders(batch, failure.code, verdict.fate, maybe)
        if verdict.fate is Fate.FAIL:
            self._lose(batch, error, failure.code)
        if any(order.action is Action.FORGET_ID for order in orders):
            self._fail(0, now_ms, "%s: %s; taking a new producer id", where, error)
        return Decision(verdict, orders)

    def expire(self, batch: BatchFacts, on_wire: bool, now_ms: float) -> Decision:
        """Decides about a batch whose delivery_timeout_ms is over, on the wire or queued: it fails."""
        maybe, orders = self._given_up(batch, on_wire)
        error = self._overdue(batch, maybe, now_ms)
        self._lose(batch, error)
        return Decision(Verdict(Fate.FAIL, 0, error, maybe), orders)

    def purge(self, batch: BatchFacts, on_wire: bool, error: BaseException) -> Decision:
        """Decides about a batch that the application purges, on the wire or queued: it fails with
        ``error``."""
        maybe, orders = self._given_up(batch, on_wire)
        self._lose(batch, error)
        return Decision(Verdict(Fate.FAIL, 0, errors.told(error, maybe), maybe), orders)

    def _can_drop(self) -> bool:
        """Whether rejected records may fail while the others are still sent."""
        return self.transaction_machine is None or self.transaction_machine.drops_refused

    def cannot_move(self, place: TopicPartition) -> None:
        """A batch behind rejected records would get other sequences, although a request for it may still
        arrive late. So the open transaction cannot continue without those records."""
        assert self.transaction_machine is not None
        error = errors.KafkaError(
            "{}-{}: records were refused, and a request for those behind them got no response".format(*place)
        )
        self.transaction_machine.fail(error, 0, True)

    def _lose(self, batch: BatchFacts, error: BaseException, code: int = 0) -> None:
        """A batch fails: the open transaction cannot be committed."""
        if self.transaction_machine is not None:
            self.transaction_machine.fail(error, code, batch.sequenced)

    def _given_up(self, batch: BatchFacts, on_wire: bool) -> tuple[bool, tuple[Order, ...]]:
        """Returns whether a batch that fails without a response may be in the log, and the orders."""
        maybe = batch.ambiguous or on_wire
        # A batch on the wire keeps its sequences until its response arrives.
        orders = () if on_wire else self._orders(batch, 0, Fate.FAIL, maybe)
        return maybe, orders

    def partition_removed(self, batch: BatchFacts, now_ms: float) -> Decision:
        """Decides about a queued batch whose partition no longer exists: it fails."""
        maybe = batch.ambiguous
        error = self._final(batch, f"{batch.topic}-{batch.partition}", self._gone(batch), maybe, now_ms)
        self._lose(batch, error)
        return Decision(Verdict(Fate.FAIL, 0, error, maybe), self._orders(batch, 0, Fate.FAIL, maybe))

    def progress(
        self,
        place: TopicPartition,
        on_wire: int,
        unsettled: int,
        current: bool,
        acknowledged_id: int,
        now_ms: float,
    ) -> list[Order]:
        """Decides how a held-back partition continues after one of its batches ended.

        The arguments are those of ``Idempotence.on_progress``. Returns the orders, in sequence. Call it again
        with new facts until it returns none.
        """
        orders = self._idempotence.on_progress(place, on_wire, unsettled, current, acknowledged_id)
        if any(order.action is Action.BUMP_EPOCH for order in orders):
            self._say(
                logging.INFO, now_ms, "%s-%d: sequences start over, epoch %d", *place, self._idempotence.epoch
            )
        return orders

    def _orders(self, batch: BatchFacts, error_code: int, fate: Fate, maybe: bool) -> tuple[Order, ...]:
        """Records the fate of a batch; returns the orders that follow for its partition and the identity."""
        id_before = self._idempotence.producer_id
        orders = [Order(action) for action in self._idempotence.on_fate(batch, error_code, fate, maybe)]
        if self._idempotence.producer_id != id_before:
            orders.append(Order(Action.FORGET_ID))
        return tuple(orders)

    def _try_again(
        self, batch: BatchFacts, where: str, error: Exception, retriable: bool, maybe: bool, now_ms: float
    ) -> Verdict | None:
        """Returns the verdict of the retry policy; None if the batch fails with ``error`` itself."""
        place = batch.topic, batch.partition
        at_ms = self._retry.decide(
            retriable, batch.attempts, batch.created_ms, now_ms, self._rng, at_once=place in self.new_leaders
        )
        self.new_leaders.discard(place)
        if at_ms is not None:
            text = "%s for %s: %s; attempt %d in %.0f ms"
            records = counted(batch.records, "record")
            args = records, where, error, batch.attempts + 1, at_ms - now_ms
            self._say(logging.WARNING, now_ms, text, *args)
            return Verdict(Fate.RETRY, at_ms, None, maybe)
        if not retriable or batch.attempts > self._retry.retries:
            return None
        return Verdict(Fate.FAIL, 0, self._overdue(batch, maybe, now_ms), maybe)

    def _final(
        self, batch: BatchFacts, where: str, error: Exception, maybe: bool, now_ms: float
    ) -> BaseException:
        """Returns the error of records that fail for good, and logs it."""
        text = "%s for %s failed: %s; %s"
        self._fail(
            batch.records, now_ms, text, counted(batch.records, "record"), where, error, _outcome(maybe)
        )
        return errors.told(error, maybe)

    def _gone(self, batch: BatchFacts) -> Exception:
        count = self._metadata.partition_count(batch.topic)
        return errors.UnknownTopicOrPartitionError(
            f"{batch.topic}-{batch.partition} no longer exists: the topic was recreated with {count} "
            "partitions"
        )

    def _overdue(self, batch: BatchFacts, maybe: bool, now_ms: float) -> BaseException:
        """Returns the error of records that were not delivered in time, and logs it.

        The error's cause is the partition's last error, if there was one since the batch was created.
        """
        cause = self._last_errors.since(batch.topic, batch.partition, batch.created_ms)
        known = "" if cause is None else f"the partition's last request failed with {cause}"
        leader = self._metadata.leader(batch.topic, batch.partition)
        whom = "it has no known leader" if leader is None else f"its leader is broker {leader}"
        error = errors.DeliveryTimeoutError(
            f"{counted(batch.records, 'record')} for {batch.topic}-{batch.partition} not delivered within "
            f"delivery_timeout_ms={self._retry.delivery_timeout_ms:g} ({now_ms - batch.created_ms:.0f} ms "
            f"old, {batch.attempts} requests tried, {whom}; {_outcome(maybe)}): {self._diagnosis(known)}"
        )
        error.__cause__ = cause
        error.maybe_written = maybe
        self._fail(batch.records, now_ms, "%s", error)
        return error

    def _say(self, level: int, now_ms: float, text: str, *args: object) -> None:
        self._log.add(level, 0, text, args, now_ms)

    def _fail(self, records: int, now_ms: float, text: str, *args: object) -> None:
        """Logs that records failed."""
        self._log.add(logging.ERROR, records, text, args, now_ms)


def _error_of(batch: BatchFacts, where: str, failure: Failure, more: str) -> Exception:
    if failure.cause is not None:
        return failure.cause
    text = where
    if failure.code in TOO_LARGE_ERRORS:
        # Only this place knows the size, and users ask for the size first.
        text += f": {counted(batch.records, 'record')} in a batch of {batch.size} bytes"
    kind = errors.for_code(failure.code)
    if failure.message:
        text += f": {failure.message}"
    # The broker's own message is often only the name of the error.
    if kind.description:
        text += f" ({kind.description[0].lower()}{kind.description[1:].rstrip('.')})"
    return kind(f"{text}: {more}" if more else text)


def _outcome(maybe_written: bool) -> str:
    return "they may have been written" if maybe_written else "they were not written"
