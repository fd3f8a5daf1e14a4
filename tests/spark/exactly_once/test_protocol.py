"""The exactly-once protocol on a model of a cluster: every crash, every pause, every timeout.

Crash points are enumerated: the same run is repeated, and dies at its first step, at its second, and so on.
"""

import dataclasses
import itertools
from collections.abc import Callable
from contextlib import suppress

import pytest

from cyproducer.errors import KafkaError, KafkaTimeoutError, TopicAuthorizationFailedError
from cyproducer.spark.exactly_once.cluster import NotDecidedError
from cyproducer.spark.exactly_once.decisions import DecisionLogError, decode
from cyproducer.spark.exactly_once.driver import (
    _AFTERWARDS_S,
    Committed,
    DecidedError,
    Driver,
    Plan,
    TaskOutcome,
)
from cyproducer.spark.exactly_once.names import JOB, STREAM, Sink
from cyproducer.spark.exactly_once.rules import BatchOrderError, Verdict
from tests.spark.exactly_once.model_cluster import TOPIC, Broker, ModelCluster, write_task

SINK = Sink("app", STREAM, "/checkpoint")
QUERY = "q1"
BATCHES: list[list[list[str]]] = [[["a", "b"], ["c"]], [["d"], []], [["e", "f"], ["g"]], [[], []]]
"""Of each batch, the rows of each task."""
ROWS = sorted(row for batch in BATCHES for task in batch for row in task)


class Crash(BaseException):
    """The process is killed: no code of its own runs any more."""


@dataclasses.dataclass
class Run:
    """A Spark application: a stream's driver and its tasks, that are started again until all is written."""

    broker: Broker
    sink: Sink = SINK
    query: str = QUERY
    topic: str | None = None
    next: int = 0
    """The batch that Spark runs next: it forgets a commit that it did not note."""
    attempt: int = 0

    def driver(self) -> Driver:
        return Driver(ModelCluster(self.broker, self.sink), self.sink, self.topic)

    def tasks(self, plan: Plan, batch: int, rows: list[list[str]]) -> list[TaskOutcome | None]:
        verdict = plan.standing.judge(self.query, batch)
        outcomes: list[TaskOutcome | None] = []
        for partition, of_task in enumerate(rows):
            self.attempt += 1
            written = None
            if verdict is Verdict.WRITE:
                name = plan.standing.sink.task_id(partition, 0, self.attempt, plan.identity.epoch)
                written = write_task(self.broker, name, of_task)
            outcomes.append(TaskOutcome(plan, verdict, self.query, batch, len(of_task), written))
        return outcomes

    def written(self) -> list[TaskOutcome | None]:
        """Plans the first batch and runs its tasks."""
        return self.tasks(self.driver().plan(), 0, BATCHES[0])

    def one(self) -> Committed:
        """Runs the next batch as Spark does: after an error of commit it calls abort."""
        rows = BATCHES[self.next]
        plan = self.driver().plan()
        try:
            outcomes = self.tasks(plan, self.next, rows)
        except KafkaError:
            # Of a failed stage, Spark has no message of any task.
            self.driver().abort([None] * len(rows))
            raise
        try:
            done = self.driver().commit(outcomes)
        except KafkaError:
            self.driver().abort(outcomes)
            raise
        self.broker.on_step("after the commit, before Spark's note")
        self.next += 1
        return done

    def all(self, *errors: type[Exception]) -> int:
        """Runs all batches; after a crash or one of the errors the application starts again. Returns how
        often that was."""
        restarts = 0
        while self.next < len(BATCHES):
            try:
                self.one()
            except BaseException as error:
                if not isinstance(error, (Crash, *errors)):
                    raise
                restarts += 1
                assert restarts < 20
        return restarts


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def run(broker: Broker) -> Run:
    return Run(broker)


@dataclasses.dataclass
class At:
    """Does something at the n-th step."""

    number: int
    action: Callable[[], None]
    seen: list[str] = dataclasses.field(default_factory=list)
    busy: bool = False

    def __call__(self, name: str) -> None:
        if self.busy:
            return
        self.seen.append(name)
        if len(self.seen) == self.number:
            self.busy = True
            try:
                self.action()
            finally:
                self.busy = False

    @property
    def reached(self) -> bool:
        return len(self.seen) >= self.number


def crash() -> None:
    raise Crash


def loses_a_row(broker: Broker) -> Callable[[str], None]:
    """After the decision, the brokers abort its transactions, and the cleaner takes a row."""

    def late(name: str) -> None:
        if name == "after decided":
            broker.time_out()
            broker.forgets = {"c"}

    return late


