"""The requests for topics that not every producer sends: encodes them, and decodes the responses.

As in ``protocol``, every function is pure and callable from any thread. Imported only where it is used,
because each type takes 0.1 ms to create.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cyproducer.wire.messages import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
)
from cyproducer.wire.protocol import DECODERS
from cyproducer.wire.schema import Frame

LATEST, EARLIEST = -1, -2
"""Timestamps of ListOffsets."""
TOPIC = 2
"""The resource type of topics in DescribeConfigs."""
NO_REPLICA = -1
"""The replica id of a client, which is not a broker."""


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
    """The options of a topic (KIP-133); ``resource_type`` as in the request."""

    error_code: int
    error_message: str | None
    resource_type: int
    name: str
    #: Option -> value; None if the option is sensitive or has no value.
    configs: dict[str, str | None]


class DescribeConfigsResponse(NamedTuple):
    """One description for each topic of the request."""

    throttle_time_ms: int
    results: list[DescribedConfigs]


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
    version: int, correlation_id: int, client_id: str | None, topics: Sequence[str]
) -> bytes:
    """Encodes a DescribeConfigs request v1-v4 for all options of topics as a whole frame (KIP-133)."""
    make = DESCRIBE_CONFIGS.request.DescribeConfigsResource
    request = DESCRIBE_CONFIGS.request([make(TOPIC, name, None) for name in topics], False)
    return DESCRIBE_CONFIGS.encode_request(version, correlation_id, client_id, request)


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


DECODERS |= {
    FETCH: decode_fetch,
    LIST_OFFSETS: decode_list_offsets,
    CREATE_TOPICS: decode_create_topics,
    DESCRIBE_CONFIGS: decode_describe_configs,
}
