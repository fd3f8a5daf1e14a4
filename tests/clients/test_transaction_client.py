"""Transactions of whole producers, on the wire: which requests, in which order, after which answers.

The scripted coordinator finds nothing wrong by itself: a test gives the errors. The rules of the machine have
tests of their own, in ``tests/control/test_transaction_machine.py``.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.control.transaction_calls import State
from cyproducer.producer import KafkaProducer
from cyproducer.structs import TopicPartition
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Act,
    Received,
    ScriptedCluster,
)
from tests.scripted.scripted_transactions import FindCoordinator, InitProducerId
from tests.scripted.transacting import (
    GROUP,
    OFFSETS,
    after_a_step,
    batches,
    begun,
    client_of,
    name_of,
    sent,
    state_of,
    topic_of,
    trace,
    transacting,
    written,
)
from tools.harness.until import Running, until

LOADING, NOT_COORDINATOR, COORDINATOR_GONE, TIMED_OUT, CONCURRENT = 14, 16, 15, 7, 51
TOO_LARGE, NOT_ENOUGH_REPLICAS, UNAUTHORIZED, OUT_OF_ORDER, STALE_EPOCH, TXN_STATE = 10, 19, 29, 45, 47, 48
INVALID_MAPPING, BAD_TIMEOUT, DENIED, FENCED, ABORTABLE, INVALID_RECORD = 49, 50, 53, 90, 120, 87


@pytest.fixture
def first() -> Iterator[ScriptedCluster]:
    """Brokers with the first protocol only."""
    with ScriptedCluster(2, t=2) as cluster:
        yield cluster


# The requests of a transaction


def whole(producer: KafkaProducer, partitions: int = 2) -> None:
    """A transaction with records of both partitions, or of the first only, and offsets."""
    producer.begin_transaction()
    for number in range(4):
        producer.send("t", b"%d" % number, partition=number % partitions)
    producer.flush(WAIT_S)
    producer.send_offsets_to_transaction(OFFSETS, GROUP, WAIT_S)
    producer.commit_transaction(WAIT_S)


def test_a_transaction_of_the_first_protocol(first: ScriptedCluster) -> None:
    with transacting(first) as producer:
        whole(producer)
        names = trace(first)
        assert names[0] == "InitProducerId"
        assert names[-3:] == ["AddOffsets", "CommitOffsets", "commit"]
        assert set(names[1:-3]) == {"AddPartitions", "Produce"}
        for produce in sent(first, "Produce"):
            assert produce.header.version == 11
            before = names[: [r for r in first.requests if name_of(r) in names].index(produce) + 1]
            assert "AddPartitions" in before
        added = [r.transaction.partitions for r in sent(first, "AddPartitions")]  # type: ignore[union-attr]
        assert sorted(place for places in added for place in places) == [("t", 0), ("t", 1)]
    versions = {name: {r.header.version for r in sent(first, name)} for name in set(names)}
    assert versions["commit"] == versions["CommitOffsets"] == {4}
    assert versions["AddPartitions"] == {3}
    assert first.coordinator.committed["g"] == OFFSETS
    assert sorted(value or b"" for value in first.topics["t"].values) == [b"0", b"1", b"2", b"3"]


def test_a_transaction_of_the_second_protocol(second: ScriptedCluster) -> None:
    with transacting(second) as producer:
        whole(producer)
        names = trace(second)
        assert names[0] == "InitProducerId"
        assert names[-2:] == ["CommitOffsets", "commit"]
        assert set(names[1:-2]) == {"Produce"}
    versions = {name: {r.header.version for r in sent(second, name)} for name in set(names)}
    assert versions["commit"] == versions["CommitOffsets"] == {5}
    assert versions["Produce"] == {13}
    assert second.coordinator.committed["g"] == OFFSETS


def test_requests_and_batches_carry_the_id_and_the_identity(cluster: ScriptedCluster) -> None:
    with transacting(cluster) as producer:
        whole(producer)
    for received in sent(cluster, "Produce"):
        assert received.produce is not None
        assert received.produce.transactional_id == "tx"
    for batch in batches(cluster):
        assert batch.is_transactional
        assert (batch.producer_id, batch.producer_epoch) == (7, 0)
    for name in ("AddPartitions", "AddOffsets", "CommitOffsets", "commit"):
        for received in sent(cluster, name):
            request: Any = received.transaction
            assert (request.transactional_id, request.producer_id, request.epoch) == ("tx", 7, 0)
    (init,) = sent(cluster, "InitProducerId")
    assert init.transaction == InitProducerId("tx", 60_000, -1, -1)
    assert FindCoordinator(1, "tx") in [received.transaction for received in cluster.requests]
    group: Any = sent(cluster, "CommitOffsets")[0].transaction
    assert group.group == GROUP


@pytest.mark.parametrize("level", [None, 0, 1], indirect=False)
def test_no_request_of_the_second_protocol_at_a_lower_level(level: int | None) -> None:
    """One would make the transactional id unusable: behaviour "which protocol"."""
    with ScriptedCluster(t=2) as cluster:
        cluster.set_transaction_version(level, 1)
        with transacting(cluster) as producer:
            for _ in range(2):
                whole(producer)
            producer.begin_transaction()
            producer.send("t", b"v")
            producer.abort_transaction(WAIT_S)
        highest = {PRODUCE: 11, TXN_OFFSET_COMMIT: 4, END_TXN: 4, ADD_PARTITIONS_TO_TXN: 3}
        for api_key, version in highest.items():
            assert {received.header.version for received in cluster.received(api_key)} == {version}


@pytest.mark.parametrize("hidden", [PRODUCE, END_TXN, TXN_OFFSET_COMMIT])
def test_level_2_without_the_versions_of_its_requests_is_the_first_protocol(
    second: ScriptedCluster, hidden: int
) -> None:
    """A proxy may pass the brokers' features on and hide versions that it does not know."""
    highest = {PRODUCE: 11, TXN_OFFSET_COMMIT: 4, END_TXN: 4}
    for node in second.nodes.values():
        node.versions[hidden] = (node.versions[hidden][0], highest[hidden])
    with transacting(second) as producer:
        whole(producer)
    assert {"AddPartitions", "AddOffsets"} <= set(trace(second))
    for api_key, version in highest.items():
        assert {received.header.version for received in second.received(api_key)} == {version}


