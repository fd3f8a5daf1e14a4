"""The machine of transactions: its table, its rules by example, and what each error of each request means.

Without a network and without a clock: ``coordinator_play`` answers.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.control.retry import MARKERS_LAST_MS
from cyproducer.control.transaction_calls import TABLE, Call, Event, Prepared, ResumeCall, State, diagram
from cyproducer.control.transaction_machine import FENCING_EPOCH, LEVEL_AGE_MS
from cyproducer.control.transaction_requests import (
    FIRST,
    HIGHEST_PRODUCE,
    SECOND,
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
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.wire.transaction_api import (
    AddPartitionsToTxnResponse,
    FindCoordinatorResponse,
    TxnOffsetCommitResponse,
)
from tests.control.coordinator_play import BACKOFF_MS, CUT, GROUP, POSITIONS, PRODUCER, Play

REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 7, 14, 15, 16
UNKNOWN_TOPIC_OR_PARTITION, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 3, 22, 25
TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION = 29, 30, 35
OUT_OF_ORDER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING = 45, 47, 48, 49
INVALID_TRANSACTION_TIMEOUT, CONCURRENT, TXN_ID_AUTHORIZATION_FAILED, NOT_ATTEMPTED = 50, 51, 53, 55
GROUP_ID_NOT_FOUND, FENCED_INSTANCE_ID, PRODUCER_FENCED, STALE_MEMBER_EPOCH = 69, 82, 90, 113
TRANSACTION_ABORTABLE, UNKNOWN_SERVER_ERROR = 120, -1

LEVELS = pytest.mark.parametrize("level", [1, 2])


def refused(call: Call) -> BaseException:
    assert call.done
    assert call.error is not None
    return call.error


def succeeded(call: Call) -> Any:
    assert call.done
    assert call.error is None, call.error
    return call.result


def completes(play: Play, call: Call, *requests: Request) -> None:
    """These requests are due now, and their answers complete the call."""
    assert play.serve() == [*requests]
    succeeded(call)


# The table


def test_every_state_is_reached_and_every_event_used() -> None:
    assert {State.UNINITIALIZED} | set(TABLE.values()) == set(State)
    assert {event for _, event in TABLE} == set(Event)


def test_only_a_new_producer_leaves_the_fatal_state() -> None:
    assert {to for (state, _), to in TABLE.items() if state is State.FATAL_ERROR} == {State.FATAL_ERROR}


def test_the_diagram_has_every_change() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    changes = [f"    {a.name} --> {b.name}: {event.value}" for (a, event), b in TABLE.items() if a is not b]
    assert lines[1:] == changes


# An identity that is handed over


def resumed() -> tuple[Play, Call]:
    play = Play(2)
    call = ResumeCall(PRODUCER, 7)
    play.machine.submit(call, play.now_ms)
    return play, call


def test_an_identity_that_is_handed_over_is_used_without_a_request_for_one() -> None:
    play, call = resumed()
    succeeded(call)
    assert play.is_in(State.READY)
    assert (play.machine.producer_id, play.machine.epoch) == (PRODUCER, 7)
    play.begun().write()
    # The markers of the other producer's last transaction may be missing.
    assert play.kinds() == ["AskMarkers"]
    assert play.machine.protocol == SECOND
    play.wrote = True
    commit = play.call(Event.COMMIT)
    assert play.kinds() == ["EndTxn"]
    succeeded(commit)


@pytest.mark.parametrize("state", [state for state in State if state is not State.UNINITIALIZED])
def test_only_a_new_producer_takes_an_identity_over(state: State) -> None:
    play = in_state(state)
    call = ResumeCall(PRODUCER, 7)
    play.machine.submit(call, play.now_ms)
    refused(call)
    assert play.is_in(state)
    assert play.machine.epoch != 7


def test_the_end_of_a_transaction_is_in_doubt_once_its_request_got_no_response() -> None:
    play = Play(2).written()
    play.call(Event.COMMIT)
    play.send(EndTxn)
    assert not play.machine.end_in_doubt
    play.lose()
    assert play.machine.end_in_doubt
    play.pass_ms(BACKOFF_MS)
    play.serve()
    play.begun()
    assert not play.machine.end_in_doubt


@LEVELS
@pytest.mark.parametrize("event", [Event.COMMIT, Event.ABORT])
def test_an_end_in_doubt_is_asked_for_until_rights_are_granted(level: int, event: Event) -> None:
    play = Play(level).written()
    call = play.call(event)
    play.send(EndTxn)
    # It may have been carried out.
    play.lose()
    for _ in range(3):
        play.pass_ms(BACKOFF_MS * 100)
        play.answer_next(FindCoordinator, TXN_ID_AUTHORIZATION_FAILED)
        assert not call.done
    play.pass_ms(BACKOFF_MS * 100)
    play.answer_next(FindCoordinator)
    play.answer_to(EndTxn, TXN_ID_AUTHORIZATION_FAILED)
    assert not call.done
    play.pass_ms(BACKOFF_MS * 100)
    play.serve()
    succeeded(call)
    assert play.is_in(State.READY)


@LEVELS
def test_a_commit_that_a_coordinator_has_left_in_doubt_is_not_aborted(level: int) -> None:
    play = Play(level).written()
    commit = play.call(Event.COMMIT)
    play.send(EndTxn)
    # It lost its place while it wrote: the commit may be in its successor's log.
    play.answer(NOT_COORDINATOR)
    assert play.machine.end_in_doubt
    play.pass_ms(BACKOFF_MS * 100)
    play.answer_next(FindCoordinator, TXN_ID_AUTHORIZATION_FAILED)
    assert not commit.done
    abort = Call(Event.ABORT, "abort_transaction()")
    play.machine.submit(abort, play.now_ms)
    refused(abort)
    play.pass_ms(BACKOFF_MS * 100)
    play.serve()
    succeeded(commit)


def test_a_batch_that_added_nothing_before_the_level_sank_is_ended_by_a_new_epoch() -> None:
    play = Play(2).written()
    play.machine.fail(errors.ConcurrentTransactionsError("refused, so nothing was added"))
    play.level, play.features_epoch = 1, 2
    play.machine.on_features(2, 1, play.now_ms)
    call = play.call(Event.ABORT)
    assert play.reach(EndTxn).protocol == FIRST
    play.answer(INVALID_TXN_STATE)
    # Not again and again.
    play.answer_next(InitProducerId)
    play.serve()
    succeeded(call)
    assert play.is_in(State.READY)


@LEVELS
def test_an_abort_that_was_not_sent_for_want_of_rights_may_be_repeated(level: int) -> None:
    play = Play(level).written()
    play.machine.fail(ValueError("a record"))
    play.machine.unreachable(EndTxn(False, level), CUT, play.now_ms)
    play.pass_ms(BACKOFF_MS)
    call = play.call(Event.ABORT)
    play.answer_next(FindCoordinator, TXN_ID_AUTHORIZATION_FAILED)
    assert isinstance(refused(call), errors.AuthorizationError)
    again = play.call(Event.ABORT)
    play.pass_ms(BACKOFF_MS)
    play.serve()
    succeeded(again)
    assert play.is_in(State.READY)


# Every call in every state


def in_state(state: State, level: int = 2) -> Play:
    play = Play(level)
    match state:
        case State.UNINITIALIZED:
            return play
        case State.INITIALIZING:
            play.call(Event.INIT)
        case State.READY:
            play.ready()
        case State.IN_TRANSACTION:
            play.begun()
        case State.PREPARING:
            play.written().drained = False
            play.call(Event.PREPARE)
        case State.PREPARED:
            play.written().call(Event.PREPARE)
            play.serve()
        case State.COMMITTING:
            play.written().drained = False
            play.call(Event.COMMIT)
        case State.ABORTABLE_ERROR:
            play.written().machine.fail(ValueError("a record"))
        case State.ABORTING:
            play.written().drained = False
            play.call(Event.ABORT)
        case State.FATAL_ERROR:
            play.begun().machine.fail(errors.ProducerFencedError("by another"), PRODUCER_FENCED)
    assert play.is_in(state)
    return play


CALLS: dict[str, Callable[[Play], Call]] = {
    "init": lambda play: play.call(Event.INIT),
    "begin": lambda play: play.call(Event.BEGIN),
    "prepare": lambda play: play.call(Event.PREPARE),
    "commit": lambda play: play.call(Event.COMMIT),
    "abort": lambda play: play.call(Event.ABORT),
    "offsets": lambda play: play.offsets(),
    "close": lambda play: play.close(),
}
WAITS, DONE = "waits", "done"
_S = State
ALLOWED: dict[tuple[State, str], tuple[State, str]] = {
    (_S.UNINITIALIZED, "init"): (_S.INITIALIZING, WAITS),
    (_S.INITIALIZING, "init"): (_S.INITIALIZING, WAITS),
    (_S.READY, "begin"): (_S.IN_TRANSACTION, DONE),
    (_S.IN_TRANSACTION, "prepare"): (_S.PREPARING, WAITS),
    (_S.IN_TRANSACTION, "commit"): (_S.COMMITTING, WAITS),
    (_S.IN_TRANSACTION, "abort"): (_S.ABORTING, WAITS),
    (_S.IN_TRANSACTION, "offsets"): (_S.IN_TRANSACTION, WAITS),
    (_S.IN_TRANSACTION, "close"): (_S.ABORTING, WAITS),
    (_S.PREPARING, "prepare"): (_S.PREPARING, WAITS),
    (_S.PREPARING, "abort"): (_S.ABORTING, WAITS),
    (_S.PREPARING, "close"): (_S.ABORTING, WAITS),
    (_S.PREPARED, "prepare"): (_S.PREPARED, DONE),
    (_S.PREPARED, "commit"): (_S.COMMITTING, WAITS),
    (_S.PREPARED, "abort"): (_S.ABORTING, WAITS),
    (_S.COMMITTING, "commit"): (_S.COMMITTING, WAITS),
    (_S.COMMITTING, "abort"): (_S.ABORTING, WAITS),
    (_S.COMMITTING, "close"): (_S.COMMITTING, WAITS),
    (_S.ABORTABLE_ERROR, "abort"): (_S.ABORTING, WAITS),
    (_S.ABORTABLE_ERROR, "close"): (_S.ABORTING, WAITS),
    (_S.ABORTING, "abort"): (_S.ABORTING, WAITS),
    (_S.ABORTING, "close"): (_S.ABORTING, WAITS),
}
"""What is allowed. Everything else is refused at once and changes nothing; close() has nothing to do then."""
ADVICE = {
    _S.UNINITIALIZED: "call init_transactions() first",
    _S.INITIALIZING: "call init_transactions() again",
    _S.READY: "call begin_transaction() first",
    _S.IN_TRANSACTION: "commit or abort it first",
    _S.PREPARING: "call prepare_transaction() again",
    _S.PREPARED: "commit or abort it first",
    _S.COMMITTING: "call commit_transaction() again",
    _S.ABORTING: "call abort_transaction() again",
}


def snapshot(play: Play) -> dict[str, Any]:
    return {
        name: copy.copy(value) if isinstance(value, list | dict | set) else value
        for name, value in vars(play.machine).items()
    }


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_calls_out_of_order_are_refused_at_once_and_change_nothing(state: State, name: str) -> None:
    play = in_state(state)
    before = snapshot(play)
    call = CALLS[name](play)
    if (state, name) in ALLOWED:
        to, outcome = ALLOWED[state, name]
        assert play.is_in(to)
        assert call.done == (outcome == DONE)
        assert call.error is None
        return
    assert snapshot(play) == before
    if name == "close":
        succeeded(call)
        return
    error = refused(call)
    if state is State.FATAL_ERROR:
        assert error == errors.ProducerFencedError("by another")
    elif state is State.ABORTABLE_ERROR:
        assert isinstance(error, errors.AbortableError)
        assert isinstance(error.__cause__, ValueError)
    else:
        assert type(error) is errors.IllegalStateError
        advice = "called once" if (state, name) == (State.READY, "init") else ADVICE[state]
        assert advice in str(error)
        assert state.value in str(error)
        assert "'tx'" in str(error)


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_records_are_accepted_in_an_open_transaction_only(state: State) -> None:
    machine = in_state(state).machine
    assert machine.accepts_records == (state is State.IN_TRANSACTION)
    if machine.accepts_records:
        return
    error = machine.refusal()
    if state is State.FATAL_ERROR:
        assert isinstance(error, errors.ProducerFencedError)
    elif state is State.ABORTABLE_ERROR:
        assert isinstance(error, errors.AbortableError)
        assert isinstance(error.__cause__, ValueError)
    else:
        assert type(error) is errors.IllegalStateError
        assert state.value in str(error)
        assert "begin_transaction()" in str(error)


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_what_is_not_sent_yet_is_given_up_once_the_transaction_has_failed(state: State) -> None:
    machine = in_state(state).machine
    assert machine.failed == (state in (State.ABORTABLE_ERROR, State.ABORTING, State.FATAL_ERROR))
    if not machine.failed:
        return
    error = machine.record_error()
    assert type(error) is errors.TransactionAbortedError
    assert "'tx'" in str(error)
    if state is State.ABORTING:
        assert "abort_transaction() was called" in str(error)
        assert error.__cause__ is None
    else:
        assert error.__cause__ is machine.cause
        assert str(machine.cause) in str(error)


# init


@LEVELS
def test_init_finds_the_coordinator_and_takes_the_id_over(level: int) -> None:
    play = Play(level)
    call = play.call(Event.INIT)
    completes(play, call, FindCoordinator(1, "tx"), InitProducerId(-1, -1))
    assert (play.machine.producer_id, play.machine.epoch) == (PRODUCER, 0)
    assert play.is_in(State.READY)


def test_an_init_that_times_out_goes_on_and_the_next_call_joins_it() -> None:
    play = Play()
    first = play.call(Event.INIT)
    play.reach(InitProducerId)
    first.abandoned = True
    second = play.call(Event.INIT)
    assert play.next() is None, "one request"
    play.answer()
    succeeded(second)
    assert play.call(Event.BEGIN).error is None


def test_an_init_that_succeeded_unseen_is_told_to_the_next_call() -> None:
    play = Play()
    first = play.call(Event.INIT)
    play.serve()
    first.abandoned = True
    error = refused(play.call(Event.BEGIN))
    assert "init_transactions() timed out and has succeeded since: call it again" in str(error)
    succeeded(play.call(Event.INIT))
    assert play.serve() == []
    succeeded(play.call(Event.BEGIN))


def test_a_refused_init_may_be_repeated_after_rights_were_granted() -> None:
    play = Play()
    call = play.call(Event.INIT)
    play.answer_to(InitProducerId, TXN_ID_AUTHORIZATION_FAILED)
    error = refused(call)
    assert type(error) is errors.TransactionalIdAuthorizationFailedError
    assert isinstance(error, errors.InvalidSetupError)
    assert "grant this principal Write and Describe on TransactionalId 'tx'" in str(error)
    again = play.call(Event.INIT)
    assert play.kinds() == ["InitProducerId"]
    succeeded(again)


def test_a_refused_timeout_names_the_option_its_value_and_the_brokers() -> None:
    play = Play(timeout_ms=900_001)
    call = play.call(Event.INIT)
    play.answer_to(InitProducerId, INVALID_TRANSACTION_TIMEOUT)
    error = refused(call)
    assert isinstance(error, errors.InvalidSetupError)
    assert "transaction_timeout_ms=900001: lower it, or raise transaction.max.timeout.ms" in str(error)


def test_old_brokers_refuse_init_and_end_a_producer_that_is_open() -> None:
    old = errors.UnsupportedVersionError("too old")
    play = Play()
    call = play.call(Event.INIT)
    play.machine.refuse_init(old)
    assert refused(call) == old
    assert play.is_in(State.UNINITIALIZED)
    play = Play().begun()
    play.machine.refuse_init(old)
    assert play.is_in(State.FATAL_ERROR)
    error = refused(play.call(Event.ABORT))
    assert error == old
    assert isinstance(error, errors.InvalidSetupError)


# begin and opening


@LEVELS
def test_begin_sends_nothing_and_neither_do_the_ends_of_an_empty_transaction(level: int) -> None:
    play = Play(level).ready()
    for event in (Event.COMMIT, Event.ABORT, Event.COMMIT):
        assert play.call(Event.BEGIN).error is None
        play.pass_ms(10 * LEVEL_AGE_MS)
        assert play.next() is None
        call = play.call(event)
        completes(play, call)
    assert play.machine.number == 3


@LEVELS
def test_an_empty_transaction_after_another_one_sends_nothing_either(level: int) -> None:
    play = ended(Play(level))
    play.begun()
    play.pass_ms(10 * LEVEL_AGE_MS)
    call = play.call(Event.COMMIT)
    completes(play, call)


def test_the_cause_of_one_transaction_is_not_that_of_the_next() -> None:
    play = Play(2).written()
    play.machine.fail(ValueError("first"))
    play.call(Event.ABORT)
    play.serve()
    play.begun().call(Event.ABORT)
    assert "abort_transaction() was called" in str(play.machine.record_error())
    play.serve()
    play.begun().machine.fail(ValueError("second"))
    assert str(play.machine.cause) == "second"


@LEVELS
def test_empty_offsets_are_no_request(level: int) -> None:
    play = Play(level).begun()
    succeeded(play.offsets({}))
    play.pass_ms(10 * LEVEL_AGE_MS)
    succeeded(play.offsets({}))
    call = play.call(Event.COMMIT)
    completes(play, call)


def test_the_first_protocol_adds_partitions_in_waves() -> None:
    play = Play(1).begun()
    play.write(("t", 0), ("t", 1))
    assert play.serve() == [AddPartitions((("t", 0), ("t", 1)))]
    assert play.machine.protocol == FIRST
    assert play.machine.added == [("t", 0), ("t", 1)]
    play.machine.added = []
    play.write(("u", 0))
    request = play.send(AddPartitions)
    assert request.partitions == (("u", 0),)
    play.write(("u", 1))
    play.answer()
    assert play.machine.added == [("u", 0)], "those of the request"
    assert play.serve() == [AddPartitions((("u", 1),))]


def test_the_second_protocol_opens_without_a_request() -> None:
    play = Play(2).begun()
    play.write()
    assert play.serve() == []
    assert play.machine.protocol == SECOND
    assert play.machine.added == []
    assert HIGHEST_PRODUCE[FIRST] == 11 < HIGHEST_PRODUCE[SECOND]


@pytest.mark.parametrize(("level", "protocol"), [(0, FIRST), (1, FIRST), (2, SECOND), (3, SECOND)], ids=str)
def test_the_finalized_level_decides_on_the_protocol(level: int, protocol: int) -> None:
    play = Play(level).written()
    assert play.machine.protocol == protocol
    play.call(Event.COMMIT)
    assert play.serve() == [EndTxn(True, protocol)]


def test_the_newest_features_count_whoever_tells_them() -> None:
    play = Play(1).ready()
    play.machine.on_features(5, 2, play.now_ms)
    play.machine.on_features(4, 0, play.now_ms)
    play.machine.on_features(-1, 0, play.now_ms)
    play.level = 2
    play.written()
    assert play.machine.protocol == SECOND
    play.machine.on_features(5, 1, play.now_ms)
    assert play.machine.protocol == SECOND, "a transaction keeps its protocol"


def test_the_level_is_asked_for_before_a_transaction_unless_it_is_known_from_the_last_second() -> None:
    play = Play(1).ready()
    play.pass_ms(LEVEL_AGE_MS)
    play.written()
    play.call(Event.COMMIT)
    assert play.kinds() == ["EndTxn"]
    play.pass_ms(LEVEL_AGE_MS + 1)
    play.begun().write()
    assert play.kinds() == ["AskLevel", "AddPartitions"]


def test_a_level_that_was_raised_or_lowered_since_the_last_transaction_counts() -> None:
    play = ended(Play(1))
    for level, protocol in ((2, SECOND), (0, FIRST), (2, SECOND), (1, FIRST)):
        play.level, play.features_epoch = level, play.features_epoch + 1
        play.pass_ms(2 * LEVEL_AGE_MS)
        play.written()
        assert play.machine.protocol == protocol
        play.call(Event.COMMIT)
        assert play.serve() == [EndTxn(True, protocol)]


def test_an_unknown_level_is_that_of_the_first_protocol() -> None:
    play = Play(2).ready()
    play.pass_ms(2 * LEVEL_AGE_MS)
    play.begun().write()
    play.send(AskLevel)
    play.machine.on_level_unknown(play.now_ms)
    assert play.next() is None, "it is not asked again"
    assert play.machine.protocol == SECOND, "what is known from before"
    never = Play(0)
    never.begun().write()
    assert never.kinds() == ["AddPartitions"]


def test_an_answer_that_is_older_than_what_is_known_counts_as_an_answer() -> None:
    play = Play(2).ready()
    play.machine.on_features(5, 2, play.now_ms)
    play.level, play.features_epoch = 1, 4
    play.pass_ms(2 * LEVEL_AGE_MS)
    play.begun().write()
    assert play.serve() == [AskLevel()]
    assert play.machine.protocol == SECOND


def test_an_open_transaction_of_the_second_protocol_is_ended_by_the_first_where_the_level_has_sunk() -> None:
    for level in (0, 1):
        play = Play(2).written()
        play.level, play.features_epoch = level, 2
        play.pass_ms(2 * LEVEL_AGE_MS)
        call = play.call(Event.COMMIT)
        completes(play, call, AskLevel(), EndTxn(True, FIRST))


def test_an_open_transaction_of_the_first_protocol_is_ended_by_it_although_the_level_has_risen() -> None:
    play = Play(1).written()
    play.machine.on_features(2, 2, play.now_ms)
    play.call(Event.COMMIT)
    assert play.serve() == [EndTxn(True, FIRST)]


def test_the_epoch_is_bumped_before_the_first_transaction_of_the_second_protocol() -> None:
    play = bumping(Play(1))
    epoch = play.machine.epoch
    assert play.serve() == [InitProducerId(PRODUCER, epoch)]
    assert play.machine.epoch == epoch + 1
    assert play.machine.protocol == SECOND
    play.wrote = True
    play.call(Event.COMMIT)
    assert play.serve() == [EndTxn(True, SECOND)]
    play.begun().write()
    assert [kind for kind in play.kinds() if kind == "InitProducerId"] == [], "once"


def test_the_first_protocol_follows_the_second_without_a_bump() -> None:
    play = ended(Play(2))
    play.machine.on_features(2, 1, play.now_ms)
    play.level = 1
    play.begun().write()
    assert play.kinds() == ["AddPartitions"]


def ended(play: Play) -> Play:
    """After a transaction that has committed something."""
    play.written().call(Event.COMMIT)
    play.serve()
    assert play.is_in(State.READY)
    return play


def bumping(play: Play) -> Play:
    """Before the first transaction of the second protocol, after one of the first."""
    ended(play)
    play.machine.on_features(2, 2, play.now_ms)
    play.level, play.features_epoch = 2, 2
    play.begun().write()
    return play


def test_the_second_protocol_waits_for_the_markers_of_the_last_transaction() -> None:
    play = ended(Play(2))
    play.markers = ["PrepareCommit", "PrepareAbort", "PrepareEpochFence"]
    play.begun().write()
    waited = []
    while play.machine.protocol is None:
        play.answer_next(AskMarkers)
        waited.append(play.machine.wait_ms(play.now_ms))
        assert waited[-1] == math.inf or play.next() is None
        play.pass_ms(0 if waited[-1] == math.inf else waited[-1])
        play.next()
    assert waited == [1.0, 1.5, 2.25, math.inf]
    assert play.next() is None
    # Nobody asks again in the same transaction.
    play.write(("t", 1))
    assert play.serve() == []


def test_markers_are_waited_for_no_longer_than_the_broker_would() -> None:
    play = ended(Play(2))
    play.markers = ["PrepareCommit"] * 100
    play.pass_ms(MARKERS_LAST_MS - 1)
    play.begun().write()
    play.answer_next(AskMarkers)
    play.pass_ms(1)
    assert play.next() is None
    assert play.machine.protocol == SECOND


@pytest.mark.parametrize("code", [0, 105, NOT_COORDINATOR])
def test_a_coordinator_that_does_not_tell_of_markers_is_not_asked_again(code: int) -> None:
    play = ended(Play(2))
    play.begun().write()
    play.answer_next(AskMarkers, code)
    assert play.next() is None
    assert play.machine.protocol == SECOND
    play.wrote = True
    play.call(Event.COMMIT)
    assert ("FindCoordinator" in map(type_name, play.serve())) == (code == NOT_COORDINATOR)


def type_name(value: object) -> str:
    return type(value).__name__


def test_an_older_coordinator_is_not_asked_for_markers() -> None:
    play = ended(Play(2))
    play.begun().write()
    assert isinstance(play.next(), AskMarkers)
    play.machine.skip_markers()
    assert play.next() is None
    assert play.machine.protocol == SECOND


def test_the_first_add_waits_milliseconds_for_the_last_transaction() -> None:
    play = ended(Play(1))
    play.begun().write()
    for _ in range(30):
        play.answer_next(AddPartitions, CONCURRENT)
        wait = play.machine.wait_ms(play.now_ms)
        assert 1 <= wait <= MARKERS_LAST_MS
        assert play.next() is None
        play.pass_ms(wait)
    assert play.kinds() == ["AddPartitions"]
    assert play.is_in(State.IN_TRANSACTION)


# Commit


@LEVELS
@pytest.mark.parametrize("event", [Event.COMMIT, Event.ABORT], ids=lambda event: event.name)
def test_no_end_while_a_produce_request_is_unanswered(level: int, event: Event) -> None:
    play = Play(level).written()
    play.drained = False
    call = play.call(event)
    assert play.next() is None
    assert play.asked_drained, "so that the machine is asked again"
    play.drained = True
    completes(play, call, EndTxn(event is Event.COMMIT, level))


def test_the_level_is_asked_for_while_records_are_still_on_their_way() -> None:
    play = Play(2).written()
    play.pass_ms(2 * LEVEL_AGE_MS)
    play.drained = False
    play.call(Event.COMMIT)
    assert play.serve() == [AskLevel()]
    play.drained = True
    assert play.serve() == [EndTxn(True, SECOND)]


def test_a_commit_waits_until_a_caller_has_seen_its_callbacks_run() -> None:
    play = Play(2).written()
    call = play.call(Event.COMMIT, released=False)
    assert play.serve() == []
    assert not call.done
    call.released = True
    completes(play, call, EndTxn(True, SECOND))


def test_two_threads_commit_together() -> None:
    play = Play(2).written()
    first, second = play.call(Event.COMMIT, released=False), play.call(Event.COMMIT)
    completes(play, first, EndTxn(True, SECOND))
    succeeded(second)


def test_each_end_of_the_second_protocol_gives_the_next_identity() -> None:
    play = Play(2).ready()
    epochs = []
    for event in (Event.COMMIT, Event.ABORT, Event.COMMIT):
        play.written()
        epochs.append(play.machine.epoch)
        play.call(event)
        assert play.kinds() == ["EndTxn"]
    assert epochs == [0, 1, 2]
    assert play.machine.epoch == 3


def test_the_first_protocol_keeps_the_epoch_for_many_transactions() -> None:
    play = Play(1).ready()
    for event in (Event.COMMIT, Event.ABORT, Event.COMMIT):
        play.written().call(event)
        assert play.kinds() == ["EndTxn"]
        assert (play.machine.producer_id, play.machine.epoch) == (PRODUCER, 0)


def test_an_exhausted_epoch_comes_with_a_new_producer_id() -> None:
    play = Play(2).written()
    play.call(Event.COMMIT)
    play.answer_to(EndTxn, identity=(PRODUCER + 1, 0))
    assert (play.machine.producer_id, play.machine.epoch) == (PRODUCER + 1, 0)
    # The same for a bump of the first protocol.
    play = Play(1)
    play.epoch = FENCING_EPOCH - 3
    play.written()
    play.machine.fail(ValueError("a record"), 0, sequenced=True)
    call = play.call(Event.ABORT)
    play.answer_to(InitProducerId, identity=(PRODUCER + 1, 0))
    completes(play, call)
    assert (play.machine.producer_id, play.machine.epoch) == (PRODUCER + 1, 0)


@pytest.mark.parametrize(
    "code",
    [CONCURRENT, COORDINATOR_LOAD_IN_PROGRESS, INVALID_TXN_STATE, PRODUCER_FENCED, UNKNOWN_SERVER_ERROR],
)
@pytest.mark.parametrize("event", [Event.COMMIT, Event.ABORT], ids=lambda event: event.name)
def test_only_an_end_that_succeeds_gives_an_identity(event: Event, code: int) -> None:
    play = Play(2).written()
    play.call(event)
    play.answer_to(EndTxn, code, identity=(PRODUCER + 1, 5))
    assert (play.machine.producer_id, play.machine.epoch) == (PRODUCER, 0)


def test_an_end_that_gives_no_identity_leaves_the_old_one() -> None:
    play = Play(2).written()
    commit = play.call(Event.COMMIT)
    play.answer_to(EndTxn, identity=(-1, -1))
    succeeded(commit)
    assert (play.machine.producer_id, play.machine.epoch) == (PRODUCER, 0)


@pytest.mark.parametrize("way", ["before a transaction", "after an abort"])
def test_a_bump_of_an_id_that_has_expired_takes_no_new_identity(way: str) -> None:
    """Whoever has had the id since may have ended, too: nothing would fence this producer (KAFKA-18019)."""
    if way == "before a transaction":
        play = bumping(Play(1))
        call = None
    else:
        play = Play(1).written()
        play.machine.fail(ValueError("a record"), 0, sequenced=True)
        call = play.call(Event.ABORT)
    play.answer_to(InitProducerId, identity=(PRODUCER + 1, 0))
    assert play.is_in(State.FATAL_ERROR)
    error = refused(call or play.call(Event.COMMIT))
    assert type(error) is errors.InvalidProducerIdMappingError
    assert f"it has producer id {PRODUCER + 1} in place of {PRODUCER}" in str(error)
    assert play.serve() == []


def test_a_loading_coordinator_after_the_last_epoch_leaves_the_transaction_open() -> None:
    play = Play(2).written()
    call = play.call(Event.COMMIT)
    play.answer_to(EndTxn, COORDINATOR_LOAD_IN_PROGRESS)
    assert not call.done
    play.pass_ms(BACKOFF_MS)
    play.answer_next(EndTxn, identity=(PRODUCER + 1, 0))
    succeeded(call)
    assert (play.machine.producer_id, play.machine.epoch) == (PRODUCER + 1, 0)


@LEVELS
@pytest.mark.parametrize("event", [Event.COMMIT, Event.ABORT], ids=lambda event: event.name)
def test_an_end_without_an_answer_goes_again_as_it_was(level: int, event: Event) -> None:
    play = Play(level).written()
    call = play.call(event)
    request = play.reach(EndTxn)
    identity = play.machine.producer_id, play.machine.epoch
    play.lose()
    assert play.next() is None
    play.pass_ms(BACKOFF_MS)
    assert play.serve() == [FindCoordinator(1, "tx"), request]
    assert identity[0] == PRODUCER
    succeeded(call)


@LEVELS
def test_an_abort_is_refused_once_a_commit_may_have_been_sent(level: int) -> None:
    play = Play(level).written()
    play.drained = False
    early = play.call(Event.COMMIT)
    early.abandoned = True
    play.drained = True
    play.reach(EndTxn)
    for step in ("sent", "cut", "answered"):
        error = refused(play.call(Event.ABORT))
        assert "its outcome is open: call commit_transaction() again" in str(error), step
        if step == "sent":
            play.lose()
        elif step == "cut":
            play.pass_ms(BACKOFF_MS)
            play.answer_to(EndTxn, CONCURRENT)
    again = play.call(Event.COMMIT)
    play.pass_ms(MARKERS_LAST_MS)
    assert play.kinds() == ["EndTxn"]
    succeeded(again)


def test_a_commit_that_waits_for_records_may_be_given_up_by_an_abort() -> None:
    play = Play(2).written()
    play.drained = False
    commit = play.call(Event.COMMIT)
    abort = play.call(Event.ABORT)
    assert "abort_transaction() was called meanwhile" in str(refused(commit))
    play.drained = True
    completes(play, abort, EndTxn(False, SECOND))


def test_a_commit_that_succeeded_unseen_is_told_to_the_next_call_only() -> None:
    play = Play(2).written()
    commit = play.call(Event.COMMIT)
    play.serve()
    commit.abandoned = True
    for other in (Event.BEGIN, Event.ABORT, Event.PREPARE):
        assert "commit_transaction() timed out and has succeeded since" in str(refused(play.call(other)))
    assert "has succeeded since" in str(refused(play.offsets()))
    succeeded(play.call(Event.COMMIT))
    assert type(refused(play.call(Event.COMMIT))) is errors.IllegalStateError
    succeeded(play.call(Event.BEGIN))


def test_an_outcome_that_one_of_two_threads_has_seen_is_not_told_again() -> None:
    play = Play(2).written()
    gone, here = play.call(Event.COMMIT), play.call(Event.COMMIT)
    play.serve()
    gone.abandoned = True
    succeeded(here)
    succeeded(play.call(Event.BEGIN))


def test_a_commit_that_failed_unseen_is_told_by_the_state() -> None:
    play = Play(2).written()
    play.drained = False
    play.call(Event.COMMIT).abandoned = True
    play.machine.fail(ValueError("a record"))
    assert isinstance(refused(play.call(Event.COMMIT)), errors.AbortableError)
    abort = play.call(Event.ABORT)
    play.drained = True
    play.serve()
    succeeded(abort)


@pytest.mark.parametrize("code", [INVALID_TXN_STATE, PRODUCER_FENCED])
@pytest.mark.parametrize("still_ours", [True, False])
def test_after_the_brokers_timeout_the_second_protocol_asks_by_an_abort(code: int, still_ours: bool) -> None:
    play = Play(2, timeout_ms=1500).written()
    play.pass_ms(10_250)
    commit = play.call(Event.COMMIT)
    play.answer_to(EndTxn, code)
    error = refused(commit)
    assert isinstance(error, errors.AbortableError)
    assert "the transaction was open for 10.2 s; the broker aborts it after transaction_timeout_ms=1500" in (
        str(error)
    )
    assert play.is_in(State.ABORTABLE_ERROR)
    abort = play.call(Event.ABORT)
    assert play.reach(EndTxn) == EndTxn(False, SECOND)
    play.answer(0 if still_ours else PRODUCER_FENCED)
    if still_ours:
        succeeded(abort)
        assert play.is_in(State.READY)
    else:
        assert isinstance(refused(abort), errors.ProducerFencedError)
        assert play.is_in(State.FATAL_ERROR)


@pytest.mark.parametrize("code", [INVALID_PRODUCER_EPOCH, PRODUCER_FENCED])
@pytest.mark.parametrize("event", [Event.COMMIT, Event.ABORT], ids=lambda event: event.name)
def test_a_fenced_end_of_the_first_protocol_tells_the_age_of_the_transaction(event: Event, code: int) -> None:
    """The broker's timeout and another producer have the same answer."""
    play = Play(1, timeout_ms=1500).written()
    play.pass_ms(10_250)
    call = play.call(event)
    play.answer_to(EndTxn, code)
    error = refused(call)
    assert type(error) is errors.for_code(code)
    assert "EndTxn" in str(error)
    assert str(error).endswith(
        "the transaction was open for 10.2 s; the broker aborts it after transaction_timeout_ms=1500"
    )


