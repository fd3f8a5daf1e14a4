"""Transactions: which request is next, and what each response means.

Owns the order of the requests, and the transaction's identity (producer id and epoch). Does not own which
calls are allowed (``transaction_calls``), batches (the accumulator), their fates (``batch_fate``),
connections, or the calling threads (``clients/transaction_client``). Does no I/O and reads no clock. Only the
thread that holds the loop lock calls it.

The rules
---------

**Two protocols.** With the first protocol, AddPartitionsToTxn and AddOffsetsToTxn add the partitions and
groups to a transaction, and an epoch lasts for many transactions. With the second protocol (KIP-890), Produce
and TxnOffsetCommit add them, and each EndTxn ends the epoch. The brokers' finalized feature
``transaction.version`` decides. A request of the second protocol at a level below 2 makes the transactional
id unusable. So if the level was not reported within the last second, it is looked up again where it may have
changed: before a transaction's first request, and before EndTxn. A transaction keeps its protocol. Only its
EndTxn uses the first protocol if the level has dropped in the meantime.

**Opening.** ``begin`` sends nothing. A transaction is *opened* when it has something to send: the level is
known, and the markers of the last transaction are written. Before that, the epoch is bumped if the last
transaction used the first protocol and this one uses the second, or if ``prepare`` has returned the identity
to the application: otherwise, a late EndTxn of another process could end this transaction. A Produce request
of the second protocol would find the markers missing, and wait in the broker for 20 ms; DescribeTransactions
checks for them without blocking other requests.

**One at a time.** One request about the transaction is in flight at any time. EndTxn is sent only when no
Produce request is in flight, because a broker could append a late one after EndTxn, to the next transaction.

**Errors.** Retriable errors are retried until the transaction ends. After an *abortable* error, the
transaction can only be aborted. After a *fatal* error, the producer can't be used any more, and each call
raises an error with the first cause. A record that is not delivered, or was not even accepted, causes an
abortable error: a transaction is never committed without one of its records. An expired id is a fatal error,
even if a bump would assign it another producer id: the coordinator may have forgotten its last owner, and
nothing would fence a zombie.

**After an abort**, none of its sequences may be reused, and none of its late requests may become part of the
next transaction. The second protocol's EndTxn ends the epoch. With the first protocol, InitProducerId bumps
the epoch if a record has failed or a request got no response. InitProducerId must not be sent before EndTxn:
it would abort the transaction silently, and later records would be committed without the earlier ones.

**Calls that time out** continue. A repeated call joins the operation in progress. EndTxn is repeated
unchanged until there is a response, so once it may have been sent, the opposite call is refused.

Sources: KIP-98, KIP-360, KIP-447, KIP-588, KIP-654, KIP-890, KIP-1050; Kafka protocol guide.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from cyproducer import errors
from cyproducer.control.coordinator import MOVED, Retries, refusal
from cyproducer.control.retry import MARKERS_LAST_MS, ExponentialBackoff
from cyproducer.control.transaction_calls import (
    JOINED,
    OPEN,
    TABLE,
    Call,
    CloseCall,
    Event,
    OffsetsCall,
    Prepared,
    ResumeCall,
    State,
)
from cyproducer.control.transaction_requests import (
    FIRST,
    GROUP,
    SECOND,
    TRANSACTION,
    AddOffsets,
    AddPartitions,
    AskLevel,
    AskMarkers,
    CommitOffsets,
    EndTxn,
    FindCoordinator,
    InitProducerId,
    Request,
)
from cyproducer.errors.error_code import ErrorCode
from cyproducer.structs import OffsetAndMetadata, TopicPartition
from cyproducer.wire.responses import InitProducerIdResponse
from cyproducer.wire.transaction_api import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    DescribeTransactionsResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    TxnOffsetCommitResponse,
)

LEVEL_AGE_MS = 1000.0
"""How long a reported level of ``transaction.version`` counts as known."""
MARKERS_FIRST_MS = 1.0
"""The first wait while the last transaction is being completed."""

FENCING_EPOCH = 32767
"""The last epoch: coordinators use it to end transactions, but can't end one begun in it (KAFKA-20090)."""

NEARLY_EXHAUSTED_EPOCH = FENCING_EPOCH - 10
"""Up to this epoch, no bump assigns another producer id. A few epochs later, a bump may, because the broker's
timeout also bumps the epoch."""