def every_step(play: Callable[[Broker, int], At], sink: Sink = SINK) -> None:
    """Repeats a play with the action at each step, until a run has fewer steps. Each must end well."""
    for number in itertools.count(1):
        at = play(broker := Broker(), number)
        ended_well(broker, sink)
        if not at.reached:
            break
    assert number > 60


def ended_well(broker: Broker, sink: Sink = SINK) -> None:
    # One more plan: what the last run has left open.
    broker.on_step = lambda name: None
    Driver(ModelCluster(broker, sink), sink).plan()
    assert broker.visible == ROWS
    assert broker.open_ids == []


def test_nothing_fails(broker: Broker) -> None:
    assert Run(broker).all() == 0
    ended_well(broker)


def test_the_process_dies_at_every_step() -> None:
    def play(broker: Broker, number: int) -> At:
        broker.on_step = at = At(number, crash)
        assert Run(broker).all() == at.reached
        return at

    every_step(play)


@pytest.mark.slow
def test_the_process_dies_at_every_two_steps() -> None:
    for between in range(1, 40):

        def play(broker: Broker, number: int, between: int = between) -> At:
            first = At(number, crash)
            second = At(number + between, crash)

            def both(name: str) -> None:
                second(name)
                first(name)

            broker.on_step = both
            Run(broker).all()
            return first

        every_step(play)


@pytest.mark.parametrize("dies", [False, True])
def test_the_brokers_time_out_what_is_open_at_every_step(dies: bool) -> None:
    def play(broker: Broker, number: int) -> At:
        def late() -> None:
            broker.time_out()
            if dies:
                crash()

        broker.on_step = at = At(number, late)
        Run(broker).all(*([] if dies else [NotDecidedError]))
        return at

    every_step(play)


def test_a_driver_that_was_paused_wakes_after_another_took_over() -> None:
    # The other one begins where Spark would: at the batch that was not noted.
    def play(broker: Broker, number: int) -> At:
        run = Run(broker)

        def another() -> None:
            other = Run(broker, next=run.next, attempt=100)
            other.all()

        broker.on_step = at = At(number, another)
        # Fenced, or it has run out of its order: Spark stops it.
        with suppress(KafkaError):
            run.all()
        return at

    every_step(play)


def test_another_driver_does_only_one_batch_while_the_first_is_paused() -> None:
    def play(broker: Broker, number: int) -> At:
        run = Run(broker)

        def another() -> None:
            other = Run(broker, next=run.next, attempt=100)
            other.one()

        broker.on_step = at = At(number, another)
        try:
            run.all()
        except KafkaError:
            # Spark starts it again where its own notes end.
            broker.on_step = lambda name: None
            again = Run(broker, next=run.next)
            try:
                again.all()
            except BatchOrderError:
                # The other one's batch is one ahead of the notes of this one at most.
                again.next += 1
                again.all()
        return at

    every_step(play)


def test_a_task_that_outlives_its_batch_takes_over_its_id_at_every_step() -> None:
    # Spark has started a second attempt whose number coincides, and it comes late: it aborts the winner's.
    def play(broker: Broker, number: int) -> At:
        run = Run(broker)

        def zombie() -> None:
            for name in [name for name in broker.ids if SINK.owns(name)]:
                broker.append(name, broker.init(name), ["zombie"])

        broker.on_step = at = At(number, zombie)
        run.all(KafkaError)
        broker.on_step = lambda name: None
        return at

    every_step(play)


@pytest.mark.parametrize("step", ["before decided", "after the record of decided", "after decided"])
def test_the_outcome_of_the_decision_is_lost(step: str, broker: Broker, run: Run) -> None:
    def lose(name: str) -> None:
        if name == step:
            broker.on_step = lambda name: None
            raise KafkaError("timed out")

    broker.on_step = lose
    with pytest.raises(DecidedError, match="whether batch 0 was decided is not known"):
        run.one()
    run.all()
    ended_well(broker)


def test_a_decision_that_arrives_after_abort_is_refused() -> None:
    # Spark calls abort() while the decision's requests are still on their way.
    broker = Broker()
    run = Run(broker)
    outcomes = run.written()
    assert run.driver().abort(outcomes)
    with pytest.raises(KafkaError):
        run.driver().commit(outcomes)
    assert broker.visible == []
    run.all()
    ended_well(broker)


