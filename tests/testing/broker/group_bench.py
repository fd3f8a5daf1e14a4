"""An embedded cluster, and members of a group on it that do what a test says."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from cyproducer.testing.broker import control
from cyproducer.testing.broker.access import Access
from cyproducer.testing.broker.cluster import EmbeddedCluster
from cyproducer.testing.broker.homes import GROUP
from cyproducer.testing.broker.runner import ClusterThread
from cyproducer.wire.messages import (
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from tests.testing.broker.peer import Peer
from tools.harness.until import until

T = TypeVar("T")
G: Final = "g"
MEMBER_ID_REQUIRED: Final = 79
RANGE: Final = {"range": b"subscription"}


class Rights(Access):
    """A principal without some rights: operation, kind of resource, and its name."""

    def __init__(self, *denied: tuple[str, str, str]) -> None:
        super().__init__()
        self.denied = denied

    def allows(self, principal: str, operation: str, kind: str, name: str) -> bool:
        return (operation, kind, name) not in self.denied


class Bench:
    """A cluster with the topic "t" of three partitions. As a context manager, it is closed at the end."""

    def __init__(self, nodes: int = 1) -> None:
        self.thread = ClusterThread({"nodes": nodes, "topics": {"t": 3}})
        self.thread.start()
        self._peers: list[Peer] = []

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *raised: object) -> None:
        for peer in self._peers:
            peer.close()
        self.thread.stop()

    def call(self, function: Callable[[EmbeddedCluster], T]) -> T:
        """Calls a function on the cluster's thread."""
        result: T = self.thread.call(function)
        return result

    def deny(self, *denied: tuple[str, str, str]) -> None:
        """Takes these rights from everybody, and gives back others."""
        self.call(lambda cluster: setattr(cluster, "access", Rights(*denied)))

    @property
    def addresses(self) -> str:
        return self.call(control.addresses)

    def coordinator(self, group: str = G) -> int:
        """Returns the node that coordinates a group."""
        return self.call(lambda cluster: cluster.homes.home(GROUP, group).leader)

    def peer(self, node: int | None = None) -> Peer:
        """Connects to a node, or to the coordinator of the group."""
        number = node or self.coordinator()
        peer = Peer(self.call(lambda cluster: cluster.nodes[number].address))
        self._peers.append(peer)
        return peer

    def advance(self, ms: float) -> None:
        """Lets time pass."""
        self.call(lambda cluster: cluster.world.advance(ms))

    def move(self, leader: int, load_ms: float = 0.0) -> None:
        """Moves the group's coordinator."""

        def act(cluster: EmbeddedCluster) -> None:
            cluster.homes.load_ms = (load_ms, load_ms)
            cluster.homes.move(cluster.homes.home(GROUP, G), leader)

        self.call(act)

    def described(self) -> Any:
        """Returns what DescribeGroups says of the group."""
        return self.peer().ask(DESCRIBE_GROUPS, 5, groups=[G]).groups[0]

    def until_state(self, state: str) -> None:
        """Returns once the group is in a state."""
        until(lambda: self.described().group_state == state, f"the state {state}")

    def until_waiting(self, *members: "Somebody") -> None:
        """Returns once the requests of these members wait for others."""

        def wait(cluster: EmbeddedCluster) -> bool:
            group = cluster.groups.find(G)
            assert group is not None
            known = {member.id: member for member in group.members.values()}
            by_instance = {member.instance: member for member in group.members.values()}
            found = [known.get(each.id) or by_instance.get(each.instance or "") for each in members]
            return all(each is not None and (each.join or each.sync) for each in found)

        until(lambda: self.call(wait), "waiting requests")

    def offset(self, index: int = 0, require_stable: bool = False) -> tuple[int, int]:
        """Returns the committed offset of a partition, and the error code."""
        response = self.peer().ask(
            OFFSET_FETCH,
            7,
            group_id=G,
            topics=[OFFSET_FETCH.request.OffsetFetchRequestTopic("t", [index])],
            require_stable=require_stable,
        )
        assert response.error_code == 0
        part = response.topics[0].partitions[0]
        return part.committed_offset, part.error_code


def protocols_of(protocols: Mapping[str, bytes]) -> list[Any]:
    """Returns JoinGroup's protocols."""
    return [JOIN_GROUP.request.JoinGroupRequestProtocol(*each) for each in protocols.items()]