def test_begin_and_the_ends_of_an_empty_transaction_send_nothing(cluster: ScriptedCluster) -> None:
    """Behaviours "begin sends nothing", "nothing sent, no end", "empty offsets"."""
    with transacting(cluster) as producer:
        before = len(cluster.requests)
        for _ in range(3):
            producer.begin_transaction()
            producer.send_offsets_to_transaction({}, GROUP)
            producer.commit_transaction()
            producer.begin_transaction()
            producer.abort_transaction()
        later = [name_of(r) for r in cluster.requests[before:] if name_of(r)]
        assert later == []
        assert not cluster.received(DESCRIBE_TRANSACTIONS)


def test_epochs_and_sequences_of_three_transactions(cluster: ScriptedCluster, level: int) -> None:
    """Behaviour "sequence 0 from the first batch": with a retry and a split in each of them."""
    # Only the first of a topic's batches is too large: after that, batches are smaller.
    large = ["large0", "large1", "large2"]
    for name in large:
        cluster.create_topic(name, 1)
    refused: set[tuple[str, int]] = set()

    def script(received: Received) -> Act | None:
        codes = {}
        if received.api_key == PRODUCE:
            for (key, index), batch in received.batches.items():
                name = topic_of(cluster, key)
                first = name, 0 if name in large else int(batch.records[0].value or b"")
                if first not in refused:
                    refused.add(first)
                    codes[name, index] = TOO_LARGE if name in large else NOT_ENOUGH_REPLICAS
        return Act(error=codes)

    cluster.script = script
    with transacting(cluster, linger_ms=10) as producer:
        for number in range(3):
            producer.begin_transaction()
            producer.send("t", b"%d" % number, partition=0)
            for part in range(4):
                producer.send(f"large{number}", b"%d" % part)
            producer.commit_transaction(WAIT_S)
    epochs = range(3) if level == 2 else (0, 0, 0)
    starts = (0, 0, 0) if level == 2 else range(3)
    found = [(batch.producer_epoch, batch.base_sequence) for batch in batches(cluster)]
    assert found == [place for place in zip(epochs, starts, strict=True) for _ in range(2)]
    for epoch, name in zip(epochs, large, strict=True):
        found = [(batch.producer_epoch, batch.base_sequence) for batch in batches(cluster, name)]
        assert found == [(epoch, 0), (epoch, 0), (epoch, 2)]
        assert cluster.topics[name].values == [b"0", b"1", b"2", b"3"]


def test_the_identity_of_an_exhausted_epoch_is_used_whole(second: ScriptedCluster) -> None:
    second.act(END_TXN, Act(identity=(99, 0)))
    with transacting(second) as producer:
        for _ in range(2):
            with producer.transaction(WAIT_S):
                producer.send("t", b"v", partition=0)
    found = [(batch.producer_id, batch.producer_epoch, batch.base_sequence) for batch in batches(second)]
    assert found == [(7, 0, 0), (99, 0, 0)]


# Levels that change


def at_level(cluster: ScriptedCluster, producer: KafkaProducer, level: int, epoch: int) -> None:
    """Changes the level, and lets what is known of it get old."""
    cluster.set_transaction_version(level, epoch)
    client_of(producer).machine._level_ms = -1e12


def test_a_level_is_looked_up_on_an_open_connection(cluster: ScriptedCluster, level: int) -> None:
    with transacting(cluster) as producer:
        asked = len(cluster.received(API_VERSIONS))
        at_level(cluster, producer, 3 - level, 2)
        with producer.transaction(WAIT_S):
            producer.send("t", b"v", partition=0).get(WAIT_S)
        assert len(cluster.received(API_VERSIONS)) >= asked + 1
        assert sent(cluster, "commit")[0].header.version == (5 if level == 1 else 4)


def test_a_level_that_is_lowered_in_the_middle_ends_the_transaction_as_the_first_protocol(
    second: ScriptedCluster,
) -> None:
    with written(second) as producer:
        at_level(second, producer, 0, 2)
        producer.commit_transaction(WAIT_S)
        assert sent(second, "Produce")[0].header.version == 13
        assert sent(second, "commit")[0].header.version == 4
        with producer.transaction(WAIT_S):
            producer.send("t", b"w", partition=0)
    assert trace(second) == [
        "InitProducerId",
        "Produce",
        "commit",
        "AddPartitions",
        "Produce",
        "commit",
    ]
    assert [batch.base_sequence for batch in batches(second)] == [0, 1], "v4 ends no epoch"


