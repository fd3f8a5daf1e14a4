"""What becomes of committed offsets of the embedded broker: OffsetDelete, and retention."""

import struct
from collections.abc import Iterator
from typing import Any, Final

import pytest

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.cluster import EmbeddedCluster
from cyproducer.testing.broker.retention import OFFSETS_CHECK_MS
from cyproducer.wire.messages import OFFSET_COMMIT, OFFSET_DELETE
from tests.testing.broker.group_bench import Bench, G, Somebody, protocols_of, stable, topics_of
from tests.testing.broker.group_transaction import Transaction
from tests.testing.broker.peer import Peer

DAY_MS: Final = 24 * 3_600_000
WEEK_MS: Final = 7 * DAY_MS


def subscription(*topics: str) -> bytes:
    """Returns a consumer's metadata: version, topics, no user data, nothing of later versions."""
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 3, len(topics)) + named + struct.pack(">i", -1)


def subscribing(bench: Bench, *topics: str, **options: Any) -> Somebody:
    return Somebody(bench, protocols={"range": subscription(*topics)}, **options)


def deleted(peer: Peer, *places: tuple[str, int], group: str = G) -> tuple[int, list[tuple[str, int, int]]]:
    """Deletes offsets, and returns the error code of the group and those of partitions."""
    make, part = OFFSET_DELETE.request.OffsetDeleteRequestTopic, OFFSET_DELETE.request
    topics = [make(name, [part.OffsetDeleteRequestPartition(index)]) for name, index in places]
    response = peer.ask(OFFSET_DELETE, 0, group_id=group, topics=topics)
    found = [(topic.name, each.partition_index, each.error_code) for topic in response.topics
             for each in topic.partitions]  # fmt: skip
    return response.error_code, found


def commit(
    peer: Peer, offset: int = 5, topic: str = "t", index: int = 0, version: int = 7, **fields: Any
) -> None:
    """Commits an offset without being a member."""
    topics = topics_of(OFFSET_COMMIT.request, offset, index, topic)
    response = peer.ask(OFFSET_COMMIT, version, group_id=G, topics=topics, **fields)
    assert response.topics[0].partitions[0].error_code == 0


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        bench.call(lambda cluster: cluster.create_topic("u", 1))
        yield bench


@pytest.fixture
def peer(bench: Bench) -> Peer:
    return bench.peer()


# OffsetDelete


def test_offsets_are_deleted(bench: Bench, peer: Peer) -> None:
    for index in (0, 1):
        commit(peer, index=index)
    assert deleted(peer, ("t", 0), ("t", 2)) == (0, [("t", 0, 0), ("t", 2, 0)])
    assert [bench.offset(index) for index in (0, 1)] == [(-1, 0), (5, 0)]


def test_offsets_of_unknown_partitions_are_not_deleted(peer: Peer) -> None:
    commit(peer)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    places = (("none", 0), ("t", 7))
    expected = [(*place, int(unknown)) for place in places]
    assert deleted(peer, *places) == (0, expected)
    assert deleted(peer, *places, ("u", 0)) == (0, [*expected, ("u", 0, 0)])


def test_groups_of_which_no_offset_can_be_deleted(peer: Peer) -> None:
    assert deleted(peer, ("t", 0)) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert deleted(peer, ("t", 0), group="") == (ErrorCode.INVALID_GROUP_ID, [])
    # The coordinator is not asked if no partition is left.
    assert deleted(peer, ("none", 0)) == (0, [("none", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)])


def test_offsets_of_subscribed_topics_are_kept(bench: Bench) -> None:
    member = subscribing(bench, "t")
    stable(bench, member)
    assert member.commit() == 0
    taken = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert deleted(member.peer, ("t", 0), ("u", 0)) == (0, [("t", 0, taken), ("u", 0, 0)])
    assert bench.offset() == (1, 0)
    # Before the next generation, the subscriptions of this one apply.
    member.protocols = {"range": subscription("u")}
    other = subscribing(bench, "u")
    other.begin_join()
    bench.until_waiting(other)
    assert deleted(bench.peer(), ("t", 0), ("u", 0)) == (0, [("t", 0, taken), ("u", 0, 0)])
    assert member.join().error_code == 0
    assert deleted(member.peer, ("t", 0), ("u", 0)) == (0, [("t", 0, 0), ("u", 0, taken)])
    assert bench.offset() == (-1, 0)
    member.leave()
    assert other.joined().error_code == 0
    other.leave()
    assert deleted(member.peer, ("u", 0)) == (0, [("u", 0, 0)])


@pytest.mark.parametrize(
    "metadata", [b"", b"\0\1\0\0\0\1\0\x09t", b"\0\1\0\0\0\1\0\1\xff", b"\xff\xff\0\0\0\0"]
)
def test_an_unreadable_subscription_is_one_to_every_topic(bench: Bench, metadata: bytes) -> None:
    member = Somebody(bench, protocols={"range": metadata})
    stable(bench, member)
    assert deleted(member.peer, ("t", 0)) == (0, [("t", 0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)])


def test_other_groups_must_be_empty(bench: Bench) -> None:
    member = Somebody(bench)
    kind = {"protocol_type": "connect", "protocols": protocols_of({"range": subscription("t")})}
    member.send_join(**kind)
    member.joined()
    member.send_join(**kind)
    assert member.joined().error_code == 0
    member.sync({})
    assert deleted(member.peer, ("u", 0)) == (ErrorCode.NON_EMPTY_GROUP, [])
    member.leave()
    assert deleted(member.peer, ("u", 0)) == (0, [("u", 0, 0)])


