"""A cluster that changes under a producer: leaders, topics and brokers that move, appear and disappear."""

import itertools
import logging
import threading
import time

import pytest

from cyproducer import errors
from cyproducer.producer import KafkaProducer
from tests.scripted.producing import WAIT_S, producing
from tests.scripted.scripted_broker import METADATA, NO_LEADER, PRODUCE, Act, Received, ScriptedCluster

NOT_LEADER_OR_FOLLOWER = 6
NOT_ENOUGH_REPLICAS = 19


# Retries


def test_a_retriable_error_is_retried_with_growing_backoff(
    caplog: pytest.LogCaptureFixture, cluster: ScriptedCluster
) -> None:
    arrivals: list[float] = []

    def script(received: Received) -> Act | None:
        if received.api_key != PRODUCE:
            return None
        arrivals.append(time.monotonic())
        return Act(error=NOT_ENOUGH_REPLICAS) if len(arrivals) < 5 else None

    with producing(cluster, retry_backoff_ms=40, retry_backoff_max_ms=160) as producer:
        cluster.script = script
        with caplog.at_level(logging.WARNING, "cyproducer"):
            assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        assert cluster.topics["orders"].values == [b"1"]
    waits = [later - sooner for sooner, later in itertools.pairwise(arrivals)]
    # The shortest each wait may be, with 20 % jitter; a busy machine makes them longer.
    assert [wait >= shortest for wait, shortest in zip(waits, (0.032, 0.064, 0.128, 0.128), strict=True)] == [
        True
    ] * 4
    assert "NotEnoughReplicasError" in caplog.text


def test_retries_are_bounded_by_their_number(cluster: ScriptedCluster) -> None:
    with producing(cluster, retries=2) as producer:
        cluster.topics["orders"].partitions[0].error = NOT_ENOUGH_REPLICAS
        with pytest.raises(errors.NotEnoughReplicasError):
            producer.send("orders", b"1").get(WAIT_S)
        assert len(cluster.received(PRODUCE)) == 3


def test_retries_are_bounded_by_delivery_timeout_ms(cluster: ScriptedCluster) -> None:
    with producing(cluster, request_timeout_ms=100, delivery_timeout_ms=300) as producer:
        cluster.topics["orders"].partitions[0].error = NOT_ENOUGH_REPLICAS
        began = time.monotonic()
        with pytest.raises(errors.DeliveryTimeoutError, match="delivery_timeout_ms=300") as caught:
            producer.send("orders", b"1").get(WAIT_S)
        assert 0.2 < time.monotonic() - began < 5
        assert "orders-0" in str(caught.value)
        assert len(cluster.received(PRODUCE)) > 2


def test_there_is_no_retry_after_the_deadline_and_the_error_has_the_cause(cluster: ScriptedCluster) -> None:
    with producing(
        cluster, delivery_timeout_ms=30_000, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000
    ) as producer:
        cluster.topics["orders"].partitions[0].error = NOT_ENOUGH_REPLICAS
        with pytest.raises(errors.DeliveryTimeoutError) as caught:
            producer.send("orders", b"1").get(WAIT_S)
        assert isinstance(caught.value.__cause__, errors.NotEnoughReplicasError)
        assert len(cluster.received(PRODUCE)) == 1


def test_a_request_without_a_response_is_resent_on_another_connection(cluster: ScriptedCluster) -> None:
    with producing(cluster, request_timeout_ms=100) as producer:
        cluster.act(PRODUCE, Act(silent=True, append=False))
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        first, second = cluster.received(PRODUCE)
        assert first.connection is not second.connection
        assert first.connection.closed