def test_a_level_that_is_raised_bumps_the_epoch_first(first: ScriptedCluster) -> None:
    """Behaviour "bump before the first transaction of the second protocol"."""
    with transacting(first) as producer:
        with producer.transaction(WAIT_S):
            producer.send("t", b"v", partition=0)
        at_level(first, producer, 2, 2)
        with producer.transaction(WAIT_S):
            producer.send("t", b"w", partition=0)
    assert trace(first)[-3:] == ["InitProducerId", "Produce", "commit"]
    assert sent(first, "InitProducerId")[-1].transaction == InitProducerId("tx", 60_000, 7, 0)
    assert [(b.producer_epoch, b.base_sequence) for b in batches(first)] == [(0, 0), (1, 0)]


# Markers


def test_the_next_transaction_asks_for_the_markers_of_the_last(second: ScriptedCluster) -> None:
    with transacting(second) as producer:
        with producer.transaction(WAIT_S):
            producer.send("t", b"v", partition=0)
        assert not second.received(DESCRIBE_TRANSACTIONS)
        # Within the time for which the answer matters.
        machine = client_of(producer).machine
        machine._ended_ms += 1e9
        known = second.coordinator.transactions["tx"]
        known.state = "PrepareCommit"
        producer.begin_transaction()
        future = producer.send("t", b"w", partition=0)
        second.wait_for_requests(DESCRIBE_TRANSACTIONS, 3)
        assert not future.is_done
        assert len(second.received(PRODUCE)) == 1
        with second.changed:
            known.state = "CompleteCommit"
        future.get(WAIT_S)
        producer.commit_transaction(WAIT_S)


@pytest.mark.parametrize("level", [1, 2], indirect=True)
def test_transactions_in_a_row_wait_for_milliseconds_only(cluster: ScriptedCluster, level: int) -> None:
    """Behaviour "the first add waits 5 to 20 ms, uncounted": each one meets the last one's markers."""
    first_add = ADD_PARTITIONS_TO_TXN if level == 1 else PRODUCE
    took = []
    with transacting(cluster, retry_backoff_ms=2000, retry_backoff_max_ms=2000, retries=1) as producer:
        for _ in range(10):
            cluster.act(first_add, Act(error=CONCURRENT), Act(error=CONCURRENT))
            began = time.monotonic()
            producer.begin_transaction()
            future = producer.send("t", b"v", partition=0)
            producer.commit_transaction(WAIT_S)
            took.append(time.monotonic() - began)
            assert future.succeeded()
    # A busy machine does not slow down all of them.
    assert min(took) < 0.1, took
    if level == 2:
        # Each batch was sent three times, as it was.
        found = [(batch.producer_epoch, batch.base_sequence) for batch in batches(cluster)]
        assert found == [(epoch, 0) for epoch in range(10) for _ in range(3)]


# The order of requests


def test_no_end_while_a_produce_request_is_unanswered(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    with begun(cluster) as producer:
        cluster.act(PRODUCE, Act(hold=hold))
        producer.send("t", b"v", partition=0)
        commit = Running(producer.commit_transaction, WAIT_S)
        cluster.wait_for_requests(PRODUCE, 1)
        until(lambda: state_of(producer) is State.COMMITTING, "the commit")
        after_a_step(producer)
        assert "commit" not in trace(cluster)
        hold.set()
        commit.outcome()
        assert trace(cluster)[-1] == "commit"


@pytest.mark.slow
def test_no_end_of_a_failed_transaction_while_a_produce_request_is_unanswered(
    cluster: ScriptedCluster, level: int
) -> None:
    """Behaviour "EndTxn only when no Produce is unanswered", for an expired batch: its outcome is unknown."""
    hold = threading.Event()
    given = {"delivery_timeout_ms": 600, "request_timeout_ms": 550, "linger_ms": 0}
    given |= {"retry_backoff_ms": 200, "retry_backoff_max_ms": 200}
    with begun(cluster, **given) as producer:
        # The second request is still within its time when the record is not.
        cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS), Act(hold=hold))
        future = producer.send("t", b"v", partition=0)
        cluster.wait_for_requests(PRODUCE, 2)
        with pytest.raises(errors.AbortableError) as caught:
            producer.commit_transaction(WAIT_S)
        assert type(caught.value.__cause__) is errors.DeliveryTimeoutError
        assert type(future.exception) is errors.DeliveryTimeoutError
        assert future.exception.maybe_written is True
        abort = Running(producer.abort_transaction, WAIT_S)
        until(lambda: state_of(producer) is State.ABORTING, "the abort")
        after_a_step(producer)
        assert not {"abort", "commit"} & set(trace(cluster))
        hold.set()
        abort.outcome()
        names = trace(cluster)
        assert names[names.index("abort") :] == ["abort", "InitProducerId"][: 3 - level]


def test_nothing_of_a_partition_goes_before_it_was_added(first: ScriptedCluster) -> None:
    """Behaviour "add, then produce"."""
    hold = threading.Event()
    with written(first, b"0") as producer:
        # The scripted broker answers the requests of a connection in their order.
        first.coordinator.nodes["tx"] = 2
        client_of(producer).machine._coordinators.clear()
        first.act(ADD_PARTITIONS_TO_TXN, Act(hold=hold))
        futures = [producer.send("t", b"%d" % number, partition=1) for number in range(3)]
        first.wait_for_requests(ADD_PARTITIONS_TO_TXN, 2)
        # The added one goes on meanwhile.
        producer.send("t", b"1", partition=0).get(WAIT_S)
        assert not any(future.is_done for future in futures)
        assert batches(first, partition=1) == []
        hold.set()
        for future in futures:
            future.get(WAIT_S)
        producer.commit_transaction(WAIT_S)
    assert trace(first).count("AddPartitions") == 2


