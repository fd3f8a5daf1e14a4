"""Kafka's APIs: one row per request type that the producer sends, the version to use, and the responses.

A new request type takes a row and a response type here, its layout in ``network/protocol.py``, and a row in
the table of ``network/pending_requests.py``.

Pure functions without state, callable from any thread.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cyproducer.errors import IncompatibleBrokerVersion, UnrecognizedBrokerVersion

Release = tuple[int, int]
NEVER = 1 << 15
"""A version that no request type has."""


class Api(NamedTuple):
    """What this package knows about a request type, except its layout (protocol guide, "API keys")."""

    key: int
    name: str
    #: The versions that this package encodes and decodes, both inclusive.
    lowest: int
    highest: int
    #: The first version with compact types and tagged fields (KIP-482).
    flexible: int
    #: The first version in whose response the throttle time asks the client to wait. With older versions the
    #: broker waits itself before it responds (KIP-219).
    client_throttles: int
    #: Kafka releases, oldest first, each with the highest version it supports. A release that is not listed
    #: supports what the next older listed one does; one older than all of them does not have this API.
    releases: tuple[tuple[Release, int], ...]
    #: Whether a producer cannot work without it.
    required: bool = True

    @property
    def versions(self) -> tuple[int, int]:
        """The lowest and the highest version that this package implements."""
        return self.lowest, self.highest

    @property
    def since(self) -> str:
        """The first Kafka release whose brokers have it, of those that are supported."""
        (major, minor), _ = self.releases[0]
        return f"Kafka {major}.{minor}"


PRODUCE = Api(
    0,
    "Produce",
    lowest=3,
    highest=13,
    flexible=9,
    client_throttles=6,
    releases=(((2, 1), 7), ((2, 4), 8), ((2, 8), 9), ((3, 7), 10), ((3, 8), 11), ((4, 0), 12), ((4, 1), 13)),
)
METADATA = Api(
    3,
    "Metadata",
    lowest=1,
    highest=13,
    flexible=9,
    client_throttles=6,
    releases=(((2, 1), 7), ((2, 3), 8), ((2, 4), 9), ((2, 8), 11), ((3, 1), 12), ((4, 0), 13)),
)
API_VERSIONS = Api(
    18,
    "ApiVersions",
    lowest=0,
    highest=4,
    flexible=3,
    client_throttles=2,
    releases=(((2, 1), 2), ((2, 4), 3), ((3, 9), 4)),
)
INIT_PRODUCER_ID = Api(
    22,
    "InitProducerId",
    lowest=0,
    highest=5,
    flexible=2,
    client_throttles=1,
    releases=(((2, 1), 1), ((2, 4), 2), ((2, 5), 3), ((2, 7), 4), ((3, 8), 5)),
    # Without it the producer cannot be idempotent with this broker.
    required=False,
)
SASL_HANDSHAKE = Api(
    17,
    "SaslHandshake",
    # Version 0 is followed by bytes that are no Kafka requests.
    lowest=1,
    highest=1,
    flexible=NEVER,
    client_throttles=NEVER,
    releases=(((2, 1), 1),),
    required=False,
)
SASL_AUTHENTICATE = Api(
    36,
    "SaslAuthenticate",
    lowest=0,
    highest=2,
    flexible=2,
    client_throttles=NEVER,
    releases=(((2, 1), 0), ((2, 2), 1), ((2, 5), 2)),
    required=False,
)
FIND_COORDINATOR = Api(
    10,
    "FindCoordinator",
    # Version 0 finds only the coordinators of groups.
    lowest=1,
    highest=6,
    flexible=3,
    client_throttles=2,
    releases=(((2, 1), 2), ((2, 4), 3), ((3, 0), 4), ((3, 8), 5), ((3, 9), 6)),
    required=False,
)
ADD_PARTITIONS_TO_TXN = Api(
    24,
    "AddPartitionsToTxn",
    lowest=0,
    # Versions 4 and 5 are for brokers (KIP-890).
    highest=3,
    flexible=3,
    client_throttles=1,
    releases=(((2, 1), 1), ((2, 7), 2), ((2, 8), 3), ((3, 6), 4), ((3, 8), 5)),
    required=False,
)
ADD_OFFSETS_TO_TXN = Api(
    25,
    "AddOffsetsToTxn",
    lowest=0,
    highest=4,
    flexible=3,
    client_throttles=1,
    releases=(((2, 1), 1), ((2, 7), 2), ((2, 8), 3), ((3, 8), 4)),
    required=False,
)
END_TXN = Api(
    26,
    "EndTxn",
    lowest=0,
    highest=5,
    flexible=3,
    client_throttles=1,
    releases=(((2, 1), 1), ((2, 7), 2), ((2, 8), 3), ((3, 8), 4), ((4, 0), 5)),
    required=False,
)
TXN_OFFSET_COMMIT = Api(
    28,
    "TxnOffsetCommit",
    lowest=0,
    highest=5,
    flexible=3,
    client_throttles=1,
    releases=(((2, 1), 2), ((2, 5), 3), ((3, 8), 4), ((4, 0), 5)),
    required=False,
)
DESCRIBE_TRANSACTIONS = Api(
    65,
    "DescribeTransactions",
    lowest=0,
    highest=0,
    flexible=0,
    client_throttles=0,
    releases=(((3, 0), 0),),
    required=False,
)
LIST_TRANSACTIONS = Api(
    66,
    "ListTransactions",
    lowest=0,
    highest=2,
    flexible=0,
    client_throttles=0,
    releases=(((3, 0), 0), ((3, 8), 1), ((4, 1), 2)),
    required=False,
)
FETCH = Api(
    1,
    "Fetch",
    # The first with batches of magic 2 and both isolation levels.
    lowest=4,
    # Later versions name topics by id alone (KIP-516).
    highest=12,
    flexible=12,
    client_throttles=8,
    releases=(
        ((2, 1), 10),
        ((2, 3), 11),
        ((2, 7), 12),
        ((3, 1), 13),
        ((3, 5), 15),
        ((3, 7), 16),
        ((3, 9), 17),
        ((4, 1), 18),
    ),
    required=False,
)
LIST_OFFSETS = Api(
    2,
    "ListOffsets",
    lowest=1,
    highest=7,
    flexible=6,
    client_throttles=3,
    releases=(((2, 1), 4), ((2, 2), 5), ((2, 8), 6), ((3, 0), 7), ((3, 6), 8), ((3, 9), 9), ((4, 0), 10)),
    required=False,
)
CREATE_TOPICS = Api(
    19,
    "CreateTopics",
    lowest=2,
    highest=7,
    flexible=5,
    client_throttles=3,
    releases=(((2, 1), 3), ((2, 4), 5), ((2, 7), 6), ((2, 8), 7)),
    required=False,
)
DESCRIBE_CONFIGS = Api(
    32,
    "DescribeConfigs",
    lowest=1,
    highest=4,
    flexible=4,
    client_throttles=2,
    releases=(((2, 1), 2), ((2, 6), 3), ((2, 8), 4)),
    required=False,
)
APIS = (
    PRODUCE,
    METADATA,
    API_VERSIONS,
    INIT_PRODUCER_ID,
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
    FIND_COORDINATOR,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    FETCH,
    LIST_OFFSETS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
)

PRODUCE_BY_TOPIC_ID = 13
"""The first Produce version that names topics by id alone (KIP-516)."""
_METADATA_WITH_TOPIC_ID = 10

_OLDEST_RELEASE = PRODUCE.releases[0][0]


def _highest_common(api: Api, theirs: tuple[int, int], highest: int) -> int | None:
    common = min(theirs[1], highest)
    return common if common >= max(theirs[0], api.lowest) else None


def lacking(api: Api, theirs: Mapping[int, tuple[int, int]], highest: int | None = None) -> str:
    """Says why an API cannot be used, for an error: the broker does not offer it, or only other versions.

    Args:
        api: an API that ``negotiate()`` left out, or refused.
        theirs: what was passed to ``negotiate()``.
        highest: the highest version that this client can use; None: the highest that it implements.
    """
    highest = api.highest if highest is None else highest
    if api.key not in theirs:
        return f"the broker does not offer {api.name}, of which this client speaks {api.lowest} to {highest}"
    return (
        f"no common version of {api.name}: the broker speaks {theirs[api.key][0]} to {theirs[api.key][1]}, "
        f"this client {api.lowest} to {highest}"
    )


def negotiate(theirs: Mapping[int, tuple[int, int]]) -> dict[Api, int]:
    """Returns the highest version that both sides support, for each API that both have (KIP-35).

    APIs that are not required and have no common version are left out, like those that the broker lacks.

    Args:
        theirs: API key -> (lowest, highest) version that the broker supports, both inclusive.

    Raises:
        IncompatibleBrokerVersion: the broker lacks a required API, or the two ranges of its versions do not
            overlap.
    """
    chosen: dict[Api, int] = {}
    for api in APIS:
        if api is API_VERSIONS:
            # Its version was found by trial, before any version ranges were known.
            continue
        highest = api.highest
        if api is PRODUCE and METADATA.key in theirs and theirs[METADATA.key][1] < _METADATA_WITH_TOPIC_ID:
            # Without ids from Metadata, Produce cannot name topics by id.
            highest = PRODUCE_BY_TOPIC_ID - 1
        version = _highest_common(api, theirs[api.key], highest) if api.key in theirs else None
        if version is not None:
            chosen[api] = version
        elif api.required:
            raise IncompatibleBrokerVersion(lacking(api, theirs, highest))
    return chosen


def is_too_old(theirs: Mapping[int, tuple[int, int]]) -> bool:
    """Returns whether a broker is older than the oldest supported release; ``theirs``: see `negotiate`."""
    _, oldest = PRODUCE.releases[0]
    return theirs[PRODUCE.key][1] < oldest


def fallback_for(api_version: tuple[int, ...] | None) -> dict[int, tuple[int, int]]:
    """Returns the versions to assume for a broker that closes the connection on ApiVersions.

    Args:
        api_version: the option of that name, a Kafka release such as ``(2, 8)``. A release newer than all
            known ones counts as the newest known one.

    Returns:
        API key -> (lowest, highest) version, to be passed to ``negotiate()``; without APIs that the release
        does not have.

    Raises:
        UnrecognizedBrokerVersion: ``api_version`` is None, so there is nothing to fall back to.
        IncompatibleBrokerVersion: it is older than Kafka 2.1.
    """
    oldest = ".".join(map(str, _OLDEST_RELEASE))
    if api_version is None:
        raise UnrecognizedBrokerVersion(
            "the broker closed the connection on an ApiVersions request and api_version is not set: "
            f"it may not be a Kafka broker, or be older than {oldest}, or set api_version=(major, minor)"
        )
    major, minor = (*api_version, 0, 0)[:2]
    release = (major, minor)
    if release < _OLDEST_RELEASE:
        raise IncompatibleBrokerVersion(
            f"api_version={api_version!r} is older than Kafka {oldest}, the oldest release supported"
        )
    # Brokers before 4.0 start at 0. For newer ones the lowest does not matter, as this client's is above it.
    spoken = {api.key: _spoken_by(release, api) for api in APIS}
    return {key: (0, highest) for key, highest in spoken.items() if highest is not None}


def _spoken_by(release: Release, api: Api) -> int | None:
    return max((version for known, version in api.releases if known <= release), default=None)


# Responses: what the decoders of ``network/protocol`` return. Immutable, so that threads may share them.

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
    #: The higher, the newer are ``finalized_features``; -1: unknown.
    features_epoch: int = -1


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


class ReplicatedPartition(NamedTuple):
    """A ``PartitionInfo`` with the node ids of its replicas, and of those that are in sync."""

    error_code: int
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]


NOT_ASKED = -(2**31)
"""What a broker gives for operations that it was not asked for."""


class TopicInfo(NamedTuple):
    """One topic; ``name`` is None only if a lookup by topic id failed."""

    error_code: int
    name: str | None
    #: 16 bytes, ``NO_TOPIC_ID`` before Metadata v10 and if the topic does not exist.
    topic_id: bytes
    is_internal: bool
    #: ``ReplicatedPartition`` in the answer to a program's question.
    partitions: list[PartitionInfo]
    #: A bit for each operation that the principal may do, numbered as in ``AclOperation`` (KIP-430).
    authorized_operations: int = NOT_ASKED


class MetadataResponse(NamedTuple):
    """A broker's view of the cluster; ``error_code`` is 0 before Metadata v13."""

    throttle_time_ms: int
    brokers: list[BrokerInfo]
    cluster_id: str | None
    controller_id: int
    topics: list[TopicInfo]
    error_code: int = 0
    #: For each broker that the response lists and that cannot be one: what is wrong with it.
    left_out: tuple[str, ...] = ()


