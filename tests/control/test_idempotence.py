"""The idempotence table: its structure, its rules by example, and its diagram in the docs."""

import re
from pathlib import Path

import pytest

from cyproducer.control.idempotence import (
    CERTAIN_REFUSALS,
    LAST_EPOCH,
    SEQUENCE_ERRORS,
    TABLE,
    Action,
    BatchFacts,
    Event,
    Fate,
    Idempotence,
    Order,
    State,
    diagrams,
)
from cyproducer.errors.error_code import ErrorCode
from cyproducer.structs import TopicPartition

PLACE = TopicPartition("t", 0)
NOT_LEADER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 6, 7, 19, 20
DUPLICATE = 46
DOCS = Path(__file__).parents[2] / "docs"

IDENTITY = {State.NO_ID, State.ASKING, State.HOLDING, State.REFUSED}
PARTITION = {State.SENDING, State.UNRESOLVED, State.GAP}


def facts(
    id: int = 10,
    *,
    sequenced: bool = True,
    first: bool = True,
    ambiguous: bool = False,
    abandoned: bool = False,
) -> BatchFacts:
    return BatchFacts("t", 0, id, 3, 1, 0.0, sequenced, first, ambiguous, abandoned)


def holding(epoch: int = 0) -> Idempotence:
    machine = Idempotence()
    assert machine.want()
    machine.granted(4711, epoch)
    return machine


# The table


def test_every_state_is_reached_and_every_event_and_action_used() -> None:
    reached = {State.NO_ID, State.SENDING} | {to for to, _ in TABLE.values()}
    assert reached == set(State)
    assert {event for _, event in TABLE} == set(Event)
    assert {action for _, actions in TABLE.values() for action in actions} == set(Action)


def test_the_identity_and_the_partitions_are_separate_state_machines() -> None:
    for (state, _), (to, _) in TABLE.items():
        assert (state in IDENTITY) == (to in IDENTITY)
        assert (state in PARTITION) == (to in PARTITION)


def test_a_partition_is_held_back_in_every_state_but_sending() -> None:
    """Every transition out of SENDING closes the gate, every transition back opens it."""
    for (state, _), (to, actions) in TABLE.items():
        if state in PARTITION and state is not to:
            gate = {
                State.SENDING: Action.RELEASE,
                State.UNRESOLVED: Action.HOLD_NEW,
                State.GAP: Action.HOLD_ALL,
            }
            assert actions[-1] is gate[to], (state, to)


@pytest.mark.parametrize("event", [Event.LOST, Event.ABSENT])
def test_a_batch_may_be_given_up_in_every_state(event: Event) -> None:
    assert {state for state, known in TABLE if known is event} == PARTITION


def test_the_docs_contain_the_diagrams_of_the_table() -> None:
    text = (DOCS / "guarantees.md").read_text()
    found = re.findall(r"```mermaid\n(stateDiagram.*?)```", text, re.DOTALL)
    assert tuple(found) == diagrams(), "run: python -m cyproducer.control.idempotence"
    shown = sum(each.count(" --> ") for each in found)
    assert shown == sum(state is not to or bool(actions) for (state, _), (to, actions) in TABLE.items())


# The identity


def test_an_id_is_requested_once_until_the_response() -> None:
    machine = Idempotence()
    assert machine.want()
    assert not machine.want()
    machine.not_granted()
    assert machine.want()
    machine.granted(7, 3)
    assert not machine.want()
    assert (machine.producer_id, machine.epoch) == (7, 3)


def test_a_refused_id_is_never_requested_again() -> None:
    machine = Idempotence()
    machine.want()
    machine.denied()
    assert machine.state is State.REFUSED
    assert not machine.want()


def gap_and_bump(machine: Idempotence, current: bool = True) -> list[Order]:
    machine.on_fate(facts(), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Fate.RETRY, False)
    orders = machine.on_progress(PLACE, 0, 1, current)
    return orders + machine.on_progress(PLACE, 0, 0, current)


def test_a_bump_takes_the_next_epoch_of_the_same_id() -> None:
    machine = holding(5)
    gap_and_bump(machine)
    assert (machine.producer_id, machine.epoch) == (4711, 6)


