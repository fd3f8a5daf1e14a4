"""Ending a transaction by its identity: each row of the coordinator's answers, and what follows from it."""

from collections.abc import Callable
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.control.retry import ExponentialBackoff
from cyproducer.control.transaction_ending import Describe, Describing, Ended, Ending, Outcome
from cyproducer.control.transaction_requests import AskLevel, EndTxn, FindCoordinator, InitProducerId
from cyproducer.structs import PreparedTransaction
from cyproducer.wire.responses import InitProducerIdResponse
from cyproducer.wire.transaction_api import (
    DescribeTransactionsResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    TransactionDescription,
)

PRODUCER_ID, EPOCH = 4000, 7
OTHER_ID = 4001
NODE = 3
BACKOFF_MS, BACKOFF_MAX_MS = 100.0, 1000.0
WHERE = "broker:9092"
FIND = FindCoordinator(1, "tx")
COMMIT, ABORT = True, False

NOT_AVAILABLE, NOT_COORDINATOR, LOADING, TIMED_OUT = 15, 16, 14, 7
INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, CONCURRENT = 47, 48, 49, 51
DENIED, FENCED, NOT_FOUND, ABORTABLE, UNKNOWN = 53, 90, 105, 120, -1


def transaction(protocol: int = 2, empty: bool = False) -> PreparedTransaction:
    return PreparedTransaction("tx", PRODUCER_ID, EPOCH, protocol, empty, {})


def described(
    state: str, epoch: int = EPOCH, producer_id: int = PRODUCER_ID, code: int = 0, start_ms: int = 5
) -> DescribeTransactionsResponse:
    found = TransactionDescription(code, "tx", state, 12345, start_ms, producer_id, epoch, {})
    return DescribeTransactionsResponse(0, [found])


class Steps:
    """Answers the requests of one call, in turn, and checks them."""

    def __init__(self, call: Ending) -> None:
        self.call = call
        self.now_ms = 0.0

    def request(self) -> Any:
        return self.call.next_request(self.now_ms)

    def find(self, code: int = 0) -> "Steps":
        assert self.request() == FIND
        self.call.on_coordinator(FindCoordinatorResponse(0, code, "later", NODE, "h", 1), WHERE, self.now_ms)
        return self

    def describe(self, response: DescribeTransactionsResponse) -> "Steps":
        assert self.request() == Describe()
        assert self.call.coordinator == NODE
        self.call.on_description(response, WHERE, self.now_ms)
        return self

    def level(self, level: int) -> "Steps":
        assert self.request() == AskLevel()
        self.call.on_level(level)
        return self

    def end(self, expected: EndTxn, code: int = 0, following: tuple[int, int] = (-1, -1)) -> "Steps":
        assert self.request() == expected
        self.call.on_ended(EndTxnResponse(0, code, *following), WHERE, self.now_ms)
        return self

    def fenced(self, code: int = 0, following: tuple[int, int] = (-1, -1)) -> "Steps":
        assert self.request() == InitProducerId(PRODUCER_ID, EPOCH)
        self.call.on_fenced(InitProducerIdResponse(0, code, *following), WHERE, self.now_ms)
        return self

    def lose(self) -> "Steps":
        """The request in flight gets no response, and the backoff passes."""
        self.call.on_no_response(errors.KafkaConnectionError("cut"), self.now_ms)
        return self.wait()

    def wait(self) -> "Steps":
        """The backoff passes; nothing is sent before that."""
        wait_ms = self.call.wait_ms(self.now_ms)
        assert wait_ms > 0
        assert self.request() is None
        self.now_ms += wait_ms
        return self

    def open_at(self, level: int) -> "Steps":
        return self.find().describe(described("Ongoing")).level(level)

    def result(self) -> Ended:
        assert self.call.error is None
        assert self.call.result is not None
        assert self.call.done
        assert self.request() is None
        return self.call.result

    def outcome(self) -> Outcome:
        return self.result().outcome


