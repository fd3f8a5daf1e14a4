"""Encodes the requests that this package's client sends, and decodes the responses for its control plane.

Owns the choice of values for fields that the client does not use, the checks of values that the control plane
relies on, and a shape of responses that is easier to use than the one on the wire. Does not own layouts
(``messages``), sockets or the choice of a version (``versions``). The caller matches responses to requests by
correlation id. Every function is pure and callable from any thread.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from cyproducer.errors import KafkaProtocolError
from cyproducer.errors.error_code import ErrorCode
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from cyproducer.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    GET_TELEMETRY_SUBSCRIPTIONS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    PRODUCE,
    PUSH_TELEMETRY,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TXN_OFFSET_COMMIT,
)
from cyproducer.wire.primitives import Reader, Writer, read_topics
from cyproducer.wire.responses import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
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
    GetTelemetrySubscriptionsResponse,
    InitProducerIdResponse,
    ListedOffset,
    ListOffsetsResponse,
    ListTransactionsResponse,
    MetadataResponse,
    PartitionInfo,
    PushTelemetryResponse,
    ReplicatedPartition,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
    TopicInfo,
    TransactionDescription,
    TransactionListing,
    TxnOffsetCommitResponse,
)
from cyproducer.wire.schema import NO_UUID, Api, Frame, Message

Decode = Callable[[int, Frame], Any]
"""Makes a response from its version and its frame."""

LATEST, EARLIEST = -1, -2
"""Timestamps of ListOffsets."""
TOPIC, BROKER = 2, 4
"""Resource types of DescribeConfigs."""
NO_REPLICA = -1
"""The replica id of a client, which is not a broker."""


def _invalid(message: str, problem: str) -> KafkaProtocolError:
    return KafkaProtocolError(f"{message}: {problem}")


def encode_api_versions(
    version: int, correlation_id: int, client_id: str | None, software_name: str, software_version: str
) -> bytes:
    """Encodes an ApiVersions request v0-v5 as a whole frame, size prefix included (KIP-35, KIP-511).

    The software name and version are sent from v3 on; brokers accept ASCII letters, digits, ``-`` and ``.``
    in them.

    Raises:
        ValueError: the version is not implemented, or a string cannot be encoded or is longer than 32767
            bytes. All encoders raise it.
    """
    request = API_VERSIONS.request(software_name, software_version)
    return API_VERSIONS.encode_request(version, correlation_id, client_id, request)


@cache
def _metadata_request() -> Message:
    """Returns the message whose topics are names. They are written in C, because there may be thousands."""

    def of(version: int) -> Callable[[Writer, Sequence[str] | None], object]:
        def write(writer: Writer, names: Sequence[str] | None) -> None:
            if names is None:
                writer.count("topics", -1)
            else:
                writer.topics("topics", list(names), version >= 10)

        return write

    return METADATA.request.write_as({"topics": of})


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
        topics: the topics to request; ``[]`` requests only the brokers, ``None`` all topics of the cluster.
        allow_auto_create: whether the broker may create missing topics; False needs v4.
        authorized_operations: whether to request the operations that the principal is authorized to perform
            on each topic; ignored before v8.
    """
    request = METADATA.request(
        topics,
        allow_auto_topic_creation=allow_auto_create,
        include_topic_authorized_operations=authorized_operations and version >= 8,
    )
    return METADATA.encode_request(version, correlation_id, client_id, request, _metadata_request())


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
    request = INIT_PRODUCER_ID.request(transactional_id, transaction_timeout_ms, producer_id, producer_epoch)
    return INIT_PRODUCER_ID.encode_request(version, correlation_id, client_id, request)


def encode_get_telemetry_subscriptions(
    version: int, correlation_id: int, client_id: str | None, instance_id: bytes
) -> bytes:
    """Encodes a GetTelemetrySubscriptions request v0 as a whole frame (KIP-714).

    Args:
        instance_id: 16 bytes, from an earlier response; ``NO_UUID`` to be given one.
    """
    request = GET_TELEMETRY_SUBSCRIPTIONS.request(instance_id)
    return GET_TELEMETRY_SUBSCRIPTIONS.encode_request(version, correlation_id, client_id, request)


