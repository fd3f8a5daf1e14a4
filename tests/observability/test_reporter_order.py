"""Reporters beside each other: the order of their ends, their lists, and metrics that come up meanwhile."""

import math
from typing import Any

from cyproducer.base.user_thread import user_thread
from cyproducer.observability.registry import Metric
from tests.observability.measured import registry, sent
from tools.harness.rig import Rig
from tools.harness.until import PATIENCE_S


class Named:
    """Notes its name at its end, and the groups of metrics that it hears of."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self.name = name
        self.ended = ended
        self.groups: list[str] = []

    def init(self, metrics: list[Metric]) -> None:
        self.groups += [metric.metric_name.group for metric in metrics]

    def metric_change(self, metric: Metric) -> None:
        self.groups.append(metric.metric_name.group)

    def close(self) -> None:
        self.ended.append(self.name)


def test_reporters_end_in_the_order_in_which_they_were_given() -> None:
    with Rig({"t": [1]}) as rig:
        ended: list[str] = []
        found = registry(rig)
        found.report_to([Named(name, ended) for name in "abc"], {})
        found.close(PATIENCE_S)
        assert ended == ["a", "b", "c"]
        found.close(PATIENCE_S)
        assert ended == ["a", "b", "c"]


def test_a_reporter_may_change_the_list_that_it_is_given() -> None:
    class Taking(Named):
        def init(self, metrics: list[Metric]) -> None:
            super().init(metrics)
            metrics.clear()

    with Rig({"t": [1]}) as rig:
        one, two = Taking("one", []), Named("two", [])
        registry(rig).report_to([one, two], {})
        assert one.groups == two.groups != []


def test_what_comes_up_while_reporters_are_told_is_told_next() -> None:
    group = "producer-topic-metrics.late"

    class Sending(Named):
        has_sent = False

        def metric_change(self, metric: Metric) -> None:
            super().metric_change(metric)
            if not self.has_sent:
                self.has_sent = True
                rig.send("late", b"1")
                found.refresh_soon()

    with Rig({"t": [1]}) as rig:
        found = registry(rig)
        reporter = Sending("one", [])
        found.report_to([reporter], {})
        rig.send("early", b"1")
        found.refresh_soon()
        # The second round is asked for during the first.
        for _ in range(2):
            assert user_thread.drain(PATIENCE_S)
        assert group in reporter.groups


def test_a_metric_of_a_forgotten_topic_has_no_value_any_more() -> None:
    with Rig({"t": [1]}) as rig:
        sent(rig, [b"x"])
        found = registry(rig)
        metrics: dict[Any, Metric] = found.metrics()
        of_topic = [metric for name, metric in metrics.items() if name.group == "producer-topic-metrics.t"]
        totals = [metric for metric in of_topic if metric.metric_name.name == "record-send-total"]
        assert [metric.value() for metric in totals] == [1]
        rig.sender.forget_topic("t")
        assert of_topic
        assert all(math.isnan(metric.value()) for metric in of_topic)