def test_a_refused_partition_leaves_the_others_out_and_nothing_pending(first: ScriptedCluster) -> None:
    first.create_topic("secret", 1)
    with begun(first) as producer:
        assert producer.partitions_for("t")
        assert producer.partitions_for("secret")
        sent_both = threading.Event()
        first.script = lambda received: (
            Act(error={("secret", 0): UNAUTHORIZED}, hold=sent_both)
            if received.api_key == ADD_PARTITIONS_TO_TXN
            else None
        )
        futures = [producer.send("secret", b"v"), producer.send("t", b"v", partition=0)]
        sent_both.set()
        with pytest.raises(errors.AbortableError) as caught:
            producer.commit_transaction(WAIT_S)
        assert type(caught.value.__cause__) is errors.TopicAuthorizationFailedError
        producer.abort_transaction(WAIT_S)
        assert all(future.failed() for future in futures)
        assert not first.topics["secret"].values
        first.script = lambda received: None
        with producer.transaction(WAIT_S):
            producer.send("t", b"w", partition=1)
    added: Any = sent(first, "AddPartitions")[-1].transaction
    assert added.partitions == [("t", 1)]


def test_no_init_while_a_transaction_is_open(cluster: ScriptedCluster, level: int) -> None:
    """Behaviour "never InitProducerId in an open transaction": it would abort it silently."""
    with written(cluster, b"0") as producer:
        cluster.act(PRODUCE, Act(error=OUT_OF_ORDER))
        future = producer.send("t", b"1", partition=0)
        with pytest.raises(errors.AbortableError):
            producer.commit_transaction(WAIT_S)
        assert future.failed()
        producer.abort_transaction(WAIT_S)
        names = trace(cluster)
        after = names[names.index("abort") :]
        assert names.count("InitProducerId") - after.count("InitProducerId") == 1, "the first one"
        assert after == (["abort", "InitProducerId"] if level == 1 else ["abort"])
        with producer.transaction(WAIT_S):
            producer.send("t", b"2", partition=0)
    last = batches(cluster, partition=0)[-1]
    assert (last.producer_epoch, last.base_sequence) == (1, 0)


# Faults of the coordinator, at each request

REQUESTS = {
    "init": INIT_PRODUCER_ID,
    "partitions": ADD_PARTITIONS_TO_TXN,
    "produce": PRODUCE,
    "add offsets": ADD_OFFSETS_TO_TXN,
    "offsets": TXN_OFFSET_COMMIT,
    "end": END_TXN,
    "find": FIND_COORDINATOR,
}
IN_FIRST, IN_SECOND = set(REQUESTS), set(REQUESTS) - {"partitions", "add offsets"}
EACH_REQUEST = pytest.mark.parametrize(
    ("level", "name"),
    [(1, name) for name in sorted(IN_FIRST)] + [(2, name) for name in sorted(IN_SECOND)],
    indirect=["level"],
)


def commits_once(cluster: ScriptedCluster, producer: KafkaProducer, ends: int = 1) -> None:
    """One outcome: each record once, the offsets, and the same end however often it was sent."""
    values = cluster.topics["t"].values
    assert sorted(value or b"" for value in values) == [b"0", b"1", b"2", b"3"]
    assert cluster.coordinator.committed["g"] == OFFSETS
    assert "abort" not in trace(cluster)
    commits = sent(cluster, "commit")
    assert len(commits) >= ends
    assert len({received.transaction for received in commits}) == 1
    assert len({received.header.version for received in commits}) == 1


NOT_READY = [
    (level, name, code)
    for level, names in ((1, IN_FIRST), (2, IN_SECOND))
    for name in sorted(names)
    for code in (LOADING, TIMED_OUT, CONCURRENT, COORDINATOR_GONE, NOT_COORDINATOR)
    # Which are no errors of these two.
    if not (name == "produce" and code in (LOADING, COORDINATOR_GONE, NOT_COORDINATOR))
    and not (name == "find" and code in (CONCURRENT, NOT_COORDINATOR))
]
ASKED = pytest.mark.parametrize(
    ("level", "name"),
    [(1, name) for name in sorted(IN_FIRST - {"produce", "find"})]
    + [(2, name) for name in sorted(IN_SECOND - {"produce", "find"})],
    indirect=["level"],
)
"""What is asked of a coordinator."""


@pytest.mark.parametrize(("level", "name", "code"), NOT_READY, indirect=["level"])
def test_a_coordinator_that_is_not_ready(cluster: ScriptedCluster, name: str, code: int) -> None:
    append = not (name == "produce" and code == TIMED_OUT)
    cluster.act(REQUESTS[name], Act(error=code, append=append), Act(error=code, append=append))
    with transacting(cluster) as producer:
        whole(producer)
        commits_once(cluster, producer)
        again = len(cluster.received(REQUESTS[name]))
        assert again >= 3


@EACH_REQUEST
@pytest.mark.parametrize("answer", [True, False], ids=["answer lost", "request lost"])
def test_a_connection_that_is_cut_at_a_request(cluster: ScriptedCluster, name: str, answer: bool) -> None:
    """Behaviour "an end without an answer goes again as it was"; the others are looked up anew."""
    cluster.act(REQUESTS[name], Act(cut=0) if answer else Act(drop=True, append=False))
    with transacting(cluster) as producer:
        if name == "produce":
            # The scripted broker has no memory of sequences.
            cluster._acts[PRODUCE].clear()
            cluster.act(PRODUCE, Act(drop=True, append=False, error=NOT_ENOUGH_REPLICAS))
        whole(producer)
        commits_once(cluster, producer)


