"""``metrics()`` of whole producers, metric objects, and misbehaving reporters."""

import json
import logging
import math
import pickle
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from kafka.metrics import DictReporter, Metrics  # type: ignore[import-untyped]
from kafka.net.metrics import (  # type: ignore[import-untyped]
    KafkaConnectionMetrics,
    KafkaManagerMetrics,
)
from kafka.producer.sender import SenderMetrics  # type: ignore[import-untyped]

from cyproducer import KafkaProducer
from cyproducer.errors import KafkaConfigurationError
from cyproducer.observability.registry import Metric, MetricName, Registry
from tests.forked import in_child, needs_fork
from tests.observability.measured import registry, sent
from tests.scripted.producing import WAIT_S, options, producing
from tests.scripted.scripted_broker import METADATA, PRODUCE, ScriptedCluster
from tools.harness.rig import Rig
from tools.harness.until import until

Snapshot = dict[str, dict[str, float]]


def known(snapshot: Snapshot) -> set[tuple[str, str]]:
    return {(group, name) for group, values in snapshot.items() for name in values}


def counted(producer: KafkaProducer) -> None:
    """Waits until all batches are counted, which may happen a moment after their futures are done."""
    producer.flush(WAIT_S)


# metrics()


def test_a_producer_that_has_sent_nothing_has_every_producer_metric() -> None:
    with producing(bootstrap_servers=["127.0.0.1:1"]) as producer:
        found = producer.metrics()
        assert set(found) == {"producer-metrics", "kafka-metrics-count"}
        assert found["kafka-metrics-count"]["count"] == len(found["producer-metrics"]) + 1
        for name, value in found["producer-metrics"].items():
            if name.endswith(("-avg", "-max", "-p50", "-p99", "-p999")) or name == "metadata-age":
                assert math.isnan(value), name
            elif "buffer-" not in name and "connection" not in name and name != "wakeup-total":
                assert value == 0, name


def test_every_metric_name_of_kafka_python_exists() -> None:
    """Creates kafka-python's sensors as its producer does."""

    class Client:
        def in_flight_request_count(self) -> int:
            return 0

    theirs = Metrics()
    KafkaManagerMetrics(theirs, "producer", [])
    KafkaConnectionMetrics(theirs, "producer", 1)
    SenderMetrics(theirs, Client(), None).maybe_register_topic_metrics("orders")
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        ours = known(producer.metrics())
    assert {(name.group, name.name) for name in theirs.metrics} - ours == set()
    assert len(theirs.metrics) > 40


def test_metrics_match_a_run_against_a_cluster() -> None:
    with ScriptedCluster(2, orders=2) as cluster, producing(cluster, client_id="shop") as producer:
        for partition in (0, 1):
            for _ in range(3):
                producer.send("orders", b"1", partition=partition).get(WAIT_S)
        counted(producer)
        found = producer.metrics()
        produced = len(cluster.received(PRODUCE))
        own = found["producer-metrics"]
        assert own["produce-request-total"] == produced == 6
        # Each request has its response, except those whose responses are still in transit.
        assert produced + 2 < own["request-total"] <= len(cluster.requests)
        assert own["record-send-total"] == found["producer-topic-metrics.orders"]["record-send-total"] == 6
        leaders = [partition.leader for partition in cluster.topics["orders"].partitions]
        assert sorted(leaders) == [1, 2]
        for leader in leaders:
            node = found[f"producer-node-metrics.node-{leader}"]
            assert node["request-latency-max"] > 0
            asked = [one for one in cluster.requests if one.connection.node.id == leader]
            assert 3 < node["request-total"] <= len(asked)
        bootstrap = [values for group, values in found.items() if "node--" in group]
        assert sum(values["request-total"] for values in bootstrap) >= 1
        assert 0 <= own["metadata-age"] < WAIT_S
        assert own["metadata-wait-time-ns-total"] == 0


