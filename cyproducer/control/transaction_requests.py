"""The requests about a transaction. At most one of them is in flight at any time.

Owns the contents of each request. Does not encode requests (``clients/transaction_client`` does, with
``wire/transaction_api``), or decide which is next (``transaction_machine``). Immutable.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

FIRST, SECOND = 1, 2
"""The two protocols."""
HIGHEST_PRODUCE = {FIRST: 11, SECOND: 32767}
"""The highest version of Produce that does not belong to the next protocol."""

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators (FindCoordinator's key types)."""


class FindCoordinator(NamedTuple):
    """FindCoordinator, to any broker."""

    kind: int
    key: str


class InitProducerId(NamedTuple):
    """InitProducerId: -1, -1 takes over the transactional id; the own identity bumps the epoch (KIP-360)."""

    producer_id: int
    epoch: int


class AddPartitions(NamedTuple):
    """AddPartitionsToTxn."""

    partitions: tuple[tuple[str, int], ...]


class AddOffsets(NamedTuple):
    """AddOffsetsToTxn."""

    group_id: str


class CommitOffsets(NamedTuple):
    """TxnOffsetCommit, to the group's coordinator."""

    group: ConsumerGroupMetadata
    positions: Mapping[TopicPartition, OffsetAndMetadata]
    protocol: int


class EndTxn(NamedTuple):
    """EndTxn."""

    commit: bool
    protocol: int


class AskMarkers(NamedTuple):
    """DescribeTransactions: whether the markers of the last transaction are written."""


class AskLevel(NamedTuple):
    """ApiVersions: the level of ``transaction.version``."""


Request = (
    FindCoordinator
    | InitProducerId
    | AddPartitions
    | AddOffsets
    | CommitOffsets
    | EndTxn
    | AskMarkers
    | AskLevel
)
