"""Each kind of failure gives its own error, within the configured time."""

import functools
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.futures.delivery import RecordFuture
from cyproducer.net import connector
from cyproducer.net.dns import Resolver
from cyproducer.producer import KafkaProducer
from tests.scripted import odd_servers
from tests.scripted.odd_servers import odd_server, refusing_address
from tests.scripted.producing import WAIT_S, options, producing
from tests.scripted.scripted_broker import API_VERSIONS, METADATA, PRODUCE, Act, ScriptedCluster
from tools.harness.until import NewThreads, until


def not_ready(server: str, **given: Any) -> str:
    """Returns the error of wait_ready() about an address that is not a broker."""
    with producing(bootstrap_servers=[server], **given) as producer:
        began = time.monotonic()
        with pytest.raises(errors.NoBrokersAvailable) as caught:
            producer.wait_ready(0.3)
        assert 0.3 <= time.monotonic() - began < 5
        assert not producer.bootstrap_connected()
    return str(caught.value)


def test_the_constructor_waits_for_neither_brokers_nor_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, release = threading.Event(), threading.Event()

    def look_up(*args: Any, **kwargs: Any) -> Any:
        asked.set()
        assert release.wait(WAIT_S)
        raise socket.gaierror(socket.EAI_NONAME, "nobody by that name")

    monkeypatch.setattr(connector, "Resolver", functools.partial(Resolver, getaddrinfo=look_up))
    with producing(bootstrap_servers=["nowhere.example:9092", refusing_address()]) as producer:
        # If the constructor had waited for the name, it would not have returned.
        assert not release.is_set()
        producer.send("orders", b"1")
        assert asked.wait(WAIT_S)
        release.set()


@pytest.mark.parametrize("how", ["send", "partitions_for"])
def test_the_error_after_the_timeout_names_a_closed_port(how: str) -> None:
    server = refusing_address()
    with producing(bootstrap_servers=[server], max_block_ms=200) as producer:
        calls: dict[str, Callable[[], object]] = {
            "send": lambda: producer.send("orders", b"x").get(WAIT_S),
            "partitions_for": lambda: producer.partitions_for("orders"),
        }
        with pytest.raises(errors.KafkaTimeoutError) as caught:
            calls[how]()
        text = str(caught.value)
        assert server in text
        assert "refused" in text
        assert "'orders'" in text


@pytest.mark.slow
def test_wait_ready_names_every_address_with_its_failure() -> None:
    first, second = refusing_address(), refusing_address()
    with (
        odd_server(odd_servers.says(odd_servers.HTTP)) as third,
        producing(bootstrap_servers=[first, second, third]) as producer,
        pytest.raises(errors.NoBrokersAvailable) as caught,
    ):
        producer.wait_ready(0.5)
    parts = str(caught.value).split("; ")
    assert any(first in part and "refused" in part for part in parts)
    assert any(second in part and "refused" in part for part in parts)
    assert any(third in part and "HTTP" in part for part in parts)


def test_the_error_names_a_host_that_is_still_being_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def look_up(*args: Any, **kwargs: Any) -> Any:
        assert release.wait(WAIT_S)
        raise socket.gaierror(socket.EAI_NONAME, "nobody by that name")

    monkeypatch.setattr(connector, "Resolver", functools.partial(Resolver, getaddrinfo=look_up))
    with producing(bootstrap_servers=["slow.example:9092"]) as producer:
        with pytest.raises(errors.NoBrokersAvailable, match=r"still looking up slow\.example:9092"):
            producer.wait_ready(0.3)
        release.set()


def test_the_error_names_a_host_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not the machine's own resolver: without a network it takes seconds to respond.
    def look_up(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "nobody by that name")

    monkeypatch.setattr(connector, "Resolver", functools.partial(Resolver, getaddrinfo=look_up))
    text = not_ready("nobody.example:9092")
    assert "nobody.example:9092" in text
    assert "cannot resolve" in text
    assert "nobody by that name" in text


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (odd_servers.says(odd_servers.HTTP), "HTTP"),
        (odd_servers.says(odd_servers.TLS_ALERT), "TLS"),
        (odd_servers.greets(odd_servers.SSH), "SSH"),
        (odd_servers.hangs_up, "closed the connection during the handshake"),
        (odd_servers.resets, "during the handshake"),
        (odd_servers.says(b"\x7f\xff\xff\xff" + bytes(60)), "2147483647 bytes"),
        (odd_servers.says(b"\xff\xff\xff\xff" + bytes(60)), "-1 bytes"),
        (odd_servers.says(bytes(60)), "0 bytes"),
    ],
    ids=["http", "tls", "ssh", "closes", "resets", "2 GB", "negative", "empty"],
)
def test_the_error_about_another_protocols_port_says_which_it_seems_to_be(
    serve: Callable[[socket.socket], None], said: str
) -> None:
    with odd_server(serve) as server:
        text = not_ready(server)
    assert server in text
    assert said in text


