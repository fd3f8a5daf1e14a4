"""Ends transactions from other processes than their producers', against a real Kafka of three nodes, at each
level of ``transaction.version``: what is answered, and what readers of committed records see.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer import KafkaProducer, errors, transactions
from cyproducer.control.transaction_machine import LEVEL_AGE_MS
from cyproducer.transactions import Ended, Outcome, PreparedTransaction, TransactionAdmin
from tests.integration.transaction_rig import TransactionRig
from tests.programs import Program, program_environment
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.transactions import LEVELS, Transactions

pytestmark = pytest.mark.either_broker(slow=True)

SHORT_TIMEOUT_MS = 1_000
CALL_S = 30
VALUES = [b"prepared %d" % number for number in range(10)]


@pytest.fixture(scope="module", params=LEVELS, ids="level{}".format)
def level(request: pytest.FixtureRequest, transactional_kafka: KafkaCluster) -> int:
    """The level of ``transaction.version``: 2 is the protocol's second version, 1 and 0 are the first."""
    Transactions(transactional_kafka).set_level(request.param)
    return int(request.param)


@pytest.fixture
def admin(transactional_kafka: KafkaCluster) -> Iterator[TransactionAdmin]:
    with TransactionAdmin(config(transactional_kafka)) as admin:
        yield admin


def config(cluster: KafkaCluster) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "retry_backoff_ms": 20,
        "reconnect_backoff_ms": 20,
        "request_timeout_ms": 5_000,
        "max_block_ms": CALL_S * 1000,
    }


def prepare(producer: KafkaProducer, topic: str) -> PreparedTransaction:
    producer.begin_transaction()
    for value in VALUES:
        producer.send(topic, value, partition=0)
    return producer.prepare_transaction(CALL_S)


PREPARER = """
import sys
from cyproducer import KafkaProducer

servers, transactional_id, topic = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id)
producer.init_transactions()
producer.begin_transaction()
for number in range(10):
    producer.send(topic, b"prepared %d" % number, partition=0)
print("prepared", producer.prepare_transaction().to_json(), flush=True)
sys.stdin.read()
"""


def prepared_elsewhere(rig: TransactionRig, topic: str) -> str:
    """Prepares a transaction in a process that is killed then; returns it as JSON."""
    with Program(PREPARER, rig.cluster.bootstrap_servers, rig.id(), topic) as program:
        return program.hear("prepared").strip()


