"""Consumer groups of KIP-848: the coordinator assigns partitions, and members learn this in heartbeats.

Owns epochs, assignments, sessions, and the way of a partition from one member to another. Does not own which
group is of this protocol (``groups``) or the requests (``modern_group_requests``). There is no I/O.

A change of members, of subscriptions or of subscribed topics increments the group's epoch, and makes a target
assignment for it. Each member comes to its target by itself: it first gives up partitions in its old epoch
(UnrevokedPartitions), and then gets the new epoch, and those partitions that no other member has. Until it
has all of them, its state is UnreleasedPartitions.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.base_group import CONSUMER, EMPTY, STABLE, BaseGroup
from cyproducer.testing.broker.group_offsets import Group, Member
from cyproducer.testing.broker.partitions import Cluster
from cyproducer.testing.broker.patterns import matches
from cyproducer.testing.broker.world import NS_PER_MS, World

ASSIGNING, RECONCILING = "Assigning", "Reconciling"
UNREVOKED, UNRELEASED = "UnrevokedPartitions", "UnreleasedPartitions"
LEAVES, LEAVES_FOR_NOW = -1, -2
"""Member epochs of a member that leaves, and of a static member that will rejoin."""
SESSION_MS: Final = 45_000
"""``group.consumer.session.timeout.ms``"""

Part = tuple[bytes, int]
"""A topic id and a partition."""
Parts = frozenset[Part]


UNIFORM, RANGE = "uniform", "range"
ASSIGNORS: Final = (UNIFORM, RANGE)
"""``group.consumer.assignors``; the first one is for groups whose members name none."""


class Refused(Exception):
    """The error code of a heartbeat, and its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Subscriber(Member):
    """A member; ``generation`` is its epoch."""

    def __init__(self, *, generation: int, instance: str | None, id: str) -> None:
        super().__init__(generation, instance)
        self.id = id
        self.previous = 0
        self.state = STABLE
        self.rack: str | None = None
        self.rebalance_ms = 0
        self.topics: frozenset[str] = frozenset()
        self.pattern = ""
        #: The assignor that it wants; None: any.
        self.assignor: str | None = None
        self.client_id = ""
        self.host = ""
        self.assigned: Parts = frozenset()
        #: Partitions that the member has to give up, and may still read.
        self.revoking: Parts = frozenset()
        #: When they must have been given up.
        self.deadline_ns = -1
        self.expires_ns = 0
        self.timer_ns = -1

    def subscribes(self, topic: str) -> bool:
        return topic in self.topics or (bool(self.pattern) and matches(self.pattern, topic))


