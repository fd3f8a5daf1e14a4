"""Consumer groups of KIP-848 in the embedded broker: heartbeat by heartbeat, and librdkafka's consumers."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer

from cyproducer.errors.error_code import ErrorCode
from cyproducer.testing.broker.modern_groups import SESSION_MS
from cyproducer.testing.broker.retention import OFFSETS_CHECK_MS
from cyproducer.wire.messages import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
)
from tests.testing.broker.group_bench import Bench, G, Somebody, stable, topics_of
from tests.testing.broker.group_transaction import Transaction
from tools.harness.until import until

WEEK_MS: Final = 7 * 24 * 3_600_000
REBALANCE_MS: Final = 30_000


class Reader:
    """A member, or a client that wants to be one. It has given up what it does not have any more."""

    def __init__(
        self, bench: Bench, name: str = "m", instance: str | None = None, topics: tuple[str, ...] = ("t",)
    ) -> None:
        self.bench = bench
        self.peer = bench.peer()
        self.id = name
        self.instance = instance
        self.topics = topics
        self.epoch = 0
        self.parts: set[tuple[str, int]] = set()

    def send(self, **fields: Any) -> Any:
        """Sends a heartbeat in which nothing is new, but for these fields; returns the response."""
        values = {
            "group_id": G,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rebalance_timeout_ms": -1,
        }
        response = self.peer.ask(CONSUMER_GROUP_HEARTBEAT, 1, **values | fields)
        if not response.error_code:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                names = {topic_id: name for name, topic_id in self.topic_ids().items()}
                self.parts = {
                    (names[each.topic_id], index)
                    for each in response.assignment.topic_partitions
                    for index in each.partitions
                }
        return response

    def beat(self, **fields: Any) -> int:
        """Returns the error code of a heartbeat."""
        code: int = self.send(**fields).error_code
        return code

    def join(self, **fields: Any) -> int:
        """Returns the error code."""
        new = {
            "member_epoch": 0,
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": list(self.topics),
            "topic_partitions": [],
        }
        return self.beat(**new | fields)

    def topic_ids(self) -> dict[str, bytes]:
        return self.bench.call(
            lambda cluster: {name: topic.id for name, topic in cluster.topics.topics.items()}
        )

    def owned(self) -> list[Any]:
        """What it has, for a heartbeat."""
        make = CONSUMER_GROUP_HEARTBEAT.request.TopicPartitions
        topics = self.topic_ids()
        return [make(topics[name], [index]) for name, index in sorted(self.parts) if name in topics]

    def step(self) -> int:
        """Returns the error code of a heartbeat that says what it has."""
        return self.beat(topic_partitions=self.owned())

    def commit(self, version: int = 9, **fields: Any) -> int:
        """Commits an offset, and returns the error code."""
        values = {"generation_id_or_member_epoch": self.epoch, "member_id": self.id}
        topics = topics_of(OFFSET_COMMIT.request, 3)
        response = self.peer.ask(OFFSET_COMMIT, version, group_id=G, topics=topics, **values | fields)
        code: int = response.topics[0].partitions[0].error_code
        return code


def described(bench: Bench) -> Any:
    return bench.peer().ask(CONSUMER_GROUP_DESCRIBE, 1, group_ids=[G]).groups[0]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(nodes=2) as bench:
        bench.call(lambda cluster: cluster.create_topic("u", 2))
        yield bench


@pytest.fixture
def one(bench: Bench) -> Reader:
    return Reader(bench, "one")


def settled(*readers: Reader) -> list[int]:
    """Lets members come to their targets, and returns how many partitions each has."""
    for _ in range(3):
        assert [reader.step() for reader in readers] == [0] * len(readers)
    return [len(reader.parts) for reader in readers]


# Members


def test_one_member_gets_everything(bench: Bench, one: Reader) -> None:
    assert one.join() == 0
    assert (one.epoch, one.parts) == (1, {("t", 0), ("t", 1), ("t", 2)})
    # An assignment is sent once, and in the response to a full heartbeat.
    assert one.send().assignment is None
    full = {"rebalance_timeout_ms": 1, "subscribed_topic_names": ["t"], "topic_partitions": one.owned()}
    assert one.send(**full).assignment is not None
    found = described(bench)
    assert (found.error_code, found.group_state, found.assignor_name) == (0, "Stable", "uniform")
    assert (found.group_epoch, found.assignment_epoch) == (1, 1)
    (member,) = found.members
    assert (member.member_id, member.member_epoch, member.client_id) == ("one", 1, "peer")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], None)
    assert [(each.topic_name, each.partitions) for each in member.assignment.topic_partitions] == [
        ("t", [0, 1, 2])
    ]
    assert member.target_assignment == member.assignment


def test_version_0_gets_an_id(bench: Bench) -> None:
    fields = {"rebalance_timeout_ms": 1, "subscribed_topic_names": ["t"], "topic_partitions": []}
    response = bench.peer().ask(CONSUMER_GROUP_HEARTBEAT, 0, group_id=G, **fields)
    assert response.error_code == 0
    assert response.member_id


def test_a_partition_has_one_member_at_a_time(bench: Bench, one: Reader) -> None:
    two = Reader(bench, "two")
    one.join()
    assert two.join() == 0
    assert (two.epoch, two.parts) == (2, set())
    assert described(bench).group_state == "Reconciling"
    # The first member learns what to give up, and stays in its epoch until it says that it has done so.
    had = one.parts
    owned = one.owned()
    assert one.beat(topic_partitions=owned) == 0
    assert one.epoch == 1
    assert len(one.parts) == 2
    assert two.beat() == 0
    assert two.parts == set()
    for _ in range(2):
        assert one.beat() == one.beat(topic_partitions=owned) == 0
        assert one.epoch == 1
    assert one.step() == 0
    assert one.epoch == 2
    assert two.beat() == 0
    assert (len(two.parts), one.parts | two.parts, one.parts & two.parts) == (1, had, set())
    assert described(bench).group_state == "Stable"


def test_a_member_that_has_already_given_up_gets_the_next_epoch_at_once(bench: Bench, one: Reader) -> None:
    one.join()
    Reader(bench, "two").join()
    assert one.beat(topic_partitions=[]) == 0
    assert (one.epoch, len(one.parts)) == (2, 2)


def test_members_have_equal_numbers_of_partitions_and_keep_them(bench: Bench) -> None:
    readers = [Reader(bench, f"m{number}") for number in range(3)]
    for reader in readers:
        assert reader.join() == 0
    assert settled(*readers) == [1, 1, 1]
    before = readers[1].parts
    assert readers[0].beat(member_epoch=-1) == 0
    assert sorted(settled(*readers[1:])) == [1, 2]
    assert before <= readers[1].parts


def test_members_get_partitions_of_topics_that_they_subscribe_to(bench: Bench, one: Reader) -> None:
    both = Reader(bench, "both", topics=("t", "u"))
    one.join()
    both.join()
    assert settled(one, both) == [3, 2]
    assert {topic for topic, _ in both.parts} == {"u"}
    # Another subscription.
    assert one.beat(subscribed_topic_names=["u"]) == 0
    settled(one, both)
    assert {topic for topic, _ in one.parts} <= {"u"}
    assert one.parts | both.parts == {("t", 0), ("t", 1), ("t", 2), ("u", 0), ("u", 1)}


def test_range_gives_the_same_partitions_of_each_topic(bench: Bench) -> None:
    bench.call(lambda cluster: cluster.create_topic("v", 3))
    readers = [Reader(bench, name, topics=("t", "v")) for name in ("c", "a")]
    readers.append(Reader(bench, "z", "static", topics=("t", "u", "v")))
    for reader in readers:
        assert reader.join(server_assignor="range") == 0
    settled(*readers)
    # The static member is first, then the others by their ids; one member alone wants `u`.
    assert [sorted(reader.parts) for reader in readers] == [
        [("t", 2), ("v", 2)],
        [("t", 1), ("v", 1)],
        [("t", 0), ("u", 0), ("u", 1), ("v", 0)],
    ]
    assert described(bench).assignor_name == "range"
    # Without one of them, the first has one partition more.
    assert readers[0].beat(member_epoch=-1) == 0
    settled(*readers[1:])
    assert [sorted(reader.parts) for reader in readers[1:]] == [
        [("t", 2), ("v", 2)],
        [("t", 0), ("t", 1), ("u", 0), ("u", 1), ("v", 0), ("v", 1)],
    ]


def test_members_vote_for_an_assignor(bench: Bench, one: Reader) -> None:
    others = [Reader(bench, name) for name in ("two", "three")]
    assert one.join(server_assignor="range") == 0
    assert described(bench).assignor_name == "range"
    assert [other.join(server_assignor="uniform") for other in others] == [0, 0]
    assert described(bench).assignor_name == "uniform"
    # A member that names none has no vote, and keeps the one that it had.
    assert others[0].beat(member_epoch=-1) == 0
    assert one.beat(server_assignor=None) == others[1].beat(server_assignor="range") == 0
    assert described(bench).assignor_name == "range"


def test_a_static_member_that_comes_back_keeps_its_vote(bench: Bench) -> None:
    old, new = (Reader(bench, name, "static") for name in ("old", "new"))
    assert old.join(server_assignor="range") == 0
    assert old.beat(member_epoch=-2) == 0
    assert new.join() == 0
    assert described(bench).assignor_name == "range"


def test_new_partitions_and_topics_are_assigned(bench: Bench) -> None:
    reader = Reader(bench, topics=("t", "new"))
    reader.join()
    assert reader.epoch == 1
    bench.call(lambda cluster: cluster.create_topic("new", 1))
    assert settled(reader) == [4]
    assert reader.epoch == 2
    bench.call(lambda cluster: cluster.add_partitions("new", 2))
    assert settled(reader) == [6]
    bench.call(lambda cluster: cluster.delete_topic("new"))
    assert settled(reader) == [3]


@pytest.mark.parametrize("name", ["", None])
def test_members_ask_for_the_name_of_a_topic(one: Reader, name: str | None) -> None:
    wanted = METADATA.request.MetadataRequestTopic(one.topic_ids()["u"], name)
    (topic,) = one.peer.ask(METADATA, 12, topics=[wanted]).topics
    assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "u", 2)


def test_topics_by_pattern(bench: Bench) -> None:
    reader = Reader(bench)
    assert reader.join(subscribed_topic_names=None, subscribed_topic_regex="[tu]") == 0
    assert len(reader.parts) == 5
    bench.call(lambda cluster: cluster.create_topic("tt", 1))
    assert settled(reader) == [5]
    assert deleted(reader, "u") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert reader.beat(subscribed_topic_regex="") == 0
    assert settled(reader) == [0]
    assert deleted(reader, "u") == 0
    assert reader.beat(subscribed_topic_regex="[") == ErrorCode.INVALID_REGULAR_EXPRESSION


# Epochs


def test_a_member_with_a_wrong_epoch_is_fenced(bench: Bench, one: Reader) -> None:
    one.join()
    fenced = ErrorCode.FENCED_MEMBER_EPOCH
    assert one.beat(member_epoch=2) == fenced
    Reader(bench, "two").join()
    assert one.step() == 0
    assert one.step() == 0
    assert one.epoch == 2
    # It may not have received the last response.
    assert one.beat(member_epoch=1) == fenced
    all_of_t = [CONSUMER_GROUP_HEARTBEAT.request.TopicPartitions(one.owned()[0].topic_id, [0, 1, 2])]
    assert one.beat(member_epoch=1, topic_partitions=all_of_t) == fenced
    assert one.beat(member_epoch=1, topic_partitions=one.owned()) == 0
    assert one.epoch == 2
    # Who is fenced joins again, with the same id.
    assert one.join() == 0
    assert (one.epoch, len(one.parts)) == (2, 2)


def test_members_that_are_silent_are_removed(bench: Bench, one: Reader) -> None:
    two = Reader(bench, "two")
    one.join()
    bench.advance(SESSION_MS - 5000)
    two.join()
    assert settled(one, two) == [2, 1]
    bench.advance(SESSION_MS - 5000)
    assert one.beat() == 0
    bench.advance(5000)
    assert one.beat() == 0
    assert two.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    bench.advance(SESSION_MS)
    assert described(bench).group_state == "Empty"


def test_a_member_that_gives_nothing_up_is_removed(bench: Bench, one: Reader) -> None:
    two = Reader(bench, "two")
    one.join()
    two.join()
    owned = one.owned()
    assert one.beat(topic_partitions=owned) == 0
    bench.advance(REBALANCE_MS - 5000)
    assert one.beat(topic_partitions=owned) == two.beat() == 0
    bench.advance(5000)
    assert one.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert settled(two) == [3]


def test_a_member_that_gives_up_in_time_stays(bench: Bench, one: Reader) -> None:
    one.join()
    Reader(bench, "two").join()
    assert one.step() == one.step() == 0
    bench.advance(REBALANCE_MS)
    assert one.step() == 0


def test_a_member_leaves(bench: Bench, one: Reader) -> None:
    one.join()
    response = one.send(member_epoch=-1)
    assert (response.error_code, response.member_epoch, response.assignment) == (0, -1, None)
    assert described(bench).group_state == "Empty"
    assert one.beat(member_epoch=-1) == ErrorCode.UNKNOWN_MEMBER_ID


# Static members


def test_a_static_member_keeps_its_partitions(bench: Bench, one: Reader) -> None:
    old, new = Reader(bench, "old", "i"), Reader(bench, "new", "i")
    old.join()
    one.join()
    assert settled(old, one) == [2, 1]
    parts, epoch = old.parts, old.epoch
    assert new.join() == ErrorCode.UNRELEASED_INSTANCE_ID
    assert old.send(member_epoch=-2).member_epoch == -2
    assert settled(one) == [1]
    assert new.join() == 0
    assert (new.parts, new.epoch) == (parts, epoch)
    assert old.beat(member_epoch=epoch) == ErrorCode.FENCED_INSTANCE_ID
    assert old.beat(member_epoch=epoch, instance_id=None) == ErrorCode.UNKNOWN_MEMBER_ID
    assert settled(new, one) == [2, 1]
    # It leaves for good.
    assert new.beat(member_epoch=-1) == 0
    assert settled(one) == [3]


def test_a_static_member_that_does_not_come_back_is_removed(bench: Bench, one: Reader) -> None:
    gone = Reader(bench, "gone", "i")
    gone.join()
    assert gone.beat(member_epoch=-2) == 0
    bench.advance(SESSION_MS)
    one.join()
    assert len(one.parts) == 3
    assert gone.beat(member_epoch=-2) == ErrorCode.UNKNOWN_MEMBER_ID


# Offsets


def test_members_commit_with_their_epoch(bench: Bench, one: Reader) -> None:
    assert one.commit(member_id="", generation_id_or_member_epoch=-1) == 0
    one.join()
    assert one.commit() == 0
    assert one.commit(generation_id_or_member_epoch=0) == ErrorCode.STALE_MEMBER_EPOCH
    stranger = ErrorCode.UNKNOWN_MEMBER_ID
    assert one.commit(member_id="other") == stranger
    assert one.commit(member_id="", generation_id_or_member_epoch=-1) == stranger
    one.beat(member_epoch=-1)
    assert one.commit(member_id="", generation_id_or_member_epoch=-1) == 0


def test_members_fetch_offsets_with_their_epoch(bench: Bench, one: Reader) -> None:
    one.join()
    one.commit()

    def fetched(member: str | None, epoch: int) -> tuple[int, list[int]]:
        wanted = OFFSET_FETCH.request.OffsetFetchRequestGroup(G, member, epoch, None)
        found = one.peer.ask(OFFSET_FETCH, 9, groups=[wanted]).groups[0]
        offsets = [each.committed_offset for topic in found.topics for each in topic.partitions]
        return found.error_code, offsets

    assert fetched("one", 1) == fetched(None, -1) == (0, [3])
    assert fetched("one", 7) == (ErrorCode.STALE_MEMBER_EPOCH, [])
    assert fetched("two", 1) == (ErrorCode.UNKNOWN_MEMBER_ID, [])


def test_transactions_commit_with_an_epoch() -> None:
    with Bench() as bench:
        assert Reader(bench, "one").join() == 0
        transaction = Transaction(bench)
        assert transaction.commit(9, member_id="one", generation_id=1) == 0
        assert transaction.commit(9, member_id="one", generation_id=7) == ErrorCode.ILLEGAL_GENERATION


def deleted(reader: Reader, topic: str) -> int:
    """Deletes an offset, and returns the error code."""
    request = OFFSET_DELETE.request
    topics = [request.OffsetDeleteRequestTopic(topic, [request.OffsetDeleteRequestPartition(0)])]
    code: int = (
        reader.peer.ask(OFFSET_DELETE, 0, group_id=G, topics=topics).topics[0].partitions[0].error_code
    )
    return code


def test_offsets_of_subscribed_topics_are_kept(bench: Bench, one: Reader) -> None:
    one.join()
    one.commit()
    assert deleted(one, "t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert deleted(one, "u") == 0
    delete = {"groups_names": [G]}
    assert one.peer.ask(DELETE_GROUPS, 2, **delete).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    one.beat(member_epoch=-1)
    bench.advance(WEEK_MS - OFFSETS_CHECK_MS)
    assert bench.offset() == (3, 0)
    assert described(bench).group_state == "Empty"
    bench.advance(2 * OFFSETS_CHECK_MS)
    assert bench.offset() == (-1, 0)
    assert described(bench).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert one.join() == 0
    one.beat(member_epoch=-1)
    assert one.peer.ask(DELETE_GROUPS, 2, **delete).results[0].error_code == 0
    assert described(bench).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# Both protocols


def test_a_group_with_members_keeps_its_protocol(bench: Bench, one: Reader) -> None:
    classic = Somebody(bench)
    stable(bench, classic)
    assert one.join() == ErrorCode.GROUP_ID_NOT_FOUND
    assert described(bench).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert classic.commit(8) == 0
    classic.leave()
    # An empty group takes the protocol of the next member, and keeps its offsets.
    assert one.join() == 0
    assert bench.offset() == (8, 0)
    listed = one.peer.ask(LIST_GROUPS, 5, types_filter=["consumer"]).groups
    assert [tuple(each) for each in listed] == [(G, "consumer", "Stable", "consumer")]
    assert one.peer.ask(LIST_GROUPS, 5, types_filter=["classic"]).groups == []
    assert one.peer.ask(DESCRIBE_GROUPS, 6, groups=[G]).groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert classic.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    classic.id = ""
    classic.send_join()
    assert classic.joined().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    one.beat(member_epoch=-1)
    assert classic.join().error_code == 0
    assert one.beat(member_epoch=1) == ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.offset() == (8, 0)


# Where, who, and how


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2, "instance_id": None},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"subscribed_topic_names": None},
    ],
    ids=repr,
)
def test_heartbeats_that_make_no_sense(bench: Bench, one: Reader, wrong: dict[str, Any]) -> None:
    peer = bench.peer(bench.coordinator(wrong.get("group_id", G)))
    one.peer = peer
    # The group of no name needs a coordinator, too.
    expected = ErrorCode.INVALID_REQUEST
    assert one.join(**wrong) == expected
    assert bench.call(lambda cluster: cluster.groups.any(G)) is None


def test_heartbeats_that_are_refused(bench: Bench, one: Reader) -> None:
    assert one.beat(member_epoch=1) == ErrorCode.GROUP_ID_NOT_FOUND
    assert one.join(server_assignor="sticky") == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert one.join(server_assignor="uniform") == 0
    one.peer = bench.peer(3 - bench.coordinator())
    assert one.beat() == ErrorCode.NOT_COORDINATOR
    asked = one.peer.ask(CONSUMER_GROUP_DESCRIBE, 0, group_ids=[G]).groups[0]
    assert asked.error_code == ErrorCode.NOT_COORDINATOR


def test_rights(bench: Bench, one: Reader) -> None:
    for denied, code in (
        (("READ", "group", G), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (("DESCRIBE", "topic", "t"), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ):
        bench.deny(denied)
        one.peer = bench.peer()
        assert one.join() == code
    bench.deny(("DESCRIBE", "group", G))
    assert described(bench).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_new_coordinator_knows_the_group(bench: Bench, one: Reader) -> None:
    two = Reader(bench, "two")
    one.join()
    two.join()
    settled(one, two)
    parts = one.parts
    bench.move(3 - bench.coordinator(), load_ms=2 * SESSION_MS)
    one.peer, two.peer = bench.peer(), bench.peer()
    assert one.beat() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    bench.advance(2 * SESSION_MS)
    assert settled(one, two) == [2, 1]
    assert one.parts == parts
    bench.advance(SESSION_MS)
    assert one.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_coordinator_removes_who_is_silent(bench: Bench, one: Reader) -> None:
    one.join()
    bench.move(3 - bench.coordinator())
    bench.advance(SESSION_MS - 5000)
    assert described(bench).group_state == "Stable"
    bench.advance(5000)
    assert described(bench).group_state == "Empty"


def test_a_new_coordinator_waits_for_partitions(bench: Bench, one: Reader) -> None:
    one.join()
    Reader(bench, "two").join()
    owned = one.owned()
    assert one.beat(topic_partitions=owned) == 0
    bench.move(3 - bench.coordinator(), load_ms=REBALANCE_MS)
    bench.advance(REBALANCE_MS)
    one.peer = bench.peer()
    assert one.beat(topic_partitions=owned) == 0
    bench.advance(REBALANCE_MS)
    assert one.beat() == ErrorCode.UNKNOWN_MEMBER_ID


# librdkafka


def consumer(bench: Bench, **options: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bench.addresses,
            "group.id": G,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **options,
        }
    )


def test_librdkafka_asks_for_range(bench: Bench) -> None:
    bench.call(lambda cluster: cluster.create_topic("v", 3))
    first, second = (consumer(bench, **{"group.remote.assignor": "range"}) for _ in range(2))

    def shares() -> list[dict[str, list[int]]]:
        found = []
        for each in (first, second):
            each.poll(0.02)
            parts = sorted((part.topic, part.partition) for part in each.assignment())
            found.append({name: [index for topic, index in parts if topic == name] for name in ("t", "v")})
        return sorted(found, key=lambda share: share["t"])

    try:
        for each in (first, second):
            each.subscribe(["t", "v"])
        until(lambda: shares() == [{"t": [0, 1], "v": [0, 1]}, {"t": [2], "v": [2]}], "ranges")
        assert described(bench).assignor_name == "range"
    finally:
        first.close()
        second.close()


def test_librdkafka_reads_in_a_group(bench: Bench) -> None:
    producer = Producer({"bootstrap.servers": bench.addresses, "log_level": 0})
    for number in range(6):
        producer.produce("t", b"%d" % number, partition=number % 3)
    producer.flush()
    first, second = consumer(bench), consumer(bench)
    seen: list[bytes] = []

    def has_read() -> bool:
        message = first.poll(0.05)
        if message is not None and message.error() is None:
            seen.append(message.value() or b"")
        return len(seen) == 6

    def share() -> bool:
        first.poll(0.02)
        second.poll(0.02)
        numbers = sorted((len(first.assignment()), len(second.assignment())))
        return numbers == [2, 3]

    try:
        first.subscribe(["t"])
        until(has_read, "six records")
        assert sorted(seen) == [b"%d" % number for number in range(6)]
        first.commit(asynchronous=False)
        second.subscribe(["^[tu]$"])
        until(share, "both to have partitions")
        first.close()
        until(lambda: second.poll(0.05) is None and len(second.assignment()) == 5, "all partitions")
        assert bench.offset() == (2, 0)
    finally:
        first.close()
        second.close()
