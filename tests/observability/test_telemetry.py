"""What a push of metrics contains: sums, increases, what is left out, and the codec."""

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cyproducer.observability import telemetry
from cyproducer.observability.definitions import OF_NODE, OF_TOPIC, Definition
from cyproducer.observability.registry import Registry
from cyproducer.observability.telemetry import Collector
from cyproducer.records.codecs import BY_NAME
from cyproducer.records.compression import decompress_any
from tests.observability.pushed import parsed, points

START_NS = 1_000
SENT = "org.apache.kafka.producer.topic.record.send.total"
RATIO = "org.apache.kafka.producer.topic.compression.rate"
SIZE = 1 << 20
NONE, LZ4, GZIP = (BY_NAME[name].codec_id for name in ("none", "lz4", "gzip"))


class Counters:
    """A ``Reading`` in which every sum is ``sent``, and nothing happened recently."""

    def __init__(self, sent: int) -> None:
        self._sent = sent

    def total(self, name: str) -> int:
        return self._sent

    def recent(self, name: str) -> int:
        return 0

    def rate(self, name: str) -> float:
        return 0.0

    def average(self, name: str, count: str) -> float:
        return math.nan

    def peak(self, name: str) -> float:
        return math.nan


class Pushes:
    """A collector whose registry reads the topics' numbers of records from ``sent``."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}
        self.now_ns = START_NS
        self.collector = Collector(cast(Registry, self), {}, "1", START_NS, lambda: self.now_ns)

    def readings(self) -> Iterator[tuple[tuple[Definition, ...], str, Any]]:
        yield OF_NODE, "1", Counters(1)
        for topic, sent in self.sent.items():
            yield OF_TOPIC, topic, Counters(sent)

    def collect(
        self,
        now_ns: int,
        *wanted: str,
        delta: bool = True,
        codec_ids: tuple[int, ...] = (),
        max_bytes: int = 0,
    ) -> tuple[int, bytes, Callable[[], None]]:
        self.now_ns = now_ns
        wants: Callable[[str], bool] = lambda name: name.startswith(wanted or (SENT,))  # noqa: E731
        return self.collector.collect(wants, delta, codec_ids, max_bytes)


def spans(metrics: bytes) -> dict[str, tuple[float, int, int]]:
    """Topic -> the value of ``SENT``, and the times of its start and its end."""
    (resource,) = parsed(metrics).resource_metrics
    found = {}
    for metric in resource.scope_metrics[0].metrics:
        (point,) = metric.sum.data_points
        (topic,) = point.attributes
        found[topic.value.string_value] = (
            point.as_double,
            point.start_time_unix_nano,
            point.time_unix_nano,
        )
    return found


def test_a_delta_is_the_increase_since_the_last_push_that_a_broker_took() -> None:
    pushes = Pushes()
    pushes.sent["a"] = 5
    _, first, accepted = pushes.collect(2_000)
    assert spans(first) == {"a": (5, START_NS, 2_000)}
    # Not accepted: the next push has the same records.
    pushes.sent["a"] = 7
    _, second, accepted = pushes.collect(3_000)
    assert spans(second) == {"a": (7, START_NS, 3_000)}
    accepted()
    pushes.sent["a"] = 8
    _, third, _ = pushes.collect(4_000)
    assert spans(third) == {"a": (1, 3_000, 4_000)}


def test_without_delta_a_sum_counts_from_the_start() -> None:
    pushes = Pushes()
    for now_ns, sent in (2_000, 5), (3_000, 7):
        pushes.sent["a"] = sent
        _, metrics, accepted = pushes.collect(now_ns, delta=False)
        assert spans(metrics) == {"a": (sent, START_NS, now_ns)}
        accepted()


def test_a_metric_that_was_left_out_has_its_increase_in_a_later_push() -> None:
    pushes = Pushes()
    pushes.sent.update(a=1, b=1)
    _, both, accepted = pushes.collect(2_000)
    accepted()
    pushes.sent.update(a=3, b=4)
    _, fewer, accepted = pushes.collect(3_000, max_bytes=len(both) - 1)
    assert spans(fewer) == {"a": (2, 2_000, 3_000)}
    accepted()
    _, both, _ = pushes.collect(4_000)
    assert spans(both) == {"a": (0, 3_000, 4_000), "b": (3, 2_000, 4_000)}


def test_a_topic_that_was_forgotten_and_used_again_starts_from_0() -> None:
    pushes = Pushes()
    for sent in 5, 0, 9:
        # 0: forgotten.
        pushes.sent = {"a": sent} if sent else {}
        _, metrics, accepted = pushes.collect(2_000)
        assert {topic: value for topic, (value, _, _) in spans(metrics).items()} == pushes.sent
        accepted()
    pushes.sent = {"a": 2}
    _, metrics, _ = pushes.collect(2_000)
    assert spans(metrics)["a"][0] == 2


@pytest.mark.parametrize("codec_ids", [(), (LZ4,)])
def test_what_does_not_fit_is_left_out_from_the_end(codec_ids: tuple[int, ...]) -> None:
    pushes = Pushes()
    pushes.sent = {f"topic-{number}": number for number in range(300)}
    codec_id, everything, _ = pushes.collect(2_000, codec_ids=codec_ids)
    assert list(spans(bytes(decompress_any(codec_id, everything, SIZE)))) == list(pushes.sent)
    most = len(everything) // 3
    codec_id, some, _ = pushes.collect(2_000, codec_ids=codec_ids, max_bytes=most)
    assert most // 2 < len(some) <= most
    kept = list(spans(bytes(decompress_any(codec_id, some, SIZE))))
    assert kept == list(pushes.sent)[: len(kept)]
    # Nothing fits.
    _, none, _ = pushes.collect(2_000, max_bytes=1)
    assert points(none) == {}


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [((), NONE), ((LZ4, GZIP), LZ4), ((GZIP, LZ4), GZIP), ((99, -1, LZ4), LZ4), ((99,), NONE)],
)
def test_the_first_codec_that_both_know_compresses(accepted: tuple[int, ...], expected: int) -> None:
    pushes = Pushes()
    pushes.sent["a"] = 5
    codec_id, metrics, _ = pushes.collect(2_000, codec_ids=accepted)
    assert codec_id == expected
    assert spans(bytes(decompress_any(codec_id, metrics, SIZE))) == {"a": (5, START_NS, 2_000)}


def test_a_value_that_is_not_a_number_yet_is_left_out() -> None:
    pushes = Pushes()
    pushes.sent["a"] = 5
    _, metrics, _ = pushes.collect(2_000, SENT, RATIO)
    assert points(metrics) == {(SENT, "a"): (5, 1)}


def test_only_metrics_that_are_wanted_are_pushed() -> None:
    pushes = Pushes()
    _, metrics, _ = pushes.collect(2_000, "org.apache.kafka.producer.node.request.total")
    assert points(metrics) == {("org.apache.kafka.producer.node.request.total", "1"): (1, 1)}


def test_the_gil_is_released_between_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(telemetry, "_HOLD_NS", -1)
    monkeypatch.setattr(telemetry, "sleep", pauses.append)
    pushes = Pushes()
    pushes.sent = dict.fromkeys("abc", 1)
    pushes.collect(2_000)
    # After the broker, too.
    assert len(pauses) == 4
