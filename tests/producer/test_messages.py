"""What log lines and errors say about the commonest mistakes: the thing, its value, and what to do."""

import functools
import logging
import signal
import socket
import time
from typing import Any

import pytest

from cyproducer import errors
from cyproducer.clients import network_client
from cyproducer.net import connector
from cyproducer.net.dns import Resolver
from tests.programs import Program, run_to_exit
from tests.scripted.odd_servers import is_silent, odd_server, refusing_address
from tests.scripted.producing import WAIT_S, no_produce, producing
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster
from tools.harness.until import until

LEADER_NOT_AVAILABLE, MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS = 5, 10, 19
ADVICE = (
    "broker 1 advertises {0}: this host must be able to resolve and reach it. Correct advertised.listeners "
    "in the broker's configuration, or set broker_address"
)


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


# Addresses


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def refuse_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, port: int, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(connector, "Resolver", functools.partial(Resolver, getaddrinfo=look_up))


def test_an_advertised_name_that_cannot_be_resolved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster
) -> None:
    refuse_names(monkeypatch)
    cluster.advertised[1] = "kafka", 9092
    with (
        producing(cluster, client_id="shop", request_timeout_ms=200, delivery_timeout_ms=300) as producer,
        pytest.raises(errors.DeliveryTimeoutError) as caught,
    ):
        producer.send("orders", b"1").get(WAIT_S)
    advice = ADVICE.format("kafka:9092")
    until(lambda: lines(caplog, "cannot resolve"), "the line")
    assert lines(caplog, "cannot resolve")[0] == (
        "[producer shop] NameResolutionError: kafka:9092: cannot resolve 'kafka': name or service not "
        f"known; {advice}"
    )
    assert str(caught.value).count(advice) == 1


@pytest.mark.parametrize("mapped", [False, True])
def test_an_advertised_port_that_cannot_be_reached(
    caplog: pytest.LogCaptureFixture, mapped: bool, cluster: ScriptedCluster
) -> None:
    dead = refusing_address()
    cluster.advertised[1] = split(dead)
    hook = {"broker_address": lambda host, port: (host, port)} if mapped else {}
    with (
        producing(cluster, request_timeout_ms=200, delivery_timeout_ms=300, **hook) as producer,
        pytest.raises(errors.DeliveryTimeoutError) as caught,
    ):
        producer.send("orders", b"1").get(WAIT_S)
    advice = ADVICE.format(dead)
    if mapped:
        advice = advice.replace(": this", ", which broker_address maps: this")
        advice = advice.replace("or set broker_address", "or what broker_address returns")
    until(lambda: lines(caplog, f"{dead}: connection refused; {advice}"), "the line")
    assert advice in str(caught.value)


@pytest.mark.slow
def test_an_advertised_address_that_stays_silent() -> None:
    with odd_server(is_silent) as silent, ScriptedCluster(orders=1) as cluster:
        cluster.advertised[1] = split(silent)
        with (
            producing(
                cluster,
                request_timeout_ms=200,
                delivery_timeout_ms=2000,
                socket_connection_setup_timeout_ms=100,
            ) as producer,
            pytest.raises(errors.DeliveryTimeoutError) as caught,
        ):
            producer.send("orders", b"1").get(WAIT_S)
    assert ADVICE.format(silent) in str(caught.value)


def test_advertised_listeners_are_not_blamed_for_a_broker_that_was_reached_or_that_the_user_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedCluster(2, orders=2) as cluster:
        second = cluster.nodes[2].address
        with producing(cluster, bootstrap_servers=[cluster.nodes[1].address]) as producer:
            producer.send("orders", b"1", partition=1).get(WAIT_S)
            cluster.nodes[2].stop()
            producer.send("orders", b"1", partition=1)
            until(lambda: f"{second}: connection refused" in producer._runtime.client.diagnosis(), "reached")
        with producing(cluster) as producer:
            until(lambda: producer._runtime.client.view.brokers(), "metadata")
            producer.send("orders", b"1", partition=1)
            states = producer._runtime.client._connector.states
            until(lambda: 2 in states and states.all_failing([2]), "the named one")
            assert f"{second}: connection refused" in producer._runtime.client.diagnosis()
            assert "advertise" not in producer._runtime.client.diagnosis()
    until(lambda: lines(caplog, f"{second}: connection refused"), "a line")
    assert "advertise" not in caplog.text


def test_an_address_that_accepts_and_is_silent_is_named_before_the_first_timeout() -> None:
    with (
        odd_server(is_silent) as silent,
        producing(bootstrap_servers=silent, max_block_ms=300) as producer,
        pytest.raises(errors.KafkaTimeoutError, match=f"{silent}: connected, and no answer for 0.[0-9] s"),
    ):
        producer.send("orders", b"1").get(WAIT_S)


