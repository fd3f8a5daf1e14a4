"""Leaders, epochs, partition counts and topic ids, and the view of them that partitioners get."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.control.cluster_view import BrokerMetadata, TopicView, TopicViews
from cyproducer.control.topic_state import OLDER_ANSWERS, Merged, TopicState
from cyproducer.wire.responses import NO_TOPIC_ID, PartitionInfo, TopicInfo
from tests.control.test_metadata import ID_A, ID_B, known, refresh, response, topic


def test_an_older_epoch_never_replaces_a_newer_one() -> None:
    metadata = known(topic(leaders=(1, 2), epochs=(5, 5)))
    change = refresh(metadata, topic(leaders=(3, 3), epochs=(4, 6)))
    assert change.leaders_moved == [("t", 1)]
    assert (metadata.leader("t", 0), metadata.leader("t", 1)) == (1, 3)
    assert (metadata.leader_epoch("t", 0), metadata.leader_epoch("t", 1)) == (5, 6)
    assert metadata.leader_epoch("t", 9) == metadata.leader_epoch("u", 0) == -1


def test_the_same_epoch_is_accepted() -> None:
    metadata = known(topic(leaders=(1,), epochs=(5,)))
    refresh(metadata, topic(leaders=(2,), epochs=(5,)))
    assert metadata.leader("t", 0) == 2


def test_brokers_without_epochs_are_believed_and_the_epoch_is_kept() -> None:
    metadata = known(topic(leaders=(1,), epochs=(5,)))
    refresh(metadata, topic(leaders=(2,), epochs=(-1,)))
    assert metadata.leader("t", 0) == 2
    assert metadata.leader_epoch("t", 0) == 5
    refresh(metadata, topic(leaders=(3,), epochs=(4,)), now_ms=400)
    assert metadata.leader("t", 0) == 2


@given(
    epochs=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 20)), min_size=1, max_size=30),
    recreate_at=st.integers(0, 40),
)
def test_epochs_never_go_back_within_one_topic_id(epochs: list[tuple[int, int]], recreate_at: int) -> None:
    state = TopicState(0)
    newest: dict[int, int] = {}
    for step, (partition, epoch) in enumerate(epochs):
        if step == recreate_at:
            newest.clear()
        topic_id = ID_A if step < recreate_at else ID_B
        state.merge(TopicInfo(0, "t", topic_id, False, [PartitionInfo(0, partition, step, epoch)]))
        if epoch >= newest.get(partition, -1):
            assert state.leaders[partition] == step
        newest[partition] = max(newest.get(partition, -1), epoch)
        assert state.epochs.get(partition, -1) == newest[partition]


def test_a_topic_under_a_new_id_is_another_topic() -> None:
    metadata = known(topic(leaders=(1, 2, 3), epochs=(5, 5, 5), topic_id=ID_A))
    change = refresh(metadata, topic(leaders=(2, 2), epochs=(0, 0), topic_id=ID_B))
    assert change.topics_recreated == change.topics_changed == ["t"]
    assert change.leaders_moved == []
    assert metadata.leader("t", 0) == 2
    assert metadata.leader_epoch("t", 0) == 0
    assert metadata.partition_count("t") == 2
    assert metadata.topic_id("t") == ID_B


def test_an_id_that_becomes_known_does_not_replace_the_topic() -> None:
    metadata = known(topic(epochs=(5, 5), topic_id=NO_TOPIC_ID))
    assert metadata.topic_id("t") is None
    assert not metadata.is_gone("t", 2)
    change = refresh(metadata, topic(epochs=(4, 4), topic_id=ID_A))
    assert change.topics_recreated == []
    # The accumulator must learn the id.
    assert change.topics_changed == ["t"]
    assert metadata.is_gone("t", 2)
    assert not metadata.is_gone("t", 1)
    assert not metadata.is_gone("u", 0)
    assert metadata.leader_epoch("t", 0) == 5
    assert metadata.topic_id("t") == ID_A
    # A broker too old for topic ids removes nothing.
    change = refresh(metadata, topic(epochs=(6, 6), topic_id=NO_TOPIC_ID), now_ms=400)
    assert change.topics_recreated == []
    assert metadata.topic_id("t") == ID_A


def test_without_ids_a_recreated_topic_may_have_older_epochs() -> None:
    metadata = known(topic(leaders=(1,), epochs=(5,), topic_id=NO_TOPIC_ID))
    refresh(metadata, topic(leaders=(), error_code=3, topic_id=NO_TOPIC_ID))
    assert metadata.leader("t", 0) == 1
    refresh(metadata, topic(leaders=(2,), epochs=(0,), topic_id=NO_TOPIC_ID), now_ms=400)
    assert metadata.leader("t", 0) == 2
    refresh(metadata, topic(leaders=(), error_code=3, topic_id=NO_TOPIC_ID), now_ms=600)
    assert metadata.leader_epoch("t", 0) == -1
    refresh(metadata, topic(leaders=(2,), epochs=(0,), topic_id=NO_TOPIC_ID), now_ms=800)
    assert metadata.leader_epoch("t", 0) == 0


def older(leader: int = 3, topic_id: bytes = NO_TOPIC_ID) -> TopicInfo:
    return TopicInfo(0, "t", topic_id, False, [PartitionInfo(0, 0, leader, 0)])


def test_without_ids_older_epochs_are_accepted_when_they_persist() -> None:
    state = TopicState(0)
    state.merge(TopicInfo(0, "t", NO_TOPIC_ID, False, [PartitionInfo(0, 0, 1, 5)]))
    for _ in range(OLDER_ANSWERS - 1):
        assert state.merge(older()) == Merged(False, False, [], False)
        assert state.leaders == {0: 1}
    assert state.merge(older()) == Merged(False, False, [0], True)
    assert (state.leaders, state.epochs) == ({0: 3}, {0: 0})


def test_a_lagging_broker_is_not_believed_however_often_it_responds_in_between() -> None:
    state = TopicState(0)
    newest = TopicInfo(0, "t", NO_TOPIC_ID, False, [PartitionInfo(0, 0, 1, 5)])
    for _ in range(3):
        state.merge(newest)
        for _ in range(OLDER_ANSWERS - 1):
            state.merge(older())
    assert (state.leaders, state.epochs) == ({0: 1}, {0: 5})


def test_with_ids_older_epochs_are_never_accepted() -> None:
    state = TopicState(0)
    state.merge(TopicInfo(0, "t", ID_A, False, [PartitionInfo(0, 0, 1, 5)]))
    for _ in range(2 * OLDER_ANSWERS):
        state.merge(older(topic_id=ID_A))
    assert (state.leaders, state.epochs) == ({0: 1}, {0: 5})


def test_with_ids_a_topic_that_was_missing_keeps_its_epochs() -> None:
    metadata = known(topic(leaders=(1,), epochs=(5,)))
    refresh(metadata, topic(leaders=(), error_code=3, topic_id=NO_TOPIC_ID))
    refresh(metadata, topic(leaders=(2,), epochs=(0,)), now_ms=400)
    assert metadata.leader("t", 0) == 1


def test_partition_counts_grow() -> None:
    metadata = known(topic(leaders=(1,)))
    change = refresh(metadata, topic(leaders=(1, 2, 3)))
    assert change.topics_changed == ["t"]
    assert change.leaders_moved == []
    assert metadata.partition_count("t") == 3


def test_the_same_topic_does_not_shrink() -> None:
    metadata = known(topic(leaders=(1, 2, 3), epochs=(1, 2, 3)))
    change = refresh(metadata, topic(leaders=(2,), epochs=(2,)))
    assert change.topics_changed == []
    assert metadata.partition_count("t") == 3
    assert metadata.leader("t", 0) == 2
    assert (metadata.leader("t", 2), metadata.leader_epoch("t", 2)) == (3, 3)


def test_without_ids_fewer_partitions_are_accepted() -> None:
    metadata = known(topic(leaders=(1, 2, 3), topic_id=NO_TOPIC_ID))
    change = refresh(metadata, topic(leaders=(1,), topic_id=NO_TOPIC_ID))
    assert change.topics_changed == ["t"]
    assert metadata.partition_count("t") == 1


def test_the_same_response_changes_nothing_and_keeps_the_leaders() -> None:
    state = TopicState(0)
    assert state.merge(topic(leaders=(1, 2))) == Merged(True, False, [], True)
    leaders = state.leaders
    assert state.merge(topic(leaders=(1, 2))) == Merged(False, False, [], False)
    assert state.leaders is leaders


def test_huge_partition_numbers_take_no_memory() -> None:
    state = TopicState(0)
    state.merge(TopicInfo(0, "t", ID_A, False, [PartitionInfo(0, 2**31 - 1, 1, 0)]))
    assert state.leaders == {2**31 - 1: 1}


# Leaders that a Produce response named


def test_a_newer_leader_is_accepted_at_once() -> None:
    metadata = known(topic(leaders=(1, 2), epochs=(5, 5)))
    assert metadata.update_leader("t", 0, 3, 6)
    assert metadata.leader("t", 0) == 3
    assert metadata.leader_epoch("t", 0) == 6
    assert metadata.broker(3) == BrokerMetadata(3, "broker-3", 9092, None)
    # The response with the older leader contains nothing new.
    change = refresh(metadata, topic(leaders=(1, 2), epochs=(5, 5)))
    assert change.leaders_moved == []
    assert metadata.leader("t", 0) == 3


@pytest.mark.parametrize(
    ("name", "partition", "node_id", "epoch", "endpoint"),
    [
        ("t", 0, 3, 5, None),
        ("t", 0, 3, 4, None),
        ("t", 7, 3, 6, None),
        ("u", 0, 3, 6, None),
        ("t", 0, 8, 6, None),
        ("t", 0, 8, 6, BrokerMetadata(9, "nine", 9092, None)),
    ],
)
def test_a_leader_that_is_not_newer_or_not_known_is_ignored(
    name: str, partition: int, node_id: int, epoch: int, endpoint: BrokerMetadata | None
) -> None:
    metadata = known(topic(leaders=(1, 2), epochs=(5, 5)))
    assert not metadata.update_leader(name, partition, node_id, epoch, endpoint)
    assert metadata.leader("t", 0) == 1
    assert metadata.broker_ids() == [1, 2, 3]


def test_a_new_leader_may_bring_its_address() -> None:
    metadata = known(topic(leaders=(1, 2), epochs=(5, 5)))
    endpoint = BrokerMetadata(8, "eight", 9092, None)
    assert metadata.update_leader("t", 0, 8, 6, endpoint)
    assert metadata.leader("t", 0) == 8
    assert metadata.broker(8) == endpoint


# The view


def test_the_view_has_kafka_pythons_method_names() -> None:
    metadata = known(topic(leaders=(1, -1, 9)))
    metadata.track("unanswered", 0)
    view = metadata.view()
    first = BrokerMetadata(1, "broker-1", 9092, None)
    assert view.brokers() == {BrokerMetadata(node, f"broker-{node}", 9092, None) for node in (1, 2, 3)}
    assert view.broker_metadata(1) == first
    assert view.broker_metadata(9) is None
    assert first.node_id == first.nodeId == 1
    assert view.controller == first
    assert view.cluster_id == "cluster"
    assert view.topics() == {"t"}
    assert view.partitions_for_topic("t") == {0, 1, 2}
    assert view.partitions_for_topic("unanswered") is None
    assert view.available_partitions_for_topic("t") == {0, 2}
    assert view.available_partitions_for_topic("u") == set()
    assert view.leader_for_partition("t", 0) == first
    assert view.leader_for_partition(("t", 0)) == first
    for missing in (("t", 1), ("t", 2), ("t", 3), ("u", 0)):
        assert view.leader_for_partition(missing) is None


def test_the_view_refuses_a_wrong_call() -> None:
    view = known(topic()).view()
    with pytest.raises(TypeError, match="needs a partition too"):
        view.leader_for_partition("t")
    with pytest.raises(TypeError, match="has two partitions"):
        view.leader_for_partition(("t", 0), 1)


def test_internal_topics_are_left_out_unless_asked_for() -> None:
    view = known(topic(), topic("__offsets")._replace(is_internal=True)).view()
    assert view.topics() == {"t"}
    assert view.topics(exclude_internal_topics=False) == {"t", "__offsets"}


def test_a_view_never_changes_and_the_next_one_is_new() -> None:
    metadata = known(topic(leaders=(1, 2), epochs=(5, 5)))
    before = metadata.view()
    assert metadata.view() is before
    assert metadata.update_leader("t", 0, 8, 6, BrokerMetadata(8, "eight", 9092, None))
    moved = metadata.view()
    assert metadata.update_leader("t", 1, 8, 6)
    assert metadata.view() is not moved
    refresh(metadata, topic(leaders=(3, 3, 3), epochs=(7, 7, 7)))
    after = metadata.view()
    assert [view.leader_for_partition("t", 0) for view in (before, moved, after)] == [
        BrokerMetadata(1, "broker-1", 9092, None),
        BrokerMetadata(8, "eight", 9092, None),
        BrokerMetadata(3, "broker-3", 9092, None),
    ]
    assert [len(view.brokers()) for view in (before, moved, after)] == [3, 4, 3]
    assert moved.leader_for_partition("t", 1) == BrokerMetadata(2, "broker-2", 9092, None)
    metadata.rebootstrap()
    assert metadata.view().brokers() == set()
    assert before.partitions_for_topic("t") == {0, 1}


def test_a_view_shows_each_kind_of_change_of_a_topic() -> None:
    metadata = known(topic(leaders=(1, 2)), topic("u"))
    metadata.view()
    refresh(metadata, topic(leaders=(1, 3)), topic("u")._replace(is_internal=True))
    view = metadata.view()
    assert view.leader_for_partition("t", 1) == metadata.broker(3)
    assert view.topics() == {"t"}
    refresh(metadata, topic(leaders=(1, 3, 2)), topic("u", error_code=17), now_ms=400)
    assert metadata.view().partitions_for_topic("t") == {0, 1, 2}
    assert metadata.view().partitions_for_topic("u") is None
    assert view.partitions_for_topic("u") is not None


def test_a_topic_that_was_forgotten_is_not_in_the_next_view() -> None:
    metadata = known(topic("old"), topic("new"))
    view = metadata.view()
    metadata.touch(["new"], 300_000)
    metadata.request_update("a test")
    assert metadata.begin_request(300_100).expired == ["old"]
    metadata.on_response(response(topic("new")), 300_200)
    assert metadata.view().topics() == {"new"}
    assert view.topics() == {"old", "new"}


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.booleans(), max_size=3), max_size=30))
def test_topic_views_are_those_of_a_dict(steps: list[dict[str, bool]]) -> None:
    expected: dict[str, TopicView] = {}
    views = TopicViews()
    earlier = []
    for step in steps:
        changes = {name: TopicView({0: 1}, False) if known else None for name, known in step.items()}
        expected = {k: v for k, v in {**expected, **changes}.items() if v is not None}
        views = views.updated(changes)
        earlier.append((views, expected))
    for each, content in earlier:
        assert dict(each) == content
        assert len(each) == len(content)
        assert {name: each.get(name) for name in "abcdef"} == {name: content.get(name) for name in "abcdef"}
        assert each.get("g", 7) == 7


def test_a_view_of_many_topics_costs_no_copy_of_all_for_each_change() -> None:
    views = TopicViews()
    copied = 0
    for number in range(10_000):
        base = views._base
        views = views.updated({str(number): TopicView({}, False)})
        copied += len(views._recent) if views._base is base else len(views._base)
    assert len(views) == 10_000
    assert copied < 2_000_000  # 50,000,000 if each change copied all


def test_ten_thousand_partitions_are_merged_and_seen() -> None:
    leaders = tuple(index % 3 + 1 for index in range(10_000))
    metadata = known(topic(leaders=leaders))
    change = refresh(metadata, topic(leaders=leaders[1:] + leaders[:1]))
    assert len(change.leaders_moved) == sum(
        old != new for old, new in zip(leaders, leaders[1:] + leaders[:1], strict=True)
    )
    assert metadata.partition_count("t") == 10_000
    assert len(metadata.view().available_partitions_for_topic("t")) == 10_000


def test_a_broker_that_only_a_response_named_stays_while_it_leads() -> None:
    metadata = known(topic(leaders=(1, 2), epochs=(5, 5)))
    metadata.update_leader("t", 0, 8, 6, BrokerMetadata(8, "eight", 9092, None))
    change = refresh(metadata, topic(leaders=(1, 2), epochs=(5, 5)))
    assert (change.brokers_removed, metadata.leader("t", 0)) == (set(), 8)
    assert metadata.broker(8) == BrokerMetadata(8, "eight", 9092, None)
    change = refresh(metadata, topic(leaders=(2, 2), epochs=(7, 5)), now_ms=400)
    assert (change.brokers_removed, metadata.broker(8)) == ({8}, None)


def test_a_broker_that_was_listed_is_removed_when_it_no_longer_is() -> None:
    metadata = known(topic(leaders=(1, 2), epochs=(5, 5)))
    metadata.update_leader("t", 0, 8, 6, BrokerMetadata(8, "eight", 9092, None))
    metadata.request_update("test")
    metadata.begin_request(200)
    metadata.on_response(response(topic(leaders=(8, 2), epochs=(6, 5)), brokers=(1, 2, 8)), 200)
    change = refresh(metadata, topic(leaders=(8, 2), epochs=(6, 5)), now_ms=400)
    assert (change.brokers_removed, metadata.leader("t", 0)) == ({8}, None)
    metadata.update_leader("t", 0, 9, 7, BrokerMetadata(9, "nine", 9092, None))
    metadata.rebootstrap()
    refresh(metadata, topic(leaders=(9, 2), epochs=(7, 5)), now_ms=600)
    assert metadata.broker(9) is None