def test_the_age_of_a_transaction_counts_from_its_opening_not_from_begin() -> None:
    play = Play(2).begun()
    play.pass_ms(60_000)
    play.write()
    play.serve()
    play.wrote = True
    play.pass_ms(500)
    commit = play.call(Event.COMMIT)
    play.answer_to(EndTxn, INVALID_TXN_STATE)
    assert "open for 0.5 s" in str(refused(commit))


# Records that are lost


@LEVELS
@pytest.mark.parametrize("state", [_S.IN_TRANSACTION, _S.PREPARING, _S.COMMITTING], ids=lambda s: s.name)
def test_a_record_that_fails_fails_the_transaction(level: int, state: State) -> None:
    play = in_state(state, level)
    waiting = [] if state is _S.IN_TRANSACTION else list(play.machine._calls)
    play.machine.fail(ValueError("first"))
    play.machine.fail(ValueError("second"))
    assert play.is_in(State.ABORTABLE_ERROR)
    assert str(play.machine.cause) == "first"
    for call in waiting:
        assert isinstance(refused(call), errors.TransactionFailedError)
    assert play.next() is None
    error = refused(play.call(Event.COMMIT))
    assert isinstance(error, errors.TransactionFailedError)
    assert "call abort_transaction(); the first error: first" in str(error)
    assert str(error.__cause__) == "first"