@pytest.mark.slow
def test_a_get_that_times_out_says_why_there_is_no_outcome(cluster: ScriptedCluster) -> None:
    cluster.script = no_produce
    with producing(cluster) as producer:
        until(lambda: producer.partitions_for("orders"), "metadata")
        cluster.nodes[1].stop()
        address = cluster.nodes[1].address
        cause = f"may still be delivered: {address}: connection refused"
        until(lambda: f"{address}: connection refused" in producer._runtime.client.diagnosis(), "it")
        with pytest.raises(errors.KafkaTimeoutError, match=cause):
            producer.send("orders", b"1").get(timeout=0.3)
        with pytest.raises(errors.KafkaTimeoutError, match=cause):
            producer.send_many("orders", [b"1", b"2"]).get(timeout=0.3)


def test_an_exit_after_a_constructor_that_raised_says_nothing_more() -> None:
    program = (
        "from cyproducer import KafkaProducer\n"
        "KafkaProducer(security_protocol='SSL', ssl_cafile='/nonexistent.pem')\n"
    )
    done = run_to_exit(program)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("ssl_cafile='/nonexistent.pem': No such file or directory")


def test_a_cluster_whose_brokers_cannot_be_reached_logs_one_line_a_second(
    caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster
) -> None:
    cluster.advertised[1] = split(refusing_address())
    began = time.monotonic()
    with producing(cluster) as producer:
        producer.send("orders", b"1")
        until(lambda: len(cluster.received(METADATA)) > 8, "rebootstraps")
    seconds = time.monotonic() - began
    assert 1 <= len(lines(caplog, "starting over")) <= seconds + 3
    assert len(caplog.records) == len(lines(caplog, "[producer "))


# Topics


@pytest.mark.slow
def test_a_missing_topic_is_reported_long_before_the_records_fail(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster() as cluster, producing(cluster, client_id="shop", max_block_ms=60_000) as producer:
        future = producer.send("orders", b"1")
        until(lambda: lines(caplog, "does not exist"), "the line")
        (line,) = lines(caplog, "does not exist")
        address = cluster.nodes[1].address
        assert line.startswith(
            f"[producer shop] {address}: topic 'orders' does not exist (UnknownTopicOrPartitionError), and "
            "the broker has not created it in "
        )
        assert line.endswith(
            "create it, or set auto.create.topics.enable=true on the brokers; trying again for "
            "max_block_ms=60000"
        )
        assert not future.is_done
        assert "topic 'orders' does not exist" in producer._runtime.client.diagnosis()
        # Once is enough.
        asked = len(cluster.received(METADATA))
        cluster.wait_for(lambda: len(cluster.received(METADATA)) > asked + 3)
        # It is not too late: another program may create it.
        cluster.create_topic("orders")
        assert future.get(WAIT_S).offset == 0
        assert len(lines(caplog, "does not exist")) == 1
        assert "does not exist" not in producer._runtime.client.diagnosis()


def test_without_automatic_creation_a_missing_topic_is_reported_by_the_first_response(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_client, "CREATION_MS", 1e9)
    with (
        ScriptedCluster() as cluster,
        producing(cluster, allow_auto_create_topics=False, max_block_ms=60_000) as producer,
    ):
        producer.send("orders", b"1")
        text = "'orders' does not exist (UnknownTopicOrPartitionError), and allow_auto_create_topics is False"
        until(lambda: lines(caplog, text), "the line")


def test_a_topic_that_the_broker_creates_is_not_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, cluster: ScriptedCluster
) -> None:
    # Not this machine's speed decides.
    monkeypatch.setattr(network_client, "CREATION_MS", 1e9)
    with producing(cluster) as producer:
        # Brokers with KRaft report it as unknown first.
        cluster.topics["orders"].first_errors.extend([3, 3, LEADER_NOT_AVAILABLE])
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
    assert "does not exist" not in caplog.text


def test_a_missing_topic_in_the_final_error() -> None:
    with (
        ScriptedCluster() as cluster,
        producing(cluster, max_block_ms=200) as producer,
        pytest.raises(errors.KafkaTimeoutError) as caught,
    ):
        producer.partitions_for("orders")
    text = str(caught.value)
    assert "no metadata of topic 'orders' within 0.2 s: topic 'orders' does not exist" in text
    assert "auto.create.topics.enable" in text
    assert "still trying" not in text
    assert type(caught.value.__cause__) is errors.UnknownTopicOrPartitionError


# Rejected records


