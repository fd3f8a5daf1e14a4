"""Consumer groups of the embedded broker, request by request."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.cluster import EmbeddedCluster
from cyproducer.testing.broker.faults import FAIL, Rule
from cyproducer.testing.broker.homes import GROUP
from cyproducer.wire.messages import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from cyproducer.wire.schema import Api
from tests.testing.broker.group_bench import RANGE, Bench, G, Somebody, protocols_of, stable, topics_of
from tests.testing.broker.group_transaction import Transaction
from tests.testing.broker.peer import Peer
from tools.harness.until import until

JOIN: dict[str, Any] = {
    "session_timeout_ms": 10_000,
    "protocol_type": "consumer",
    "protocols": protocols_of(RANGE),
}


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench


@pytest.fixture
def two() -> Iterator[Bench]:
    with Bench(nodes=2) as bench:
        yield bench


def names(joined: Any) -> set[str]:
    return {member.member_id for member in joined.members}


def _span(api: Api) -> tuple[int, int]:
    return api.declared.first, api.declared.last + 1


# One member


@pytest.mark.parametrize("version", range(*_span(JOIN_GROUP)))
def test_joining_in_each_version(bench: Bench, version: int) -> None:
    peer, joining = bench.peer(), dict(JOIN, group_id=G)
    if version >= 1:
        joining["rebalance_timeout_ms"] = 10_000
    response = peer.ask(JOIN_GROUP, version, **joining)
    if version >= 4:
        assert (response.error_code, response.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
        response = peer.ask(JOIN_GROUP, version, **joining, member_id=response.member_id)

    assert (response.error_code, response.generation_id, response.protocol_name) == (0, 1, "range")
    assert response.protocol_type == ("consumer" if version >= 7 else None)
    assert response.member_id.startswith("peer-")
    assert response.leader == response.member_id
    assert [tuple(each) for each in response.members] == [(response.member_id, None, b"subscription")]
    assert not response.skip_assignment


@pytest.mark.parametrize("version", range(*_span(SYNC_GROUP)))
def test_syncing_in_each_version(bench: Bench, version: int) -> None:
    member = Somebody(bench)
    member.join()
    protocols = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    make = SYNC_GROUP.request.SyncGroupRequestAssignment
    response = member.peer.ask(
        SYNC_GROUP,
        version,
        group_id=G,
        generation_id=1,
        member_id=member.id,
        assignments=[make(member.id, b"mine")],
        **protocols,
    )
    assert (response.error_code, response.assignment) == (0, b"mine")
    if version >= 5:
        assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    # A repeated request, of which nothing depends on what it assigns.
    assert member.sync({member.id: b"other"}) == (0, b"mine")


@pytest.mark.parametrize("version", range(*_span(HEARTBEAT)))
def test_heartbeats_in_each_version(bench: Bench, version: int) -> None:
    member = Somebody(bench)
    stable(bench, member)
    response = member.peer.ask(HEARTBEAT, version, group_id=G, generation_id=1, member_id=member.id)
    assert response.error_code == 0


@pytest.mark.parametrize("version", range(*_span(LEAVE_GROUP)))
def test_leaving_in_each_version(bench: Bench, version: int) -> None:
    member = Somebody(bench)
    stable(bench, member)
    who = LEAVE_GROUP.request.MemberIdentity(member.id)
    fields = {"members": [who]} if version >= 3 else {"member_id": member.id}
    for code in (0, ErrorCode.UNKNOWN_MEMBER_ID):
        response = member.peer.ask(LEAVE_GROUP, version, group_id=G, **fields)
        if version >= 3:
            assert (response.error_code, response.members[0].error_code) == (0, code)
        else:
            assert response.error_code == code
    assert bench.described().group_state == "Empty"


def test_a_member_id_that_nobody_joins_with_is_forgotten(bench: Bench) -> None:
    member = Somebody(bench)
    member.send_join()
    assert member.joined().error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert bench.described().group_state == "Empty"
    bench.advance(9_000)
    bench.advance(2_000)
    assert bench.described().group_state == "Dead"
    member.send_join()
    assert member.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_was_told_an_id_can_leave_before_joining(bench: Bench) -> None:
    member = Somebody(bench)
    member.send_join()
    member.joined()
    assert member.leave() == 0
    assert member.leave() == ErrorCode.UNKNOWN_MEMBER_ID


def test_requests_without_a_group(bench: Bench) -> None:
    peer = bench.peer()
    assert peer.ask(JOIN_GROUP, 3, **JOIN).error_code == ErrorCode.INVALID_GROUP_ID
    for api in (SYNC_GROUP, HEARTBEAT, LEAVE_GROUP):
        assert peer.ask(api, 2).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("ms", [0, 5_999, 30 * 60_000 + 1])
def test_session_timeouts_have_bounds(bench: Bench, ms: int) -> None:
    joined = bench.peer().ask(JOIN_GROUP, 3, **{**JOIN, "group_id": G, "session_timeout_ms": ms})
    assert joined.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("exists", [False, True])
def test_unknown_members(bench: Bench, exists: bool) -> None:
    member = Somebody(bench)
    member.id, member.generation = "nobody", 1
    if exists:
        Somebody(bench).join()
    member.send_join()
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert member.joined().error_code == unknown
    assert member.sync()[0] == unknown
    assert member.heartbeat() == unknown
    assert member.leave() == unknown
    assert member.commit() == (unknown if exists else ErrorCode.ILLEGAL_GENERATION)


def test_other_generations(bench: Bench) -> None:
    member = Somebody(bench)
    stable(bench, member)
    for generation in (0, 2):
        assert member.heartbeat(generation_id=generation) == ErrorCode.ILLEGAL_GENERATION
        assert member.sync(generation_id=generation)[0] == ErrorCode.ILLEGAL_GENERATION
        assert member.commit(generation_id_or_member_epoch=generation) == ErrorCode.ILLEGAL_GENERATION
    assert bench.offset() == (-1, 0)


# Protocols


@pytest.mark.parametrize("other", [{"protocol_type": ""}, {"protocols": []}])
def test_a_member_must_have_a_protocol(bench: Bench, other: dict[str, Any]) -> None:
    member = Somebody(bench)
    member.send_join(**other)
    assert member.joined().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bench.described().group_state == "Dead"


@pytest.mark.parametrize(
    "other", [{"protocol_type": "connect"}, {"protocols": protocols_of({"sticky": b""})}]
)
def test_members_must_have_a_common_protocol(bench: Bench, other: dict[str, Any]) -> None:
    first, second = Somebody(bench), Somebody(bench)
    first.join()
    second.send_join(**other)
    assert second.joined().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    # Once nobody is there, others may use the group.
    first.leave()
    second.send_join(**other)
    second.joined()
    second.send_join(**other)
    assert second.joined().error_code == 0


def test_members_vote_for_a_protocol(bench: Bench) -> None:
    ballots = (("a", "b", "c"), ("c", "b"), ("d", "b", "c"), ("c", "b"))
    members = [Somebody(bench, protocols={each: each.encode() for each in ballot}) for ballot in ballots]
    members[0].join()
    for member in members[1:]:
        member.begin_join()
    bench.until_waiting(*members[1:])
    # "a" and "d" are not everybody's: two votes for "b", two for "c". The first member decides.
    joined = members[0].join()
    assert joined.protocol_name == "b"
    assert {each.metadata for each in joined.members} == {b"b"}
    assert {member.joined().protocol_name for member in members[1:]} == {"b"}
    members[0].leave()
    for member in members[1:]:
        member.send_join()
    assert {member.joined().protocol_name for member in members[1:]} == {"c"}


@pytest.mark.parametrize(
    ("kind", "name"), [("consumer", "sticky"), ("connect", "range"), (None, "range"), ("consumer", None)]
)
def test_a_member_must_sync_with_the_groups_protocol(
    bench: Bench, kind: str | None, name: str | None
) -> None:
    member = Somebody(bench)
    member.join()
    response = member.peer.ask(
        SYNC_GROUP,
        5,
        group_id=G,
        generation_id=1,
        member_id=member.id,
        protocol_type=kind,
        protocol_name=name,
    )
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# Rebalances


def test_a_second_member_begins_a_rebalance(bench: Bench) -> None:
    first, second = Somebody(bench), Somebody(bench, protocols={"range": b"other"})
    stable(bench, first)
    assert first.heartbeat() == 0

    second.begin_join()
    bench.until_state("PreparingRebalance")
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert first.sync()[0] == ErrorCode.REBALANCE_IN_PROGRESS
    # Its offsets are still welcome.
    assert first.commit(5) == 0

    led, followed = first.join(), second.joined()
    assert bench.described().group_state == "CompletingRebalance"
    assert (led.generation_id, followed.generation_id) == (2, 2)
    assert led.leader == followed.leader == first.id
    assert {each.member_id: each.metadata for each in led.members} == {
        first.id: b"subscription",
        second.id: b"other",
    }
    assert followed.members == []
    # A heartbeat may come meanwhile, offsets may not.
    assert first.heartbeat() == 0
    assert first.commit(6) == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.offset() == (5, 0)

    second.send_sync()
    bench.until_waiting(second)
    # Who is not mentioned gets nothing.
    assert first.sync({second.id: b"all"}) == (0, b"")
    assert second.synced() == (0, b"all")
    assert bench.described().group_state == "Stable"


def test_a_rebalance_begins_while_members_wait_for_their_assignment(bench: Bench) -> None:
    first, second, third = (Somebody(bench) for _ in range(3))
    first.join()
    second.begin_join()
    bench.until_waiting(second)
    first.join()
    second.joined()
    second.send_sync()
    bench.until_waiting(second)

    third.begin_join()
    assert second.synced()[0] == ErrorCode.REBALANCE_IN_PROGRESS
    second.send_join()
    bench.until_waiting(second, third)
    assert names(first.join()) == {first.id, second.id, third.id}


def test_asking_again_does_not_begin_a_rebalance(bench: Bench) -> None:
    first, second = Somebody(bench), Somebody(bench)
    first.join()
    second.begin_join()
    bench.until_waiting(second)
    before = first.join()
    second.joined()
    # The response got lost.
    assert first.join() == before
    assert second.join().generation_id == 2
    second.send_sync()
    bench.until_waiting(second)
    first.sync()
    second.synced()
    # A follower asks without need.
    again = second.join()
    assert (again.error_code, again.generation_id, again.members) == (0, 2, [])
    assert bench.described().group_state == "Stable"
    # One whose subscription has changed wants a rebalance.
    second.protocols = {"range": b"changed"}
    second.begin_join()
    bench.until_waiting(second)
    assert first.join().generation_id == 3
    second.joined()
    # So does the leader in any case.
    second.send_sync()
    first.sync()
    second.synced()
    first.begin_join()
    bench.until_state("PreparingRebalance")
    assert second.join().generation_id == first.joined().generation_id == 4


def test_a_member_that_asks_twice_is_answered_on_the_newer_connection(bench: Bench) -> None:
    first, second = Somebody(bench), Somebody(bench)
    stable(bench, first)
    second.begin_join()
    bench.until_waiting(second)
    older, second.peer = second.peer, bench.peer()
    second.send_join()
    assert older.receive().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    assert second.joined().error_code == 0


def test_who_does_not_join_again_in_time_is_left_out(bench: Bench) -> None:
    first, second = (Somebody(bench, rebalance_ms=5_000) for _ in range(2))
    stable(bench, first)
    second.begin_join()
    bench.until_waiting(second)
    bench.advance(4_000)
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    bench.advance(1_000)
    joined = second.joined()
    assert (joined.generation_id, joined.leader, names(joined)) == (2, second.id, {second.id})
    assert first.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_those_who_were_told_an_id(bench: Bench) -> None:
    first, second, third = (Somebody(bench) for _ in range(3))
    stable(bench, first)
    third.send_join()
    assert third.joined().error_code == ErrorCode.MEMBER_ID_REQUIRED
    second.begin_join()
    bench.until_waiting(second)
    first.begin_join()
    bench.until_waiting(first)
    third.send_join()
    assert names(first.joined()) == {first.id, second.id, third.id}


def test_a_rebalance_waits_in_vain_for_one_who_was_told_an_id(bench: Bench) -> None:
    first, second = Somebody(bench, session_ms=30_000), Somebody(bench)
    stable(bench, first)
    second.send_join()
    second.joined()
    first.protocols = {"range": b"changed"}
    first.begin_join()
    bench.until_waiting(first)
    bench.advance(10_000)
    assert names(first.joined()) == {first.id}


@pytest.mark.parametrize("leads", [False, True])
def test_who_does_not_ask_for_its_assignment_is_left_out(bench: Bench, leads: bool) -> None:
    first, second = (Somebody(bench, rebalance_ms=5_000) for _ in range(2))
    first.join()
    second.begin_join()
    bench.until_waiting(second)
    first.join()
    second.joined()
    stays, lost = (second, first) if leads else (first, second)
    stays.send_sync()
    if leads:
        bench.until_waiting(stays)
    else:
        assert stays.synced()[0] == 0
    bench.advance(5_000)
    if leads:
        assert stays.synced()[0] == ErrorCode.REBALANCE_IN_PROGRESS
    else:
        assert stays.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    joined = stays.join()
    assert (joined.error_code, joined.leader, names(joined)) == (0, stays.id, {stays.id})
    assert lost.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_first_rebalance_can_wait_for_more_members(bench: Bench) -> None:
    bench.call(lambda cluster: setattr(cluster.groups, "initial_delay_ms", 3_000))
    first, second = Somebody(bench, rebalance_ms=5_000), Somebody(bench, rebalance_ms=5_000)
    first.begin_join()
    bench.until_waiting(first)
    bench.advance(2_000)
    second.begin_join()
    bench.until_waiting(second)
    # It waits again, as one came, but not longer than the rebalance timeout.
    bench.advance(1_000)
    assert bench.described().group_state == "PreparingRebalance"
    bench.advance(2_000)
    assert names(first.joined()) == {first.id, second.id}
    assert second.joined().generation_id == 1


def test_members_may_leave_and_come_while_a_first_rebalance_waits(bench: Bench) -> None:
    bench.call(lambda cluster: setattr(cluster.groups, "initial_delay_ms", 3_000))
    first, second = Somebody(bench), Somebody(bench, protocols={"sticky": b""})
    first.begin_join()
    bench.until_waiting(first)
    assert second.leave(first.id) == 0
    assert first.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    second.begin_join()
    bench.until_waiting(second)
    bench.advance(3_000)
    bench.advance(3_000)
    assert names(second.joined()) == {second.id}


def test_a_group_can_have_a_largest_size(bench: Bench) -> None:
    bench.call(lambda cluster: setattr(cluster.groups, "max_size", 1))
    first, second = Somebody(bench), Somebody(bench)
    stable(bench, first)
    second.send_join()
    assert second.joined().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first.join().error_code == 0


# Sessions, and leaving


def test_a_member_stays_until_its_session_ends(bench: Bench) -> None:
    first, second = Somebody(bench, session_ms=30_000), Somebody(bench)
    stable(bench, first, second)
    second.peer.close()
    bench.advance(6_000)
    assert first.heartbeat() == 0
    assert len(bench.described().members) == 2
    bench.advance(4_000)
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    joined = first.join()
    assert (joined.generation_id, names(joined)) == (3, {first.id})


def test_heartbeats_and_commits_keep_a_session(bench: Bench) -> None:
    member = Somebody(bench)
    stable(bench, member)
    for _ in range(3):
        bench.advance(7_000)
        assert member.heartbeat() == 0
        bench.advance(7_000)
        assert member.commit() == 0
    bench.advance(10_000)
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.described().group_state == "Empty"


def test_who_waits_needs_no_heartbeats(bench: Bench) -> None:
    first, second = Somebody(bench, session_ms=60_000), Somebody(bench)
    stable(bench, first, second)
    second.protocols = {"range": b"changed"}
    second.begin_join()
    bench.until_waiting(second)
    for _ in range(3):
        bench.advance(15_000)
    assert names(first.join()) == {first.id, second.id}
    second.joined()
    second.send_sync()
    bench.until_waiting(second)
    bench.advance(15_000)
    first.sync({second.id: b"x"})
    assert second.synced() == (0, b"x")


def test_a_new_member_that_is_gone_is_forgotten(bench: Bench) -> None:
    first = Somebody(bench, session_ms=20 * 60_000, rebalance_ms=10 * 60_000)
    second = Somebody(bench)
    stable(bench, first)
    second.begin_join()
    bench.until_waiting(second)
    second.peer.close()
    bench.advance(5 * 60_000)
    assert names(first.join()) == {first.id}


def test_several_members_leave_at_once(bench: Bench) -> None:
    members = [Somebody(bench, instance) for instance in (None, "i", None, None)]
    stable(bench, *members)
    first, second, third, last = members
    make = LEAVE_GROUP.request.MemberIdentity
    leaving = [
        make(first.id),
        # An administrator knows only the instance (KIP-345).
        make("", "i"),
        make(third.id, "unknown"),
        make("nobody"),
        make(""),
    ]
    response = bench.peer().ask(LEAVE_GROUP, 5, group_id=G, members=leaving)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [each.error_code for each in response.members] == [0, 0, unknown, unknown, unknown]
    assert [(each.member_id, each.group_instance_id) for each in response.members] == [
        (each.member_id, each.group_instance_id) for each in leaving
    ]
    third.begin_join()
    bench.until_waiting(third)
    assert names(last.join()) | names(third.joined()) == {third.id, last.id}
    assert second.heartbeat() == unknown


def test_who_waits_hears_that_it_has_been_removed(bench: Bench) -> None:
    first, second = Somebody(bench), Somebody(bench)
    stable(bench, first)
    second.begin_join()
    bench.until_waiting(second)
    assert first.leave(second.id) == 0
    assert second.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_generations_go_on_after_all_have_left(bench: Bench) -> None:
    member = Somebody(bench)
    stable(bench, member)
    member.leave()
    assert bench.described().protocol_type == "consumer"
    member.id = ""
    assert member.join().generation_id == 3


# Static members


def test_a_static_member_that_starts_again_keeps_its_assignment(bench: Bench) -> None:
    leader, old = Somebody(bench), Somebody(bench, "i")
    stable(bench, leader, old)
    new = Somebody(bench, "i")
    joined = new.join()
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 2, leader.id)
    assert new.id.startswith("i-")
    assert new.id != old.id
    assert new.sync() == (0, b"1")
    assert leader.heartbeat() == new.heartbeat() == 0

    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert old.heartbeat() == fenced
    assert old.sync()[0] == fenced
    assert old.commit() == fenced
    assert old.leave() == fenced
    old.send_join()
    assert old.joined().error_code == fenced
    assert new.heartbeat(group_instance_id="other") == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [8, 9])
def test_a_static_leader_starts_again(bench: Bench, version: int) -> None:
    old, follower = Somebody(bench, "i"), Somebody(bench)
    stable(bench, old, follower)
    new = Somebody(bench, "i", version=version)
    joined = new.join()
    assert (joined.error_code, joined.generation_id) == (0, 2)
    if version >= 9:
        # It watches over the group as before, and assigns nothing (KIP-814).
        assert joined.skip_assignment
        assert (joined.leader, names(joined)) == (new.id, {new.id, follower.id})
    else:
        assert (joined.leader, names(joined)) == (old.id, set())
    assert new.sync() == (0, b"0")
    assert follower.heartbeat() == 0


def test_a_static_member_with_another_protocol_begins_a_rebalance(bench: Bench) -> None:
    both = {"range": b"", "sticky": b""}
    leader, old = Somebody(bench, protocols=both), Somebody(bench, "i", protocols=both)
    stable(bench, leader, old)
    new = Somebody(bench, "i", protocols={"sticky": b""})
    new.begin_join()
    bench.until_waiting(new)
    assert leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.join().protocol_name == new.joined().protocol_name == "sticky"


def test_a_static_member_starts_again_while_it_waits(bench: Bench) -> None:
    leader, old = Somebody(bench), Somebody(bench, "i")
    stable(bench, leader)
    old.begin_join()
    bench.until_waiting(old)
    new = Somebody(bench, "i")
    new.begin_join()
    assert old.joined().error_code == ErrorCode.FENCED_INSTANCE_ID
    leader.join()
    assert new.joined().error_code == 0
    new.send_sync()
    bench.until_waiting(new)
    newer = Somebody(bench, "i")
    newer.begin_join()
    assert new.synced()[0] == ErrorCode.FENCED_INSTANCE_ID
    assert leader.join().error_code == newer.joined().error_code == 0


def test_a_rebalance_does_not_lose_static_members(bench: Bench) -> None:
    leader, follower = Somebody(bench, "i", rebalance_ms=2_000), Somebody(bench, "j", rebalance_ms=2_000)
    stable(bench, leader, follower)
    follower.protocols = {"range": b"changed"}
    follower.begin_join()
    bench.until_waiting(follower)
    bench.advance(2_000)
    joined = follower.joined()
    # One that has joined leads.
    assert (joined.generation_id, joined.leader) == (3, follower.id)
    assert names(joined) == {leader.id, follower.id}


def test_a_rebalance_waits_on_while_no_static_member_has_come(bench: Bench) -> None:
    member = Somebody(bench)
    one, other = (Somebody(bench, each, session_ms=60_000, rebalance_ms=2_000) for each in "ij")
    member.rebalance_ms = 2_000
    stable(bench, member, one, other)
    assert member.leave() == 0
    bench.advance(2_000)
    assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    one.begin_join()
    bench.until_waiting(one)
    bench.advance(2_000)
    joined = one.joined()
    assert (joined.generation_id, joined.leader, names(joined)) == (3, one.id, {one.id, other.id})


def test_static_members_leave_after_their_session(bench: Bench) -> None:
    member = Somebody(bench, "i")
    stable(bench, member)
    member.peer.close()
    bench.advance(9_000)
    assert bench.described().group_state == "Stable"
    bench.advance(1_000)
    assert bench.described().group_state == "Empty"


# Offsets


def committed(peer: Peer, version: int, **fields: Any) -> int:
    response = peer.ask(OFFSET_COMMIT, version, **{"group_id": G, **fields})
    code: int = response.topics[0].partitions[0].error_code
    return code


@pytest.mark.parametrize("version", range(*_span(OFFSET_COMMIT)))
def test_committing_in_each_version(bench: Bench, version: int) -> None:
    peer = bench.peer()
    assert committed(peer, version, topics=topics_of(OFFSET_COMMIT.request, 7, metadata="m")) == 0
    assert bench.offset() == (7, 0)
    # The group exists, and has no members.
    described = bench.described()
    assert (described.group_state, described.protocol_type, described.members) == ("Empty", "", [])
    member = Somebody(bench)
    stable(bench, member)
    mine = {"generation_id_or_member_epoch": 1, "member_id": member.id}
    assert committed(peer, version, topics=topics_of(OFFSET_COMMIT.request, 8), **mine) == 0
    assert bench.offset() == (8, 0)


def test_only_members_commit_beside_members(bench: Bench) -> None:
    topics = topics_of(OFFSET_COMMIT.request, 7)
    peer = bench.peer()
    assert (
        committed(peer, 7, topics=topics, generation_id_or_member_epoch=1, member_id="m")
        == ErrorCode.ILLEGAL_GENERATION
    )
    member = Somebody(bench)
    stable(bench, member)
    assert committed(peer, 7, topics=topics) == ErrorCode.UNKNOWN_MEMBER_ID
    member.leave()
    assert committed(peer, 7, topics=topics) == 0
    assert member.commit() == ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_that_are_refused(bench: Bench) -> None:
    request = OFFSET_COMMIT.request
    peer = bench.peer()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert committed(peer, 7, topics=topics_of(request, 1, topic="other")) == unknown
    assert committed(peer, 7, topics=topics_of(request, 1, index=3)) == unknown
    long = "m" * 4097
    assert (
        committed(peer, 7, topics=topics_of(request, 1, metadata=long)) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    )
    # Other partitions are committed all the same.
    part = request.OffsetCommitRequestPartition
    parts = [part(0, 5, -1, long[1:]), part(9, 5, -1, "")]
    response = peer.ask(OFFSET_COMMIT, 7, group_id=G, topics=[request.OffsetCommitRequestTopic("t", parts)])
    assert [each.error_code for each in response.topics[0].partitions] == [0, unknown]
    assert bench.offset() == (5, 0)
    assert peer.ask(OFFSET_COMMIT, 7, group_id=G).topics == []


@pytest.mark.parametrize("version", range(*_span(OFFSET_FETCH)))
def test_fetching_offsets_in_each_version(bench: Bench, version: int) -> None:
    peer, request = bench.peer(), OFFSET_FETCH.request
    part = OFFSET_COMMIT.request.OffsetCommitRequestPartition
    topics = [OFFSET_COMMIT.request.OffsetCommitRequestTopic("t", [part(1, 7, 3, "m"), part(2, 8, -1, None)])]
    peer.ask(OFFSET_COMMIT, 7, group_id=G, topics=topics)

    def fetched(indexes: list[int] | None) -> list[tuple[int, int, int, str, int]]:
        if version >= 8:
            wanted = None if indexes is None else [request.OffsetFetchRequestTopics("t", indexes)]
            groups = [request.OffsetFetchRequestGroup(each, topics=wanted) for each in (G, "other")]
            mine, other = peer.ask(OFFSET_FETCH, version, groups=groups).groups
            assert (mine.group_id, other.group_id) == (G, "other")
            assert (mine.error_code, other.error_code) == (0, 0)
            assert {each.committed_offset for topic in other.topics for each in topic.partitions} <= {-1}
            (topic,) = mine.topics
        else:
            wanted = None if indexes is None else [request.OffsetFetchRequestTopic("t", indexes)]
            response = peer.ask(OFFSET_FETCH, version, group_id=G, topics=wanted)
            assert response.error_code == 0
            (topic,) = response.topics
        return [tuple(each) for each in topic.partitions]

    epoch = 3 if version >= 5 else -1
    assert fetched([0, 1, 99]) == [(0, -1, -1, "", 0), (1, 7, epoch, "m", 0), (99, -1, -1, "", 0)]
    if version >= 2:
        assert fetched(None) == [(1, 7, epoch, "m", 0), (2, 8, -1, "", 0)]


@pytest.mark.parametrize("commits", [False, True])
def test_offsets_of_open_transactions_are_not_stable(bench: Bench, commits: bool) -> None:
    transaction = Transaction(bench)
    assert bench.described().group_state == "Dead"
    assert transaction.commit(9) == 0
    assert bench.described().group_state == "Empty"
    assert bench.offset() == (-1, 0)
    assert bench.offset(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert bench.offset(1, require_stable=True) == (-1, 0)
    transaction.end(commits)
    assert bench.offset(require_stable=True) == (9 if commits else -1, 0)


def test_a_transaction_names_the_member_that_read(bench: Bench) -> None:
    leader, member = Somebody(bench), Somebody(bench, "i")
    stable(bench, leader, member)
    transaction = Transaction(bench)
    mine = {"member_id": member.id, "group_instance_id": "i", "generation_id": 2}
    assert transaction.commit(1, **{**mine, "generation_id": 1}) == ErrorCode.ILLEGAL_GENERATION
    assert transaction.commit(1, **{**mine, "member_id": leader.id}) == ErrorCode.FENCED_INSTANCE_ID
    unknown = {"member_id": "nobody", "generation_id": 2}
    assert transaction.commit(1, **unknown) == ErrorCode.UNKNOWN_MEMBER_ID
    assert transaction.commit(1, **mine) == 0
    transaction.end(True)
    assert bench.offset() == (1, 0)


# Administration


@pytest.mark.parametrize("version", range(*_span(DESCRIBE_GROUPS)))
def test_describing_in_each_version(bench: Bench, version: int) -> None:
    leader, member = Somebody(bench), Somebody(bench, "i")
    stable(bench, leader, member)
    options = {"include_authorized_operations": True} if version >= 3 else {}
    known, unknown = bench.peer().ask(DESCRIBE_GROUPS, version, groups=[G, "other"], **options).groups
    assert (known.error_code, known.group_id, known.group_state) == (0, G, "Stable")
    assert (known.protocol_type, known.protocol_data) == ("consumer", "range")
    instance = "i" if version >= 4 else None
    assert [tuple(each) for each in known.members] == [
        (leader.id, None, "peer", "/127.0.0.1", b"subscription", b"0"),
        (member.id, instance, "peer", "/127.0.0.1", b"subscription", b"1"),
    ]
    assert known.authorized_operations == (1 << 3 | 1 << 6 | 1 << 8 if version >= 3 else -(2**31))
    assert (unknown.group_id, unknown.group_state, unknown.members) == ("other", "Dead", [])
    assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert unknown.error_message == ("Group other not found." if version >= 6 else None)


def test_a_group_in_a_rebalance_shows_no_assignments(bench: Bench) -> None:
    member = Somebody(bench)
    member.join()
    described = bench.described()
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
    assert [(each.member_metadata, each.member_assignment) for each in described.members] == [(b"", b"")]


@pytest.mark.parametrize("version", range(*_span(LIST_GROUPS)))
def test_listing_in_each_version(bench: Bench, version: int) -> None:
    stable(bench, Somebody(bench))
    peer = bench.peer()
    committed(peer, 7, group_id="simple", topics=topics_of(OFFSET_COMMIT.request, 1))

    def listed(**filters: list[str]) -> list[tuple[str, str, str, str]]:
        response = peer.ask(LIST_GROUPS, version, **filters)
        assert response.error_code == 0
        return [tuple(each) for each in response.groups]

    state, kind = version >= 4, "classic" if version >= 5 else ""
    both = [(G, "consumer", "Stable" * state, kind), ("simple", "", "Empty" * state, kind)]
    assert listed() == both
    if version >= 4:
        assert listed(states_filter=["Stable", "Dead"]) == both[:1]
        assert listed(states_filter=["empty"]) == both[1:]
    if version >= 5:
        assert listed(types_filter=["Classic"]) == both
        assert listed(types_filter=["consumer"]) == []


@pytest.mark.parametrize("version", range(*_span(DELETE_GROUPS)))
def test_deleting_in_each_version(bench: Bench, version: int) -> None:
    member = Somebody(bench)
    stable(bench, member)
    assert member.commit() == 0

    def deleted() -> list[tuple[str, int]]:
        response = member.peer.ask(DELETE_GROUPS, version, groups_names=[G, "other"])
        return [tuple(each) for each in response.results]

    assert deleted() == [(G, ErrorCode.NON_EMPTY_GROUP), ("other", ErrorCode.GROUP_ID_NOT_FOUND)]
    member.leave()
    assert deleted() == [(G, 0), ("other", ErrorCode.GROUP_ID_NOT_FOUND)]
    assert deleted()[0] == (G, ErrorCode.GROUP_ID_NOT_FOUND)
    assert bench.offset() == (-1, 0)
    member.id = ""
    assert member.join().generation_id == 1
    assert member.peer.ask(DELETE_GROUPS, version).results == []


def test_a_group_with_pending_offsets_can_be_deleted(bench: Bench) -> None:
    transaction = Transaction(bench)
    transaction.commit(9)
    response = transaction.peer.ask(DELETE_GROUPS, 2, groups_names=[G])
    assert response.results[0].error_code == 0
    assert bench.offset(require_stable=True) == (-1, 0)
    transaction.end(True)
    assert bench.offset() == (-1, 0)
    assert bench.described().group_state == "Dead"


# Where, and who


def _top(response: Any) -> int:
    code: int = response.error_code
    return code


#: What a client says about the group "g", and where the response has its error code.
REQUESTS: list[tuple[Api, int, dict[str, Any], Callable[[Any], int]]] = [
    (JOIN_GROUP, 7, {**JOIN, "group_id": G}, _top),
    (SYNC_GROUP, 4, {"group_id": G}, _top),
    (HEARTBEAT, 4, {"group_id": G}, _top),
    (LEAVE_GROUP, 5, {"group_id": G}, _top),
    (
        OFFSET_COMMIT,
        7,
        {"group_id": G, "topics": topics_of(OFFSET_COMMIT.request, 1)},
        lambda response: response.topics[0].partitions[0].error_code,
    ),
    (
        OFFSET_FETCH,
        1,
        {"group_id": G, "topics": [OFFSET_FETCH.request.OffsetFetchRequestTopic("t", [0])]},
        lambda response: response.topics[0].partitions[0].error_code,
    ),
    (OFFSET_FETCH, 7, {"group_id": G, "topics": None}, _top),
    (
        OFFSET_FETCH,
        8,
        {"groups": [OFFSET_FETCH.request.OffsetFetchRequestGroup(G, topics=None)]},
        lambda response: response.groups[0].error_code,
    ),
    (DESCRIBE_GROUPS, 5, {"groups": [G]}, lambda response: response.groups[0].error_code),
    (DELETE_GROUPS, 2, {"groups_names": [G]}, lambda response: response.results[0].error_code),
    (
        OFFSET_DELETE,
        0,
        {
            "group_id": G,
            "topics": [
                OFFSET_DELETE.request.OffsetDeleteRequestTopic(
                    "t", [OFFSET_DELETE.request.OffsetDeleteRequestPartition(0)]
                )
            ],
        },
        _top,
    ),
]


def codes(peer: Peer) -> list[int]:
    """Returns the error code of each kind of request."""
    return [code(peer.ask(api, version, **fields)) for api, version, fields, code in REQUESTS]


def test_only_the_coordinator_answers(two: Bench) -> None:
    other = two.peer(3 - two.coordinator())
    assert codes(other) == [ErrorCode.NOT_COORDINATOR] * len(REQUESTS)
    committed(two.peer(), 7, topics=topics_of(OFFSET_COMMIT.request, 1))
    assert other.ask(LIST_GROUPS, 5).groups == []
    found = other.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[G]).coordinators[0]
    assert found.node_id == two.coordinator()


def test_a_new_coordinator_loads_its_log_first(two: Bench) -> None:
    leader, member = Somebody(two), Somebody(two)
    stable(two, leader, member)
    leader.commit(3)
    new = 3 - two.coordinator()
    two.move(new, load_ms=60_000)
    peer = two.peer()
    loading = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * len(REQUESTS)
    # Heartbeats are taken unseen.
    loading[2] = ErrorCode.NO_ERROR
    assert codes(peer) == loading
    assert peer.ask(LIST_GROUPS, 5).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    two.advance(60_000)
    leader.peer, member.peer = two.peer(), two.peer()
    assert leader.heartbeat() == member.heartbeat() == 0
    assert two.offset() == (3, 0)
    # The sessions have begun anew.
    two.advance(9_000)
    assert leader.heartbeat() == 0
    two.advance(1_000)
    assert leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_coordinator_that_loses_its_place_tells_who_waits(two: Bench) -> None:
    leader, member, joining = Somebody(two), Somebody(two), Somebody(two)
    stable(two, leader, member)
    joining.begin_join()
    two.until_waiting(joining)
    two.move(3 - two.coordinator())
    assert joining.joined().error_code == ErrorCode.NOT_COORDINATOR
    # The next one knows what was written.
    leader.peer, joining.peer = two.peer(), two.peer()
    assert two.described().group_state == "Stable"
    assert leader.heartbeat() == 0
    assert joining.heartbeat(generation_id=2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_first_generation_is_lost_with_its_coordinator(two: Bench) -> None:
    member = Somebody(two)
    member.join()
    two.move(3 - two.coordinator())
    assert two.described().group_state == "Dead"
    member.peer = two.peer()
    member.send_join()
    assert member.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def slow_log(bench: Bench) -> None:
    """Lets writes of coordinators take ten seconds."""
    bench.call(lambda cluster: setattr(cluster.homes, "log_ms", (10_000, 10_000)))


def is_writing(cluster: EmbeddedCluster) -> bool:
    return bool(cluster.groups.homes.home(GROUP, G).writing)


def test_answers_wait_for_the_log(bench: Bench) -> None:
    member = Somebody(bench, session_ms=60_000, rebalance_ms=60_000)
    member.join()
    slow_log(bench)
    member.send_sync({member.id: b"x"})
    bench.until_waiting(member)
    until(lambda: bench.call(is_writing), "a write")
    assert bench.described().group_state == "CompletingRebalance"
    bench.advance(10_000)
    assert member.synced() == (0, b"x")
    topics = topics_of(OFFSET_COMMIT.request, 5)
    who = {"generation_id_or_member_epoch": member.generation, "member_id": member.id}
    member.peer.send(OFFSET_COMMIT, 7, group_id=G, topics=topics, **who)
    until(lambda: bench.call(is_writing), "a write")
    assert bench.offset() == (-1, 0)
    bench.advance(10_000)
    assert member.peer.receive().topics[0].partitions[0].error_code == 0
    assert bench.offset() == (5, 0)


def test_a_rebalance_begins_while_an_assignment_is_written(bench: Bench) -> None:
    first, second = (Somebody(bench, session_ms=60_000) for _ in range(2))
    first.join()
    slow_log(bench)
    first.send_sync({first.id: b"x"})
    until(lambda: bench.call(is_writing), "a write")
    second.begin_join()
    assert first.synced()[0] == ErrorCode.REBALANCE_IN_PROGRESS
    bench.advance(10_000)
    assert bench.described().group_state == "PreparingRebalance"
    assert names(first.join()) == {first.id, second.id}


def test_a_member_joins_a_group_that_is_being_deleted(bench: Bench) -> None:
    peer, member = bench.peer(), Somebody(bench)
    committed(peer, 7, topics=topics_of(OFFSET_COMMIT.request, 5))
    slow_log(bench)
    peer.send(DELETE_GROUPS, 2, groups_names=[G])
    until(lambda: bench.call(is_writing), "a write")
    member.join()
    bench.advance(10_000)
    assert peer.receive().results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    assert bench.offset() == (5, 0)


def test_a_static_member_starts_again_while_its_coordinator_moves(two: Bench) -> None:
    old, new = Somebody(two, "i", session_ms=60_000), Somebody(two, "i", session_ms=60_000)
    stable(two, old)
    slow_log(two)
    new.begin_join()
    until(lambda: two.call(is_writing), "a write")
    two.move(3 - two.coordinator())
    assert new.joined().error_code == ErrorCode.NOT_COORDINATOR


def test_rights_on_groups(bench: Bench) -> None:
    bench.deny(*((each, "group", G) for each in ("READ", "DESCRIBE", "DELETE")))
    peer = bench.peer()
    assert codes(peer) == [ErrorCode.GROUP_AUTHORIZATION_FAILED] * len(REQUESTS)
    bench.deny(("DESCRIBE", "group", G))
    assert committed(peer, 7, topics=topics_of(OFFSET_COMMIT.request, 1)) == 0
    # Who may describe the cluster sees all groups.
    assert [each.group_id for each in peer.ask(LIST_GROUPS, 5).groups] == [G]
    bench.deny(("DESCRIBE", "group", G), ("DESCRIBE", "cluster", "kafka-cluster"))
    assert peer.ask(LIST_GROUPS, 5).groups == []


def test_rights_on_topics(bench: Bench) -> None:
    peer, topics = bench.peer(), topics_of(OFFSET_COMMIT.request, 1)
    bench.deny(("READ", "topic", "t"))
    assert committed(peer, 7, topics=topics) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    bench.deny()
    assert committed(peer, 7, topics=topics) == 0
    bench.deny(("DESCRIBE", "topic", "t"))
    assert bench.offset() == (-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert peer.ask(OFFSET_FETCH, 7, group_id=G, topics=None).topics == []


def fail(bench: Bench, api: Api, code: int, **where: Any) -> None:
    bench.call(lambda cluster: cluster.faults.add(Rule(FAIL, api, code, **where)))


def test_faults(bench: Bench) -> None:
    peer = bench.peer()
    for api, version, fields, code in REQUESTS:
        fail(bench, api, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert code(peer.ask(api, version, **fields)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    fail(bench, LIST_GROUPS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert peer.ask(LIST_GROUPS, 5).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    fail(bench, HEARTBEAT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert peer.ask(HEARTBEAT, 4, group_id=G).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_faults_of_partitions(bench: Bench) -> None:
    # This code has its place beside a partition.
    fail(bench, OFFSET_FETCH, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert bench.offset() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    fail(bench, OFFSET_FETCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic="t", partition=1)
    assert bench.offset(0) == (-1, 0)
    assert bench.offset(1) == (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert bench.offset(1) == (-1, 0)