@pytest.mark.parametrize(
    "state", [_S.UNINITIALIZED, _S.INITIALIZING, _S.READY, _S.PREPARED], ids=lambda state: state.name
)
def test_a_record_that_no_open_transaction_lacks_changes_nothing(state: State) -> None:
    """Between transactions, a late failure leaves the next transaction alone."""
    play = in_state(state)
    play.machine.fail(ValueError("late"))
    assert play.is_in(state)
    assert play.machine.cause is None


def test_what_fails_while_it_is_aborted_changes_nothing() -> None:
    play = in_state(State.ABORTING)
    play.machine.fail(ValueError("late"))
    assert play.is_in(State.ABORTING)
    assert play.machine.cause is None


@pytest.mark.parametrize("code", [UNSUPPORTED_VERSION, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED])
def test_fatal_errors_of_produce(code: int) -> None:
    play = Play(2).written()
    play.drained = False
    commit = play.call(Event.COMMIT)
    error = errors.for_code(code)("t-0")
    play.machine.fail(error, code, sequenced=True)
    assert play.is_in(State.FATAL_ERROR)
    assert refused(commit) == error


@pytest.mark.parametrize(
    "code",
    [
        2,
        7,
        10,
        29,
        OUT_OF_ORDER,
        INVALID_PRODUCER_EPOCH,
        INVALID_TXN_STATE,
        53,
        59,
        87,
        TRANSACTION_ABORTABLE,
        -1,
    ],
)
def test_abortable_errors_of_produce(code: int) -> None:
    play = Play(2).written()
    play.machine.fail(errors.for_code(code)("t-0"), code, sequenced=True)
    assert play.is_in(State.ABORTABLE_ERROR)
    abort = play.call(Event.ABORT)
    completes(play, abort, EndTxn(False, SECOND))


