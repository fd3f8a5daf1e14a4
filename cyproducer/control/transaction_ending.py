"""Ends a transaction by its identity alone: which request is next, and what each response means.

Owns the order of the requests of one call of ``cyproducer.transactions.commit()`` or ``abort()``, and the
conclusions about a transaction that another client may have ended. Does not own connections or waiting
(``cyproducer.transactions``). Does no I/O and reads no clock. One thread at a time.

The rules
---------

EndTxn with (transactional id, producer id, epoch) ends a transaction, no matter which client sends it. Its
response alone is not conclusive: NONE may be due to an earlier EndTxn, and with the first protocol, whose
epochs last for many transactions, a late EndTxn ends the *next* transaction. So each attempt begins with
DescribeTransactions.

=============================  ====================================================================
the coordinator describes      then
=============================  ====================================================================
this identity, Ongoing         EndTxn. NONE: this call has ended it
this identity, Prepare... or   it was ended, by the first protocol: no EndTxn is sent
Complete...
this identity, Empty           nothing was written. With the second protocol, EndTxn(abort) revokes the
                               epoch from any producer that may still have it
another identity               EndTxn, which can't affect any transaction, as epochs never decrease.
                               NONE: ended before, by the second protocol. INVALID_TXN_STATE in the
                               opposite state: ended the other way. PRODUCER_FENCED: the id was used
                               since, and it is not known how this transaction ended
TRANSACTIONAL_ID_NOT_FOUND     the id has expired, or never existed
=============================  ====================================================================

Each failure begins a new attempt, with a new DescribeTransactions. A lost response to EndTxn is such a
failure: the next description shows whether EndTxn took effect. Brokers before Kafka 3.0 have no
DescribeTransactions: EndTxn is sent, and a repeated EndTxn can't be distinguished from the first.

**The version of EndTxn** belongs to the protocol with which the transaction was written, as it would if its
producer sent EndTxn, so that both can end it. Below level 2 of ``transaction.version``, which the coordinator
reports just before, the version is one of the first protocol: a request of the second protocol at level 0
makes the id unusable.

**After the broker's timeout**, the state is CompleteAbort with the next epoch. In this state, newer brokers
answer a commit with PRODUCER_FENCED (KAFKA-20785), but EndTxn(abort) with NONE. So EndTxn(abort) is sent to
find out.

**Fencing.** After an abort by the first protocol, a writer that was not prepared continues in the same epoch:
its commit would expose the second half of its records. With ``fence``, InitProducerId with the identity
follows, and aborts a transaction that the writer may have begun in between. It is not sent if the
transactional id has another identity by then.

Sources: KIP-98, KIP-360, KIP-664, KIP-890; Kafka protocol guide.
"""

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from cyproducer import errors
from cyproducer.control.coordinator import MOVED, Retries, refusal
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.control.transaction_machine import FENCED
from cyproducer.control.transaction_requests import (
    FIRST,
    SECOND,
    TRANSACTION,
    AskLevel,
    EndTxn,
    FindCoordinator,
    InitProducerId,
)
from cyproducer.errors.error_code import ErrorCode
from cyproducer.structs import PreparedTransaction
from cyproducer.wire.responses import InitProducerIdResponse
from cyproducer.wire.transaction_api import (
    DescribeTransactionsResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    TransactionDescription,
)

MARKERS_MS = 5.0
"""The first delay while a transaction is being completed, which takes milliseconds."""
DEFAULT_TIMEOUT_MS = 60000
"""The transaction timeout that InitProducerId sets if the timeout of the id is not known."""

