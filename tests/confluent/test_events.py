"""What ``poll()`` reports besides deliveries: errors, throttling, statistics, log lines."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from cyproducer.confluent import KafkaError, ThrottleEvent
from tests.confluent.conftest import Make
from tests.scripted.producing import WAIT_S
from tests.scripted.scripted_broker import METADATA, PRODUCE, Act, ScriptedCluster
from tests.scripted.scripted_sasl import SaslServer


def until(condition: Callable[[], Any], poll: Callable[[float], int]) -> None:
    """Polls until ``condition`` holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        poll(0.05)


def test_failures_to_connect_are_told_once(make: Make) -> None:
    told: list[KafkaError] = []
    producer = make({"error_cb": told.append, "reconnect.backoff.ms": 3_600_000}, alone=True)
    until(lambda: len(told) == 2, producer.poll)
    assert [error.code() for error in told] == [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN]
    assert "connection refused" in told[0].str()
    assert producer.poll(0.05) == 0


def test_an_exception_in_the_error_callback_is_raised_by_flush(make: Make) -> None:
    told: list[KafkaError] = []

    def raising(error: KafkaError) -> None:
        told.append(error)
        if len(told) == 1:
            raise ValueError("from error_cb")

    producer = make({"error_cb": raising}, alone=True)
    producer.produce("orders", b"1")
    with pytest.raises(ValueError, match="from error_cb"):
        producer.flush(WAIT_S)


def test_refused_credentials_are_told(cluster: ScriptedCluster, make: Make) -> None:
    cluster.sasl = SaslServer(users={"me": "right"})
    told: list[KafkaError] = []
    producer = make(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": "wrong",
            "error_cb": told.append,
            "authentication.backoff.ms": 50,
        }
    )
    until(lambda: KafkaError._AUTHENTICATION in told, producer.poll)
    producer.set_sasl_credentials("me", "right")

    def send(timeout: float) -> int:
        # Until the next attempt to connect records fail.
        producer.produce("orders", b"1")
        return producer.flush(timeout)

    until(lambda: cluster.topics["orders"].values, send)
    wrong: Any
    for wrong in ((None, "x"), ("x", None)):
        with pytest.raises(TypeError, match="must be str"):
            producer.set_sasl_credentials(*wrong)


def test_throttling_is_told_once(cluster: ScriptedCluster, make: Make) -> None:
    told: list[ThrottleEvent] = []
    producer = make({"throttle_cb": told.append})
    cluster.act(PRODUCE, Act(throttle_ms=60_000))
    producer.produce("orders", b"1")
    until(lambda: told, producer.poll)
    assert producer.poll(0.05) == 0
    (event,) = told
    (node,) = cluster.nodes.values()
    assert node.address in event.broker_name
    assert event.broker_id == node.id
    assert 0 < event.throttle_time <= 60
    assert str(ThrottleEvent("broker", 0, 10.0)) == "broker/0 throttled for 10000 ms"


def test_statistics_are_told_at_their_interval(make: Make) -> None:
    told: list[dict[str, Any]] = []
    producer = make(
        {
            "client.id": "shop",
            "statistics.interval.ms": 50,
            "stats_cb": lambda text: told.append(json.loads(text)),
        }
    )
    producer.produce("orders", b"1")
    assert producer.flush(WAIT_S) == 0
    until(lambda: len(told) >= 2 and told[-1]["txmsgs"] == 1, producer.poll)
    last = told[-1]
    assert (last["client_id"], last["type"], last["msg_cnt"], last["msg_max"]) == (
        "shop",
        "producer",
        0,
        100_000,
    )
    assert last["topics"]["orders"]["partitions"] == {"0": {"partition": 0}}
    assert [each["nodeid"] for each in last["brokers"].values()] == [1]
    assert last["tx"] > 0
    assert last["ts"] - told[0]["ts"] >= 50_000


def test_statistics_without_an_interval_are_not_told(make: Make) -> None:
    producer = make({"stats_cb": lambda text: pytest.fail("called")})
    assert producer.poll(0.05) == 0


def test_log_lines_of_this_producer_go_to_its_logger(make: Make) -> None:
    lines: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record)

    logger = logging.getLogger("tests.confluent.mine")
    logger.propagate = False
    logger.addHandler(Keeping())
    ours = logging.getLogger("cyproducer")
    handlers = len(ours.handlers)
    producer = make({"client.id": "mine", "logger": logger}, alone=True)
    until(lambda: lines, producer.poll)
    assert "connection refused" in lines[0].getMessage()
    ours.warning("[producer other] a line of another one")
    ours.warning("[producer mine] %s", "formatted")
    until(lambda: any("formatted" in line.getMessage() for line in lines), producer.poll)
    assert not any("another one" in line.getMessage() for line in lines)
    producer.purge()
    producer.close()
    assert len(ours.handlers) == handlers


def test_events_interrupt_no_metadata(cluster: ScriptedCluster, make: Make) -> None:
    # A producer without callbacks for events looks for none.
    producer = make()
    assert producer._events.wanted is False
    assert make({"error_cb": print})._events.wanted is True
    producer.list_topics(timeout=WAIT_S)
    assert cluster.received(METADATA)
