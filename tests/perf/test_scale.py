"""Many brokers, topics and partitions: nothing is lost, and each run of ``make perf PERF=scale`` works."""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from cyproducer import KafkaProducer
from perf import null_broker
from perf.footprint import heap_bytes
from perf.null_broker import NullBroker
from perf.runs import scale
from perf.runs.measuring import Args
from tools.harness.rig import Rig
from tools.harness.until import until

pytestmark = [
    pytest.mark.skipif(null_broker.unavailable() is not None, reason=str(null_broker.unavailable())),
    pytest.mark.skipif(sys.platform != "linux", reason="measures with /proc"),
]


def args(**given: Any) -> Args:
    return Args(bootstrap="", **given)


MANY = 20
"""Producers whose memory is averaged."""
MOST_BYTES = 40_000
"""What malloc may give to one: the arrays of a request of 1,024 batches and whole histograms took 169,000."""


def test_a_producer_with_few_batches_takes_little_memory() -> None:
    with ExitStack() as stack:

        def one_more() -> None:
            rig = stack.enter_context(Rig({"t": [1]}, sample_window_ms=100))
            for _ in range(5):
                future = rig.send("t", b"value")
                (request,) = rig.requests()
                rig.answer(request)
                assert future.get(0).offset >= 0
                rig.advance_ms(100)

        one_more()
        gc.collect()
        before = heap_bytes()
        for _ in range(MANY):
            one_more()
        gc.collect()
        assert heap_bytes() - before < MANY * MOST_BYTES


@pytest.mark.slow
def test_a_rolling_restart_of_1000_brokers_loses_nothing() -> None:
    found = scale.rolling_restart(args(topics=10, partitions=300, threads=1000))
    assert found["records"] > 10_000
    assert (found["lost"], found["failed"], found["disorder"]) == (0, 0, 0)


@pytest.mark.slow
def test_each_run_returns_its_figures() -> None:
    few = args(topics=20, partitions=3, seconds=3, threads=5, records=100)
    assert scale.topics_in_turn(few)["topic_us"] > 0
    assert scale.topics_at_once(few)["topic_us"] > 0
    assert scale.topic_objects(few)["python_kb"] > 0
    assert scale.get_while_leaders_move(few)["refreshes"] > 0
    assert scale.threads_while_leaders_move(few)["pause_ms"] >= 0
    assert scale.producers(few)["threads"] == 1


def test_topics_that_come_late_have_leaders_ids_and_records() -> None:
    """The table of names and the ids of the null broker grow with its topics."""
    names = [f"t{number}" for number in range(300)]
    with (
        NullBroker(3, partitions=1) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        for name in names:
            producer.send(name, b"1")
        producer.flush(20)
        assert [broker.report().records(name) for name in ("t0", "t63", "t64", "t299")] == [1] * 4


def test_leaders_move_and_a_broker_goes_down_on_command() -> None:
    with (
        NullBroker(3, partitions=1, topics={"steady": 1, "moved": 1}) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):

        def leader(name: str) -> int:
            producer.send(name, b"1").get(20)
            found = producer._runtime.client.view.leader_for_partition(name, 0)
            assert found is not None
            return found.nodeId

        before = leader("steady"), leader("moved")
        broker.shift("moved")
        until(lambda: leader("moved") != before[1], "the new leader")
        assert leader("steady") == before[0]
        broker.down(before[0] - 1, 100)
        until(lambda: leader("steady") != before[0], "a leader that is up")