def test_after_the_last_epoch_a_new_id_is_requested() -> None:
    machine = holding(LAST_EPOCH - 1)
    gap_and_bump(machine)
    assert machine.epoch == LAST_EPOCH == 32767
    gap_and_bump(machine)
    assert (machine.producer_id, machine.epoch, machine.state) == (-1, -1, State.NO_ID)
    assert machine.want()


def test_a_partition_behind_the_newest_epoch_needs_no_bump() -> None:
    """A broker that lost the state of a hundred partitions costs one epoch, not a hundred."""
    machine = holding(5)
    orders = gap_and_bump(machine, current=False)
    assert machine.epoch == 5
    assert orders[-1].action is Action.RELEASE


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_a_stale_epoch_gives_up_the_id(code: int) -> None:
    machine = holding(5)
    machine.on_fate(facts(), code, Fate.RETRY, False)
    assert (machine.producer_id, machine.state) == (-1, State.NO_ID)
    assert [o.action for o in machine.on_progress(PLACE, 0, 1, True)] == [Action.STRIP, Action.HOLD_NEW]
    assert machine.want()
    machine.granted(4712, 0)
    # The partition's epoch is no longer the newest, and the new id is not bumped.
    machine.on_progress(PLACE, 0, 0, False)
    assert (machine.producer_id, machine.epoch) == (4712, 0)


# The meaning of a failed attempt


