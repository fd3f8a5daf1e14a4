"""Questions that programs ask brokers: which connection, which response, and what ends them."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer import KafkaProducer, errors
from cyproducer.network import protocol
from cyproducer.network.connector import encode_api_versions
from cyproducer.network.questions import Question, Questions
from cyproducer.wire.messages import (
    API_VERSIONS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    LIST_TRANSACTIONS,
    METADATA,
)
from tests.network import scripted_broker as broker
from tests.network.producing import WAIT_S, producing
from tests.network.scripted_broker import ScriptedCluster
from tests.network.scripted_model import Act
from tests.network.scripted_sasl import SaslServer


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, t=2) as cluster:
        for name in ("a", "b", "c"):
            cluster.coordinator.of(name)
        cluster.set_transaction_version(2, 5)
        yield cluster


def asking(producer: KafkaProducer) -> Questions:
    return producer._runtime.client.questions


def describing(name: str, node_id: int | None = None) -> Question:
    return Question(
        DESCRIBE_TRANSACTIONS,
        lambda version, number, client: protocol.encode_describe_transactions(
            version, number, client, [name]
        ),
        node_id=node_id,
    )


def finding(name: str) -> Question:
    return Question(
        FIND_COORDINATOR,
        lambda version, number, client: protocol.encode_find_coordinator(version, number, client, 1, name),
    )


def ending(name: str, producer_id: int, node_id: int | None = None, highest: int | None = None) -> Question:
    return Question(
        END_TXN,
        lambda version, number, client: protocol.encode_end_txn(
            version, number, client, name, producer_id, 0, True
        ),
        node_id=node_id,
        highest=highest,
    )


def answered(questions: Questions, *asked: Question) -> list[Any]:
    """Asks, waits for all, and returns the responses or errors."""
    for question in asked:
        questions.ask(question)
    deadline = time.monotonic() + WAIT_S
    while left := [question for question in asked if not question.done]:
        assert time.monotonic() < deadline
        questions.wait(left, WAIT_S)
    return [question.error or question.response for question in asked]


def described(questions: Questions, name: str, node_id: int | None = None) -> str:
    """Asks until a broker can be reached; returns the name in the response."""
    response: Any = errors.KafkaConnectionError()
    deadline = time.monotonic() + WAIT_S
    while isinstance(response, errors.KafkaConnectionError) and time.monotonic() < deadline:
        (response,) = answered(questions, describing(name, node_id))
    assert not isinstance(response, BaseException), response
    found: str = response.transactions[0].transactional_id
    return found


def test_a_broker_is_asked_and_any_other_as_well(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.wait_ready()
        for node_id in (2, 1, 2):
            question = asking(producer).ask(describing("a", node_id))
            asking(producer).wait([question], WAIT_S)
            assert question.response.transactions[0].transactional_id == "a"
            assert question.node_id == node_id
            assert question.where == f"127.0.0.1:{cluster.nodes[node_id].port}"
        assert described(asking(producer), "b") == "b"
    asked = [received.connection.node.id for received in cluster.received(broker.DESCRIBE_TRANSACTIONS)]
    assert asked[:3] == [2, 1, 2]


def test_the_first_question_connects(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        assert described(asking(producer), "a") == "a"


def test_responses_are_told_apart_by_connection_and_number(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(hold=hold))
    with producing(cluster) as producer:
        producer.wait_ready()
        questions = [describing(name, node) for node in (1, 2) for name in ("a", "b", "c")]
        for question in questions:
            asking(producer).ask(question)
        cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 6)
        assert not all(question.done for question in questions)
        hold.set()
        for question in questions:
            asking(producer).wait([question], WAIT_S)
        names = [question.response.transactions[0].transactional_id for question in questions]
    assert names == ["a", "b", "c"] * 2


def test_a_transaction_goes_on_beside_questions_of_the_same_kind(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    ended = threading.Event()
    with producing(cluster, transactional_id="a") as producer:
        producer.init_transactions()
        node_id = cluster.received(broker.INIT_PRODUCER_ID)[0].connection.node.id
        cluster.coordinator.nodes |= dict.fromkeys(("a", "b"), node_id)
        for commit in (True, False):
            producer.begin_transaction()
            producer.send("t", b"1").get(WAIT_S)
            cluster.act(broker.END_TXN, Act(hold=hold))
            before = len(cluster.received(broker.END_TXN))
            end = producer.commit_transaction if commit else producer.abort_transaction
            ended.clear()

            def run(end: Callable[[float], None] = end) -> None:
                end(WAIT_S)
                ended.set()

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            cluster.wait_for_requests(broker.END_TXN, before + 1)
            # Its own EndTxn, of another id, on the same connection.
            end_b = ending("b", 8, node_id)
            questions = [
                end_b,
                describing("b", node_id),
                Question(API_VERSIONS, encode_api_versions, node_id=node_id),
                finding("b"),
            ]
            for question in questions:
                asking(producer).ask(question)
            cluster.wait_for_requests(broker.END_TXN, before + 2)
            assert not ended.is_set()
            hold.set()
            results = answered(asking(producer), describing("c"))
            for question in questions:
                asking(producer).wait([question], WAIT_S)
            assert [type(question.response).__name__ for question in questions] == [
                "EndTxnResponse", "DescribeTransactionsResponse", "ApiVersionsResponse",
                "FindCoordinatorResponse",
            ]  # fmt: skip
            assert questions[0].response.producer_id == 8
            assert questions[1].response.transactions[0].transactional_id == "b"
            assert questions[2].response.finalized_features == {"transaction.version": (2, 2)}
            assert results[0].transactions[0].transactional_id == "c"
            assert ended.wait(WAIT_S)
            thread.join(WAIT_S)
            hold.clear()
    assert len({received.connection for received in cluster.received(broker.END_TXN)}) == 1


def test_a_lost_connection_fails_its_questions_and_no_others(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.wait_ready()
        assert [described(asking(producer), "a", node) for node in (1, 2)] == ["a", "a"]
        hold = threading.Event()
        cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(hold=hold))
        one, other = describing("b", 1), describing("b", 2)
        asking(producer).ask(one)
        cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 3)
        asking(producer).ask(other)
        cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 4)
        cluster.nodes[1].drop_connections()
        asking(producer).wait([one], WAIT_S)
        assert isinstance(one.error, errors.KafkaConnectionError)
        assert not one.final
        asking(producer).wait([other], WAIT_S)
        assert other.response is not None
        hold.set()
        # The one that has waited is not taken for the next one's answer.
        assert described(asking(producer), "c", 1) == "c"


def test_a_malformed_response_fails_the_question(cluster: ScriptedCluster) -> None:
    def cut(frame: bytes) -> bytes:
        return (len(frame) - 6).to_bytes(4, "big") + frame[4:-2]

    cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(rewrite=cut))
    with producing(cluster) as producer:
        producer.wait_ready()
        (error,) = answered(asking(producer), describing("a", 1))
        assert "DescribeTransactions v0 response: tagged fields" in str(error)
        assert described(asking(producer), "b", 1) == "b"


def test_a_broker_that_is_down_is_an_error_that_may_go_away(cluster: ScriptedCluster) -> None:
    with producing(cluster, reconnect_backoff_ms=5000, reconnect_backoff_max_ms=5000) as producer:
        producer.wait_ready()
        described(asking(producer), "a", 1)
        cluster.nodes[2].stop()
        question = describing("a", 2)
        (error,) = answered(asking(producer), question)
        assert isinstance(error, errors.KafkaConnectionError)
        assert "broker 2 cannot be reached" in str(error)
        assert str(cluster.nodes[2].port) in str(error)
        assert not question.final
        unknown = describing("a", 77)
        (error,) = answered(asking(producer), unknown)
        assert "broker 77 cannot be reached" in str(error)


@pytest.mark.parametrize(
    ("missing", "question"),
    [
        (broker.DESCRIBE_TRANSACTIONS, lambda: describing("a", 1)),
        (broker.LIST_TRANSACTIONS, lambda: Question(LIST_TRANSACTIONS, protocol.encode_list_transactions)),
    ],
)
def test_a_broker_that_lacks_the_request_is_an_error_that_stays(
    cluster: ScriptedCluster, missing: int, question: Callable[[], Question]
) -> None:
    for node in cluster.nodes.values():
        del node.versions[missing]
    with producing(cluster) as producer:
        producer.wait_ready()
        asked = question()
        (error,) = answered(asking(producer), asked)
        assert isinstance(error, errors.UnsupportedVersionError)
        assert f"no {asked.api.name}, which needs Kafka 3.0 or later" in str(error)
        assert "127.0.0.1:" in str(error)
        assert asked.final


def test_a_text_that_cannot_be_sent_fails_alone(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        question = describing("\ud800")
        (error,) = answered(asking(producer), question)
        assert isinstance(error, ValueError)
        assert question.final
        producer.send("t", b"1").get(WAIT_S)
        assert described(asking(producer), "a") == "a"


def test_versions_have_a_limit(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        answered(asking(producer), ending("a", 7), ending("a", 7, highest=4))
        for node in cluster.nodes.values():
            node.versions[broker.END_TXN] = (0, 3)
            node.drop_connections()
        while isinstance(answered(asking(producer), ending("a", 7, highest=4))[0], BaseException):
            pass
    versions = [received.header.version for received in cluster.received(broker.END_TXN)]
    assert versions[:2] == [5, 4]
    assert versions[-1] == 3


def test_a_withdrawn_question_is_not_sent(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    cluster.act(broker.API_VERSIONS, Act(hold=hold))
    with producing(cluster) as producer:
        cluster.wait_for_requests(broker.API_VERSIONS, 1)
        question = asking(producer).ask(describing("a"))
        asking(producer).wait([question], 0.05)
        assert not question.done
        question.withdraw()
        hold.set()
        assert described(asking(producer), "b") == "b"
    assert [received.transaction for received in cluster.received(broker.DESCRIBE_TRANSACTIONS)] == [(["b"],)]


def test_the_wait_is_limited(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.wait_ready()
        began = time.monotonic()
        cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(silent=True))
        question = asking(producer).ask(describing("a"))
        asking(producer).wait([question], 0.1)
        asking(producer).wait((), 0.1)
        assert 0.2 <= time.monotonic() - began < WAIT_S
        assert not question.done


def test_a_bootstrap_connection_stays_until_its_questions_are_answered(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(hold=hold))
    with producing(cluster) as producer:
        assert producer.partitions_for("t") == {0, 1}
        bootstrap = {received.connection for received in cluster.received(broker.METADATA)}
        question = asking(producer).ask(describing("a"))
        (asked,) = cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 1)
        assert asked.connection in bootstrap
        # This makes a connection to a broker, after which bootstrap connections are closed.
        producer.send("t", b"1", partition=0).get(WAIT_S)
        producer.send("t", b"1", partition=1).get(WAIT_S)
        assert not question.done
        hold.set()
        asking(producer).wait([question], WAIT_S)
        assert question.response is not None


@pytest.mark.slow
def test_an_idle_connection_stays_until_its_questions_are_answered(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    with producing(cluster, connections_max_idle_ms=100) as producer:
        producer.wait_ready()
        cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(hold=hold))
        question = asking(producer).ask(describing("a", 1))
        cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 1)
        threading.Timer(0.5, hold.set).start()
        asking(producer).wait([question], WAIT_S)
        assert question.error is None
        # And not for longer.
        (received,) = cluster.received(broker.DESCRIBE_TRANSACTIONS)
        cluster.wait_for(lambda: received.connection.closed)


def test_a_throttling_broker_is_left_alone(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.wait_ready()
        cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(throttle_ms=300))
        described(asking(producer), "a", 1)
        began = time.monotonic()
        described(asking(producer), "b", 1)
        assert time.monotonic() - began >= 0.25


def test_a_coordinator_that_the_metadata_lacks_can_be_asked(cluster: ScriptedCluster) -> None:
    cluster.unlisted.add(2)
    cluster.coordinator.nodes["a"] = 2
    with producing(cluster) as producer:
        producer.wait_ready()
        (found,) = answered(asking(producer), finding("a"))
        assert found.node_id == 2
        assert described(asking(producer), "a", 2) == "a"


def test_a_coordinator_that_is_not_there_is_not_known(cluster: ScriptedCluster) -> None:
    cluster.act(broker.FIND_COORDINATOR, Act(error=15))
    with producing(cluster) as producer:
        (found,) = answered(asking(producer), finding("a"))
        assert found.error_code == 15
        (error,) = answered(asking(producer), describing("a", -1))
        assert error is not None


def test_a_broker_that_a_question_has_found_can_be_asked(cluster: ScriptedCluster) -> None:
    cluster.unlisted.add(2)
    with producing(cluster) as producer:
        producer.wait_ready()
        assert "cannot be reached" in str(answered(asking(producer), describing("a", 2))[0])
        cluster.unlisted.clear()
        brokers = Question(
            METADATA,
            lambda version, number, client: protocol.encode_metadata(version, number, client, [], False),
        )
        (found,) = answered(asking(producer), brokers)
        assert sorted(info.node_id for info in found.brokers) == [1, 2]
        assert described(asking(producer), "a", 2) == "a"


def test_refused_credentials_end_a_question() -> None:
    with (
        ScriptedCluster(sasl=SaslServer()) as cluster,
        producing(
            cluster,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password="wrong",
        ) as producer,
    ):
        for question in (describing("a"), describing("a", 1)):
            (error,) = answered(asking(producer), question)
            assert isinstance(error, errors.SaslAuthenticationFailedError)
            assert question.final


def test_closing_ends_the_wait(cluster: ScriptedCluster) -> None:
    cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(silent=True))
    with producing(cluster) as producer:
        producer.wait_ready()
        question = asking(producer).ask(describing("a"))
        cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 1)
        threading.Timer(0.1, lambda: producer.close(0)).start()
        began = time.monotonic()
        asking(producer).wait([question], WAIT_S)
        assert isinstance(question.error, errors.KafkaConnectionError)
        with pytest.raises(errors.ProducerClosedError):
            asking(producer).wait((), WAIT_S)
        assert time.monotonic() - began < WAIT_S / 2
        late = asking(producer).ask(describing("b"))
        with pytest.raises(errors.ProducerClosedError):
            asking(producer).wait([late], WAIT_S)
