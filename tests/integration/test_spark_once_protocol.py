"""Tests the exactly-once protocol on a real Kafka of three nodes, without Spark: the driver's part is the
package's own, and a producer of the test writes what tasks would.

The model in ``tests/spark/exactly_once`` goes through every crash. Here are the answers of real brokers that
the model stands on, and what only real ones do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from cyproducer.cli.main import main
from cyproducer.errors import UnsupportedVersionError
from cyproducer.spark.exactly_once.cluster import End, NotDecidedError
from cyproducer.spark.exactly_once.decisions import DecisionLogError, Identity, Place, TaskTransaction
from cyproducer.spark.exactly_once.driver import DecidedError, Driver, Plan, TaskOutcome
from cyproducer.spark.exactly_once.kafka_cluster import KafkaCluster as SinksCluster
from cyproducer.spark.exactly_once.kafka_cluster import close_admins
from cyproducer.spark.exactly_once.names import STREAM, Sink
from cyproducer.spark.sharing import SharedConfig
from tests.integration.transaction_rig import TransactionRig
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import Transactions

pytestmark = [pytest.mark.either_broker, pytest.mark.timeout(180)]

ROWS = 50


@pytest.fixture(autouse=True)
def _no_connections() -> Iterator[None]:
    yield
    close_admins()


@pytest.fixture
def rig(transactional_kafka: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[TransactionRig]:
    Transactions(transactional_kafka).set_level(2)
    with TransactionRig(transactional_kafka, f"once-{crc32(request.node.nodeid.encode()):x}") as rig:
        yield rig


class Application:
    """A driver and its tasks."""

    def __init__(self, rig: TransactionRig, topic: str, name: str = "/checkpoint", **options: Any) -> None:
        self.rig = rig
        self.topic = topic
        self.sink = Sink(rig.name, STREAM, name)
        self.options = options
        self.attempts = 0
        self.timeout_ms = 30_000
        self.padding = b""
        self.query = f"query of {name}"

    def cluster(self) -> SinksCluster:
        config = {
            "bootstrap_servers": self.rig.cluster.bootstrap_servers,
            "request_timeout_ms": 5_000,
            "retry_backoff_ms": 20,
            "reconnect_backoff_ms": 20,
            "reconnect_backoff_max_ms": 200,
            **self.options,
        }
        return SinksCluster(SharedConfig(config), self.sink, f"{self.rig.name}.decisions", self.timeout_ms)

    def plan(self) -> Plan:
        with closing(self.cluster()) as cluster:
            return Driver(cluster, self.sink).plan()

    def write(self, plan: Plan, batch: int, tasks: int = 2) -> list[TaskOutcome | None]:
        return [self.write_task(plan, batch, task) for task in range(tasks)]

    def write_task(self, plan: Plan, batch: int, task: int) -> TaskOutcome:
        self.attempts += 1
        name = self.sink.task_id(task, 0, self.attempts, plan.identity.epoch)
        timeout = {"transaction_timeout_ms": self.timeout_ms}
        producer = self.rig.ready(name.removeprefix(f"{self.rig.name}."), **timeout, **self.options)
        producer.begin_transaction()
        for row in range(ROWS):
            producer.send(
                self.topic,
                b"%d %d %d" % (batch, task, row) + self.padding,
                b"key %d" % row,
                [("batch", b"%d" % batch), ("null", None)],
                partition=task % 2,
                timestamp_ms=1_700_000_000_000 + row,
            )
        prepared = producer.prepare_transaction()
        producer.close()
        places = tuple(
            Place(topic, partition, first, ROWS)
            for (topic, partition), (first, _) in prepared.offsets.items()
        )
        verdict = plan.standing.judge(self.query, batch)
        written = TaskTransaction(name, prepared.producer_id, prepared.epoch, places)
        return TaskOutcome(plan, verdict, self.query, batch, ROWS, written)

    def commit(self, outcomes: list[TaskOutcome | None]) -> None:
        with closing(self.cluster()) as cluster:
            Driver(cluster, self.sink).commit(outcomes)

    def decide(self, outcomes: list[TaskOutcome | None]) -> None:
        """Dies after the decision."""
        with closing(self.cluster()) as cluster:
            cluster.commit = die  # type: ignore[method-assign]
            with pytest.raises(Died):
                Driver(cluster, self.sink).commit(outcomes)

    def decide_too_late(self) -> None:
        """Dies after the decision about batch 0, and the brokers abort its transactions."""
        # The decision must come first: in less than this time, on any machine.
        before, self.timeout_ms = self.timeout_ms, 4_000
        outcomes = self.write(self.plan(), 0)
        self.decide(outcomes)
        for each in outcomes:
            assert each is not None
            assert each.transaction is not None
            self.rig.transactions.await_state(each.transaction.transactional_id, "CompleteAbort")
        self.timeout_ms = before

    def one(self, batch: int) -> None:
        self.commit(self.write(self.plan(), batch))


class Died(BaseException):
    pass


def die(transactions: object) -> list[End]:
    raise Died


def rows(batches: int, tasks: int = 2) -> list[list[bytes]]:
    found: list[list[bytes]] = [[], []]
    for batch in range(batches):
        for task in range(tasks):
            found[task % 2] += [b"%d %d %d" % (batch, task, row) for row in range(ROWS)]
    return found


def test_batches_are_committed(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    for batch in range(3):
        app.one(batch)
    assert rig.committed(app.topic) == rows(3)
    plan = app.plan()
    assert plan.standing.last is not None
    assert (plan.standing.last.batch, plan.standing.last.rows) == (2, 2 * ROWS)


def test_a_decided_batch_is_completed_by_the_next_plan(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    app.decide(app.write(app.plan(), 0))
    assert rig.read(app.topic) == [[], []]
    app.plan()
    assert rig.committed(app.topic) == rows(1)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_a_decided_batch_that_the_brokers_have_aborted_is_copied(
    rig: TransactionRig, codec: str | None
) -> None:
    app = Application(rig, rig.topic(), compression_type=codec, batch_size=1000)
    app.decide_too_late()
    plan = app.plan()
    assert plan.standing.last is not None
    assert plan.standing.last.done
    assert rig.committed(app.topic) == rows(1)
    for record in rig.records(app.topic):
        batch, _, row = (record.value or b"").split()
        assert record.key == b"key %d" % int(row)
        assert record.headers == [("batch", batch), ("null", None)]
        assert record.timestamp_ms == 1_700_000_000_000 + int(row)
    # Once.
    app.plan()
    assert rig.committed(app.topic) == rows(1)


@pytest.mark.slow
def test_records_that_were_deleted_after_the_timeout_are_not_copied_in_part(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic(), batch_size=500)
    app.decide_too_late()
    rig.delete_records(app.topic, 0, before=ROWS // 2)
    with pytest.raises(DecisionLogError, match=rf"has \d+ of the {ROWS} records"):
        app.plan()
    assert rig.committed(app.topic)[1] == []


@pytest.mark.slow
def test_records_of_a_topic_that_was_deleted_are_an_error(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    app.decide_too_late()
    rig.delete_topic(app.topic)
    with pytest.raises(DecisionLogError, match=r"batch 0 was decided and can't be completed: .* --accept"):
        app.plan()


@pytest.mark.slow
def test_a_record_that_the_topic_takes_only_compressed_is_copied(rig: TransactionRig) -> None:
    topic = rig.topic(configs={"max.message.bytes": "10000"})
    app = Application(rig, topic, compression_type="gzip")
    app.padding = b" " * 20_000
    app.decide_too_late()
    app.plan()
    assert [[value.rstrip() for value in values] for values in rig.committed(topic)] == rows(1)


@pytest.mark.slow
def test_a_decision_that_is_too_large_is_not_made(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    first, second = app.write(app.plan(), 0)
    assert first is not None
    assert first.transaction is not None
    rng = random.Random(1)
    more = (Place(app.topic, rng.randrange(1 << 31), rng.randrange(1 << 62), 1) for _ in range(100_000))
    places = (*first.transaction.places, *more)
    large = replace(first, transaction=replace(first.transaction, places=places))
    with pytest.raises(NotDecidedError, match="max_request_size"):
        app.commit([large, second])
    assert rig.committed(app.topic) == [[], []]
    app.one(0)
    assert rig.committed(app.topic) == rows(1)


def test_a_driver_that_was_taken_over_cannot_decide(rig: TransactionRig) -> None:
    app, other = Application(rig, rig.topic()), Application(rig, rig.id("records"))
    outcomes = app.write(app.plan(), 0)
    other.attempts = 100
    theirs = other.plan()
    with pytest.raises(NotDecidedError):
        app.commit(outcomes)
    other.commit(other.write(theirs, 0))
    assert rig.committed(app.topic) == rows(1)


def test_a_driver_that_was_taken_over_after_its_check_cannot_decide(rig: TransactionRig) -> None:
    app, other = Application(rig, rig.topic()), Application(rig, rig.id("records"))
    outcomes = app.write(app.plan(), 0)
    cluster = app.cluster()
    other.attempts = 100
    checked = cluster.not_open

    def paused(transactions: Any) -> list[str]:
        found = checked(transactions)
        other.one(0)
        return found

    cluster.not_open = paused  # type: ignore[method-assign]
    with pytest.raises(NotDecidedError, match="another driver has taken over"):
        Driver(cluster, app.sink).commit(outcomes)
    cluster.close()
    assert rig.committed(app.topic) == rows(1)


def test_a_driver_that_was_taken_over_after_its_decision_goes_on(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    outcomes = app.write(app.plan(), 0)
    cluster = app.cluster()
    commit = cluster.commit

    def paused(transactions: Any) -> list[End]:
        # It completes the batch, and the next planning uses the ids again.
        app.one(1)
        return commit(transactions)

    cluster.commit = paused  # type: ignore[method-assign]
    # The transactions are found committed by their markers; "done" is refused, as it was written.
    with pytest.raises(DecidedError, match="was decided and is not complete"):
        Driver(cluster, app.sink).commit(outcomes)
    cluster.close()
    assert rig.committed(app.topic) == rows(2)


def test_the_outcome_is_found_by_markers_when_ids_were_used_again(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    plan = app.plan()
    committed, aborted, still = (app.write_task(plan, 0, task).transaction for task in range(3))
    assert committed is not None
    assert aborted is not None
    assert still is not None
    cluster = app.cluster()
    assert cluster.commit([committed]) == [End.COMMITTED]
    assert cluster.commit([committed]) == [End.COMMITTED]
    cluster.abort([aborted])
    assert cluster.commit([aborted]) == [End.ABORTED]
    for each in (committed, aborted, still):
        # Aborts what is open, and fences.
        rig.ready(each.transactional_id.removeprefix(f"{rig.name}.")).close()
        assert cluster.commit([each]) == [End.UNKNOWN]
    assert [cluster.outcome(each) for each in (committed, aborted, still)] == [
        End.COMMITTED,
        End.ABORTED,
        End.ABORTED,
    ]
    cluster.close()


def test_an_identity_is_a_lock(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    # Nothing was written under it.
    plan = app.plan()
    cluster = app.cluster()
    assert cluster.give_up(plan.identity)
    with pytest.raises(NotDecidedError):
        app.commit(app.write(plan, 0))
    # Repeated: it did not get its answer.
    assert cluster.give_up(plan.identity)
    # After a decision.
    plan = app.plan()
    app.decide(app.write(plan, 0))
    assert not cluster.give_up(plan.identity)
    # The identity that a completed decision leaves, of which nothing was written.
    plan = app.plan()
    assert cluster.give_up(plan.identity)
    # Of somebody before.
    old = plan.identity
    app.plan()
    assert not cluster.give_up(Identity(old.producer_id, old.epoch - 1))
    cluster.close()


def test_two_sinks_of_a_prefix_do_not_meet(rig: TransactionRig) -> None:
    one, two = Application(rig, rig.topic(), "/one"), Application(rig, rig.topic("others"), "/two")
    plan = one.plan()
    outcomes = one.write(plan, 0)
    two.one(0)
    two.one(1)
    one.commit(outcomes)
    assert rig.committed(one.topic) == rows(1)
    assert rig.committed(two.topic) == rows(2)


def test_a_log_that_was_created_again_is_noticed(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    app.one(0)
    rig.settle()
    rig.delete_topic(f"{rig.name}.decisions")
    with pytest.raises(DecisionLogError, match="the log has lost records, or was created again"):
        app.plan()


def test_a_log_that_deletes_records_is_refused(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    rig.topic("decisions", 1, {"cleanup.policy": "delete"})
    with pytest.raises(DecisionLogError, match=r"cleanup\.policy='delete': must be 'compact'"):
        app.plan()


def test_a_log_is_replicated_and_compacted(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    app.plan()
    configs = rig.configs(f"{rig.name}.decisions")
    assert configs["cleanup.policy"] == "compact"
    assert configs["min.insync.replicas"] == "2"
    assert configs["unclean.leader.election.enable"] == "false"


def test_brokers_below_level_2_are_refused(rig: TransactionRig) -> None:
    app = Application(rig, rig.topic())
    rig.transactions.set_level(1)
    try:
        with pytest.raises(
            UnsupportedVersionError, match=r"needs transaction\.version 2, and the brokers have"
        ):
            app.plan()
    finally:
        rig.transactions.set_level(2)


@pytest.mark.parametrize("victim", ["coordinator of the log", "leader of the log", "coordinator of a task"])
def test_a_node_dies_while_the_driver_commits(rig: TransactionRig, victim: str) -> None:
    app = Application(rig, rig.topic())
    outcomes = app.write(app.plan(), 0)
    cluster = app.cluster()
    first = outcomes[0]
    assert first is not None
    assert first.transaction is not None
    if victim == "coordinator of the log":
        node = rig.transactions.coordinator(app.sink.log_id)
    elif victim == "leader of the log":
        node = rig.cluster.leader(f"{rig.name}.decisions", 0)
    else:
        node = rig.transactions.coordinator(first.transaction.transactional_id)
    write = cluster.write

    def killing(identity: Identity, decision: Any) -> Identity:
        if not decision.done:
            rig.cluster.kill(node)
        return write(identity, decision)

    cluster.write = killing  # type: ignore[method-assign]
    try:
        Driver(cluster, app.sink).commit(outcomes)
    finally:
        cluster.close()
        rig.cluster.restart(node)
    app.one(1)
    assert rig.committed(app.topic) == rows(2)


def test_operators_see_and_end_what_is_left(rig: TransactionRig, capsys: pytest.CaptureFixture[str]) -> None:
    app, undecided = Application(rig, rig.topic()), Application(rig, rig.id("records"), "/undecided")
    app.decide(app.write(app.plan(), 0))
    undecided.write(undecided.plan(), 0, tasks=1)
    asked = ["spark-recover", "-b", rig.cluster.bootstrap_servers, "--prefix", rig.name]
    assert main(asked) == 3
    rows_shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows_shown[1][:8] == [
        *("stream:/checkpoint", "0", str(2 * ROWS), "decided,", "2", "transactions", "2", "0"),
    ]
    assert rows_shown[2][:2] == ["(never", "decided)"]
    assert rows_shown[2][5:7] == ["1", "1"]
    assert main([*asked, "--end"]) == 0
    said = capsys.readouterr().out
    assert "stream:/checkpoint: nothing is left" in said
    assert "1 transactions of sinks that never decided anything were aborted" in said
    assert rig.committed(app.topic) == rows(1)
    assert main(asked) == 0


@pytest.mark.slow
def test_operators_can_accept_what_is_not_known(
    rig: TransactionRig, capsys: pytest.CaptureFixture[str]
) -> None:
    app = Application(rig, rig.topic(), batch_size=500)
    app.decide_too_late()
    rig.delete_records(app.topic, 0, before=ROWS // 2)
    asked = ["spark-recover", "-b", rig.cluster.bootstrap_servers, "--prefix", rig.name]
    assert main([*asked, "--end"]) == 1
    assert "can't be copied" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*asked, "--accept", "stream:/elsewhere"])
    assert main([*asked, "--accept", "stream:/checkpoint"]) == 0
    # The other task's records were there.
    assert rig.committed(app.topic) == [[], rows(1)[1]]
    app.one(1)
    assert rig.committed(app.topic)[0] == [b"1 0 %d" % row for row in range(ROWS)]


def test_a_prefix_that_was_never_used_has_no_log(
    rig: TransactionRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spark-recover", "-b", rig.cluster.bootstrap_servers, "--prefix", rig.name]) == 1
    assert f"there is no topic '{rig.name}.decisions'" in capsys.readouterr().err
