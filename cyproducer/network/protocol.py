"""Encodes and decodes every Kafka message except Produce: handshake, Metadata, transactions, reading.

Owns the byte layout of these requests and responses in each version the package implements, and of the
Produce response field with broker addresses. Does not own the primitive types (``primitives.pyx``), sockets
or the choice of a version (``control/apis.py``). The caller matches responses to requests by correlation id.
Runs with the GIL, on the sender thread; every function is pure and may be called from any thread.

Layouts follow Apache Kafka's message schemas (protocol guide; KIP-482 for flexible versions).
"""

from collections.abc import Mapping, Sequence

from cyproducer.control.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    NO_TOPIC_ID,
    NOT_ASKED,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TXN_OFFSET_COMMIT,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    Api,
    ApiVersionsResponse,
    BrokerInfo,
    CreatedTopic,
    CreateTopicsResponse,
    DescribeConfigsResponse,
    DescribedConfigs,
    DescribeTransactionsResponse,
    EndTxnResponse,
    FetchedPartition,
    FetchResponse,
    FindCoordinatorResponse,
    InitProducerIdResponse,
    ListedOffset,
    ListOffsetsResponse,
    ListTransactionsResponse,
    MetadataResponse,
    PartitionInfo,
    ReplicatedPartition,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
    TopicInfo,
    TransactionDescription,
    TransactionListing,
    TxnOffsetCommitResponse,
)
from cyproducer.errors import KafkaProtocolError
from cyproducer.network.primitives import Reader, Writer, read_partitions
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

_Frame = bytes | bytearray | memoryview

MOST_BROKERS = 20_000
"""The most brokers of a response: an order of magnitude more than any cluster has."""

UNSUPPORTED_VERSION = 35
"""A broker sends this error in version 0, whatever version was requested (KIP-511)."""
LATEST, EARLIEST = -1, -2
"""Timestamps of ListOffsets."""
TOPIC, BROKER = 2, 4
"""Resource types of DescribeConfigs."""
_FEATURES_EPOCH_TAG = 1
_FINALIZED_FEATURES_TAG = 2


def _described(api: Api, version: int, kind: str) -> str:
    """Checks the version, and returns the message's name for errors."""
    if not api.lowest <= version <= api.highest:
        raise ValueError(
            f"{api.name} version {version} is not implemented, only {api.lowest} to {api.highest}"
        )
    return f"{api.name} v{version} {kind}"


def _request(api: Api, version: int, correlation_id: int, client_id: str | None) -> Writer:
    """Returns a writer that has written the request header."""
    message = _described(api, version, "request")
    return Writer(api.key, version, correlation_id, client_id, message, version >= api.flexible)


def _response(api: Api, version: int, frame: _Frame) -> Reader:
    return Reader(frame, _described(api, version, "response"), version >= api.flexible)


def encode_api_versions(
    version: int, correlation_id: int, client_id: str | None, software_name: str, software_version: str
) -> bytes:
    """Encodes an ApiVersions request v0-v4 as a whole frame, size prefix included (KIP-35, KIP-511).

    The software name and version are sent from v3 on; brokers accept ASCII letters, digits, ``-`` and ``.``
    in them.

    Raises:
        ValueError: the version is not implemented, or a string cannot be encoded or is longer than 32767
            bytes. All encoders raise it.
    """
    writer = _request(API_VERSIONS, version, correlation_id, client_id)
    if writer.flexible:
        writer.string("client_software_name", software_name)
        writer.string("client_software_version", software_version)
        writer.no_tags()
    return writer.finish()


def encode_metadata(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topics: Sequence[str] | None,
    allow_auto_create: bool,
    authorized_operations: bool = False,
) -> bytes:
    """Encodes a Metadata request v1-v13 as a whole frame.

    Args:
        topics: the topics to ask for; ``[]`` asks only for the brokers, ``None`` for all topics of the
            cluster.
        allow_auto_create: whether the broker may create missing topics; False needs v4.
        authorized_operations: whether to ask what the principal may do with each topic; no effect before v8.
    """
    writer = _request(METADATA, version, correlation_id, client_id)
    if topics is None:
        writer.count(-1)
    else:
        writer.count(len(topics))
        for topic in topics:
            if version >= 10:
                writer.raw(NO_TOPIC_ID)
            writer.string("topic name", topic)
            writer.no_tags()
    if version >= 4:
        writer.boolean(allow_auto_create)
    elif not allow_auto_create:
        raise ValueError(f"{writer.message}: allow_auto_create=False needs version 4 or newer")
    if 8 <= version <= 10:
        writer.boolean(False)
    if version >= 8:
        writer.boolean(authorized_operations)
    writer.no_tags()
    return writer.finish()


