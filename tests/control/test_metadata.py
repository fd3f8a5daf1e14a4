"""When metadata is requested, and how responses are handled."""

import gc
import math

import pytest

from cyproducer.control.cluster_view import BrokerMetadata
from cyproducer.control.metadata import ClusterMetadata, LastError, MetadataChange, MetadataRequest
from cyproducer.wire.responses import NO_TOPIC_ID, BrokerInfo, MetadataResponse, PartitionInfo, TopicInfo

ID_A = b"a" * 16
ID_B = b"b" * 16
BROKERS = (1, 2, 3)


def topic(
    name: str = "t",
    leaders: tuple[int, ...] = (1, 2),
    epochs: tuple[int, ...] | None = None,
    topic_id: bytes = ID_A,
    error_code: int = 0,
) -> TopicInfo:
    epochs = epochs or (0,) * len(leaders)
    partitions = [
        PartitionInfo(5 if leader < 0 else 0, index, leader, epoch)
        for index, (leader, epoch) in enumerate(zip(leaders, epochs, strict=True))
    ]
    return TopicInfo(error_code, name, topic_id, False, partitions)


def response(*topics: TopicInfo, brokers: tuple[int, ...] = BROKERS, error_code: int = 0) -> MetadataResponse:
    infos = [BrokerInfo(node_id, f"broker-{node_id}", 9092, None) for node_id in brokers]
    return MetadataResponse(0, infos, "cluster", 1, list(topics), error_code)


def new_metadata() -> ClusterMetadata:
    return ClusterMetadata([("seed", 9092)], lambda: 0.5)


def exchange(metadata: ClusterMetadata, answer: MetadataResponse, now_ms: float) -> MetadataChange:
    """Makes the request that is due, and takes its answer."""
    metadata.begin_request(now_ms)
    return metadata.on_response(answer, now_ms)


def known(*topics: TopicInfo, now_ms: float = 0) -> ClusterMetadata:
    """Metadata that has just got these topics from a full update."""
    metadata = new_metadata()
    for info in topics:
        assert info.name is not None
        metadata.track(info.name, now_ms)
    exchange(metadata, response(*topics), now_ms)
    return metadata


def asking(names: str) -> ClusterMetadata:
    """Metadata whose first request, for topics of one letter each, is in flight."""
    metadata = new_metadata()
    for name in names:
        metadata.track(name, 0)
    metadata.begin_request(0)
    return metadata


def update(metadata: ClusterMetadata, answer: MetadataResponse, now_ms: float = 200) -> MetadataChange:
    metadata.request_update("test")
    return exchange(metadata, answer, now_ms)


def refresh(metadata: ClusterMetadata, *topics: TopicInfo, now_ms: float = 200) -> MetadataChange:
    return update(metadata, response(*topics), now_ms)


# When to request an update


def test_the_first_update_is_due_at_once_and_asks_for_brokers() -> None:
    metadata = new_metadata()
    assert metadata.next_update_ms(0) == 0
    assert metadata.begin_request(0) == MetadataRequest([], False, [])


def test_one_request_at_a_time() -> None:
    metadata = new_metadata()
    metadata.begin_request(0)
    metadata.track("t", 0)
    assert metadata.next_update_ms(1_000_000) == math.inf
    with pytest.raises(RuntimeError, match="already in flight"):
        metadata.begin_request(0)


def test_responses_without_a_request_are_refused() -> None:
    with pytest.raises(RuntimeError, match="no metadata request is in flight"):
        new_metadata().on_response(response(), 0)


def test_nothing_is_due_until_the_maximum_age() -> None:
    metadata = known(topic())
    assert metadata.next_update_ms(1000) == 299_000
    assert metadata.next_update_ms(300_000) == 0
    metadata.touch(["t"], 300_000)
    assert metadata.begin_request(300_000) == MetadataRequest(["t"], False, [])


def test_a_new_topic_is_requested_at_once_and_alone() -> None:
    metadata = known(topic())
    assert metadata.track("u", 10)
    assert not metadata.track("u", 10)
    assert metadata.next_update_ms(10) == 0
    assert metadata.begin_request(10) == MetadataRequest(["u"], True, [])
    change = metadata.on_response(response(topic("u", (3,))), 20)
    assert change.topics_changed == ["u"]
    assert metadata.leader("u", 0) == 3
    assert metadata.partition_count("t") == 2
    # A partial update does not change the age of the other topics.
    assert metadata.next_update_ms(20) == 299_980


