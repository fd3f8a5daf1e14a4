"""The fate of a batch after every kind of failure, without a network and without a clock."""

import logging
import math
import re
from typing import cast

import pytest

from cyproducer.control.batch_fate import Decision, Failure, FatePolicy
from cyproducer.control.idempotence import Action, BatchFacts, Fate, Idempotence, Order
from cyproducer.control.log_limit import LogLimit
from cyproducer.control.metadata import ClusterMetadata
from cyproducer.control.retry import MARKERS_LAST_MS, ExponentialBackoff, RetryPolicy
from cyproducer.control.transaction_calls import Event as Calls
from cyproducer.control.transaction_calls import State
from cyproducer.control.transaction_requests import FIRST, SECOND, EndTxn, InitProducerId
from cyproducer.errors import (
    DeliveryTimeoutError,
    KafkaConnectionError,
    KafkaProtocolError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    ProducerClosedError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
)
from cyproducer.structs import TopicPartition
from tests.control.coordinator_play import Play

NOW_MS = 1_000_000.0
NOT_LEADER, TIMED_OUT, TOO_LARGE, UNAUTHORIZED, INVALID_RECORD = 6, 7, 10, 29, 87
OUT_OF_ORDER, DUPLICATE, FENCED = 45, 46, 90
STALE_EPOCH, INVALID_MAPPING, CONCURRENT, UNSUPPORTED = 47, 49, 51, 35