def command(cluster: KafkaCluster, *arguments: str, stdin: str = "") -> tuple[int, list[dict[str, Any]], str]:
    """Runs ``cyproducer transactions``; returns the exit code, what it has printed, and its messages."""
    done = subprocess.run(
        [sys.executable, "-m", "cyproducer", "transactions", arguments[0], "--json", "-b",
         cluster.bootstrap_servers, *arguments[1:]],
        input=stdin, capture_output=True, text=True, timeout=60, env=program_environment(), check=False,
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_third_process_ends_what_a_dead_one_has_prepared(
    rig: TransactionRig, level: int, commit: bool
) -> None:
    topic = rig.topic()
    text = prepared_elsewhere(rig, topic)
    assert rig.read(topic, isolation="read_committed") == [[], []]
    action, done = ("commit", "committed") if commit else ("abort", "aborted")
    for outcome in (done, f"{done}_before"):
        status, lines, messages = command(rig.cluster, action, stdin=text)
        assert (status, messages) == (0, "")
        assert [line["outcome"] for line in lines] == [outcome]
        assert [line["committed"] for line in lines] == [commit]
    status, lines, _ = command(rig.cluster, "abort" if commit else "commit", stdin=text)
    assert status == 3
    assert [line["outcome"] for line in lines] == [f"{done}_before"]

    assert rig.committed(topic, 10 if commit else 0) == [VALUES if commit else [], []]


def test_many_are_ended_at_once(rig: TransactionRig, level: int, admin: TransactionAdmin) -> None:
    topic = rig.topic()
    producers = [rig.ready(str(number)) for number in range(8)]
    try:
        prepared = [prepare(producer, topic) for producer in producers]
        ended = admin.commit_all(prepared)
        assert [each.transactional_id for each in ended] == [each.transactional_id for each in prepared]
        assert {each.outcome for each in ended} == {Outcome.COMMITTED}
        assert {each.outcome for each in admin.commit_all(prepared)} == {Outcome.COMMITTED_BEFORE}
    finally:
        for producer in producers:
            producer.close()
    assert sorted(rig.committed(topic, 80)[0]) == sorted(VALUES * 8)


def test_the_producer_may_commit_as_well_and_go_on(
    rig: TransactionRig, level: int, admin: TransactionAdmin
) -> None:
    topic = rig.topic()
    with rig.ready() as producer:
        prepared = prepare(producer, topic)
        following = admin.commit(prepared)
        assert following.outcome is Outcome.COMMITTED
        known = (prepared.producer_id, prepared.epoch + 1) if level == 2 else (None, None)
        assert following[2:] == known
        producer.commit_transaction()
        # The next one is not ended by whoever is late.
        producer.begin_transaction()
        producer.send(topic, b"next", partition=0)
        producer.flush()
        assert admin.commit(prepared).outcome is Outcome.FENCED
        assert admin.abort(prepared).outcome is Outcome.FENCED
        assert rig.read(topic, 10) == [VALUES, []]
        assert admin.describe_transaction(rig.id()).state == "Ongoing"
        producer.commit_transaction()

    assert rig.committed(topic, 11) == [[*VALUES, b"next"], []]


@pytest.mark.slow
def test_a_broker_has_aborted_it_meanwhile(rig: TransactionRig, level: int, admin: TransactionAdmin) -> None:
    topic = rig.topic()
    with rig.ready(transaction_timeout_ms=SHORT_TIMEOUT_MS) as producer:
        prepared = prepare(producer, topic)
        rig.transactions.await_state(rig.id(), "CompleteAbort")
        # The first protocol does not tell this from another producer's doing.
        expected = Outcome.ABORTED_BEFORE if level == 2 else Outcome.FENCED
        assert admin.commit(prepared).outcome is expected
        assert admin.abort(prepared).outcome is expected

    assert rig.committed(topic) == [[], []]


@pytest.mark.parametrize("first", ["open", "committed", "aborted"])
def test_another_producer_has_taken_the_id_over(
    rig: TransactionRig, level: int, admin: TransactionAdmin, first: str
) -> None:
    topic = rig.topic()
    with rig.ready() as producer:
        prepared = prepare(producer, topic)
        if first != "open":
            (admin.commit if first == "committed" else admin.abort)(prepared)
        with rig.ready() as successor:
            for end in (admin.commit, admin.abort):
                assert end(prepared).outcome is Outcome.FENCED
            successor.begin_transaction()
            successor.send(topic, b"successor", partition=0)
            successor.flush()
            for end in (admin.commit, admin.abort):
                assert end(prepared).outcome is Outcome.FENCED
            successor.commit_transaction()

    before = VALUES if first == "committed" else []
    assert rig.committed(topic, 1 + len(before)) == [[*before, b"successor"], []]


def test_an_identity_that_is_not_known(rig: TransactionRig, level: int, admin: TransactionAdmin) -> None:
    topic = rig.topic()
    with rig.ready() as producer:
        prepared = prepare(producer, topic)
        for wrong in (
            prepared._replace(producer_id=prepared.producer_id + 1_000_000),
            prepared._replace(transactional_id=rig.id("other")),
        ):
            assert admin.commit(wrong).outcome is Outcome.UNKNOWN_ID
        for epoch in (prepared.epoch + 1, prepared.epoch + 5):
            assert admin.commit(prepared._replace(epoch=epoch)).outcome is Outcome.FENCED
        assert admin.commit(prepared).outcome is Outcome.COMMITTED

    assert rig.committed(topic, 10) == [VALUES, []]


def test_nothing_was_written(rig: TransactionRig, level: int, admin: TransactionAdmin) -> None:
    topic = rig.topic()
    with rig.ready() as producer:
        producer.begin_transaction()
        prepared = producer.prepare_transaction()
        assert prepared.empty
        assert admin.commit(prepared) == Ended(Outcome.EMPTY, rig.id())
    with rig.ready() as producer:
        # Of whom only the identity is known.
        found = admin.describe_transaction(rig.id())
        identity = {"transactional_id": rig.id(), "producer_id": found.producer_id, "epoch": found.epoch}
        bare = PreparedTransaction.from_json(json.dumps(identity))
        assert admin.commit(bare).outcome is Outcome.EMPTY
        producer.begin_transaction()
        assert admin.abort(bare, fence=True).outcome is Outcome.EMPTY
        # That has taken the epoch away.
        with pytest.raises(errors.KafkaError):
            producer.send(topic, b"x", partition=0).get(CALL_S)

    assert rig.committed(topic) == [[], []]


@pytest.mark.slow
def test_open_transactions_are_found_and_aborted(
    rig: TransactionRig, level: int, admin: TransactionAdmin
) -> None:
    topic = rig.topic()
    with rig.ready("a") as live, rig.ready("b") as other, rig.ready("c") as idle:
        with idle.transaction():
            idle.send(topic, b"committed", partition=0)
        for producer in (live, other):
            producer.begin_transaction()
            for number in range(5):
                producer.send(topic, b"first half %d" % number, partition=0)
            producer.flush()
        ids = [rig.id("a"), rig.id("b")]
        rig.transactions.await_state(rig.id("c"), "CompleteCommit")

        listed = admin.list_transactions(prefix=rig.id(), older_than_s=0)
        assert [(each.transactional_id, each.state) for each in listed] == [(name, "Ongoing") for name in ids]
        assert len(admin.list_transactions(prefix=rig.id())) == 3
        assert [each.state for each in admin.list_transactions(producer_ids=[listed[0].producer_id])] == [
            "Ongoing"
        ]
        described = admin.describe_transaction(ids[0])
        truth = rig.transactions.describe(ids[0])
        assert described.coordinator == truth.coordinator
        assert (described.producer_id, described.epoch) == (truth.producer_id, truth.epoch)
        assert (described.start_time_ms, described.timeout_ms) == (truth.start_ms, truth.timeout_ms)
        assert described.partitions == [(topic, 0)]

        # They are younger than that.
        assert admin.abort_open(rig.id(), older_than_s=3600) == []
        status, lines, messages = command(rig.cluster, "abort", "--prefix", rig.id(), "--dry-run")
        assert (status, messages) == (0, "")
        assert [(line["transactional_id"], line["outcome"]) for line in lines] == [(n, "open") for n in ids]
        found = admin.abort_open(rig.id("a"), older_than_s=0.001)
        assert [each.transaction for each in found] == [described]
        assert [each.ended.outcome for each in found if each.ended] == [Outcome.ABORTED]
        status, lines, messages = command(rig.cluster, "abort", "--prefix", rig.id())
        assert (status, messages) == (0, "")
        assert [(line["transactional_id"], line["outcome"]) for line in lines] == [(ids[1], "aborted")]
        assert admin.abort_open(rig.id()) == []

        # The writers live: the second half of their records is not committed without the first.
        for producer in (live, other):
            for number in range(5):
                producer.send(topic, b"second half %d" % number, partition=0)
            with pytest.raises(errors.KafkaError):
                producer.commit_transaction()
        # A producer without an open transaction is not disturbed.
        with idle.transaction():
            idle.send(topic, b"and again", partition=0)

    assert rig.committed(topic, 2) == [[b"committed", b"and again"], []]


@pytest.mark.slow
def test_the_command_line_lists_and_describes(rig: TransactionRig, level: int) -> None:
    topic = rig.topic()
    with rig.ready() as producer:
        prepared = prepare(producer, topic)
        status, lines, messages = command(rig.cluster, "list", "--prefix", rig.id(), "--state", "Ongoing")
        assert (status, messages) == (0, "")
        assert lines == [
            {"transactional_id": rig.id(), "producer_id": prepared.producer_id, "state": "Ongoing"}
        ]
        status, lines, messages = command(rig.cluster, "describe", rig.id())
        assert (status, messages) == (0, "")
        assert [(line["epoch"], line["partitions"]) for line in lines] == [(prepared.epoch, [[topic, 0]])]
        identity = ["--producer-id", str(prepared.producer_id), "--epoch", str(prepared.epoch)]
        assert command(rig.cluster, "commit", "--id", rig.id(), *identity)[0] == 0
    assert command(rig.cluster, "describe", rig.id("none"))[0] == 4
    assert rig.committed(topic, 10) == [VALUES, []]


@pytest.mark.slow
def test_a_coordinator_that_dies_is_waited_for(rig: TransactionRig, level: int) -> None:
    topic = rig.topic()
    prepared = PreparedTransaction.from_json(prepared_elsewhere(rig, topic))
    coordinator = rig.transactions.coordinator(rig.id())
    rig.cluster.kill(coordinator)
    try:
        assert transactions.commit(prepared, config(rig.cluster)).outcome is Outcome.COMMITTED
        assert rig.transactions.coordinator(rig.id()) != coordinator
    finally:
        rig.cluster.restart(coordinator)
    again = transactions.commit(prepared, config(rig.cluster))
    assert again.outcome is Outcome.COMMITTED_BEFORE
    assert rig.committed(topic, 10) == [VALUES, []]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 0), (2, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_the_level_changes_meanwhile(
    rig: TransactionRig, admin: TransactionAdmin, before: int, after: int, commit: bool
) -> None:
    topic = rig.topic()
    rig.transactions.set_level(before)
    with rig.ready() as producer:
        prepared = prepare(producer, topic)
        assert prepared.protocol == (2 if before == 2 else 1)
        rig.transactions.set_level(after)
        end = admin.commit if commit else admin.abort
        done, done_before = (
            (Outcome.COMMITTED, Outcome.COMMITTED_BEFORE)
            if commit
            else (Outcome.ABORTED, Outcome.ABORTED_BEFORE)
        )
        assert end(prepared).outcome is done
        assert end(prepared).outcome is done_before
        # The producer takes the level for known as long.
        time.sleep(LEVEL_AGE_MS / 1000)
        (producer.commit_transaction if commit else producer.abort_transaction)()
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
        assert admin.commit(prepared).outcome is Outcome.FENCED

    # The id is not stuck.
    with rig.ready() as successor, successor.transaction():
        successor.send(topic, b"successor", partition=0)
    prefix = VALUES if commit else []
    assert rig.committed(topic, 2 + len(prefix)) == [[*prefix, b"next", b"successor"], []]