def test_a_topic_tracked_while_a_request_is_in_flight_is_requested_next() -> None:
    metadata = known(topic())
    metadata.track("u", 10)
    metadata.begin_request(10)
    metadata.track("v", 11)
    metadata.on_response(response(topic("u")), 20)
    assert metadata.next_update_ms(20) == 0
    assert metadata.begin_request(20).topics == ["v"]


def test_an_update_wanted_while_one_is_in_flight_follows_it() -> None:
    metadata = known(topic())
    metadata.request_update("first")
    metadata.begin_request(200)
    metadata.request_update("second")
    metadata.on_response(response(topic()), 210)
    assert metadata.update_reason == "second"
    assert metadata.next_update_ms(210) == 100
    assert metadata.next_update_ms(310) == 0


def test_full_updates_are_at_least_the_first_backoff_apart() -> None:
    metadata = known(topic(), now_ms=1000)
    metadata.request_update("a broker does not lead t-0")
    assert metadata.next_update_ms(1040) == 60
    assert metadata.next_update_ms(1100) == 0
    # A new topic does not wait for that.
    metadata.track("u", 1040)
    assert metadata.begin_request(1040) == MetadataRequest(["u"], True, [])
    metadata.on_response(response(topic("u")), 1050)
    assert metadata.next_update_ms(1050) == 50
    assert metadata.begin_request(1100).partial is False


def test_failures_back_off_and_are_remembered() -> None:
    metadata = new_metadata()
    metadata.begin_request(0)
    metadata.on_failure(ConnectionRefusedError(111, "Connection refused"), 1000)
    assert metadata.last_error == LastError("connection refused", 1000)
    assert metadata.describe_last_error(1200) == "connection refused, 0.2 s ago"
    assert metadata.next_update_ms(1000) == pytest.approx(100)
    metadata.track("t", 1000)
    assert metadata.next_update_ms(1000) == pytest.approx(100)
    metadata.begin_request(1100)
    metadata.on_failure("broker 1 (b:9092): no answer", 1100)
    assert metadata.next_update_ms(1100) == pytest.approx(200)
    metadata.begin_request(1300)
    metadata.on_response(response(topic()), 1400)
    assert metadata.last_error is None
    assert metadata.describe_last_error(1400) is None
    metadata.begin_request(1500)
    metadata.on_failure("again", 2000)
    assert metadata.next_update_ms(2000) == pytest.approx(100)


def test_a_failure_without_a_request_is_remembered_too() -> None:
    metadata = new_metadata()
    metadata.on_failure("seed:9092: name or service not known", 5)
    assert metadata.last_error == LastError("seed:9092: name or service not known", 5)
    assert metadata.next_update_ms(5) == pytest.approx(100)


def test_a_failed_request_is_repeated() -> None:
    metadata = known(topic())
    metadata.track("u", 10)
    metadata.begin_request(10)
    metadata.on_failure("gone", 10)
    assert metadata.begin_request(200) == MetadataRequest(["u"], True, [])
    metadata.on_response(response(topic("u")), 200)
    metadata.request_update("test")
    assert metadata.update_reason == "test"
    metadata.begin_request(300)
    assert metadata.update_reason is None
    metadata.on_failure("gone", 300)
    assert metadata.update_reason == "the last full update failed"
    assert metadata.next_update_ms(400) == 0
    assert metadata.begin_request(400) == MetadataRequest(["t", "u"], False, [])


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (response(brokers=()), "metadata response without brokers"),
        (response(error_code=31), "metadata response with error code 31"),
    ],
)
def test_a_useless_response_counts_as_a_failure(answer: MetadataResponse, cause: str) -> None:
    metadata = known(topic())
    change = update(metadata, answer)
    assert change == MetadataChange([], [], [], {}, set(), set(), set(), set())
    assert metadata.last_error == LastError(cause, 200)
    assert metadata.next_update_ms(200) == pytest.approx(100)
    assert metadata.leader("t", 0) == 1