def topics_of(
    request: Any, offset: int, index: int = 0, topic: str = "t", metadata: str | None = None
) -> Any:
    """Returns the topics of OffsetCommit with one partition; ``request``: the message."""
    return [
        request.OffsetCommitRequestTopic(
            topic, [request.OffsetCommitRequestPartition(index, offset, -1, metadata)]
        )
    ]


class Somebody:
    """A member of the group "g", or one that wants to be, with a connection of its own."""

    def __init__(
        self,
        bench: Bench,
        instance: str | None = None,
        protocols: Mapping[str, bytes] = RANGE,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 7,
    ) -> None:
        self.bench = bench
        self.peer = bench.peer()
        self.instance = instance
        self.protocols = protocols
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.version = version
        self.id = ""
        self.generation = -1

    def send_join(self, **other: Any) -> None:
        """Sends JoinGroup."""
        values = {
            "group_id": G,
            "session_timeout_ms": self.session_ms,
            "rebalance_timeout_ms": self.rebalance_ms,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": protocols_of(self.protocols),
        }
        self.peer.send(JOIN_GROUP, self.version, **values | other)

    def joined(self) -> Any:
        """Receives the response to JoinGroup, and takes over what it says."""
        response = self.peer.receive()
        if response.error_code in (0, MEMBER_ID_REQUIRED):
            self.id = response.member_id
        if response.error_code == 0:
            self.generation = response.generation_id
        return response

    def begin_join(self) -> None:
        """Sends JoinGroup, with the id that it has or gets."""
        if not self.id and self.instance is None:
            self.send_join()
            assert self.joined().error_code == MEMBER_ID_REQUIRED
        self.send_join()

    def join(self) -> Any:
        """Joins, and returns the response that says so."""
        self.begin_join()
        return self.joined()

    def send_sync(self, assignments: Mapping[str, bytes] | None = None, **other: Any) -> None:
        """Sends SyncGroup."""
        make = SYNC_GROUP.request.SyncGroupRequestAssignment
        values = {
            "group_id": G,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "assignments": [make(*each) for each in (assignments or {}).items()],
        }
        self.peer.send(SYNC_GROUP, 4, **values | other)

    def sync(self, assignments: Mapping[str, bytes] | None = None, **other: Any) -> tuple[int, bytes]:
        """Returns the error code and the assignment."""
        self.send_sync(assignments, **other)
        return self.synced()

    def synced(self) -> tuple[int, bytes]:
        response = self.peer.receive()
        return response.error_code, response.assignment

    def heartbeat(self, **other: Any) -> int:
        """Returns the error code."""
        values = {
            "group_id": G,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }
        code: int = self.peer.ask(HEARTBEAT, 3, **values | other).error_code
        return code

    def commit(self, offset: int = 1, **other: Any) -> int:
        """Commits an offset of t-0, and returns the error code."""
        values = {
            "group_id": G,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "topics": topics_of(OFFSET_COMMIT.request, offset),
        }
        response = self.peer.ask(OFFSET_COMMIT, 7, **values | other)
        code: int = response.topics[0].partitions[0].error_code
        return code

    def leave(self, member: str | None = None, instance: str | None = None) -> int:
        """Returns the error code of the member."""
        make = LEAVE_GROUP.request.MemberIdentity
        who = make(self.id if member is None else member, instance or self.instance)
        response = self.peer.ask(LEAVE_GROUP, 3, group_id=G, members=[who])
        assert response.error_code == 0
        code: int = response.members[0].error_code
        return code


def stable(bench: Bench, *members: Somebody) -> None:
    """Makes these the members of a group that is stable; the first one leads. Each gets its number."""
    first, *others = members
    assert first.join().error_code == 0
    for other in others:
        other.begin_join()
    if others:
        bench.until_waiting(*others)
        assert first.join().error_code == 0
        assert [each.joined().error_code for each in others] == [0] * len(others)
    for other in others:
        other.send_sync()
    assignments = {each.id: b"%d" % number for number, each in enumerate(members)}
    assert first.sync(assignments) == (0, b"0")
    assert [each.synced() for each in others] == [(0, b"%d" % n) for n in range(1, len(members))]