def ending(
    commit: bool = COMMIT, *, protocol: int = 2, fence: bool = False, start_ms: int | None = None
) -> Steps:
    backoff = ExponentialBackoff(BACKOFF_MS, BACKOFF_MAX_MS)
    return Steps(Ending(transaction(protocol), commit, fence, backoff, lambda: 0.5, start_ms))


@pytest.mark.parametrize(("commit", "outcome"), [(COMMIT, Outcome.COMMITTED), (ABORT, Outcome.ABORTED)])
@pytest.mark.parametrize(
    ("protocol", "level", "version", "following"),
    [(2, 2, 2, (PRODUCER_ID, EPOCH + 1)), (2, 1, 1, None), (2, 0, 1, None), (1, 2, 1, None), (1, 1, 1, None)],
)
def test_an_open_transaction_is_ended_by_the_protocol_that_the_level_allows(
    commit: bool, outcome: Outcome, protocol: int, level: int, version: int, following: tuple[int, int] | None
) -> None:
    steps = ending(commit, protocol=protocol).open_at(level)
    steps.end(EndTxn(commit, version), following=following or (-1, -1))
    assert steps.result() == Ended(outcome, "tx", *(following or (None, None)))


def test_an_empty_transaction_takes_no_request() -> None:
    backoff = ExponentialBackoff(BACKOFF_MS, BACKOFF_MAX_MS)
    for fence in (False, True):
        call = Ending(transaction(empty=True), ABORT, fence, backoff, lambda: 0.5)
        assert Steps(call).result() == Ended(Outcome.EMPTY, "tx")


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("PrepareCommit", Outcome.COMMITTED_BEFORE),
        ("CompleteCommit", Outcome.COMMITTED_BEFORE),
        ("PrepareAbort", Outcome.ABORTED_BEFORE),
        ("CompleteAbort", Outcome.ABORTED_BEFORE),
    ],
)
def test_what_the_first_protocol_has_ended_is_not_ended_again(
    commit: bool, state: str, outcome: Outcome
) -> None:
    # EndTxn could end the next transaction, which has the same identity.
    assert ending(commit, protocol=1).find().describe(described(state)).outcome() is outcome


def ended_by_the_second(commit: bool, state: str, level: int = 2) -> Steps:
    return ending(commit).find().describe(described(state, EPOCH + 1)).level(level)


@pytest.mark.parametrize(
    ("commit", "state", "code", "outcome"),
    [
        (COMMIT, "CompleteCommit", 0, Outcome.COMMITTED_BEFORE),
        (ABORT, "CompleteAbort", 0, Outcome.ABORTED_BEFORE),
        (COMMIT, "CompleteAbort", INVALID_STATE, Outcome.ABORTED_BEFORE),
        (COMMIT, "PrepareAbort", INVALID_STATE, Outcome.ABORTED_BEFORE),
        (ABORT, "CompleteCommit", INVALID_STATE, Outcome.COMMITTED_BEFORE),
        (ABORT, "PrepareCommit", INVALID_STATE, Outcome.COMMITTED_BEFORE),
        # The next transaction is open, or another producer has the id.
        (COMMIT, "Ongoing", FENCED, Outcome.FENCED),
        (ABORT, "Ongoing", FENCED, Outcome.FENCED),
        (COMMIT, "Empty", FENCED, Outcome.FENCED),
        (ABORT, "Empty", INVALID_EPOCH, Outcome.FENCED),
        (ABORT, "CompleteAbort", FENCED, Outcome.FENCED),
        (COMMIT, "CompleteCommit", FENCED, Outcome.FENCED),
        # Some brokers mean the epoch by this error.
        (COMMIT, "Empty", INVALID_STATE, Outcome.FENCED),
        (COMMIT, "CompleteCommit", INVALID_STATE, Outcome.FENCED),
        (ABORT, "CompleteAbort", INVALID_STATE, Outcome.FENCED),
        (COMMIT, "Ongoing", INVALID_MAPPING, Outcome.UNKNOWN_ID),
    ],
)
def test_with_another_identity_the_coordinators_answer_counts(
    commit: bool, state: str, code: int, outcome: Outcome
) -> None:
    steps = ended_by_the_second(commit, state).end(EndTxn(commit, 2), code)
    assert steps.outcome() is outcome


