"""Classic consumer groups of an embedded cluster: members, rebalances, sessions, offsets.

Owns the states of groups and the requests of their members. Does not own committed and pending offsets
(``group_offsets``) or which node coordinates a group (``homes``).

A group's states, as in Kafka::

    Empty                 has no members
    PreparingRebalance    waits until all members have joined, or the longest of their rebalance timeouts
    CompletingRebalance   all have joined; waits for the leader's assignment
    Stable                all have their assignment
    Dead                  was deleted

A rebalance begins when a member joins, leaves, or is silent for its session timeout. The first rebalance does
not wait for further members (``group.initial.rebalance.delay.ms`` is 0), so that tests are fast.
"""

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.group_offsets import Member, Offset
from cyproducer.testing.broker.homes import GROUP, Home
from cyproducer.testing.broker.metadata import NO_OPERATIONS
from cyproducer.testing.broker.server import LATER, Call, Handler
from cyproducer.wire.messages import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from cyproducer.wire.schema import Api

if TYPE_CHECKING:
    from cyproducer.testing.broker.cluster import EmbeddedCluster

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = (
    "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead",
)  # fmt: skip
LONGEST_SESSION_MS: Final = 1_800_000
ASKS_FOR_ID: Final = 4
"""From this version on, a new member of JoinGroup gets an id first (KIP-394)."""
SKIPS_ASSIGNMENT: Final = 9
NO_OFFSET: Final = Offset(-1, -1, "")


@dataclass(eq=False)
class GroupMember:
    """A member; times in milliseconds."""

    id: str
    instance: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocols: list[tuple[str, bytes]]
    assignment: bytes = b""
    #: JoinGroup or SyncGroup, while it waits.
    joining: Call | None = None
    syncing: Call | None = None
    heard_ns: int = 0

    def metadata(self, protocol: str) -> bytes:
        return dict(self.protocols).get(protocol, b"")


@dataclass(eq=False)
class ClassicGroup:
    """A group; see the module."""

    name: str
    state: str = EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str = ""
    members: dict[str, GroupMember] = field(default_factory=dict)
    #: Ids that were handed out, to members that have not joined.
    promised: set[str] = field(default_factory=set)
    #: Counts rebalances, so that a timer knows whether it is still meant.
    round: int = 0

    def by_instance(self, instance: str | None) -> GroupMember | None:
        """Returns the static member of an instance."""
        if instance is None:
            return None
        return next((each for each in self.members.values() if each.instance == instance), None)


