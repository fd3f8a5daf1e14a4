"""A producer's metrics as users meet them: ``metrics()``, metric objects, and reporters that hear of them.

Owns: which metrics there are right now (topics and brokers come up), and calling reporters. Does not own:
what a metric means (``definitions``) or counts, nor the thread on which reporters hear of what the sender has
met, and of the end (``user_thread``). Any thread, and no lock: readings take the accumulator's for a moment,
and reporters are called with none held.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from cyproducer.accumulator.metric_snapshot import (
    Reading,
    node_ids,
    read_node,
    read_producer,
    read_topic,
    topic_names,
)
from cyproducer.accumulator.record_accumulator import RecordAccumulator
from cyproducer.observability.definitions import (
    COUNT,
    COUNT_MEANING,
    COUNT_NAME,
    OF_NODE,
    OF_PRODUCER,
    OF_TOPIC,
    Definition,
    Host,
)
from cyproducer.user_thread import user_thread

log = logging.getLogger("cyproducer")


class MetricName:
    """What a metric is called; kafka-python's ``MetricName``. Equal where group, name and tags are."""

    __slots__ = ("description", "group", "name", "tags")

    def __init__(self, name: str, group: str, description: str, tags: Mapping[str, str]) -> None:
        self.name = name
        self.group = group
        self.description = description
        self.tags = dict(tags)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MetricName):
            return NotImplemented
        return (self.group, self.name, self.tags) == (other.group, other.name, other.tags)

    def __hash__(self) -> int:
        return hash((self.group, self.name))

    def __repr__(self) -> str:
        return f"MetricName({self.group!r}, {self.name!r}, tags={self.tags})"


class Metric:
    """One metric, to be read any time, from any thread, also after close; kafka-python's ``KafkaMetric``."""

    __slots__ = ("_read", "metric_name")

    def __init__(self, metric_name: MetricName, read: Callable[[], float]) -> None:
        self.metric_name = metric_name
        self._read = read

    def value(self, time_ms: float | None = None) -> float:
        """What it is now; ``time_ms`` is not looked at."""
        return self._read()

    def __repr__(self) -> str:
        return f"<Metric {self.metric_name.group} {self.metric_name.name}>"


class Registry:
    """All metrics of a producer, and who reports them. ``client_id`` is the tag that each has."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        sender: Any,
        *,
        client_id: str = "",
        metadata_age_s: Callable[[], float] = lambda: math.nan,
    ) -> None:
        self.accumulator = accumulator
        self.sender = sender
        self.metadata_age_s = metadata_age_s
        self._tags = {"client-id": client_id}
        #: A group -> its metrics.
        self._made: dict[str, list[Metric]] = {}
        self._reporters: list[Any] = []
        # Whether a refresh() is on its way: one is enough for all that has come up before it.
        self._due = False

    def _groups(self) -> Iterable[tuple[str, tuple[Definition, ...], Callable[[], Reading]]]:
        """Each group by its name, with its definitions and what its values are read from."""
        accumulator = self.accumulator
        yield OF_PRODUCER[0].group, OF_PRODUCER, partial(read_producer, accumulator)
        for node_id in node_ids(accumulator):
            group = OF_NODE[0].group.format(id=node_id)
            yield group, OF_NODE, partial(read_node, accumulator, node_id)
        for topic in topic_names(accumulator):
            group = OF_TOPIC[0].group.format(topic=topic)
            yield group, OF_TOPIC, partial(read_topic, accumulator, topic)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """All values as {group: {name: value}}; those of one group are of one instant."""
        found: dict[str, dict[str, float]] = {}
        for group, definitions, read in self._groups():
            try:
                reading = read()
            except KeyError:
                # The topic was forgotten meanwhile.
                continue
            found[group] = {metric.name: metric.value(reading, self) for metric in definitions}
        found[COUNT] = {COUNT_NAME: sum(map(len, found.values())) + 1}
        return found

    def metrics(self) -> dict[MetricName, Metric]:
        """All metrics there are now."""
        self.refresh()
        return {metric.metric_name: metric for group in list(self._made.values()) for metric in group}

    def _count(self) -> float:
        return sum(len(definitions) for _, definitions, _ in self._groups()) + 1

    def _make(self) -> tuple[list[Metric], list[Metric]]:
        """Makes the metrics of what has come up, drops those of forgotten topics; returns both."""
        new: list[Metric] = []
        gone: list[Metric] = []
        groups = list(self._groups())
        for group in self._made.keys() - {group for group, _, _ in groups} - {COUNT}:
            gone += self._made.pop(group, [])
        for group, definitions, read in groups:
            if group not in self._made:
                metrics = [self._metric(group, definition, read) for definition in definitions]
                # Where two threads come here at once, it is one of them that tells the reporters.
                if self._made.setdefault(group, metrics) is metrics:
                    new += metrics
        if COUNT not in self._made:
            name = MetricName(COUNT_NAME, COUNT, COUNT_MEANING, self._tags)
            count = [Metric(name, self._count)]
            if self._made.setdefault(COUNT, count) is count:
                new += count
        return new, gone

    def _metric(self, group: str, definition: Definition, read: Callable[[], Reading]) -> Metric:
        host: Host = self

        def value() -> float:
            try:
                return definition.value(read(), host)
            except KeyError:
                # A topic that was forgotten.
                return math.nan

        return Metric(MetricName(definition.name, group, definition.meaning, self._tags), value)

    # Reporters

    def report_to(self, reporters: Iterable[Any], configs: Mapping[str, Any]) -> None:
        """Sets reporters up, classes and objects: ``configure(configs)``, ``init(metrics)``. Once."""
        metrics = list(self.metrics().values())
        for given in reporters:
            try:
                reporter = given() if isinstance(given, type) else given
            except Exception:
                log.exception("metric reporter %r could not be made; it reports nothing", given)
                continue
            _call(reporter, "configure", dict(configs))
            _call(reporter, "init", list(metrics))
            self._reporters.append(reporter)

    def refresh(self) -> None:
        """Tells reporters of metrics that have come up, and that are no more: those of topics and brokers."""
        new, gone = self._make()
        for method, metrics in (("metric_change", new), ("metric_removal", gone)):
            for metric in metrics:
                for reporter in list(self._reporters):
                    _call(reporter, method, metric)

    def refresh_soon(self) -> None:
        """``refresh()`` on the thread for users' code; does not wait for it. For the sender's thread."""
        if not self._due:
            self._due = True
            user_thread.put(self._refresh_due)

    def _refresh_due(self) -> None:
        self._due = False
        self.refresh()

    def close(self, timeout_s: float) -> None:
        """Ends the reporters, once, after what they are still to be told; waits up to ``timeout_s`` seconds.

        A reporter that takes longer is left to itself. Values can be read as before.
        """
        if self._reporters:
            user_thread.put(self._close_reporters)
            user_thread.drain(timeout_s)

    def _close_reporters(self) -> None:
        while self._reporters:
            _call(self._reporters.pop(0), "close")


def _call(reporter: Any, method: str, *arguments: Any) -> None:
    """Calls a reporter, which may lack the method, and may do whatever it likes but stop the producer."""
    try:
        called = getattr(reporter, method, None)
        if called is not None:
            called(*arguments)
    except Exception:
        log.exception("metric reporter %r raised in %s", reporter, method)