# Topic errors


def test_an_unknown_topic_is_requested_again_with_growing_backoff() -> None:
    metadata = known(topic())
    metadata.track("u", 10)
    metadata.begin_request(10)
    missing = topic("u", (), topic_id=NO_TOPIC_ID, error_code=3)
    assert metadata.on_response(response(missing), 20).topic_errors == {"u": 3}
    assert metadata.topic_error("u") == 3
    assert metadata.next_update_ms(20) == pytest.approx(100)
    assert metadata.begin_request(120) == MetadataRequest(["u"], True, [])
    metadata.on_response(response(missing), 120)
    assert metadata.next_update_ms(120) == pytest.approx(200)
    exchange(metadata, response(topic("u")), 320)
    assert metadata.topic_error("u") == 0
    assert metadata.partition_count("u") == 2
    assert metadata.next_update_ms(320) > 200_000
    # The next time something is missing, the backoff starts small again.
    metadata.track("v", 400)
    exchange(metadata, response(missing._replace(name="v")), 400)
    assert metadata.next_update_ms(400) == pytest.approx(100)


def test_a_new_topic_does_not_wait_for_the_backoff_of_another() -> None:
    metadata = known(topic())
    metadata.track("u", 10)
    metadata.begin_request(10)
    metadata.on_response(response(topic("u", (), error_code=3)), 20)
    metadata.track("v", 30)
    assert metadata.next_update_ms(30) == 0
    assert metadata.begin_request(30).topics == ["v"]
    # Its response does not end or shorten the other's backoff.
    metadata.on_response(response(topic("v")), 40)
    assert metadata.next_update_ms(40) == pytest.approx(80)
    assert metadata.begin_request(120).topics == ["u"]
    metadata.on_response(response(topic("u", (), error_code=3)), 120)
    assert metadata.next_update_ms(120) == pytest.approx(200)


def test_a_topic_that_is_missing_from_the_response_counts_as_unknown() -> None:
    metadata = new_metadata()
    metadata.track("t", 0)
    assert exchange(metadata, response(), 0).topic_errors == {"t": 3}
    assert metadata.next_update_ms(0) == pytest.approx(100)


def test_a_known_topic_keeps_its_leaders_through_a_retriable_error() -> None:
    metadata = known(topic())
    change = refresh(metadata, topic("t", (), error_code=3))
    assert change.topic_errors == {"t": 3}
    assert change.topics_changed == []
    assert metadata.leader("t", 1) == 2


@pytest.mark.parametrize("error_code", [17, 29])
def test_after_a_final_error_a_topic_is_not_requested_until_it_is_used_again(error_code: int) -> None:
    metadata = known(topic())
    change = refresh(metadata, topic("t", (), error_code=error_code), now_ms=1000)
    assert change.topic_errors == {"t": error_code}
    assert change.topics_changed == ["t"]
    assert metadata.partition_count("t") is None
    assert metadata.next_update_ms(1000) == 300_000
    assert not metadata.track("t", 1099)
    assert metadata.topic_error("t") == error_code
    assert metadata.track("t", 1100)
    assert metadata.topic_error("t") == 0
    assert metadata.begin_request(1100) == MetadataRequest(["t"], True, [])
    # The right was granted again: the response is the same as before.
    assert metadata.on_response(response(topic()), 1100).topics_changed == ["t"]
    assert metadata.leader("t", 1) == 2


def test_a_topic_with_a_leaderless_partition_is_requested_again() -> None:
    metadata = known(topic(leaders=(1, -1)))
    assert metadata.leader("t", 1) is None
    assert metadata.partition_count("t") == 2
    assert metadata.next_update_ms(0) == pytest.approx(100)
    assert metadata.begin_request(100) == MetadataRequest(["t"], True, [])
    change = metadata.on_response(response(topic(leaders=(1, 2))), 100)
    assert change.leaders_moved == [("t", 1)]
    assert change.topics_changed == []
    assert metadata.leader("t", 1) == 2


def test_a_leader_that_is_not_a_known_broker_is_none() -> None:
    metadata = known(topic(leaders=(9,)))
    assert metadata.leader("t", 0) is None
    assert metadata.next_update_ms(0) == pytest.approx(100)