@ASKED
def test_a_coordinator_that_moves(cluster: ScriptedCluster, name: str) -> None:
    """Behaviour "find the coordinator anew": it answers that it is none, and another one is."""
    key = "g" if name == "offsets" else "tx"
    cluster.coordinator.nodes = {"tx": 1, "g": 1}
    moved: list[int] = []

    def script(received: Received) -> Act | None:
        if received.api_key == REQUESTS[name] and not moved:
            moved.append(received.connection.node.id)
            cluster.coordinator.nodes[key] = 2
        return None

    cluster.script = script
    with transacting(cluster) as producer:
        whole(producer)
        commits_once(cluster, producer)
    assert moved == [1]
    assert [r.connection.node.id for r in cluster.received(REQUESTS[name])][:2] == [1, 2]


@ASKED
def test_a_coordinator_that_dies(cluster: ScriptedCluster, name: str) -> None:
    for partition in range(2):
        cluster.move_leader("t", partition, 2)
    cluster.coordinator.nodes = {"tx": 1, "g": 1}
    cluster.act(REQUESTS[name], Act(silent=True))
    with producing(cluster, transactional_id="tx") as producer:

        def everything() -> None:
            producer.init_transactions(WAIT_S)
            whole(producer)

        call = Running(everything)
        cluster.wait_for_requests(REQUESTS[name], 1)
        with cluster.changed:
            cluster.coordinator.nodes = {"tx": 2, "g": 2}
        cluster.nodes[1].stop()
        call.outcome()
        commits_once(cluster, producer)


def test_a_coordinator_that_is_found_nowhere_is_no_error_but_a_timeout(cluster: ScriptedCluster) -> None:
    cluster.script = lambda received: (
        Act(error=COORDINATOR_GONE) if received.api_key == FIND_COORDINATOR else None
    )
    with producing(cluster, transactional_id="tx") as producer:
        with pytest.raises(errors.KafkaTimeoutError) as caught:
            producer.init_transactions(0.2)
        text = str(caught.value)
        assert "init_transactions() not complete within 0.2 s" in text
        assert "it goes on: call it again to wait for its outcome" in text
        cluster.script = lambda received: None
        producer.init_transactions(WAIT_S)


