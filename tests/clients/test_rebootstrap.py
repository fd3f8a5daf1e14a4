"""When a producer starts over from its bootstrap servers (KIP-899, KIP-1102), and when it must not."""

import threading

import pytest

from cyproducer import errors
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import METADATA, Act, Received, ScriptedCluster
from tools.harness.until import until

NEVER_MS = 3_600_000
STARTING_OVER = "starting over from bootstrap_servers"


def test_a_lost_connection_does_not_cause_a_rebootstrap(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        cluster.nodes[1].drop_connections()
        assert producer.send("orders", b"2").get(WAIT_S).offset == 1
    assert STARTING_OVER not in caplog.text


def test_a_producer_finds_a_cluster_that_moved_to_new_addresses(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(orders=1) as old, ScriptedCluster(orders=1) as new:
        new.nodes[1].stop()
        with producing(bootstrap_servers=old.bootstrap_servers + new.bootstrap_servers) as producer:
            producer.send("orders", b"1").get(WAIT_S)
            old.nodes[1].stop()
            new.nodes[1].start()
            producer.send("orders", b"2").get(WAIT_S)
        assert new.topics["orders"].values == [b"2"]
    assert f"{STARTING_OVER}: all 1 known brokers are unreachable" in caplog.text


@pytest.mark.slow
def test_without_the_rebootstrap_strategy_a_producer_keeps_its_known_brokers() -> None:
    with ScriptedCluster(orders=1) as old, ScriptedCluster(orders=1) as new:
        new.nodes[1].stop()
        servers = old.bootstrap_servers + new.bootstrap_servers
        with producing(bootstrap_servers=servers, metadata_recovery_strategy="none") as producer:
            producer.send("orders", b"1").get(WAIT_S)
            old.nodes[1].stop()
            new.nodes[1].start()
            future = producer.send("orders", b"2")
            new.changed.acquire()
            came = new.changed.wait_for(lambda: new.requests, 0.5)
            new.changed.release()
            assert not came
            old.nodes[1].start()
            assert future.get(WAIT_S).offset == 1


def test_a_cluster_with_an_unreachable_broker_is_not_asked_in_a_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedCluster(2) as cluster:
        cluster.create_topic("orders", 1, [2])
        cluster.unlisted.add(1)
        cluster.nodes[2].stop()
        with producing(
            bootstrap_servers=[cluster.nodes[1].address],
            reconnect_backoff_ms=NEVER_MS,
            reconnect_backoff_max_ms=NEVER_MS,
            delivery_timeout_ms=10_000,
        ) as producer:
            producer.send("orders", b"1")
            until(
                lambda: STARTING_OVER in caplog.text or len(cluster.received(METADATA)) > 3,
                "a new beginning",
            )
            assert not threading.Event().wait(0.4)
        assert caplog.text.count(STARTING_OVER) == 1


def test_a_broker_may_request_a_rebootstrap(caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Event()

    def script(received: Received) -> Act | None:
        if received.api_key != METADATA or received.topics != ["late"] or asked.is_set():
            return None
        asked.set()
        return Act(error=129)

    with ScriptedCluster(orders=1, late=1) as cluster, producing(cluster) as producer:
        cluster.nodes[1].versions[METADATA] = (0, 13)
        producer.send("orders", b"1").get(WAIT_S)
        cluster.wait_for(lambda: cluster.nodes[1].connections[0].closed)
        cluster.script = script
        producer.send("late", b"1").get(WAIT_S)
        assert asked.is_set()
        # One connection to the bootstrap address and one to the broker, twice.
        assert len(cluster.nodes[1].connections) == 4
    assert f"{STARTING_OVER}: a broker asked for it" in caplog.text


@pytest.mark.slow
def test_errors_after_a_rebootstrap_name_the_failure_before_it(caplog: pytest.LogCaptureFixture) -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, request_timeout_ms=500, max_block_ms=500) as producer,
    ):
        producer.send("orders", b"0").get(WAIT_S)
        cluster.script = lambda received: Act(silent=True)
        producer.send("orders", b"1")
        # 1. The line is logged.
        # 2. The connection is dropped, and its failure is kept.
        until(
            lambda: STARTING_OVER in caplog.text and "again since" in producer._runtime.client.diagnosis(),
            "a new beginning",
        )
        # The next connection fails after half a second.
        with pytest.raises(
            errors.KafkaTimeoutError, match=r"again since .* did not answer within request_tim"
        ):
            producer.flush(0)
