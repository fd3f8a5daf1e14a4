"""The consumer groups of a cluster: joining, generations, assignments and sessions.

Owns the states of classic groups and their timers, and which protocol a group has. Does not own groups of
KIP-848 (``modern_groups``), the table of members and the offsets (``group_offsets``), which broker
coordinates a group (``homes``) or the requests (``group_requests``). All times are those of the ``World``.
There is no I/O.

The states of a group::

    Empty --------------> PreparingRebalance   a member joins
    PreparingRebalance -> CompletingRebalance  all members have joined, or a timeout: a new generation
    CompletingRebalance -> Stable              the leader has sent the assignment
    Stable -------------> PreparingRebalance   a member joins, leaves or is lost
    CompletingRebalance -> PreparingRebalance  a member joins, leaves or is lost
    PreparingRebalance -> Empty                no member is left

A group that does not exist is Dead. The coordinator writes to its log when a group becomes Stable or Empty.
If the coordinator loses its role, the next one continues from that state.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Final, NamedTuple, cast

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.base_group import CONSUMER, EMPTY, STABLE, BaseGroup
from cyproducer.testing.broker.group_offsets import Group, Member, Offset, Offsets
from cyproducer.testing.broker.homes import GROUP, Home, Told
from cyproducer.testing.broker.modern_groups import ModernGroup
from cyproducer.testing.broker.transactions import Place
from cyproducer.testing.broker.world import NS_PER_MS

PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
DEAD: Final = "Dead"
NEW_MEMBER_MS: Final = 5 * 60_000
"""How long a new member can wait for its first generation, regardless of its session timeout."""


class Join(NamedTuple):
    """The request of a new member to join, or of a member to rejoin."""

    #: Empty for a new member.
    member: str
    #: The static instance id of the member (KIP-345).
    instance: str | None
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    #: Protocol -> metadata, the preferred protocol first.
    protocols: dict[str, bytes]
    client_id: str
    host: str
    #: A new member first receives its id, and then joins with it (KIP-394).
    id_first: bool
    #: The client supports ``Joined.skips``.
    can_skip: bool


class Joined(NamedTuple):
    """The response to ``Join``."""

    code: int
    member: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    #: For the leader: all members.
    members: Sequence["Participant"] = ()
    #: The leader must keep the assignment (KIP-814).
    skips: bool = False


class Synced(NamedTuple):
    """The response to SyncGroup."""

    code: int
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


JoinTold = Callable[[Joined], None]
SyncTold = Callable[[Synced], None]


class Participant(Member):
    """A member, as its coordinator knows it."""

    def __init__(self, id: str, generation: int, request: Join) -> None:
        super().__init__(generation, request.instance)
        self.id = id
        self.client_id = request.client_id
        self.host = request.host
        self.session_ms = request.session_ms
        self.rebalance_ms = request.rebalance_ms
        self.protocols = request.protocols
        self.assignment: bytes = b""
        #: The member has not been in a generation yet.
        self.is_new = True
        self.has_synced = False
        #: The callbacks of the member's waiting JoinGroup and SyncGroup requests.
        self.join: JoinTold | None = None
        self.sync: SyncTold | None = None
        #: When the member's session expires, and when the timer that checks it fires.
        self.expires_ns = 0
        self.timer_ns = -1

    def answer_join(self, answer: Joined) -> None:
        """Responds to the waiting JoinGroup request, if there is one."""
        told, self.join = self.join, None
        if told is not None:
            told(answer)

    def answer_sync(self, answer: Synced) -> None:
        """Responds to the waiting SyncGroup request, if there is one."""
        told, self.sync = self.sync, None
        if told is not None:
            told(answer)

    def fail(self, code: int) -> None:
        """Responds to the waiting requests with an error."""
        self.answer_join(Joined(code, self.id))
        self.answer_sync(Synced(code))

    def offers(self, protocols: Mapping[str, bytes]) -> bool:
        """Whether these are the member's protocols, with the same metadata and in the same order."""
        return list(self.protocols.items()) == list(protocols.items())


class Stored(NamedTuple):
    """The state of a group that a coordinator has written to its log."""

    generation: int
    protocol_type: str
    protocol: str | None
    leader: str
    members: dict[str, Participant]