def test_waiting_for_metadata_is_counted_if_a_thread_waits() -> None:
    with ScriptedCluster(orders=1, other=1) as cluster, producing(cluster) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        assert producer.metrics()["producer-metrics"]["metadata-wait-time-ns-total"] == 0
        producer.partitions_for("other")
        waited = producer.metrics()["producer-metrics"]["metadata-wait-time-ns-total"]
        assert waited > 0
        producer.partitions_for("other")
        assert producer.metrics()["producer-metrics"]["metadata-wait-time-ns-total"] == waited
        assert producer.metrics()["producer-metrics"]["flush-time-ns-total"] == 0
        producer.flush(WAIT_S)
        assert producer.metrics()["producer-metrics"]["flush-time-ns-total"] > 0
        assert len(cluster.received(METADATA)) >= 2


def test_metrics_can_be_read_in_callbacks_and_after_close() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster) as producer:
        seen: list[Snapshot] = []
        producer.send("orders", b"1").add_callback(lambda _: seen.append(producer.metrics()))
        producer.flush(WAIT_S)
        assert seen[0]["producer-metrics"]["produce-request-total"] == 1
        metric = next(iter(producer.metrics(raw=True).values()))
        producer.close()
        closed = producer.metrics()["producer-metrics"]
        assert (closed["record-send-total"], closed["connection-count"]) == (1, 0)
        assert closed["connection-creation-total"] == closed["connection-close-total"] > 0
        assert metric.value() >= 0


@pytest.mark.slow
def test_threads_may_read_metrics_while_others_send() -> None:
    with ScriptedCluster(orders=2) as cluster, producing(cluster, metrics_sample_window_ms=1) as producer:
        failures: list[BaseException] = []
        ended = threading.Event()

        def ask() -> None:
            before = 0.0
            try:
                while not ended.is_set():
                    now = producer.metrics()["producer-metrics"]["record-send-total"]
                    assert before <= now
                    before = now
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            for number in range(200):
                producer.send("orders", b"%d" % number)
            producer.flush(WAIT_S)
        ended.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert failures == []
        assert producer.metrics()["producer-metrics"]["record-send-total"] == 4000


@needs_fork
def test_a_forked_child_starts_from_zero_and_so_do_its_reporters() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, metric_reporters=[Noting]) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        counted(producer)
        mine = producer.metrics(raw=True)
        Noting.made.clear()

        def ask() -> tuple[float, float, float, int]:
            before = producer.metrics()["producer-metrics"]["record-send-total"]
            producer.send("orders", b"2").get(WAIT_S)
            counted(producer)
            after = producer.metrics()["producer-metrics"]["record-send-total"]
            name = MetricName(
                "record-send-total", "producer-metrics", "", {"client-id": producer.config.client_id}
            )
            old = mine[name].value()
            producer.close(WAIT_S)
            return before, after, old, len(Noting.made)

        assert in_child(ask) == (0, 1, 1, 1)
        assert producer.metrics()["producer-metrics"]["record-send-total"] == 1


def test_raw_returns_objects_that_read_the_current_value() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, client_id="shop") as producer:
        producer.send("orders", b"1")
        counted(producer)
        found = producer.metrics(raw=True)
        shown = {(name.group, name.name) for name in found}
        assert shown == known(producer.metrics())
        assert {json.dumps(name.tags) for name in found} == {'{"client-id": "shop"}'}
        name = MetricName("record-send-total", "producer-topic-metrics.orders", "", {"client-id": "shop"})
        metric = found[name]
        assert isinstance(metric, Metric)
        assert metric.metric_name == name
        assert metric.metric_name != MetricName(name.name, name.group, "", {})
        assert metric.metric_name.description
        assert metric.value() == 1
        producer.send("orders", b"1")
        counted(producer)
        assert metric.value(0.0) == 2
        for group, values in producer.metrics().items():
            for short, value in values.items():
                told = found[MetricName(short, group, "", {"client-id": "shop"})].value()
                if short.endswith("-total"):
                    assert told == value, (group, short)


