"""Decisions that few runs come to: two batches given up in the wrong order, a deleted partition, node 0."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import cast

import pytest

from cyproducer.control.batch_fate import FatePolicy
from cyproducer.control.cluster_view import SharedList
from cyproducer.control.idempotence import Action, BatchFacts, Fate, Idempotence, Order, State
from cyproducer.control.log_limit import LogLimit
from cyproducer.control.metadata import ClusterMetadata
from cyproducer.control.retry import ExponentialBackoff, RetryPolicy
from cyproducer.structs import TopicPartition
from cyproducer.wire.responses import BrokerInfo, MetadataResponse
from tests.control.test_metadata import new_metadata, topic

PLACE = TopicPartition("t", 0)
TOO_LARGE = 10


def facts(id: int, *, ambiguous: bool = False) -> BatchFacts:
    """A batch of partition t-0 that has sequences."""
    return BatchFacts("t", 0, id, 3, 1, 0.0, True, True, ambiguous, False)


def holding() -> Idempotence:
    machine = Idempotence()
    assert machine.want()
    machine.granted(4711, 5)
    return machine


# Idempotence


def test_an_older_lost_batch_does_not_hide_a_younger_one() -> None:
    """An acknowledgement between the two lost batches says nothing about the younger of them."""
    machine = holding()
    machine.on_fate(facts(12), 0, Fate.FAIL, True)
    machine.on_fate(facts(10), 0, Fate.FAIL, True)
    assert machine.on_progress(PLACE, 1, 1, True, acknowledged_id=11) == []
    assert machine.partition_state(PLACE) is State.UNRESOLVED
    assert machine.on_progress(PLACE, 0, 0, True, acknowledged_id=13) == [Order(Action.RELEASE)]


def test_a_younger_absent_batch_does_not_move_the_gap() -> None:
    """A batch between the two absent ones would keep sequences behind a gap, and be refused for good."""
    machine = holding()
    machine.on_fate(facts(11), TOO_LARGE, Fate.FAIL, False)
    machine.on_fate(facts(13), TOO_LARGE, Fate.FAIL, False)
    assert machine.on_progress(PLACE, 0, 3, True) == [Order(Action.STRIP, 11), Order(Action.HOLD_NEW, 11)]


# Deleted partitions


@pytest.mark.parametrize(("ambiguous", "action"), [(False, Action.HOLD_ALL), (True, Action.HOLD_NEW)])
def test_a_sequenced_batch_of_a_deleted_partition_holds_the_partition_back(
    ambiguous: bool, action: Action
) -> None:
    """The partition may come back with the same producer epoch, behind a gap in its sequences."""

    class Metadata:
        def partition_count(self, topic: str) -> int | None:
            return 1

    machine = holding()
    policy = FatePolicy(
        RetryPolicy(math.inf, 10_000, ExponentialBackoff(100, 100, jitter=0)),
        machine,
        cast(ClusterMetadata, Metadata()),
        LogLimit(lambda *args: None),
        lambda: 0.5,
        lambda known: known,
    )
    verdict, orders = policy.partition_removed(facts(10, ambiguous=ambiguous), 1_000)
    assert (verdict.fate, verdict.maybe_written) == (Fate.FAIL, ambiguous)
    assert orders == (Order(action),)
    assert machine.partition_state(PLACE) is not State.SENDING


# Log lines


def test_a_line_after_a_long_pause_starts_a_second_of_its_own() -> None:
    said: list[str] = []
    limit = LogLimit(lambda level, text, *args: said.append(text % args))
    for now_ms in (0, 500, 10_000, 10_001, 10_999):
        limit.add(40, 0, "%d", (now_ms,), now_ms)
    assert said == ["0", "10000 (and 1 more in the last second)"]
    limit.add(40, 0, "%d", (11_000,), 11_000)
    assert said[2:] == ["11000 (and 2 more in the last second)"]


def test_the_next_report_is_that_of_the_kind_held_back_first() -> None:
    limit = LogLimit(lambda *args: None)
    for now_ms in (0, 10):
        limit.add(40, 0, "first", (), now_ms)
        limit.add(40, 0, "second", (), now_ms + 300)
    assert limit.flush(400) == 600


# The view of the cluster


def test_broker_0_leads_partitions_like_any_other() -> None:
    metadata = new_metadata()
    metadata.track("t", 0)
    metadata.begin_request(0)
    brokers = [BrokerInfo(node_id, f"broker-{node_id}", 9092, None) for node_id in (0, 1)]
    metadata.on_response(MetadataResponse(0, brokers, "cluster", 0, [topic(leaders=(0, 1, -1))]), 0)
    view = metadata.view()
    assert view.available_partitions_for_topic("t") == {0, 1}
    assert view.partitions_in_order("t") == ([0, 1, 2], [0, 1])
    leader = view.leader_for_partition("t", 0)
    assert leader is not None
    assert leader.nodeId == 0
    assert view.controller == leader
    assert metadata.leader("t", 0) == 0


CHANGES: dict[str, Callable[[list[int]], object]] = {
    "append": lambda numbers: numbers.append(3),
    "clear": lambda numbers: numbers.clear(),
    "extend": lambda numbers: numbers.extend([3]),
    "insert": lambda numbers: numbers.insert(0, 3),
    "pop": lambda numbers: numbers.pop(),
    "remove": lambda numbers: numbers.remove(1),
    "reverse": lambda numbers: numbers.reverse(),
    "sort": lambda numbers: numbers.sort(),
    "set item": lambda numbers: numbers.__setitem__(0, 3),
    "set slice": lambda numbers: numbers.__setitem__(slice(None), [3]),
    "delete": lambda numbers: numbers.__delitem__(0),
    "add in place": lambda numbers: numbers.__iadd__([3]),
    "repeat in place": lambda numbers: numbers.__imul__(2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_method_of_a_list_changes_a_shared_one(change: Callable[[list[int]], object]) -> None:
    shared = SharedList([2, 1])
    with pytest.raises(TypeError, match="shared by all records"):
        change(shared)
    assert shared == [2, 1]


def test_a_copy_of_a_shared_list_is_a_list_of_its_own() -> None:
    shared = SharedList([2, 1])
    for twin in (copy.copy(shared), copy.deepcopy(shared), pickle.loads(pickle.dumps(shared)), shared.copy()):
        assert type(twin) is list
        twin.append(3)
        assert (twin, shared) == ([2, 1, 3], [2, 1])