def test_a_fenced_batch_of_a_failed_transaction_is_fatal_and_fatal_stays_fatal() -> None:
    play = Play(2).written()
    play.machine.fail(ValueError("first"))
    play.machine.fail(errors.ProducerFencedError("t-0"), PRODUCER_FENCED)
    assert play.is_in(State.FATAL_ERROR)
    play.machine.fail(ValueError("later"))
    play.machine.fail(errors.InvalidProducerIdMappingError("later"), INVALID_PRODUCER_ID_MAPPING)
    assert play.is_in(State.FATAL_ERROR)
    assert play.machine.cause == errors.ProducerFencedError("t-0")


def test_later_calls_of_a_fenced_producer_give_the_first_cause_and_send_nothing() -> None:
    play = in_state(State.FATAL_ERROR)
    for event in (Event.ABORT, Event.COMMIT, Event.BEGIN, Event.INIT, Event.PREPARE):
        assert refused(play.call(event)) == errors.ProducerFencedError("by another")
    assert refused(play.offsets()) == errors.ProducerFencedError("by another")
    assert play.serve() == []


def test_an_error_that_is_of_no_fatal_class_is_wrapped_with_its_cause() -> None:
    play = Play(2).written()
    commit = play.call(Event.COMMIT)
    play.answer_to(EndTxn, UNKNOWN_SERVER_ERROR)
    error = refused(commit)
    assert type(error) is errors.TransactionalProducerFailedError
    assert isinstance(error, errors.ApplicationRecoverableError)
    assert type(error.__cause__) is errors.UnknownError
    assert "close it and make a new one" in str(error)
    assert "EndTxn(commit)" in str(error)