class InitProducerIdResponse(NamedTuple):
    """A producer id and its epoch, or the error code that says why there is none (KIP-98, KIP-360)."""

    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int


class SaslHandshakeResponse(NamedTuple):
    """Whether the broker has the mechanism enabled, and the names of those that it has (KIP-43)."""

    error_code: int
    mechanisms: list[str]


class SaslAuthenticateResponse(NamedTuple):
    """The server's next message of the mechanism (KIP-152, KIP-368)."""

    error_code: int
    error_message: str | None
    auth_bytes: bytes
    #: For how long the connection is authenticated; 0: until it closes.
    session_lifetime_ms: int


class FindCoordinatorResponse(NamedTuple):
    """The broker that coordinates a transactional id or a group; the node id is -1 if there is none now.

    The message is the broker's own text, None without one.
    """

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    node_id: int
    host: str
    port: int


class AddPartitionsToTxnResponse(NamedTuple):
    """The error code of each partition, 0 if it is in the transaction now (KIP-98)."""

    throttle_time_ms: int
    #: (topic, partition) -> error code.
    errors: dict[tuple[str, int], int]


class AddOffsetsToTxnResponse(NamedTuple):
    """Whether the group's offsets are in the transaction now (KIP-98)."""

    throttle_time_ms: int
    error_code: int


