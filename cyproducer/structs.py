"""The named tuples of the public API, with kafka-python's names.

Owns names and field order. Immutable and therefore thread-safe.
"""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    RowNumbers = array[int]
else:
    # Before Python 3.12, array takes no parameters. An annotation that is a string would be compiled, and the
    # first compile() of a process takes 2 to 5 ms, in which it creates the types of the syntax tree.
    RowNumbers = array


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number."""

    topic: str
    partition: int


class ProducerRecord(NamedTuple):
    """One record, as interceptors see it and ``send_all`` takes it. The fields are ``send``'s arguments."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class OffsetAndMetadata(NamedTuple):
    """An offset to commit for a consumer group: that of the next record to read.

    ``metadata`` is a text that the group stores with the offset; None is the same as the empty text.
    ``leader_epoch`` is the leader epoch of the record before the offset; -1 or None: unknown.
    """

    offset: int
    metadata: str | None = ""
    leader_epoch: int | None = -1


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's membership in its group: the broker refuses offsets of a former member (KIP-447).

    ``generation_id`` -1 with ``member_id`` "" means no member: such offsets are not checked.
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
    """A transaction whose records are all written, and that any process can commit or abort.

    ``KafkaProducer.prepare_transaction()`` returns it; ``cyproducer.transactions`` has ``commit`` and
    ``abort``. Small and picklable. ``protocol`` is 1, or 2 for KIP-890. ``empty``: nothing was written, so
    there is nothing to end. ``offsets`` has the first and the last offset written to each partition; other
    producers may have written between them. ``to_json()`` and ``from_json()`` are for files and other
    languages.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    protocol: int
    empty: bool
    offsets: dict[TopicPartition, tuple[int, int]]

    def to_json(self) -> str:
        """Returns a JSON object with the fields' names in one line. ``offsets``: by topic, then partition."""
        # Imported here: most programs prepare no transaction.
        import json

        topics: dict[str, dict[str, tuple[int, int]]] = {}
        for (topic, partition), offsets in self.offsets.items():
            topics.setdefault(topic, {})[str(partition)] = offsets
        return json.dumps(self._asdict() | {"offsets": topics})

    @classmethod
    def from_json(cls, text: str | bytes) -> "PreparedTransaction":
        """Reads the result of ``to_json()``.

        ``protocol``, ``empty`` and ``offsets`` may be missing. The transaction is then one of protocol 2 that
        is not empty, with unknown offsets.

        Raises:
            ValueError: this is not a prepared transaction; the message says what is wrong.
        """
        import json

        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"a prepared transaction is an object, not {found!r:.100}")
        if unknown := sorted(set(found) - set(cls._fields)):
            raise ValueError(f"a prepared transaction has no field {unknown[0]!r}")
        whole: dict[str, Any] = {"protocol": 2, "empty": False, "offsets": {}} | found
        for name, kind, wanted in (
            ("transactional_id", str, "a text"),
            ("producer_id", range(1 << 63), "a number of 64 bits, not negative"),
            ("epoch", range(1 << 15), "a number of 16 bits, not negative"),
            ("protocol", range(1, 3), "1 or 2"),
            ("empty", bool, "true or false"),
        ):
            value = whole.get(name)
            # Not isinstance(): a bool is an int.
            right = type(value) is int and value in kind if isinstance(kind, range) else type(value) is kind
            if not right:
                raise ValueError(f"{name} of a prepared transaction is {wanted}, not {value!r:.100}")
        try:
            whole["offsets"] = {
                TopicPartition(topic, int(partition)): (int(first), int(last))
                for topic, partitions in whole["offsets"].items()
                for partition, (first, last) in partitions.items()
            }
        except (AttributeError, TypeError, ValueError):
            raise ValueError(
                "offsets of a prepared transaction are {topic: {partition: [first, last]}}, not "
                f"{whole['offsets']!r:.100}"
            ) from None
        return cls(**whole)


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
    rows: RowNumbers
