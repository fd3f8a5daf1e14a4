"""Metrics that a producer pushes to a real Kafka, which hands them to a plugin (KIP-714)."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cyproducer import KafkaProducer
from tests.observability.pushed import CUMULATIVE, DELTA, points
from tools.harness.kafka_cluster import KafkaCluster
from tools.harness.kafka_install import classpath
from tools.harness.kafka_node import java
from tools.harness.until import until

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="javac is not on PATH"),
]

PLUGIN = Path(__file__).with_name("plugin") / "TelemetryPlugin.java"
SENT = "org.apache.kafka.producer.record.send.total"
OF_TOPIC = "org.apache.kafka.producer.topic.record.send.total"
INTERVAL_MS = 100
"""The shortest that Kafka allows."""


class Pushes(NamedTuple):
    """A cluster, and the directory to which its plugin writes."""

    cluster: KafkaCluster
    directory: Path

    def of(self, instance_id: bytes, end: str = "*") -> list[Path]:
        name = base64.urlsafe_b64encode(instance_id).decode().rstrip("=")
        return sorted(self.directory.glob(f"*-{name}-{end}"))


@pytest.fixture(scope="module")
def pushes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushes]:
    directory = tmp_path_factory.mktemp("telemetry")
    classes, pushed = directory / "classes", directory / "pushed"
    pushed.mkdir()
    subprocess.run(["javac", "-cp", classpath(), "-d", classes, PLUGIN], check=True)
    with KafkaCluster(
        1,
        {"metric.reporters": "TelemetryPlugin"},
        jvm_options=[f"-Dtelemetry.dir={pushed}"],
        classes=classes,
        directory=directory / "kafka",
    ) as cluster:
        cluster.create_topic("t", partitions=1)
        yield Pushes(cluster, pushed)


def subscribe(cluster: KafkaCluster, *metrics: str) -> None:
    configs = f"metrics=[{','.join(metrics)}],interval.ms={INTERVAL_MS}"
    where = ("--bootstrap-server", cluster.bootstrap_servers)
    what = ("--alter", "--entity-type", "client-metrics", "--entity-name", "all", "--add-config", configs)
    subprocess.run(java(classpath(), "kafka.admin.ConfigCommand", *where, *what), check=True)


def test_a_plugin_gets_what_metrics_returns(pushes: Pushes) -> None:
    subscribe(pushes.cluster, "org.apache.kafka.producer.")
    with KafkaProducer(bootstrap_servers=pushes.cluster.bootstrap_servers) as producer:
        for _ in range(9):
            producer.send("t", b"x")
        producer.flush()
        instance_id = producer.client_instance_id(10).bytes
        until(lambda: len(pushes.of(instance_id)) >= 3, "three pushes")
    latest = producer.metrics()
    (last,) = pushes.of(instance_id, "last")
    assert pushes.of(instance_id)[-1] == last
    found = points(last.read_bytes())
    (kind,) = {kind for _, kind in found.values()} - {None}
    assert kind in (DELTA, CUMULATIVE)
    totals = [points(path.read_bytes())[SENT, ""][0] for path in pushes.of(instance_id)]
    assert (sum(totals) if kind == DELTA else totals[-1]) == 9
    assert (OF_TOPIC, "t") in found
    ours = latest["producer-metrics"]
    assert found["org.apache.kafka.producer.record.size.avg", ""] == (ours["record-size-avg"], None)
    assert found["org.apache.kafka.producer.buffer.total.bytes", ""] == (ours["buffer-total-bytes"], None)
    node = latest["producer-node-metrics.node-1"]["request-latency-max"]
    assert found["org.apache.kafka.producer.node.request.latency.max", "1"] == (node, None)
    assert all(name.startswith("org.apache.kafka.producer.") for name, _ in found)
