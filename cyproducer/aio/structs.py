"""The named tuples of ``cyproducer.aio``, with aiokafka's names.

Owns names and field order. Immutable and therefore thread-safe.
"""

from typing import NamedTuple

from cyproducer.structs import TopicPartition


class RecordMetadata(NamedTuple):
    """The place of a record in the log, as the broker acknowledged it.

    ``offset`` is -1 if the broker did not report it. ``timestamp`` is in milliseconds since the epoch;
    ``timestamp_type`` is 0 if it is the record's own (CreateTime), 1 if it is the broker's (LogAppendTime).
    ``log_start_offset`` is always None: this package does not keep it.
    """

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    timestamp_type: int
    log_start_offset: None


class AppendedRecord(NamedTuple):
    """What ``BatchBuilder.append`` returns.

    ``offset`` is the record's index in its batch, ``size`` is in bytes, ``timestamp`` in milliseconds since
    the epoch. ``crc`` is always None: record format v2 has no checksum per record.
    """

    offset: int
    size: int
    timestamp: int
    crc: None = None