# After an abort


def test_after_an_abort_of_the_first_protocol_the_epoch_is_bumped_if_sequences_were_lost() -> None:
    play = Play(1).written()
    play.machine.fail(ValueError("a record"), 0, sequenced=True)
    abort = play.call(Event.ABORT)
    completes(play, abort, EndTxn(False, FIRST), InitProducerId(PRODUCER, 0))
    assert play.machine.epoch == 1
    ended(play)
    assert play.machine.epoch == 1, "once"


def test_sequences_that_are_lost_while_it_is_aborted_count_too() -> None:
    play = Play(1).written()
    play.drained = False
    play.call(Event.ABORT)
    play.machine.fail(ValueError("a record"), 0, sequenced=True)
    play.drained = True
    assert play.kinds() == ["EndTxn", "InitProducerId"]


@pytest.mark.parametrize("sequenced", [True, False])
def test_the_second_protocol_needs_no_bump(sequenced: bool) -> None:
    play = Play(2).written()
    play.machine.fail(ValueError("a record"), 0, sequenced=sequenced)
    play.call(Event.ABORT)
    assert play.serve() == [EndTxn(False, SECOND)]
    play.begun().write()
    assert "InitProducerId" not in play.kinds()


def test_a_lowered_level_at_the_abort_is_bumped_like_the_first_protocol() -> None:
    play = Play(2).written()
    play.machine.fail(ValueError("a record"), 0, sequenced=True)
    play.machine.on_features(2, 1, play.now_ms)
    play.call(Event.ABORT)
    assert play.serve() == [EndTxn(False, FIRST), InitProducerId(PRODUCER, 0)]


@pytest.mark.parametrize("event", [Event.COMMIT, Event.ABORT])
def test_an_end_of_the_first_protocol_is_repeated_by_it_although_the_level_was_raised(event: Event) -> None:
    """By the second one the coordinator would refuse it, if it has carried it out, as after its own abort."""
    play = Play(2).written()
    play.machine.on_features(2, 1, play.now_ms)
    call = play.call(event)
    assert play.reach(EndTxn).protocol == FIRST
    play.lose()
    play.machine.on_features(3, 2, play.now_ms)
    play.level, play.features_epoch = 2, 3
    play.pass_ms(BACKOFF_MS)
    assert play.reach(EndTxn).protocol == FIRST
    play.answer()
    succeeded(call)
    # The next transaction's end knows nothing of that.
    play.begun().write()
    assert "InitProducerId" in play.kinds()
    play.wrote = True
    play.call(event)
    assert play.reach(EndTxn).protocol == SECOND


@LEVELS
def test_no_init_before_the_end_of_an_open_transaction(level: int) -> None:
    """It would abort silently, and what is sent later would be committed without what came before."""
    play = Play(level).written()
    play.machine.fail(errors.OutOfOrderSequenceNumberError("t-0"), OUT_OF_ORDER, sequenced=True)
    for _ in range(3):
        assert play.next() is None
        play.pass_ms(5000)
    assert isinstance(refused(play.call(Event.COMMIT)), errors.AbortableError)
    play.call(Event.ABORT)
    kinds = play.kinds()
    assert "EndTxn" in kinds
    assert "InitProducerId" not in kinds[: kinds.index("EndTxn")]


@pytest.mark.parametrize("wrote", [True, False])
def test_a_produce_request_of_the_second_protocol_may_have_added_although_it_was_refused(wrote: bool) -> None:
    play = Play(2).begun()
    play.write()
    play.serve()
    play.wrote = wrote
    # What was not sent yet has no sequence.
    play.machine.fail(errors.MessageSizeTooLargeError("t-0"), 10, sequenced=wrote)
    abort = play.call(Event.ABORT)
    assert play.serve() == ([EndTxn(False, SECOND)] if wrote else [])
    succeeded(abort)


def test_a_refused_partition_of_the_first_protocol_leaves_nothing_to_end() -> None:
    play = Play(1).begun()
    play.write(("t", 0), ("secret", 0))
    play.answer_next(
        AddPartitions, codes={("t", 0): NOT_ATTEMPTED, ("secret", 0): TOPIC_AUTHORIZATION_FAILED}
    )
    error = refused(play.call(Event.COMMIT))
    assert type(error.__cause__) is errors.TopicAuthorizationFailedError
    assert "AddPartitionsToTxn of secret-0" in str(error)
    assert play.machine.added == []
    abort = play.call(Event.ABORT)
    completes(play, abort)
    play.begun().write(("t", 0))
    assert play.serve() == [AddPartitions((("t", 0),))], "none stays pending"


def test_partitions_that_were_added_before_a_refused_one_stay_in() -> None:
    play = Play(1).written(("t", 0))
    play.write(("secret", 0))
    play.answer_next(AddPartitions, TOPIC_AUTHORIZATION_FAILED)
    play.call(Event.ABORT)
    assert play.serve() == [EndTxn(False, FIRST)]


def test_a_refused_partition_counts_more_than_one_to_try_again() -> None:
    play = Play(1).begun()
    play.write(("a", 0), ("b", 0), ("c", 0))
    play.send(AddPartitions)
    codes = {
        ("a", 0): UNKNOWN_TOPIC_OR_PARTITION,
        ("b", 0): TOPIC_AUTHORIZATION_FAILED,
        ("c", 0): NOT_ATTEMPTED,
    }
    play.answer(codes=codes)
    assert type(play.machine.cause) is errors.TopicAuthorizationFailedError


def test_partitions_that_the_answer_leaves_out_are_an_error() -> None:
    play = Play(1).begun()
    play.write(("a", 0), ("b", 0))
    play.send(AddPartitions)
    play.machine.on_partitions(AddPartitionsToTxnResponse(0, {("a", 0): 0}), "broker", play.now_ms)
    assert play.is_in(State.FATAL_ERROR)


def test_only_not_attempted_is_an_error_too() -> None:
    play = Play(1).begun()
    play.write(("a", 0))
    play.answer_next(AddPartitions, NOT_ATTEMPTED)
    assert type(play.machine.cause) is errors.OperationNotAttemptedError
    assert play.machine.added == []


