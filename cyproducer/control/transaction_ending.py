"""Ends a transaction by its identity alone: which request comes next, and what each response means.

Owns the order of the requests of one call of ``cyproducer.transactions.commit()`` or ``abort()``, and what
can be known of a transaction that others may have ended. Does not own connections or waiting
(``cyproducer.transactions``). Does no I/O and reads no clock. One thread at a time.

The rules
---------

EndTxn with (transactional id, producer id, epoch) ends a transaction, no matter which client sends it. Its
answer alone says little: NONE may come from an earlier EndTxn, and with the first protocol, whose epochs last
for many transactions, a late EndTxn ends the *next* transaction. So each attempt begins with
DescribeTransactions.

=============================  ====================================================================
the coordinator describes      then
=============================  ====================================================================
this identity, Ongoing         EndTxn. NONE: this call has ended it
this identity, Prepare... or   it was ended, by the first protocol: no EndTxn is sent
Complete...
this identity, Empty           nothing was written. With the second protocol, EndTxn(abort) takes the
                               epoch away from any producer that may still hold it
another identity               EndTxn, which cannot hit anything, since epochs never go back. NONE:
                               ended before, by the second protocol. INVALID_TXN_STATE in the
                               opposite state: ended the other way. PRODUCER_FENCED: the id was used
                               since, and it is not known how this transaction ended
TRANSACTIONAL_ID_NOT_FOUND     the id has expired, or never was
=============================  ====================================================================

Each failure begins a new attempt, with a new look. A lost response to EndTxn is such a failure: the next look
shows whether it took effect. Brokers before Kafka 3.0 have no DescribeTransactions: EndTxn is sent, and a
repeated one is not told from the first.

**The version of EndTxn** is that of the protocol by which the transaction was written, as its producer's
would be, so that both may end it. It is of the first protocol below level 2 of ``transaction.version``, which
the coordinator reports just before: a request of the second one at level 0 makes the id unusable.

**After the broker's timeout** the state is CompleteAbort with the next epoch. Newer brokers answer a commit
with PRODUCER_FENCED then (KAFKA-20785), but EndTxn(abort) with NONE: so that is asked.

**Fencing.** A writer that was not prepared goes on after an abort by the first protocol, in the same epoch:
its commit would show the second half of its records. With ``fence``, InitProducerId with the identity
follows. It aborts what the writer may have begun in between. It is not sent if the identity is not the id's
any more.

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
from cyproducer.wire.responses import (
    DescribeTransactionsResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    InitProducerIdResponse,
    TransactionDescription,
)

MARKERS_MS = 5.0
"""The first delay while a transaction is being completed, which takes milliseconds."""
DEFAULT_TIMEOUT_MS = 60000
"""The transaction timeout that InitProducerId sets if the one of the id is not known."""

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
"""The coordinator's names of states."""
OPEN_STATES = (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
"""The states in which readers of committed records wait for the transaction's end."""

_ENDED = {True: (PREPARE_COMMIT, COMPLETE_COMMIT), False: (PREPARE_ABORT, COMPLETE_ABORT)}
"""Committed or not -> the states of that."""


class Outcome(enum.Enum):
    """What has become of a transaction, as far as its coordinator knows.

    ``committed``: True, False, or None if there was nothing, or it is not known.
    """

    COMMITTED = "committed"
    """It was open, and is committed now."""
    ABORTED = "aborted"
    """It was open, and is aborted now."""
    COMMITTED_BEFORE = "committed_before"
    """It had already been committed."""
    ABORTED_BEFORE = "aborted_before"
    """It had already been aborted: by a call, by a producer that took its id over, or after its timeout."""
    EMPTY = "empty"
    """Nothing was written in it, so that there was nothing to end."""
    FENCED = "fenced"
    """Its transactional id was used since: whether it was committed or aborted is not known any more."""
    UNKNOWN_ID = "unknown_id"
    """Its transactional id has another producer id now, has expired, or never was. Not known any more."""

    @property
    def committed(self) -> bool | None:
        """True: its records are committed; False: they are aborted; None: there are none, or it is not
        known."""
        if self in (Outcome.COMMITTED, Outcome.COMMITTED_BEFORE):
            return True
        if self in (Outcome.ABORTED, Outcome.ABORTED_BEFORE):
            return False
        return None


class Ended(NamedTuple):
    """The answer of ``commit()`` and ``abort()``.

    ``next_producer_id`` and ``next_epoch``: the identity with which the transactional id's next transaction
    may begin without InitProducerId (KIP-890); None if the broker has not told.
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

    ``error`` is set if it has failed for good.
    """

    def __init__(self, transactional_id: str, backoff: ExponentialBackoff, rng: Callable[[], float]) -> None:
        """
        Args:
            transactional_id: whose coordinator answers.
            backoff: the delay after a failed request.
            rng: returns a float in [0, 1), for jitter.
        """
        self.transactional_id = transactional_id
        self.error: BaseException | None = None
        #: The node that coordinates the id; None: not known.
        self.coordinator: int | None = None
        markers = ExponentialBackoff(MARKERS_MS, max(MARKERS_MS, backoff.max_ms))
        self._retries = Retries(backoff, markers, rng)
        self._in_flight: Request | None = None

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return self.error is not None

    @property
    def name(self) -> str:
        """Says what this call does, for messages."""
        return f"description of transactional id {self.transactional_id!r}"

    def wait_ms(self, now_ms: float) -> float:
        """Returns the milliseconds until ``next_request`` is due; infinity if a response is awaited."""
        if self._in_flight is not None:
            return math.inf
        return max(0.0, self._retries.at_ms - now_ms)

    def next_request(self, now_ms: float) -> Request | None:
        """Returns the request to send now, and takes it for sent; None if none is due."""
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
        """Says what is being waited for, for messages."""
        request = self._in_flight
        if isinstance(request, FindCoordinator):
            doing = "looking for the coordinator"
        elif request is not None:
            doing = f"{type(request).__name__} is not answered yet by broker {self.coordinator}"
        else:
            doing = "waiting to try again"
        return self._retries.describe(doing)

    # Responses. ``where``: the broker that sent it.

    def on_no_response(self, error: BaseException, now_ms: float) -> None:
        """The request gets no response, or could not be sent: the coordinator is looked up anew."""
        self._in_flight = None
        self.coordinator = None
        self._again(error, now_ms)

    def on_failure(self, error: BaseException) -> None:
        """The request cannot be sent, and trying again would not help."""
        self._in_flight = None
        self.error = error

    def on_coordinator(self, response: FindCoordinatorResponse, where: str, now_ms: float) -> None:
        """The response to FindCoordinator."""
        self._in_flight = None
        if response.error_code:
            error = self._error(response.error_code, "FindCoordinator", where, response.error_message)
            self._try_again(response.error_code, error, now_ms)
            return
        self.coordinator = response.node_id

    def on_description(self, response: DescribeTransactionsResponse, where: str, now_ms: float) -> None:
        """The response to DescribeTransactions."""
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
        """The coordinator's view of the transactional id."""

    # Failures

    def _try_again(self, code: int, error: errors.KafkaError, now_ms: float) -> None:
        """Tries again if that may help."""
        if code in MOVED:
            self.coordinator = None
        elif not (error.retriable or code == ErrorCode.UNKNOWN):
            self.error = error
            return
        self._again(error, now_ms)

    def _again(self, error: BaseException, now_ms: float) -> None:
        """Begins a new attempt, after a while."""
        self._retries.failed(error, now_ms, isinstance(error, errors.ConcurrentTransactionsError))

    def _error(self, code: int, what: str, where: str, message: str | None = None) -> errors.KafkaError:
        return refusal(code, f"{what} for transactional id {self.transactional_id!r} at {where}", message)


class Describing(CoordinatorCall):
    """A call that describes a transactional id. ``result`` or ``error`` is set when it is done."""

    result: TransactionDescription | None = None

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return self.result is not None or self.error is not None

    def _described(self, found: TransactionDescription, where: str, now_ms: float) -> None:
        self.result = found


class Ending(CoordinatorCall):
    """A call that ends a transaction. See the rules in the module's docstring.

    ``result`` or ``error`` is set when it is done.
    """

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
            transaction: what to end; ``offsets`` are not looked at.
            commit: whether to commit it, or to abort it.
            fence: whether to end the epoch after an abort by the first protocol.
            backoff: the delay after a failed request.
            rng: returns a float in [0, 1), for jitter.
            start_time_ms: when it began, as its coordinator has described it before; None: not known. Tells
                it from the next transaction of the first protocol, which has the same identity.
        """
        super().__init__(transaction.transactional_id, backoff, rng)
        self.transaction = transaction
        self.commit = commit
        self.result: Ended | None = None
        #: The transaction timeout that InitProducerId leaves as it is.
        self.timeout_ms = DEFAULT_TIMEOUT_MS
        self._fence = fence
        self._start_time_ms = start_time_ms
        # What this attempt knows.
        self._description: TransactionDescription | None = None
        self._level: int | None = None
        self._probing = False
        # What the call knows.
        self._describable = True
        self._was_open = False
        self._was_empty = False
        self._end_sent = False
        # The result, once only the fencing is left.
        self._before_fence: Ended | None = None
        if transaction.empty:
            self.result = Ended(Outcome.EMPTY, transaction.transactional_id)

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return self.result is not None or self.error is not None

    @property
    def name(self) -> str:
        """Says what this call does, for messages."""
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
        """Says what is being waited for, for messages."""
        doubt = "; it may be done: call again to learn the outcome" if self._end_sent else ""
        return super().describe() + doubt

    # Responses

    def on_failure(self, error: BaseException) -> None:
        """The request cannot be sent, and trying again would not help."""
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
        elif own and found.state in _ENDED[True]:
            self._settle(True)
        elif own and found.state in _ENDED[False]:
            self._settle(False)
        elif own:
            # The broker is about to abort it.
            error = self._error(ErrorCode.CONCURRENT_TRANSACTIONS, f"the state is {found.state}", where)
            self._again(error, now_ms)

    def _is_own(self, found: TransactionDescription) -> bool:
        identity = self.transaction.producer_id, self.transaction.epoch
        return (found.producer_id, found.producer_epoch) == identity

    def _settle(self, committed: bool) -> None:
        """The transaction was ended by the first protocol, which leaves it its identity."""
        self._conclude(committed, by_this_call=self._end_sent and self._was_open)

    def _conclude(
        self, committed: bool, *, by_this_call: bool, following: tuple[int, int] | None = None
    ) -> None:
        if by_this_call and committed == self.commit:
            outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
        else:
            outcome = Outcome.COMMITTED_BEFORE if committed else Outcome.ABORTED_BEFORE
        self._finish(outcome, following)

    def on_level(self, level: int) -> None:
        """The coordinator has told the finalized level of ``transaction.version``."""
        self._in_flight = None
        self._level = level
        found = self._description
        if found is not None and self._is_own(found) and found.state == EMPTY and self._protocol() == FIRST:
            # EndTxn of the first protocol would be refused.
            self._finish(Outcome.EMPTY)

    def on_ended(self, response: EndTxnResponse, where: str, now_ms: float) -> None:
        """The response to EndTxn."""
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
                # It was ended, or the id was taken over, since it was described.
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
        """The response to InitProducerId."""
        self._in_flight = None
        assert self._before_fence is not None
        code = response.error_code
        if code == 0:
            self.result = self._before_fence._replace(
                next_producer_id=response.producer_id, next_epoch=response.producer_epoch
            )
        elif code in FENCED:
            # Somebody was faster.
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
            # The id may have been taken over meanwhile.
            self._description = None
            return
        self.result = result

    def _again(self, error: BaseException, now_ms: float) -> None:
        self._description = None
        self._level = None
        self._probing = False
        super()._again(error, now_ms)


class EndingIdentity(Ending):
    """A call that ends an identity of the second protocol, whether a transaction is open under it or not.

    EndTxn(abort) of version 5 bumps the epoch even if nothing was written (KIP-890), so the identity is a
    lock: of a commit and this, one succeeds. ``ended`` says whether it was this one.
    """

    ended = False

    def _due(self) -> Request:
        self._end_sent = True
        return EndTxn(False, SECOND)

    def on_ended(self, response: EndTxnResponse, where: str, now_ms: float) -> None:
        """The response to EndTxn."""
        self._in_flight = None
        code = response.error_code
        if code == 0:
            self.ended = True
            self._finish(Outcome.ABORTED, (response.producer_id, response.producer_epoch))
        elif code in FENCED or code == ErrorCode.INVALID_TXN_STATE:
            self._finish(Outcome.FENCED)
        else:
            self._try_again(code, self._error(code, "EndTxn(abort)", where), now_ms)
