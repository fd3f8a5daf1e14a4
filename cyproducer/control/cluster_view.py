"""The immutable snapshot of the cluster that is passed to partitioners.

Owns the read-only types; ``ClusterMetadata`` makes them. They never change, so any thread may keep and read
them for any length of time.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple, NoReturn, Protocol

from cyproducer.wire.primitives import untrack


class BrokerMetadata(NamedTuple):
    """One broker, with the field names of kafka-python 2; version 3 calls the first one ``node_id``."""

    nodeId: int
    host: str
    port: int
    rack: str | None

    @property
    def node_id(self) -> int:
        """The same as ``nodeId``."""
        return self.nodeId


class SharedList(list[int]):
    """A list that is shared by all callers and therefore rejects changes.

    It is a list and not a tuple, because applications compare it with ``[]``.
    """

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this list of partitions is shared by all records: change a copy, list(...)")

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        # copy and pickle would otherwise fill their result with append().
        return list, (list(self),)


class TopicView:
    """One topic. ``leaders`` must not be modified after it was passed in.

    The sets and lists are made on first use and cached, as partitioners use them for every record.
    """

    __slots__ = ("_available", "_in_order", "_partitions", "is_internal", "leaders")

    def __init__(self, leaders: Mapping[int, int], is_internal: bool) -> None:
        #: Partition -> node id of its leader, -1 if it has none.
        self.leaders = leaders
        self.is_internal = is_internal
        self._partitions: frozenset[int] | None = None
        self._available: frozenset[int] | None = None
        self._in_order: tuple[SharedList, SharedList] | None = None
        # It refers only to collections of numbers, which refer to nothing.
        untrack(self)

    @property
    def partitions(self) -> frozenset[int]:
        """All partitions."""
        if self._partitions is None:
            self._partitions = frozenset(self.leaders)
            untrack(self._partitions)
        return self._partitions

    @property
    def available(self) -> frozenset[int]:
        """The partitions that have a leader."""
        if self._available is None:
            self._available = frozenset(index for index, leader in self.leaders.items() if leader >= 0)
        return self._available

    @property
    def in_order(self) -> tuple[SharedList, SharedList]:
        """All partitions, and those with a leader, each sorted."""
        if self._in_order is None:
            self._in_order = SharedList(sorted(self.partitions)), SharedList(sorted(self.available))
        return self._in_order


class TopicViews(Mapping[str, TopicView]):
    """Topic -> its view, immutable. ``updated`` makes the next one without copying all topics.

    Two layers: ``base``, and ``recent``, which has what was changed since. A program that meets its topics
    one by one causes a response for each, and copying all topics for each response would be quadratic.
    ``recent`` is merged into a new base once its size exceeds the square root of the base's, so that ``n``
    topics in turn cost ``n * sqrt(n)`` copied references: 30,000 topics 170 each, in place of 30,000.
    """

    __slots__ = ("_base", "_recent")

    def __init__(
        self,
        base: Mapping[str, TopicView] | None = None,
        recent: Mapping[str, TopicView | None] | None = None,
    ) -> None:
        self._base: Mapping[str, TopicView] = {} if base is None else base
        # None: the topic is not known any more.
        self._recent: Mapping[str, TopicView | None] = {} if recent is None else recent

    def updated(self, changes: Mapping[str, TopicView | None]) -> "TopicViews":
        """Returns the topics with some of them replaced; those that are None are removed."""
        recent = dict(self._recent)
        recent.update(changes)
        if len(recent) ** 2 <= len(self._base):
            return TopicViews(self._base, recent)
        # In C, because there may be 100,000 topics: a loop would take as long as all that follows a refresh.
        merged: dict[str, Any] = dict(self._base)
        merged.update(recent)
        for name in [name for name, topic in recent.items() if topic is None]:
            del merged[name]
        return TopicViews(merged)

    def __getitem__(self, name: str) -> TopicView:
        topic: TopicView | None = self.get(name)
        if topic is None:
            raise KeyError(name)
        return topic

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the view of a topic, or ``default``. Called for each record with a custom partitioner."""
        topic = self._recent[name] if name in self._recent else self._base.get(name)
        return default if topic is None else topic

    def __iter__(self) -> Iterator[str]:
        recent = self._recent
        yield from (name for name in self._base if name not in recent)
        yield from (name for name, topic in recent.items() if topic is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ClusterView:
    """The cluster as known at one moment, with the method names of kafka-python's ``ClusterMetadata``.

    Every method is thread-safe and does not block.
    """

    __slots__ = ("_brokers", "_topics", "cluster_id", "controller")

    def __init__(
        self,
        brokers: Mapping[int, BrokerMetadata],
        topics: Mapping[str, TopicView],
        cluster_id: str | None,
        controller_id: int | None,
    ) -> None:
        self._brokers = brokers
        self._topics = topics
        #: The cluster's id, None if the broker reported none.
        self.cluster_id: str | None = cluster_id
        #: The controller, None if unknown.
        self.controller: BrokerMetadata | None = None if controller_id is None else brokers.get(controller_id)

    def brokers(self) -> set[BrokerMetadata]:
        """All brokers; empty before the first metadata response."""
        return set(self._brokers.values())

    def broker_metadata(self, broker_id: int) -> BrokerMetadata | None:
        """The broker with this id, None if unknown."""
        return self._brokers.get(broker_id)

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        """The topics whose partitions are known."""
        return {
            name
            for name, topic in self._topics.items()
            if not (exclude_internal_topics and topic.is_internal)
        }

    def partitions_for_topic(self, topic: str) -> Set[int] | None:
        """All partitions of a topic, None if the topic is unknown."""
        view = self._topics.get(topic)
        return None if view is None else view.partitions

    def available_partitions_for_topic(self, topic: str) -> Set[int]:
        """The partitions with a leader; empty if the topic is unknown."""
        view = self._topics.get(topic)
        return frozenset() if view is None else view.available

    def partitions_in_order(self, topic: str) -> tuple[SharedList, SharedList]:
        """All partitions of a topic and those with a leader, sorted; empty if the topic is unknown."""
        view = self._topics.get(topic)
        return (SharedList(), SharedList()) if view is None else view.in_order

    def knows(self, topic: str) -> bool:
        """Returns whether the topic's partitions are known."""
        view = self._topics.get(topic)
        return view is not None and bool(view.leaders)

    def leader_for_partition(
        self, topic: str | tuple[str, int], partition: int | None = None
    ) -> BrokerMetadata | None:
        """The broker that leads a partition; None if the partition has no leader or is unknown.

        Args:
            topic: a ``TopicPartition`` (or a pair), or the topic's name.
            partition: the partition; only if ``topic`` is a name.

        Raises:
            TypeError: a name without a partition, or a pair with one.
        """
        if isinstance(topic, str):
            if partition is None:
                raise TypeError(f"leader_for_partition({topic!r}) needs a partition too")
        elif partition is not None:
            raise TypeError(f"leader_for_partition({topic!r}, {partition!r}) has two partitions")
        else:
            topic, partition = topic
        view = self._topics.get(topic)
        if view is None:
            return None
        return self._brokers.get(view.leaders.get(partition, -1))


class HasView(Protocol):
    """An object that has the current view of the cluster."""

    @property
    def view(self) -> ClusterView:
        """The current view; another object after each change."""