def test_a_repeated_end_tells_the_next_identity() -> None:
    steps = ended_by_the_second(COMMIT, "CompleteCommit")
    steps.end(EndTxn(COMMIT, 2), following=(PRODUCER_ID, EPOCH + 1))
    assert steps.result()[2:] == (PRODUCER_ID, EPOCH + 1)


@pytest.mark.parametrize("code", [FENCED, INVALID_EPOCH])
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (0, Outcome.ABORTED_BEFORE),
        (FENCED, Outcome.FENCED),
        (INVALID_STATE, Outcome.FENCED),
        (INVALID_MAPPING, Outcome.UNKNOWN_ID),
    ],
)
def test_a_commit_that_is_fenced_after_the_brokers_timeout_is_told_by_an_abort(
    code: int, answer: int, outcome: Outcome
) -> None:
    steps = ended_by_the_second(COMMIT, "CompleteAbort").end(EndTxn(COMMIT, 2), code)
    assert steps.end(EndTxn(ABORT, 2), answer).outcome() is outcome


def test_after_a_failure_it_is_the_commit_that_is_tried_again() -> None:
    steps = ended_by_the_second(COMMIT, "CompleteAbort").end(EndTxn(COMMIT, 2), FENCED)
    steps.end(EndTxn(ABORT, 2), LOADING).wait().describe(described("CompleteAbort", EPOCH + 1)).level(2)
    assert steps.end(EndTxn(COMMIT, 2), INVALID_STATE).outcome() is Outcome.ABORTED_BEFORE


@pytest.mark.parametrize(
    ("state", "epoch", "producer_id"),
    [("CompleteCommit", EPOCH + 1, PRODUCER_ID), ("CompleteAbort", EPOCH + 2, PRODUCER_ID),
     ("CompleteAbort", EPOCH + 1, OTHER_ID)],
)  # fmt: skip
def test_no_abort_is_sent_after_a_commit_that_was_fenced_otherwise(
    state: str, epoch: int, producer_id: int
) -> None:
    steps = ending(COMMIT).find().describe(described(state, epoch, producer_id)).level(2)
    assert steps.end(EndTxn(COMMIT, 2), FENCED).outcome() is Outcome.FENCED


def test_the_first_protocol_does_not_tell_a_timeout_from_another_producer() -> None:
    steps = ended_by_the_second(COMMIT, "CompleteAbort", level=1).end(EndTxn(COMMIT, 1), FENCED)
    assert steps.outcome() is Outcome.FENCED


def test_the_last_epoch_of_a_producer_id_has_a_new_one_after_it() -> None:
    for code, outcome in ((0, Outcome.COMMITTED_BEFORE), (INVALID_MAPPING, Outcome.UNKNOWN_ID)):
        steps = ending(COMMIT).find().describe(described("CompleteCommit", 0, OTHER_ID)).level(2)
        assert steps.end(EndTxn(COMMIT, 2), code).outcome() is outcome


def test_an_id_that_is_not_there_any_more() -> None:
    steps = ending(COMMIT).find().describe(described("", code=NOT_FOUND))
    assert steps.outcome() is Outcome.UNKNOWN_ID


def test_nothing_was_written() -> None:
    assert ending(COMMIT).find().describe(described("Empty")).outcome() is Outcome.EMPTY
    for level in (0, 1):
        assert ending(ABORT).find().describe(described("Empty")).level(level).outcome() is Outcome.EMPTY
    # The epoch is taken away from whoever may still write in it.
    steps = ending(ABORT).find().describe(described("Empty")).level(2)
    steps.end(EndTxn(ABORT, 2), following=(PRODUCER_ID, EPOCH + 1))
    assert steps.result() == Ended(Outcome.EMPTY, "tx", PRODUCER_ID, EPOCH + 1)
    steps = ending(ABORT).find().describe(described("Empty")).level(2)
    assert steps.end(EndTxn(ABORT, 2), INVALID_STATE).outcome() is Outcome.EMPTY