def test_records_that_the_cleaner_took_are_not_forgotten_in_silence(broker: Broker, run: Run) -> None:
    broker.on_step = loses_a_row(broker)
    says = r"batch 0 was decided and can't be completed: the records \{'c'\} are gone \(1 of 2 transactions\)"
    with pytest.raises(DecisionLogError, match=says):
        run.one()
    broker.on_step = lambda name: None
    with pytest.raises(DecisionLogError, match=says):
        run.one()
    assert broker.visible == []


def test_a_log_that_was_lost_is_noticed(broker: Broker, run: Run) -> None:
    run.one()
    broker.log = [each for each in broker.log if each.decision is None]
    with pytest.raises(DecisionLogError, match="the log has lost records"):
        run.one()


def test_another_query_at_the_same_place_begins_anew(broker: Broker) -> None:
    first = Run(broker)
    first.one()
    second = Run(broker, query="q2")
    second.one()
    assert broker.visible == sorted(["a", "b", "c"] * 2)
    first.next = 1
    with pytest.raises(BatchOrderError, match="an old checkpoint was restored"):
        first.one()


def test_two_sinks_under_one_prefix_leave_each_other_alone(broker: Broker) -> None:
    run, other = Run(broker), Run(broker, Sink("app", JOB, "other"), query="")
    outcomes = run.written()
    other.one()
    run.driver().commit(outcomes)
    assert broker.visible == sorted(["a", "b", "c"] * 2)


def test_a_query_under_another_name_is_refused(broker: Broker) -> None:
    Run(broker).one()
    with pytest.raises(BatchOrderError, match=r"has written as 'stream:/checkpoint'.* as 'txnAppId'"):
        Run(broker, Sink("app", STREAM, "file:/checkpoint")).one()


def test_a_log_that_spells_the_place_otherwise_is_gone_on_with_at_every_step() -> None:
    """As earlier versions have written it. Processes die, or brokers time out what is open."""
    earlier, sink = Sink("app", STREAM, "file:///c/"), Sink("app", STREAM, "file:/c")

    for fault in (crash, None):

        def play(broker: Broker, number: int, fault: Callable[[], None] | None = fault) -> At:
            Run(broker, earlier).one()
            run = Run(broker, sink)
            # Spark has not noted the first one.
            broker.on_step = at = At(number, fault or broker.time_out)
            run.all(NotDecidedError)
            ended_well(broker, sink)
            decisions = [each for each in broker.log if each.decision is not None]
            assert {decode(each.decision or b"").sink for each in decisions} == {"stream:file:///c/"}
            return at

        every_step(play, sink)


def test_a_failed_batch_is_aborted_under_the_name_in_the_log(broker: Broker) -> None:
    Run(broker, Sink("app", STREAM, "file:///c")).one()
    run = Run(broker, Sink("app", STREAM, "file:/c"), next=1)
    outcomes = run.tasks(run.driver().plan(), 1, BATCHES[1])
    assert run.driver().abort(outcomes)
    assert broker.open_ids == []
    with pytest.raises(NotDecidedError):
        run.driver().commit(outcomes)


def test_a_batch_that_is_skipped_must_have_as_many_rows(broker: Broker, run: Run) -> None:
    run.one()
    plan = run.driver().plan()
    with pytest.raises(BatchOrderError, match="with 3 rows, and now it has 4"):
        run.driver().commit(run.tasks(plan, 0, [["a", "b"], ["c", "x"]]))
    assert broker.visible == ["a", "b", "c"]


def test_a_batch_that_is_gone_is_an_error(run: Run) -> None:
    run.one()
    run.next = 2
    with pytest.raises(BatchOrderError, match="batch 2, but batch 0 was decided last"):
        run.one()


def test_a_batch_whose_transactions_are_not_all_open_is_not_decided(broker: Broker, run: Run) -> None:
    outcomes = run.written()
    broker.time_out()
    with pytest.raises(NotDecidedError, match="2 of 2 transactions can't be committed any more"):
        run.driver().commit(outcomes)
    assert [each for each in broker.log if each.decision is not None] == []


def test_rights_on_a_topic_that_only_rows_name_are_checked_before_the_decision() -> None:
    broker = Broker(denied={TOPIC})
    run = Run(broker)
    with pytest.raises(TopicAuthorizationFailedError, match="lacks Read"):
        run.one()
    assert broker.visible == []
    assert broker.open_ids == []
    broker.denied.clear()
    run.all()
    ended_well(broker)


def test_rights_on_a_topic_that_an_option_names_are_checked_once_and_at_the_start(broker: Broker) -> None:
    run = Run(broker, topic=TOPIC)
    run.one()
    assert broker.checked == [[TOPIC]]
    broker.denied.add(TOPIC)
    with pytest.raises(TopicAuthorizationFailedError, match="lacks Read"):
        run.driver().plan()