def ask_for(play: Play, kind: type) -> None:
    """Makes a request of this kind necessary."""
    if kind is AddPartitions:
        play.write(("t", 1))
    else:
        play.offsets()


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets])
def test_an_add_without_an_answer_may_have_added_and_may_still_be_under_way(kind: type) -> None:
    """The broker may handle it after EndTxn, and open the next transaction with it: a bump refuses it."""
    play = Play(1).begun()
    ask_for(play, kind)
    play.reach(kind)
    play.lose()
    abort = play.call(Event.ABORT)
    assert play.reach(EndTxn) == EndTxn(False, FIRST)
    # The broker has not seen the add.
    play.answer(INVALID_TXN_STATE)
    completes(play, abort, InitProducerId(PRODUCER, 0))


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets])
def test_a_request_of_the_first_protocol_without_an_answer_is_fenced_by_a_bump_after_the_abort(
    kind: type,
) -> None:
    play = Play(1).written()
    ask_for(play, kind)
    play.reach(kind)
    play.lose()
    abort = play.call(Event.ABORT)
    assert play.kinds() == ["EndTxn", "InitProducerId"]
    succeeded(abort)


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets])
def test_an_add_that_is_refused_after_one_without_an_answer_may_have_added_before(kind: type) -> None:
    play = Play(1).begun()
    ask_for(play, kind)
    play.reach(kind)
    play.lose()
    play.pass_ms(BACKOFF_MS)
    play.answer_to(kind, TOPIC_AUTHORIZATION_FAILED if kind is AddPartitions else GROUP_AUTHORIZATION_FAILED)
    play.call(Event.ABORT)
    assert play.next() == EndTxn(False, FIRST)


def test_a_request_that_was_answered_after_all_needs_no_bump() -> None:
    play = Play(1).begun()
    play.write()
    play.reach(AddPartitions)
    play.lose()
    play.pass_ms(BACKOFF_MS)
    play.serve()
    commit = play.call(Event.COMMIT)
    assert play.kinds() == ["EndTxn"]
    succeeded(commit)


def test_a_loss_in_one_transaction_does_not_bump_after_the_next() -> None:
    play = Play(1).written()
    play.write(("t", 1))
    play.reach(AddPartitions)
    play.lose()
    play.call(Event.ABORT)
    play.serve()
    play.pass_ms(BACKOFF_MS)
    play.serve()
    play.written().call(Event.ABORT)
    assert play.kinds() == ["EndTxn"]


# Answers to what an abort has made irrelevant


@pytest.mark.parametrize(
    "code", [0, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, TRANSACTION_ABORTABLE]
)
@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets])
def test_an_answer_that_comes_during_the_abort_does_not_stop_it(kind: type, code: int) -> None:
    play = Play(1).written()
    ask_for(play, kind)
    play.reach(kind)
    abort = play.call(Event.ABORT)
    assert play.next() is None, "one request at a time"
    play.answer(code)
    play.pass_ms(BACKOFF_MS)
    assert play.kinds() == ["EndTxn"]
    succeeded(abort)


@pytest.mark.parametrize("code", [GROUP_AUTHORIZATION_FAILED, 24, TRANSACTION_ABORTABLE])
def test_a_groups_coordinator_that_is_refused_during_the_abort_does_not_stop_it(code: int) -> None:
    play = Play(2).written()
    play.offsets()
    assert play.send(FindCoordinator) == FindCoordinator(0, "g")
    abort = play.call(Event.ABORT)
    play.answer(code)
    assert play.kinds() == ["EndTxn"]
    succeeded(abort)


@pytest.mark.parametrize("code", [TXN_ID_AUTHORIZATION_FAILED, TRANSACTION_ABORTABLE])
def test_a_bump_before_a_transaction_that_is_refused_during_its_abort_does_not_stop_it(code: int) -> None:
    play = bumping(Play(1))
    play.reach(InitProducerId)
    abort = play.call(Event.ABORT)
    play.answer(code)
    completes(play, abort)


def test_a_bump_before_a_transaction_that_is_aborted_meanwhile_is_used_by_the_next() -> None:
    play = bumping(Play(1))
    play.reach(InitProducerId)
    abort = play.call(Event.ABORT)
    play.answer()
    completes(play, abort)
    play.begun().write()
    play.serve()
    assert play.machine.protocol == SECOND


# Offsets


def test_the_first_protocol_adds_a_group_once_before_its_offsets() -> None:
    play = Play(1).begun()
    first = play.offsets()
    completes(play, first, AddOffsets("g"), FindCoordinator(0, "g"), CommitOffsets(GROUP, POSITIONS, FIRST))
    second = play.offsets()
    completes(play, second, CommitOffsets(GROUP, POSITIONS, FIRST))
    play.call(Event.COMMIT)
    assert play.serve() == [EndTxn(True, FIRST)]
    play.begun().offsets()
    assert play.kinds() == ["AddOffsets", "CommitOffsets"], "once per transaction"


def test_the_second_protocol_commits_offsets_alone() -> None:
    play = Play(2).begun()
    call = play.offsets()
    completes(play, call, FindCoordinator(0, "g"), CommitOffsets(GROUP, POSITIONS, SECOND))
    play.call(Event.COMMIT)
    assert play.serve() == [EndTxn(True, SECOND)]


def test_the_groups_coordinator_is_another_question() -> None:
    play = Play(2).begun()
    play.offsets()
    play.answer_next(FindCoordinator, node=2)
    request = play.send(CommitOffsets)
    assert play.machine.coordinator(request) == 2
    assert play.machine.coordinator(EndTxn(True, SECOND)) == 1
    assert play.machine.coordinator(FindCoordinator(0, "g")) is None
    play.answer(NOT_COORDINATOR)
    play.pass_ms(BACKOFF_MS)
    assert play.send(FindCoordinator) == FindCoordinator(0, "g")
    play.answer(node=3)
    assert play.machine.coordinator(play.send(CommitOffsets)) == 3


@LEVELS
def test_offsets_are_tried_again_per_partition_after_a_pause(level: int) -> None:
    done, left = POSITIONS
    play = Play(level).begun()
    call = play.offsets()
    play.reach(CommitOffsets)
    for attempt, code in enumerate((CONCURRENT, UNKNOWN_TOPIC_OR_PARTITION, COORDINATOR_LOAD_IN_PROGRESS)):
        play.answer(codes={(left.topic, left.partition): code})
        assert not call.done
        assert play.next() is None
        assert play.machine.wait_ms(play.now_ms) > 0
        play.pass_ms(1000)
        assert play.send(CommitOffsets).positions == {left: POSITIONS[left]}, attempt
    play.answer()
    succeeded(call)
    assert done not in play.machine._left


def test_a_coordinator_that_moved_for_half_of_the_partitions_is_looked_up_anew() -> None:
    one, two = POSITIONS
    play = Play(2).begun()
    call = play.offsets()
    play.answer_to(
        CommitOffsets,
        codes={(one.topic, one.partition): NOT_COORDINATOR, (two.topic, two.partition): CONCURRENT},
    )
    play.pass_ms(1000)
    assert [type_name(request) for request in play.serve()] == ["FindCoordinator", "CommitOffsets"]
    succeeded(call)


def test_a_final_error_of_one_partition_counts_more_than_one_to_try_again() -> None:
    one, two = POSITIONS
    play = Play(2).begun()
    call = play.offsets()
    play.answer_to(
        CommitOffsets,
        codes={(one.topic, one.partition): CONCURRENT, (two.topic, two.partition): ILLEGAL_GENERATION},
    )
    error = refused(call)
    assert isinstance(error, errors.AbortableError)
    assert type(error.__cause__) is errors.IllegalGenerationError
    assert "group 'g' for in-1" in str(error)


def test_offsets_that_the_answer_leaves_out_are_an_error() -> None:
    play = Play(2).begun()
    call = play.offsets()
    play.reach(CommitOffsets)
    play.machine.on_offsets_committed(TxnOffsetCommitResponse(0, {("in", 0): 0}), "broker", play.now_ms)
    assert refused(call)


def test_offsets_that_time_out_go_on_and_the_same_call_joins_them() -> None:
    play = Play(2).begun()
    first = play.offsets()
    play.reach(CommitOffsets)
    first.abandoned = True
    other = play.offsets({TopicPartition("in", 0): OffsetAndMetadata(6)})
    assert "an earlier call for group 'g' is not complete" in str(refused(other))
    assert "an earlier call" in str(refused(play.offsets(group=ConsumerGroupMetadata("other"))))
    again = play.offsets()
    play.answer()
    completes(play, again)
    assert succeeded(first) is None


def test_a_commit_waits_for_offsets_whose_call_timed_out() -> None:
    play = Play(2).begun()
    play.offsets().abandoned = True
    commit = play.call(Event.COMMIT)
    assert play.kinds() == ["CommitOffsets", "EndTxn"]
    succeeded(commit)


@LEVELS
def test_an_abort_gives_up_offsets(level: int) -> None:
    play = Play(level).begun()
    offsets = play.offsets()
    abort = play.call(Event.ABORT)
    assert "abort_transaction() was called meanwhile" in str(refused(offsets))
    completes(play, abort)
    commit = play.begun().call(Event.COMMIT)
    assert play.serve() == [], "not in the next transaction either"
    succeeded(commit)
    again = play.begun().offsets()
    play.serve()
    succeeded(again)