def test_topics_that_were_not_requested_are_ignored() -> None:
    metadata = new_metadata()
    metadata.begin_request(0)
    metadata.track("late", 0)
    change = metadata.on_response(response(topic("other"), topic("late")), 0)
    assert change.topics_changed == []
    assert metadata.partition_count("other") is None
    assert metadata.begin_request(0).topics == ["late"]


def test_a_final_error_about_a_new_topic_changes_no_partitions() -> None:
    metadata = known(topic())
    metadata.track("u", 10)
    change = exchange(metadata, response(topic("u", (), error_code=29)), 10)
    assert change.topic_errors == {"u": 29}
    assert change.topics_changed == []


# Idle topics


def test_a_response_can_be_processed_in_parts() -> None:
    metadata = asking("abcd")
    parts = metadata.take(response(*(topic(name) for name in "abcd")), 10, at_once=5)
    first = next(parts)
    assert (first.topics_changed, first.brokers_added) == (["a", "b"], {1, 2, 3})
    assert metadata.view().topics() == {"a", "b"}
    # Between the parts a topic is tracked, and a Produce response names a newer leader.
    metadata.track("e", 11)
    assert metadata.next_update_ms(11) == math.inf
    assert metadata.update_leader("a", 0, 3, 7)
    last = next(parts)
    assert (last.topics_changed, last.brokers_added) == (["c", "d"], set())
    assert metadata.next_update_ms(11) == math.inf
    assert next(parts, None) is None
    assert metadata.view().topics() == {"a", "b", "c", "d"}
    assert metadata.leader("a", 0) == 3
    assert metadata.begin_request(12) == MetadataRequest(["e"], True, [])


def test_each_part_frees_what_the_response_had_of_its_topics() -> None:
    """All at once takes as long as several parts if there are many topics."""
    freed: list[str | None] = []

    class Noted(TopicInfo):
        def __del__(self) -> None:
            freed.append(self.name)

    metadata = asking("abcd")
    parts = metadata.take(response(*(Noted(*topic(name)) for name in "abcd")), 10, at_once=3)
    counts = []
    for _ in parts:
        gc.collect()
        counts.append(len(freed))
    # The first part has the brokers. The last topic of a part is still in a variable of the iterator.
    assert counts == [0, 0, 1, 2, 3]
    assert freed == ["a", "b", "c", "d"]


def test_replaced_views_are_left_to_the_caller() -> None:
    metadata = known(topic("t"), topic("u"))
    metadata.view()
    metadata.replaced.clear()
    refresh(metadata, topic("t", leaders=(2, 1)), topic("u"))
    metadata.view()
    [replaced] = metadata.replaced
    assert replaced is not None
    assert replaced.leaders == {0: 1, 1: 2}


def test_a_rebootstrap_between_two_parts_leads_to_another_full_update() -> None:
    metadata = asking("ab")
    parts = metadata.take(response(topic("a"), topic("b")), 10, at_once=1)
    next(parts)
    metadata.rebootstrap()
    list(parts)
    assert metadata.leader("b", 0) is None
    assert metadata.begin_request(10) == MetadataRequest(["a", "b"], False, [])


def test_unused_topics_are_forgotten() -> None:
    metadata = known(topic("t"), topic("u"), topic("v"))
    metadata.view()
    metadata.touch(["u", "never heard of"], 250_000)
    metadata.track("v", 250_000)
    request = metadata.begin_request(300_000)
    assert request == MetadataRequest(["u", "v"], False, ["t"])
    metadata.on_response(response(topic("t"), topic("u"), topic("v")), 300_000)
    assert metadata.partition_count("t") is None
    assert metadata.tracked_topics() == ["u", "v"]
    assert metadata.view().topics() == {"u", "v"}


def test_a_forgotten_topic_is_not_requested_again() -> None:
    metadata = known(topic("t", (), error_code=3))
    exchange(metadata, response(), 300_000)
    assert metadata.next_update_ms(300_000) == 300_000


# Starting over


