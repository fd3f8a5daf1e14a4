"""The types that the decoders of ``protocol`` return to the client. Immutable, so that threads can share
them."""

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


class GetTelemetrySubscriptionsResponse(NamedTuple):
    """Which metrics a broker wants to be pushed, how often and how (KIP-714)."""

    throttle_time_ms: int
    error_code: int
    #: 16 bytes, for all later requests of this client, to any broker.
    client_instance_id: bytes
    subscription_id: int
    #: The ids of codecs, the preferred one first.
    accepted_compression_types: list[int]
    push_interval_ms: int
    telemetry_max_bytes: int
    #: Whether sums are pushed as the increase since the last push.
    delta_temporality: bool
    #: Prefixes of names; "*" and "" are all metrics, no prefix is none.
    requested_metrics: list[str]


class PushTelemetryResponse(NamedTuple):
    """Whether a broker has taken metrics (KIP-714)."""

    throttle_time_ms: int
    error_code: int


class SaslHandshakeResponse(NamedTuple):
    """Whether the broker has the mechanism enabled, and the names of all enabled mechanisms (KIP-43)."""

    error_code: int
    mechanisms: list[str]


class SaslAuthenticateResponse(NamedTuple):
    """The mechanism's next message from the server (KIP-152, KIP-368)."""

    error_code: int
    error_message: str | None
    auth_bytes: bytes
    #: How long the connection remains authenticated; 0: until it closes.
    session_lifetime_ms: int


class FindCoordinatorResponse(NamedTuple):
    """The coordinator of a transactional id or a group; the node id is -1 if there is none at the moment.

    ``error_message`` is the broker's own text, or None.
    """

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    node_id: int
    host: str
    port: int


class AddPartitionsToTxnResponse(NamedTuple):
    """The error code of each partition, 0 if the partition is now in the transaction (KIP-98)."""

    throttle_time_ms: int
    #: (topic, partition) -> error code.
    errors: dict[tuple[str, int], int]


class AddOffsetsToTxnResponse(NamedTuple):
    """Whether the group's offsets are now in the transaction (KIP-98)."""

    throttle_time_ms: int
    error_code: int


class TxnOffsetCommitResponse(NamedTuple):
    """The error code of each partition, 0 if its offset will be committed with the transaction (KIP-98)."""

    throttle_time_ms: int
    #: (topic, partition) -> error code.
    errors: dict[tuple[str, int], int]


class EndTxnResponse(NamedTuple):
    """Whether the transaction is decided, and the producer id and epoch for the next one (KIP-98, KIP-890).

    The id and epoch are -1 before version 5, and with an error.
    """

    throttle_time_ms: int
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1


class TransactionDescription(NamedTuple):
    """A transactional id as its coordinator knows it (KIP-664)."""

    error_code: int
    transactional_id: str
    #: The coordinator's name of the state, such as "Ongoing".
    state: str
    timeout_ms: int
    #: Milliseconds since the epoch; -1 without a transaction.
    start_time_ms: int
    producer_id: int
    producer_epoch: int
    #: Topic -> the partitions of the current transaction that have no marker yet.
    partitions: dict[str, list[int]]


class DescribeTransactionsResponse(NamedTuple):
    """One description for each transactional id of the request."""

    throttle_time_ms: int
    transactions: list[TransactionDescription]


class TransactionListing(NamedTuple):
    """A transactional id in the response of one of the coordinators (KIP-664)."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResponse(NamedTuple):
    """The transactional ids that this broker coordinates and that pass the filters of the request."""

    throttle_time_ms: int
    error_code: int
    #: The states in the request that the broker does not know.
    unknown_states: list[str]
    transactions: list[TransactionListing]


class FetchedPartition(NamedTuple):
    """The data that a leader returned for one partition (KIP-98).

    Offsets are -1 with an error; ``log_start_offset`` is -1 before version 5. ``records`` are batches; the
    last one may be truncated.
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: bytes


class FetchResponse(NamedTuple):
    """Batches of partitions; ``error_code`` is 0 before version 7."""

    throttle_time_ms: int
    error_code: int
    partitions: list[FetchedPartition]


class ListedOffset(NamedTuple):
    """An offset of one partition, -1 with an error; ``leader_epoch`` is -1 before version 4."""

    topic: str
    partition: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int


class ListOffsetsResponse(NamedTuple):
    """One offset for each partition of the request; ``throttle_time_ms`` is 0 before version 2 (KIP-79)."""

    throttle_time_ms: int
    offsets: list[ListedOffset]


class CreatedTopic(NamedTuple):
    """Whether a topic was created; ``topic_id`` is ``NO_TOPIC_ID`` before version 7 and with an error.

    ``error_message`` is the broker's own text, or None.
    """

    name: str
    topic_id: bytes
    error_code: int
    error_message: str | None


class CreateTopicsResponse(NamedTuple):
    """One outcome for each topic of the request (KIP-4)."""

    throttle_time_ms: int
    topics: list[CreatedTopic]


class DescribedConfigs(NamedTuple):
    """The options of a topic or a broker (KIP-133); ``resource_type`` as in the request."""

    error_code: int
    error_message: str | None
    resource_type: int
    name: str
    #: Option -> value; None if the option is sensitive or has no value.
    configs: dict[str, str | None]


class DescribeConfigsResponse(NamedTuple):
    """One description for each resource of the request."""

    throttle_time_ms: int
    results: list[DescribedConfigs]
