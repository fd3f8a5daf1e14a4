"""The small tuples that callers see: what kafka-python calls the same.

Owns: names and field order. Immutable, hence safe from any thread.
"""

from array import array
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number."""

    topic: str
    partition: int


class RecordMetadata(NamedTuple):
    """Where a record went, as the broker acknowledged it.

    ``offset`` is -1 under ``acks=0``, where nobody says. ``timestamp`` is in milliseconds since the
    epoch: the record's own (CreateTime) or the broker's (LogAppendTime), as the topic is configured.
    The sizes are in bytes, -1 for a key, a value or headers that were not there. ``checksum`` is
    always None: record format v2 has none per record.
    """

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    checksum: None
    serialized_key_size: int
    serialized_value_size: int
    serialized_header_size: int


class OffsetRange(NamedTuple):
    """Records of ``send_arrow()`` or ``send_many()`` that lie side by side in a partition's log.

    ``offset`` is the first one's, -1 under ``acks=0``, where nobody says; ``records`` is how many they are.
    """

    partition: int
    offset: int
    records: int


class FailedRows(NamedTuple):
    """Rows of ``send_arrow()`` or ``send_many()`` that failed together, as one batch.

    ``error`` is their cause and has ``maybe_written``; ``rows`` are their numbers from 0 on, ascending, as an
    ``array`` of 64 bits each.
    """

    partition: int
    error: BaseException
    rows: "array[int]"
