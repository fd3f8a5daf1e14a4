"""Waits for metadata and held-back log lines, when the producer is closed or the broker changes its mind."""

import logging
import threading

import pytest

from cyproducer import errors
from tests.scripted.odd_servers import refusing_address
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import ScriptedCluster
from tools.harness.until import until

TOPIC_AUTHORIZATION_FAILED = 29


def test_closing_ends_a_wait_for_the_first_broker() -> None:
    outcomes: list[BaseException] = []
    with producing(bootstrap_servers=refusing_address()) as producer:

        def wait() -> None:
            try:
                producer.wait_ready(3600)
            except BaseException as error:
                outcomes.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        until(lambda: producer._runtime.client._changed._waiters, "a thread that waits")
        producer.close(0)
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert [type(error) for error in outcomes] == [errors.NoBrokersAvailable]


def test_a_topic_that_was_refused_is_asked_for_again_once_it_is_allowed() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, retry_backoff_ms=1) as producer:
        cluster.topics["orders"].error = TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(errors.TopicAuthorizationFailedError):
            producer.partitions_for("orders")
        cluster.topics["orders"].error = 0

        def allowed() -> bool:
            # For one backoff, the refusal is believed.
            try:
                return producer.partitions_for("orders") == {0}
            except errors.TopicAuthorizationFailedError:
                return False

        until(allowed, "the topic")


def test_closing_logs_what_the_limit_of_log_lines_held_back(caplog: pytest.LogCaptureFixture) -> None:
    """Else the last failures before the end, which may be why the program ends, are in no log."""
    address = refusing_address()
    with (
        caplog.at_level(logging.WARNING, "cyproducer"),
        producing(bootstrap_servers=address, retry_backoff_ms=1, reconnect_backoff_ms=1) as producer,
    ):
        limit = producer._runtime.client._log_limit
        until(lambda: any(kind.held for kind in list(limit._kinds.values())), "a line that is held back")
        producer.close(0)
        assert not any(kind.held for kind in limit._kinds.values())
        until(lambda: len([r for r in caplog.records if address in r.getMessage()]) >= 2, "the second line")