@pytest.mark.parametrize(
    ("code", "written", "maybe"),
    [
        (0, False, False),  # the connection broke before the request was written
        (0, True, True),  # the response is lost
        (NOT_LEADER, True, True),
        (REQUEST_TIMED_OUT, True, True),
        (NOT_ENOUGH_REPLICAS_AFTER_APPEND, True, True),
        (NOT_ENOUGH_REPLICAS, True, False),
        (-1, True, True),
        (1234, True, True),
        *((code, True, False) for code in sorted(CERTAIN_REFUSALS)),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_an_attempt_is_ambiguous_unless_it_was_refused_before_appending(
    code: int, written: bool, maybe: bool, before: bool
) -> None:
    machine = holding()
    for sequenced in (False, True):
        judged = machine.judge(facts(ambiguous=before, first=False, sequenced=sequenced), code, written)
        assert judged.maybe_written == (maybe or before)


@pytest.mark.parametrize("code", sorted(SEQUENCE_ERRORS))
def test_sequences_that_do_not_fit_are_not_a_final_error(code: int) -> None:
    machine = holding()
    assert machine.judge(facts(first=False), code, True).fate is Fate.RETRY
    assert machine.judge(facts(first=True), code, True).fate is Fate.RETRY
    # Its old request may still be appended: under other sequences it would be in the log twice.
    assert machine.judge(facts(first=True, ambiguous=True), code, True) == (Fate.FAIL, True)
    assert machine.judge(facts(first=False, ambiguous=True), code, True) == (Fate.RETRY, True)
    # Without sequences this code is an ordinary error.
    assert machine.judge(facts(sequenced=False), code, True).fate is None


def test_a_duplicate_is_a_success() -> None:
    assert holding().judge(facts(), DUPLICATE, True).fate is Fate.ACKNOWLEDGE


# A partition


@pytest.mark.parametrize("code", [0, NOT_LEADER, REQUEST_TIMED_OUT])
def test_resending_a_batch_changes_nothing(code: int) -> None:
    machine = holding()
    assert machine.on_fate(facts(), code, Fate.RETRY, True) == ()
    assert (
        machine.on_fate(facts(first=False), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Fate.RETRY, False) == ()
    )
    assert machine.partition_state(PLACE) is State.SENDING
    assert machine.on_progress(PLACE, 0, 0, True) == []


def test_without_sequences_nothing_is_held_back() -> None:
    machine = holding()
    assert machine.on_fate(facts(sequenced=False), 0, Fate.FAIL, True) == ()
    assert machine.partition_state(PLACE) is State.SENDING


def test_a_lost_batch_is_resolved_by_the_acknowledgement_of_a_later_one() -> None:
    machine = holding(5)
    assert machine.on_fate(facts(10), 0, Fate.FAIL, True) == (Action.HOLD_NEW,)
    # An earlier one proves nothing.
    assert machine.on_progress(PLACE, 1, 1, True, acknowledged_id=9) == []
    assert machine.on_progress(PLACE, 0, 0, True, acknowledged_id=11) == [Order(Action.RELEASE)]
    assert machine.epoch == 5
    assert machine.partition_state(PLACE) is State.SENDING


def test_of_two_lost_batches_the_later_one_counts() -> None:
    machine = holding(5)
    machine.on_fate(facts(10), 0, Fate.FAIL, True)
    assert machine.on_fate(facts(12), 0, Fate.FAIL, True) == ()
    assert machine.on_progress(PLACE, 1, 1, True, acknowledged_id=11) == []
    assert machine.on_progress(PLACE, 0, 0, True, acknowledged_id=13) == [Order(Action.RELEASE)]


def test_a_lost_batch_without_a_later_one_ends_the_epoch() -> None:
    machine = holding(5)
    machine.on_fate(facts(10), 0, Fate.FAIL, True)
    assert machine.on_progress(PLACE, 1, 1, True) == []
    assert [o.action for o in machine.on_progress(PLACE, 0, 0, True)] == [Action.BUMP_EPOCH, Action.RELEASE]
    assert machine.epoch == 6


def test_an_out_of_order_batch_behind_a_lost_one_opens_a_gap() -> None:
    machine = holding(5)
    machine.on_fate(facts(10), 0, Fate.FAIL, True)
    assert machine.on_fate(facts(11), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Fate.RETRY, False) == (
        Action.HOLD_ALL,
    )
    assert machine.on_progress(PLACE, 2, 3, True) == []
    assert machine.on_progress(PLACE, 0, 3, True) == [Order(Action.STRIP, 11), Order(Action.HOLD_NEW, 11)]
    assert [o.action for o in machine.on_progress(PLACE, 0, 0, True)] == [Action.BUMP_EPOCH, Action.RELEASE]
    assert machine.epoch == 6


@pytest.mark.parametrize("fate", [Fate.FAIL, Fate.SPLIT])
def test_everything_behind_an_absent_batch_is_absent(fate: Fate) -> None:
    machine = holding(5)
    assert machine.on_fate(facts(12), 10, fate, False) == (Action.HOLD_ALL,)
    # The oldest gap counts; a batch behind it is absent, even if it was reported as lost.
    assert machine.on_fate(facts(11), 10, fate, False) == ()
    assert machine.on_fate(facts(13), 0, Fate.FAIL, True) == ()
    assert machine.on_progress(PLACE, 0, 4, True)[0] == Order(Action.STRIP, 11)


def test_batches_before_a_gap_are_settled_in_the_old_epoch_first() -> None:
    machine = holding(5)
    machine.on_fate(facts(12), 10, Fate.FAIL, False)
    machine.on_progress(PLACE, 0, 3, True)
    # 10 and 11 remain. An acknowledgement of one of them says nothing about the gap behind them.
    assert machine.on_progress(PLACE, 0, 1, True, acknowledged_id=10) == []
    assert machine.epoch == 5
    assert [o.action for o in machine.on_progress(PLACE, 0, 0, True, acknowledged_id=11)] == [
        Action.BUMP_EPOCH,
        Action.RELEASE,
    ]
    assert machine.epoch == 6


def test_each_partition_has_its_own_state() -> None:
    machine = holding()
    machine.on_fate(facts(), 0, Fate.FAIL, True)
    assert machine.partition_state(TopicPartition("t", 1)) is State.SENDING
    assert machine.partition_state(TopicPartition("u", 0)) is State.SENDING
    assert machine.on_progress(TopicPartition("t", 1), 0, 0, True) == []


# In a transaction


def transactional() -> Idempotence:
    return Idempotence(transactional=True)


@pytest.mark.parametrize("code", sorted(SEQUENCE_ERRORS))
@pytest.mark.parametrize("ambiguous", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_in_a_transaction_only_an_out_of_order_batch_behind_an_open_one_is_sent_again(
    code: int, ambiguous: bool, first: bool
) -> None:
    judged = transactional().judge(facts(first=first, ambiguous=ambiguous), code, True)
    again = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not first
    assert judged == (Fate.RETRY if again else Fate.FAIL, ambiguous)


def test_in_a_transaction_other_errors_are_judged_as_elsewhere() -> None:
    machine = transactional()
    assert machine.judge(facts(), DUPLICATE, True) == (Fate.ACKNOWLEDGE, True)
    assert machine.judge(facts(), NOT_LEADER, True) == (None, True)
    assert machine.judge(facts(sequenced=False), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, True) == (
        None,
        False,
    )


@pytest.mark.parametrize("code", [0, NOT_LEADER, *sorted(SEQUENCE_ERRORS)])
@pytest.mark.parametrize("maybe", [True, False])
def test_a_failed_batch_of_a_transaction_holds_its_partition_back_until_the_next(
    code: int, maybe: bool
) -> None:
    machine = transactional()
    assert machine.on_fate(facts(), code, Fate.FAIL, maybe) == (Action.HOLD_ALL,)
    # Nothing opens it: not the end of requests, not an acknowledgement.
    for unsettled, acknowledged_id in ((1, -1), (1, 11), (0, -1), (0, 11)):
        assert machine.on_progress(PLACE, 0, unsettled, True, acknowledged_id) == []
    assert (machine.producer_id, machine.epoch, machine.state) == (-1, -1, State.NO_ID), "not used"


@pytest.mark.parametrize("fate", [Fate.RETRY, Fate.ACKNOWLEDGE])
def test_a_batch_of_a_transaction_that_goes_on_changes_nothing(fate: Fate) -> None:
    machine = transactional()
    for code in (NOT_LEADER, *SEQUENCE_ERRORS):
        assert machine.on_fate(facts(), code, fate, True) == ()
    assert machine.on_fate(facts(sequenced=False), 0, Fate.FAIL, False) == ()
    assert machine.partition_state(PLACE) is State.SENDING


def test_a_batch_of_a_transaction_that_is_split_keeps_the_epoch() -> None:
    machine = transactional()
    assert machine.on_fate(facts(12), 10, Fate.SPLIT, False) == (Action.HOLD_ALL,)
    assert machine.on_fate(facts(11), 10, Fate.SPLIT, False) == ()
    assert machine.partition_state(PLACE) is State.GAP
    assert machine.on_progress(PLACE, 1, 3, True) == [], "what is on the wire is answered first"
    # The oldest one's sequences are given again. Those before it go on, so nothing has to be settled.
    assert machine.on_progress(PLACE, 0, 3, True) == [Order(Action.STRIP, 11), Order(Action.RELEASE, 11)]
    assert machine.partition_state(PLACE) is State.SENDING
    assert machine.epoch == -1
    assert machine.on_progress(PLACE, 0, 0, True) == []


def test_a_batch_behind_one_that_was_split_is_sent_again() -> None:
    """It is the first one without an outcome then."""
    machine = transactional()
    machine.on_fate(facts(10), 10, Fate.SPLIT, False)
    out_of_order = facts(11, first=True), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, True
    assert machine.judge(*out_of_order).fate is Fate.RETRY
    assert machine.judge(facts(11), ErrorCode.INVALID_PRODUCER_EPOCH, True).fate is Fate.FAIL
    machine.on_progress(PLACE, 0, 1, True)
    assert machine.judge(*out_of_order).fate is Fate.FAIL


def test_a_partition_with_a_split_and_a_failed_batch_stays_held_back() -> None:
    """The failed batch leaves a gap in the sequences: what is behind it must not go out."""
    machine = transactional()
    machine.on_fate(facts(10), 10, Fate.SPLIT, False)
    assert machine.on_fate(facts(11), 87, Fate.FAIL, False) == (Action.HOLD_ALL,)
    assert machine.on_progress(PLACE, 0, 0, True) == []


def test_the_next_transaction_starts_over() -> None:
    machine = transactional()
    machine.on_fate(facts(10), 10, Fate.SPLIT, False)
    machine.start_over()
    assert machine.partition_state(PLACE) is State.SENDING
    assert machine.on_progress(PLACE, 0, 0, True) == []
