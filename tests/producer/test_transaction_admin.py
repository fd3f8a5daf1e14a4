"""``cyproducer.transactions`` against scripted brokers: each outcome, and each way to get there."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cyproducer import ProducerConfig, errors, transactions
from cyproducer.clients import transaction_admin
from cyproducer.structs import TopicPartition
from cyproducer.transactions import (
    DescribedTransaction,
    Ended,
    Outcome,
    PreparedTransaction,
    TransactionAdmin,
    TransactionListing,
)
from tests.forked import in_child, needs_fork
from tests.scripted.producing import WAIT_S, options, producing
from tests.scripted.scripted_broker import (
    API_VERSIONS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    METADATA,
    Received,
    ScriptedCluster,
)
from tests.scripted.scripted_model import Act
from tests.scripted.scripted_sasl import SaslServer
from tests.scripted.scripted_transactions import EndTxn, InitProducerId, ListTransactions
from tools.harness import tls

PRODUCER_ID, EPOCH = 7, 3
PREPARED = PreparedTransaction("tx", PRODUCER_ID, EPOCH, 2, False, {})
NOT_COORDINATOR, LOADING, NOT_AVAILABLE = 16, 14, 15
INVALID_STATE, INVALID_MAPPING, CONCURRENT, DENIED, FENCED, ABORTABLE = 48, 49, 51, 53, 90, 120


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, t=2) as cluster:
        cluster.set_transaction_version(2, 5)
        set_state(cluster, "Ongoing")
        cluster.coordinator.nodes["tx"] = 2
        yield cluster


@pytest.fixture
def admin(cluster: ScriptedCluster) -> Iterator[TransactionAdmin]:
    with TransactionAdmin(options(cluster)) as admin:
        yield admin


def set_state(cluster: ScriptedCluster, state: str, epoch: int = EPOCH, name: str = "tx") -> None:
    with cluster.changed:
        known = cluster.coordinator.of(name)
        known.state, known.epoch, known.timeout_ms = state, epoch, 12345


def held() -> Act:
    """No response, until the cluster stops."""
    return Act(hold=threading.Event())


def ends(cluster: ScriptedCluster) -> list[tuple[int, Any]]:
    """Node and request of each EndTxn."""
    return [(each.connection.node.id, each.transaction) for each in cluster.received(END_TXN)]


# Outcomes


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("level", "version"), [(2, 5), (1, 4), (0, 4)])
def test_an_open_transaction_is_ended(
    cluster: ScriptedCluster, commit: bool, level: int, version: int
) -> None:
    cluster.set_transaction_version(level, 5)
    end = transactions.commit if commit else transactions.abort
    outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
    following = (PRODUCER_ID, EPOCH + 1) if version == 5 else (None, None)
    assert end(PREPARED, options(cluster), WAIT_S) == Ended(outcome, "tx", *following)
    assert ends(cluster) == [(2, EndTxn("tx", PRODUCER_ID, EPOCH, commit))]
    assert cluster.received(END_TXN)[0].header.version == version
    before = Outcome.COMMITTED_BEFORE if commit else Outcome.ABORTED_BEFORE
    assert end(PREPARED, options(cluster)).outcome is before
    # What is sure is not asked for.
    assert len(ends(cluster)) == (2 if level == 2 else 1)
    # No other client of this id is disturbed.
    assert cluster.received(INIT_PRODUCER_ID) == []


@pytest.mark.parametrize(
    ("commit", "state", "epoch", "code", "outcome", "requests"),
    [
        (True, "CompleteCommit", EPOCH, 0, Outcome.COMMITTED_BEFORE, 0),
        (True, "CompleteAbort", EPOCH, 0, Outcome.ABORTED_BEFORE, 0),
        (False, "PrepareCommit", EPOCH, 0, Outcome.COMMITTED_BEFORE, 0),
        (True, "CompleteCommit", EPOCH + 1, 0, Outcome.COMMITTED_BEFORE, 1),
        (False, "CompleteAbort", EPOCH + 1, 0, Outcome.ABORTED_BEFORE, 1),
        (True, "CompleteAbort", EPOCH + 1, INVALID_STATE, Outcome.ABORTED_BEFORE, 1),
        (False, "CompleteCommit", EPOCH + 1, INVALID_STATE, Outcome.COMMITTED_BEFORE, 1),
        (True, "CompleteAbort", EPOCH + 1, FENCED, Outcome.ABORTED_BEFORE, 2),
        (True, "Ongoing", EPOCH + 1, FENCED, Outcome.FENCED, 1),
        (False, "Empty", EPOCH + 2, FENCED, Outcome.FENCED, 1),
        (True, "Ongoing", EPOCH + 1, INVALID_MAPPING, Outcome.UNKNOWN_ID, 1),
        (True, "Empty", EPOCH, 0, Outcome.EMPTY, 0),
        (False, "Empty", EPOCH, 0, Outcome.EMPTY, 1),
    ],
)
def test_what_has_become_of_it(
    cluster: ScriptedCluster,
    admin: TransactionAdmin,
    commit: bool,
    state: str,
    epoch: int,
    code: int,
    outcome: Outcome,
    requests: int,
) -> None:
    set_state(cluster, state, epoch)
    cluster.act(END_TXN, Act(error=code))
    end = admin.commit if commit else admin.abort
    assert end(PREPARED).outcome is outcome
    assert len(ends(cluster)) == requests


def test_an_id_that_nobody_knows(admin: TransactionAdmin) -> None:
    assert admin.commit(PREPARED._replace(transactional_id="other")).outcome is Outcome.UNKNOWN_ID


def test_an_empty_transaction_takes_no_request(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    assert admin.commit(PREPARED._replace(empty=True)) == Ended(Outcome.EMPTY, "tx")
    assert admin.abort(PREPARED._replace(empty=True), fence=True) == Ended(Outcome.EMPTY, "tx")
    assert cluster.received(FIND_COORDINATOR) == []


def test_a_producer_may_commit_what_another_process_has_committed(cluster: ScriptedCluster) -> None:
    del cluster.coordinator.transactions["tx"]
    with producing(cluster, transactional_id="tx") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"1")
        prepared = producer.prepare_transaction(WAIT_S)
        assert transactions.commit(prepared, options(cluster)).outcome is Outcome.COMMITTED
        producer.commit_transaction(WAIT_S)
        with producer.transaction():
            producer.send("t", b"2")
    assert [each.epoch for _, each in ends(cluster)] == [0, 0, 1]


# Trying again


@pytest.mark.parametrize("code", [CONCURRENT, LOADING, NOT_AVAILABLE, NOT_COORDINATOR])
def test_it_is_tried_again(cluster: ScriptedCluster, admin: TransactionAdmin, code: int) -> None:
    cluster.act(END_TXN, Act(error=code), Act(error=code))
    cluster.act(DESCRIBE_TRANSACTIONS, Act(error=LOADING))
    cluster.act(FIND_COORDINATOR, Act(error=NOT_AVAILABLE))
    assert admin.commit(PREPARED).outcome is Outcome.COMMITTED
    assert len(ends(cluster)) == 3


def test_a_coordinator_that_moves_is_followed(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    def move(received: Received) -> Act | None:
        if received.api_key == END_TXN and len(ends(cluster)) == 0:
            cluster.coordinator.nodes["tx"] = 1
        return None

    cluster.script = move
    assert admin.commit(PREPARED).outcome is Outcome.COMMITTED
    assert [node for node, _ in ends(cluster)] == [2, 1]


def test_a_coordinator_that_is_gone_is_looked_for_anew(
    cluster: ScriptedCluster, admin: TransactionAdmin
) -> None:
    assert admin.describe_transaction("tx").coordinator == 2
    cluster.nodes[2].stop()

    def move(received: Received) -> Act | None:
        if len(cluster.received(FIND_COORDINATOR)) == 3:
            cluster.coordinator.nodes["tx"] = 1
        return None

    cluster.script = move
    assert admin.commit(PREPARED).outcome is Outcome.COMMITTED
    assert [node for node, _ in ends(cluster)] == [1]


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_lost_response_is_asked_for(
    cluster: ScriptedCluster, admin: TransactionAdmin, protocol: int
) -> None:
    cluster.act(END_TXN, Act(drop=True))
    assert admin.commit(PREPARED._replace(protocol=protocol)).outcome is Outcome.COMMITTED
    # The first protocol's EndTxn must not go out twice: it might end the next transaction.
    assert len(ends(cluster)) == protocol


def test_the_level_is_that_of_the_moment(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    def lower(received: Received) -> Act | None:
        if received.api_key == END_TXN and received.header.version == 5:
            cluster.set_transaction_version(0, 6)
            time.sleep(transaction_admin.LEVEL_AGE_S)
            return Act(error=LOADING)
        return None

    cluster.script = lower
    assert admin.commit(PREPARED).outcome is Outcome.COMMITTED
    assert [each.header.version for each in cluster.received(END_TXN)] == [5, 4]


def test_the_level_is_asked_for_once_for_many(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    many = [PREPARED._replace(transactional_id=f"tx{n}", epoch=-1, producer_id=8 + n) for n in range(20)]
    for each in many:
        set_state(cluster, "Ongoing", -1, each.transactional_id)
        cluster.coordinator.nodes[each.transactional_id] = 1
    admin.describe_transaction("tx0")
    before = len(cluster.received(API_VERSIONS))
    ended = admin.commit_all(many)
    assert [each.transactional_id for each in ended] == [each.transactional_id for each in many]
    assert {each.outcome for each in ended} == {Outcome.COMMITTED}
    assert len(cluster.received(API_VERSIONS)) == before + 1
    # Not for the next call.
    assert {each.outcome for each in admin.commit_all(many)} == {Outcome.COMMITTED_BEFORE}
    assert len(cluster.received(API_VERSIONS)) == before + 2


def test_many_are_ended_at_the_same_time(
    cluster: ScriptedCluster, admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_admin, "AT_ONCE", 3)
    many = [PREPARED._replace(transactional_id=f"tx{n}", epoch=-1, producer_id=8 + n) for n in range(7)]
    for each in many:
        set_state(cluster, "Ongoing", -1, each.transactional_id)
    hold = threading.Event()
    cluster.act(END_TXN, *[Act(hold=hold)] * 3)
    done = threading.Event()
    result: list[list[Ended]] = []

    def run() -> None:
        result.append(admin.abort_all(many))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    cluster.wait_for_requests(END_TXN, 3)
    assert not done.wait(0.2)
    assert len(cluster.received(END_TXN)) == 3
    hold.set()
    thread.join(WAIT_S)
    assert [each.outcome for each in result[0]] == [Outcome.ABORTED] * 7


# Failures


def test_the_error_of_a_timeout_says_what_is_missing(
    cluster: ScriptedCluster, admin: TransactionAdmin
) -> None:
    cluster.act(END_TXN, *[Act(error=CONCURRENT)] * 1000)
    began = time.monotonic()
    with pytest.raises(errors.KafkaTimeoutError) as raised:
        admin.commit(PREPARED, 0.3)
    assert 0.3 <= time.monotonic() - began < WAIT_S / 2
    text = str(raised.value)
    assert "commit of transactional id 'tx' (producer_id=7, epoch=3) not complete within 0.3 s: " in text
    assert "EndTxn(commit) for transactional id 'tx' at 127.0.0.1:" in text
    assert "ConcurrentTransactionsError" in text
    assert "it may be done: call again to learn the outcome" in text


@pytest.mark.slow
def test_a_response_that_does_not_come_ends_in_a_timeout(
    cluster: ScriptedCluster, admin: TransactionAdmin
) -> None:
    cluster.act(DESCRIBE_TRANSACTIONS, held())
    many = [PREPARED, PREPARED._replace(transactional_id="ty")]
    cluster.coordinator.nodes["ty"] = 1
    with pytest.raises(errors.KafkaTimeoutError, match=r"Describe is not answered yet by broker"):
        admin.commit_all([PREPARED], 0.3)
    cluster.act(FIND_COORDINATOR, held(), held())
    with pytest.raises(
        errors.KafkaTimeoutError, match=r"looking for the coordinator.*1 more are not complete"
    ):
        admin.commit_all(many, 0.3)


def test_one_that_fails_does_not_keep_others_from_their_end(
    cluster: ScriptedCluster, admin: TransactionAdmin
) -> None:
    many = [PREPARED, *(PREPARED._replace(transactional_id=f"t{n}") for n in range(3))]
    for each in many:
        set_state(cluster, "Ongoing", name=each.transactional_id)
        cluster.coordinator.transactions[each.transactional_id].producer_id = PRODUCER_ID
    cluster.script = lambda received: (
        Act(error=DENIED)
        if isinstance(received.transaction, EndTxn) and received.transaction.transactional_id in ("tx", "t1")
        else None
    )
    with pytest.raises(errors.TransactionalIdAuthorizationFailedError) as raised:
        admin.commit_all(many)
    assert "'tx'" in str(raised.value)
    assert raised.value.__notes__ == ["2 of 4 have failed; this is the error of the first"]
    assert {each.transactional_id for _, each in ends(cluster)} == {"tx", "t0", "t1", "t2"}
    assert cluster.coordinator.transactions["t2"].state == "CompleteCommit"


def test_a_broker_that_wants_an_abort(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    cluster.act(END_TXN, Act(error=ABORTABLE))
    with pytest.raises(errors.AbortableError):
        admin.commit(PREPARED)
    assert admin.abort(PREPARED).outcome is Outcome.ABORTED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.slow
def test_a_secured_cluster(mechanism: str) -> None:
    """With the security options of a producer: TLS and SASL, at each of the brokers that are asked."""
    authority, server = tls.Authority(), SaslServer()
    with ScriptedCluster(2, tls=authority.server(), sasl=server) as cluster:
        cluster.set_transaction_version(2, 5)
        set_state(cluster, "Ongoing")
        cluster.coordinator.nodes["tx"] = 2
        config = options(
            cluster,
            security_protocol="SASL_SSL",
            ssl_context=authority.client(),
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="secret",
        )
        with TransactionAdmin(config) as admin:
            admin.wait_ready(WAIT_S)
            assert admin.commit(PREPARED, WAIT_S).outcome is Outcome.COMMITTED
            assert [each.state for each in admin.list_transactions(timeout=WAIT_S)] == ["CompleteCommit"]
            assert admin.describe_transaction("tx", WAIT_S).coordinator == 2
        assert transactions.commit(PREPARED, config, WAIT_S).outcome is Outcome.COMMITTED_BEFORE
        assert set(server.tries) == {mechanism}
        with pytest.raises(errors.KafkaTimeoutError, match="is not trusted"):
            transactions.commit(PREPARED, config | {"ssl_context": tls.Authority().client()}, 1)


def test_refused_credentials_are_told_at_once() -> None:
    with ScriptedCluster(sasl=SaslServer()) as cluster:
        wrong = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        wrong |= {"sasl_plain_username": "alice", "sasl_plain_password": "wrong"}
        began = time.monotonic()
        for call in (
            lambda config: transactions.commit(PREPARED, config),
            lambda config: transactions.list_transactions(config),
        ):
            with pytest.raises(errors.SaslAuthenticationFailedError):
                call(options(cluster, **wrong))
        assert time.monotonic() - began < WAIT_S / 2


def test_other_objects_are_refused(admin: TransactionAdmin) -> None:
    with pytest.raises(TypeError, match=r"\('tx', 7, 3\) is not a PreparedTransaction"):
        admin.commit(("tx", 7, 3))  # type: ignore[arg-type]


# Fencing


def test_an_aborted_writer_is_fenced(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    cluster.set_transaction_version(1, 5)
    ended = admin.abort(PREPARED, fence=True)
    assert ended == Ended(Outcome.ABORTED, "tx", PRODUCER_ID, EPOCH + 1)
    (received,) = cluster.received(INIT_PRODUCER_ID)
    assert received.connection.node.id == 2
    assert received.transaction == InitProducerId("tx", 12345, PRODUCER_ID, EPOCH)


# Listing and describing


def names(found: list[TransactionListing]) -> list[str]:
    return [each.transactional_id for each in found]


def test_all_brokers_list(cluster: ScriptedCluster) -> None:
    for name, node in (("b", 1), ("a", 2), ("c", 1)):
        set_state(cluster, "Empty", name=name)
        cluster.coordinator.nodes[name] = node
    found = transactions.list_transactions(options(cluster))
    assert found == [
        TransactionListing("a", 9, "Empty"),
        TransactionListing("b", 8, "Empty"),
        TransactionListing("c", 10, "Empty"),
        TransactionListing("tx", 7, "Ongoing"),
    ]
    assert {each.connection.node.id for each in cluster.received(LIST_TRANSACTIONS)} == {1, 2}
    assert all(each.topics == [] for each in cluster.received(METADATA))


def test_what_two_brokers_list_is_listed_once(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    set_state(cluster, "CompleteCommit", name="moving")
    found = admin.list_transactions()
    assert found == [
        TransactionListing("moving", 8, "CompleteCommit"),
        TransactionListing("tx", 7, "Ongoing"),
    ]
    assert len(cluster.received(LIST_TRANSACTIONS)) == 2


@pytest.mark.parametrize("open_at", [1, 2])
def test_of_two_states_the_open_one_is_listed(
    cluster: ScriptedCluster, admin: TransactionAdmin, open_at: int
) -> None:
    def move(received: Received) -> Act | None:
        if received.api_key == LIST_TRANSACTIONS:
            state = "Ongoing" if received.connection.node.id == open_at else "CompleteCommit"
            set_state(cluster, state, name="moving")
        return None

    cluster.script = move
    assert admin.list_transactions(prefix="moving") == [TransactionListing("moving", 8, "Ongoing")]


def test_the_filters(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    for name, state in (("ty", "Empty"), ("t.x", "CompleteAbort"), ("other", "Ongoing")):
        set_state(cluster, state, name=name)
    assert names(admin.list_transactions(states=["Ongoing"])) == ["other", "tx"]
    assert names(admin.list_transactions(states=iter(["Empty", "CompleteAbort"]))) == ["t.x", "ty"]
    assert names(admin.list_transactions(producer_ids=[8])) == ["ty"]
    assert names(admin.list_transactions(prefix="t")) == ["t.x", "tx", "ty"]
    assert names(admin.list_transactions(prefix="t.")) == ["t.x"]
    last = cluster.received(LIST_TRANSACTIONS)[-1].transaction
    assert last == ListTransactions([], [], -1, r"t\..*")
    assert names(admin.list_transactions(prefix="t", states=["Ongoing"])) == ["tx"]
    last = cluster.received(LIST_TRANSACTIONS)[-1].transaction
    assert last == ListTransactions(["Ongoing"], [], -1, "t.*")
    # Ids without a transaction would pass the filter of durations.
    assert names(admin.list_transactions(older_than_s=1.5)) == ["other", "tx"]
    last = cluster.received(LIST_TRANSACTIONS)[-1].transaction
    assert last == ListTransactions(["Ongoing", "PrepareCommit", "PrepareAbort"], [], 1500, None)
    admin.list_transactions(older_than_s=0)
    last = cluster.received(LIST_TRANSACTIONS)[-1].transaction
    assert last == ListTransactions(["Ongoing", "PrepareCommit", "PrepareAbort"], [], -1, None)
    admin.list_transactions(older_than_s=0.0001, states=["Ongoing"])
    last = cluster.received(LIST_TRANSACTIONS)[-1].transaction
    assert last == ListTransactions(["Ongoing"], [], 1, None)


@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ({"states": ["Open"]}, "'Open' is not one of Empty, Ongoing"),
        ({"states": ["Empty"], "older_than_s": 1}, "older_than_s is for open transactions"),
        ({"older_than_s": -1}, "older_than_s=-1"),
    ],
)
def test_filters_that_make_no_sense(admin: TransactionAdmin, filters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        admin.list_transactions(**filters)


def test_older_brokers_have_fewer_filters(cluster: ScriptedCluster, request: pytest.FixtureRequest) -> None:
    set_state(cluster, "Ongoing", name="other")
    for node in cluster.nodes.values():
        node.versions[LIST_TRANSACTIONS] = (0, 0)
    admin: TransactionAdmin = request.getfixturevalue("admin")
    assert names(admin.list_transactions(prefix="t")) == ["tx"]
    with pytest.raises(errors.UnsupportedVersionError, match=r"older_than_s needs brokers of Kafka 3\.8"):
        admin.list_transactions(older_than_s=1)
    assert names(admin.list_transactions(older_than_s=0)) == ["other", "tx"]


def test_brokers_without_the_request(cluster: ScriptedCluster, request: pytest.FixtureRequest) -> None:
    for node in cluster.nodes.values():
        del node.versions[LIST_TRANSACTIONS], node.versions[DESCRIBE_TRANSACTIONS]
    admin: TransactionAdmin = request.getfixturevalue("admin")
    with pytest.raises(errors.UnsupportedVersionError, match="ListTransactions"):
        admin.list_transactions()
    with pytest.raises(errors.UnsupportedVersionError, match="DescribeTransactions"):
        admin.describe_transaction("tx")
    # Nothing is known before, but it is ended all the same.
    assert admin.commit(PREPARED).outcome is Outcome.COMMITTED


@pytest.mark.slow
def test_a_broker_that_does_not_list_is_no_empty_list(
    cluster: ScriptedCluster, admin: TransactionAdmin
) -> None:
    cluster.act(LIST_TRANSACTIONS, Act(error=LOADING))
    assert names(admin.list_transactions()) == ["tx"]
    # What moves meanwhile from one to the other would be missing: both were asked again.
    assert len(cluster.received(LIST_TRANSACTIONS)) == 4
    cluster.act(LIST_TRANSACTIONS, Act(drop=True))
    assert names(admin.list_transactions()) == ["tx"]
    cluster.act(METADATA, Act(drop=True))
    assert names(admin.list_transactions()) == ["tx"]
    cluster.act(LIST_TRANSACTIONS, *[Act(error=LOADING)] * 1000)
    with pytest.raises(errors.KafkaTimeoutError, match=r"not all brokers.*within 0\.3 s.*LoadInProgress"):
        admin.list_transactions(timeout=0.3)
    cluster._acts[LIST_TRANSACTIONS].clear()
    # Connects again after the drops, whose backoff may last longer than the timeout below.
    assert names(admin.list_transactions()) == ["tx"]
    cluster.act(LIST_TRANSACTIONS, held())
    with pytest.raises(errors.KafkaTimeoutError, match=r"ListTransactions is not answered by broker \d"):
        admin.list_transactions(timeout=1)


def test_a_refused_list_is_an_error(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    cluster.act(LIST_TRANSACTIONS, Act(error=128))
    with pytest.raises(errors.InvalidRegularExpressionError, match="ListTransactions at "):
        admin.list_transactions(prefix="t")


def test_an_id_is_described(cluster: ScriptedCluster) -> None:
    with cluster.changed:
        known = cluster.coordinator.of("tx")
        known.start_time_ms = 1234
        known.partitions = [("t", 1), ("a", 0), ("t", 0)]
    expected = DescribedTransaction(
        "tx",
        "Ongoing",
        PRODUCER_ID,
        EPOCH,
        12345,
        1234,
        [TopicPartition("a", 0), TopicPartition("t", 0), TopicPartition("t", 1)],
        2,
    )
    assert transactions.describe_transaction("tx", options(cluster)) == expected
    known.start_time_ms = -1
    assert transactions.describe_transaction("tx", options(cluster)).start_time_ms is None
    with pytest.raises(errors.TransactionalIdNotFoundError, match="'other' at "):
        transactions.describe_transaction("other", options(cluster))


# Aborting open ones


def test_open_transactions_are_aborted_by_their_identity(cluster: ScriptedCluster) -> None:
    for name, state in (("ty", "Ongoing"), ("tz", "Empty"), ("tc", "PrepareCommit"), ("other", "Ongoing")):
        set_state(cluster, state, EPOCH + 1, name)
        cluster.coordinator.nodes[name] = 1
    assert transactions.abort_open("t", options(cluster), dry_run=True) == [
        (transactions.describe_transaction(name, options(cluster)), None) for name in ("tx", "ty")
    ]
    assert ends(cluster) == []
    found = transactions.abort_open("t", options(cluster))
    assert [each.transaction.transactional_id for each in found] == ["tx", "ty"]
    assert [each.ended for each in found] == [
        Ended(Outcome.ABORTED, "tx", PRODUCER_ID, EPOCH + 1),
        Ended(Outcome.ABORTED, "ty", 8, EPOCH + 2),
    ]
    assert {request for _, request in ends(cluster)} == {
        EndTxn("tx", PRODUCER_ID, EPOCH, False), EndTxn("ty", 8, EPOCH + 1, False)
    }  # fmt: skip
    assert transactions.abort_open("t", options(cluster)) == []


def test_their_writers_are_fenced_with_the_first_protocol(
    cluster: ScriptedCluster, admin: TransactionAdmin
) -> None:
    cluster.set_transaction_version(0, 5)
    ((_, ended),) = admin.abort_open("tx")
    assert ended == Ended(Outcome.ABORTED, "tx", PRODUCER_ID, EPOCH + 1)
    assert len(cluster.received(INIT_PRODUCER_ID)) == 1


def test_young_transactions_are_left_alone(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    set_state(cluster, "Ongoing", name="ty")
    listed: list[ListTransactions] = []

    def script(received: Received) -> Act | None:
        if isinstance(received.transaction, ListTransactions):
            listed.append(received.transaction)
            if len(listed) == 3:
                # It has ended since, and the next one is young.
                set_state(cluster, "Empty", name="ty")
        return None

    cluster.script = script
    found = admin.abort_open("t", older_than_s=60)
    assert [each.transaction.transactional_id for each in found] == ["tx"]
    assert {request.duration_ms for request in listed} == {60_000}
    assert len(listed) == 4
    # Without an age, one list is enough.
    set_state(cluster, "Ongoing", name="tz")
    assert len(admin.abort_open("t")) == 1
    assert len(listed) == 6


def test_a_transaction_that_has_begun_since_is_left_alone(
    cluster: ScriptedCluster, admin: TransactionAdmin
) -> None:
    cluster.set_transaction_version(0, 5)
    described: list[Received] = []

    def script(received: Received) -> Act | None:
        if received.api_key == DESCRIBE_TRANSACTIONS:
            described.append(received)
            cluster.coordinator.of("tx").start_time_ms = len(described)
        return None

    cluster.script = script
    ((_, ended),) = admin.abort_open("tx")
    assert ended is not None
    assert ended.outcome is Outcome.FENCED
    assert ends(cluster) == []


def test_one_that_ends_meanwhile_is_left_alone(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    set_state(cluster, "Ongoing", name="ty")

    def end(received: Received) -> Act | None:
        if getattr(received.transaction, "transactional_ids", None) == ["ty"]:
            set_state(cluster, "CompleteCommit", EPOCH + 1, "ty")
        return None

    cluster.script = end
    assert [each.transaction.transactional_id for each in admin.abort_open("t")] == ["tx"]
    assert [request.transactional_id for _, request in ends(cluster)] == ["tx"]


def test_one_that_expires_meanwhile_is_left_out(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    set_state(cluster, "Ongoing", name="ty")
    cluster.script = lambda received: (
        Act(error=105) if getattr(received.transaction, "transactional_ids", None) == ["ty"] else None
    )
    assert [each.transaction.transactional_id for each in admin.abort_open("t")] == ["tx"]


def test_an_empty_prefix_would_abort_everything(admin: TransactionAdmin) -> None:
    with pytest.raises(ValueError, match="prefix is empty"):
        admin.abort_open("")


# Connections


def test_a_producers_whole_configuration_can_be_used(cluster: ScriptedCluster) -> None:
    def never(*arguments: Any) -> bytes:
        raise AssertionError("a serializer was called")

    class Reporter:
        def init(self, metrics: Any) -> None:
            raise AssertionError("a reporter was made")

        def metric_change(self, metric: Any) -> None: ...

    config = options(
        cluster,
        transactional_id="tx",
        transaction_timeout_ms=1000,
        acks="all",
        enable_idempotence=True,
        value_serializer=never,
        metric_reporters=[Reporter],
        client_id="mine",
    )
    assert transactions.commit(PREPARED, config).outcome is Outcome.COMMITTED
    assert transactions.commit(PREPARED, ProducerConfig(config)).outcome is Outcome.COMMITTED_BEFORE
    java = {"bootstrap.servers": ",".join(cluster.bootstrap_servers), "transactional.id": "tx"}
    assert transactions.commit(PREPARED, java).outcome is Outcome.COMMITTED_BEFORE
    assert cluster.received(INIT_PRODUCER_ID) == []
    assert cluster.received(END_TXN)[0].header.client_id == "mine"


def test_unknown_options_are_refused(cluster: ScriptedCluster) -> None:
    with pytest.raises(errors.KafkaConfigurationError, match="bootstrap_serves"):
        transactions.list_transactions({"bootstrap_serves": "localhost:1"})


def test_connections_are_kept_and_closed(cluster: ScriptedCluster) -> None:
    before = set(threading.enumerate())
    with TransactionAdmin(options(cluster)) as admin:
        admin.wait_ready()
        admin.describe_transaction("tx")
        count = sum(len(node.connections) for node in cluster.nodes.values())
        for _ in range(3):
            admin.describe_transaction("tx")
            admin.list_transactions()
        assert sum(len(node.connections) for node in cluster.nodes.values()) <= count + 1
    assert [thread for thread in set(threading.enumerate()) - before if "sender" in thread.name] == []
    cluster.wait_for(lambda: all(each.closed for node in cluster.nodes.values() for each in node.connections))
    admin.close()
    with pytest.raises(errors.ProducerClosedError):
        admin.describe_transaction("tx")


@pytest.mark.slow
def test_brokers_that_are_not_there() -> None:
    with TransactionAdmin({"bootstrap_servers": "127.0.0.1:1"}) as admin:
        with pytest.raises(errors.NoBrokersAvailable, match=r"within 0\.2 s"):
            admin.wait_ready(0.2)
        for call in (
            lambda: admin.commit(PREPARED, 0.2),
            lambda: admin.list_transactions(timeout=0.2),
            lambda: admin.describe_transaction("tx", 0.2),
        ):
            with pytest.raises(errors.KafkaTimeoutError, match="refused"):
                call()


def test_max_block_ms_is_the_default_timeout(cluster: ScriptedCluster) -> None:
    cluster.act(FIND_COORDINATOR, held())
    with pytest.raises(errors.KafkaTimeoutError, match=r"within 0\.3 s"):
        transactions.commit(PREPARED, options(cluster, max_block_ms=300))


def test_closing_ends_a_call(cluster: ScriptedCluster) -> None:
    cluster.act(FIND_COORDINATOR, held())
    admin = TransactionAdmin(options(cluster))
    threading.Timer(0.2, admin.close).start()
    began = time.monotonic()
    with pytest.raises(errors.ProducerClosedError):
        admin.commit(PREPARED)
    assert time.monotonic() - began < WAIT_S / 2


@pytest.mark.slow
def test_one_that_is_forgotten_is_closed(cluster: ScriptedCluster) -> None:
    admin = TransactionAdmin(options(cluster))
    admin.wait_ready()
    del admin
    gc.collect()
    cluster.wait_for(lambda: all(each.closed for node in cluster.nodes.values() for each in node.connections))


def test_several_threads_share_one(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    many = [PREPARED._replace(transactional_id=f"tx{n}", producer_id=8 + n) for n in range(8)]
    for each in many:
        set_state(cluster, "Ongoing", name=each.transactional_id)
    results: list[Ended] = []
    threads = [threading.Thread(target=lambda each=each: results.append(admin.commit(each))) for each in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(each.transactional_id for each in results) == [each.transactional_id for each in many]
    assert {each.outcome for each in results} == {Outcome.COMMITTED}


@needs_fork
def test_a_forked_child_makes_its_own(cluster: ScriptedCluster, admin: TransactionAdmin) -> None:
    admin.wait_ready()

    def child() -> Outcome:
        with pytest.raises(errors.IllegalStateError, match="was made before a fork"):
            admin.commit(PREPARED)
        admin.close()
        return transactions.commit(PREPARED, options(cluster)).outcome

    assert in_child(child) is Outcome.COMMITTED
    assert admin.commit(PREPARED).outcome is Outcome.COMMITTED_BEFORE
