"""The public view of a producer's metrics: ``metrics()``, metric objects, and calls to reporters.

Owns the list of current metrics, which grows with new topics and brokers, and the calls to reporters. Does
not define metrics (``definitions``) or count. Does not own the thread that notifies reporters of the sender's
new metrics and closes the reporters (``user_thread``).

Any thread may call. There is no lock here: reading takes the accumulator's lock for a moment, and reporters
are called with no lock held.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from cyproducer.base.user_thread import user_thread
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

log = logging.getLogger("cyproducer")


class MetricName:
    """Name of a metric; kafka-python's ``MetricName``. Equal if group, name and tags are equal."""

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
    """One metric, readable at any time, from any thread, also after close; kafka-python's ``KafkaMetric``."""

    __slots__ = ("_read", "metric_name")

    def __init__(self, metric_name: MetricName, read: Callable[[], float]) -> None:
        self.metric_name = metric_name
        self._read = read

    def value(self, time_ms: float | None = None) -> float:
        """The current value. ``time_ms`` is ignored."""
        return self._read()

    def __repr__(self) -> str:
        return f"<Metric {self.metric_name.group} {self.metric_name.name}>"


class Registry:
    """All metrics of a producer and its reporters. Each metric has the tag ``client_id``."""

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
        #: Group -> its metrics.
        self._made: dict[str, list[Metric]] = {}
        self._reporters: list[Any] = []
        # Whether a refresh() is scheduled. One is enough for all metrics that appear before it runs.
        self._due = False

    def _groups(self) -> Iterable[tuple[str, tuple[Definition, ...], Callable[[], Reading]]]:
        """Each group as (name, definitions, function that reads its values)."""
        for definitions, part, read in self._parts():
            yield definitions[0].group.format(id=part, topic=part), definitions, read

    def _parts(self) -> Iterable[tuple[tuple[Definition, ...], str, Callable[[], Reading]]]:
        """Each group as (definitions, its broker's id or its topic, function that reads its values)."""
        accumulator = self.accumulator
        yield OF_PRODUCER, "", partial(read_producer, accumulator)
        for node_id in node_ids(accumulator):
            yield OF_NODE, str(node_id), partial(read_node, accumulator, node_id)
        for topic in topic_names(accumulator):
            yield OF_TOPIC, topic, partial(read_topic, accumulator, topic)

    def readings(self) -> Iterator[tuple[tuple[Definition, ...], str, Reading]]:
        """Each group as (definitions, its broker's id or its topic, its counters at one instant).

        For exporters, which compute only the values that they expose.
        """
        for definitions, part, read in self._parts():
            try:
                yield definitions, part, read()
            except KeyError:
                # The topic was forgotten in the meantime.
                continue

    def snapshot(self) -> dict[str, dict[str, float]]:
        """All values as {group: {name: value}}. The values of one group are read at one instant."""
        found: dict[str, dict[str, float]] = {}
        for definitions, part, reading in self.readings():
            group = definitions[0].group.format(id=part, topic=part)
            found[group] = {metric.name: metric.value(reading, self) for metric in definitions}
        found[COUNT] = {COUNT_NAME: sum(map(len, found.values())) + 1}
        return found

    def metrics(self) -> dict[MetricName, Metric]:
        """All current metrics."""
        self.refresh()
        return {metric.metric_name: metric for group in list(self._made.values()) for metric in group}

    def _count(self) -> float:
        return sum(len(definitions) for _, definitions, _ in self._groups()) + 1

    def _make(self) -> tuple[list[Metric], list[Metric]]:
        """Creates metrics for new groups and drops those of forgotten topics; returns (new, dropped)."""
        new: list[Metric] = []
        gone: list[Metric] = []
        groups = list(self._groups())
        for group in self._made.keys() - {group for group, _, _ in groups} - {COUNT}:
            gone += self._made.pop(group, [])
        for group, definitions, read in groups:
            if group not in self._made:
                metrics = [self._metric(group, definition, read) for definition in definitions]
                # If two threads get here at once, only one of them notifies the reporters.
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
                # The topic was forgotten.
                return math.nan

        return Metric(MetricName(definition.name, group, definition.meaning, self._tags), value)

    # Reporters

    def report_to(self, reporters: Iterable[Any], configs: Mapping[str, Any]) -> None:
        """Sets up reporters (classes or objects): ``configure(configs)``, ``init(metrics)``. Call once."""
        metrics = list(self.metrics().values())
        for given in reporters:
            try:
                reporter = given() if isinstance(given, type) else given
            except Exception:
                log.exception("metric reporter %r could not be created and reports nothing", given)
                continue
            _call(reporter, "configure", dict(configs))
            _call(reporter, "init", list(metrics))
            self._reporters.append(reporter)

    def refresh(self) -> None:
        """Notifies reporters of new and removed metrics, that is, those of topics and brokers."""
        new, gone = self._make()
        for method, metrics in (("metric_change", new), ("metric_removal", gone)):
            for metric in metrics:
                for reporter in list(self._reporters):
                    _call(reporter, method, metric)

    def refresh_soon(self) -> None:
        """Schedules ``refresh()`` on the thread for users' code without waiting. For the sender thread."""
        if not self._due:
            self._due = True
            user_thread.put(self._refresh_due)

    def _refresh_due(self) -> None:
        self._due = False
        self.refresh()

    def close(self, timeout_s: float) -> None:
        """Closes the reporters, once, after their pending notifications; waits up to ``timeout_s`` seconds.

        A reporter that takes longer keeps running, but this does not wait for it. Values stay readable.
        """
        if self._reporters:
            user_thread.put(self._close_reporters)
            user_thread.drain(timeout_s)

    def _close_reporters(self) -> None:
        while self._reporters:
            _call(self._reporters.pop(0), "close")


def _call(reporter: Any, method: str, *arguments: Any) -> None:
    """Calls a reporter's method if it has one. Logs exceptions, so that they can't stop the producer."""
    try:
        called = getattr(reporter, method, None)
        if called is not None:
            called(*arguments)
    except Exception:
        log.exception("metric reporter %r raised in %s", reporter, method)