def test_an_empty_one_whose_answer_was_lost_is_still_empty() -> None:
    steps = ending(ABORT).find().describe(described("Empty")).level(2)
    assert steps.request() == EndTxn(ABORT, 2)
    steps.lose().find().describe(described("CompleteAbort", EPOCH + 1)).level(2)
    assert steps.end(EndTxn(ABORT, 2)).outcome() is Outcome.EMPTY


def test_one_that_is_written_to_meanwhile_is_not_empty() -> None:
    steps = ending(ABORT).find().describe(described("Empty")).level(2).end(EndTxn(ABORT, 2), CONCURRENT)
    steps.wait().describe(described("Ongoing")).level(2)
    assert steps.end(EndTxn(ABORT, 2)).outcome() is Outcome.ABORTED


# Trying again


@pytest.mark.parametrize("code", [CONCURRENT, LOADING, NOT_AVAILABLE, NOT_COORDINATOR, TIMED_OUT, UNKNOWN])
def test_every_attempt_begins_with_a_new_look(code: int) -> None:
    steps = ending(COMMIT).open_at(2).end(EndTxn(COMMIT, 2), code).wait()
    if code in (NOT_AVAILABLE, NOT_COORDINATOR):
        steps.find()
    # The level may have changed, too.
    steps.describe(described("Ongoing")).level(1)
    assert steps.end(EndTxn(COMMIT, 1)).outcome() is Outcome.COMMITTED


@pytest.mark.parametrize("request_number", range(4))
def test_a_request_without_a_response_is_sent_again_to_the_coordinator_of_then(request_number: int) -> None:
    steps = ending(COMMIT)
    made: list[Callable[[], Steps]] = [
        steps.find, lambda: steps.describe(described("Ongoing")), lambda: steps.level(2)
    ]  # fmt: skip
    for step in made[:request_number]:
        step()
    steps.request()
    steps.lose().open_at(2)
    assert steps.end(EndTxn(COMMIT, 2)).outcome() is Outcome.COMMITTED


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
@pytest.mark.parametrize("protocol", [1, 2])
def test_an_end_whose_response_was_lost_counts_as_this_calls(commit: bool, protocol: int) -> None:
    steps = ending(commit, protocol=protocol).open_at(2)
    assert steps.request() == EndTxn(commit, protocol)
    steps.lose().find()
    state = "CompleteCommit" if commit else "CompleteAbort"
    if protocol == 1:
        steps.describe(described(state))
    else:
        steps.describe(described(state, EPOCH + 1)).level(2).end(EndTxn(commit, 2))
    assert steps.outcome() is (Outcome.COMMITTED if commit else Outcome.ABORTED)


def test_before_the_end_is_sent_another_one_was_faster() -> None:
    steps = ending(COMMIT, protocol=1).find().describe(described("Ongoing"))
    steps.request()
    steps.lose().find().describe(described("CompleteCommit"))
    assert steps.outcome() is Outcome.COMMITTED_BEFORE


def test_another_one_was_faster() -> None:
    steps = ending(COMMIT, protocol=1).open_at(1)
    steps.end(EndTxn(COMMIT, 1), INVALID_STATE).wait()
    assert steps.describe(described("CompleteAbort")).outcome() is Outcome.ABORTED_BEFORE
    for code in (FENCED, INVALID_EPOCH, INVALID_MAPPING):
        steps = ending(COMMIT).open_at(2).end(EndTxn(COMMIT, 2), code).wait()
        steps.describe(described("Empty", EPOCH + 2)).level(2)
        assert steps.end(EndTxn(COMMIT, 2), FENCED).outcome() is Outcome.FENCED


def test_a_transaction_that_the_broker_is_about_to_abort_is_waited_for() -> None:
    steps = ending(COMMIT).find().describe(described("PrepareEpochFence")).wait()
    steps.describe(described("CompleteAbort", EPOCH + 1)).level(2)
    assert steps.end(EndTxn(COMMIT, 2), INVALID_STATE).outcome() is Outcome.ABORTED_BEFORE