class ModernGroup(BaseGroup):
    """A group; see the module's docstring."""

    kind = "consumer"

    def __init__(self, log: Group, world: World, cluster: Cluster) -> None:
        super().__init__(log, world)
        self.protocol_type = CONSUMER
        self.subscribed = set()
        self.epoch = 0
        #: The target assignment and its epoch.
        self.target: dict[str, Parts] = {}
        self.target_epoch = 0
        #: Subscribed topics that exist: id and number of partitions.
        self._topics: dict[str, Part] = {}
        self._cluster = cluster

    @property
    def members(self) -> dict[str, Subscriber]:
        return cast("dict[str, Subscriber]", self.log.members)

    @property
    def assignor(self) -> str:
        """The assignor of the next assignment: the one that most members name."""
        votes = [member.assignor for member in self.members.values() if member.assignor]
        return max(ASSIGNORS, key=votes.count)

    def heartbeat(self, beat: Any, client_id: str, host: str) -> tuple[Subscriber, bool]:
        """Handles a request, which has a member id. Returns the member, and whether the response has its
        assignment. Raises ``Refused``."""
        if beat.member_epoch < 0:
            return self._leave(beat), False
        parts = beat.topic_partitions
        owned = (
            None
            if parts is None
            else frozenset((each.topic_id, n) for each in parts for n in each.partitions)
        )
        member = self._member(beat, owned)
        before = member.assigned
        member.client_id, member.host = client_id, host
        is_new = self._update(member, beat)
        if self._refresh() or is_new:
            self.epoch += 1
        if self.epoch > self.target_epoch:
            self._assign()
        self._reconcile(member, owned)
        self._keep(member)
        self._note()
        names, pattern = beat.subscribed_topic_names, beat.subscribed_topic_regex
        is_full = beat.rebalance_timeout_ms >= 0 and owned is not None and (names, pattern) != (None, None)
        return member, beat.member_epoch == 0 or is_full or member.assigned != before

    # Members

    def _member(self, beat: Any, owned: Parts | None) -> Subscriber:
        """Returns the member that sends a heartbeat. A new one is not among the group's members yet."""
        known, epoch = self.members.get(beat.member_id), beat.member_epoch
        holder = None if beat.instance_id is None else self.log.holder(beat.instance_id)
        if epoch == 0:
            if holder is not None and holder != beat.member_id:
                return self._replaced(self.members[holder], beat)
            return known or Subscriber(generation=0, instance=beat.instance_id, id=beat.member_id)
        member = self._identified(beat)
        is_repeated = epoch == member.previous and owned is not None and owned <= member.assigned
        if epoch != member.generation and not is_repeated:
            text = f"The member's epoch is {member.generation}, not {epoch}: it must rejoin."
            raise Refused(ErrorCode.FENCED_MEMBER_EPOCH, text)
        return member

    def _identified(self, beat: Any) -> Subscriber:
        holder = beat.member_id if beat.instance_id is None else self.log.holder(beat.instance_id)
        if holder not in self.members:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"There is no member {beat.member_id}.")
        if holder != beat.member_id:
            raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"{beat.instance_id} belongs to another member.")
        return self.members[holder]

    def _replaced(self, old: Subscriber, beat: Any) -> Subscriber:
        """Replaces a static member that has left for now; its partitions stay with the instance."""
        if old.generation != LEAVES_FOR_NOW:
            text = f"{beat.instance_id} belongs to a member that has not left."
            raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        member = Subscriber(generation=0, instance=old.instance, id=beat.member_id)
        member.topics, member.pattern, member.assigned = old.topics, old.pattern, old.assigned
        member.assignor = old.assignor
        del self.members[old.id]
        self.members[member.id] = member
        self.target[member.id] = self.target.pop(old.id, frozenset())
        return member

    def _update(self, member: Subscriber, beat: Any) -> bool:
        """Takes over what a heartbeat says; returns whether the member is new or its subscription changed."""
        is_new = member.id not in self.members
        self.members[member.id] = member
        before = member.topics, member.pattern
        if beat.rack_id is not None:
            member.rack = beat.rack_id
        if beat.rebalance_timeout_ms >= 0:
            member.rebalance_ms = beat.rebalance_timeout_ms
        if beat.server_assignor is not None:
            member.assignor = beat.server_assignor
        if beat.subscribed_topic_names is not None:
            member.topics = frozenset(beat.subscribed_topic_names)
        if beat.subscribed_topic_regex is not None:
            member.pattern = beat.subscribed_topic_regex
        return is_new or before != (member.topics, member.pattern)

    def _leave(self, beat: Any) -> Subscriber:
        member = self._identified(beat)
        if beat.member_epoch == LEAVES:
            self._remove(member)
        else:
            member.generation, member.state, member.revoking = LEAVES_FOR_NOW, STABLE, frozenset()
        return member

    def _remove(self, member: Subscriber) -> None:
        del self.members[member.id]
        self.target.pop(member.id, None)
        self.epoch += 1
        self._note()

    def _note(self) -> None:
        """Derives the group's state and subscriptions."""
        members = self.members.values()
        self.subscribed = {topic for member in members for topic in member.topics}
        if any(member.pattern for member in members):
            self.subscribed |= {*self._topics}
        if not members:
            self.state = EMPTY
        elif self.epoch > self.target_epoch:
            self.state = ASSIGNING
        elif all(each.state == STABLE and each.generation == self.epoch for each in members):
            self.state = STABLE
        else:
            self.state = RECONCILING

    # Assignments

    def _refresh(self) -> bool:
        """Looks for subscribed topics; returns whether some are new, gone or have more partitions."""
        topics = {
            name: (topic.id, len(topic.partitions))
            for name, topic in self._cluster.topics.items()
            if any(member.subscribes(name) for member in self.members.values())
        }
        before, self._topics = self._topics, topics
        return topics != before

    def _assign(self) -> None:
        wanted = {
            name: {topic_id for topic, (topic_id, _) in self._topics.items() if member.subscribes(topic)}
            for name, member in self.members.items()
        }
        counts = dict(self._topics.values())
        if self.assignor == RANGE:
            # Kafka's order: static members come first, in the order of their instance ids.
            ranked = sorted(
                self.members.values(), key=lambda each: (each.instance is None, each.instance or each.id)
            )
            self.target = _range({member.id: wanted[member.id] for member in ranked}, counts)
        else:
            self.target = _uniform(wanted, counts, self.target)
        self.target_epoch = self.epoch

    def _reconcile(self, member: Subscriber, owned: Parts | None) -> None:
        """Brings a member one step nearer to its target. ``owned``: what it still has, if it says so."""
        epoch = member.generation
        if member.state == UNREVOKED:
            if owned is None or owned & member.revoking:
                return
            epoch += 1
        elif member.state == STABLE and epoch == self.target_epoch:
            return
        others = [each for each in self.members.values() if each is not member]
        held = frozenset[Part]().union(*(each.assigned | each.revoking for each in others))
        target = self.target.get(member.id, frozenset())
        kept, revoking = member.assigned & target, member.assigned - target
        if revoking and (owned is None or owned & revoking):
            member.state, member.assigned, member.revoking = UNREVOKED, kept, revoking
            self._expect(member)
        else:
            member.state = UNRELEASED if target & held else STABLE
            member.assigned, member.revoking = kept | (target - held), frozenset()
            epoch = self.target_epoch
        if epoch != member.generation:
            member.previous, member.generation = member.generation, epoch

    def _expect(self, member: Subscriber) -> None:
        """Starts the rebalance timeout, within which a member has to give up partitions."""
        member.deadline_ns = self._world.now_ns + member.rebalance_ms * NS_PER_MS
        self._world.at(member.deadline_ns, self._fence, member, member.deadline_ns)

    def _fence(self, member: Subscriber, deadline_ns: int) -> None:
        is_late = member.state == UNREVOKED and member.deadline_ns == deadline_ns
        if is_late and self.members.get(member.id) is member:
            self._remove(member)

    # Offsets

    def commit_refusal(self, generation: int, member_id: str, instance: str | None = None) -> int:
        if generation < 0 and not self.members:
            return ErrorCode.NO_ERROR
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NO_ERROR if generation == member.generation else ErrorCode.STALE_MEMBER_EPOCH

    # Sessions

    def _keep(self, member: Subscriber) -> None:
        """Restarts a member's session. The member has one timer, which checks the session when it fires."""
        member.expires_ns = self._world.now_ns + SESSION_MS * NS_PER_MS
        if member.timer_ns < 0:
            member.timer_ns = self._world.at(member.expires_ns, self._look, member, member.expires_ns)

    def _look(self, member: Subscriber, timer_ns: int) -> None:
        if timer_ns != member.timer_ns or self.members.get(member.id) is not member:
            return
        member.timer_ns = -1
        if self._world.now_ns < member.expires_ns:
            member.timer_ns = self._world.at(member.expires_ns, self._look, member, member.expires_ns)
        else:
            self._remove(member)

    def resign(self) -> bool:
        for member in self.members.values():
            member.timer_ns, member.deadline_ns = -1, -1
        return True

    def loaded(self) -> None:
        for member in self.members.values():
            self._keep(member)
            self._expect(member)

    def close(self) -> None:
        self.members.clear()