def test_a_record_that_is_larger_than_the_brokers_limit(cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        cluster.act(PRODUCE, Act(error=MESSAGE_TOO_LARGE))
        with pytest.raises(errors.MessageSizeTooLargeError) as caught:
            producer.send("orders", bytes(1000)).get(WAIT_S)
    assert str(caught.value).endswith(
        "orders-0: 1 record in a batch of 1070 bytes (the batch exceeds the topic's max.message.bytes or "
        "the broker's message.max.bytes: raise it there)"
    )


def test_a_record_that_is_larger_than_max_request_size(cluster: ScriptedCluster) -> None:
    with producing(cluster, max_request_size=1000) as producer:
        text = (
            "takes 2070 bytes, .* and max_request_size is 1000: raise it, and the topic's max.message.bytes"
        )
        with pytest.raises(errors.RecordTooLargeError, match=text):
            producer.send("orders", bytes(2000)).get(WAIT_S)
        with pytest.raises(errors.RecordTooLargeError, match="max_request_size is 1000: raise it, and the t"):
            producer.send_many("orders", [bytes(2000)])


def test_too_few_replicas(caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster) -> None:
    with producing(cluster) as producer:
        cluster.act(PRODUCE, Act(error=NOT_ENOUGH_REPLICAS))
        producer.send("orders", b"1").get(WAIT_S)
    text = "orders-0 (fewer replicas are in sync than min.insync.replicas asks for; nothing was written)"
    until(lambda: lines(caplog, text), "the line")


def test_a_serializer_that_raises_is_named(cluster: ScriptedCluster) -> None:
    failure = OSError("the registry is closed")

    class Fails:
        def serialize(self, topic: str, headers: Any, value: Any) -> bytes:
            raise failure

    with producing(cluster, key_serializer=lambda key: key.encode(), value_serializer=Fails()) as producer:
        with pytest.raises(AttributeError) as caught:
            producer.send("orders", b"1", key=5)
        for _ in range(2):
            with pytest.raises(OSError, match="the registry is closed"):
                producer.send("orders", b"1", key="k")
    assert caught.value.__notes__ == ["raised by key_serializer, for a key of type int for topic 'orders'"]
    assert failure.__notes__ == ["raised by value_serializer, for a value of type bytes for topic 'orders'"]


# The end


def test_a_close_that_is_too_short_names_topics_and_cause(caplog: pytest.LogCaptureFixture) -> None:
    dead = refusing_address()
    topics = {f"topic{i}": 7 - i for i in range(7)}
    with producing(bootstrap_servers=dead, client_id="shop") as producer:
        futures = [producer.send(topic, b"1") for topic, count in topics.items() for _ in range(count)]
        until(lambda: "refused" in producer._runtime.client.diagnosis(), "a refused connection")
        producer.close(0.05)
    (line,) = lines(caplog, "close(0.05)")
    assert line.startswith(
        "[producer shop] close(0.05): 28 records not acknowledged in time and failed: 7 of 'topic0', "
        "6 of 'topic1', 5 of 'topic2', 4 of 'topic3', 3 of 'topic4', 3 of 2 more topics; "
        f"{dead}: connection refused"
    )
    with pytest.raises(errors.ProducerClosedError, match=f"timeout 0.05 s.: {dead}: connection refused"):
        futures[0].get(0)


def test_records_in_batches_count_as_unfinished_until_they_are_acknowledged() -> None:
    with ScriptedCluster(orders=2, clicks=1) as cluster, producing(cluster, max_block_ms=60_000) as producer:
        accumulator = producer._runtime.accumulator
        producer.send("clicks", b"1").get(WAIT_S)
        until(lambda: accumulator.unfinished() == {}, "the end of the batch")
        cluster.script = no_produce
        for partition in (0, 1, 1):
            producer.send("orders", b"1", partition=partition)
        producer.send("missing", b"1")
        assert accumulator.unfinished() == {"orders": 3, "missing": 1}


@pytest.mark.slow
def test_a_long_close_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster
) -> None:
    caplog.set_level(logging.INFO, "cyproducer")
    with producing(cluster) as producer:
        cluster.script = no_produce
        producer.send("orders", b"1")
        producer.close(1.5)
    (line,) = [record for record in caplog.records if "closing: waiting" in record.getMessage()]
    assert line.levelno == logging.INFO
    assert (
        "(the timeout of close()) for records to be acknowledged: 1 of 'orders'; Ctrl-C" in line.getMessage()
    )


AT_EXIT = """
import sys
from cyproducer import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1], client_id="shop", close_timeout_ms=3_600_000)
for _ in range(3):
    producer.send("orders", b"1")
"""


@pytest.mark.slow
def test_an_exit_that_waits_says_for_what_and_ctrl_c_ends_it() -> None:
    dead = refusing_address()
    with Program(AT_EXIT, dead) as program:
        # Without any logging configured, and although Python starts no thread at its end.
        line = program.hear("[producer shop] closing: ")
        assert line.startswith("waiting for up to 3599 s more (close_timeout_ms) for records to be ack")
        assert f"3 of 'orders'; Ctrl-C ends the wait and loses them; {dead}: connection refused" in line
        assert f"[producer shop] KafkaConnectionError: {dead}: connection refused" in program.said
        assert program.end(signal.SIGINT) == 0
    last = program.said.splitlines()[-1]
    assert last.startswith(
        "[producer shop] lost 3 records: the program did not close the producer, and no broker "
        f"acknowledged them within close_timeout_ms=3600000 at its end: 3 of 'orders'; {dead}: connection "
        "refused"
    )
    assert "Traceback" not in program.said
