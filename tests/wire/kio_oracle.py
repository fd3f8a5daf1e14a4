"""An independent codec for the messages of ``protocol``: kio, generated from Kafka's own schemas.

Also contains Hypothesis strategies for responses, in this package's own types.
"""

import datetime
import io
import uuid
from dataclasses import fields
from importlib import import_module
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from cyproducer.base.text import printable
from cyproducer.wire.responses import (
    NO_TOPIC_ID,
    NOT_ASKED,
    BrokerInfo,
    MetadataResponse,
    PartitionInfo,
    TopicInfo,
)

CORRELATION_ID = 0x01020304


def schema(api: str, version: int, kind: str) -> Any:
    """Returns the module of a message: ``schema("metadata", 12, "response").MetadataResponse``."""
    return import_module(f"kio.schema.{api}.v{version}.{kind}")


def make(cls: Any, **values: Any) -> Any:
    """Makes an entity from the values; drops those that its version has no field for."""
    known = {field.name for field in fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in known})


def read_request(frame: bytes, cls: Any) -> tuple[Any, Any]:
    """Returns header and body of a request frame; its length must match its size prefix."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, header_size = entity_reader(cls.__header_schema__)(frame, 4)
    body, body_size = entity_reader(cls)(frame, 4 + header_size)
    assert 4 + header_size + body_size == len(frame)
    return header, body


def write(entity: Any, **header: Any) -> bytes:
    """Encodes a request or a response, without its size prefix."""
    buffer = io.BytesIO()
    kind = type(entity).__header_schema__
    entity_writer(kind)(buffer, kind(**header))
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def write_response(entity: Any) -> bytes:
    """Encodes a response, from its correlation id on."""
    return write(entity, correlation_id=CORRELATION_ID)


def milliseconds(value: int) -> Any:
    return datetime.timedelta(milliseconds=value)


def write_metadata(version: int, response: MetadataResponse) -> bytes:
    module = schema("metadata", version, "response")
    topics = tuple(
        make(
            module.MetadataResponseTopic,
            error_code=ErrorCode(topic.error_code),
            name=topic.name,
            topic_id=None if topic.topic_id == NO_TOPIC_ID else uuid.UUID(bytes=topic.topic_id),
            is_internal=topic.is_internal,
            partitions=tuple(
                make(
                    module.MetadataResponsePartition,
                    error_code=ErrorCode(partition.error_code),
                    partition_index=partition.partition,
                    leader_id=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    # The decoder has to skip these fields correctly.
                    replica_nodes=tuple(range(index % 4)),
                    isr_nodes=tuple(range(index % 3)),
                    offline_replicas=tuple(range(index % 2)),
                )
                for index, partition in enumerate(topic.partitions)
            ),
            topic_authorized_operations=topic.authorized_operations,
        )
        for topic in response.topics
    )
    return write_response(
        make(
            module.MetadataResponse,
            throttle_time=milliseconds(response.throttle_time_ms),
            brokers=tuple(
                module.MetadataResponseBroker(
                    node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in response.brokers
            ),
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            topics=topics,
            cluster_authorized_operations=9,
            error_code=ErrorCode(response.error_code),
        )
    )


def as_of_version(version: int, response: MetadataResponse) -> MetadataResponse:
    """Returns the response with default values in the fields that the version does not have."""
    topics = [
        topic._replace(
            topic_id=topic.topic_id if version >= 10 else NO_TOPIC_ID,
            authorized_operations=topic.authorized_operations if version >= 8 else NOT_ASKED,
            partitions=[
                partition if version >= 7 else partition._replace(leader_epoch=-1)
                for partition in topic.partitions
            ],
        )
        for topic in response.topics
    ]
    return response._replace(
        throttle_time_ms=response.throttle_time_ms if version >= 3 else 0,
        cluster_id=response.cluster_id if version >= 2 else None,
        topics=topics,
        error_code=response.error_code if version >= 13 else 0,
    )


int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
durations_ms = st.integers(0, 2**31 - 1)
node_ids = st.integers(0, 2**31 - 1)
ports = st.integers(1, 65535)
partition_indexes = st.integers(0, 999_999)
or_none = st.just(-1)
texts = st.text(max_size=40)
shown_texts = texts.map(printable)
"""What decoders return as it is of a text for people."""
hosts = shown_texts.filter(bool)
error_codes = st.sampled_from([int(code) for code in ErrorCode])

metadata_responses = st.builds(
    MetadataResponse,
    throttle_time_ms=durations_ms,
    brokers=st.lists(
        st.builds(BrokerInfo, node_id=node_ids, host=hosts, port=ports, rack=st.none() | shown_texts),
        max_size=3,
    ),
    cluster_id=st.none() | shown_texts,
    controller_id=int32s,
    topics=st.lists(
        st.builds(
            TopicInfo,
            error_code=error_codes,
            name=texts,
            topic_id=st.binary(min_size=16, max_size=16),
            is_internal=st.booleans(),
            partitions=st.lists(
                st.builds(
                    PartitionInfo,
                    error_code=error_codes,
                    partition=partition_indexes,
                    leader=or_none | node_ids,
                    leader_epoch=or_none | node_ids,
                ),
                max_size=5,
            ),
            authorized_operations=int32s,
        ),
        max_size=3,
    ),
    error_code=error_codes,
    left_out=st.just(()),
)

#: A response with a value in every field.
FULL_METADATA = MetadataResponse(
    17,
    [BrokerInfo(1, "broker-1", 9092, None), BrokerInfo(2, "broker-2", 9093, "räck")],
    "cluster",
    2,
    [
        TopicInfo(
            0,
            "orders",
            bytes(range(16)),
            False,
            [PartitionInfo(0, 0, 1, 5), PartitionInfo(5, 1, -1, 6), PartitionInfo(0, 2, 2, 0)],
            0xDF8,
        ),
        TopicInfo(3, "missing", NO_TOPIC_ID, True, []),
    ],
    0,
)