def test_what_was_decided_is_not_aborted(broker: Broker, run: Run) -> None:
    outcomes = run.written()
    broker.on_step = lambda name: crash() if name == "after decided" else None
    with pytest.raises(Crash):
        run.driver().commit(outcomes)
    broker.on_step = lambda name: None
    assert not run.driver().abort(outcomes)
    assert len(broker.open_ids) == 2


def test_tasks_that_write_after_another_driver_took_over_leave_nothing_open(broker: Broker) -> None:
    run, other = Run(broker), Run(broker, attempt=100)
    plan = run.driver().plan()
    other.all()
    outcomes = run.tasks(plan, 0, BATCHES[0])
    assert len(broker.open_ids) == 2
    with pytest.raises(NotDecidedError):
        run.driver().commit(outcomes)
    assert not run.driver().abort(outcomes)
    assert broker.open_ids == []
    assert broker.visible == ROWS


def test_outcomes_of_two_plans_are_not_committed_together(run: Run) -> None:
    first = run.written()
    second = run.written()
    with pytest.raises(NotDecidedError, match="are of several plans"):
        run.driver().commit([first[0], second[1]])


def test_a_batch_of_which_only_some_tasks_were_skipped_is_an_error(run: Run) -> None:
    written = run.written()
    assert written[0] is not None
    skipped = dataclasses.replace(written[0], verdict=Verdict.SKIP, transaction=None)
    with pytest.raises(BatchOrderError, match="only some tasks have skipped batch 0"):
        run.driver().commit([skipped, written[1]])


def test_a_batch_without_rows_takes_one_record(broker: Broker, run: Run) -> None:
    plan = run.driver().plan()
    run.driver().commit(run.tasks(plan, 0, [[], []]))
    decided = [decode(each.decision) for each in broker.log if each.decision is not None]
    assert [(each.batch, each.rows, each.done) for each in decided] == [(0, 0, True)]


def test_two_sinks_with_the_same_hash_are_refused(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    monkeypatch.setattr(Sink, "hash", property(lambda sink: "00000000"))
    Run(broker).one()
    with pytest.raises(DecisionLogError, match="have the same hash 00000000"):
        Run(broker, Sink("app", STREAM, "/other"), query="q2").one()


def test_an_operator_can_accept_what_is_not_complete(broker: Broker, run: Run) -> None:
    broker.on_step = loses_a_row(broker)
    with pytest.raises(DecisionLogError):
        run.one()
    broker.on_step = lambda name: None
    accepted = run.driver().accept()
    assert (accepted.decision.batch, accepted.left_out) == (0, ["the records {'c'} are gone"])
    # What can be completed is.
    assert broker.visible == ["a", "b"]
    with pytest.raises(DecisionLogError, match="nothing that is decided and not complete"):
        run.driver().accept()
    run.next = 1
    run.one()
    assert broker.visible == ["a", "b", "d"]


@pytest.mark.parametrize("lives", [True, False])
def test_accepting_what_could_still_be_committed_commits_it(lives: bool, broker: Broker, run: Run) -> None:
    def accepts(name: str) -> None:
        if name == "after decided":
            broker.on_step = lambda name: None
            if not lives:
                raise Crash
            run.driver().accept()

    broker.on_step = accepts
    with pytest.raises(DecidedError if lives else Crash):
        run.one()
    if not lives:
        run.driver().accept()
    assert broker.visible == ["a", "b", "c"]
    run.all()
    ended_well(broker)


def test_a_batch_that_is_done_does_not_fail_because_brokers_list_no_transactions(
    caplog: pytest.LogCaptureFixture, broker: Broker, run: Run
) -> None:
    def hangs(name: str) -> None:
        if name == "before listing the open ones" and broker.visible:
            raise KafkaTimeoutError("not all brokers have listed their transactions")

    broker.on_step = hangs
    assert run.one().batch == 0
    assert "batch 0 is written; transactions that attempts have left open could not be looked" in caplog.text
    # The plan may wait for as long as all calls.
    assert broker.timeouts == [None, _AFTERWARDS_S]


def test_records_that_are_deleted_while_they_are_copied_are_not_forgotten_in_silence(
    broker: Broker, run: Run
) -> None:
    def late(name: str) -> None:
        if name == "after decided":
            broker.time_out()
        if name == "before reading for copies":
            broker.forgets = {"c"}

    broker.on_step = late
    with pytest.raises(DecisionLogError, match="deleted while they were copied"):
        run.one()
    assert broker.visible == []