def test_markers_are_waited_for_in_milliseconds_and_everything_else_for_longer() -> None:
    steps = ending(COMMIT).open_at(2).end(EndTxn(COMMIT, 2), CONCURRENT)
    assert steps.call.wait_ms(0) == pytest.approx(5)
    steps = ending(COMMIT).open_at(2).end(EndTxn(COMMIT, 2), LOADING)
    assert steps.call.wait_ms(0) == pytest.approx(BACKOFF_MS)
    assert steps.call.wait_ms(BACKOFF_MS + 1) == 0
    steps.wait().describe(described("Ongoing")).level(2).end(EndTxn(COMMIT, 2), LOADING)
    assert steps.call.wait_ms(steps.now_ms) == pytest.approx(2 * BACKOFF_MS)


def test_the_coordinator_is_looked_for_until_there_is_one() -> None:
    steps = ending(COMMIT).find(NOT_AVAILABLE).wait().find(NOT_AVAILABLE).wait().open_at(2)
    assert steps.end(EndTxn(COMMIT, 2)).outcome() is Outcome.COMMITTED


@pytest.mark.parametrize("code", [LOADING, NOT_COORDINATOR, UNKNOWN])
def test_a_description_is_asked_for_until_there_is_one(code: int) -> None:
    steps = ending(COMMIT).find().describe(described("", code=code)).wait()
    if code == NOT_COORDINATOR:
        steps.find()
    steps.describe(DescribeTransactionsResponse(0, [])).wait()
    # It is not of another transactional id.
    other = described("CompleteCommit").transactions[0]._replace(transactional_id="other")
    steps.describe(DescribeTransactionsResponse(0, [other])).wait()
    steps.describe(described("Ongoing")).level(2)
    assert steps.end(EndTxn(COMMIT, 2)).outcome() is Outcome.COMMITTED


# Failures


def refusals() -> list[Callable[[], Steps]]:
    return [
        lambda: ending(COMMIT).find(DENIED),
        lambda: ending(COMMIT).find().describe(described("", code=DENIED)),
        lambda: ending(COMMIT).open_at(2).end(EndTxn(COMMIT, 2), DENIED),
        lambda: ending(ABORT, fence=True).open_at(1).end(EndTxn(ABORT, 1)).describe(
            described("CompleteAbort")
        ).fenced(DENIED),
    ]  # fmt: skip


@pytest.mark.parametrize("step", range(4))
def test_a_lack_of_rights_says_which(step: int) -> None:
    call = refusals()[step]().call
    assert call.done
    assert isinstance(call.error, errors.TransactionalIdAuthorizationFailedError)
    assert "transactional id 'tx' at broker:9092" in str(call.error)
    assert "grant this principal Write and Describe" in str(call.error)


@pytest.mark.parametrize(
    ("code", "kind"), [(ABORTABLE, errors.AbortableError), (35, errors.UnsupportedVersionError)]
)
def test_what_cannot_be_tried_again_is_raised(code: int, kind: type[Exception]) -> None:
    call = ending(COMMIT).open_at(2).end(EndTxn(COMMIT, 2), code).call
    assert isinstance(call.error, kind)


def test_a_request_that_cannot_be_sent_is_raised() -> None:
    steps = ending(COMMIT)
    steps.request()
    steps.call.on_failure(ValueError("a text"))
    assert isinstance(steps.call.error, ValueError)


def test_what_is_waited_for() -> None:
    steps = ending(COMMIT)
    assert steps.call.name == "commit of transactional id 'tx' (producer_id=4000, epoch=7)"
    assert ending(ABORT).call.name.startswith("abort of ")
    steps.request()
    assert steps.call.describe() == "looking for the coordinator"
    steps.lose()
    assert steps.call.describe() == ("waiting to try again, after 1 failed: KafkaConnectionError: cut")
    steps.open_at(2)
    steps.request()
    assert steps.call.describe() == (
        "EndTxn is not answered yet by broker 3, after 1 failed: KafkaConnectionError: cut; it may be done: "
        "call again to learn the outcome"
    )


