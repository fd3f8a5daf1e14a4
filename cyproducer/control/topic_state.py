"""The state of one topic: its partitions, their leaders and leader epochs.

Owns merging a metadata response for a topic into what is known. Does not decide when to ask for metadata
(``metadata``). Belongs to one ``ClusterMetadata`` and shares its lock.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from cyproducer.wire.primitives import untrack
from cyproducer.wire.responses import NO_TOPIC_ID, PartitionInfo, TopicInfo


class Merged(NamedTuple):
    """What a response changed."""

    #: Whether the set of partitions changed, the topic was replaced, or its id became known.
    changed: bool
    #: Whether the topic now has another id: it was deleted and created again.
    recreated: bool
    #: Previously known partitions that now have another leader, or none.
    moved: list[int]
    #: Whether the partitions, leaders or whether the topic is internal are not what a view had before.
    written: bool


_NOTHING = Merged(False, False, [], False)

OLDER_ANSWERS = 10
"""After this many responses in a row with older leader epochs they are accepted, if topics have no ids."""


class TopicState:
    """One topic; ``leaders`` and ``epochs`` are read-only outside, the methods write them."""

    __slots__ = (
        "_last_partitions",
        "_older_answers",
        "_shared",
        "epochs",
        "error_at_ms",
        "error_code",
        "is_internal",
        "last_used_ms",
        "leaders",
        "missing_since_ms",
        "topic_id",
    )

    def __init__(self, now_ms: float) -> None:
        self.last_used_ms = now_ms
        #: 16 bytes, ``NO_TOPIC_ID`` while it is unknown.
        self.topic_id = NO_TOPIC_ID
        self.is_internal = False
        #: The error code of the last response, and when the last one other than 0 came.
        self.error_code = 0
        self.error_at_ms = -math.inf
        #: When the first of the latest responses said that the topic is unknown; infinity if it did not.
        self.missing_since_ms = math.inf
        #: Partition -> leader, -1 without one. Gaps are possible while a topic is being created.
        self.leaders: dict[int, int] = {}
        #: Partition -> newest leader epoch seen, -1 while brokers report none.
        self.epochs: dict[int, int] = {}
        # The leaders that a view shares. While ``leaders`` is this object, copy it before writing.
        self._shared: dict[int, int] | None = None
        # The partitions of the last merged response; None if merging them again could change something. The
        # rest of the response is not kept: with 100,000 topics, the garbage collector would visit it too.
        self._last_partitions: list[PartitionInfo] | None = None
        # Number of responses in a row with an older leader epoch.
        self._older_answers = 0
        # It refers to numbers, bytes and collections of them: to nothing that could refer back.
        untrack(self)

    def merge(self, info: TopicInfo) -> Merged:
        """Merges a response without error; an older leader epoch does not replace a newer one.

        A topic with another id is another topic: nothing of the old one is kept. Without ids (before Kafka
        2.8) a response does not show that a topic was deleted and created again since the last one. The new
        topic begins with epoch 0 and would never get a leader if the old epochs stayed. A broker that lags
        behind also reports older epochs, but not ``OLDER_ANSWERS`` times in a row.
        """
        if (
            info.partitions == self._last_partitions
            and info.topic_id == self.topic_id
            and info.is_internal == self.is_internal
        ):
            return _NOTHING
        recreated = NO_TOPIC_ID != self.topic_id != info.topic_id != NO_TOPIC_ID
        old_leaders = {} if recreated else self.leaders
        tells_older = info.topic_id == NO_TOPIC_ID and any(
            0 <= epoch < self.epochs.get(partition, -1) for _, partition, _, epoch in info.partitions
        )
        self._older_answers = self._older_answers + 1 if tells_older else 0
        believed = self._older_answers >= OLDER_ANSWERS
        old_epochs = {} if recreated or believed else self.epochs
        leaders: dict[int, int] = {}
        epochs: dict[int, int] = {}
        moved = []
        for _, partition, leader, epoch in info.partitions:
            known_epoch = old_epochs.get(partition, -1)
            known_leader = old_leaders.get(partition)
            if epoch < known_epoch:
                if epoch >= 0 and known_leader is not None:
                    leader = known_leader
                epoch = known_epoch
            leaders[partition] = leader
            epochs[partition] = epoch
            if known_leader is not None and known_leader != leader:
                moved.append(partition)
        if info.topic_id != NO_TOPIC_ID and not leaders.keys() >= old_leaders.keys():
            # The same topic never loses partitions: this broker lags behind the one that reported more.
            leaders = {**old_leaders, **leaders}
            epochs = {**old_epochs, **epochs}
        identified = self.topic_id == NO_TOPIC_ID != info.topic_id
        changed = recreated or identified or leaders.keys() != self.leaders.keys()
        written = changed or bool(moved) or self.is_internal != info.is_internal
        self.leaders = leaders
        self.epochs = epochs
        self.is_internal = info.is_internal
        if info.topic_id != NO_TOPIC_ID:
            self.topic_id = info.topic_id
        self._last_partitions = None if tells_older and not believed else info.partitions
        return Merged(changed, recreated, moved, written)

    def move_leader(self, partition: int, node_id: int, leader_epoch: int) -> None:
        """Sets another leader for one partition."""
        if self._shared is self.leaders:
            self.leaders = dict(self.leaders)
        self.leaders[partition] = node_id
        self.epochs[partition] = leader_epoch

    def share_leaders(self) -> Mapping[int, int]:
        """Returns the leaders for a reader in another thread: this mapping is not written to any more."""
        self._shared = self.leaders
        return self.leaders

    def forget_partitions(self) -> None:
        """The topic is not available; its old partitions say nothing about its future ones."""
        self.leaders = {}
        self._last_partitions = None

    def forget_epochs(self) -> None:
        """The topic may be another one when it is seen again; its leaders are kept until then."""
        self.epochs = {}
        self._last_partitions = None