def test_offsets_that_were_refused_are_in_a_transaction_of_the_second_protocol_all_the_same() -> None:
    play = Play(2).begun()
    play.offsets()
    play.answer_to(CommitOffsets, ILLEGAL_GENERATION)
    play.call(Event.ABORT)
    assert play.serve() == [EndTxn(False, SECOND)]


# prepare


@LEVELS
def test_prepare_waits_for_records_and_gives_the_identity(level: int) -> None:
    play = Play(level).written()
    play.drained = False
    call = play.call(Event.PREPARE, released=False)
    assert play.next() is None
    call.released = True
    assert play.next() is None
    assert not call.done, "a record is on its way"
    play.drained, call.released = True, False
    assert play.next() is None
    assert not call.done, "a callback runs"
    call.released = True
    assert play.serve() == []
    assert succeeded(call) == Prepared(PRODUCER, 0, level, False)
    assert succeeded(play.call(Event.PREPARE)) == Prepared(PRODUCER, 0, level, False)
    commit = play.call(Event.COMMIT)
    completes(play, commit, EndTxn(True, level))


@LEVELS
def test_an_empty_prepared_transaction_says_so(level: int) -> None:
    play = Play(level).begun()
    call = play.call(Event.PREPARE)
    assert play.serve() == []
    assert succeeded(call) == Prepared(PRODUCER, 0, FIRST, True)
    commit = play.call(Event.COMMIT)
    completes(play, commit)


def test_prepare_adds_what_is_waiting() -> None:
    play = Play(1).begun()
    play.write()
    offsets = play.offsets()
    call = play.call(Event.PREPARE)
    assert play.kinds() == ["AddPartitions", "AddOffsets", "CommitOffsets"]
    succeeded(offsets)
    succeeded(call)


def test_a_prepare_that_succeeded_unseen_is_told_to_the_next_call() -> None:
    play = Play(2).written()
    call = play.call(Event.PREPARE)
    play.serve()
    call.abandoned = True
    assert "prepare_transaction() timed out" in str(refused(play.call(Event.COMMIT)))
    assert succeeded(play.call(Event.PREPARE)) == Prepared(PRODUCER, 0, SECOND, False)
    commit = play.call(Event.COMMIT)
    play.serve()
    succeeded(commit)


# close


@LEVELS
def test_closing_aborts_an_open_transaction(level: int) -> None:
    play = Play(level).written()
    offsets = play.offsets()
    close = play.close()
    assert type(refused(offsets)) is errors.ProducerClosedError
    completes(play, close, EndTxn(False, level))


def test_closing_waits_for_a_commit() -> None:
    play = Play(2).written()
    play.drained = False
    commit = play.call(Event.COMMIT)
    close = play.close()
    assert play.next() is None
    play.drained = True
    completes(play, commit, EndTxn(True, SECOND))
    succeeded(close)


@pytest.mark.parametrize(
    "state", [_S.PREPARED, _S.FATAL_ERROR, _S.INITIALIZING], ids=lambda state: state.name
)
def test_closing_sends_no_end_of_a_prepared_transaction_or_after_a_fatal_error(state: State) -> None:
    play = in_state(state)
    succeeded(play.close())
    assert play.is_in(state)
    assert not any(isinstance(request, EndTxn) for request in play.serve())


def test_an_abort_for_a_closed_producer_that_is_refused_is_told_to_close() -> None:
    play = Play(2).written()
    close = play.close()
    play.answer_to(EndTxn, TXN_ID_AUTHORIZATION_FAILED)
    assert isinstance(refused(close), errors.TransactionalIdAuthorizationFailedError)


def test_nobody_misses_an_outcome_after_closing() -> None:
    play = Play(2).written()
    commit = play.call(Event.COMMIT)
    play.serve()
    commit.abandoned = True
    succeeded(play.close())


# Trying again


def paused(play: Play) -> Play:
    """In a transaction, in the pause after a request that failed."""
    play.written().offsets()
    for _ in range(4):
        play.answer_to(CommitOffsets, COORDINATOR_LOAD_IN_PROGRESS)
        pause = play.machine.wait_ms(play.now_ms)
        play.pass_ms(pause)
    play.pass_ms(-pause)
    assert play.next() is None
    return play


def test_a_new_call_does_not_wait_for_the_pause_of_another() -> None:
    for way in ("abort", "close", "offsets"):
        play = paused(Play(2))
        CALLS[way](play)
        assert play.next() is not None, way
        assert play.machine.wait_ms(play.now_ms) == math.inf


def test_the_next_transaction_does_not_wait_for_a_pause_of_the_last() -> None:
    play = bumping(Play(1))
    play.reach(InitProducerId)
    abort = play.call(Event.ABORT)
    play.answer(CONCURRENT)
    play.pass_ms(MARKERS_LAST_MS)
    play.serve()
    succeeded(abort)
    play.begun().write()
    play.answer_to(InitProducerId)
    assert play.serve() == []


def test_the_pause_grows_and_starts_over_after_a_success() -> None:
    play = Play(2)
    play.call(Event.INIT)
    waits = []
    for code in (COORDINATOR_LOAD_IN_PROGRESS,) * 5:
        play.answer_to(InitProducerId, code)
        waits.append(play.machine.wait_ms(play.now_ms))
        play.pass_ms(waits[-1])
    assert waits == [100, 200, 400, 800, 1000]
    play.serve()
    play.written()
    play.call(Event.COMMIT)
    play.answer_to(EndTxn, COORDINATOR_LOAD_IN_PROGRESS)
    assert play.machine.wait_ms(play.now_ms) == 100


def test_finding_a_coordinator_does_not_make_the_pause_start_over() -> None:
    """Otherwise a coordinator that says again and again that it is none would be asked without a pause."""
    play = Play(2)
    play.call(Event.INIT)
    waits = []
    for _ in range(3):
        play.answer_to(InitProducerId, NOT_COORDINATOR)
        waits.append(play.machine.wait_ms(play.now_ms))
        assert play.next() is None
        play.pass_ms(waits[-1])
    assert waits == [100, 200, 400]


def test_a_coordinator_is_looked_up_anew_after_an_error_of_the_look_up_itself() -> None:
    play = Play(2)
    call = play.call(Event.INIT)
    for _ in range(3):
        play.answer_next(FindCoordinator, COORDINATOR_NOT_AVAILABLE)
        play.pass_ms(1000)
    play.send(FindCoordinator)
    play.lose()
    play.pass_ms(1000)
    assert [type_name(request) for request in play.serve()] == ["FindCoordinator", "InitProducerId"]
    succeeded(call)


REACHED: dict[str, tuple[int, Callable[[Play], Any], type]] = {
    "init": (2, lambda play: play.call(Event.INIT), InitProducerId),
    "bump": (1, bumping, InitProducerId),
    "partitions": (1, lambda play: play.begun().write(), AddPartitions),
    "add offsets": (1, lambda play: play.begun().offsets(), AddOffsets),
    "offsets-1": (1, lambda play: play.begun().offsets(), CommitOffsets),
    "offsets-2": (2, lambda play: play.begun().offsets(), CommitOffsets),
    "commit-1": (1, lambda play: play.written().call(Event.COMMIT), EndTxn),
    "commit-2": (2, lambda play: play.written().call(Event.COMMIT), EndTxn),
    "abort-1": (1, lambda play: play.written().call(Event.ABORT), EndTxn),
    "abort-2": (2, lambda play: play.written().call(Event.ABORT), EndTxn),
    "level": (2, lambda play: aged(play), AskLevel),
    "markers": (2, lambda play: ended(play).begun().write(), AskMarkers),
    "find": (2, lambda play: play.call(Event.INIT), FindCoordinator),
    "find group": (2, lambda play: play.begun().offsets(), FindCoordinator),
}


def aged(play: Play) -> None:
    play.ready().pass_ms(2 * LEVEL_AGE_MS)
    play.begun().write()


def reached(name: str) -> tuple[Play, Any]:
    level, prepare, kind = REACHED[name]
    play = Play(level)
    prepare(play)
    return play, play.reach(kind)


@pytest.mark.parametrize("name", REACHED)
def test_a_request_without_an_answer_goes_again_to_a_coordinator_that_is_looked_up_anew(name: str) -> None:
    play, request = reached(name)
    state = play.machine.state
    play.lose()
    assert play.is_in(state)
    assert play.next() is None, "after a pause"
    play.pass_ms(BACKOFF_MS)
    if name == "markers":
        # By then nobody needs to know.
        assert play.serve() == []
        return
    following = [play.send() for _ in range(1)]
    if not isinstance(request, FindCoordinator):
        assert isinstance(following[0], FindCoordinator)
        play.answer()
        following.append(play.send())
    assert following[-1] == request


@pytest.mark.parametrize("name", [name for name in REACHED if not name.startswith("find")])
def test_a_coordinator_that_cannot_be_connected_to_is_looked_up_anew(name: str) -> None:
    level, prepare, kind = REACHED[name]
    play = Play(level)
    prepare(play)
    while not isinstance(play.next(), kind):
        play.send()
        play.answer()
    request = play.next()
    assert request is not None
    play.machine.unreachable(request, CUT, play.now_ms)
    assert play.next() is None
    assert play.machine.wait_ms(play.now_ms) == BACKOFF_MS
    play.pass_ms(BACKOFF_MS)
    if name != "markers":
        assert isinstance(play.next(), FindCoordinator)