def test_rebootstrap_when_no_broker_is_reachable() -> None:
    metadata = known(topic())
    assert metadata.rebootstrap_reason(0, False) is None
    assert metadata.rebootstrap_reason(0, True) == "all 3 known brokers are unreachable"
    metadata.begin_request(300_000)
    metadata.on_failure("gone", 300_000)
    assert metadata.rebootstrap() == {1, 2, 3}
    assert metadata.broker_ids() == []
    assert metadata.leader("t", 0) is None
    assert metadata.bootstrap_addresses == (("seed", 9092),)
    assert metadata.next_update_ms(300_000) == 0
    # If nothing is known, there is nothing to forget.
    assert metadata.rebootstrap_reason(300_000, True) is None
    metadata.track("t", 300_000)
    assert metadata.begin_request(300_000) == MetadataRequest(["t"], False, [])
    metadata.on_response(response(topic()), 300_001)
    assert metadata.leader("t", 0) == 1


def test_a_rebootstrap_does_not_wait_for_an_update_just_made() -> None:
    metadata = known(topic())
    metadata.rebootstrap()
    assert metadata.next_update_ms(0) == 0
    assert metadata.update_reason == "rebootstrap"


def test_rebootstrap_after_updates_failed_for_long() -> None:
    metadata = known(topic())
    metadata.on_failure("first", 1000)
    metadata.on_failure("second", 200_000)
    assert metadata.rebootstrap_reason(300_999, False) is None
    assert metadata.rebootstrap_reason(301_000, False) == "metadata updates have failed for 300000 ms"
    metadata.rebootstrap()
    exchange(metadata, response(topic()), 301_000)
    assert metadata.rebootstrap_reason(700_000, False) is None


def test_a_success_resets_the_time_of_failing() -> None:
    metadata = known(topic())
    metadata.on_failure("first", 1000)
    refresh(metadata, topic(), now_ms=2000)
    metadata.on_failure("second", 300_000)
    assert metadata.rebootstrap_reason(302_000, False) is None


def test_a_broker_may_require_a_rebootstrap() -> None:
    metadata = known(topic())
    change = update(metadata, response(error_code=129))
    assert change.brokers_removed == {1, 2, 3}
    assert metadata.broker_ids() == []
    assert metadata.next_update_ms(200) == 0


def test_a_cluster_that_always_requires_a_rebootstrap_is_asked_at_the_pace_of_the_backoff() -> None:
    metadata = known(topic())
    metadata.request_update("test")
    for _ in range(2):
        assert metadata.next_update_ms(200) == 0
        exchange(metadata, response(error_code=129), 200)
    assert metadata.next_update_ms(200) == pytest.approx(200)


def test_without_the_strategy_there_is_no_rebootstrap() -> None:
    metadata = ClusterMetadata([("seed", 9092)], lambda: 0.5, rebootstrap=False)
    exchange(metadata, response(), 0)
    assert metadata.rebootstrap_reason(0, True) is None
    assert update(metadata, response(error_code=129)).brokers_removed == set()
    assert sorted(metadata.broker_ids()) == [1, 2, 3]
    assert metadata.rebootstrap_reason(1_000_000, False) is None


# Brokers


def test_brokers_are_added_removed_and_moved() -> None:
    metadata = known()
    answer = response(brokers=(2, 3, 4))
    answer.brokers[0] = BrokerInfo(2, "elsewhere", 9092, "rack")
    change = update(metadata, answer)
    assert (change.brokers_added, change.brokers_removed, change.brokers_moved) == ({4}, {1}, {2})
    assert metadata.broker(2) == BrokerMetadata(2, "elsewhere", 9092, "rack")
    assert metadata.broker(1) is None
    assert metadata.cluster_id == "cluster"
    assert metadata.controller_id == 1


def test_a_broker_in_another_rack_is_reported() -> None:
    metadata = known()
    answer = response()
    answer.brokers[0] = answer.brokers[0]._replace(rack="other")
    change = update(metadata, answer)
    assert (change.brokers_added, change.brokers_moved, change.racks_changed) == (set(), set(), {1})


def test_no_controller_is_none() -> None:
    metadata = new_metadata()
    exchange(metadata, response()._replace(controller_id=-1), 0)
    assert metadata.controller_id is None
