"""Requests that programs send to brokers: which connection, which response, and what ends them."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer import KafkaProducer, errors
from cyproducer.clients.application_requests import ApplicationRequest, ApplicationRequests
from cyproducer.net.connector import encode_api_versions
from cyproducer.wire import protocol, transaction_api
from cyproducer.wire.messages import (
    API_VERSIONS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    LIST_TRANSACTIONS,
    METADATA,
)
from tests.scripted import scripted_broker as broker
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster
from tests.scripted.scripted_model import Act
from tests.scripted.scripted_sasl import SaslServer


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, t=2) as cluster:
        for name in ("a", "b", "c"):
            cluster.coordinator.of(name)
        cluster.set_transaction_version(2, 5)
        yield cluster


def asking(producer: KafkaProducer) -> ApplicationRequests:
    return producer._runtime.client.application_requests


def describing(name: str, node_id: int | None = None) -> ApplicationRequest:
    return ApplicationRequest(
        DESCRIBE_TRANSACTIONS,
        lambda version, number, client: transaction_api.encode_describe_transactions(
            version, number, client, [name]
        ),
        node_id=node_id,
    )


def finding(name: str) -> ApplicationRequest:
    return ApplicationRequest(
        FIND_COORDINATOR,
        lambda version, number, client: transaction_api.encode_find_coordinator(
            version, number, client, 1, name
        ),
    )


def ending(
    name: str, producer_id: int, node_id: int | None = None, highest: int | None = None
) -> ApplicationRequest:
    return ApplicationRequest(
        END_TXN,
        lambda version, number, client: transaction_api.encode_end_txn(
            version, number, client, name, producer_id, 0, True
        ),
        node_id=node_id,
        highest=highest,
    )


def answered(requests: ApplicationRequests, *asked: ApplicationRequest) -> list[Any]:
    """Asks, waits for all, and returns the responses or errors."""
    for request in asked:
        requests.send(request)
    deadline = time.monotonic() + WAIT_S
    while left := [request for request in asked if not request.done]:
        assert time.monotonic() < deadline
        requests.wait(left, WAIT_S)
    return [request.error or request.response for request in asked]


def described(requests: ApplicationRequests, name: str, node_id: int | None = None) -> str:
    """Asks until a broker can be reached; returns the name in the response."""
    response: Any = errors.KafkaConnectionError()
    deadline = time.monotonic() + WAIT_S
    while isinstance(response, errors.KafkaConnectionError) and time.monotonic() < deadline:
        (response,) = answered(requests, describing(name, node_id))
    assert not isinstance(response, BaseException), response
    found: str = response.transactions[0].transactional_id
    return found


def test_a_broker_is_asked_and_any_other_as_well(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.wait_ready()
        for node_id in (2, 1, 2):
            request = asking(producer).send(describing("a", node_id))
            asking(producer).wait([request], WAIT_S)
            assert request.response.transactions[0].transactional_id == "a"
            assert request.node_id == node_id
            assert request.where == f"127.0.0.1:{cluster.nodes[node_id].port}"
        assert described(asking(producer), "b") == "b"
    asked = [received.connection.node.id for received in cluster.received(broker.DESCRIBE_TRANSACTIONS)]
    assert asked[:3] == [2, 1, 2]


def test_the_first_request_connects(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        assert described(asking(producer), "a") == "a"


def test_responses_are_told_apart_by_connection_and_number(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(hold=hold))
    with producing(cluster) as producer:
        producer.wait_ready()
        requests = [describing(name, node) for node in (1, 2) for name in ("a", "b", "c")]
        for request in requests:
            asking(producer).send(request)
        cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 6)
        assert not all(request.done for request in requests)
        hold.set()
        for request in requests:
            asking(producer).wait([request], WAIT_S)
        names = [request.response.transactions[0].transactional_id for request in requests]
    assert names == ["a", "b", "c"] * 2


def test_a_transaction_goes_on_beside_requests_of_the_same_kind(cluster: ScriptedCluster) -> None:
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
            requests = [
                end_b,
                describing("b", node_id),
                ApplicationRequest(API_VERSIONS, encode_api_versions, node_id=node_id),
                finding("b"),
            ]
            for request in requests:
                asking(producer).send(request)
            cluster.wait_for_requests(broker.END_TXN, before + 2)
            assert not ended.is_set()
            hold.set()
            results = answered(asking(producer), describing("c"))
            for request in requests:
                asking(producer).wait([request], WAIT_S)
            assert [type(request.response).__name__ for request in requests] == [
                "EndTxnResponse", "DescribeTransactionsResponse", "ApiVersionsResponse",
                "FindCoordinatorResponse",
            ]  # fmt: skip
            assert requests[0].response.producer_id == 8
            assert requests[1].response.transactions[0].transactional_id == "b"
            assert requests[2].response.finalized_features == {"transaction.version": (2, 2)}
            assert results[0].transactions[0].transactional_id == "c"
            assert ended.wait(WAIT_S)
            thread.join(WAIT_S)
            hold.clear()
    assert len({received.connection for received in cluster.received(broker.END_TXN)}) == 1


def test_a_lost_connection_fails_its_requests_and_no_others(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.wait_ready()
        assert [described(asking(producer), "a", node) for node in (1, 2)] == ["a", "a"]
        hold = threading.Event()
        cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(hold=hold))
        one, other = describing("b", 1), describing("b", 2)
        asking(producer).send(one)
        cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 3)
        asking(producer).send(other)
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


def test_a_malformed_response_fails_the_request(cluster: ScriptedCluster) -> None:
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
        request = describing("a", 2)
        (error,) = answered(asking(producer), request)
        assert isinstance(error, errors.KafkaConnectionError)
        assert "broker 2 cannot be reached" in str(error)
        assert str(cluster.nodes[2].port) in str(error)
        assert not request.final
        unknown = describing("a", 77)
        (error,) = answered(asking(producer), unknown)
        assert "broker 77 cannot be reached" in str(error)


@pytest.mark.parametrize(
    ("missing", "make"),
    [
        (broker.DESCRIBE_TRANSACTIONS, lambda: describing("a", 1)),
        (
            broker.LIST_TRANSACTIONS,
            lambda: ApplicationRequest(LIST_TRANSACTIONS, transaction_api.encode_list_transactions),
        ),
    ],
)
def test_a_broker_that_lacks_the_request_is_an_error_that_stays(
    cluster: ScriptedCluster, missing: int, make: Callable[[], ApplicationRequest]
) -> None:
    for node in cluster.nodes.values():
        del node.versions[missing]
    with producing(cluster) as producer:
        producer.wait_ready()
        asked = make()
        (error,) = answered(asking(producer), asked)
        assert isinstance(error, errors.UnsupportedVersionError)
        assert f"no {asked.api.name}, which needs Kafka 3.0 or later" in str(error)
        assert "127.0.0.1:" in str(error)
        assert asked.final


def test_a_text_that_cannot_be_sent_fails_alone(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        request = describing("\ud800")
        (error,) = answered(asking(producer), request)
        assert isinstance(error, ValueError)
        assert request.final
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


def test_a_withdrawn_request_is_not_sent(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    cluster.act(broker.API_VERSIONS, Act(hold=hold))
    with producing(cluster) as producer:
        cluster.wait_for_requests(broker.API_VERSIONS, 1)
        request = asking(producer).send(describing("a"))
        asking(producer).wait([request], 0.05)
        assert not request.done
        request.withdraw()
        hold.set()
        assert described(asking(producer), "b") == "b"
    assert [received.transaction for received in cluster.received(broker.DESCRIBE_TRANSACTIONS)] == [(["b"],)]


def test_the_wait_is_limited(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.wait_ready()
        began = time.monotonic()
        cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(silent=True))
        request = asking(producer).send(describing("a"))
        asking(producer).wait([request], 0.1)
        asking(producer).wait((), 0.1)
        assert 0.2 <= time.monotonic() - began < WAIT_S
        assert not request.done


def test_a_bootstrap_connection_stays_until_its_requests_are_answered(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(hold=hold))
    with producing(cluster) as producer:
        assert producer.partitions_for("t") == {0, 1}
        bootstrap = {received.connection for received in cluster.received(broker.METADATA)}
        request = asking(producer).send(describing("a"))
        (asked,) = cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 1)
        assert asked.connection in bootstrap
        # This makes a connection to a broker, after which bootstrap connections are closed.
        producer.send("t", b"1", partition=0).get(WAIT_S)
        producer.send("t", b"1", partition=1).get(WAIT_S)
        assert not request.done
        hold.set()
        asking(producer).wait([request], WAIT_S)
        assert request.response is not None


@pytest.mark.slow
def test_an_idle_connection_stays_until_its_requests_are_answered(cluster: ScriptedCluster) -> None:
    hold = threading.Event()
    with producing(cluster, connections_max_idle_ms=100) as producer:
        producer.wait_ready()
        cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(hold=hold))
        request = asking(producer).send(describing("a", 1))
        cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 1)
        threading.Timer(0.5, hold.set).start()
        asking(producer).wait([request], WAIT_S)
        assert request.error is None
        # And not for longer.
        (received,) = cluster.received(broker.DESCRIBE_TRANSACTIONS)
        cluster.wait_for(lambda: received.connection.closed)


def test_a_throttling_broker_is_left_alone(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        producer.wait_ready()
        cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(throttle_ms=300))
        # Before the first one: this thread may look at the clock long after the response has come.
        began = time.monotonic()
        described(asking(producer), "a", 1)
        described(asking(producer), "b", 1)
        assert time.monotonic() - began >= 0.3


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


def test_a_broker_that_a_request_has_found_can_be_asked(cluster: ScriptedCluster) -> None:
    cluster.unlisted.add(2)
    with producing(cluster) as producer:
        producer.wait_ready()
        assert "cannot be reached" in str(answered(asking(producer), describing("a", 2))[0])
        cluster.unlisted.clear()
        brokers = ApplicationRequest(
            METADATA,
            lambda version, number, client: protocol.encode_metadata(version, number, client, [], False),
        )
        (found,) = answered(asking(producer), brokers)
        assert sorted(info.node_id for info in found.brokers) == [1, 2]
        assert described(asking(producer), "a", 2) == "a"


def test_refused_credentials_end_a_request() -> None:
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
        for request in (describing("a"), describing("a", 1)):
            (error,) = answered(asking(producer), request)
            assert isinstance(error, errors.SaslAuthenticationFailedError)
            assert request.final


def test_closing_ends_the_wait(cluster: ScriptedCluster) -> None:
    cluster.act(broker.DESCRIBE_TRANSACTIONS, Act(silent=True))
    with producing(cluster) as producer:
        producer.wait_ready()
        request = asking(producer).send(describing("a"))
        cluster.wait_for_requests(broker.DESCRIBE_TRANSACTIONS, 1)
        threading.Timer(0.1, lambda: producer.close(0)).start()
        began = time.monotonic()
        asking(producer).wait([request], WAIT_S)
        assert isinstance(request.error, errors.KafkaConnectionError)
        with pytest.raises(errors.ProducerClosedError):
            asking(producer).wait((), WAIT_S)
        assert time.monotonic() - began < WAIT_S / 2
        late = asking(producer).send(describing("b"))
        with pytest.raises(errors.ProducerClosedError):
            asking(producer).wait([late], WAIT_S)