def test_disabled_metrics_are_empty() -> None:
    given: dict[str, Any] = {"metrics_enabled": False, "metric_reporters": [Noting]}
    Noting.made.clear()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, **given) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        assert producer.metrics() == {}
        assert producer.metrics(raw=True) == {}
    assert Noting.made == []


def test_every_recording_level_records_all_metrics() -> None:
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, **{"metrics.recording.level": "TRACE"}) as more,
        producing(cluster) as less,
    ):
        assert set(more.metrics()["producer-metrics"]) == set(less.metrics()["producer-metrics"])
    with pytest.raises(KafkaConfigurationError, match="INFO"):
        KafkaProducer(**options(metrics_recording_level="LOUD", bootstrap_servers="127.0.0.1:1"))


def test_windows_follow_the_options() -> None:
    given = {"metrics.num.samples": 1, "metrics.sample.window.ms": 1}
    with ScriptedCluster(orders=1) as cluster, producing(cluster, **given) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        # Records are counted after their futures are done.
        until(lambda: producer.metrics()["producer-metrics"]["record-send-total"] == 1, "the record")
        until(lambda: producer.metrics()["producer-metrics"]["record-send-rate"] == 0, "another window")
        assert math.isnan(producer.metrics()["producer-metrics"]["batch-size-max"])


# Reporters


class Noting:
    """A reporter with kafka-python's interface that records its calls."""

    made: list["Noting"] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.told: list[str] = []
        self.metrics: list[Any] = []
        self.configs: Mapping[str, Any] = {}
        self.threads: set[str] = set()
        Noting.made.append(self)

    def configure(self, configs: Mapping[str, Any]) -> None:
        self.told.append("configure")
        self.configs = configs

    def init(self, metrics: list[Any]) -> None:
        self.told.append("init")
        self.metrics += metrics

    def metric_change(self, metric: Any) -> None:
        self.metrics.append(metric)

    def metric_removal(self, metric: Any) -> None:
        self.metrics.remove(metric)

    def close(self) -> None:
        self.told.append("close")

    def groups(self) -> set[str]:
        return {metric.metric_name.group for metric in list(self.metrics)}


def test_a_reporter_is_notified_of_each_metric_once_and_of_the_close() -> None:
    one = Noting()
    Noting.made.clear()
    with ScriptedCluster(orders=1) as cluster:
        with producing(cluster, client_id="shop", metric_reporters=[one, Noting]) as producer:
            (other,) = Noting.made
            for reporter in (one, other):
                assert reporter.told == ["configure", "init"]
                assert reporter.configs["client_id"] == "shop"
                assert reporter.configs["linger_ms"] == 0
                assert {"producer-metrics", "kafka-metrics-count"} <= reporter.groups()
            producer.send("orders", b"1").get(WAIT_S)
            # Nothing has called metrics(): reporters are notified when the topic's metadata arrives.
            until(lambda: "producer-topic-metrics.orders" in other.groups(), "the topic's metrics")
            shown = known(producer.metrics())
            for reporter in (one, other):
                told = [(metric.metric_name.group, metric.metric_name.name) for metric in reporter.metrics]
                assert sorted(told) == sorted(shown)
            counted(producer)
        for reporter in (one, other):
            assert reporter.told == ["configure", "init", "close"]
        total = {metric.metric_name.name: metric for metric in one.metrics}["record-send-total"]
        assert total.value() == 1


def test_a_reporter_is_notified_when_a_topic_is_forgotten_and_when_it_returns() -> None:
    reporter, group = Noting(), "producer-topic-metrics.orders"
    given: dict[str, Any] = {"metadata_max_age_ms": 20, "metadata_max_idle_ms": 100}
    with (
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, metric_reporters=[reporter], **given) as producer,
    ):
        for _ in range(2):
            producer.send("orders", b"1").get(WAIT_S)
            until(lambda: group in reporter.groups(), "the topic's metrics")
            until(lambda: group not in reporter.groups(), "their end")
        shown = known(producer.metrics())
        told = [(metric.metric_name.group, metric.metric_name.name) for metric in reporter.metrics]
        assert sorted(told) == sorted(shown)


