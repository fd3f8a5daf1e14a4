"""Tests a consume-transform-produce loop whose processes and brokers are killed; a short run of
``make exactly-once``. And that its check notices each way in which a copy can be wrong.
"""

from __future__ import annotations

import pytest

from tests.integration.consume import Fetched
from tests.integration.exactly_once import COPIERS, Campaign, differences, gaps
from tools.harness.kafka_cluster import KafkaCluster

KINDS = {"copier": 3, "copier at a phase": 3, "coordinator's node": 0}


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(("level", "protocol"), [(2, "classic"), (1, "classic"), (0, "consumer")])
def test_a_copy_is_exact_although_copiers_and_a_broker_are_killed(
    transactional_kafka: KafkaCluster, level: int, protocol: str
) -> None:
    campaign = Campaign(transactional_kafka, f"exact-{level}", level, "1", protocol)

    campaign.run(6, KINDS if level != 1 else {"copier": 1, "copier, paused": 0})

    assert sum(campaign.faults.values()) == 6
    assert campaign.records > 0
    assert campaign.committed() >= 6 + COPIERS


def records(*values: bytes, partition: int = 0) -> list[Fetched]:
    return [
        Fetched(partition, offset, "CreateTime", 0, None, value, []) for offset, value in enumerate(values)
    ]


SOURCE = records(b"1", b"2", b"3")


@pytest.mark.parametrize(
    ("copied", "complaint"),
    [
        ((b"1", b"3"), "1 records are lost"),
        ((), "3 records are lost"),
        ((b"1", b"2", b"2", b"3"), "2 records are there more than once"),
        ((b"1", b"3", b"2"), "out of order"),
        ((b"1", b"2", b"3", b"4"), "4 copies of 3 records"),
    ],
)
def test_a_wrong_copy_is_noticed(copied: tuple[bytes, ...], complaint: str) -> None:
    found = records(*(b"copy of " + value for value in copied))

    assert [complaint in each for each in differences(SOURCE, found)] == [True]


def test_an_exact_copy_is_accepted() -> None:
    assert differences(SOURCE, records(b"copy of 1", b"copy of 2", b"copy of 3")) == []


@pytest.mark.parametrize(
    ("ranges", "complaint"),
    [
        ((b"0 0 4", b"0 6 9"), "5 was next"),
        ((b"0 0 4", b"0 4 9"), "5 was next"),
        ((b"0 0 4",), r"the group's offsets are \[10"),
    ],
)
def test_transactions_that_do_not_follow_each_other_are_noticed(
    ranges: tuple[bytes, ...], complaint: str
) -> None:
    found = gaps(records(*ranges), [10, 0, 0, 0])

    assert len(found) == 1
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError(found[0])


def test_transactions_that_follow_each_other_are_accepted() -> None:
    assert gaps(records(b"0 0 4", b"1 0 0", b"0 5 9"), [10, 1, 0, 0]) == []
