"""Tests exactly-once from Spark on a real Kafka: a stream whose driver is killed at named steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import needs_module, needs_proc
from tests.integration.spark_once import Stream
from tools.harness.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600), needs_module("pyspark"), needs_proc]


@pytest.mark.slow
def test_a_stream_is_written_once_though_its_driver_is_killed_at_each_kind_of_step(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    kafka.create_topic("spark-once", 3)
    stream = Stream(tmp_path, kafka, "spark-once", batches=6)
    for step in (
        "after a task has prepared",
        "before the decision",
        "after the decision",
        "between two commits",
        "after done",
    ):
        assert (stream.life(step) or "").endswith(step)
    assert stream.life("never") is None
    stream.check()