def test_while_one_partition_backs_off_the_others_send() -> None:
    with (
        ScriptedCluster(orders=2) as cluster,
        producing(cluster, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as producer,
    ):
        producer.partitions_for("orders")
        cluster.topics["orders"].partitions[0].error = NOT_ENOUGH_REPLICAS
        bad = producer.send("orders", b"0", partition=0)
        cluster.wait_for_requests(PRODUCE, 1)
        for number in range(5):
            assert producer.send("orders", b"1", partition=1).get(WAIT_S).offset == number
        assert not bad.is_done


# Leaders


@pytest.mark.parametrize("tells_leader", [False, True])
def test_records_go_to_the_new_leader(tells_leader: bool) -> None:
    with ScriptedCluster(2, orders=1) as cluster, producing(cluster) as producer:
        cluster.tells_leader = tells_leader
        assert producer.send("orders", b"0").get(WAIT_S).offset == 0
        cluster.move_leader("orders", 0, 2)
        assert producer.send("orders", b"1").get(WAIT_S).offset == 1
        assert [r.connection.node.id for r in cluster.received(PRODUCE)][-1] == 2
        assert cluster.topics["orders"].values == [b"0", b"1"]


def test_queued_records_move_with_the_leader_and_keep_their_order() -> None:
    held = threading.Event()
    with (
        ScriptedCluster(2, orders=1) as cluster,
        producing(cluster, batch_size=200, max_in_flight_requests_per_connection=1) as producer,
    ):
        producer.partitions_for("orders")
        cluster.act(PRODUCE, Act(hold=held, error=6, append=False))
        futures = [producer.send("orders", b"%03d" % i + bytes(50)) for i in range(50)]
        cluster.wait_for_requests(PRODUCE, 1)
        cluster.move_leader("orders", 0, 2)
        held.set()
        assert [future.get(WAIT_S).offset for future in futures] == list(range(50))
        assert [v[:3] for v in cluster.topics["orders"].values if v] == [b"%03d" % i for i in range(50)]
        assert cluster.received(PRODUCE)[-1].connection.node.id == 2


def test_a_partition_without_leader_waits_for_one() -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster) as producer:
        cluster.topics["orders"].partitions[1].leader = NO_LEADER
        waiting = producer.send("orders", b"1", partition=1)
        assert producer.send("orders", b"0", partition=0).get(WAIT_S).offset == 0
        assert not waiting.is_done
        cluster.move_leader("orders", 1, 1)
        assert waiting.get(WAIT_S).offset == 0


@pytest.mark.slow
def test_a_record_for_a_leaderless_partition_times_out_and_says_so(cluster: ScriptedCluster) -> None:
    with producing(
        cluster,
        request_timeout_ms=100,
        delivery_timeout_ms=300,
        retry_backoff_max_ms=9_000,
        retry_backoff_ms=9_000,
    ) as producer:
        cluster.topics["orders"].partitions[0].leader = NO_LEADER
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(errors.DeliveryTimeoutError, match="it has no known leader"):
                producer.send("orders", b"1").get(WAIT_S)
            assert time.monotonic() - began < 5


def test_the_error_of_a_queued_batch_that_expires_names_its_partitions_last_error(
    cluster: ScriptedCluster,
) -> None:
    """
    1. A batch fails.
    2. Its partition has no leader any more.
    3. The batch expires.
    """
    with producing(cluster, request_timeout_ms=100, delivery_timeout_ms=400) as producer:

        def depose(received: Received) -> Act | None:
            if received.api_key == PRODUCE:
                cluster.topics["orders"].partitions[0].leader = NO_LEADER
                return Act(error=NOT_LEADER_OR_FOLLOWER)
            return None

        cluster.script = depose
        with pytest.raises(errors.DeliveryTimeoutError) as caught:
            producer.send("orders", b"1").get(WAIT_S)
    assert "requests tried, it has no known leader" in str(caught.value)
    assert "the partition's last request failed with [Error 6] NotLeaderForPartitionError: orders-0" in str(
        caught.value
    )
    assert "no failure so far" not in str(caught.value)
    assert isinstance(caught.value.__cause__, errors.NotLeaderForPartitionError)


def test_a_leader_that_metadata_lists_late_gets_the_waiting_records() -> None:
    """
    1. A partition's leader is not in the list of brokers.
    2. The broker is listed; the leader is the same as before.
    """
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster) as producer:
        cluster.unlisted.add(2)
        waiting = producer.send("orders", b"1", partition=1)
        assert producer.send("orders", b"0", partition=0).get(WAIT_S).offset == 0
        assert not waiting.is_done
        cluster.unlisted.clear()
        assert waiting.get(WAIT_S).offset == 0


def test_a_leader_that_metadata_temporarily_does_not_list_is_used_again() -> None:
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster) as producer:
        producer.send("orders", b"0", partition=1).get(WAIT_S)
        with cluster.changed:
            cluster.unlisted.add(2)
            cluster.nodes[2].drop_connections()
            seen = len(cluster.received(METADATA))
        cluster.wait_for_requests(METADATA, seen + 2)
        waiting = producer.send("orders", b"1", partition=1)
        cluster.unlisted.clear()
        assert waiting.get(WAIT_S).offset == 1


def test_a_dead_leader_is_replaced_when_metadata_names_another() -> None:
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster) as producer:
        assert producer.send("orders", b"0", partition=0).get(WAIT_S).offset == 0
        cluster.nodes[1].stop()
        waiting = producer.send("orders", b"1", partition=0)
        cluster.move_leader("orders", 0, 2)
        assert waiting.get(WAIT_S).offset == 1