# Old brokers


def unsupported(steps: Steps, expected: Any) -> Steps:
    assert steps.request() == expected
    steps.call.on_failure(errors.UnsupportedVersionError("too old"))
    return steps


@pytest.mark.parametrize(
    ("commit", "code", "outcome"),
    [
        (COMMIT, 0, Outcome.COMMITTED),
        (ABORT, 0, Outcome.ABORTED),
        (COMMIT, INVALID_STATE, Outcome.ABORTED_BEFORE),
        (ABORT, INVALID_STATE, Outcome.COMMITTED_BEFORE),
        (COMMIT, FENCED, Outcome.FENCED),
        (COMMIT, INVALID_EPOCH, Outcome.FENCED),
        (COMMIT, INVALID_MAPPING, Outcome.UNKNOWN_ID),
    ],
)
def test_without_descriptions_the_answer_alone_counts(commit: bool, code: int, outcome: Outcome) -> None:
    steps = unsupported(ending(commit, protocol=1).find(), Describe())
    unsupported(steps, AskLevel())
    assert steps.end(EndTxn(commit, 1), code).outcome() is outcome


def test_a_coordinator_without_features_has_the_first_protocol() -> None:
    steps = ending(COMMIT).find().describe(described("Ongoing"))
    assert unsupported(steps, AskLevel()).end(EndTxn(COMMIT, 1)).outcome() is Outcome.COMMITTED


def test_no_other_request_may_be_unsupported() -> None:
    steps = unsupported(ending(COMMIT).open_at(2), EndTxn(COMMIT, 2))
    assert isinstance(steps.call.error, errors.UnsupportedVersionError)


# Fencing


def aborted_by_the_first() -> Steps:
    return ending(ABORT, fence=True).open_at(1).end(EndTxn(ABORT, 1))


def test_a_writer_is_fenced_after_the_first_protocols_abort() -> None:
    steps = aborted_by_the_first()
    assert not steps.call.done
    steps.describe(described("CompleteAbort")).fenced(following=(PRODUCER_ID, EPOCH + 1))
    assert steps.result() == Ended(Outcome.ABORTED, "tx", PRODUCER_ID, EPOCH + 1)
    assert steps.call.timeout_ms == 12345


def test_the_second_protocol_fences_by_itself() -> None:
    steps = ending(ABORT, fence=True).open_at(2).end(EndTxn(ABORT, 2), following=(PRODUCER_ID, EPOCH + 1))
    assert steps.outcome() is Outcome.ABORTED


def test_a_writer_that_has_begun_anew_is_fenced_all_the_same() -> None:
    steps = aborted_by_the_first().describe(described("Ongoing"))
    assert steps.fenced(following=(PRODUCER_ID, EPOCH + 1)).outcome() is Outcome.ABORTED


def test_a_new_owner_of_the_id_is_left_alone() -> None:
    # InitProducerId with the old identity would abort the owner's transaction.
    steps = aborted_by_the_first().describe(described("Ongoing", EPOCH + 1))
    assert steps.result() == Ended(Outcome.ABORTED, "tx")


@pytest.mark.parametrize("code", [FENCED, INVALID_EPOCH, INVALID_MAPPING])
def test_a_new_owner_may_come_at_any_time(code: int) -> None:
    steps = aborted_by_the_first().describe(described("CompleteAbort")).fenced(code)
    assert steps.result() == Ended(Outcome.ABORTED, "tx")


def test_fencing_waits_for_the_markers() -> None:
    steps = aborted_by_the_first().describe(described("PrepareAbort")).fenced(CONCURRENT).wait()
    steps.describe(described("CompleteAbort")).fenced(following=(PRODUCER_ID, EPOCH + 1))
    assert steps.outcome() is Outcome.ABORTED