class KnownMetadata:
    """The cluster metadata that the policy uses."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.leader_id: int | None = 3
        self.gone = False

    def request_update(self, reason: str) -> None:
        self.reasons.append(reason)

    def leader(self, topic: str, partition: int) -> int | None:
        return self.leader_id

    def partition_count(self, topic: str) -> int | None:
        return 2

    def is_gone(self, topic: str, partition: int) -> bool:
        return self.gone


class Case:
    """A policy, and batches of partition t-1 for it."""

    def __init__(self, retries: float = math.inf, transactional: bool = False) -> None:
        self.metadata = KnownMetadata()
        self.idempotence = Idempotence(transactional)
        self.logged: list[tuple[int, str]] = []
        self.policy = FatePolicy(
            RetryPolicy(retries, 10_000, ExponentialBackoff(100, 100, jitter=0)),
            self.idempotence,
            cast(ClusterMetadata, self.metadata),
            LogLimit(lambda level, text, *args: self.logged.append((level, text % args))),
            lambda: 0.5,
            lambda known: f"diagnosis, {known or 'nothing known'}",
        )

    def identify(self) -> None:
        self.idempotence.want()
        self.idempotence.granted(7, 4)

    @staticmethod
    def batch(**facts: object) -> BatchFacts:
        plain = BatchFacts("t", 1, 50, 3, 1, NOW_MS - 1000, False, True, False, False, 300)
        return plain._replace(**facts)  # type: ignore[arg-type]

    def decide(self, code: int = 0, written: bool = True, **facts: object) -> Decision:
        cause = None if code else KafkaConnectionError("the connection broke")
        return self.policy.decide(self.batch(**facts), Failure(code, None, cause), written, NOW_MS)


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_retriable_error_is_retried_after_the_backoff(case: Case) -> None:
    verdict, orders = case.decide(TIMED_OUT)
    assert (verdict.fate, verdict.at_ms, verdict.maybe_written) == (Fate.RETRY, NOW_MS + 100, True)
    assert orders == ()
    assert case.logged == [
        (
            logging.WARNING,
            "3 records for t-1: [Error 7] RequestTimedOutError: t-1 (the broker could not finish the request "
            "within the time the request allowed); attempt 2 in 100 ms",
        )
    ]
    assert case.metadata.reasons == []


def test_a_new_leader_that_the_response_named_is_used_without_backoff(case: Case) -> None:
    assert case.decide(NOT_LEADER).verdict.at_ms == NOW_MS + 100
    assert case.metadata.reasons == ["t-1: NotLeaderForPartitionError"]
    case.policy.new_leaders.add(("t", 1))
    assert case.decide(NOT_LEADER).verdict.at_ms == NOW_MS
    assert case.decide(NOT_LEADER).verdict.at_ms == NOW_MS + 100, "a name is good for one batch"


@pytest.mark.parametrize(("written", "maybe"), [(True, True), (False, False)])
def test_after_a_broken_connection_a_completely_written_request_is_ambiguous(
    case: Case, written: bool, maybe: bool
) -> None:
    verdict, _ = case.decide(0, written)
    assert (verdict.fate, verdict.maybe_written) == (Fate.RETRY, maybe)


def test_a_final_error_fails_the_batch_with_the_brokers_error(case: Case) -> None:
    verdict, orders = case.policy.decide(
        case.batch(), Failure(UNAUTHORIZED, "go away"), written=True, now_ms=NOW_MS
    )
    assert (verdict.fate, verdict.maybe_written, orders) == (Fate.FAIL, False, ())
    assert isinstance(verdict.error, TopicAuthorizationFailedError)
    assert "t-1: go away" in str(verdict.error)
    assert verdict.error.maybe_written is False
    ((level, line),) = case.logged
    assert level == logging.ERROR
    assert line.startswith("3 records for t-1 failed: ")
    assert line.endswith("; they were not written")


def test_a_malformed_response_is_retried_although_its_error_is_not_retriable(case: Case) -> None:
    assert not getattr(KafkaProtocolError("malformed"), "retriable", False)
    failure = Failure(cause=KafkaProtocolError("malformed"))
    assert case.policy.decide(case.batch(), failure, True, NOW_MS).verdict.fate is Fate.RETRY


def test_a_refused_authentication_that_ended_the_connection_does_not_fail_its_batches(case: Case) -> None:
    """The credentials for a renewal did not come before the session ended, with requests in flight."""
    failure = Failure(cause=SaslAuthenticationFailedError("b1:9092: the vault is closed"))
    assert case.policy.decide(case.batch(), failure, True, NOW_MS).verdict.fate is Fate.RETRY
    closed = Failure(cause=ProducerClosedError("the producer was closed"))
    assert case.policy.decide(case.batch(), closed, True, NOW_MS).verdict.fate is Fate.FAIL


def test_retries_end_with_the_last_error() -> None:
    case = Case(retries=2)
    assert case.decide(TIMED_OUT, attempts=2).verdict.fate is Fate.RETRY
    verdict, _ = case.decide(TIMED_OUT, attempts=3)
    assert verdict.fate is Fate.FAIL
    assert isinstance(verdict.error, RequestTimedOutError)
    assert verdict.error.maybe_written is True


def test_a_retry_after_the_deadline_is_a_timeout_with_a_cause(case: Case) -> None:
    verdict, _ = case.decide(TIMED_OUT, created_ms=NOW_MS - 9_950)
    assert verdict.fate is Fate.FAIL
    error = verdict.error
    assert isinstance(error, DeliveryTimeoutError)
    assert isinstance(error.__cause__, RequestTimedOutError)
    assert "delivery_timeout_ms=10000 (9950 ms old, 1 requests tried, its leader is broker 3; " in str(error)
    assert "they may have been written): diagnosis, the partition's last request failed with" in str(error)


def test_the_cause_of_a_timeout_is_no_older_than_the_batch(case: Case) -> None:
    case.decide(TIMED_OUT)
    verdict, _ = case.policy.expire(case.batch(created_ms=NOW_MS + 1), on_wire=False, now_ms=NOW_MS + 10_001)
    assert verdict.error is not None
    assert verdict.error.__cause__ is None
    assert "diagnosis, nothing known" in str(verdict.error)


def test_a_batch_without_a_leader_says_so(case: Case) -> None:
    case.metadata.leader_id = None
    assert "it has no known leader" in str(case.policy.expire(case.batch(), False, NOW_MS).verdict.error)


def test_a_too_large_batch_is_split_while_that_is_possible_and_safe(case: Case) -> None:
    assert case.decide(TOO_LARGE).verdict.fate is Fate.SPLIT
    verdict, _ = case.decide(TOO_LARGE, ambiguous=True)
    assert verdict.fate is Fate.FAIL, "the batch may be in the log under other sequences"
    verdict, _ = case.decide(TOO_LARGE, records=1)
    assert verdict.fate is Fate.FAIL
    assert isinstance(verdict.error, MessageSizeTooLargeError)
    assert "t-1: 1 record in a batch of 300 bytes" in str(verdict.error)


def test_records_that_the_broker_named_are_excluded(case: Case) -> None:
    assert case.decide(INVALID_RECORD, culprits=1).verdict.fate is Fate.EXCLUDE
    ((level, line),) = case.logged
    assert level == logging.ERROR
    assert line.startswith("t-1: 1 of 3 records fail: ")
    assert case.decide(INVALID_RECORD).verdict.fate is Fate.FAIL, "none was named"
    assert case.decide(INVALID_RECORD, culprits=1, ambiguous=True).verdict.fate is Fate.FAIL


def test_a_partition_that_no_longer_exists_fails_its_batches(case: Case) -> None:
    case.metadata.gone = True
    verdict, _ = case.decide(NOT_LEADER)
    assert verdict.fate is Fate.FAIL
    assert isinstance(verdict.error, UnknownTopicOrPartitionError)
    assert "t-1 no longer exists: the topic was recreated with 2 partitions" in str(verdict.error)
    verdict, orders = case.policy.partition_removed(case.batch(), NOW_MS)
    assert isinstance(verdict.error, UnknownTopicOrPartitionError)
    assert (verdict.fate, orders) == (Fate.FAIL, ())


def test_an_abandoned_batch_fails_with_any_error(case: Case) -> None:
    verdict, _ = case.decide(NOT_LEADER, abandoned=True)
    assert verdict.fate is Fate.FAIL
    assert isinstance(verdict.error, NotLeaderForPartitionError)
    assert case.logged == [], "its records have failed before"


def test_a_duplicate_is_acknowledged(case: Case) -> None:
    case.identify()
    assert case.decide(DUPLICATE, sequenced=True).verdict.fate is Fate.ACKNOWLEDGE


def test_giving_up_a_batch_holds_back_its_partition(case: Case) -> None:
    case.identify()
    absent = case.decide(UNAUTHORIZED, sequenced=True)
    assert absent.orders == (Order(Action.HOLD_ALL),)
    other = Case()
    other.identify()
    lost = other.policy.expire(other.batch(sequenced=True, ambiguous=True), on_wire=False, now_ms=NOW_MS)
    assert lost.verdict.maybe_written
    assert lost.orders == (Order(Action.HOLD_NEW),)


def test_a_batch_on_the_wire_that_expires_keeps_its_sequences(case: Case) -> None:
    case.identify()
    decision = case.policy.expire(case.batch(sequenced=True), on_wire=True, now_ms=NOW_MS)
    assert decision.verdict.maybe_written
    assert decision.orders == ()


def test_a_batch_that_the_program_gives_up_fails_with_the_given_error(case: Case) -> None:
    case.identify()
    given = KafkaProtocolError("given up")
    on_wire = case.policy.purge(case.batch(sequenced=True), on_wire=True, error=given)
    assert (on_wire.verdict.fate, on_wire.verdict.maybe_written, on_wire.orders) == (Fate.FAIL, True, ())
    assert on_wire.verdict.error == given
    assert on_wire.verdict.error is not given
    assert getattr(on_wire.verdict.error, "maybe_written", None) is True
    queued = case.policy.purge(case.batch(), on_wire=False, error=given)
    assert getattr(queued.verdict.error, "maybe_written", None) is False
    lost = case.policy.purge(case.batch(sequenced=True, ambiguous=True), on_wire=False, error=given)
    assert lost.verdict.maybe_written
    assert lost.orders == (Order(Action.HOLD_NEW),)


def test_a_fenced_identity_is_forgotten(case: Case) -> None:
    case.identify()
    assert case.policy.identity == (7, 4)
    decision = case.decide(FENCED, sequenced=True)
    assert decision.orders[-1] == Order(Action.FORGET_ID)
    assert case.policy.identity == (-1, -1)
    assert any(line.endswith("; taking a new producer id") for _, line in case.logged)


def test_a_gap_is_closed_by_a_new_epoch(case: Case) -> None:
    case.identify()
    case.decide(UNAUTHORIZED, sequenced=True)
    place = TopicPartition("t", 1)
    assert case.policy.progress(place, 1, 1, True, -1, NOW_MS) == [], "something is on the wire"
    orders = case.policy.progress(place, 0, 0, True, -1, NOW_MS)
    assert orders == [Order(Action.STRIP, 50), Order(Action.HOLD_NEW, 50)]
    orders = case.policy.progress(place, 0, 0, True, -1, NOW_MS)
    assert [order.action for order in orders] == [Action.BUMP_EPOCH, Action.RELEASE]
    assert case.policy.identity == (7, 5)
    assert case.logged[-1] == (logging.INFO, "t-1: sequences start over, epoch 5")
    assert case.policy.progress(place, 0, 0, True, -1, NOW_MS) == []


# In a transaction


class TransactionCase(Case):
    """A policy of a producer in a transaction, which has something. ``play`` has its machine."""

    def __init__(self, level: int = 2, retries: float = math.inf) -> None:
        super().__init__(retries, transactional=True)
        self.play = Play(level).written()
        self.machine = self.play.machine
        self.policy.transaction_machine = self.machine

    def requests_of_abort(self) -> list[object]:
        self.play.call(Calls.ABORT)
        return list(self.play.serve())


@pytest.fixture
def open_case() -> TransactionCase:
    return TransactionCase()


@pytest.mark.parametrize("code", [NOT_LEADER, TIMED_OUT, 0])
def test_a_retry_leaves_the_transaction_open(open_case: TransactionCase, code: int) -> None:
    verdict, orders = open_case.decide(code, sequenced=True)
    assert (verdict.fate, orders) == (Fate.RETRY, ())
    assert open_case.machine.state is State.IN_TRANSACTION


@pytest.mark.parametrize(
    "code", [UNAUTHORIZED, INVALID_RECORD, OUT_OF_ORDER, STALE_EPOCH, 59, 48, 53, 120, 2]
)
def test_a_failed_batch_fails_the_transaction_and_says_why(code: int) -> None:
    case = TransactionCase(retries=0)
    verdict, orders = case.decide(code, sequenced=True)
    assert verdict.fate is Fate.FAIL
    assert orders == (Order(Action.HOLD_ALL),)
    assert case.machine.state is State.ABORTABLE_ERROR
    assert getattr(case.machine.cause, "errno", None) == code
    assert getattr(verdict.error, "errno", None) == code


@pytest.mark.parametrize("code", [FENCED, INVALID_MAPPING, UNSUPPORTED])
def test_a_batch_that_only_a_new_producer_could_send_ends_this_one(
    open_case: TransactionCase, code: int
) -> None:
    verdict, _ = open_case.decide(code, sequenced=True)
    assert verdict.fate is Fate.FAIL
    assert open_case.machine.state is State.FATAL_ERROR
    assert getattr(open_case.machine.cause, "errno", None) == code


@pytest.mark.parametrize(("code", "says"), [(FENCED, True), (STALE_EPOCH, True), (UNAUTHORIZED, False)])
def test_an_epoch_that_is_not_valid_any_more_says_for_how_long_the_transaction_was_open(
    open_case: TransactionCase, code: int, says: bool
) -> None:
    error = open_case.decide(code, sequenced=True).verdict.error
    found = re.search(r": the transaction was open for [0-9.]+ s; .* transaction_timeout_ms=\d+", str(error))
    assert bool(found) == says


def test_an_out_of_order_batch_behind_an_open_one_waits_for_it(open_case: TransactionCase) -> None:
    verdict, orders = open_case.decide(OUT_OF_ORDER, sequenced=True, first=False)
    assert (verdict.fate, orders) == (Fate.RETRY, ())
    assert open_case.machine.state is State.IN_TRANSACTION


@pytest.mark.parametrize("ambiguous", [True, False])
def test_a_partition_that_meets_the_last_transactions_markers_is_sent_again_shortly(
    open_case: TransactionCase, ambiguous: bool
) -> None:
    verdict, orders = open_case.decide(CONCURRENT, sequenced=True, ambiguous=ambiguous)
    assert (verdict.fate, orders) == (Fate.RETRY, ())
    assert NOW_MS + 5 <= verdict.at_ms <= NOW_MS + MARKERS_LAST_MS
    assert verdict.maybe_written is ambiguous
    assert open_case.logged == []
    assert open_case.machine.state is State.IN_TRANSACTION


def test_meeting_markers_is_no_failed_attempt() -> None:
    case = TransactionCase(retries=0)
    assert case.decide(CONCURRENT, sequenced=True, attempts=7).verdict.fate is Fate.RETRY


def test_markers_are_met_until_the_records_deadline_only(open_case: TransactionCase) -> None:
    created_ms = NOW_MS - 10_000
    assert open_case.decide(CONCURRENT, sequenced=True, created_ms=created_ms + 1).verdict.fate is Fate.RETRY
    verdict, _ = open_case.decide(CONCURRENT, sequenced=True, created_ms=created_ms)
    assert verdict.fate is Fate.FAIL
    assert type(verdict.error) is DeliveryTimeoutError
    assert open_case.machine.state is State.ABORTABLE_ERROR


@pytest.mark.parametrize("code", [NOT_LEADER, TOO_LARGE, INVALID_RECORD, CONCURRENT, 0])
@pytest.mark.parametrize("ambiguous", [True, False])
def test_what_comes_after_the_transaction_has_failed_fails_because_of_it(
    open_case: TransactionCase, code: int, ambiguous: bool
) -> None:
    first = ValueError("a record")
    open_case.machine.fail(first)
    verdict, orders = open_case.decide(code, sequenced=True, ambiguous=ambiguous, culprits=1)
    assert verdict.fate is Fate.FAIL
    assert orders == (Order(Action.HOLD_ALL),)
    error = verdict.error
    assert type(error) is TransactionAbortedError
    assert error.__cause__ is first
    assert error.maybe_written == verdict.maybe_written == (ambiguous or code in (NOT_LEADER, 0))
    assert open_case.machine.cause is first


def test_what_comes_during_an_abort_fails_because_of_it(open_case: TransactionCase) -> None:
    open_case.play.drained = False
    open_case.play.call(Calls.ABORT)
    verdict, _ = open_case.decide(NOT_LEADER, sequenced=True)
    assert type(verdict.error) is TransactionAbortedError
    assert "abort_transaction() was called" in str(verdict.error)


def test_a_duplicate_of_a_failed_transaction_is_acknowledged(open_case: TransactionCase) -> None:
    open_case.machine.fail(ValueError("a record"))
    assert open_case.decide(DUPLICATE, sequenced=True).verdict.fate is Fate.ACKNOWLEDGE


def test_a_too_large_batch_of_a_transaction_is_split_and_loses_nothing(open_case: TransactionCase) -> None:
    verdict, orders = open_case.decide(TOO_LARGE, sequenced=True)
    assert (verdict.fate, orders) == (Fate.SPLIT, (Order(Action.HOLD_ALL),))
    assert open_case.machine.state is State.IN_TRANSACTION


def test_records_that_the_broker_names_are_not_taken_out_of_a_transactions_batch(
    open_case: TransactionCase,
) -> None:
    verdict, _ = open_case.decide(INVALID_RECORD, sequenced=True, culprits=2)
    assert verdict.fate is Fate.FAIL
    assert open_case.machine.state is State.ABORTABLE_ERROR


@pytest.mark.parametrize("code", [TOO_LARGE, INVALID_RECORD])
def test_a_transaction_that_drops_refused_records_goes_on(open_case: TransactionCase, code: int) -> None:
    open_case.machine.drops_refused = True
    verdict, orders = open_case.decide(code, sequenced=True, records=1)
    assert (verdict.fate, orders) == (Fate.REFUSE, (Order(Action.HOLD_ALL),))
    assert getattr(verdict.error, "errno", None) == code
    assert getattr(verdict.error, "maybe_written", None) is False
    assert open_case.machine.state is State.IN_TRANSACTION
    place = TopicPartition("t", 1)
    orders_later = open_case.policy.progress(place, 0, 0, True, -1, NOW_MS)
    assert orders_later == [Order(Action.STRIP, 50), Order(Action.RELEASE, 50)]


def test_a_transaction_that_drops_refused_records_drops_those_that_the_broker_names(
    open_case: TransactionCase,
) -> None:
    open_case.machine.drops_refused = True
    assert open_case.decide(INVALID_RECORD, sequenced=True, culprits=2).verdict.fate is Fate.EXCLUDE
    assert open_case.decide(TOO_LARGE, sequenced=True, records=2).verdict.fate is Fate.SPLIT
    assert open_case.machine.state is State.IN_TRANSACTION


@pytest.mark.parametrize(
    ("code", "more"),
    [(INVALID_RECORD, {"ambiguous": True}), (TOO_LARGE, {"ambiguous": True}), (UNAUTHORIZED, {})],
)
def test_it_fails_with_records_that_may_be_written_or_that_are_not_refused_for_their_content(
    open_case: TransactionCase, code: int, more: dict[str, bool]
) -> None:
    open_case.machine.drops_refused = True
    assert open_case.decide(code, sequenced=True, records=1, **more).verdict.fate is Fate.FAIL
    assert open_case.machine.state is State.ABORTABLE_ERROR


def test_it_fails_if_sequences_would_change_of_records_that_may_come_late(
    open_case: TransactionCase,
) -> None:
    open_case.policy.cannot_move(TopicPartition("t", 1))
    assert open_case.machine.state is State.ABORTABLE_ERROR
    assert "t-1: records were refused, and a request for those behind" in str(open_case.machine.cause)


@pytest.mark.parametrize("on_wire", [True, False])
@pytest.mark.parametrize("kind", ["expire", "purge", "partition_removed"])
def test_a_batch_that_is_given_up_fails_the_transaction(
    open_case: TransactionCase, kind: str, on_wire: bool
) -> None:
    batch = open_case.batch(sequenced=True)
    match kind:
        case "expire":
            decision = open_case.policy.expire(batch, on_wire, NOW_MS)
        case "purge":
            decision = open_case.policy.purge(batch, on_wire, ValueError("enough"))
        case _:
            decision = open_case.policy.partition_removed(batch, NOW_MS)
    assert decision.verdict.fate is Fate.FAIL
    assert open_case.machine.state is State.ABORTABLE_ERROR
    assert type(open_case.machine.cause) is type(decision.verdict.error)


@pytest.mark.parametrize("sequenced", [True, False])
@pytest.mark.parametrize("kind", ["decide", "expire", "purge", "partition_removed"])
def test_only_a_batch_with_sequences_costs_the_first_protocol_an_epoch(kind: str, sequenced: bool) -> None:
    case = TransactionCase(level=1)
    batch = case.batch(sequenced=sequenced)
    match kind:
        case "decide":
            case.decide(UNAUTHORIZED, sequenced=sequenced)
        case "expire":
            case.policy.expire(batch, False, NOW_MS)
        case "purge":
            case.policy.purge(batch, False, ValueError("enough"))
        case _:
            case.policy.partition_removed(batch, NOW_MS)
    assert case.requests_of_abort() == [EndTxn(False, FIRST)] + [InitProducerId(4711, 0)] * sequenced


def test_an_abandoned_batch_that_is_fenced_later_ends_the_producer(open_case: TransactionCase) -> None:
    open_case.policy.expire(open_case.batch(sequenced=True), True, NOW_MS)
    open_case.decide(FENCED, sequenced=True, abandoned=True)
    assert open_case.machine.state is State.FATAL_ERROR


def test_the_end_of_a_failed_transaction_of_the_second_protocol(open_case: TransactionCase) -> None:
    open_case.decide(UNAUTHORIZED, sequenced=True)
    assert open_case.requests_of_abort() == [EndTxn(False, SECOND)]
