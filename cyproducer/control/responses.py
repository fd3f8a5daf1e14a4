"""Broker responses as plain values.

Owns the result types that the wire decoders fill and the state machines of ``control/`` read. It is in
``control/`` so that ``control/`` needs nothing from ``network/``. Has no behaviour and no state: every type
is immutable and may be shared between threads.
"""

from typing import NamedTuple

#: The topic id if the broker reported none (KIP-516 reserves the zero UUID).
NO_TOPIC_ID = bytes(16)


class ApiVersionsResponse(NamedTuple):
    """Which versions of which API a broker supports (KIP-35, KIP-511, KIP-584)."""

    error_code: int
    #: API key -> (lowest, highest) version, both inclusive.
    api_versions: dict[int, tuple[int, int]]
    throttle_time_ms: int
    #: Feature name -> (lowest, highest) cluster-wide finalized level; empty before version 3.
    finalized_features: dict[str, tuple[int, int]]


class BrokerInfo(NamedTuple):
    """One broker, at the address it advertises."""

    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionInfo(NamedTuple):
    """One partition; ``leader`` is -1 without a leader, ``leader_epoch`` -1 before Metadata v7."""

    error_code: int
    partition: int
    leader: int
    leader_epoch: int


class TopicInfo(NamedTuple):
    """One topic; ``name`` is None only if a lookup by topic id failed."""

    error_code: int
    name: str | None
    #: 16 bytes, ``NO_TOPIC_ID`` before Metadata v10 and if the topic does not exist.
    topic_id: bytes
    is_internal: bool
    partitions: list[PartitionInfo]


class MetadataResponse(NamedTuple):
    """A broker's view of the cluster; ``error_code`` is 0 before Metadata v13."""

    throttle_time_ms: int
    brokers: list[BrokerInfo]
    cluster_id: str | None
    controller_id: int
    topics: list[TopicInfo]
    error_code: int = 0


class InitProducerIdResponse(NamedTuple):
    """A producer id and its epoch, or the error code that says why there is none (KIP-98, KIP-360)."""

    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