def test_a_reporter_of_kafka_python_s_works() -> None:
    reporter = DictReporter("prefix")
    given: dict[str, Any] = {"client_id": "shop", "metric_reporters": [reporter]}
    with ScriptedCluster(orders=1) as cluster, producing(cluster, **given) as producer:
        producer.send("orders", b"1")
        counted(producer)
        producer.metrics()
        found = reporter.snapshot()
        assert found["prefix.producer-metrics.client-id=shop"]["record-send-total"] == 1
        assert found["prefix.producer-topic-metrics.orders.client-id=shop"]["record-send-total"] == 1


class Raising(Noting):
    """Raises in every method."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        raise RuntimeError("in configure")

    def init(self, metrics: list[Any]) -> None:
        raise RuntimeError("in init")

    def metric_change(self, metric: Any) -> None:
        raise RuntimeError("in metric_change")

    def close(self) -> None:
        raise RuntimeError("in close")


class Bare:
    """A reporter with one method."""

    def metric_removal(self, metric: Metric) -> None:
        pass


class Unmakeable(Noting):
    def __init__(self) -> None:
        raise RuntimeError("in __init__")


def test_reporters_that_raise_are_logged_and_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    good = Noting()
    bare = Bare()
    with (
        caplog.at_level(logging.ERROR, "cyproducer"),
        ScriptedCluster(orders=1) as cluster,
        producing(cluster, metric_reporters=[Raising, Unmakeable, bare, good]) as producer,
    ):
        assert producer.send("orders", b"1").get(WAIT_S).offset == 0
        until(lambda: "producer-topic-metrics.orders" in good.groups(), "the topic's metrics")
        producer.close()
    assert good.told == ["configure", "init", "close"]
    said = {str(record.exc_info[1]) for record in caplog.records if record.exc_info}
    assert said == {f"in {what}" for what in ("__init__", "configure", "init", "metric_change", "close")}


def test_a_reporter_may_read_metrics_during_a_notification() -> None:
    class Asking(Noting):
        def metric_change(self, metric: Any) -> None:
            super().metric_change(metric)
            metric.value()
            producer.metrics()

    asking = Asking()
    with ScriptedCluster(orders=1) as cluster, producing(cluster, metric_reporters=[asking]) as producer:
        producer.send("orders", b"1").get(WAIT_S)
        until(lambda: "producer-topic-metrics.orders" in asking.groups(), "the topic's metrics")


def test_concurrent_refreshes_report_each_metric_once() -> None:
    with Rig({"t": [1]}) as rig:
        found = registry(rig)
        reporter = Noting()
        found.report_to([reporter], {})
        sent(rig, [b"x"])
        gate = threading.Barrier(8)

        def look() -> None:
            gate.wait(WAIT_S)
            found.refresh()

        threads = [threading.Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        names = [(metric.metric_name.group, metric.metric_name.name) for metric in reporter.metrics]
        assert len(names) == len(set(names)) == found.snapshot()["kafka-metrics-count"]["count"]


def test_a_producer_with_reporters_can_be_pickled() -> None:
    with ScriptedCluster(orders=1) as cluster, producing(cluster, metric_reporters=[Noting]) as producer:
        copy = pickle.loads(pickle.dumps(producer))
        copy.close(0)


def test_metadata_that_was_never_fetched_has_no_age() -> None:
    with Rig() as rig:
        assert math.isnan(registry(rig).snapshot()["producer-metrics"]["metadata-age"])
        aged = Registry(rig.accumulator, rig.sender, metadata_age_s=lambda: 12.5)
        assert aged.snapshot()["producer-metrics"]["metadata-age"] == 12.5
