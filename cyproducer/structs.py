"""The named tuples of the public API, with kafka-python's names.

Owns names and field order. Immutable and therefore thread-safe.
"""

from array import array
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number."""

    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
    """An offset to commit for a consumer group: that of the next record to read.

    ``metadata`` is a text that the group keeps with it; None is the same as the empty text. ``leader_epoch``
    is the leader epoch of the record before the offset; -1 or None: unknown.
    """

    offset: int
    metadata: str | None = ""
    leader_epoch: int | None = -1


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's place in its group: with it, the broker refuses offsets of a former member (KIP-447).

    ``generation_id`` -1 with ``member_id`` "" is no member: such offsets are not checked.
    ``group_instance_id`` is None without static membership.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class RecordMetadata(NamedTuple):
    """The place of a record in the log, as the broker acknowledged it.

    ``offset`` is -1 with ``acks=0``, as the broker reports none. ``timestamp`` is in milliseconds since the
    epoch: the record's own (CreateTime) or the broker's (LogAppendTime), depending on the topic's
    configuration. The sizes are in bytes, -1 for a missing key, value or headers. ``checksum`` is always
    None: record format v2 has no checksum per record.
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


class PreparedTransaction(NamedTuple):
    """A transaction whose records are all written, and that anybody may commit or abort.

    ``KafkaProducer.prepare_transaction()`` returns it; ``cyproducer.transactions`` has ``commit`` and
    ``abort``. Small, and can be pickled. ``protocol`` is 1, or 2 for KIP-890. ``empty``: nothing was written,
    so that there is nothing to end. ``offsets`` has the first and the last offset written to each partition;
    others may have written between them.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    protocol: int
    empty: bool
    offsets: dict[TopicPartition, tuple[int, int]]


class OffsetRange(NamedTuple):
    """Records of ``send_arrow()`` or ``send_many()`` that are adjacent in a partition's log.

    ``offset`` is that of the first record, -1 with ``acks=0``, as the broker reports none. ``records`` is
    their number.
    """

    partition: int
    offset: int
    records: int


class FailedRows(NamedTuple):
    """Rows of ``send_arrow()`` or ``send_many()`` that failed together, as one batch.

    ``error`` is the cause and has ``maybe_written``. ``rows`` are the row numbers, counted from 0, ascending,
    as an ``array`` of 64-bit integers.
    """

    partition: int
    error: BaseException
    rows: "array[int]"