def encode_init_producer_id(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None,
    transaction_timeout_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytes:
    """Encodes an InitProducerId request v0-v5 as a whole frame (KIP-98).

    Args:
        transactional_id: None for an idempotent producer without transactions.
        producer_id: the producer id whose epoch to bump, -1 for a new id; needs v3 (KIP-360).
        producer_epoch: the current epoch of that id, -1 for a new id.
    """
    writer = _request(INIT_PRODUCER_ID, version, correlation_id, client_id)
    writer.nullable_string("transactional_id", transactional_id)
    writer.int32(transaction_timeout_ms)
    if version >= 3:
        writer.int64(producer_id)
        writer.int16(producer_epoch)
    elif producer_id != -1 or producer_epoch != -1:
        raise ValueError(
            f"{writer.message}: producer_id={producer_id} with producer_epoch={producer_epoch} "
            "needs version 3 or newer"
        )
    writer.no_tags()
    return writer.finish()


def encode_find_coordinator(
    version: int, correlation_id: int, client_id: str | None, key_type: int, key: str
) -> bytes:
    """Encodes a FindCoordinator request v1-v6 as a whole frame (KIP-98; KIP-699 for v4).

    Args:
        key_type: 0: ``key`` is a group id; 1: a transactional id.
    """
    writer = _request(FIND_COORDINATOR, version, correlation_id, client_id)
    if version < 4:
        writer.string("key", key)
    writer.raw(key_type.to_bytes(1, "big"))
    if version >= 4:
        writer.count(1)
        writer.string("key", key)
    writer.no_tags()
    return writer.finish()


def _write_identity(writer: Writer, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
    writer.string("transactional_id", transactional_id)
    writer.int64(producer_id)
    writer.int16(producer_epoch)


def encode_add_partitions_to_txn(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Mapping[str, Sequence[int]],
) -> bytes:
    """Encodes an AddPartitionsToTxn request v0-v3 as a whole frame (KIP-98).

    Args:
        partitions: topic -> partitions.
    """
    writer = _request(ADD_PARTITIONS_TO_TXN, version, correlation_id, client_id)
    _write_identity(writer, transactional_id, producer_id, producer_epoch)
    writer.count(len(partitions))
    for topic, indexes in partitions.items():
        writer.string("topic name", topic)
        writer.count(len(indexes))
        for index in indexes:
            writer.int32(index)
        writer.no_tags()
    writer.no_tags()
    return writer.finish()


def encode_add_offsets_to_txn(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group_id: str,
) -> bytes:
    """Encodes an AddOffsetsToTxn request v0-v4 as a whole frame (KIP-98)."""
    writer = _request(ADD_OFFSETS_TO_TXN, version, correlation_id, client_id)
    _write_identity(writer, transactional_id, producer_id, producer_epoch)
    writer.string("group_id", group_id)
    writer.no_tags()
    return writer.finish()


def encode_txn_offset_commit(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> bytes:
    """Encodes a TxnOffsetCommit request v0-v5 as a whole frame (KIP-98; KIP-447 for v3).

    Before v2 the leader epochs are left out.

    Args:
        group: below v3 the group id alone can be sent. A member's generation and ids are an error then: left
            out, the broker could not refuse the offsets of a former member.
        offsets: the offsets to commit.
    """
    writer = _request(TXN_OFFSET_COMMIT, version, correlation_id, client_id)
    writer.string("transactional_id", transactional_id)
    writer.string("group_id", group.group_id)
    writer.int64(producer_id)
    writer.int16(producer_epoch)
    if version >= 3:
        writer.int32(group.generation_id)
        writer.string("member_id", group.member_id)
        writer.nullable_string("group_instance_id", group.group_instance_id)
    elif group != ConsumerGroupMetadata(group.group_id):
        raise ValueError(f"{writer.message}: {group} needs version 3 or newer")
    by_topic: dict[str, list[tuple[int, OffsetAndMetadata]]] = {}
    for (topic, index), offset in offsets.items():
        by_topic.setdefault(topic, []).append((index, offset))
    writer.count(len(by_topic))
    for topic, partitions in by_topic.items():
        writer.string("topic name", topic)
        writer.count(len(partitions))
        for index, (committed, metadata, leader_epoch) in partitions:
            writer.int32(index)
            writer.int64(committed)
            if version >= 2:
                writer.int32(-1 if leader_epoch is None else leader_epoch)
            writer.nullable_string("metadata", metadata)
            writer.no_tags()
        writer.no_tags()
    writer.no_tags()
    return writer.finish()


def encode_end_txn(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    committed: bool,
) -> bytes:
    """Encodes an EndTxn request v0-v5 as a whole frame (KIP-98; KIP-890 for v5).

    Args:
        committed: True to commit, False to abort.
    """
    writer = _request(END_TXN, version, correlation_id, client_id)
    _write_identity(writer, transactional_id, producer_id, producer_epoch)
    writer.boolean(committed)
    writer.no_tags()
    return writer.finish()


def encode_describe_transactions(
    version: int, correlation_id: int, client_id: str | None, transactional_ids: Sequence[str]
) -> bytes:
    """Encodes a DescribeTransactions request v0 as a whole frame (KIP-664)."""
    writer = _request(DESCRIBE_TRANSACTIONS, version, correlation_id, client_id)
    writer.count(len(transactional_ids))
    for transactional_id in transactional_ids:
        writer.string("transactional_id", transactional_id)
    writer.no_tags()
    return writer.finish()


def encode_list_transactions(
    version: int,
    correlation_id: int,
    client_id: str | None,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> bytes:
    """Encodes a ListTransactions request v0-v2 as a whole frame (KIP-664, KIP-994, KIP-1152).

    The broker lists the transactional ids that pass all filters.

    Args:
        states: the coordinator's names of states, such as "Ongoing"; none: all states.
        producer_ids: none: all producer ids.
        duration_ms: transactions that have been open for longer; -1: all. Needs v1.
        pattern: a regular expression in RE2's syntax that the whole transactional id matches; None or "": all
            ids. Needs v2.
    """
    writer = _request(LIST_TRANSACTIONS, version, correlation_id, client_id)
    writer.count(len(states))
    for state in states:
        writer.string("state", state)
    writer.count(len(producer_ids))
    for producer_id in producer_ids:
        writer.int64(producer_id)
    if version >= 1:
        writer.int64(duration_ms)
    elif duration_ms >= 0:
        raise ValueError(f"{writer.message}: duration_ms={duration_ms} needs version 1 or newer")
    if version >= 2:
        writer.nullable_string("pattern", pattern)
    elif pattern:
        raise ValueError(f"{writer.message}: pattern={pattern!r} needs version 2 or newer")
    writer.no_tags()
    return writer.finish()


def encode_fetch(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int,
    max_wait_ms: int = 0,
) -> bytes:
    """Encodes a Fetch request v4-v12 of one partition as a whole frame, without a session (KIP-98, KIP-227).

    It reads uncommitted records, too, and does not state an epoch of the leader.

    Args:
        topic: the topic's name.
        partition: a partition that the broker leads.
        offset: the first offset; the broker returns the batch with it, or the next one.
        max_bytes: of the response; a first batch that is larger is returned all the same.
        max_wait_ms: how long the broker waits for a record, and answers nothing else on this connection.
    """
    writer = _request(FETCH, version, correlation_id, client_id)
    writer.int32(-1)  # Not a replica.
    writer.int32(max_wait_ms)
    writer.int32(1)
    writer.int32(max_bytes)
    writer.boolean(False)  # The isolation level.
    if version >= 7:
        writer.int32(0)
        writer.int32(-1)
    writer.count(1)
    writer.string("topic", topic)
    writer.count(1)
    writer.int32(partition)
    if version >= 9:
        writer.int32(-1)
    writer.int64(offset)
    if version >= 12:
        writer.int32(-1)
    if version >= 5:
        writer.int64(-1)
    writer.int32(max_bytes)
    writer.no_tags()
    writer.no_tags()
    if version >= 7:
        writer.count(0)
    if version >= 11:
        writer.string("rack_id", "")
    writer.no_tags()
    return writer.finish()


def encode_list_offsets(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topic: str,
    partition: int,
    timestamp: int,
) -> bytes:
    """Encodes a ListOffsets request v1-v7 of one partition as a whole frame (KIP-79).

    It does not state an epoch of the leader.

    Args:
        topic: the topic's name.
        partition: a partition that the broker leads.
        timestamp: ``LATEST``: the high watermark; ``EARLIEST``: the log's first offset; or milliseconds since
            the epoch.
    """
    writer = _request(LIST_OFFSETS, version, correlation_id, client_id)
    writer.int32(-1)  # Not a replica.
    if version >= 2:
        writer.boolean(False)  # The isolation level.
    writer.count(1)
    writer.string("topic", topic)
    writer.count(1)
    writer.int32(partition)
    if version >= 4:
        writer.int32(-1)
    writer.int64(timestamp)
    writer.no_tags()
    writer.no_tags()
    writer.no_tags()
    return writer.finish()


def encode_create_topics(
    version: int,
    correlation_id: int,
    client_id: str | None,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    timeout_ms: int,
) -> bytes:
    """Encodes a CreateTopics request v2-v7 of one topic as a whole frame (KIP-4; KIP-464 for v4).

    Args:
        name: of the topic.
        partitions: how many; -1: the brokers' default. Needs v4.
        replication_factor: replicas of each partition; -1: the brokers' default. Needs v4.
        configs: the topic's options.
        timeout_ms: how long the controller waits for the brokers.
    """
    writer = _request(CREATE_TOPICS, version, correlation_id, client_id)
    if version < 4 and (partitions < 0 or replication_factor < 0):
        raise ValueError(
            f"{writer.message}: partitions={partitions} with replication_factor={replication_factor} "
            "needs version 4 or newer"
        )
    writer.count(1)
    writer.string("name", name)
    writer.int32(partitions)
    writer.int16(replication_factor)
    writer.count(0)
    writer.count(len(configs))
    for key, value in configs.items():
        writer.string("config name", key)
        writer.string("config value", value)
        writer.no_tags()
    writer.no_tags()
    writer.int32(timeout_ms)
    writer.boolean(False)
    writer.no_tags()
    return writer.finish()


def encode_describe_configs(
    version: int,
    correlation_id: int,
    client_id: str | None,
    resource_type: int,
    names: Sequence[str],
    keys: Sequence[str] | None = None,
) -> bytes:
    """Encodes a DescribeConfigs request v1-v4 as a whole frame (KIP-133).

    Args:
        resource_type: ``TOPIC`` or ``BROKER``. The options of a broker must be asked of that broker.
        names: topics, or node ids in decimal.
        keys: options; None: all of them.
    """
    writer = _request(DESCRIBE_CONFIGS, version, correlation_id, client_id)
    writer.count(len(names))
    for name in names:
        writer.raw(resource_type.to_bytes(1, "big"))
        writer.string("resource name", name)
        writer.count(-1 if keys is None else len(keys))
        for key in keys or ():
            writer.string("configuration key", key)
        writer.no_tags()
    writer.boolean(False)
    if version >= 3:
        writer.boolean(False)
    writer.no_tags()
    return writer.finish()


def encode_sasl_handshake(version: int, correlation_id: int, client_id: str | None, mechanism: str) -> bytes:
    """Encodes a SaslHandshake request v1 as a whole frame (KIP-43)."""
    writer = _request(SASL_HANDSHAKE, version, correlation_id, client_id)
    writer.string("mechanism", mechanism)
    return writer.finish()


def encode_sasl_authenticate(
    version: int, correlation_id: int, client_id: str | None, auth_bytes: bytes
) -> bytes:
    """Encodes a SaslAuthenticate request v0-v2 as a whole frame (KIP-152, KIP-368)."""
    writer = _request(SASL_AUTHENTICATE, version, correlation_id, client_id)
    writer.count(len(auth_bytes))
    writer.raw(auth_bytes)
    writer.no_tags()
    return writer.finish()


def _read_features(reader: Reader) -> dict[str, tuple[int, int]]:
    features: dict[str, tuple[int, int]] = {}
    for _ in range(reader.count("finalized_features", 6)):
        name = reader.string("finalized_features.name")
        # The highest level comes before the lowest in the response.
        highest = reader.int16("finalized_features.max_version_level")
        lowest = reader.int16("finalized_features.min_version_level")
        reader.skip_tags()
        features[name] = (lowest, highest)
    return features


def _read_api_versions(reader: Reader) -> dict[int, tuple[int, int]]:
    api_versions = {}
    for _ in range(reader.count("api_keys", 7 if reader.flexible else 6)):
        key = reader.int16("api_keys.api_key")
        lowest = reader.int16("api_keys.min_version")
        highest = reader.int16("api_keys.max_version")
        reader.skip_tags()
        api_versions[key] = (lowest, highest)
    return api_versions


def _read_supported_versions(reader: Reader) -> dict[int, tuple[int, int]]:
    """Reads the ranges that come with UNSUPPORTED_VERSION; malformed ones count as none."""
    reader.flexible = False
    try:
        api_versions = _read_api_versions(reader)
        reader.finish()
    except KafkaProtocolError:
        # librdkafka's mock cluster mixes the requested version with version 0 here.
        return {}
    return api_versions


def decode_api_versions(version: int, frame: _Frame) -> ApiVersionsResponse:
    """Decodes an ApiVersions response.

    Args:
        version: the requested version. A broker that does not support it responds with error code 35
            (UNSUPPORTED_VERSION) in version 0, with the version ranges it supports (KIP-511). If the ranges
            cannot be read, the result has none: every broker understands version 0.
        frame: the response from its correlation id on, without the size prefix.

    Raises:
        KafkaProtocolError: the response is malformed: truncated, a length or count beyond the end, text
            that is not UTF-8, or trailing bytes. All decoders raise it.
        ValueError: the version is not implemented. All decoders raise it.
    """
    reader = _response(API_VERSIONS, version, frame)
    features: dict[str, tuple[int, int]] = {}
    features_epoch = -1
    throttle_time_ms = 0
    # All versions have response header v0: the client cannot know yet whether the broker supports v1.
    reader.int32("correlation_id")
    error_code = reader.int16("error_code")
    if error_code == UNSUPPORTED_VERSION:
        return ApiVersionsResponse(error_code, _read_supported_versions(reader), 0, features)
    api_versions = _read_api_versions(reader)
    if version >= 1:
        throttle_time_ms = reader.int32("throttle_time_ms")
    if reader.flexible:
        for tag in reader.tagged_fields():
            if tag == _FINALIZED_FEATURES_TAG:
                features = _read_features(reader)
                reader.finish()
            elif tag == _FEATURES_EPOCH_TAG:
                features_epoch = reader.int64("finalized_features_epoch")
                reader.finish()
    reader.finish()
    return ApiVersionsResponse(error_code, api_versions, throttle_time_ms, features, features_epoch)


def _node_problem(node_id: int, host: str, port: int) -> str | None:
    """Says why a node cannot be a broker to connect to; None if it can.

    Ids below 0 are those of this client's bootstrap addresses.
    """
    if node_id < 0:
        return f"node {node_id} at {host!r}:{port} is no broker: node ids are 0 or more"
    if not host or not 1 <= port <= 65535:
        problem = "is not an address: it must be a host and a port from 1 to 65535"
        return f"{host!r}:{port} of node {node_id} {problem}"
    return None


def _read_brokers(reader: Reader) -> tuple[list[BrokerInfo], list[str]]:
    """Returns the brokers, and what is wrong with those that are left out."""
    brokers = []
    left_out = []
    for _ in range(reader.count("brokers", 11 if reader.flexible else 12, MOST_BROKERS)):
        node_id = reader.int32("brokers.node_id")
        host = reader.text("brokers.host")
        port = reader.int32("brokers.port")
        rack = reader.nullable_text("brokers.rack")
        reader.skip_tags()
        problem = _node_problem(node_id, host, port)
        if problem is None:
            brokers.append(BrokerInfo(node_id, host, port, rack))
        else:
            left_out.append(problem)
    return brokers, left_out


def _read_topics(reader: Reader, version: int, with_replicas: bool) -> list[TopicInfo]:
    least_size = 5 if reader.flexible else 9
    topics = []
    topic_id = NO_TOPIC_ID
    for _ in range(reader.count("topics", least_size)):
        error_code = reader.int16("topics.error_code")
        name = reader.nullable_string("topics.name") if version >= 12 else reader.string("topics.name")
        if version >= 10:
            topic_id = reader.raw("topics.topic_id", len(NO_TOPIC_ID))
        is_internal = reader.boolean("topics.is_internal") == 1
        kind = ReplicatedPartition if with_replicas else PartitionInfo
        partitions: list[PartitionInfo] = read_partitions(reader, version, kind, with_replicas)
        operations = NOT_ASKED if version < 8 else reader.int32("topics.topic_authorized_operations")
        reader.skip_tags()
        topics.append(TopicInfo(error_code, name, topic_id, is_internal, partitions, operations))
    return topics


def decode_metadata(version: int, frame: _Frame) -> MetadataResponse:
    """Decodes a Metadata response v1-v13. Fields missing in a version are None, -1, 0 or the zero topic id.

    Brokers with a node id below 0 or without a usable address are left out: one wrong broker must not keep
    the client from the others.

    Accepts a second, empty set of tagged fields at the end: librdkafka's mock cluster sends it.
    """
    return _decode_metadata(version, frame, False)


def decode_listing(version: int, frame: _Frame) -> MetadataResponse:
    """``decode_metadata``, with ``ReplicatedPartition`` for each partition."""
    return _decode_metadata(version, frame, True)


def _decode_metadata(version: int, frame: _Frame, with_replicas: bool) -> MetadataResponse:
    reader = _response(METADATA, version, frame)
    throttle_time_ms = 0
    error_code = 0
    cluster_id = None
    reader.int32("correlation_id")
    reader.skip_tags()
    if version >= 3:
        throttle_time_ms = reader.int32("throttle_time_ms")
    brokers, left_out = _read_brokers(reader)
    if version >= 2:
        cluster_id = reader.nullable_text("cluster_id")
    controller_id = reader.int32("controller_id")
    topics = _read_topics(reader, version, with_replicas)
    if 8 <= version <= 10:
        reader.int32("cluster_authorized_operations")
    if version >= 13:
        error_code = reader.int16("error_code")
    reader.skip_tags()
    if reader.left == 1:
        # librdkafka's mock cluster ends its flexible versions with a second, empty set of tagged fields.
        reader.skip_tags()
    reader.finish()
    return MetadataResponse(
        throttle_time_ms, brokers, cluster_id, controller_id, topics, error_code, tuple(left_out)
    )


def decode_node_endpoints(field: _Frame) -> list[BrokerInfo]:
    """Decodes the addresses of the leaders that a Produce response names: tagged field 0, from v10 (KIP-951).

    In addition to the checks of every decoder, it rejects a node id below 0, an empty host and a port outside
    1-65535.
    """
    reader = Reader(field, "Produce response: node_endpoints", True)
    brokers = []
    for _ in range(reader.count("node_endpoints", 11, MOST_BROKERS)):
        node_id = reader.int32("node_id")
        host = reader.text("host")
        port = reader.int32("port")
        if problem := _node_problem(node_id, host, port):
            raise KafkaProtocolError(f"{reader.message}: {problem}")
        rack = reader.nullable_text("rack")
        reader.skip_tags()
        brokers.append(BrokerInfo(node_id, host, port, rack))
    reader.finish()
    return brokers


def decode_init_producer_id(version: int, frame: _Frame) -> InitProducerIdResponse:
    """Decodes an InitProducerId response v0-v5. Without an error, id and epoch must be 0 or more.

    Batches with another id would be written without any check for duplicates.
    """
    reader = _response(INIT_PRODUCER_ID, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    error_code = reader.int16("error_code")
    producer_id = reader.int64("producer_id")
    producer_epoch = reader.int16("producer_epoch")
    if error_code == 0 and (producer_id < 0 or producer_epoch < 0):
        reader.fail("producer_id", f"is {producer_id} with epoch {producer_epoch}, both must be 0 or more")
    reader.skip_tags()
    reader.finish()
    return InitProducerIdResponse(throttle_time_ms, error_code, producer_id, producer_epoch)


def decode_find_coordinator(version: int, frame: _Frame) -> FindCoordinatorResponse:
    """Decodes a FindCoordinator response v1-v6; from v4 on it must have exactly one coordinator.

    Without an error, the coordinator must be a broker with a usable address.
    """
    reader = _response(FIND_COORDINATOR, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    if version >= 4:
        coordinators = reader.count("coordinators", 14)
        if coordinators != 1:
            reader.fail("coordinators", f"has {coordinators} elements, but must have one")
        reader.string("coordinators.key")
    else:
        error_code = reader.int16("error_code")
        error_message = reader.nullable_text("error_message")
    node_id = reader.int32("node_id")
    host = reader.text("host")
    port = reader.int32("port")
    if version >= 4:
        error_code = reader.int16("coordinators.error_code")
        error_message = reader.nullable_text("coordinators.error_message")
        reader.skip_tags()
    if error_code == 0 and (problem := _node_problem(node_id, host, port)):
        reader.fail("coordinator", f"is invalid: {problem}")
    reader.skip_tags()
    reader.finish()
    return FindCoordinatorResponse(throttle_time_ms, error_code, error_message, node_id, host, port)


def _read_partition_errors(reader: Reader) -> dict[tuple[str, int], int]:
    partition_errors = {}
    for _ in range(reader.count("topics", 3 if reader.flexible else 6)):
        topic = reader.string("topics.name")
        for _ in range(reader.count("topics.partitions", 7 if reader.flexible else 6)):
            index = reader.int32("topics.partitions.partition_index")
            if (topic, index) in partition_errors:
                # The one without an error would hide the other.
                reader.fail("topics.partitions.partition_index", f"{topic!r}-{index} is there twice")
            partition_errors[topic, index] = reader.int16("topics.partitions.error_code")
            reader.skip_tags()
        reader.skip_tags()
    return partition_errors


def decode_add_partitions_to_txn(version: int, frame: _Frame) -> AddPartitionsToTxnResponse:
    """Decodes an AddPartitionsToTxn response v0-v3."""
    reader = _response(ADD_PARTITIONS_TO_TXN, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    partition_errors = _read_partition_errors(reader)
    reader.skip_tags()
    reader.finish()
    return AddPartitionsToTxnResponse(throttle_time_ms, partition_errors)


def decode_add_offsets_to_txn(version: int, frame: _Frame) -> AddOffsetsToTxnResponse:
    """Decodes an AddOffsetsToTxn response v0-v4."""
    reader = _response(ADD_OFFSETS_TO_TXN, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    error_code = reader.int16("error_code")
    reader.skip_tags()
    reader.finish()
    return AddOffsetsToTxnResponse(throttle_time_ms, error_code)


def decode_txn_offset_commit(version: int, frame: _Frame) -> TxnOffsetCommitResponse:
    """Decodes a TxnOffsetCommit response v0-v5."""
    reader = _response(TXN_OFFSET_COMMIT, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    partition_errors = _read_partition_errors(reader)
    reader.skip_tags()
    reader.finish()
    return TxnOffsetCommitResponse(throttle_time_ms, partition_errors)


def decode_end_txn(version: int, frame: _Frame) -> EndTxnResponse:
    """Decodes an EndTxn response v0-v5."""
    reader = _response(END_TXN, version, frame)
    producer_id, producer_epoch = -1, -1
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    error_code = reader.int16("error_code")
    if version >= 5:
        producer_id = reader.int64("producer_id")
        producer_epoch = reader.int16("producer_epoch")
        if error_code == 0 and producer_id >= 0 > producer_epoch:
            reader.fail("producer_epoch", f"is {producer_epoch}, it must be 0 or more")
    reader.skip_tags()
    reader.finish()
    return EndTxnResponse(throttle_time_ms, error_code, producer_id, producer_epoch)


def _read_transaction(reader: Reader) -> TransactionDescription:
    error_code = reader.int16("transaction_states.error_code")
    transactional_id = reader.string("transaction_states.transactional_id")
    state = reader.text("transaction_states.transaction_state")
    timeout_ms = reader.int32("transaction_states.transaction_timeout_ms")
    start_time_ms = reader.int64("transaction_states.transaction_start_time_ms")
    producer_id = reader.int64("transaction_states.producer_id")
    producer_epoch = reader.int16("transaction_states.producer_epoch")
    partitions = {}
    for _ in range(reader.count("transaction_states.topics", 3)):
        topic = reader.string("transaction_states.topics.topic")
        partitions[topic] = reader.int32s("transaction_states.topics.partitions")
        reader.skip_tags()
    reader.skip_tags()
    return TransactionDescription(
        error_code,
        transactional_id,
        state,
        timeout_ms,
        start_time_ms,
        producer_id,
        producer_epoch,
        partitions,
    )


def decode_describe_transactions(version: int, frame: _Frame) -> DescribeTransactionsResponse:
    """Decodes a DescribeTransactions response v0."""
    reader = _response(DESCRIBE_TRANSACTIONS, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    transactions = [_read_transaction(reader) for _ in range(reader.count("transaction_states", 28))]
    reader.skip_tags()
    reader.finish()
    return DescribeTransactionsResponse(throttle_time_ms, transactions)


def decode_list_transactions(version: int, frame: _Frame) -> ListTransactionsResponse:
    """Decodes a ListTransactions response v0-v2."""
    reader = _response(LIST_TRANSACTIONS, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    error_code = reader.int16("error_code")
    unknown_states = [reader.text("state") for _ in range(reader.count("unknown_state_filters", 1))]
    transactions = []
    for _ in range(reader.count("transaction_states", 11)):
        transactional_id = reader.string("transaction_states.transactional_id")
        producer_id = reader.int64("transaction_states.producer_id")
        state = reader.text("transaction_states.transaction_state")
        reader.skip_tags()
        transactions.append(TransactionListing(transactional_id, producer_id, state))
    reader.skip_tags()
    reader.finish()
    return ListTransactionsResponse(throttle_time_ms, error_code, unknown_states, transactions)


def _read_fetched(reader: Reader, version: int, topic: str) -> FetchedPartition:
    partition = reader.int32("partitions.partition_index")
    error_code = reader.int16("partitions.error_code")
    high_watermark = reader.int64("partitions.high_watermark")
    last_stable_offset = reader.int64("partitions.last_stable_offset")
    log_start_offset = reader.int64("partitions.log_start_offset") if version >= 5 else -1
    for _ in range(reader.count("partitions.aborted_transactions", 16, nullable=True)):
        reader.int64("aborted_transactions.producer_id")
        reader.int64("aborted_transactions.first_offset")
        reader.skip_tags()
    if version >= 11:
        reader.int32("partitions.preferred_read_replica")
    records = reader.byte_string("partitions.records", nullable=True)
    reader.skip_tags()
    return FetchedPartition(
        topic, partition, error_code, high_watermark, last_stable_offset, log_start_offset, records
    )


def decode_fetch(version: int, frame: _Frame) -> FetchResponse:
    """Decodes a Fetch response v4-v12. Aborted transactions and preferred replicas are left out."""
    reader = _response(FETCH, version, frame)
    error_code = 0
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    if version >= 7:
        error_code = reader.int16("error_code")
        reader.int32("session_id")
    partitions = []
    for _ in range(reader.count("responses", 3 if reader.flexible else 6)):
        topic = reader.string("responses.topic")
        for _ in range(reader.count("responses.partitions", 30)):
            partitions.append(_read_fetched(reader, version, topic))
        reader.skip_tags()
    reader.skip_tags()
    reader.finish()
    return FetchResponse(throttle_time_ms, error_code, partitions)


def decode_list_offsets(version: int, frame: _Frame) -> ListOffsetsResponse:
    """Decodes a ListOffsets response v1-v7."""
    reader = _response(LIST_OFFSETS, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms") if version >= 2 else 0
    offsets = []
    for _ in range(reader.count("topics", 3 if reader.flexible else 6)):
        topic = reader.string("topics.name")
        for _ in range(reader.count("topics.partitions", 22)):
            partition = reader.int32("topics.partitions.partition_index")
            error_code = reader.int16("topics.partitions.error_code")
            timestamp = reader.int64("topics.partitions.timestamp")
            offset = reader.int64("topics.partitions.offset")
            leader_epoch = reader.int32("topics.partitions.leader_epoch") if version >= 4 else -1
            reader.skip_tags()
            offsets.append(ListedOffset(topic, partition, error_code, timestamp, offset, leader_epoch))
        reader.skip_tags()
    reader.skip_tags()
    reader.finish()
    return ListOffsetsResponse(throttle_time_ms, offsets)


def decode_create_topics(version: int, frame: _Frame) -> CreateTopicsResponse:
    """Decodes a CreateTopics response v2-v7. The topics' options are left out."""
    reader = _response(CREATE_TOPICS, version, frame)
    topic_id = NO_TOPIC_ID
    topics = []
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    for _ in range(reader.count("topics", 5 if reader.flexible else 6)):
        name = reader.string("topics.name")
        if version >= 7:
            topic_id = reader.raw("topics.topic_id", len(NO_TOPIC_ID))
        error_code = reader.int16("topics.error_code")
        error_message = reader.nullable_text("topics.error_message")
        if version >= 5:
            reader.int32("topics.num_partitions")
            reader.int16("topics.replication_factor")
            for _ in range(reader.count("topics.configs", 6, nullable=True)):
                reader.string("topics.configs.name")
                reader.nullable_string("topics.configs.value")
                reader.raw("topics.configs.read_only, config_source, is_sensitive", 3)
                reader.skip_tags()
        reader.skip_tags()
        topics.append(CreatedTopic(name, topic_id, error_code, error_message))
    reader.skip_tags()
    reader.finish()
    return CreateTopicsResponse(throttle_time_ms, topics)


def _read_configs(reader: Reader, version: int) -> dict[str, str | None]:
    configs = {}
    for _ in range(reader.count("results.configs", 7)):
        name = reader.string("results.configs.name")
        value = reader.nullable_string("results.configs.value")
        reader.raw("results.configs.read_only, config_source, is_sensitive", 3)
        for _ in range(reader.count("results.configs.synonyms", 3)):
            reader.string("results.configs.synonyms.name")
            reader.nullable_string("results.configs.synonyms.value")
            reader.raw("results.configs.synonyms.source", 1)
            reader.skip_tags()
        if version >= 3:
            reader.raw("results.configs.config_type", 1)
            reader.nullable_string("results.configs.documentation")
        reader.skip_tags()
        configs[name] = value
    return configs


def decode_describe_configs(version: int, frame: _Frame) -> DescribeConfigsResponse:
    """Decodes a DescribeConfigs response v1-v4. Of each option only its value is kept."""
    reader = _response(DESCRIBE_CONFIGS, version, frame)
    results = []
    reader.int32("correlation_id")
    reader.skip_tags()
    throttle_time_ms = reader.int32("throttle_time_ms")
    for _ in range(reader.count("results", 7)):
        error_code = reader.int16("results.error_code")
        error_message = reader.nullable_text("results.error_message")
        resource_type = reader.raw("results.resource_type", 1)[0]
        name = reader.string("results.resource_name")
        configs = _read_configs(reader, version)
        reader.skip_tags()
        results.append(DescribedConfigs(error_code, error_message, resource_type, name, configs))
    reader.skip_tags()
    reader.finish()
    return DescribeConfigsResponse(throttle_time_ms, results)


def decode_sasl_handshake(version: int, frame: _Frame) -> SaslHandshakeResponse:
    """Decodes a SaslHandshake response v1."""
    reader = _response(SASL_HANDSHAKE, version, frame)
    reader.int32("correlation_id")
    error_code = reader.int16("error_code")
    mechanisms = [reader.text("mechanism") for _ in range(reader.count("mechanisms", 2))]
    reader.finish()
    return SaslHandshakeResponse(error_code, mechanisms)


def decode_sasl_authenticate(version: int, frame: _Frame) -> SaslAuthenticateResponse:
    """Decodes a SaslAuthenticate response v0-v2."""
    reader = _response(SASL_AUTHENTICATE, version, frame)
    reader.int32("correlation_id")
    reader.skip_tags()
    error_code = reader.int16("error_code")
    error_message = reader.nullable_text("error_message")
    auth_bytes = reader.byte_string("auth_bytes")
    session_lifetime_ms = reader.int64("session_lifetime_ms") if version >= 1 else 0
    reader.skip_tags()
    reader.finish()
    return SaslAuthenticateResponse(error_code, error_message, auth_bytes, session_lifetime_ms)


_GREETINGS = (
    (b"HTTP", "an HTTP server"),
    (b"<htm", "an HTTP server"),
    (b"<HTM", "an HTTP server"),
    (b"<!DO", "an HTTP server"),
    (b"<!do", "an HTTP server"),
    (b"\x15\x03", "a TLS server (alert)"),
    (b"\x16\x03", "a TLS server (handshake)"),
    (b"SSH-", "an SSH server"),
    (b"220 ", "an SMTP or FTP server"),
    (b"220-", "an SMTP or FTP server"),
    (b"+OK ", "a POP3 server"),
    (b"* OK", "an IMAP server"),
    (b"-ERR", "a Redis server"),
    (b"-NOA", "a Redis server"),
    (b"-DEN", "a Redis server"),
    (b"AMQP", "an AMQP server"),
    (b"RFB ", "a VNC server"),
)


def frame_looks_like(first_bytes: _Frame) -> str | None:
    """Names the kind of server that sends these first bytes, for an error message; None if unknown.

    Call it after a frame had an invalid size: read as a size, each pattern is more than 200 MB. Six bytes
    are enough for all patterns; fewer may match none.
    """
    start = bytes(first_bytes[:6])
    for greeting, name in _GREETINGS:
        if start.startswith(greeting):
            return name
    # A MySQL greeting: a length of three bytes (little-endian), sequence number 0, protocol 10, a digit.
    if len(start) == 6 and start[3] == 0 and start[4] == 10 and start[5:6].isdigit():
        return "a MySQL server"
    return None
