"""What a group of either protocol has: its name, its log, its subscriptions, and the expiry of its offsets.

Does not own members and assignments: ``groups`` has the classic protocol, ``modern_groups`` that of KIP-848.
"""

from abc import ABC, abstractmethod
from typing import Final

from cyproducer.testing.broker.group_offsets import Group
from cyproducer.testing.broker.world import NS_PER_MS, World

EMPTY: Final = "Empty"
STABLE: Final = "Stable"
CONSUMER: Final = "consumer"
"""The protocol type of groups whose members subscribe to topics."""


class BaseGroup(ABC):
    """A group; see the module's docstring."""

    #: "classic" or "consumer", as in ListGroups (KIP-848).
    kind: str

    def __init__(self, log: Group, world: World) -> None:
        self.log = log
        self.state = EMPTY
        #: The topics that the members subscribe to; None if this is unknown.
        self.subscribed: set[str] | None = None
        #: When the retention of an Empty group's offsets began; None: when each was committed.
        self.empty_ns: int | None = None
        #: The protocol type of the members, or of the last members; empty if there was no member.
        self.protocol_type = ""
        #: Ids that new members have received, and have not joined with yet.
        self.told_ids: set[str] = set()
        self._world = world

    @property
    def name(self) -> str:
        return self.log.name

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member subscribes to a topic. If this is unknown, members of a consumer group do."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed

    def expire(self, retention_ms: int) -> None:
        """Deletes the offsets that are too old (KIP-211): ``retention_ms`` after the group became Empty, or
        after they were committed if the group never had members, or if its members do not subscribe to the
        topic. Offsets of partitions with pending offsets are kept."""
        log = self.log
        for place, offset in list(log.committed.items()):
            if self.is_subscribed(place[0]) or log.is_unstable(place):
                continue
            since_ns, kept_ms = offset.committed_ns, offset.retention_ms
            if kept_ms is None:
                kept_ms = retention_ms
                if self.state == EMPTY and self.empty_ns is not None:
                    since_ns = self.empty_ns
            if self._world.now_ns - since_ns >= kept_ms * NS_PER_MS:
                log.forget(place)

    @abstractmethod
    def commit_refusal(self, generation: int, member_id: str, instance: str | None) -> int:
        """Returns the error code for a commit. While a group has members, only its members can commit."""

    @abstractmethod
    def resign(self) -> bool:
        """Handles a coordinator that has lost its role. Restores the state in its log; returns False if there
        is none."""

    @abstractmethod
    def loaded(self) -> None:
        """Restarts the members' sessions after a new coordinator has loaded the group."""

    @abstractmethod
    def close(self) -> None:
        """Removes all members and invalidates all timers."""