def test_only_one_request_about_a_transaction_is_in_flight(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    with begun(cluster) as producer:
        cluster.act(TXN_OFFSET_COMMIT, Act(hold=hold))
        offsets = Running(producer.send_offsets_to_transaction, OFFSETS, GROUP, WAIT_S)
        cluster.wait_for_requests(TXN_OFFSET_COMMIT, 1)
        commit = Running(producer.commit_transaction, WAIT_S)
        until(lambda: state_of(producer) is State.COMMITTING, "the commit")
        after_a_step(producer)
        assert "commit" not in trace(cluster)
        hold.set()
        offsets.outcome()
        commit.outcome()


# Errors


@pytest.mark.parametrize(
    ("level", "name"),
    [(1, n) for n in ("partitions", "add offsets", "offsets", "end", "produce")]
    + [(2, n) for n in ("offsets", "produce")],
    indirect=["level"],
)
def test_a_producer_that_was_fenced_says_so_from_then_on(cluster: ScriptedCluster, name: str) -> None:
    """Behaviour "fenced is final": each later call has the first cause, and nothing more is sent."""
    cluster.act(REQUESTS[name], Act(error=FENCED))
    # One batch, sent by flush(): a second one could be under way when the first is refused, and be seen late.
    with transacting(cluster, linger_ms=WAIT_S * 1000) as producer:
        with pytest.raises(errors.ProducerFencedError) as caught:
            whole(producer, partitions=1)
        before = trace(cluster)
        for call in (
            producer.abort_transaction,
            producer.commit_transaction,
            producer.begin_transaction,
            producer.init_transactions,
        ):
            with pytest.raises(errors.ProducerFencedError) as again:
                call()
            assert again.value.args == caught.value.args
        with pytest.raises(errors.ProducerFencedError):
            producer.send("t", b"v")
        with pytest.raises(errors.ProducerFencedError):
            producer.send_offsets_to_transaction(OFFSETS, GROUP)
        producer.close(WAIT_S)
        assert trace(cluster) == before


@pytest.mark.parametrize("last", ["offsets", "commit", "abort"])
def test_a_call_of_a_fenced_producer_leaves_no_record_pending(cluster: ScriptedCluster, last: str) -> None:
    """One broker has not answered a Produce request when another one says that the producer is fenced."""
    hold, fencing = threading.Event(), threading.Event()
    cluster.coordinator.nodes["tx"] = cluster.coordinator.nodes["g"] = 2

    def script(received: Received) -> Act | None:
        if received.api_key == PRODUCE and received.connection.node.id == 1:
            return Act(hold=hold)
        if received.api_key == TXN_OFFSET_COMMIT:
            return Act(hold=fencing, error=FENCED)
        return None

    cluster.script = script
    with begun(cluster, max_in_flight_requests_per_connection=1) as producer:
        flying = producer.send("t", b"1", partition=0)
        cluster.wait_for_requests(PRODUCE, 1)
        futures = [flying, producer.send("t", b"2", partition=0), producer.send("unknown", b"3")]
        call = offsets = Running(producer.send_offsets_to_transaction, OFFSETS, GROUP, WAIT_S)
        cluster.wait_for_requests(TXN_OFFSET_COMMIT, 1)
        if last != "offsets":
            call = Running(getattr(producer, f"{last}_transaction"), WAIT_S)
            state = State.COMMITTING if last == "commit" else State.ABORTING
            until(lambda: state_of(producer) is state, "the call")
        if last == "abort":
            with pytest.raises(errors.IllegalStateError, match="was called meanwhile"):
                offsets.outcome()
        fencing.set()
        with pytest.raises(errors.ProducerFencedError):
            call.outcome()
        assert [future.is_done for future in futures] == [True] * 3
        assert {type(future.exception) for future in futures} == {errors.TransactionAbortedError}
        assert flying.exception.maybe_written is True  # type: ignore[union-attr]
        for call_again in (producer.abort_transaction, producer.begin_transaction):
            with pytest.raises(errors.ProducerFencedError):
                call_again()
        hold.set()
        # The answer comes too late to change an outcome, and its batch is let go of.
        accumulator = producer._runtime.accumulator
        until(lambda: accumulator.pool.used_bytes == 0, "the end of the batch")
        assert flying.failed()


def test_send_refuses_records_of_a_fenced_producer_only_when_no_other_is_pending(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    cluster.coordinator.nodes |= {"tx": 1, GROUP.group_id: 1}
    cluster.script = lambda received: Act(silent=True) if received.api_key == PRODUCE else None
    with transacting(cluster) as producer:
        client = client_of(producer)
        refuse_records = client._refuse_records

        def refuse() -> None:
            seen.extend(future.is_done for future in futures)
            refuse_records()

        producer.begin_transaction()
        # To the broker that coordinates nothing: all other requests have the other connection, which is up.
        futures = [producer.send("t", b"1", partition=1), producer.send("unknown", b"2")]
        cluster.wait_for_requests(PRODUCE, 1)
        cluster.act(TXN_OFFSET_COMMIT, Act(error=FENCED))
        monkeypatch.setattr(client, "_refuse_records", refuse)
        with pytest.raises(errors.ProducerFencedError):
            producer.send_offsets_to_transaction(OFFSETS, GROUP)
        assert seen == [True, True]


def test_a_call_of_a_fenced_producer_waits_for_a_batch_that_is_being_compressed(
    first: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that compresses it has finished: it fails, or is sent and then fails or is acknowledged."""
    compressing, go_on = threading.Event(), threading.Event()

    class Slow:
        codec_id = 1

        def compress(self, data: memoryview) -> bytes:
            compressing.set()
            assert go_on.wait(WAIT_S)
            return bytes(data)

    monkeypatch.setattr("cyproducer.records.compression.compressor_for", lambda *_: Slow())
    given = {"compression_type": "gzip", "batch_size": 1000, "linger_ms": 1000}
    with transacting(first, **given) as producer:
        assert producer.partitions_for("t")
        producer.begin_transaction()
        futures = [producer.send("t", bytes(600), partition=0)]
        first.act(ADD_OFFSETS_TO_TXN, Act(error=FENCED))
        filling = Running(producer.send, "t", bytes(600), None, None, 0)
        assert compressing.wait(WAIT_S)
        offsets = Running(producer.send_offsets_to_transaction, OFFSETS, GROUP, WAIT_S)
        until(lambda: state_of(producer) is State.FATAL_ERROR, "the fatal error")
        abort = Running(producer.abort_transaction, WAIT_S)
        until(lambda: not client_of(producer)._submitted, "the abort")
        assert offsets.running
        assert abort.running
        assert not futures[0].is_done
        go_on.set()
        futures.append(filling.outcome())
        for call in (offsets, abort):
            with pytest.raises(errors.ProducerFencedError):
                call.outcome()
            assert all(future.is_done for future in futures)


def test_a_fenced_end_of_the_second_protocol_is_decided_by_the_abort(second: ScriptedCluster) -> None:
    for last in (0, FENCED):
        with begun(second) as producer:
            producer.send("t", b"v", partition=0)
            second.act(END_TXN, Act(error=FENCED), Act(error=last))
            with pytest.raises(errors.AbortableError, match="transaction_timeout_ms=60000"):
                producer.commit_transaction(WAIT_S)
            if last:
                with pytest.raises(errors.ProducerFencedError):
                    producer.abort_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
                with producer.transaction(WAIT_S):
                    producer.send("t", b"w", partition=0)


def test_a_stale_epoch_of_a_batch_aborts_and_the_abort_decides(cluster: ScriptedCluster, level: int) -> None:
    for decided in (0, STALE_EPOCH if level == 2 else FENCED):
        with written(cluster, b"u") as producer:
            cluster.act(PRODUCE, Act(error=STALE_EPOCH))
            producer.send("t", b"v", partition=0)
            with pytest.raises(errors.AbortableError) as caught:
                producer.commit_transaction(WAIT_S)
            assert type(caught.value.__cause__) is errors.InvalidProducerEpochError
            cluster.act(END_TXN, Act(error=decided))
            if decided:
                with pytest.raises(errors.ApplicationRecoverableError):
                    producer.abort_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
                producer.begin_transaction()


def test_an_expired_id_is_fatal(cluster: ScriptedCluster) -> None:
    cluster.act(PRODUCE, Act(error=INVALID_MAPPING))
    with begun(cluster) as producer:
        future = producer.send("t", b"v", partition=0)
        with pytest.raises(errors.InvalidProducerIdMappingError):
            producer.commit_transaction(WAIT_S)
        assert future.failed()
        with pytest.raises(errors.InvalidProducerIdMappingError):
            producer.abort_transaction(WAIT_S)
        assert not {"commit", "abort"} & set(trace(cluster))


def test_an_abort_that_the_broker_calls_abortable_is_fatal_and_sent_once(cluster: ScriptedCluster) -> None:
    with written(cluster) as producer:
        cluster.act(END_TXN, Act(error=ABORTABLE), Act(error=ABORTABLE))
        for _ in range(2):
            with pytest.raises(errors.ApplicationRecoverableError) as caught:
                producer.abort_transaction(WAIT_S)
        assert type(caught.value.__cause__) is errors.TransactionAbortableError
        producer.close(WAIT_S)
        assert trace(cluster).count("abort") == 1


def test_a_refused_id_is_no_end_of_the_producer(cluster: ScriptedCluster, level: int) -> None:
    """Behaviour "an error of rights": after the grant the same producer goes on, with the same epoch."""
    cluster.act(INIT_PRODUCER_ID, Act(error=DENIED))
    with producing(cluster, transactional_id="tx") as producer:
        with pytest.raises(errors.InvalidSetupError, match="grant this principal"):
            producer.init_transactions(WAIT_S)
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.send("t", b"v", partition=0).get(WAIT_S)
        cluster.act(END_TXN, Act(error=DENIED), Act(error=DENIED))
        with pytest.raises(errors.AbortableError) as caught:
            producer.commit_transaction(WAIT_S)
        assert type(caught.value.__cause__) is errors.TransactionalIdAuthorizationFailedError
        with pytest.raises(errors.TransactionalIdAuthorizationFailedError):
            producer.abort_transaction(WAIT_S)
        producer.abort_transaction(WAIT_S)
        assert len({received.transaction for received in sent(cluster, "abort")}) == 1
        producer.begin_transaction()


def test_a_topic_that_is_refused_in_the_middle_aborts_all(cluster: ScriptedCluster, level: int) -> None:
    """Behaviour "one of two topics is refused"."""
    cluster.create_topic("secret", 1)
    cluster.topics["secret"].partitions[0].error = UNAUTHORIZED
    with begun(cluster) as producer:
        good, bad = producer.send("t", b"v", partition=0), producer.send("secret", b"v")
        with pytest.raises(errors.AbortableError) as caught:
            producer.commit_transaction(WAIT_S)
        assert type(caught.value.__cause__) is errors.TopicAuthorizationFailedError
        producer.abort_transaction(WAIT_S)
        assert bad.failed()
        assert good.is_done
        assert "commit" not in trace(cluster)
        assert "abort" in trace(cluster)


def test_a_refused_timeout_names_the_option_and_its_value(cluster: ScriptedCluster) -> None:
    cluster.act(INIT_PRODUCER_ID, Act(error=BAD_TIMEOUT))
    with producing(cluster, transactional_id="tx", transaction_timeout_ms=999_999) as producer:
        with pytest.raises(errors.InvalidSetupError, match="transaction_timeout_ms=999999") as caught:
            producer.init_transactions(WAIT_S)
        assert "transaction.max.timeout.ms" in str(caught.value)


def test_a_broker_that_is_too_old_says_so() -> None:
    with ScriptedCluster(t=1) as cluster:
        cluster.nodes[1].versions[INIT_PRODUCER_ID] = (0, 2)
        with (
            producing(cluster, transactional_id="tx") as producer,
            pytest.raises(errors.UnsupportedVersionError, match=r"Kafka 2\.5 or later"),
        ):
            producer.init_transactions(WAIT_S)
        del cluster.nodes[1].versions[FIND_COORDINATOR]
        with (
            producing(cluster, transactional_id="tx") as producer,
            pytest.raises(errors.InvalidSetupError, match="FindCoordinator is missing"),
        ):
            producer.init_transactions(WAIT_S)


def test_an_old_coordinator_is_not_asked_for_markers(second: ScriptedCluster) -> None:
    for node in second.nodes.values():
        del node.versions[DESCRIBE_TRANSACTIONS]
    with transacting(second) as producer:
        for _ in range(3):
            with producer.transaction(WAIT_S):
                producer.send("t", b"v", partition=0)


def test_offsets_of_a_former_member_say_what_happened(cluster: ScriptedCluster) -> None:
    """Behaviour "abortable, rejoin"."""
    for code in (22, 25, 82, 113, 69):
        cluster.act(TXN_OFFSET_COMMIT, Act(error=code))
        with begun(cluster) as producer:
            with pytest.raises(errors.AbortableError) as caught:
                producer.send_offsets_to_transaction(OFFSETS, GROUP, WAIT_S)
            assert getattr(caught.value.__cause__, "errno", None) == code
            assert "group 'g'" in str(caught.value)
            assert "let the consumer rejoin its group" in str(caught.value)
            producer.abort_transaction(WAIT_S)
            assert cluster.coordinator.committed == {}


def test_half_of_the_offsets_are_tried_again(cluster: ScriptedCluster) -> None:
    one, two = OFFSETS
    cluster.act(TXN_OFFSET_COMMIT, Act(error={two: LOADING}), Act(error={two: CONCURRENT}))
    with begun(cluster) as producer:
        producer.send_offsets_to_transaction(OFFSETS, GROUP, WAIT_S)
        producer.commit_transaction(WAIT_S)
    asked: list[Any] = [list(r.transaction.offsets) for r in sent(cluster, "CommitOffsets")]  # type: ignore[union-attr]
    assert asked == [[one, two], [two], [two]]
    assert cluster.coordinator.committed["g"] == OFFSETS


def test_a_topic_that_vanishes_for_one_answer_keeps_its_sequences(first: ScriptedCluster) -> None:
    """Behaviour "keep the sequences": reused ones would pass for duplicates."""
    with transacting(first, metadata_max_age_ms=50, metadata_max_idle_ms=50) as producer:
        for number in range(4):
            with producer.transaction(WAIT_S):
                producer.send("t", b"%d" % number, partition=0)
            asked = len(first.received(METADATA))
            first.topics["t"].first_errors.append(3)
            producer._runtime.client.refresh_topic("t", WAIT_S)
            first.wait_for_requests(METADATA, asked + 1)
    assert [batch.base_sequence for batch in batches(first)] == [0, 1, 2, 3]


# What an abort does


def test_an_abort_fails_what_is_buffered_and_awaits_what_is_in_flight(cluster: ScriptedCluster) -> None:
    """Behaviour "10,000 buffered, a broker that does not answer": every future is done."""
    hold = threading.Event()
    cluster.script = lambda received: Act(hold=hold) if received.api_key == PRODUCE else None
    with begun(cluster, batch_size=1000, linger_ms=50) as producer:
        futures = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(10_000)]
        cluster.wait_for_requests(PRODUCE, 2)
        abort = Running(producer.abort_transaction, WAIT_S)
        until(lambda: sum(future.is_done for future in futures[5000:]) == 5000, "what is buffered fails")
        requests = len(cluster.received(PRODUCE))
        after_a_step(producer)
        assert abort.running
        assert "abort" not in trace(cluster)
        hold.set()
        abort.outcome()
        assert all(future.is_done for future in futures)
        aborted = [future for future in futures if future.failed()]
        assert {type(future.exception) for future in aborted} == {errors.TransactionAbortedError}
        assert {future.exception.maybe_written for future in aborted} == {False}  # type: ignore[union-attr]
        assert len(aborted) + len(cluster.topics["t"].values) == 10_000
        assert len(cluster.received(PRODUCE)) == requests, "none of it is sent"
        assert trace(cluster)[-1] in ("abort", "InitProducerId")


def test_an_abort_after_a_request_that_got_no_answer_bumps_the_first_protocol(
    cluster: ScriptedCluster, level: int
) -> None:
    """Behaviour "an expired batch": its epoch is over before the next transaction begins."""
    with written(cluster, b"0") as producer:
        hold = threading.Event()
        cluster.act(PRODUCE, Act(hold=hold, drop=True))
        lost = producer.send("t", b"1", partition=0)
        cluster.wait_for_requests(PRODUCE, 2)
        abort = Running(producer.abort_transaction, WAIT_S)
        until(lambda: state_of(producer) is State.ABORTING, "the abort")
        hold.set()
        abort.outcome()
        assert type(lost.exception) is errors.TransactionAbortedError
        assert lost.exception.maybe_written is True
        with producer.transaction(WAIT_S):
            producer.send("t", b"2", partition=0)
    last = batches(cluster, partition=0)[-1]
    assert (last.producer_epoch, last.base_sequence) == (1, 0)
    assert trace(cluster).count("InitProducerId") == 3 - level


def test_a_failed_batch_ends_a_commit_at_once_and_the_rest_is_not_sent(cluster: ScriptedCluster) -> None:
    """Another partition's records wait: they are not waited for, and not sent."""
    hold = threading.Event()
    cluster.coordinator.nodes["tx"] = 2
    with begun(cluster, batch_size=0) as producer:
        cluster.topics["t"].partitions[1].error = UNAUTHORIZED
        cluster.script = lambda received: (
            Act(hold=hold) if received.api_key == PRODUCE and received.connection.node.id == 1 else None
        )
        flying = [producer.send("t", b"%d" % number, partition=0) for number in range(20)]
        cluster.wait_for_requests(PRODUCE, 1)
        producer.send("t", b"bad", partition=1)
        with pytest.raises(errors.AbortableError):
            producer.commit_transaction(WAIT_S)
        until(lambda: sum(future.is_done for future in flying) >= 15, "what is not sent fails")
        requests = len(sent(cluster, "Produce"))
        hold.set()
        producer.abort_transaction(WAIT_S)
        assert all(future.is_done for future in flying)
        assert len(sent(cluster, "Produce")) == requests


def test_a_failed_batch_refuses_records_before_the_next_call(cluster: ScriptedCluster) -> None:
    with begun(cluster) as producer:
        cluster.topics["t"].partitions[1].error = INVALID_RECORD
        bad = producer.send("t", b"bad", partition=1)
        until(lambda: bad.is_done, "the error")

        def refused() -> bool:
            try:
                producer.send("t", b"v", partition=0)
            except errors.AbortableError as error:
                return type(error.__cause__) is errors.InvalidRecordError
            return False

        until(refused, "the refusal")


def test_prepared_transactions_say_what_they_wrote(cluster: ScriptedCluster, level: int) -> None:
    with begun(cluster) as producer:
        for number in range(3):
            producer.send("t", b"%d" % number, partition=1)
        prepared = producer.prepare_transaction(WAIT_S)
        assert prepared == ("tx", 7, 0, level, False, {TopicPartition("t", 1): (0, 2)})
        with pytest.raises(errors.IllegalStateError):
            producer.send("t", b"v")
        assert producer.prepare_transaction(WAIT_S) == prepared
        assert not {"commit", "abort"} & set(trace(cluster))
        producer.commit_transaction(WAIT_S)
        assert trace(cluster)[-1] == "commit"
        producer.begin_transaction()
        assert producer.prepare_transaction(WAIT_S).empty
        producer.abort_transaction(WAIT_S)