EMPTY, ONGOING = "Empty", "Ongoing"
PREPARE_COMMIT, PREPARE_ABORT = "PrepareCommit", "PrepareAbort"
COMPLETE_COMMIT, COMPLETE_ABORT = "CompleteCommit", "CompleteAbort"
STATES = (
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    PREPARE_ABORT,
    COMPLETE_COMMIT,
    COMPLETE_ABORT,
    "PrepareEpochFence",
    "Dead",
)
"""The coordinator's names for the states."""
OPEN_STATES = (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
"""The states in which readers of committed records wait for the transaction's end."""

_ENDED = {True: (PREPARE_COMMIT, COMPLETE_COMMIT), False: (PREPARE_ABORT, COMPLETE_ABORT)}
"""Whether committed -> the states of such a transaction."""


class Outcome(enum.Enum):
    """The outcome of a transaction, as far as its coordinator knows.

    ``committed``: True, False, or None if there were no records, or if the outcome is not known.
    """

    COMMITTED = "committed"
    """It was open, and is committed now."""
    ABORTED = "aborted"
    """It was open, and is aborted now."""
    COMMITTED_BEFORE = "committed_before"
    """It had already been committed."""
    ABORTED_BEFORE = "aborted_before"
    """It had already been aborted: by a call, by a producer that took over its id, or after its timeout."""
    EMPTY = "empty"
    """Nothing was written in it, so that there was nothing to end."""
    FENCED = "fenced"
    """Its transactional id was used since: whether it was committed or aborted is no longer known."""
    UNKNOWN_ID = "unknown_id"
    """Its transactional id now has another producer id, has expired, or never existed: no longer known."""

    @property
    def committed(self) -> bool | None:
        """True: its records are committed; False: they are aborted; None: there are none, or the outcome is
        not known."""
        if self in (Outcome.COMMITTED, Outcome.COMMITTED_BEFORE):
            return True
        if self in (Outcome.ABORTED, Outcome.ABORTED_BEFORE):
            return False
        return None


class Ended(NamedTuple):
    """The result of ``commit()`` and ``abort()``.

    ``next_producer_id`` and ``next_epoch``: the identity with which the transactional id's next transaction
    can begin without InitProducerId (KIP-890); None if the broker has not returned it.
    """

    outcome: Outcome
    transactional_id: str
    next_producer_id: int | None = None
    next_epoch: int | None = None


class Describe(NamedTuple):
    """DescribeTransactions."""


Request = FindCoordinator | Describe | AskLevel | EndTxn | InitProducerId


class CoordinatorCall(ABC):
    """A request to the coordinator of one transactional id, retried until it succeeds or fails for good.

    Once it is done, ``result`` is set, or ``error`` if it has failed for good.
    """

    result: object = None

    def __init__(self, transactional_id: str, backoff: ExponentialBackoff, rng: Callable[[], float]) -> None:
        """
        Args:
            transactional_id: the id whose coordinator is requested.
            backoff: the delay after a failed request.
            rng: returns a float in [0, 1), for jitter.
        """
        self.transactional_id = transactional_id
        self.error: BaseException | None = None
        #: The node id of the coordinator; None: not known.
        self.coordinator: int | None = None
        markers = ExponentialBackoff(MARKERS_MS, max(MARKERS_MS, backoff.max_ms))
        self._retries = Retries(backoff, markers, rng)
        self._in_flight: Request | None = None

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return self.result is not None or self.error is not None

    @property
    def name(self) -> str:
        """Describes this call, for messages."""
        return f"description of transactional id {self.transactional_id!r}"

    def wait_ms(self, now_ms: float) -> float:
        """Returns the milliseconds until ``next_request`` is due; infinity if a response is awaited."""
        if self._in_flight is not None:
            return math.inf
        return max(0.0, self._retries.at_ms - now_ms)

    def next_request(self, now_ms: float) -> Request | None:
        """Returns the request to send now, and marks it as in flight; None if none is due."""
        if self.done or self._in_flight is not None or now_ms < self._retries.at_ms:
            return None
        if self.coordinator is None:
            self._in_flight = FindCoordinator(TRANSACTION, self.transactional_id)
        else:
            self._in_flight = self._due()
        return self._in_flight

    def _due(self) -> Request:
        return Describe()

    def describe(self) -> str:
        """Describes the pending operation, for messages."""
        request = self._in_flight
        if isinstance(request, FindCoordinator):
            doing = "looking for the coordinator"
        elif request is not None:
            doing = f"{type(request).__name__} is not answered yet by broker {self.coordinator}"
        else:
            doing = "waiting to try again"
        return self._retries.describe(doing)

    # Responses. ``where``: the broker that sent the response.

    def on_no_response(self, error: BaseException, now_ms: float) -> None:
        """Handles a request that got no response or was not sent: the coordinator is looked up again."""
        self._in_flight = None
        self.coordinator = None
        self._again(error, now_ms)

    def on_failure(self, error: BaseException) -> None:
        """Handles a request that can't be sent, and that a retry would not help."""
        self._in_flight = None
        self.error = error

    def on_coordinator(self, response: FindCoordinatorResponse, where: str, now_ms: float) -> None:
        """Handles the response to FindCoordinator."""
        self._in_flight = None
        if response.error_code:
            error = self._error(response.error_code, "FindCoordinator", where, response.error_message)
            self._try_again(response.error_code, error, now_ms)
            return
        self.coordinator = response.node_id

    def on_description(self, response: DescribeTransactionsResponse, where: str, now_ms: float) -> None:
        """Handles the response to DescribeTransactions."""
        self._in_flight = None
        name = self.transactional_id
        found = next((each for each in response.transactions if each.transactional_id == name), None)
        code = ErrorCode.UNKNOWN if found is None else found.error_code
        if found is None or code:
            self._not_described(code, self._error(code, "DescribeTransactions", where), now_ms)
        else:
            self._described(found, where, now_ms)

    def _not_described(self, code: int, error: errors.KafkaError, now_ms: float) -> None:
        self._try_again(code, error, now_ms)

    @abstractmethod
    def _described(self, found: TransactionDescription, where: str, now_ms: float) -> None:
        """Handles the coordinator's description of the transactional id."""

    # Failures

    def _try_again(self, code: int, error: errors.KafkaError, now_ms: float) -> None:
        """Retries if the error may be temporary; otherwise fails the call."""
        if code in MOVED:
            self.coordinator = None
        elif not (error.retriable or code == ErrorCode.UNKNOWN):
            self.error = error
            return
        self._again(error, now_ms)

    def _again(self, error: BaseException, now_ms: float) -> None:
        """Begins a new attempt after a backoff."""
        self._retries.failed(error, now_ms, isinstance(error, errors.ConcurrentTransactionsError))

    def _error(self, code: int, what: str, where: str, message: str | None = None) -> errors.KafkaError:
        return refusal(code, f"{what} for transactional id {self.transactional_id!r} at {where}", message)


class Describing(CoordinatorCall):
    """A call that describes a transactional id."""

    result: TransactionDescription | None = None

    def _described(self, found: TransactionDescription, where: str, now_ms: float) -> None:
        self.result = found


class Ending(CoordinatorCall):
    """A call that ends a transaction. See the rules in the module's docstring."""

    result: Ended | None = None

    def __init__(
        self,
        transaction: PreparedTransaction,
        commit: bool,
        fence: bool,
        backoff: ExponentialBackoff,
        rng: Callable[[], float],
        start_time_ms: int | None = None,
    ) -> None:
        """
        Args:
            transaction: the transaction to end; its ``offsets`` are ignored.
            commit: True to commit the transaction, False to abort it.
            fence: whether to end the epoch after an abort by the first protocol.
            backoff: the delay after a failed request.
            rng: returns a float in [0, 1), for jitter.
            start_time_ms: when the transaction began, from an earlier description by its coordinator; None:
                not known. Distinguishes the transaction from the next one of the first protocol, which has
                the same identity.
        """
        super().__init__(transaction.transactional_id, backoff, rng)
        self.transaction = transaction
        self.commit = commit
        #: The id's transaction timeout, which InitProducerId must not change.
        self.timeout_ms = DEFAULT_TIMEOUT_MS
        self._fence = fence
        self._start_time_ms = start_time_ms
        # The knowledge of this attempt.
        self._description: TransactionDescription | None = None
        self._level: int | None = None
        self._probing = False
        # The knowledge of the whole call.
        self._describable = True
        self._was_open = False
        self._was_empty = False
        self._end_sent = False
        # The result, once only fencing remains.
        self._before_fence: Ended | None = None
        if transaction.empty:
            self.result = Ended(Outcome.EMPTY, transaction.transactional_id)

    @property
    def name(self) -> str:
        """Describes this call, for messages."""
        what, (_, producer_id, epoch, *_) = "commit" if self.commit else "abort", self.transaction
        return f"{what} of transactional id {self.transactional_id!r} ({producer_id=}, {epoch=})"

    def _due(self) -> Request:
        if self._describable and self._description is None:
            return Describe()
        if self._before_fence is not None:
            return InitProducerId(self.transaction.producer_id, self.transaction.epoch)
        if self._level is None:
            return AskLevel()
        self._end_sent = True
        return EndTxn(self.commit and not self._probing, self._protocol())

    def _protocol(self) -> int:
        assert self._level is not None
        return self.transaction.protocol if self._level >= SECOND else FIRST

    def describe(self) -> str:
        """Describes the pending operation, for messages."""
        doubt = "; it may be done: call again to learn the outcome" if self._end_sent else ""
        return super().describe() + doubt

    # Responses

    def on_failure(self, error: BaseException) -> None:
        """Handles a request that can't be sent, and that a retry would not help."""
        request = self._in_flight
        if isinstance(error, errors.UnsupportedVersionError) and isinstance(request, Describe | AskLevel):
            self._in_flight = None
            if isinstance(request, Describe):
                self._describable = False
            else:
                self._level = 0
            return
        super().on_failure(error)

    def _not_described(self, code: int, error: errors.KafkaError, now_ms: float) -> None:
        if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            self._finish(Outcome.UNKNOWN_ID)
        else:
            self._try_again(code, error, now_ms)

    def _described(self, found: TransactionDescription, where: str, now_ms: float) -> None:
        self._description = found
        self.timeout_ms = found.timeout_ms
        own = self._is_own(found)
        if self._before_fence is not None:
            if not own:
                # The epoch was already bumped, possibly by an earlier InitProducerId of this call.
                self.result = self._before_fence
        elif own and found.state == ONGOING:
            if self._start_time_ms not in (None, found.start_time_ms):
                self._finish(Outcome.FENCED)
            self._was_open, self._was_empty = True, False
        elif own and found.state == EMPTY:
            self._was_empty = True
            if self.commit:
                self._finish(Outcome.EMPTY)
        elif own and found.state in (*_ENDED[True], *_ENDED[False]):
            # It was ended by the first protocol, which does not change its identity.
            by_this_call = self._end_sent and self._was_open
            self._conclude(found.state in _ENDED[True], by_this_call=by_this_call)
        elif own:
            # The broker is about to abort the transaction.
            error = self._error(ErrorCode.CONCURRENT_TRANSACTIONS, f"the state is {found.state}", where)
            self._again(error, now_ms)

    def _is_own(self, found: TransactionDescription) -> bool:
        identity = self.transaction.producer_id, self.transaction.epoch
        return (found.producer_id, found.producer_epoch) == identity

    def _conclude(
        self, committed: bool, *, by_this_call: bool, following: tuple[int, int] | None = None
    ) -> None:
        if by_this_call and committed == self.commit:
            outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
        else:
            outcome = Outcome.COMMITTED_BEFORE if committed else Outcome.ABORTED_BEFORE
        self._finish(outcome, following)

    def on_level(self, level: int) -> None:
        """Handles the finalized level of ``transaction.version`` that the coordinator has reported."""
        self._in_flight = None
        self._level = level
        found = self._description
        if found is not None and self._is_own(found) and found.state == EMPTY and self._protocol() == FIRST:
            # The coordinator would refuse EndTxn of the first protocol.
            self._finish(Outcome.EMPTY)

    def on_ended(self, response: EndTxnResponse, where: str, now_ms: float) -> None:
        """Handles the response to EndTxn."""
        request, self._in_flight = self._in_flight, None
        assert isinstance(request, EndTxn)
        code = response.error_code
        if code == 0:
            self._on_done(response)
            return
        found = self._description
        error = self._error(code, f"EndTxn({'commit' if request.commit else 'abort'})", where)
        if code not in FENCED and code != ErrorCode.INVALID_TXN_STATE:
            self._try_again(code, error, now_ms)
        elif found is not None and self._is_own(found):
            if found.state == EMPTY and code == ErrorCode.INVALID_TXN_STATE:
                self._finish(Outcome.EMPTY)
            else:
                # Since the description, the transaction was ended, or the id was taken over.
                self._again(error, now_ms)
        elif code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            self._finish(Outcome.UNKNOWN_ID)
        elif code == ErrorCode.INVALID_TXN_STATE and not self._probing:
            if found is None or found.state in _ENDED[not self.commit]:
                self._conclude(not self.commit, by_this_call=False)
            else:
                self._finish(Outcome.FENCED)
        elif self._may_have_timed_out(request):
            self._probing = True
        else:
            self._finish(Outcome.FENCED)

    def _on_done(self, response: EndTxnResponse) -> None:
        following = (response.producer_id, response.producer_epoch) if response.producer_id >= 0 else None
        found = self._description
        if self._probing:
            self._conclude(False, by_this_call=False, following=following)
        elif self._was_empty:
            self._finish(Outcome.EMPTY, following)
        else:
            self._conclude(self.commit, by_this_call=found is None or self._was_open, following=following)

    def _may_have_timed_out(self, request: EndTxn) -> bool:
        found, transaction = self._description, self.transaction
        return (
            request.commit
            and request.protocol == SECOND
            and found is not None
            and found.producer_id == transaction.producer_id
            and found.producer_epoch == transaction.epoch + 1
            and found.state in _ENDED[False]
        )

    def on_fenced(self, response: InitProducerIdResponse, where: str, now_ms: float) -> None:
        """Handles the response to InitProducerId."""
        self._in_flight = None
        assert self._before_fence is not None
        code = response.error_code
        if code == 0:
            self.result = self._before_fence._replace(
                next_producer_id=response.producer_id, next_epoch=response.producer_epoch
            )
        elif code in FENCED:
            # Another client was faster.
            self.result = self._before_fence
        else:
            self._try_again(code, self._error(code, "InitProducerId", where), now_ms)

    # Ends

    def _finish(self, outcome: Outcome, following: tuple[int, int] | None = None) -> None:
        producer_id, epoch = following or (None, None)
        result = Ended(outcome, self.transaction.transactional_id, producer_id, epoch)
        found = self._description
        if (
            self._fence
            and following is None
            and outcome in (Outcome.ABORTED, Outcome.ABORTED_BEFORE, Outcome.EMPTY)
            and (found is None or self._is_own(found))
        ):
            self._before_fence = result
            # The id may have been taken over in the meantime.
            self._description = None
            return
        self.result = result

    def _again(self, error: BaseException, now_ms: float) -> None:
        self._description = None
        self._level = None
        self._probing = False
        super()._again(error, now_ms)


class EndingIdentity(Ending):
    """A call that ends an identity of the second protocol, whether or not a transaction is open under it.

    EndTxn(abort) of version 5 bumps the epoch even if nothing was written (KIP-890), so the identity acts as
    a lock: of a commit and this call, only one succeeds. ``ended``: whether this call succeeded.
    """

    ended = False

    def _due(self) -> Request:
        self._end_sent = True
        return EndTxn(False, SECOND)

    def on_ended(self, response: EndTxnResponse, where: str, now_ms: float) -> None:
        """Handles the response to EndTxn."""
        self._in_flight = None
        code = response.error_code
        if code == 0:
            self.ended = True
            self._finish(Outcome.ABORTED, (response.producer_id, response.producer_epoch))
        elif code in FENCED or code == ErrorCode.INVALID_TXN_STATE:
            self._finish(Outcome.FENCED)
        else:
            self._try_again(code, self._error(code, "EndTxn(abort)", where), now_ms)
