"""The types that the decoders of ``protocol`` return to the client. Immutable, so that threads can share
them. The other modules with decoders have their own types."""

from typing import NamedTuple

from cyproducer.wire.schema import NO_UUID

#: The topic id if the broker reported none (KIP-516 reserves the zero UUID).
NO_TOPIC_ID = NO_UUID


class ApiVersionsResponse(NamedTuple):
    """The versions of each API that a broker supports (KIP-35, KIP-511, KIP-584)."""

    error_code: int
    #: API key -> (lowest, highest) version, both inclusive.
    api_versions: dict[int, tuple[int, int]]
    throttle_time_ms: int
    #: Feature name -> (lowest, highest) cluster-wide finalized level; empty before version 3.
    finalized_features: dict[str, tuple[int, int]]
    #: A higher epoch means newer ``finalized_features``; -1: unknown.
    features_epoch: int = -1


class BrokerInfo(NamedTuple):
    """One broker, at the address it advertises."""

    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionInfo(NamedTuple):
    """One partition; ``leader`` is -1 if there is no leader, ``leader_epoch`` is -1 before Metadata v7."""

    error_code: int
    partition: int
    leader: int
    leader_epoch: int


class ReplicatedPartition(NamedTuple):
    """A ``PartitionInfo`` with the node ids of its replicas, and of those that are in sync."""

    error_code: int
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]


NOT_ASKED = -(2**31)
"""The value that a broker returns if the operations were not requested."""


class TopicInfo(NamedTuple):
    """One topic; ``name`` is None only if a lookup by topic id failed."""

    error_code: int
    name: str | None
    #: 16 bytes, ``NO_TOPIC_ID`` before Metadata v10 and if the topic does not exist.
    topic_id: bytes
    is_internal: bool
    #: ``ReplicatedPartition`` in the response to a request of the application.
    partitions: list[PartitionInfo]
    #: A bit for each operation that the principal is authorized to perform, numbered as in ``AclOperation``
    #: (KIP-430).
    authorized_operations: int = NOT_ASKED


class MetadataResponse(NamedTuple):
    """A broker's view of the cluster; ``error_code`` is 0 before Metadata v13."""

    throttle_time_ms: int
    brokers: list[BrokerInfo]
    cluster_id: str | None
    controller_id: int
    topics: list[TopicInfo]
    error_code: int = 0
    #: What is wrong with each listed broker that cannot be a broker to connect to.
    left_out: tuple[str, ...] = ()


class InitProducerIdResponse(NamedTuple):
    """A producer id and its epoch, or the error code that explains why there is none (KIP-98, KIP-360)."""

    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
