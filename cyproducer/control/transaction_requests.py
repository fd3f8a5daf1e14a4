"""The requests about a transaction, of which one is in flight at any time.

Owns what each is about. Does not encode them (``clients/transaction_client`` does, with
``wire/protocol``), or decide which comes next (``transactions``). Immutable.
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
    """InitProducerId: -1, -1 takes the transactional id over, the own identity bumps its epoch (KIP-360)."""

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
    """DescribeTransactions: are the markers of the last transaction written?"""


class AskLevel(NamedTuple):
    """ApiVersions: which level has ``transaction.version``?"""


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