class Groups:
    """All groups of a cluster."""

    def __init__(self, cluster: "EmbeddedCluster") -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.groups: dict[str, ClassicGroup] = {}
        cluster.homes.on_resigned[GROUP] = self._resigned

    def group(self, name: str) -> ClassicGroup:
        found = self.groups.get(name)
        if found is None or found.state == DEAD:
            found = self.groups[name] = ClassicGroup(name)
        return found

    def find(self, name: str) -> ClassicGroup | None:
        """Returns a group that has, or had, members, or has offsets that a transaction has committed."""
        found = self.groups.get(name)
        if found is None and name in self.cluster.offsets.groups:
            return self.group(name) if self.cluster.offsets.group(name).committed else None
        return found

    def refusal(self, call: Call, name: str, operation: str = "READ") -> int:
        """Returns why a request to a group's coordinator is refused, or NO_ERROR."""
        if not call.allowed(operation, "group", name):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        if code := call.fault():
            return code
        if not name:
            return ErrorCode.INVALID_GROUP_ID
        homes = self.cluster.homes
        return homes.code(call.node.id, homes.home(GROUP, name))

    def member_of(
        self, group: ClassicGroup | None, member_id: str, generation: int | None, instance: str | None
    ) -> GroupMember | int:
        """Returns a member, or why a request that says that it comes from it is refused."""
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        static = group.by_instance(instance)
        if static is not None and static.id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        member = group.members.get(member_id)
        if member is None or (instance is not None and static is None):
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation is not None and generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return member

    # Joining

    def join(self, call: Call) -> None:
        request, name = call.request, call.request.group_id
        code = self.refusal(call, name)
        if not code and not 0 < request.session_timeout_ms <= LONGEST_SESSION_MS:
            code = ErrorCode.INVALID_SESSION_TIMEOUT
        if not code and (not request.protocols or not request.protocol_type):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if code:
            _joined(call, code, request.member_id)
            return
        group = self.group(name)
        protocols = [(each.name, each.metadata) for each in request.protocols]
        member_id, instance = request.member_id, request.group_instance_id
        static = group.by_instance(instance)
        known = group.members.get(member_id)
        if not self._fits(group, request.protocol_type, protocols, except_for=known or static):
            _joined(call, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif not member_id:
            self._join_new(call, group, protocols, static)
        elif member_id in group.promised:
            group.promised.discard(member_id)
            self._add(call, group, member_id, protocols)
        elif static is not None and static.id != member_id:
            _joined(call, ErrorCode.FENCED_INSTANCE_ID, member_id)
        elif known is None:
            _joined(call, ErrorCode.UNKNOWN_MEMBER_ID, member_id)
        else:
            self._join_again(call, group, known, protocols)

    def _fits(
        self,
        group: ClassicGroup,
        protocol_type: str,
        protocols: list[tuple[str, bytes]],
        except_for: GroupMember | None,
    ) -> bool:
        """Whether a member has a protocol that all others have too."""
        others = [each for each in group.members.values() if each is not except_for]
        if not others:
            return True
        common = set.intersection(*({name for name, _ in each.protocols} for each in others))
        return protocol_type == group.protocol_type and any(name in common for name, _ in protocols)

    def _join_new(
        self,
        call: Call,
        group: ClassicGroup,
        protocols: list[tuple[str, bytes]],
        static: GroupMember | None,
    ) -> None:
        instance = call.request.group_instance_id
        member_id = f"{instance or call.header.client_id or ''}-{secrets.token_hex(16)}"
        if static is not None:
            self._replace(call, group, static, member_id, protocols)
        elif instance is None and call.version >= ASKS_FOR_ID:
            group.promised.add(member_id)
            self.world.after(call.request.session_timeout_ms, group.promised.discard, member_id)
            _joined(call, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add(call, group, member_id, protocols)

    def _add(
        self, call: Call, group: ClassicGroup, member_id: str, protocols: list[tuple[str, bytes]]
    ) -> None:
        request = call.request
        if not group.members:
            group.protocol_type = request.protocol_type
        member = group.members[member_id] = GroupMember(
            member_id,
            request.group_instance_id,
            call.header.client_id or "",
            f"/{call.node.host}",
            request.session_timeout_ms,
            request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms,
            protocols,
        )
        member.joining = call
        self.hear(group, member)
        self._note_members(group)
        self._rebalance(group)

    def _replace(
        self,
        call: Call,
        group: ClassicGroup,
        old: GroupMember,
        member_id: str,
        protocols: list[tuple[str, bytes]],
    ) -> None:
        """A static member has started again: it gets its place, under another id (KIP-345)."""
        leader, was_leader = group.leader, group.leader == old.id
        for waiting in (old.joining, old.syncing):
            if waiting is not None:
                _refuse(waiting, ErrorCode.FENCED_INSTANCE_ID)
        del group.members[old.id]
        unchanged = old.protocols == protocols
        new = group.members[member_id] = GroupMember(
            member_id,
            old.instance,
            call.header.client_id or "",
            f"/{call.node.host}",
            call.request.session_timeout_ms,
            max(call.request.rebalance_timeout_ms, 0) or call.request.session_timeout_ms,
            protocols,
            old.assignment,
        )
        if was_leader:
            group.leader = member_id
        self.hear(group, new)
        self._note_members(group)
        if group.state == STABLE and unchanged:
            skips = was_leader and call.version >= SKIPS_ASSIGNMENT
            # Under the former leader's id, so that it does not assign again.
            _joined(call, ErrorCode.NO_ERROR, member_id, group, leader, skips)
            return
        new.joining = call
        self._rebalance(group)

    def _join_again(
        self, call: Call, group: ClassicGroup, member: GroupMember, protocols: list[tuple[str, bytes]]
    ) -> None:
        changed = member.protocols != protocols
        member.protocols = protocols
        member.session_ms = call.request.session_timeout_ms
        self.hear(group, member)
        if group.state == PREPARING or changed or (group.state == STABLE and member.id == group.leader):
            if member.joining is not None:
                _refuse(member.joining, ErrorCode.REBALANCE_IN_PROGRESS)
            member.joining = call
            self._rebalance(group)
        else:
            # The response to the member's last request was lost, or nothing has changed.
            _joined(call, ErrorCode.NO_ERROR, member.id, group, group.leader)

    # Rebalances

    def _rebalance(self, group: ClassicGroup) -> None:
        """Begins a rebalance, or goes on with one; ends it if all members have joined."""
        if group.state != PREPARING:
            group.state = PREPARING
            group.round += 1
            for member in group.members.values():
                if member.syncing is not None:
                    _refuse(member.syncing, ErrorCode.REBALANCE_IN_PROGRESS)
                    member.syncing = None
            longest = max((each.rebalance_ms for each in group.members.values()), default=0)
            self.world.after(longest, self._end_waiting, group, group.round)
        if all(member.joining is not None for member in group.members.values()):
            self._complete(group)

    def _end_waiting(self, group: ClassicGroup, round_: int) -> None:
        """Goes on without the members that have not joined in time."""
        if group.state == PREPARING and group.round == round_:
            for member in list(group.members.values()):
                if member.joining is None and member.instance is None:
                    del group.members[member.id]
            self._complete(group)

    def _complete(self, group: ClassicGroup) -> None:
        group.generation += 1
        group.round += 1
        if not group.members:
            group.state, group.leader, group.protocol = EMPTY, "", None
            self._note_members(group)
            return
        group.state = COMPLETING
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        group.protocol = _chosen(group)
        self._note_members(group)
        for member in group.members.values():
            call, member.joining, member.assignment = member.joining, None, b""
            self.hear(group, member)
            if call is not None:
                _joined(call, ErrorCode.NO_ERROR, member.id, group, group.leader)
        longest = max(each.rebalance_ms for each in group.members.values())
        self.world.after(longest, self._end_syncing, group, group.round)

    def _end_syncing(self, group: ClassicGroup, round_: int) -> None:
        """The leader has not assigned anything in time, or a member has not asked for its assignment."""
        if group.state == COMPLETING and group.round == round_:
            for member in list(group.members.values()):
                if member.syncing is None:
                    del group.members[member.id]
            self._rebalance(group)

    def sync(self, call: Call) -> None:
        request = call.request

        def refuse(code: int) -> None:
            call.answer(SYNC_GROUP.response(0, code, None, None, b""))

        if code := self.refusal(call, request.group_id):
            refuse(code)
            return
        group = self.groups.get(request.group_id)
        member = self.member_of(group, request.member_id, request.generation_id, request.group_instance_id)
        if isinstance(member, int):
            refuse(member)
            return
        assert group is not None
        named = (request.protocol_type, request.protocol_name)
        if call.version >= 5 and any(
            given is not None and given != ours
            for given, ours in zip(named, (group.protocol_type, group.protocol), strict=True)
        ):
            refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return
        self.hear(group, member)
        if group.state == PREPARING:
            refuse(ErrorCode.REBALANCE_IN_PROGRESS)
        elif group.state == STABLE:
            _synced(call, group, member)
        else:
            member.syncing = call
            if member.id == group.leader:
                given = {each.member_id: each.assignment for each in request.assignments}
                for each in group.members.values():
                    each.assignment = given.get(each.id, b"")
                group.state = STABLE
                for each in group.members.values():
                    waiting, each.syncing = each.syncing, None
                    if waiting is not None:
                        self.hear(group, each)
                        _synced(waiting, group, each)

    # Sessions

    def hear(self, group: ClassicGroup, member: GroupMember) -> None:
        """Begins a member's session anew."""
        member.heard_ns = self.world.now_ns
        self.world.after(member.session_ms, self._check, group, member, member.heard_ns)

    def _check(self, group: ClassicGroup, member: GroupMember, heard_ns: int) -> None:
        if group.members.get(member.id) is not member or member.heard_ns != heard_ns:
            return
        if member.joining is not None or member.syncing is not None:
            # It waits for us.
            self.hear(group, member)
        else:
            self.remove(group, member)

    def remove(self, group: ClassicGroup, member: GroupMember) -> None:
        """A member is gone: the others rebalance."""
        for waiting in (member.joining, member.syncing):
            if waiting is not None:
                _refuse(waiting, ErrorCode.UNKNOWN_MEMBER_ID)
        del group.members[member.id]
        self._note_members(group)
        self._rebalance(group)

    def _note_members(self, group: ClassicGroup) -> None:
        """Tells the offsets of transactions who is a member of which generation (KIP-447)."""
        self.cluster.offsets.group(group.name).members = {
            each.id: Member(group.generation, each.instance) for each in group.members.values()
        }

    def heartbeat(self, call: Call) -> int:
        request = call.request
        if code := self.refusal(call, request.group_id):
            return code
        group = self.groups.get(request.group_id)
        member = self.member_of(group, request.member_id, request.generation_id, request.group_instance_id)
        if isinstance(member, int):
            return member
        assert group is not None
        self.hear(group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state == PREPARING else ErrorCode.NO_ERROR

    def _resigned(self, home: Home) -> None:
        """The coordinator has moved: whoever waits must look for the new one."""
        group = self.groups.get(home.name)
        for member in () if group is None else group.members.values():
            for waiting in (member.joining, member.syncing):
                if waiting is not None:
                    _refuse(waiting, ErrorCode.NOT_COORDINATOR)
            member.joining = member.syncing = None


def _chosen(group: ClassicGroup) -> str:
    """Returns the protocol that most members prefer, of those that all have."""
    names = [[name for name, _ in member.protocols] for member in group.members.values()]
    common = set.intersection(*map(set, names))
    votes = Counter(next(name for name in own if name in common) for own in names)
    return votes.most_common(1)[0][0]


def _joined(
    call: Call,
    code: int,
    member_id: str,
    group: ClassicGroup | None = None,
    leader: str = "",
    skips: bool = False,
) -> None:
    response = JOIN_GROUP.response
    if group is None:
        # Before version 7 the name of the protocol may not be null.
        nothing = None if call.version >= 7 else ""
        call.answer(response(0, code, -1, None, nothing, "", False, member_id, []))
        return
    assert group.protocol is not None
    members = []
    if member_id == leader or skips:
        members = [
            response.JoinGroupResponseMember(each.id, each.instance, each.metadata(group.protocol))
            for each in group.members.values()
        ]
    call.answer(
        response(
            0, code, group.generation, group.protocol_type, group.protocol, leader, skips, member_id, members
        )
    )


def _synced(call: Call, group: ClassicGroup, member: GroupMember) -> None:
    call.answer(
        SYNC_GROUP.response(0, ErrorCode.NO_ERROR, group.protocol_type, group.protocol, member.assignment)
    )


def _refuse(call: Call, code: int) -> None:
    """Ends a JoinGroup or SyncGroup that waits."""
    if call.api is JOIN_GROUP:
        _joined(call, code, call.request.member_id)
    else:
        call.answer(SYNC_GROUP.response(0, code, None, None, b""))


# Requests of members


def join_group(call: Call) -> Any:
    call.cluster.groups.join(call)
    return LATER


def sync_group(call: Call) -> Any:
    call.cluster.groups.sync(call)
    return LATER


def heartbeat(call: Call) -> Any:
    return HEARTBEAT.response(0, call.cluster.groups.heartbeat(call))


def leave_group(call: Call) -> Any:
    groups, request, response = call.cluster.groups, call.request, LEAVE_GROUP.response
    if code := groups.refusal(call, request.group_id):
        return response(0, code, [])
    group = groups.groups.get(request.group_id)
    if call.version < 3:
        member = groups.member_of(group, request.member_id, None, None)
        if isinstance(member, int):
            return response(0, member, [])
        assert group is not None
        groups.remove(group, member)
        return response(0, ErrorCode.NO_ERROR, [])
    results = []
    for each in request.members:
        static = None if group is None else group.by_instance(each.group_instance_id)
        # An administrator names a static member by its instance alone.
        member_id = static.id if static is not None and not each.member_id else each.member_id
        found = groups.member_of(group, member_id, None, each.group_instance_id)
        code = found if isinstance(found, int) else ErrorCode.NO_ERROR
        if not isinstance(found, int):
            assert group is not None
            groups.remove(group, found)
        results.append(response.MemberResponse(each.member_id, each.group_instance_id, code))
    return response(0, ErrorCode.NO_ERROR, results)


# Offsets


def offset_commit(call: Call) -> Any:
    cluster, groups, request = call.cluster, call.cluster.groups, call.request
    code = groups.refusal(call, request.group_id) or _commit_refusal(groups, request)
    topics, given = [], {}
    for topic in request.topics:
        found = cluster.topic(topic.name)
        parts = []
        for each in topic.partitions:
            own = code
            if not own and not call.allowed("READ", "topic", topic.name):
                own = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not own and (found is None or not 0 <= each.partition_index < len(found.partitions)):
                own = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not own:
                given[topic.name, each.partition_index] = Offset(
                    each.committed_offset, each.committed_leader_epoch, each.committed_metadata
                )
            parts.append(OFFSET_COMMIT.response.OffsetCommitResponsePartition(each.partition_index, own))
        topics.append(OFFSET_COMMIT.response.OffsetCommitResponseTopic(topic.name, parts))
    if given:
        cluster.offsets.group(request.group_id).committed.update(given)
        # A group of committed offsets without members is there as well.
        groups.group(request.group_id)
    return OFFSET_COMMIT.response(0, topics)


def _commit_refusal(groups: Groups, request: Any) -> int:
    group = groups.groups.get(request.group_id)
    generation = request.generation_id_or_member_epoch
    if generation < 0 and not request.member_id:
        # A consumer that manages its partitions itself; not beside members.
        return ErrorCode.UNKNOWN_MEMBER_ID if group is not None and group.members else ErrorCode.NO_ERROR
    member = groups.member_of(group, request.member_id, generation, request.group_instance_id)
    if isinstance(member, int):
        return member
    assert group is not None
    groups.hear(group, member)
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state == COMPLETING else ErrorCode.NO_ERROR


def offset_fetch(call: Call) -> Any:
    request, response = call.request, OFFSET_FETCH.response
    stable = call.version >= 7 and request.require_stable
    if call.version >= 8:
        answers = []
        for group in request.groups:
            code, topics = _offsets(call, group.group_id, group.topics, stable)
            named = [
                response.OffsetFetchResponseTopics(
                    name,
                    [
                        response.OffsetFetchResponsePartitions(index, *offset, own)
                        for index, offset, own in parts
                    ],
                )
                for name, parts in topics.items()
            ]
            answers.append(response.OffsetFetchResponseGroup(group.group_id, named, code))
        return response(0, [], ErrorCode.NO_ERROR, answers)
    code, topics = _offsets(call, request.group_id, request.topics, stable)
    named = [
        response.OffsetFetchResponseTopic(
            name, [response.OffsetFetchResponsePartition(index, *offset, own) for index, offset, own in parts]
        )
        for name, parts in topics.items()
    ]
    return response(0, named, code, [])


def _offsets(
    call: Call, name: str, topics: list[Any] | None, stable: bool
) -> tuple[int, dict[str, list[tuple[int, Offset, int]]]]:
    """Returns a group's error code, and topic -> (partition, offset, error code) for each partition."""
    cluster = call.cluster
    code = cluster.groups.refusal(call, name, "DESCRIBE")
    offsets = cluster.offsets.group(name)
    if topics is None:
        wanted = [] if code else sorted(offsets.committed)
    else:
        wanted = [(topic.name, index) for topic in topics for index in topic.partition_indexes]
    pending = {place for places in offsets.pending.values() for place in places}
    found: dict[str, list[tuple[int, Offset, int]]] = {}
    for place in wanted:
        own, offset = code, NO_OFFSET
        if not own and not call.allowed("DESCRIBE", "topic", place[0]):
            own = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not own and stable and place in pending:
            own = ErrorCode.UNSTABLE_OFFSET_COMMIT
        elif not own:
            offset = offsets.committed.get(place, NO_OFFSET)
        found.setdefault(place[0], []).append((place[1], offset, own))
    return code, found


# Administration


def describe_groups(call: Call) -> Any:
    groups, make = call.cluster.groups, DESCRIBE_GROUPS.response.DescribedGroup
    described = []
    for name in call.request.groups:
        code = groups.refusal(call, name, "DESCRIBE")
        group = groups.find(name)
        if not code and group is None and call.version >= 6:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        if code or group is None:
            described.append(make(code, None, name, "" if code else DEAD, "", "", [], NO_OPERATIONS))
            continue
        operations = NO_OPERATIONS
        if call.version >= 3 and call.request.include_authorized_operations:
            operations = call.cluster.access.operations(call.principal, "group", name)
        members = [
            DESCRIBE_GROUPS.response.DescribedGroupMember(
                each.id,
                each.instance,
                each.client_id,
                each.host,
                each.metadata(group.protocol or ""),
                each.assignment if group.state == STABLE else b"",
            )
            for each in group.members.values()
        ]
        described.append(
            make(
                ErrorCode.NO_ERROR, None, name, group.state, group.protocol_type, group.protocol or "",
                members, operations,
            )
        )  # fmt: skip
    return DESCRIBE_GROUPS.response(0, described)


def list_groups(call: Call) -> Any:
    request, response = call.request, LIST_GROUPS.response
    if code := call.fault():
        return response(0, code, [])
    states = request.states_filter if call.version >= 4 else []
    types = [each.lower() for each in request.types_filter] if call.version >= 5 else []
    for name in call.cluster.offsets.groups:
        call.cluster.groups.find(name)
    found = [
        response.ListedGroup(group.name, group.protocol_type, group.state, "classic")
        for group in call.cluster.groups.groups.values()
        if group.state != DEAD
        and call.cluster.homes.home(GROUP, group.name).leader == call.node.id
        and (not states or group.state in states)
        and (not types or "classic" in types)
        and call.allowed("DESCRIBE", "group", group.name)
    ]
    return response(0, ErrorCode.NO_ERROR, found)


def delete_groups(call: Call) -> Any:
    groups, response = call.cluster.groups, DELETE_GROUPS.response
    results = []
    for name in call.request.groups_names:
        code = groups.refusal(call, name, "DELETE")
        group = groups.find(name)
        if not code and (group is None or group.state == DEAD):
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif not code and group is not None and group.members:
            code = ErrorCode.NON_EMPTY_GROUP
        elif not code and group is not None:
            group.state = DEAD
            del groups.groups[name]
            call.cluster.offsets.group(name).committed.clear()
        results.append(response.DeletableGroupResult(name, code))
    return response(0, results)


HANDLERS: Final[Mapping[Api, Handler]] = {
    OFFSET_COMMIT: offset_commit,
    OFFSET_FETCH: offset_fetch,
    JOIN_GROUP: join_group,
    SYNC_GROUP: sync_group,
    HEARTBEAT: heartbeat,
    LEAVE_GROUP: leave_group,
    DESCRIBE_GROUPS: describe_groups,
    LIST_GROUPS: list_groups,
    DELETE_GROUPS: delete_groups,
}
