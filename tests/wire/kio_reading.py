"""kio's codec for the responses of reading and of topics, from this package's types; see ``kio_oracle``."""

import uuid
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from kio.schema.errors import ErrorCode

from cyproducer.wire.responses import (
    NO_TOPIC_ID,
    CreateTopicsResponse,
    DescribeConfigsResponse,
    FetchedPartition,
    FetchResponse,
    ListedOffset,
    ListOffsetsResponse,
)
from tests.wire.kio_oracle import make, milliseconds, schema, write_response


def _by_topic(parts: Sequence[Any]) -> Iterable[tuple[str, list[Any]]]:
    return ((topic, list(found)) for topic, found in groupby(parts, lambda part: str(part.topic)))


def write_fetch(version: int, response: FetchResponse) -> bytes:
    """The fields that the decoder skips have values, too, and differ between the partitions."""
    module = schema("fetch", version, "response")

    def partition(number: int, part: FetchedPartition) -> Any:
        aborted = tuple(module.AbortedTransaction(producer_id=7, first_offset=8) for _ in range(number % 3))
        tagged: dict[str, Any] = {}
        if version >= 12 and number % 2:
            tagged = {
                "diverging_epoch": module.EpochEndOffset(epoch=1, end_offset=2),
                "current_leader": module.LeaderIdAndEpoch(leader_id=3, leader_epoch=4),
            }
        return make(
            module.PartitionData,
            partition_index=part.partition,
            error_code=ErrorCode(part.error_code),
            high_watermark=part.high_watermark,
            last_stable_offset=part.last_stable_offset,
            log_start_offset=part.log_start_offset,
            aborted_transactions=aborted or None,
            preferred_read_replica=5,
            # Empty and null mean the same.
            records=part.records if part.records or number % 2 else None,
            **tagged,
        )

    return write_response(
        make(
            module.FetchResponse,
            throttle_time=milliseconds(response.throttle_time_ms),
            error_code=ErrorCode(response.error_code),
            session_id=6,
            responses=tuple(
                module.FetchableTopicResponse(
                    topic=topic,
                    partitions=tuple(partition(number, part) for number, part in enumerate(parts)),
                )
                for topic, parts in _by_topic(response.partitions)
            ),
        )
    )


def write_list_offsets(version: int, response: ListOffsetsResponse) -> bytes:
    module = schema("list_offsets", version, "response")

    def partition(part: ListedOffset) -> Any:
        return make(
            module.ListOffsetsPartitionResponse,
            partition_index=part.partition,
            error_code=ErrorCode(part.error_code),
            timestamp=part.timestamp,
            offset=part.offset,
            leader_epoch=part.leader_epoch,
        )

    return write_response(
        make(
            module.ListOffsetsResponse,
            throttle_time=milliseconds(response.throttle_time_ms),
            topics=tuple(
                module.ListOffsetsTopicResponse(
                    name=topic, partitions=tuple(partition(part) for part in parts)
                )
                for topic, parts in _by_topic(response.offsets)
            ),
        )
    )


def write_create_topics(version: int, response: CreateTopicsResponse) -> bytes:
    module = schema("create_topics", version, "response")

    def configs(number: int) -> Any:
        if number % 3 == 2:
            return None
        return tuple(
            module.CreatableTopicConfigs(
                name=f"c{each}", value=None, read_only=True, config_source=1, is_sensitive=False
            )
            for each in range(number % 3)
        )

    return write_response(
        module.CreateTopicsResponse(
            throttle_time=milliseconds(response.throttle_time_ms),
            topics=tuple(
                make(
                    module.CreatableTopicResult,
                    name=topic.name,
                    topic_id=None if topic.topic_id == NO_TOPIC_ID else uuid.UUID(bytes=topic.topic_id),
                    error_code=ErrorCode(topic.error_code),
                    error_message=topic.error_message,
                    topic_config_error_code=number % 2,
                    num_partitions=3,
                    replication_factor=2,
                    configs=configs(number) if version >= 5 else None,
                )
                for number, topic in enumerate(response.topics)
            ),
        )
    )


def write_describe_configs(version: int, response: DescribeConfigsResponse) -> bytes:
    module = schema("describe_configs", version, "response")

    def option(number: int, name: str, value: str | None) -> Any:
        return make(
            module.DescribeConfigsResourceResult,
            name=name,
            value=value,
            read_only=False,
            config_source=5,
            is_sensitive=value is None,
            synonyms=tuple(
                module.DescribeConfigsSynonym(name="s", value=value, source=4) for _ in range(number % 3)
            ),
            config_type=2,
            documentation="text" if number % 2 else None,
        )

    return write_response(
        module.DescribeConfigsResponse(
            throttle_time=milliseconds(response.throttle_time_ms),
            results=tuple(
                module.DescribeConfigsResult(
                    error_code=ErrorCode(result.error_code),
                    error_message=result.error_message,
                    resource_type=result.resource_type,
                    resource_name=result.name,
                    configs=tuple(
                        option(number, name, value)
                        for number, (name, value) in enumerate(result.configs.items())
                    ),
                )
                for result in response.results
            ),
        )
    )