@pytest.mark.slow
def test_a_broker_that_comes_back_is_used_even_if_nothing_waited_for_it() -> None:
    """
    1. The broker goes.
    2. The record that waits for it times out; reconnecting stops.
    3. The broker is back.
    4. A new record is sent.
    """
    with (
        ScriptedCluster(2, orders=2) as cluster,
        producing(
            cluster, request_timeout_ms=100, delivery_timeout_ms=200, metadata_recovery_strategy="none"
        ) as producer,
    ):
        for partition in (0, 1):
            producer.send("orders", b"0", partition=partition).get(WAIT_S)
        cluster.nodes[2].stop()
        with pytest.raises(errors.DeliveryTimeoutError):
            producer.send("orders", b"1", partition=1).get(WAIT_S)
        # Until the sender is idle; a flag of its own would not say more than the time does.
        idle = threading.Event()
        assert not idle.wait(0.5)
        cluster.nodes[2].start()
        assert producer.send("orders", b"2", partition=1).get(WAIT_S).offset == 1


# Topics


def test_send_waits_for_a_topic_that_is_being_created() -> None:
    with ScriptedCluster() as cluster, producing(cluster) as producer:
        cluster.auto_create = 3
        assert producer.send("fresh", b"1", partition=2).get(WAIT_S).offset == 0
        assert producer.partitions_for("fresh") == {0, 1, 2}


def test_send_waits_for_a_topic_that_is_unknown_at_first() -> None:
    with ScriptedCluster() as cluster, producing(cluster) as producer:
        future = producer.send("late", b"1")
        cluster.wait_for_requests(METADATA, 3)
        assert not future.is_done
        cluster.create_topic("late").first_errors.extend([3, 5, 3])
        assert future.get(WAIT_S).offset == 0


def test_topics_are_not_created_if_that_is_disabled() -> None:
    with (
        ScriptedCluster() as cluster,
        producing(cluster, allow_auto_create_topics=False, max_block_ms=200) as producer,
    ):
        cluster.auto_create = 3
        with pytest.raises(errors.KafkaTimeoutError):
            producer.send("fresh", b"1").get(WAIT_S)
        assert "fresh" not in cluster.topics


def test_new_partitions_are_found_when_metadata_is_old(cluster: ScriptedCluster) -> None:
    with producing(cluster, metadata_max_age_ms=50) as producer:
        assert producer.partitions_for("orders") == {0}
        producer.send("orders", b"0").get(WAIT_S)
        cluster.create_topic("orders", 3)
        seen = len(cluster.received(METADATA))
        cluster.wait_for_requests(METADATA, seen + 2)
        assert producer.partitions_for("orders") == {0, 1, 2}
        assert producer.send("orders", b"2", partition=2).get(WAIT_S).offset == 0


def test_fresh_metadata_is_not_requested_again(cluster: ScriptedCluster, producer: KafkaProducer) -> None:
    for _ in range(20):
        producer.send("orders", b"0").get(WAIT_S)
    assert len(cluster.received(METADATA)) <= 2


def test_an_idle_topic_is_forgotten_and_requested_again_on_use() -> None:
    with (
        ScriptedCluster(busy=1, idle=1) as cluster,
        producing(cluster, metadata_max_age_ms=40, metadata_max_idle_ms=100) as producer,
    ):
        for topic in ("idle", "busy"):
            producer.send(topic, b"0").get(WAIT_S)
        seen = len(cluster.received(METADATA))

        def asked() -> list[list[str] | None]:
            return [received.topics for received in cluster.received(METADATA)[seen:]]

        deadline = time.monotonic() + WAIT_S
        while ["busy"] not in asked():
            producer.send("busy", b"0").get(WAIT_S)
            assert time.monotonic() < deadline
        assert ["idle", "busy"] in asked()
        seen = len(cluster.received(METADATA))
        assert producer.send("idle", b"1").get(WAIT_S).offset == 1
        # Without a new request it would not learn that the leader moves.
        assert any("idle" in (received.topics or ()) for received in cluster.received(METADATA)[seen:])
        assert producer.partitions_for("idle") == {0}


@pytest.mark.slow
def test_a_topic_in_use_is_not_forgotten(cluster: ScriptedCluster) -> None:
    with producing(cluster, metadata_max_age_ms=40, metadata_max_idle_ms=400) as producer:
        producer.send("orders", b"0").get(WAIT_S)
        seen = len(cluster.received(METADATA))
        end = time.monotonic() + 1
        while time.monotonic() < end:
            producer.send("orders", b"0").get(WAIT_S)
        later = cluster.received(METADATA)[seen:]
        assert len(later) > 3
        assert all(received.topics == ["orders"] for received in later)


def test_a_recreated_topic_is_written_to_under_its_new_id(
    cluster: ScriptedCluster, producer: KafkaProducer
) -> None:
    producer.send("orders", b"old").get(WAIT_S)
    cluster.create_topic("orders", 1)
    assert producer.send("orders", b"new").get(WAIT_S).offset == 0
    assert cluster.topics["orders"].values == [b"new"]