class ConsumerGroup(BaseGroup):
    """A group; see the module's docstring."""

    kind = "classic"

    def __init__(self, groups: "Groups", log: Group) -> None:
        super().__init__(log, groups.world)
        self.groups = groups
        self.generation = 0
        #: The protocol that the members of this generation use.
        self.protocol: str | None = None
        self.leader = ""
        #: Whether a first rebalance is waiting for more members.
        self._is_gathering = False
        self._has_newcomers = False
        #: Counts rebalances, so that timers of an earlier rebalance have no effect.
        self._turn = 0
        self._stored: Stored | None = None

    @property
    def exists(self) -> bool:
        """Whether the group has had members, has sent an id to a new member, or has offsets."""
        return bool(self.generation or self.members or self.told_ids) or self.log.has_offsets

    @property
    def members(self) -> dict[str, Participant]:
        return cast("dict[str, Participant]", self.log.members)

    # Joining

    def join(self, request: Join, told: JoinTold) -> None:
        """Responds at once or when the next generation begins."""
        if code := self._join_refusal(request):
            told(Joined(code, request.member))
        elif request.member:
            self._join_again(request, told)
        elif request.instance is not None:
            holder = self.log.holder(request.instance)
            member = self.groups.new_id(request.instance)
            if holder is None:
                self._add(member, request, told)
            else:
                self._replace(self.members[holder], member, request, told)
        else:
            member = self.groups.new_id(request.client_id)
            if request.id_first:
                self.told_ids.add(member)
                self._world.after(request.session_ms, self._forget, member)
                told(Joined(ErrorCode.MEMBER_ID_REQUIRED, member))
            else:
                self._add(member, request, told)

    def _join_refusal(self, request: Join) -> int:
        members, most = self.members, self.groups.max_size
        holder = None if request.instance is None else self.log.holder(request.instance)
        is_new = request.member not in members and holder is None
        if most is not None and is_new and len(members) >= most:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not members:
            return ErrorCode.NO_ERROR
        common = self._common()
        if request.protocol_type != self.protocol_type or not any(
            each in common for each in request.protocols
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NO_ERROR

    def _join_again(self, request: Join, told: JoinTold) -> None:
        if request.member in self.told_ids and request.instance is None:
            self._add(request.member, request, told)
            return
        code = self.log.stranger(self.generation, request.member, request.instance)
        if code:
            told(Joined(code, request.member))
            return
        member = self.members[request.member]
        is_same = member.offers(request.protocols)
        if is_same and (self.state == COMPLETING or (self.state == STABLE and member.id != self.leader)):
            # The member has not received the last response, or sends a request that is not necessary.
            self._keep(member)
            told(self._joined(member))
            return
        # The connection of an earlier request of the member is lost, or should be.
        member.answer_join(Joined(ErrorCode.REBALANCE_IN_PROGRESS, member.id))
        member.protocols = request.protocols
        member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms
        member.join = told
        self._stir()

    def _add(self, member_id: str, request: Join, told: JoinTold) -> None:
        self.told_ids.discard(member_id)
        member = Participant(member_id, self.generation, request)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = member
        if not self.leader:
            self.leader = member_id
        member.join = told
        self._has_newcomers = True
        self._keep(member)
        self._stir()

    def _replace(self, old: Participant, member_id: str, request: Join, told: JoinTold) -> None:
        """Replaces a restarted static member: it gets another id, and clients with the old id are fenced."""
        leads = self.leader == old.id
        del self.members[old.id]
        old.fail(ErrorCode.FENCED_INSTANCE_ID)
        member = Participant(member_id, self.generation, request)
        member.assignment, member.has_synced, member.is_new = old.assignment, old.has_synced, old.is_new
        self.members[member_id] = member
        if leads:
            self.leader = member_id
        self._keep(member)
        if self.state != STABLE or self._elected() != self.protocol:
            member.join = told
            self._stir()
            return

        def answer(code: int) -> None:
            if code:
                told(Joined(code, request.member))
            elif not leads:
                told(self._joined(member))
            elif request.can_skip:
                told(self._joined(member)._replace(skips=True))
            else:
                # The client believes that it is a follower, and keeps the assignment.
                told(self._joined(member)._replace(leader=old.id, members=()))

        self.groups.homes.write(self.log.home, self._store, answer)

    def _joined(self, member: Participant) -> Joined:
        return Joined(
            ErrorCode.NO_ERROR,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            list(self.members.values()) if member.id == self.leader else (),
        )

    def _forget(self, member_id: str) -> None:
        """Forgets an id if the new member that received it has not joined."""
        if member_id in self.told_ids:
            self.told_ids.discard(member_id)
            self._try_complete()

    # Rebalancing

    def _stir(self) -> None:
        """Begins a rebalance, or completes it if no member is missing any more."""
        if self.state == PREPARING:
            self._try_complete()
        else:
            self._prepare()

    def _prepare(self) -> None:
        was, self.state = self.state, PREPARING
        self._turn += 1
        if was == COMPLETING:
            for member in list(self.members.values()):
                member.assignment = b""
                member.answer_sync(Synced(ErrorCode.REBALANCE_IN_PROGRESS))
        if was != EMPTY:
            self._wait()
            self._try_complete()
        elif self.groups.initial_delay_ms > 0:
            self._is_gathering = True
            self._gather(self._rebalance_ms())
        else:
            self._complete()

    def _rebalance_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def _wait(self, least_ms: int = 0) -> None:
        self._world.after(max(least_ms, self._rebalance_ms()), self._time_out, self._turn)

    def _time_out(self, turn: int) -> None:
        if turn == self._turn and self.state == PREPARING:
            self._complete()

    def _gather(self, left_ms: float) -> None:
        """Waits for more members, and again if some have joined, but not longer than ``left_ms``."""
        delay_ms = min(self.groups.initial_delay_ms, left_ms)
        self._has_newcomers = False
        self._world.after(delay_ms, self._gathered, self._turn, left_ms - delay_ms)

    def _gathered(self, turn: int, left_ms: float) -> None:
        if turn != self._turn:
            return
        if self._has_newcomers and left_ms > 0:
            self._gather(left_ms)
        else:
            self._complete()

    def _try_complete(self) -> None:
        if self.state != PREPARING or self._is_gathering or self.told_ids:
            return
        if all(member.join is not None for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Begins a generation with the members that have joined, and with static members."""
        self._is_gathering = False
        self._turn += 1
        for member in list(self.members.values()):
            if member.join is None and member.instance is None:
                self._drop(member)
        members = self.members
        if members and members[self.leader].join is None:
            joined = next((member.id for member in members.values() if member.join is not None), None)
            if joined is None:
                # All members are static: they may rejoin until their sessions expire.
                self._wait(least_ms=1)
                return
            self.leader = joined
        self.generation += 1
        if not members:
            self.state, self.protocol = EMPTY, None
            self.empty_ns = self._world.now_ns
            self.subscribed = self._subscriptions()
            self.groups.homes.write(self.log.home, self._store, _ignore)
            return
        self.state, self.protocol = COMPLETING, self._elected()
        self.subscribed = self._subscriptions()
        for member in members.values():
            member.generation = self.generation
            member.has_synced = member.is_new = False
        for member in list(members.values()):
            self._keep(member)
            member.answer_join(self._joined(member))
        self._world.after(self._rebalance_ms(), self._expect_sync, self._turn)

    def _expect_sync(self, turn: int) -> None:
        """Drops members that have not requested their assignment."""
        if turn != self._turn:
            return
        missing = [member for member in self.members.values() if not member.has_synced]
        for member in missing:
            self._drop(member)
        if missing:
            self._prepare()

    def _common(self) -> set[str]:
        """Returns the protocols that all members support. There is at least one, because other members
        cannot join."""
        return set.intersection(*(set(member.protocols) for member in self.members.values()))

    def _elected(self) -> str:
        """Returns the protocol with the most votes. Each member votes for its first protocol that all members
        support."""
        common, members = self._common(), self.members.values()
        votes = Counter(next(each for each in member.protocols if each in common) for member in members)
        return votes.most_common(1)[0][0]

    def _subscriptions(self) -> set[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        try:
            return {
                topic
                for member in self.members.values()
                for topic in _topics(member.protocols.get(self.protocol or "", b""))
            }
        except ValueError:
            return None

    # Retention

    def expire(self, retention_ms: int) -> None:
        is_stable = self.protocol_type == CONSUMER and self.state == STABLE
        if self.state == EMPTY or (is_stable and self.subscribed is not None):
            super().expire(retention_ms)

    # Members

    def sync(
        self,
        generation: int,
        member_id: str,
        instance: str | None,
        protocols: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
        told: SyncTold,
    ) -> None:
        """Responds with the member's assignment, once the leader has sent it. ``protocols`` are the type and
        the name that the member expects; None if it does not send one."""
        own = (self.protocol_type, self.protocol)
        if code := self.log.stranger(generation, member_id, instance):
            told(Synced(code))
        elif any(each not in (None, mine) for each, mine in zip(protocols, own, strict=True)):
            told(Synced(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif self.state == PREPARING:
            told(Synced(ErrorCode.REBALANCE_IN_PROGRESS))
        else:
            member = self.members[member_id]
            member.answer_sync(Synced(ErrorCode.REBALANCE_IN_PROGRESS))
            member.has_synced = True
            member.sync = told
            if self.state == STABLE:
                self._hand_out(member)
            elif member_id == self.leader:
                self._assign(assignments)

    def _assign(self, assignments: Mapping[str, bytes]) -> None:
        turn = self._turn

        def apply() -> int:
            if turn == self._turn and self.state == COMPLETING:
                for member in self.members.values():
                    member.assignment = assignments.get(member.id, b"")
                self.state = STABLE
                self._store()
            return ErrorCode.NO_ERROR

        def then(code: int) -> None:
            if not code and turn == self._turn and self.state == STABLE:
                for member in list(self.members.values()):
                    self._hand_out(member)

        self.groups.homes.write(self.log.home, apply, then)

    def _hand_out(self, member: Participant) -> None:
        if member.sync is not None:
            self._keep(member)
            member.answer_sync(
                Synced(ErrorCode.NO_ERROR, member.assignment, self.protocol_type, self.protocol)
            )

    def heartbeat(self, generation: int, member_id: str, instance: str | None) -> int:
        """Returns an error code. During a rebalance, the code makes the member rejoin."""
        if code := self.log.stranger(generation, member_id, instance):
            return code
        self._keep(self.members[member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state == PREPARING else ErrorCode.NO_ERROR

    def leave(self, member_id: str, instance: str | None) -> int:
        """Returns an error code. A static member can leave with only its instance id and an empty id."""
        if instance is None and member_id in self.told_ids:
            self._forget(member_id)
            return ErrorCode.NO_ERROR
        if instance is not None and not member_id:
            member_id = self.log.holder(instance) or ""
        if code := self.log.stranger(self.generation, member_id, instance):
            return code
        self._lose(self.members[member_id])
        return ErrorCode.NO_ERROR

    def commit_refusal(self, generation: int, member_id: str, instance: str | None) -> int:
        if generation < 0 and self.state == EMPTY:
            return ErrorCode.NO_ERROR
        if code := self.log.stranger(generation, member_id, instance):
            return code
        self._keep(self.members[member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state == COMPLETING else ErrorCode.NO_ERROR

    def _lose(self, member: Participant) -> None:
        self._drop(member)
        self._stir()

    def _drop(self, member: Participant) -> None:
        del self.members[member.id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), "")
        member.fail(ErrorCode.UNKNOWN_MEMBER_ID)

    # Sessions

    def _keep(self, member: Participant) -> None:
        """Restarts a member's session. The member has one timer, which checks the session when it fires."""
        wait_ms = NEW_MEMBER_MS if member.is_new else member.session_ms
        member.expires_ns = self._world.now_ns + wait_ms * NS_PER_MS
        if not 0 <= member.timer_ns <= member.expires_ns:
            self._look_later(member)

    def _look_later(self, member: Participant) -> None:
        member.timer_ns = member.expires_ns
        self._world.at(member.timer_ns, self._look, member, member.timer_ns)

    def _look(self, member: Participant, timer_ns: int) -> None:
        if timer_ns != member.timer_ns or self.members.get(member.id) is not member:
            return
        member.timer_ns = -1
        if self._world.now_ns < member.expires_ns:
            self._look_later(member)
        elif not member.is_new and (member.join is not None or member.sync is not None):
            # A member that waits for a response cannot send heartbeats.
            self._keep(member)
        else:
            self._lose(member)

    # Moves of the coordinator

    def _store(self) -> int:
        members = {name: copy(member) for name, member in self.members.items()}
        for member in members.values():
            member.join = member.sync = None
        self._stored = Stored(self.generation, self.protocol_type, self.protocol, self.leader, members)
        return ErrorCode.NO_ERROR

    def resign(self) -> bool:
        for member in self.members.values():
            member.fail(ErrorCode.NOT_COORDINATOR)
        self.close()
        if self._stored is None:
            return False
        self.generation, self.protocol_type, self.protocol, self.leader, members = self._stored
        for name, member in members.items():
            restored = self.members[name] = copy(member)
            restored.timer_ns = -1
        self.state = STABLE if members else EMPTY
        self.subscribed = self._subscriptions()
        return True

    def loaded(self) -> None:
        for member in self.members.values():
            self._keep(member)

    def close(self) -> None:
        self._turn += 1
        self._is_gathering = False
        self.members.clear()
        self.told_ids.clear()
        self.state = DEAD


def _ignore(code: int) -> None:
    pass


def _topics(subscription: bytes) -> list[str]:
    """Returns the topics of a member's metadata, which begins with a version and the topics in all versions.
    Raises ``ValueError``."""
    try:
        version, count = struct.unpack_from(">hi", subscription)
        topics, at = [], 6
        for _ in range(count):
            (size,) = struct.unpack_from(">h", subscription, at)
            at += 2
            (topic,) = struct.unpack_from(f"{size}s", subscription, at)
            at += size
            topics.append(topic.decode())
    except struct.error as error:
        raise ValueError(str(error)) from None
    if version < 0:
        raise ValueError(f"a subscription of version {version}")
    return topics


class Groups:
    """All consumer groups; times in milliseconds. The caller has checked which broker coordinates a group."""

    def __init__(self, offsets: Offsets) -> None:
        self.offsets = offsets
        self.homes = offsets.homes
        self.world = offsets.world
        #: ``group.initial.rebalance.delay.ms``; Kafka's default is 3 seconds.
        self.initial_delay_ms = 0.0
        #: ``group.min.session.timeout.ms`` and ``group.max.session.timeout.ms``.
        self.min_session_ms = 6_000
        self.max_session_ms = 30 * 60_000
        #: ``group.max.size``; None: there is no limit.
        self.max_size: int | None = None
        #: ``offset.metadata.max.bytes``
        self.max_metadata = 4096
        #: ``offsets.retention.minutes``
        self.offsets_retention_ms = 7 * 24 * 60 * 60_000
        self._groups: dict[str, BaseGroup] = {}
        self.homes.on_resigned[GROUP] = self._resigned
        self.homes.on_loaded[GROUP] = self._loaded

    def new_id(self, prefix: str) -> str:
        """Returns the id of a new member."""
        # Imported here: it takes long, and most clusters have no groups.
        import uuid

        return f"{prefix}-{uuid.UUID(int=self.world.random.getrandbits(128), version=4)}"

    def find(self, name: str) -> ConsumerGroup | None:
        """Returns a classic group, or None if it does not exist (Dead)."""
        found = self.any(name)
        return found if isinstance(found, ConsumerGroup) else None

    def modern(self, name: str) -> ModernGroup | None:
        """Returns a group of KIP-848's protocol, or None if it does not exist."""
        found = self.any(name)
        return found if isinstance(found, ModernGroup) else None

    def any(self, name: str) -> BaseGroup | None:
        """Returns a group of either protocol, or None if it does not exist."""
        found = self._groups.get(name)
        if found is None and name in self.offsets.groups:
            found = self._open(name)
        return None if isinstance(found, ConsumerGroup) and not found.exists else found

    def _open(self, name: str) -> ConsumerGroup:
        """Returns a classic group that may be new. An Empty group of the other protocol becomes classic."""
        found = self._groups.get(name)
        if not isinstance(found, ConsumerGroup):
            found = self._groups[name] = ConsumerGroup(self, self.offsets.group(name))
        return found

    def modernized(self, name: str) -> ModernGroup | None:
        """Returns a group of KIP-848's protocol that may be new; None if there is a classic group that has
        members."""
        found = self.any(name)
        if isinstance(found, ModernGroup):
            return found
        if found is not None and found.state != EMPTY:
            return None
        if name in self._groups:
            self._groups[name].close()
        group = ModernGroup(self.offsets.group(name), self.world, self.offsets.transactions.cluster)
        self._groups[name] = group
        return group

    def __iter__(self) -> Iterator[BaseGroup]:
        """Iterates over the groups that exist."""
        for name in sorted({*self._groups, *self.offsets.groups}):
            found = self.any(name)
            if found is not None:
                yield found

    def join(self, name: str, request: Join, told: JoinTold) -> None:
        """Joins a group. A new member creates a group that does not exist."""
        if not self.min_session_ms <= request.session_ms <= self.max_session_ms:
            told(Joined(ErrorCode.INVALID_SESSION_TIMEOUT, request.member))
            return
        group, other = self.find(name), self.modern(name)
        if other is not None and other.state != EMPTY:
            told(Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member))
            return
        if group is None and request.member:
            told(Joined(ErrorCode.UNKNOWN_MEMBER_ID, request.member))
            return
        (group or self._open(name)).join(request, told)

    def commit(
        self,
        name: str,
        generation: int,
        member: str,
        instance: str | None,
        offsets: dict[Place, Offset],
        told: Told,
    ) -> None:
        """Commits offsets. Without a member, ``generation`` is -1 and ``member`` is empty."""
        group = self.any(name)
        if group is None:
            code = ErrorCode.ILLEGAL_GENERATION if generation >= 0 else ErrorCode.NO_ERROR
        else:
            code = ErrorCode(group.commit_refusal(generation, member, instance))
        if code:
            told(code)
            return
        log = self.offsets.group(name)

        def apply() -> int:
            log.committed.update(offsets)
            return ErrorCode.NO_ERROR

        self.homes.write(log.home, apply, told)

    def delete(self, name: str, told: Told) -> None:
        """Deletes a group without members, and its offsets."""
        group = self.any(name)
        if group is None:
            told(ErrorCode.GROUP_ID_NOT_FOUND)
            return
        if group.state != EMPTY:
            told(ErrorCode.NON_EMPTY_GROUP)
            return

        def apply() -> int:
            if group.state != EMPTY:
                return ErrorCode.NON_EMPTY_GROUP
            self._remove(group)
            return ErrorCode.NO_ERROR

        self.homes.write(group.log.home, apply, told)

    def _remove(self, group: BaseGroup) -> None:
        group.log.committed.clear()
        # The transactions stay open, without these offsets.
        for offsets in group.log.pending.values():
            offsets.clear()
        group.close()
        self._groups.pop(group.name, None)

    def delete_offsets(
        self, name: str, places: Iterable[Place], told: Callable[[int, Mapping[Place, int]], None]
    ) -> None:
        """Deletes offsets of topics that no member subscribes to (KIP-496). ``told`` gets an error code of
        the group, and one of each partition."""
        group = self.any(name)
        if group is None:
            told(ErrorCode.GROUP_ID_NOT_FOUND, {})
            return
        if group.state != EMPTY and group.protocol_type != CONSUMER:
            told(ErrorCode.NON_EMPTY_GROUP, {})
            return
        codes = {
            place: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if group.is_subscribed(place[0])
            else ErrorCode.NO_ERROR
            for place in places
        }

        def apply() -> int:
            for place, code in codes.items():
                if not code:
                    group.log.forget(place)
            return ErrorCode.NO_ERROR

        self.homes.write(group.log.home, apply, lambda code: told(code, codes))

    def expire(self) -> None:
        """Deletes offsets that are too old, and groups that are Empty and have no offsets (KIP-211)."""
        for group in list(self):
            if self.homes.is_loaded(group.log.home):
                self.homes.write(group.log.home, partial(self._expire, group), _ignore)

    def _expire(self, group: BaseGroup) -> int:
        group.expire(self.offsets_retention_ms)
        if group.state == EMPTY and not group.told_ids and not group.log.has_offsets:
            self._remove(group)
        return ErrorCode.NO_ERROR

    def _resigned(self, home: Home) -> None:
        group = self._groups.get(home.name)
        if group is not None and not group.resign():
            del self._groups[home.name]

    def _loaded(self, home: Home) -> None:
        group = self._groups.get(home.name)
        if group is not None:
            group.loaded()