def encode_push_telemetry(
    version: int,
    correlation_id: int,
    client_id: str | None,
    instance_id: bytes,
    subscription_id: int,
    terminating: bool,
    codec_id: int,
    metrics: bytes,
) -> bytes:
    """Encodes a PushTelemetry request v0 as a whole frame (KIP-714).

    Args:
        instance_id: 16 bytes, from the subscription.
        terminating: whether it is this client's last push.
        codec_id: the codec of ``metrics``, as in record batches; 0: none.
        metrics: OTLP's ``MetricsData``, compressed.
    """
    request = PUSH_TELEMETRY.request(instance_id, subscription_id, terminating, codec_id, metrics)
    return PUSH_TELEMETRY.encode_request(version, correlation_id, client_id, request)


def encode_find_coordinator(
    version: int, correlation_id: int, client_id: str | None, key_type: int, key: str
) -> bytes:
    """Encodes a FindCoordinator request v1-v6 as a whole frame (KIP-98; KIP-699 for v4).

    Args:
        key_type: 0: ``key`` is a group id; 1: a transactional id.
    """
    keys = {"key": key} if version < 4 else {"coordinator_keys": [key]}
    request = FIND_COORDINATOR.request(key_type=key_type, **keys)
    return FIND_COORDINATOR.encode_request(version, correlation_id, client_id, request)


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
    make = ADD_PARTITIONS_TO_TXN.request.AddPartitionsToTxnTopic
    request = ADD_PARTITIONS_TO_TXN.request(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=[make(topic, list(indexes)) for topic, indexes in partitions.items()],
    )
    return ADD_PARTITIONS_TO_TXN.encode_request(version, correlation_id, client_id, request)


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
    request = ADD_OFFSETS_TO_TXN.request(transactional_id, producer_id, producer_epoch, group_id)
    return ADD_OFFSETS_TO_TXN.encode_request(version, correlation_id, client_id, request)


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

    Before v2, the leader epochs are omitted.

    Args:
        group: before v3, only the group id can be sent. A member's generation and ids are then an error:
            without them, the broker could not reject the offsets of a former member.
        offsets: the offsets to commit.
    """
    message = TXN_OFFSET_COMMIT.request
    by_topic: dict[str, list[Any]] = {}
    for (topic, index), (committed, metadata, leader_epoch) in offsets.items():
        epoch = -1 if leader_epoch is None else leader_epoch
        by_topic.setdefault(topic, []).append(
            message.TxnOffsetCommitRequestPartition(index, committed, epoch, metadata)
        )
    request = message(
        transactional_id,
        group.group_id,
        producer_id,
        producer_epoch,
        group.generation_id,
        group.member_id,
        group.group_instance_id,
        [message.TxnOffsetCommitRequestTopic(name, NO_UUID, parts) for name, parts in by_topic.items()],
    )
    return TXN_OFFSET_COMMIT.encode_request(version, correlation_id, client_id, request)


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
    request = END_TXN.request(transactional_id, producer_id, producer_epoch, committed)
    return END_TXN.encode_request(version, correlation_id, client_id, request)


def encode_describe_transactions(
    version: int, correlation_id: int, client_id: str | None, transactional_ids: Sequence[str]
) -> bytes:
    """Encodes a DescribeTransactions request v0 as a whole frame (KIP-664)."""
    request = DESCRIBE_TRANSACTIONS.request(list(transactional_ids))
    return DESCRIBE_TRANSACTIONS.encode_request(version, correlation_id, client_id, request)


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
        states: the coordinator's names of states, such as "Ongoing"; empty: all states.
        producer_ids: the producer ids; empty: all.
        duration_ms: lists only transactions that have been open for longer; -1: all. Needs v1.
        pattern: a regular expression in RE2's syntax that the whole transactional id matches; None or "": all
            ids. Needs v2.
    """
    if version < 2:
        # Other values that also mean "no filter" would be rejected.
        pattern = pattern or None
        duration_ms = duration_ms if version == 1 else max(duration_ms, -1)
    request = LIST_TRANSACTIONS.request(list(states), list(producer_ids), duration_ms, pattern)
    return LIST_TRANSACTIONS.encode_request(version, correlation_id, client_id, request)


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

    The request also reads uncommitted records, and does not state a leader epoch.

    Args:
        topic: the topic's name.
        partition: a partition that the broker leads.
        offset: the first offset; the broker returns the batch that contains it, or the next one.
        max_bytes: the maximum size of the response; a first batch that is larger is returned anyway.
        max_wait_ms: how long the broker waits for a record. In the meantime it responds to no other request
            on this connection.
    """
    message = FETCH.request
    wanted = message.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = message(
        replica_id=NO_REPLICA,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[message.FetchTopic(topic=topic, partitions=[wanted])],
    )
    return FETCH.encode_request(version, correlation_id, client_id, request)


def encode_list_offsets(
    version: int,
    correlation_id: int,
    client_id: str | None,
    topic: str,
    partition: int,
    timestamp: int,
) -> bytes:
    """Encodes a ListOffsets request v1-v7 of one partition as a whole frame (KIP-79).

    The request does not state a leader epoch.

    Args:
        topic: the topic's name.
        partition: a partition that the broker leads.
        timestamp: ``LATEST``: the high watermark; ``EARLIEST``: the log's first offset; or milliseconds since
            the epoch.
    """
    message = LIST_OFFSETS.request
    wanted = message.ListOffsetsPartition(partition, timestamp=timestamp)
    request = message(NO_REPLICA, topics=[message.ListOffsetsTopic(topic, [wanted])])
    return LIST_OFFSETS.encode_request(version, correlation_id, client_id, request)


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
        name: the topic's name.
        partitions: the number of partitions; -1, from v4 on: the brokers' default.
        replication_factor: the number of replicas of each partition; -1, from v4 on: the brokers' default.
        configs: the topic's options.
        timeout_ms: how long the controller waits for the brokers.
    """
    message = CREATE_TOPICS.request
    if version < 4 and (partitions < 0 or replication_factor < 0):
        raise ValueError(
            f"CreateTopics v{version} request: partitions={partitions} with "
            f"replication_factor={replication_factor} needs version 4 or newer"
        )
    options = [message.CreatableTopicConfig(*option) for option in configs.items()]
    topic = message.CreatableTopic(name, partitions, replication_factor, [], options)
    request = message([topic], timeout_ms, False)
    return CREATE_TOPICS.encode_request(version, correlation_id, client_id, request)


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
        resource_type: ``TOPIC`` or ``BROKER``. A broker's options must be requested from that broker.
        names: topics, or node ids in decimal.
        keys: options; None: all of them.
    """
    make = DESCRIBE_CONFIGS.request.DescribeConfigsResource
    wanted = None if keys is None else list(keys)
    request = DESCRIBE_CONFIGS.request([make(resource_type, name, wanted) for name in names], False)
    return DESCRIBE_CONFIGS.encode_request(version, correlation_id, client_id, request)


def encode_sasl_handshake(version: int, correlation_id: int, client_id: str | None, mechanism: str) -> bytes:
    """Encodes a SaslHandshake request v1 as a whole frame (KIP-43)."""
    request = SASL_HANDSHAKE.request(mechanism)
    return SASL_HANDSHAKE.encode_request(version, correlation_id, client_id, request)


def encode_sasl_authenticate(
    version: int, correlation_id: int, client_id: str | None, auth_bytes: bytes
) -> bytes:
    """Encodes a SaslAuthenticate request v0-v2 as a whole frame (KIP-152, KIP-368)."""
    request = SASL_AUTHENTICATE.request(auth_bytes)
    return SASL_AUTHENTICATE.encode_request(version, correlation_id, client_id, request)


def _ranges(found: Sequence[Any]) -> dict[int, tuple[int, int]]:
    return {each.api_key: (each.min_version, each.max_version) for each in found}


def decode_api_versions(version: int, frame: Frame) -> ApiVersionsResponse:
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
    if int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
        try:
            ranges = _ranges(API_VERSIONS.decode_response(0, frame).api_keys)
        except KafkaProtocolError:
            # librdkafka's mock cluster mixes the requested version with version 0 here.
            ranges = {}
        return ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, ranges, 0, {})
    found = API_VERSIONS.decode_response(version, frame)
    # In the response, the highest level precedes the lowest.
    features = {
        each.name: (each.min_version_level, each.max_version_level) for each in found.finalized_features
    }
    return ApiVersionsResponse(
        found.error_code,
        _ranges(found.api_keys),
        found.throttle_time_ms,
        features,
        found.finalized_features_epoch,
    )


def _node_problem(node_id: int, host: str, port: int) -> str | None:
    """Returns why a node cannot be a broker to connect to; None if it can.

    Ids below 0 are reserved for this client's bootstrap addresses.
    """
    if node_id < 0:
        return f"node {node_id} at {host!r}:{port} is no broker: node ids are 0 or more"
    if not host or not 1 <= port <= 65535:
        problem = "is not an address: it must be a host and a port from 1 to 65535"
        return f"{host!r}:{port} of node {node_id} {problem}"
    return None


@cache
def _metadata_response(with_replicas: bool) -> Message:
    """Returns the message that is read into the control plane's tuples. Topics are read in C, because there
    may be thousands."""
    kind = ReplicatedPartition if with_replicas else PartitionInfo
    return METADATA.response.read_as(
        {"MetadataResponseBroker": BrokerInfo},
        {
            "topics": lambda version: (
                lambda reader: read_topics(reader, version, TopicInfo, kind, with_replicas)
            )
        },
    )


def decode_metadata(version: int, frame: Frame) -> MetadataResponse:
    """Decodes a Metadata response v1-v13. Fields missing in a version are None, -1, 0 or the zero topic id.

    Brokers with a node id below 0 or without a usable address are left out: one invalid broker must not
    prevent the client from using the others.

    Accepts a second, empty set of tagged fields at the end: librdkafka's mock cluster sends it.
    """
    return _decode_metadata(version, frame, False)


def decode_listing(version: int, frame: Frame) -> MetadataResponse:
    """Like ``decode_metadata``, but with ``ReplicatedPartition`` for each partition."""
    return _decode_metadata(version, frame, True)


def _decode_metadata(version: int, frame: Frame, with_replicas: bool) -> MetadataResponse:
    reader = METADATA.open_response(version, frame)
    found = _metadata_response(with_replicas).read(reader, version)
    if version >= METADATA.flexible and reader.left == 1:
        # librdkafka's mock cluster ends its flexible versions with a second, empty set of tagged fields.
        reader.skip_tags()
    reader.finish()
    brokers, left_out = [], []
    for broker in found.brokers:
        problem = _node_problem(broker.node_id, broker.host, broker.port)
        if problem is None:
            brokers.append(broker)
        else:
            left_out.append(problem)
    return MetadataResponse(
        found.throttle_time_ms,
        brokers,
        found.cluster_id,
        found.controller_id,
        found.topics,
        found.error_code,
        tuple(left_out),
    )


def decode_node_endpoints(field: Frame) -> list[BrokerInfo]:
    """Decodes the addresses of the leaders that a Produce response names: tagged field 0, from v10 (KIP-951).

    In addition to the checks of every decoder, it rejects a node id below 0, an empty host and a port outside
    1-65535.
    """
    reader = Reader(field, "Produce response: node_endpoints", True)
    read = PRODUCE.response.reader_of("node_endpoints", PRODUCE.highest)
    found = [BrokerInfo(*each) for each in read(reader)]
    reader.finish()
    for node_id, host, port, _ in found:
        if problem := _node_problem(node_id, host, port):
            raise _invalid(reader.message, problem)
    return found


def decode_init_producer_id(version: int, frame: Frame) -> InitProducerIdResponse:
    """Decodes an InitProducerId response v0-v5. Without an error, id and epoch must be 0 or more.

    Brokers would write batches with a negative id without any check for duplicates.
    """
    found = InitProducerIdResponse(*INIT_PRODUCER_ID.decode_response(version, frame))
    if found.error_code == 0 and (found.producer_id < 0 or found.producer_epoch < 0):
        problem = f"is {found.producer_id} with epoch {found.producer_epoch}, both must be 0 or more"
        raise _invalid(f"InitProducerId v{version} response", f"producer_id {problem}")
    return found


def decode_get_telemetry_subscriptions(version: int, frame: Frame) -> GetTelemetrySubscriptionsResponse:
    """Decodes a GetTelemetrySubscriptions response v0. Without an error, the instance id must not be zero."""
    found = GetTelemetrySubscriptionsResponse(*GET_TELEMETRY_SUBSCRIPTIONS.decode_response(version, frame))
    if found.error_code == 0 and found.client_instance_id == NO_UUID:
        message = f"GetTelemetrySubscriptions v{version} response"
        raise _invalid(message, "client_instance_id is zero, must be an id")
    return found


def decode_push_telemetry(version: int, frame: Frame) -> PushTelemetryResponse:
    """Decodes a PushTelemetry response v0."""
    return PushTelemetryResponse(*PUSH_TELEMETRY.decode_response(version, frame))


def decode_find_coordinator(version: int, frame: Frame) -> FindCoordinatorResponse:
    """Decodes a FindCoordinator response v1-v6; from v4 on it must have exactly one coordinator.

    Without an error, the coordinator must be a broker with a usable address.
    """
    response = FIND_COORDINATOR.decode_response(version, frame)
    found = response
    message = f"FindCoordinator v{version} response"
    if version >= 4:
        if len(response.coordinators) != 1:
            raise _invalid(
                message, f"coordinators has {len(response.coordinators)} elements, but must have one"
            )
        found = response.coordinators[0]
    if found.error_code == 0 and (problem := _node_problem(found.node_id, found.host, found.port)):
        raise _invalid(message, f"coordinator is invalid: {problem}")
    return FindCoordinatorResponse(
        response.throttle_time_ms,
        found.error_code,
        found.error_message,
        found.node_id,
        found.host,
        found.port,
    )


def _partition_errors(message: str, topics: Sequence[Any]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in topics:
        for index, code in partitions:
            if (topic, index) in found:
                # An entry without an error could hide one with an error.
                raise _invalid(message, f"partition {topic!r}-{index} is there twice")
            found[topic, index] = code
    return found


def decode_add_partitions_to_txn(version: int, frame: Frame) -> AddPartitionsToTxnResponse:
    """Decodes an AddPartitionsToTxn response v0-v3."""
    found = ADD_PARTITIONS_TO_TXN.decode_response(version, frame)
    message = f"AddPartitionsToTxn v{version} response"
    codes = _partition_errors(message, found.results_by_topic_v3_and_below)
    return AddPartitionsToTxnResponse(found.throttle_time_ms, codes)


def decode_add_offsets_to_txn(version: int, frame: Frame) -> AddOffsetsToTxnResponse:
    """Decodes an AddOffsetsToTxn response v0-v4."""
    return AddOffsetsToTxnResponse(*ADD_OFFSETS_TO_TXN.decode_response(version, frame))


def decode_txn_offset_commit(version: int, frame: Frame) -> TxnOffsetCommitResponse:
    """Decodes a TxnOffsetCommit response v0-v5."""
    found = TXN_OFFSET_COMMIT.decode_response(version, frame)
    topics = [(topic.name, topic.partitions) for topic in found.topics]
    codes = _partition_errors(f"TxnOffsetCommit v{version} response", topics)
    return TxnOffsetCommitResponse(found.throttle_time_ms, codes)


def decode_end_txn(version: int, frame: Frame) -> EndTxnResponse:
    """Decodes an EndTxn response v0-v5."""
    found = EndTxnResponse(*END_TXN.decode_response(version, frame))
    if found.error_code == 0 and found.producer_id >= 0 > found.producer_epoch:
        problem = f"producer_epoch is {found.producer_epoch}, it must be 0 or more"
        raise _invalid(f"EndTxn v{version} response", problem)
    return found


def decode_describe_transactions(version: int, frame: Frame) -> DescribeTransactionsResponse:
    """Decodes a DescribeTransactions response v0."""
    found = DESCRIBE_TRANSACTIONS.decode_response(version, frame)
    described = [
        TransactionDescription(*each._replace(topics=dict(each.topics))) for each in found.transaction_states
    ]
    return DescribeTransactionsResponse(found.throttle_time_ms, described)


def decode_list_transactions(version: int, frame: Frame) -> ListTransactionsResponse:
    """Decodes a ListTransactions response v0-v2."""
    found = LIST_TRANSACTIONS.decode_response(version, frame)
    listed = [TransactionListing(*each) for each in found.transaction_states]
    return ListTransactionsResponse(*found._replace(transaction_states=listed))


def decode_fetch(version: int, frame: Frame) -> FetchResponse:
    """Decodes a Fetch response v4-v12. Aborted transactions and preferred replicas are left out."""
    found = FETCH.decode_response(version, frame)
    partitions = [
        FetchedPartition(
            topic.topic,
            each.partition_index,
            each.error_code,
            each.high_watermark,
            each.last_stable_offset,
            each.log_start_offset,
            each.records or b"",
        )
        for topic in found.responses
        for each in topic.partitions
    ]
    return FetchResponse(found.throttle_time_ms, found.error_code, partitions)


def decode_list_offsets(version: int, frame: Frame) -> ListOffsetsResponse:
    """Decodes a ListOffsets response v1-v7."""
    found = LIST_OFFSETS.decode_response(version, frame)
    offsets = [ListedOffset(topic.name, *each) for topic in found.topics for each in topic.partitions]
    return ListOffsetsResponse(found.throttle_time_ms, offsets)


def decode_create_topics(version: int, frame: Frame) -> CreateTopicsResponse:
    """Decodes a CreateTopics response v2-v7. The topics' options are left out."""
    found = CREATE_TOPICS.decode_response(version, frame)
    created = [CreatedTopic(t.name, t.topic_id, t.error_code, t.error_message) for t in found.topics]
    return CreateTopicsResponse(found.throttle_time_ms, created)


