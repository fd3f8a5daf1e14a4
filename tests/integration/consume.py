"""Reads back a topic's records with librdkafka's consumer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

TIMESTAMP_TYPES = {TIMESTAMP_CREATE_TIME: "CreateTime", TIMESTAMP_LOG_APPEND_TIME: "LogAppendTime"}


class Fetched(NamedTuple):
    """One record, as read by librdkafka's consumer."""

    partition: int
    offset: int
    timestamp_type: str
    """``CreateTime``, ``LogAppendTime``, or ``NotAvailable``."""
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


Servers = str | Mapping[str, Any]
"""Bootstrap servers, or options of librdkafka that have them."""


def end_offset(servers: Servers, topic: str, partition: int, timeout: float = 30) -> int:
    """Returns the offset behind the partition's last record."""
    consumer = Consumer({**_options(servers), "group.id": "end-offset"})
    try:
        marks = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout)
        assert marks is not None
        return marks[1]
    finally:
        consumer.close()


def _options(servers: Servers) -> Mapping[str, Any]:
    return {"bootstrap.servers": servers} if isinstance(servers, str) else servers


def read_all(
    servers: Servers,
    topic: str,
    expected: int,
    timeout: float = 30,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    *,
    check_crcs: bool = True,
) -> list[Fetched]:
    """Returns all records of ``topic``, sorted by partition and offset. librdkafka checks each batch's CRC.

    Returns once all partitions are read to their end and have at least ``expected`` records. If there are
    more, which means duplicates, returns them all. ``check_crcs``: False for the markers of transactions that
    an embedded broker has written, which have no checksum.

    Raises:
        TimeoutError: There were fewer than ``expected`` records within ``timeout`` seconds.
    """
    consumer = Consumer(
        {
            **_options(servers),
            # Required by librdkafka, but not used, as partitions are assigned manually.
            "group.id": "read-all",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": check_crcs,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        return _read(consumer, topic, expected, time.monotonic() + timeout)
    finally:
        consumer.close()


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    # The stub also allows a dict and str values, which only `produce` accepts; a consumer returns neither.
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def _read(consumer: Consumer, topic: str, expected: int, deadline: float) -> list[Fetched]:
    partitions: set[int] = set()
    while not partitions:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"topic {topic!r} has no partitions in the cluster's metadata")
        partitions = set(consumer.list_topics(topic, timeout=left).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    records: list[Fetched] = []
    at_end: set[int | None] = set()
    while at_end != partitions or len(records) < expected:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"read {len(records)} of {expected} records of {topic!r}; partitions read to their end: "
                f"{len(at_end)} of {len(partitions)}"
            )
        message = consumer.poll(left)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
                continue
            raise KafkaException(error)
        at_end.discard(message.partition())
        kind, timestamp_ms = message.timestamp()
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        records.append(
            Fetched(
                partition,
                offset,
                TIMESTAMP_TYPES.get(kind, "NotAvailable"),
                timestamp_ms,
                message.key(),
                message.value(),
                _headers(message),
            )
        )
    return sorted(records, key=lambda record: (record.partition, record.offset))