def test_a_silent_port_is_given_up_after_the_setup_timeout() -> None:
    with odd_server(odd_servers.is_silent) as server:
        text = not_ready(
            server, socket_connection_setup_timeout_ms=50, socket_connection_setup_timeout_max_ms=50
        )
    assert server in text
    assert "no completed handshake within" in text


def test_a_connection_attempt_is_given_up_after_the_setup_timeout() -> None:
    # A full backlog: the kernel drops further connection requests.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = []
        try:
            for _ in range(4):
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(address)
            text = not_ready(
                f"{address[0]}:{address[1]}",
                socket_connection_setup_timeout_ms=50,
                socket_connection_setup_timeout_max_ms=50,
            )
        finally:
            for sock in waiting:
                sock.close()
    assert "no connection within" in text


def test_the_error_names_a_broker_without_a_common_version() -> None:
    with ScriptedCluster() as cluster:
        cluster.nodes[1].versions[PRODUCE] = (14, 20)
        text = not_ready(cluster.bootstrap_servers[0])
    assert "no common version of Produce: the broker speaks 14 to 20" in text


def test_the_error_names_a_refused_handshake() -> None:
    with ScriptedCluster() as cluster:
        cluster.script = lambda received: Act(error=58) if received.api_key == API_VERSIONS else None
        text = not_ready(cluster.bootstrap_servers[0])
    assert "SaslAuthenticationFailedError" in text


@pytest.mark.parametrize("api_key", [API_VERSIONS, METADATA, PRODUCE])
@pytest.mark.parametrize(
    "act",
    [
        Act(cut=0),
        Act(cut=3),
        Act(cut=9),
        Act(drop=True),
        Act(raw=b"\x7f\xff\xff\xff1234"),
        Act(raw=b"\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00"),
        Act(correlation_shift=1),
        Act(rewrite=lambda response: (len(response) - 5).to_bytes(4, "big") + response[4:-1]),
        Act(rewrite=lambda response: (len(response) - 3).to_bytes(4, "big") + response[4:] + b"\x07"),
    ],
    ids=["nothing", "in length", "in header", "closed", "2 GB", "garbage", "other id", "short", "long"],
)
def test_one_bad_response_is_overcome(api_key: int, act: Act, cluster: ScriptedCluster) -> None:
    # Before the producer, whose first request may come at once.
    cluster.act(api_key, act)
    with producing(cluster) as producer:
        assert producer.send("orders", b"1").get(WAIT_S).partition == 0
        assert cluster.topics["orders"].values[-1] == b"1"
        assert len(cluster.received(api_key)) >= 2


def test_permanent_bad_responses_end_with_the_delivery_timeout(cluster: ScriptedCluster) -> None:
    cluster.script = lambda received: Act(cut=12) if received.api_key == PRODUCE else None
    with producing(cluster, request_timeout_ms=100, delivery_timeout_ms=400) as producer:
        began = time.monotonic()
        with pytest.raises(errors.DeliveryTimeoutError) as caught:
            producer.send("orders", b"1").get(WAIT_S)
        assert 0.2 < time.monotonic() - began < 5
    assert "1 record for orders-0 not delivered" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "error"), [(29, errors.TopicAuthorizationFailedError), (17, errors.InvalidTopicError)]
)
class TestFinalTopicErrors:
    def test_the_record_fails_with_the_brokers_error(
        self, code: int, error: type[Exception], cluster: ScriptedCluster, producer: KafkaProducer
    ) -> None:
        cluster.topics["orders"].error = code
        with pytest.raises(error, match="'orders'"):
            producer.send("orders", b"1").get(WAIT_S)

    def test_the_next_record_fails_at_once(
        self, code: int, error: type[Exception], cluster: ScriptedCluster
    ) -> None:
        # Within the backoff, in which the broker is not asked again.
        with producing(cluster, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as producer:
            cluster.topics["orders"].error = code
            for _ in range(3):
                with pytest.raises(error):
                    producer.send("orders", b"1").get(WAIT_S)

    def test_partitions_for_raises_it(
        self, code: int, error: type[Exception], cluster: ScriptedCluster
    ) -> None:
        with producing(cluster, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as producer:
            cluster.topics["orders"].error = code
            for _ in range(2):
                with pytest.raises(error):
                    producer.partitions_for("orders")

    def test_records_are_sent_once_the_broker_accepts_the_topic(
        self, code: int, error: type[Exception], cluster: ScriptedCluster
    ) -> None:
        with producing(cluster, retry_backoff_ms=1) as producer:
            cluster.topics["orders"].error = code
            with pytest.raises(error):
                producer.send("orders", b"1").get(WAIT_S)
            cluster.topics["orders"].error = 0
            deadline = time.monotonic() + WAIT_S
            while True:
                try:
                    assert producer.send("orders", b"2").get(WAIT_S).offset == 0
                    break
                except error:
                    assert time.monotonic() < deadline


def test_an_unknown_topic_fails_after_max_block_ms_with_the_brokers_error(cluster: ScriptedCluster) -> None:
    with producing(cluster, max_block_ms=300) as producer:
        began = time.monotonic()
        with pytest.raises(errors.KafkaTimeoutError) as caught:
            producer.send("missing", b"1").get(WAIT_S)
        assert 0.3 <= time.monotonic() - began < 5
        text = str(caught.value)
        assert "'missing'" in text
        assert "max_block_ms=300" in text
        assert "UnknownTopicOrPartitionError" in text


def test_a_missing_partition_is_an_error_at_once_or_when_metadata_arrives() -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster) as producer:
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="no partition 7: it has 2, 0 to 1"):
            producer.send("orders", b"1", partition=7).get(WAIT_S)
        producer.partitions_for("orders")
        with pytest.raises(errors.UnknownTopicOrPartitionError, match="has 2 partitions, 0 to 1"):
            producer.send("orders", b"1", partition=7)