def test_fencing_whose_response_was_lost_is_done() -> None:
    steps = aborted_by_the_first().describe(described("CompleteAbort"))
    steps.request()
    steps.lose().find().describe(described("Empty", EPOCH + 1))
    assert steps.outcome() is Outcome.ABORTED


def test_what_was_aborted_before_is_fenced_and_what_was_committed_is_not() -> None:
    steps = ending(ABORT, fence=True).find().describe(described("CompleteAbort"))
    steps.describe(described("CompleteAbort")).fenced(following=(PRODUCER_ID, EPOCH + 1))
    assert steps.outcome() is Outcome.ABORTED_BEFORE
    steps = ending(ABORT, fence=True).find().describe(described("CompleteCommit"))
    assert steps.outcome() is Outcome.COMMITTED_BEFORE


def test_an_epoch_that_is_over_is_not_fenced() -> None:
    steps = ending(ABORT, fence=True).find().describe(described("CompleteAbort", EPOCH + 1)).level(1)
    assert steps.end(EndTxn(ABORT, 1)).outcome() is Outcome.ABORTED_BEFORE


def test_an_empty_epoch_of_the_first_protocol_is_fenced() -> None:
    steps = ending(ABORT, fence=True).find().describe(described("Empty")).level(1)
    steps.describe(described("Empty")).fenced(following=(PRODUCER_ID, EPOCH + 1))
    assert steps.outcome() is Outcome.EMPTY


def test_fencing_without_descriptions() -> None:
    steps = unsupported(ending(ABORT, fence=True, protocol=1).find(), Describe())
    steps.level(1).end(EndTxn(ABORT, 1)).fenced(following=(PRODUCER_ID, EPOCH + 1))
    assert steps.outcome() is Outcome.ABORTED
    assert steps.call.timeout_ms == 60000


def test_the_next_transaction_of_an_epoch_is_told_by_its_start() -> None:
    steps = ending(ABORT, start_ms=4).find().describe(described("Ongoing", start_ms=5))
    assert steps.outcome() is Outcome.FENCED
    steps = ending(ABORT, start_ms=5).open_at(1).end(EndTxn(ABORT, 1))
    assert steps.outcome() is Outcome.ABORTED


# Outcomes and descriptions


def test_an_outcome_tells_whether_the_records_are_there() -> None:
    assert {outcome: outcome.committed for outcome in Outcome} == {
        Outcome.COMMITTED: True,
        Outcome.COMMITTED_BEFORE: True,
        Outcome.ABORTED: False,
        Outcome.ABORTED_BEFORE: False,
        Outcome.EMPTY: None,
        Outcome.FENCED: None,
        Outcome.UNKNOWN_ID: None,
    }


def test_a_description() -> None:
    call = Describing("tx", ExponentialBackoff(BACKOFF_MS, BACKOFF_MAX_MS), lambda: 0.5)
    assert call.name == "description of transactional id 'tx'"
    assert call.next_request(0) == FIND
    assert call.wait_ms(0) == float("inf")
    call.on_coordinator(FindCoordinatorResponse(0, 0, None, NODE, "h", 1), WHERE, 0)
    assert call.next_request(0) == Describe()
    call.on_description(described("", code=NOT_COORDINATOR), WHERE, 0)
    assert call.next_request(call.wait_ms(0)) == FIND
    call.on_coordinator(FindCoordinatorResponse(0, 0, None, NODE, "h", 1), WHERE, 0)
    assert not call.done
    call.next_request(1000)
    call.on_description(described("Ongoing"), WHERE, 0)
    assert call.done
    assert call.result == described("Ongoing").transactions[0]


def test_there_is_no_such_id_to_describe() -> None:
    call = Describing("tx", ExponentialBackoff(BACKOFF_MS, BACKOFF_MAX_MS), lambda: 0.5)
    call.next_request(0)
    call.on_coordinator(FindCoordinatorResponse(0, 0, None, NODE, "h", 1), WHERE, 0)
    call.next_request(0)
    call.on_description(described("", code=NOT_FOUND), WHERE, 0)
    assert call.done
    assert isinstance(call.error, errors.TransactionalIdNotFoundError)