def test_a_new_coordinator_knows_the_subscriptions() -> None:
    with Bench(nodes=2) as bench:
        member = subscribing(bench, "t")
        stable(bench, member)
        # The coordinator loses the next generation, in which the member subscribes to another topic.
        member.protocols = {"range": subscription("u")}
        assert member.join().generation_id == 2
        bench.move(3 - bench.coordinator())
        peer, subscribed = bench.peer(), ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert deleted(peer, ("t", 0), ("t", 1)) == (0, [("t", 0, subscribed), ("t", 1, subscribed)])


def test_pending_offsets_are_deleted_too(bench: Bench) -> None:
    transaction = Transaction(bench)
    transaction.commit(9)
    assert deleted(transaction.peer, ("t", 0)) == (0, [("t", 0, 0)])
    assert bench.offset(require_stable=True) == (-1, 0)
    transaction.end(True)
    assert bench.offset() == (-1, 0)


def test_rights_on_topics(bench: Bench, peer: Peer) -> None:
    commit(peer)
    bench.deny(("READ", "topic", "t"))
    assert deleted(bench.peer(), ("t", 0)) == (0, [("t", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)])
    assert bench.offset() == (5, 0)


# Retention


def test_offsets_expire_after_a_group_became_empty(bench: Bench) -> None:
    member = subscribing(bench, "t", session_ms=30 * 60_000)
    stable(bench, member)
    assert member.commit() == 0
    bench.advance(OFFSETS_CHECK_MS)
    assert member.leave() == 0
    bench.advance(WEEK_MS - OFFSETS_CHECK_MS)
    assert bench.offset() == (1, 0)
    bench.advance(2 * OFFSETS_CHECK_MS)
    assert bench.offset() == (-1, 0)
    assert bench.described().group_state == "Dead"


def test_offsets_of_a_group_with_members_are_kept(bench: Bench) -> None:
    member = subscribing(bench, "t")
    bench.call(lambda cluster: setattr(cluster.groups, "max_session_ms", 20 * DAY_MS))
    member.session_ms = 20 * DAY_MS
    commit(member.peer, topic="u")
    stable(bench, member)
    assert member.commit() == 0
    bench.advance(2 * WEEK_MS)
    # The group no longer subscribes to "u".
    assert bench.offset() == (1, 0)
    assert bench.call(committed_places) == [("t", 0)]


def committed_places(cluster: EmbeddedCluster) -> list[tuple[str, int]]:
    return list(cluster.offsets.groups[G].committed)


def test_offsets_without_members_expire_after_their_commit(bench: Bench, peer: Peer) -> None:
    commit(peer)
    bench.advance(DAY_MS)
    commit(peer, index=1)
    bench.advance(WEEK_MS - DAY_MS)
    assert [bench.offset(index)[0] for index in (0, 1)] == [-1, 5]
    bench.advance(DAY_MS)
    assert bench.offset(1) == (-1, 0)
    assert bench.described().group_state == "Dead"


def test_old_clients_give_their_own_retention(bench: Bench, peer: Peer) -> None:
    commit(peer, version=4, retention_time_ms=DAY_MS)
    commit(peer, index=1, version=4, retention_time_ms=-1)
    bench.advance(DAY_MS)
    assert [bench.offset(index)[0] for index in (0, 1)] == [-1, 5]


def test_pending_offsets_are_kept(bench: Bench) -> None:
    peer = bench.peer()
    commit(peer)
    commit(peer, index=1)
    bench.advance(WEEK_MS - OFFSETS_CHECK_MS / 2)
    transaction = Transaction(bench, timeout_ms=900_000)
    assert transaction.commit(9) == 0
    bench.advance(OFFSETS_CHECK_MS)
    assert bench.offset() == (5, 0)
    assert bench.offset(1) == (-1, 0)
    transaction.end(True)
    # The time of the commit is that of the request, not of the end of the transaction.
    bench.advance(WEEK_MS - 2 * OFFSETS_CHECK_MS)
    assert bench.offset() == (9, 0)
    bench.advance(OFFSETS_CHECK_MS)
    assert bench.offset() == (-1, 0)


def test_an_empty_group_without_offsets_is_removed(bench: Bench) -> None:
    member = subscribing(bench, "t")
    stable(bench, member)
    assert member.leave() == 0
    assert bench.described().group_state == "Empty"
    bench.advance(OFFSETS_CHECK_MS)
    assert bench.described().group_state == "Dead"
    member.id = ""
    assert member.join().generation_id == 1


def test_a_group_is_kept_for_a_member_that_is_about_to_join(bench: Bench) -> None:
    member = subscribing(bench, "t", session_ms=20 * 60_000)
    member.send_join()
    assert member.joined().error_code == ErrorCode.MEMBER_ID_REQUIRED
    bench.advance(OFFSETS_CHECK_MS)
    assert member.join().error_code == 0


def test_a_coordinator_that_loads_its_log_deletes_nothing() -> None:
    with Bench(nodes=2) as bench:
        commit(bench.peer())
        bench.move(3 - bench.coordinator(), load_ms=3 * WEEK_MS)
        bench.advance(2 * WEEK_MS)
        assert bench.call(committed_places) == [("t", 0)]
        bench.advance(WEEK_MS)
        bench.advance(OFFSETS_CHECK_MS)
        assert bench.offset() == (-1, 0)