def test_a_too_large_record_fails_alone_and_is_never_sent(cluster: ScriptedCluster) -> None:
    with producing(cluster, max_request_size=1000) as producer:
        large = producer.send("orders", bytes(2000))
        assert producer.send("orders", b"small").get(WAIT_S).offset == 0
        with pytest.raises(errors.RecordTooLargeError, match="max_request_size is 1000") as caught:
            large.get(0)
        assert caught.value.limit == 1000
        assert cluster.topics["orders"].values == [b"small"]


def test_a_final_error_fails_only_its_batch(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster, linger_ms=50) as producer:
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(error={("orders", 0): 10}, message="that is a lot"))
        bad, good = producer.send("orders", b"0", partition=0), producer.send("orders", b"1", partition=1)
        with (
            caplog.at_level(logging.ERROR, "cyproducer"),
            pytest.raises(errors.MessageSizeTooLargeError, match=r"orders-0: .* 69 bytes: that is a lot"),
        ):
            bad.get(WAIT_S)
        assert good.get(WAIT_S).offset == 0
        assert len(cluster.received(PRODUCE)) == 1
        # Another thread logs it.
        until(lambda: "1 record for orders-0 failed" in caplog.text, "the line")


def test_an_unknown_error_code_is_reported(cluster: ScriptedCluster, producer: KafkaProducer) -> None:
    cluster.act(PRODUCE, Act(error=1234))
    with pytest.raises(errors.UnrecognizedBrokerError) as caught:
        producer.send("orders", b"1").get(WAIT_S)
    assert caught.value.errno == 1234


def test_memory_that_stays_full_fails_send_after_max_block_ms(cluster: ScriptedCluster) -> None:
    held = threading.Event()
    with producing(cluster, buffer_memory=65536, batch_size=16384, max_block_ms=200) as producer:
        producer.partitions_for("orders")
        cluster.script = lambda received: Act(hold=held) if received.api_key == PRODUCE else None
        futures: list[RecordFuture] = []

        def fill() -> None:
            while len(futures) < 100:
                futures.append(producer.send("orders", bytes(4000)))

        with pytest.raises(errors.BufferExhaustedError, match=r"max_block_ms=200.*buffer_memory=65536"):
            fill()
        assert 4 <= len(futures) <= 16
        held.set()
        for future in futures:
            future.get(WAIT_S)
        assert len(cluster.topics["orders"].values) == len(futures)


def test_a_failing_interceptor_class_leaves_no_thread_behind() -> None:
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("not today")

        def on_send(self, record: Any) -> Any:
            return record

    new = NewThreads()
    with pytest.raises(RuntimeError, match="not today"):
        KafkaProducer(**options(bootstrap_servers=[refusing_address()], interceptors=[Broken]))
    assert not new


@pytest.mark.slow
def test_acks_0_to_a_broker_that_stops_reading_fails_in_time(cluster: ScriptedCluster) -> None:
    """The request is never acknowledged. Only the end of its write completes it, and the write never ends."""
    stopped = threading.Event()

    with producing(
        cluster,
        acks=0,
        request_timeout_ms=200,
        delivery_timeout_ms=500,
        send_buffer_bytes=4096,
        max_request_size=8_000_000,
    ) as producer:
        producer.partitions_for("orders")

        def stall(received: Any) -> None:
            if received.api_key == PRODUCE:
                assert stopped.wait(WAIT_S)

        cluster.script = stall
        producer.send("orders", b"x")
        cluster.wait_for(lambda: any(c.requests for c in cluster.nodes[1].connections))
        futures = [producer.send("orders", bytes(7_000_000)) for _ in range(2)]
        try:
            for future in futures:
                with pytest.raises(errors.KafkaError):
                    future.get(5)
                assert future.failed()
        finally:
            stopped.set()