def test_the_description_of_what_is_being_done() -> None:
    play = Play(2)
    assert play.machine.describe() == "not initialized, between two requests"
    play.call(Event.INIT)
    play.send(FindCoordinator)
    assert play.machine.describe() == "looking for the coordinator of transactional id 'tx'"
    play.answer()
    play.send(InitProducerId)
    assert play.machine.describe() == "InitProducerId is not answered yet by broker 1"
    play.answer(CONCURRENT)
    assert "initializing, between two requests, after 1 failed: [Error 51]" in play.machine.describe()
    play.pass_ms(100)
    play.serve()
    play.begun().offsets()
    play.send(FindCoordinator)
    assert play.machine.describe() == "looking for the coordinator of group 'g'"
    for event, state in ((Event.PREPARE, "PREPARING"), (Event.COMMIT, "COMMITTING")):
        play = Play(2).written()
        play.drained = False
        play.call(event)
        assert play.machine.state.name == state
        assert play.machine.describe() == (
            "records are not acknowledged yet, or their callbacks have not returned"
        )


# What each error of each request means: KIP-98, KIP-360, KIP-447, KIP-588, KIP-890, KIP-1050

RETRIED, ABORT, NEW_PRODUCER, CALL_AGAIN = "tried again", "abort", "new producer", "call again"
COORDINATOR_REQUESTS = ["init", "bump", "partitions", "add offsets", "offsets-1", "offsets-2"]
ENDS = ["commit-1", "commit-2", "abort-1", "abort-2"]
IN_A_TRANSACTION = ["bump", "partitions", "add offsets", "offsets-1", "offsets-2"]
MEANINGS: list[tuple[int, str, str]] = [
    *(
        (code, name, RETRIED)
        for code in (COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, REQUEST_TIMED_OUT)
        for name in ("find", "find group", *COORDINATOR_REQUESTS, *ENDS)
    ),
    *((NOT_COORDINATOR, name, RETRIED) for name in (*COORDINATOR_REQUESTS, *ENDS)),
    *((CONCURRENT, name, RETRIED) for name in (*COORDINATOR_REQUESTS, *ENDS)),
    *((UNKNOWN_TOPIC_OR_PARTITION, name, RETRIED) for name in ("partitions", "offsets-1", "offsets-2")),
    *((TRANSACTION_ABORTABLE, name, ABORT) for name in ("find group", *IN_A_TRANSACTION, *ENDS[:2])),
    *((TRANSACTION_ABORTABLE, name, CALL_AGAIN) for name in ("find", "init")),
    *((TRANSACTION_ABORTABLE, name, NEW_PRODUCER) for name in ENDS[2:]),
    *((INVALID_PRODUCER_EPOCH, name, NEW_PRODUCER) for name in (*COORDINATOR_REQUESTS, *ENDS)),
    *((PRODUCER_FENCED, name, NEW_PRODUCER) for name in (*COORDINATOR_REQUESTS, *ENDS) if name != "commit-2"),
    (PRODUCER_FENCED, "commit-2", ABORT),
    # Kafka 4.1.0 may say it in place of a stale epoch (KAFKA-19690): the abort decides.
    *((INVALID_TXN_STATE, name, ABORT) for name in ("partitions", "add offsets", "offsets-1", "offsets-2")),
    (INVALID_TXN_STATE, "commit-1", NEW_PRODUCER),
    (INVALID_TXN_STATE, "commit-2", ABORT),
    (INVALID_TXN_STATE, "abort-1", NEW_PRODUCER),
    (INVALID_TXN_STATE, "abort-2", NEW_PRODUCER),
    *((INVALID_PRODUCER_ID_MAPPING, name, NEW_PRODUCER) for name in (*COORDINATOR_REQUESTS, *ENDS)),
    *((TXN_ID_AUTHORIZATION_FAILED, name, CALL_AGAIN) for name in ("find", "init", *ENDS[2:])),
    *((TXN_ID_AUTHORIZATION_FAILED, name, ABORT) for name in (*IN_A_TRANSACTION, *ENDS[:2])),
    *((TOPIC_AUTHORIZATION_FAILED, name, ABORT) for name in ("partitions", "offsets-1", "offsets-2")),
    *(
        (GROUP_AUTHORIZATION_FAILED, name, ABORT)
        for name in ("find group", "add offsets", "offsets-1", "offsets-2")
    ),
    *(
        (code, name, ABORT)
        for code in (
            UNKNOWN_MEMBER_ID,
            ILLEGAL_GENERATION,
            FENCED_INSTANCE_ID,
            STALE_MEMBER_EPOCH,
            GROUP_ID_NOT_FOUND,
        )
        for name in ("offsets-1", "offsets-2")
    ),
    (NOT_ATTEMPTED, "partitions", ABORT),
    (INVALID_TRANSACTION_TIMEOUT, "init", CALL_AGAIN),
    *((UNSUPPORTED_VERSION, name, NEW_PRODUCER) for name in ("offsets-2", "commit-2", "abort-2")),
    *((UNKNOWN_SERVER_ERROR, name, NEW_PRODUCER) for name in ENDS),
    # A bump to the last epoch whose first answer was lost: a new producer takes the id over.
    (UNKNOWN_SERVER_ERROR, "bump", NEW_PRODUCER),
]


def waiting_calls(play: Play) -> list[Call]:
    return [*play.machine._calls, *play.machine._offsets]


@pytest.mark.parametrize(
    ("code", "name", "meaning"),
    MEANINGS,
    ids=lambda value: errors.for_code(value).__name__ if isinstance(value, int) else value,
)
def test_what_an_error_means(code: int, name: str, meaning: str) -> None:
    play, request = reached(name)
    state, calls = play.machine.state, waiting_calls(play)
    play.answer(code)
    found = play.machine.state
    if meaning == RETRIED:
        assert found is state
        assert not any(call.done for call in calls)
        assert play.next() is None, "after a pause"
        wait = play.machine.wait_ms(play.now_ms)
        assert 0 < wait <= (MARKERS_LAST_MS if code == CONCURRENT else BACKOFF_MS)
        play.pass_ms(wait)
        again = play.send()
        if isinstance(again, FindCoordinator) and not isinstance(request, FindCoordinator):
            assert code in (COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR), "found anew"
            play.answer()
            again = play.send()
        else:
            assert code not in (COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR) or name.startswith("find")
        assert again == request
        return
    for call in calls:
        assert_tells(refused(call), errors.for_code(code))
    if meaning == ABORT:
        assert found is State.ABORTABLE_ERROR
        for call in calls:
            assert isinstance(call.error, errors.AbortableError)
        later = refused(play.call(Event.COMMIT))
        assert isinstance(later, errors.AbortableError)
        assert_tells(later, errors.for_code(code))
        abort = play.call(Event.ABORT)
        play.serve()
        succeeded(abort)
    elif meaning == CALL_AGAIN:
        assert found is (State.UNINITIALIZED if state is State.INITIALIZING else State.ABORTABLE_ERROR)
        again = play.call(Event.INIT if state is State.INITIALIZING else Event.ABORT)
        play.serve()
        succeeded(again)
    else:
        assert found is State.FATAL_ERROR
        final = errors.ApplicationRecoverableError | errors.InvalidSetupError
        for call in calls:
            assert isinstance(call.error, final)
        for event in (Event.ABORT, Event.BEGIN):
            later = refused(play.call(event))
            assert isinstance(later, final)
            assert_tells(later, errors.for_code(code))
        play.pass_ms(1e6)
        assert play.next() is None


def assert_tells(error: BaseException | None, kind: type) -> None:
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__
    assert any(type(each) is kind for each in chain), chain


def test_an_error_of_a_coordinator_has_its_message_and_its_place() -> None:
    play = Play(2)
    call = play.call(Event.INIT)
    play.send(FindCoordinator)
    play.machine.on_coordinator(
        FindCoordinatorResponse(0, TXN_ID_AUTHORIZATION_FAILED, "no", -1, "", -1), "broker-7", play.now_ms
    )
    text = str(refused(call))
    assert "FindCoordinator for transactional id 'tx' at broker-7: no (the principal may not" in text


def test_an_abort_that_is_not_allowed_may_be_repeated_after_rights_were_granted() -> None:
    play = Play(2).written()
    abort = play.call(Event.ABORT)
    play.answer_to(EndTxn, TXN_ID_AUTHORIZATION_FAILED)
    assert isinstance(refused(abort), errors.TransactionalIdAuthorizationFailedError)
    assert isinstance(refused(play.call(Event.COMMIT)), errors.AbortableError)
    again = play.call(Event.ABORT)
    completes(play, again, EndTxn(False, SECOND))
    play.begun()


def test_a_transaction_of_the_first_protocol_that_the_broker_does_not_know_is_fenced_by_a_bump() -> None:
    play = Play(1).begun()
    play.write()
    play.reach(AddPartitions)
    abort = play.call(Event.ABORT)
    play.lose()
    play.pass_ms(BACKOFF_MS)
    play.answer_to(EndTxn, INVALID_TXN_STATE)
    assert play.kinds() == ["InitProducerId"]
    succeeded(abort)


def test_a_late_answer_of_an_ended_request_is_a_bug_that_is_found() -> None:
    play = Play(2).ready()
    with pytest.raises(AssertionError):
        play.lose()