def decode_describe_configs(version: int, frame: Frame) -> DescribeConfigsResponse:
    """Decodes a DescribeConfigs response v1-v4. Only the value of each option is kept."""
    found = DESCRIBE_CONFIGS.decode_response(version, frame)
    results = [
        DescribedConfigs(*each._replace(configs={config.name: config.value for config in each.configs}))
        for each in found.results
    ]
    return DescribeConfigsResponse(found.throttle_time_ms, results)


def decode_sasl_handshake(version: int, frame: Frame) -> SaslHandshakeResponse:
    """Decodes a SaslHandshake response v1."""
    return SaslHandshakeResponse(*SASL_HANDSHAKE.decode_response(version, frame))


def decode_sasl_authenticate(version: int, frame: Frame) -> SaslAuthenticateResponse:
    """Decodes a SaslAuthenticate response v0-v2."""
    return SaslAuthenticateResponse(*SASL_AUTHENTICATE.decode_response(version, frame))


DECODERS: dict[Api, Decode] = {
    API_VERSIONS: decode_api_versions,
    SASL_HANDSHAKE: decode_sasl_handshake,
    SASL_AUTHENTICATE: decode_sasl_authenticate,
    METADATA: decode_metadata,
    INIT_PRODUCER_ID: decode_init_producer_id,
    FIND_COORDINATOR: decode_find_coordinator,
    ADD_PARTITIONS_TO_TXN: decode_add_partitions_to_txn,
    ADD_OFFSETS_TO_TXN: decode_add_offsets_to_txn,
    TXN_OFFSET_COMMIT: decode_txn_offset_commit,
    END_TXN: decode_end_txn,
    DESCRIBE_TRANSACTIONS: decode_describe_transactions,
    LIST_TRANSACTIONS: decode_list_transactions,
    FETCH: decode_fetch,
    LIST_OFFSETS: decode_list_offsets,
    CREATE_TOPICS: decode_create_topics,
    DESCRIBE_CONFIGS: decode_describe_configs,
    GET_TELEMETRY_SUBSCRIPTIONS: decode_get_telemetry_subscriptions,
    PUSH_TELEMETRY: decode_push_telemetry,
}
"""API -> the decoder of its response. The decoder of Produce is in C."""

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


def frame_looks_like(first_bytes: Frame) -> str | None:
    """Returns the kind of server that sends these first bytes, for an error message; None if unknown.

    Call this function after a frame with an invalid size: read as a size, each pattern is more than 200 MB.
    Six bytes are enough for all patterns; fewer may match none.
    """
    start = bytes(first_bytes[:6])
    for greeting, name in _GREETINGS:
        if start.startswith(greeting):
            return name
    # A MySQL greeting: a length of three bytes (little-endian), sequence number 0, protocol 10, a digit.
    if len(start) == 6 and start[3] == 0 and start[4] == 10 and start[5:6].isdigit():
        return "a MySQL server"
    return None