class TxnOffsetCommitResponse(NamedTuple):
    """The error code of each partition, 0 if its offset will be committed with the transaction (KIP-98)."""

    throttle_time_ms: int
    #: (topic, partition) -> error code.
    errors: dict[tuple[str, int], int]


class EndTxnResponse(NamedTuple):
    """Whether the transaction is decided, and the identity for the next one (KIP-98, KIP-890).

    The identity is -1 before version 5, and with an error.
    """

    throttle_time_ms: int
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1


class TransactionDescription(NamedTuple):
    """A transactional id as its coordinator knows it (KIP-664)."""

    error_code: int
    transactional_id: str
    #: The coordinator's name for it, such as "Ongoing".
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
    """A transactional id in the answer of one of the coordinators (KIP-664)."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResponse(NamedTuple):
    """The transactional ids that this broker coordinates and that pass the filters of the request."""

    throttle_time_ms: int
    error_code: int
    #: Those of the request's states that the broker does not know.
    unknown_states: list[str]
    transactions: list[TransactionListing]


class FetchedPartition(NamedTuple):
    """What a leader has returned of one partition (KIP-98).

    Offsets are -1 with an error; ``log_start_offset`` is -1 before version 5. ``records`` are whole batches,
    of which the last may be cut off.
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

    The message is the broker's own text, None without one.
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
    #: Option -> value; None if it is secret or has none.
    configs: dict[str, str | None]


class DescribeConfigsResponse(NamedTuple):
    """One description for each resource of the request."""

    throttle_time_ms: int
    results: list[DescribedConfigs]