def _range(wanted: Mapping[str, set[bytes]], counts: Mapping[bytes, int]) -> dict[str, Parts]:
    """Returns an assignment that gives each member consecutive partitions of each of its topics, so that
    members with equal subscriptions have the same partitions of topics with equally many. ``wanted``: each
    member's topics, in the order of the members; ``counts``: the number of partitions of each topic."""
    found: dict[str, set[Part]] = {name: set() for name in wanted}
    for topic, count in counts.items():
        willing = [name for name, topics in wanted.items() if topic in topics]
        for place, name in enumerate(willing):
            # The first members have one partition more than the others.
            least, more = divmod(count, len(willing))
            start = place * least + min(place, more)
            found[name] |= {(topic, index) for index in range(start, start + least + (place < more))}
    return {name: frozenset(parts) for name, parts in found.items()}


def _uniform(
    wanted: Mapping[str, set[bytes]], counts: Mapping[bytes, int], before: Mapping[str, Parts]
) -> dict[str, Parts]:
    """Returns an assignment that gives members as equal numbers of partitions as their subscriptions allow,
    and moves few. ``wanted``: each member's topics; ``counts``: the number of partitions of each topic."""
    found: dict[str, set[Part]] = {
        name: {part for part in before.get(name, ()) if part[0] in topics} for name, topics in wanted.items()
    }
    owners = {part: name for name, parts in found.items() for part in parts}
    every = [(topic, index) for topic, count in counts.items() for index in range(count)]
    is_moving = True
    while is_moving:
        is_moving = False
        # Partitions without a member come first, so that fewer others move.
        for part in sorted(every, key=owners.__contains__):
            willing = [name for name, topics in wanted.items() if part[0] in topics]
            least = min(willing, key=lambda name: len(found[name]), default=None)
            owner = owners.get(part)
            if least is None or (owner is not None and len(found[owner]) <= len(found[least]) + 1):
                continue
            if owner is not None:
                found[owner].remove(part)
            found[least].add(part)
            owners[part], is_moving = least, True
    return {name: frozenset(parts) for name, parts in found.items()}