_REPLACED = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED})
_FATAL_TO_PRODUCE = _REPLACED | {ErrorCode.UNSUPPORTED_VERSION}
FENCED = _REPLACED | {ErrorCode.INVALID_PRODUCER_EPOCH}
_FATAL = _FATAL_TO_PRODUCE | FENCED | {ErrorCode.UNKNOWN}
_FORMER_MEMBER = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
"""The consumer of these offsets may no longer own its partitions (KIP-447, KIP-848)."""
_UNDER_WAY = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


class TransactionMachine:
    """The transactions of one producer. See the rules in the module's docstring."""

    def __init__(
        self,
        transactional_id: str,
        timeout_ms: float,
        backoff: ExponentialBackoff,
        rng: Callable[[], float],
    ) -> None:
        """
        Args:
            transactional_id: the producer's transactional id.
            timeout_ms: ``transaction_timeout_ms``, for messages.
            backoff: the delay after a failed request.
            rng: returns a float in [0, 1), for jitter.
        """
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        #: The number of transactions begun so far.
        self.number = 0
        #: The identity of the open or next transaction; -1 while there is none.
        self.producer_id = -1
        self.epoch = -1
        #: The protocol of the open transaction; None until it is opened.
        self.protocol: int | None = None
        #: Partitions added to the transaction that the sender does not know yet (first protocol).
        self.added: list[tuple[str, int]] = []
        #: The first error of the open transaction, or the fatal one.
        self.cause: BaseException | None = None
        #: Whether an EndTxn of the last transaction got no response, or a retriable error, so that it may
        #: have been carried out even if its repetition is refused.
        self.end_in_doubt = False
        #: Whether the transaction continues without a record that is refused for its content, by the client
        #: or by a broker. Otherwise, no transaction is committed without one of its records.
        self.drops_refused = False
        #: Called when a record's failure has changed the state, so that nothing more must be sent.
        self.on_failure: Callable[[], object] = lambda: None
        self._timeout_ms = timeout_ms
        markers = ExponentialBackoff(MARKERS_FIRST_MS, MARKERS_LAST_MS, 1.5)
        self._retries = Retries(backoff, markers, rng)
        #: The last level of ``transaction.version`` that a broker reported, 0 if none has. Then the epoch of
        #: its features, and the time of the report.
        self.level = 0
        self._features_epoch = -1
        self._level_ms = -math.inf
        self._coordinators: dict[tuple[int, str], int] = {}
        self._last_protocol = FIRST
        self._markers_under_way = False
        self._ended_ms = 0.0
        # The open transaction.
        self._wanted = False
        self._pending: list[tuple[str, int]] = []
        self._has_parts = False
        self._may_have_parts = False
        self._groups: set[str] = set()
        self._opened_ms = 0.0
        self._must_bump = False
        self._unanswered = False
        self._end_sent = False
        self._end_protocol = FIRST
        self._prepared: Prepared | None = None
        self._calls: list[Call] = []
        self._offsets: list[OffsetsCall] = []
        self._left: dict[TopicPartition, OffsetAndMetadata] = {}
        # The last operation that has succeeded, its result, and the calls that received the result.
        self._last: tuple[Event, Any, list[Call]] | None = None
        self.in_flight: Request | None = None

    # What the rest of the client is allowed to do

    @property
    def accepts_records(self) -> bool:
        """Whether ``send()`` accepts records."""
        return self.state is State.IN_TRANSACTION

    @property
    def open(self) -> bool:
        """Whether there is a transaction that closing the producer should end."""
        return self.state in (*OPEN, State.ABORTABLE_ERROR, State.ABORTING)

    @property
    def failed(self) -> bool:
        """Whether unsent records must not be sent any more."""
        return self.state in (State.ABORTABLE_ERROR, State.ABORTING, State.FATAL_ERROR)

    def refusal(self) -> errors.KafkaError:
        """Returns the error for a record or a call in the current state."""
        if self.state is State.FATAL_ERROR:
            return self._fatal_error()
        if self.state is State.ABORTABLE_ERROR:
            return self._abortable_error()
        return errors.IllegalStateError(self._state_text("send()", "call begin_transaction() before it"))

    def record_error(self) -> errors.KafkaError:
        """Returns the error of records that were accepted and will not be sent."""
        error: errors.KafkaError
        if self.cause is None:
            error = errors.TransactionAbortedError(
                f"abort_transaction() was called, transactional id {self.transactional_id!r}"
            )
        else:
            error = errors.TransactionAbortedError(
                f"the transaction of {self.transactional_id!r} failed before the record was acknowledged: "
                f"{self.cause}"
            )
            error.__cause__ = self.cause
        return error

    def age(self, now_ms: float) -> str:
        """Describes the transaction's age, for errors of an invalid epoch: the broker may have aborted it."""
        return (
            f"the transaction was open for {(now_ms - self._opened_ms) / 1000:.1f} s; the broker aborts it "
            f"after transaction_timeout_ms={self._timeout_ms:g}"
        )

    def _state_text(self, name: str, advice: str) -> str:
        return f"{name}: {self.state.value} (transactional id {self.transactional_id!r}): {advice}"

    def _abortable_error(self) -> errors.KafkaError:
        error = errors.TransactionFailedError(
            f"the transaction of {self.transactional_id!r} cannot be committed: call abort_transaction(); "
            f"the first error: {self.cause}"
        )
        error.__cause__ = self.cause
        return error

    def _fatal_error(self) -> errors.KafkaError:
        if isinstance(self.cause, errors.ApplicationRecoverableError | errors.InvalidSetupError):
            twin = errors.copied(self.cause)
            assert isinstance(twin, errors.KafkaError)
            return twin
        error = errors.TransactionalProducerFailedError(
            f"the producer of {self.transactional_id!r} can do no more transactions: close it and make a new "
            f"one; the first error: {self.cause}"
        )
        error.__cause__ = self.cause
        return error

    # Calls

    def submit(self, call: Call, now_ms: float) -> None:
        """Handles a call of the application: refuses it, completes it, or begins its operation."""
        if isinstance(call, CloseCall):
            self._submit_close(call)
            return
        if self.state is State.FATAL_ERROR:
            call.finish(self._fatal_error())
            return
        # Checked only now, because a thread can stop waiting at the moment of success.
        if self._last is not None and all(caller.abandoned for caller in self._last[2]):
            event, result, _ = self._last
            if call.event is event:
                self._last = None
                call.finish(None, result)
            else:
                call.finish(
                    errors.IllegalStateError(
                        f"{call.name}: {event.value} timed out and has succeeded since: call it again to see "
                        "that"
                    )
                )
            return
        if isinstance(call, OffsetsCall):
            self._submit_offsets(call)
            return
        assert call.event is not None
        if self.state is JOINED.get(call.event):
            self._calls.append(call)
            return
        if call.event is Event.PREPARE and self.state is State.PREPARED:
            call.finish(None, self._prepared)
            return
        may = (self.state, call.event) in TABLE
        if call.event is Event.ABORT and self._end_sent:
            may = False
        if not may:
            call.finish(self._misuse(call))
            return
        self._go(call.event)
        if call.event is Event.BEGIN:
            self._begin()
            call.finish()
            return
        if isinstance(call, ResumeCall):
            self.producer_id, self.epoch = call.identity
            self._last_protocol = SECOND
            # The other producer's last transaction may have ended just before.
            self._markers_under_way, self._ended_ms = True, now_ms
            call.finish()
            return
        if call.event is Event.ABORT:
            self._fail_calls(errors.IllegalStateError("abort_transaction() was called meanwhile"))
        self._calls.append(call)
        self._retries.succeeded()

    def _submit_close(self, call: CloseCall) -> None:
        if not self.open:
            call.finish()
            return
        if self.state not in (State.COMMITTING, State.ABORTING):
            self._go(Event.ABORT)
            self._fail_calls(
                errors.ProducerClosedError("the producer was closed, which aborts its transaction")
            )
        self._calls.append(call)
        self._retries.succeeded()

    def _misuse(self, call: Call) -> errors.KafkaError:
        if self.state is State.ABORTABLE_ERROR:
            return self._abortable_error()
        advice = "call init_transactions() first"
        if self.state is State.READY:
            advice = "call begin_transaction() first"
            if call.event is Event.INIT:
                advice = "init_transactions() is called once"
        elif self.state in (State.IN_TRANSACTION, State.PREPARED):
            advice = "commit or abort it first"
        elif self.state is State.COMMITTING:
            advice = "its outcome is open: call commit_transaction() again"
        elif self.state is State.ABORTING:
            advice = "call abort_transaction() again"
        elif self.state is State.PREPARING:
            advice = "call prepare_transaction() again"
        elif self.state is State.INITIALIZING:
            advice = "call init_transactions() again"
        return errors.IllegalStateError(self._state_text(call.name, advice))

    def _submit_offsets(self, call: OffsetsCall) -> None:
        if self.state is not State.IN_TRANSACTION:
            call.finish(self._misuse(call))
        elif not call.offsets.positions:
            # Brokers add nothing for an empty commit of offsets.
            call.finish()
        elif self._offsets and self._offsets[0].offsets != call.offsets:
            call.finish(
                errors.IllegalStateError(
                    f"{call.name}: an earlier call for group {self._offsets[0].offsets.group.group_id!r} is "
                    "not complete: call it again with the same offsets"
                )
            )
        else:
            if not self._offsets:
                self._left = dict(call.offsets.positions)
            self._offsets.append(call)
            self._wanted = True
            self._retries.succeeded()

    def _begin(self) -> None:
        self.number += 1
        self.cause = None
        self.protocol = None
        self.added = []
        self._wanted = False
        self._pending = []
        self._has_parts = self._may_have_parts = False
        self._groups = set()
        self._end_sent = False
        self._must_bump = self._unanswered = False
        self.end_in_doubt = False
        self._retries.succeeded()

    def _go(self, event: Event) -> None:
        self.state = TABLE[self.state, event]

    def _finish_calls(self, event: Event, result: Any = None) -> None:
        """Reports success of the operation to its callers, and keeps the outcome in case none has seen it."""
        calls, self._calls = self._calls, []
        for call in calls:
            call.finish(None, result)
        self._last = (event, result, calls) if calls else None

    def _fail_calls(self, error: BaseException) -> None:
        calls, self._calls = [*self._calls, *self._offsets], []
        self._offsets = []
        for call in calls:
            call.finish(errors.copied(error))

    # Failures

    def fail(self, error: BaseException, code: int = 0, sequenced: bool = False) -> None:
        """Handles a record of the open transaction that was not delivered, or not accepted.

        Args:
            error: the reason.
            code: the broker's error code, 0 if the client decided.
            sequenced: whether the record had a sequence number, which must not be reused.
        """
        before = self.state
        self._must_bump |= sequenced
        if code in _FATAL_TO_PRODUCE:
            self._fatal(error)
        elif (self.state, Event.ABORTABLE) in TABLE:
            self._abortable(error)
        if self.state is not before:
            self.on_failure()

    def _abortable(self, error: BaseException) -> None:
        if not self.failed:
            self.cause = error
        self._go(Event.ABORTABLE)
        if self.state is State.ABORTABLE_ERROR:
            self._fail_calls(self._abortable_error())

    def _fatal(self, error: BaseException) -> None:
        if self.state is not State.FATAL_ERROR:
            self.cause = error
        self._go(Event.FATAL)
        self._fail_calls(self._fatal_error())

    # The level

    def on_features(self, epoch: int, level: int, now_ms: float) -> None:
        """Handles a broker's report of the level of ``transaction.version``. The highest epoch is newest."""
        if epoch >= self._features_epoch:
            self._features_epoch, self.level, self._level_ms = epoch, level, now_ms

    def _level_is_known(self, now_ms: float) -> bool:
        return now_ms - self._level_ms <= LEVEL_AGE_MS

    def _protocol_now(self) -> int:
        return SECOND if self.level >= SECOND else FIRST

    # Requests

    def coordinator(self, request: Request) -> int | None:
        """Returns the node to which a request is sent; None: any."""
        if isinstance(request, FindCoordinator):
            return None
        return self._coordinators[self._whose(request)]

    def _whose(self, request: Request) -> tuple[int, str]:
        if isinstance(request, FindCoordinator):
            return request
        if isinstance(request, CommitOffsets):
            return GROUP, request.group.group_id
        return TRANSACTION, self.transactional_id

    def join(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Notes partitions to which the transaction is about to write."""
        self._pending.extend(partitions)
        self._wanted |= bool(self._pending)

    def wait_ms(self, now_ms: float) -> float:
        """Returns the milliseconds until ``next_request`` is due, unless an event occurs earlier."""
        return self._retries.at_ms - now_ms if self._retries.at_ms > now_ms else math.inf

    def next_request(self, drained: Callable[[], bool], wrote: bool, now_ms: float) -> Request | None:
        """Returns the request to send now; makes state changes that need no request.

        Args:
            drained: returns whether no record waits for its outcome, and no Produce request for its response;
                if not, this method is called again as soon as that is the case.
            wrote: whether a batch of this transaction was put into a request.
            now_ms: the current time.
        """
        if self.in_flight is not None or now_ms < self._retries.at_ms:
            return None
        request = self._due(drained, wrote, now_ms)
        if request is None or isinstance(request, FindCoordinator):
            return request
        whose = self._whose(request)
        return request if whose in self._coordinators else FindCoordinator(*whose)

    def _due(self, drained: Callable[[], bool], wrote: bool, now_ms: float) -> Request | None:
        if self.state is State.INITIALIZING:
            return InitProducerId(-1, -1)
        if self.state in OPEN and not self._end_sent:
            if self._wanted and self.protocol is None and (request := self._opening(now_ms)) is not None:
                return request
            if self.protocol == FIRST and self._pending:
                return AddPartitions(tuple(self._pending))
            if self._offsets:
                return self._offsets_due()
        if self.state is State.PREPARING and self._released() and drained():
            self._go(Event.FLUSHED)
            self._prepared = Prepared(
                self.producer_id, self.epoch, self.protocol or FIRST, not self._something(wrote)
            )
            self._finish_calls(Event.PREPARE, self._prepared)
        if self.state in (State.COMMITTING, State.ABORTING):
            return self._ending(drained, wrote, now_ms)
        return None

    def _released(self) -> bool:
        return any(call.released for call in self._calls)

    def _opening(self, now_ms: float) -> Request | None:
        """Returns the next request to open the transaction; None: it is open and can write."""
        if not self._level_is_known(now_ms):
            return AskLevel()
        protocol = self._protocol_now()
        changed = protocol == SECOND and self._last_protocol == FIRST and self.epoch >= 0
        handed_out = self._prepared is not None and self._prepared[:2] == (self.producer_id, self.epoch)
        if changed or handed_out or self.epoch == FENCING_EPOCH:
            return InitProducerId(self.producer_id, self.epoch)
        if protocol == SECOND and self._markers_under_way and now_ms - self._ended_ms < MARKERS_LAST_MS:
            return AskMarkers()
        self.protocol = self._last_protocol = protocol
        self._opened_ms = now_ms
        if protocol == SECOND:
            self._pending = []
        return None

    def _offsets_due(self) -> Request:
        offsets = self._offsets[0].offsets
        assert self.protocol is not None
        if self.protocol == FIRST and offsets.group.group_id not in self._groups:
            return AddOffsets(offsets.group.group_id)
        return CommitOffsets(offsets.group, dict(self._left), self.protocol)

    def _ending(self, drained: Callable[[], bool], wrote: bool, now_ms: float) -> Request | None:
        commit = self.state is State.COMMITTING
        something = self._something(wrote) or (not commit and self._may_have_parts)
        # Requested while records are still in flight, so that it adds no latency.
        if something and not self._level_is_known(now_ms):
            return AskLevel()
        if (commit and not self._released()) or not drained():
            return None
        if something:
            protocol = min(self.protocol or FIRST, self._protocol_now())
            if self._end_sent:
                # An EndTxn of the first protocol does not change the epoch. The second protocol would detect
                # an earlier EndTxn only by a changed epoch: it would refuse the repetition, as if the broker
                # had aborted.
                protocol = min(protocol, self._end_protocol)
            return EndTxn(commit, protocol)
        if self._must_bump:
            return InitProducerId(self.producer_id, self.epoch)
        self._ended()
        return None

    def _something(self, wrote: bool) -> bool:
        return self._has_parts or (self.protocol == SECOND and wrote)

    def _ended(self) -> None:
        event = Event.COMMIT if self.state is State.COMMITTING else Event.ABORT
        self._go(Event.ENDED)
        self.protocol = None
        self._finish_calls(event)

    def sent(self, request: Request) -> None:
        """Notes a sent request. One of the methods for responses, or ``on_no_response``, must follow."""
        self.in_flight = request
        if isinstance(request, EndTxn):
            self._end_sent = True
            self._end_protocol = request.protocol
        elif isinstance(request, AddPartitions | AddOffsets):
            self._may_have_parts = True
        elif isinstance(request, CommitOffsets) and request.protocol == SECOND:
            # The request adds the group, even if it fails later.
            self._has_parts = True

    def describe(self) -> str:
        """Describes the operation in progress, for messages."""
        return self._retries.describe(self._last_request())

    def _last_request(self) -> str:
        if self.in_flight is not None:
            request = self.in_flight
            if isinstance(request, FindCoordinator):
                what = "group" if request.kind == GROUP else "transactional id"
                return f"looking for the coordinator of {what} {request.key!r}"
            node = self._coordinators.get(self._whose(request))
            return f"{type(request).__name__} is not answered yet by broker {node}"
        if self.state in (State.COMMITTING, State.PREPARING) and not self._retries.failures:
            return "records are not acknowledged yet, or their callbacks have not returned"
        return f"{self.state.value}, between two requests"

    # Responses

    def on_no_response(self, error: BaseException, now_ms: float) -> None:
        """Handles a request that will get no response: looks up its coordinator again, and repeats it."""
        request = self._answered()
        if not isinstance(request, FindCoordinator):
            self._coordinators.pop(self._whose(request), None)
        if isinstance(request, AddPartitions | AddOffsets | CommitOffsets):
            self._unanswered = True
        if isinstance(request, EndTxn):
            self.end_in_doubt = True
        self._retries.failed(error, now_ms)

    def unreachable(self, request: Request, error: BaseException, now_ms: float) -> None:
        """Handles a coordinator to which no connection is possible: looks it up again."""
        self._coordinators.pop(self._whose(request), None)
        self._retries.failed(error, now_ms)

    def _answered(self) -> Request:
        assert self.in_flight is not None
        request, self.in_flight = self.in_flight, None
        return request

    def _again(self, code: int, error: errors.KafkaError, request: Request, now_ms: float) -> bool:
        """Returns whether the error is retriable; if so, schedules a retry."""
        if code in MOVED:
            self._coordinators.pop(self._whose(request), None)
        elif not (error.retriable or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            return False
        self._retries.failed(error, now_ms, code == ErrorCode.CONCURRENT_TRANSACTIONS)
        return True

    def on_coordinator(self, response: FindCoordinatorResponse, where: str, now_ms: float) -> None:
        """Handles the response to FindCoordinator; ``where``: the broker that sent it."""
        request = self._answered()
        assert isinstance(request, FindCoordinator)
        code = response.error_code
        if code == 0:
            self._coordinators[request] = response.node_id
            self._retries.at_ms = -math.inf
            return
        error = self._error(code, "FindCoordinator", where, response.error_message)
        if self._again(code, error, request, now_ms):
            return
        if self.end_in_doubt:
            self._stay_in_doubt(error, now_ms)
            return
        # EndTxn was due, but never sent.
        self._end_sent = False
        self._give_up(request, code, error)

    def on_level(self, epoch: int, level: int, now_ms: float) -> None:
        """Handles the response to ApiVersions."""
        self._answered()
        self.on_features(epoch, level, now_ms)
        # If another broker has reported a newer epoch, its level is used, and is valid from now on.
        self._level_ms = now_ms
        self._retries.succeeded()

    def on_level_unknown(self, now_ms: float) -> None:
        """Uses the known level, because the coordinator rejects ApiVersions or does not support it."""
        self.in_flight = None
        self._level_ms = now_ms

    def on_markers(self, response: DescribeTransactionsResponse, where: str, now_ms: float) -> None:
        """Handles the response to DescribeTransactions."""
        request = self._answered()
        for transaction in response.transactions:
            if transaction.error_code in MOVED:
                self._coordinators.pop(self._whose(request), None)
            elif transaction.error_code == 0 and transaction.state in _UNDER_WAY:
                self._retries.failed(
                    self._error(ErrorCode.CONCURRENT_TRANSACTIONS, "DescribeTransactions", where),
                    now_ms,
                    markers=True,
                )
                return
        # The transaction is complete, or its state is unknown: the brokers also retry.
        self._markers_under_way = False
        self._retries.succeeded()

    def skip_markers(self) -> None:
        """Skips the check for markers, which an older coordinator does not support."""
        self._markers_under_way = False

    def on_init(self, response: InitProducerIdResponse, where: str, now_ms: float) -> None:
        """Handles the response to InitProducerId."""
        request = self._answered()
        assert isinstance(request, InitProducerId)
        code = response.error_code
        if (
            code == 0
            and 0 <= request.producer_id != response.producer_id
            and request.epoch <= NEARLY_EXHAUSTED_EPOCH
        ):
            # The coordinator has forgotten the id, and the producers that used it since. It refuses every
            # other request with this error, but creates an identity for InitProducerId.
            self._fatal(
                errors.InvalidProducerIdMappingError(
                    f"InitProducerId for transactional id {self.transactional_id!r} at {where}: the id has "
                    f"expired: it has producer id {response.producer_id} in place of {request.producer_id}"
                )
            )
            return
        if code == 0:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self._retries.succeeded()
            self._must_bump = False
            self._markers_under_way = False
            if self.state is State.INITIALIZING:
                # Taking over the id ends the epoch, so the first transaction can use either protocol.
                self._last_protocol = self._protocol_now()
                self._go(Event.INITIALIZED)
                self._finish_calls(Event.INIT)
            elif self.state in OPEN:
                self._last_protocol = SECOND
            return
        error = self._error(code, "InitProducerId", where)
        if self._again(code, error, request, now_ms):
            return
        self._give_up(request, code, error)

    def _not_initialized(self, error: errors.KafkaError) -> None:
        """Refuses ``init_transactions()``, which can be called again after rights were granted."""
        self._go(Event.NOT_INITIALIZED)
        self._fail_calls(error)

    def refuse_init(self, error: errors.KafkaError) -> None:
        """Handles brokers that are too old for transactions."""
        if self.state is State.INITIALIZING:
            self._not_initialized(error)
        else:
            self._fatal(error)

    def on_partitions(self, response: AddPartitionsToTxnResponse, where: str, now_ms: float) -> None:
        """Handles the response to AddPartitionsToTxn. All partitions were added, or none (KIP-98)."""
        request = self._answered()
        assert isinstance(request, AddPartitions)
        codes = {place: response.errors.get(place, ErrorCode.UNKNOWN) for place in request.partitions}
        wrong = {
            place: code for place, code in codes.items() if code not in (0, ErrorCode.OPERATION_NOT_ATTEMPTED)
        }
        if not wrong and ErrorCode.OPERATION_NOT_ATTEMPTED not in codes.values():
            self._has_parts = True
            self.added.extend(request.partitions)
            self._pending = [place for place in self._pending if place not in codes]
            self._retries.succeeded()
            return
        if not wrong:
            wrong = codes
        # An error that ends the transaction takes precedence over a retriable error.
        ranked = sorted(wrong.items(), key=lambda item: errors.for_code(item[1]).retriable)
        (topic, partition), code = ranked[0]
        error = self._error(code, f"AddPartitionsToTxn of {topic}-{partition}", where)
        if self._again(code, error, request, now_ms):
            return
        if not self._has_parts and not self._unanswered:
            self._may_have_parts = False
        self._give_up(request, code, error)

    def on_offsets_added(self, response: AddOffsetsToTxnResponse, where: str, now_ms: float) -> None:
        """Handles the response to AddOffsetsToTxn."""
        request = self._answered()
        assert isinstance(request, AddOffsets)
        code = response.error_code
        if code == 0:
            self._has_parts = True
            self._groups.add(request.group_id)
            self._retries.succeeded()
            return
        error = self._error(code, f"AddOffsetsToTxn of group {request.group_id!r}", where)
        if self._again(code, error, request, now_ms):
            return
        if not self._has_parts and not self._unanswered:
            self._may_have_parts = False
        self._give_up(request, code, error)

    def on_offsets_committed(self, response: TxnOffsetCommitResponse, where: str, now_ms: float) -> None:
        """Handles the response to TxnOffsetCommit: retries the partitions with a retriable error."""
        request = self._answered()
        assert isinstance(request, CommitOffsets)
        retried: errors.KafkaError | None = None
        retried_code = 0
        for place in request.positions:
            code = response.errors.get((place.topic, place.partition), ErrorCode.UNKNOWN)
            if code == 0:
                self._left.pop(place, None)
                continue
            what = f"TxnOffsetCommit of group {request.group.group_id!r} for {place.topic}-{place.partition}"
            error = self._error(code, what, where)
            if not (error.retriable or code in MOVED or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                self._give_up(request, code, error)
                return
            if retried is None or retried_code not in MOVED:
                retried, retried_code = error, code
        if retried is not None:
            self._again(retried_code, retried, request, now_ms)
            return
        calls, self._offsets = self._offsets, []
        for call in calls:
            call.finish()
        self._retries.succeeded()

    def on_ended(self, response: EndTxnResponse, where: str, now_ms: float) -> None:
        """Handles the response to EndTxn."""
        request = self._answered()
        assert isinstance(request, EndTxn)
        code = response.error_code
        if code == 0:
            self._retries.succeeded()
            self._markers_under_way = True
            self._ended_ms = now_ms
            self._end_sent = False
            self._has_parts = self._may_have_parts = False
            if request.protocol == SECOND:
                if response.producer_id >= 0:
                    self.producer_id, self.epoch = response.producer_id, response.producer_epoch
                self._must_bump = False
            else:
                self._last_protocol = FIRST
                self._must_bump |= self._unanswered and not request.commit
            if self._must_bump:
                # The transaction has no partitions any more; only InitProducerId remains.
                self.protocol = FIRST
                return
            self._ended()
            return
        error = self._error(code, "EndTxn" + ("(commit)" if request.commit else "(abort)"), where)
        if self._again(code, error, request, now_ms):
            # A coordinator that loses its role during the write returns NOT_COORDINATOR, and its successor
            # may find the end in the log.
            self.end_in_doubt = True
            return
        self._not_ended(request, code, error, now_ms)

    def _not_ended(self, request: EndTxn, code: int, error: errors.KafkaError, now_ms: float) -> None:
        second = request.protocol == SECOND
        age = self.age(now_ms)
        if request.commit and second and code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED):
            # The broker has aborted the transaction, or another producer has the id: EndTxn(abort) shows
            # which (KIP-890).
            self._end_sent = False
            said = errors.TransactionFailedError(f"{error}: {age}")
            said.__cause__ = error
            self._abortable(said)
        elif not second and code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED):
            # The same causes, but nothing shows which of the two.
            self._fatal(type(error)(f"{error.args[0]}: {age}"))
        elif isinstance(error, errors.AuthorizationError) and self.end_in_doubt:
            self._stay_in_doubt(error, now_ms)
        elif isinstance(error, errors.AuthorizationError) or (
            request.commit and code not in _FATAL and code != ErrorCode.INVALID_TXN_STATE
        ):
            self._end_sent = False
            self._give_up(request, code, error)
        elif (
            not request.commit and not second and code == ErrorCode.INVALID_TXN_STATE and not self._has_parts
        ):
            # It was not known whether the transaction contained anything. A new epoch ends it in any case. A
            # Produce request of the second protocol may have added nothing; if the level has dropped since,
            # the transaction is ended with the first protocol.
            self._end_sent = False
            self._may_have_parts = False
            self._must_bump = True
            self.protocol = FIRST
        else:
            self._fatal(error)

    def _stay_in_doubt(self, error: errors.KafkaError, now_ms: float) -> None:
        """Retries, because EndTxn may have been carried out, and the rights to find out are missing.

        The calls can't continue without the outcome:

            1. EndTxn(commit) is carried out, and its response is lost.
            2. The principal loses its rights, and FindCoordinator is denied.
            3. If this were an abortable error, the abort could not be allowed, because the end is in doubt.
        """
        self._retries.failed(error, now_ms)

    def _give_up(self, request: Request, code: int, error: errors.KafkaError) -> None:
        """Handles a request that was refused, and that a retry would not help."""
        if self.state is State.INITIALIZING and code not in FENCED:
            self._not_initialized(error)
        elif code in _FATAL:
            self._fatal(error)
        elif self.state is not State.ABORTING:
            self._abortable(error)
        elif not self._is_for_abort(request):
            # Sent before the abort began, so its outcome is irrelevant now.
            return
        elif isinstance(error, errors.AuthorizationError):
            self.cause = self.cause or error
            self._go(Event.NOT_ENDED)
            self._fail_calls(error)
        else:
            self._fatal(error)

    def _is_for_abort(self, request: Request) -> bool:
        """Whether an abort needs this request."""
        if isinstance(request, FindCoordinator):
            return request.kind == TRANSACTION
        if isinstance(request, InitProducerId):
            return self._must_bump
        return isinstance(request, EndTxn)

    def _error(self, code: int, what: str, where: str, message: str | None = None) -> errors.KafkaError:
        place = f"{what} for transactional id {self.transactional_id!r} at {where}"
        error = refusal(code, place, message, self.transactional_id)
        if isinstance(error, errors.InvalidTransactionTimeoutError):
            advice = (
                f"transaction_timeout_ms={self._timeout_ms:g}: lower it, or raise "
                "transaction.max.timeout.ms on the brokers"
            )
        elif code in _FORMER_MEMBER:
            advice = (
                "abort the transaction, let the consumer rejoin its group by polling, and read again from "
                "the committed offsets"
            )
        else:
            return error
        return type(error)(f"{error.args[0]}: {advice}")
