"""Reads the arguments of ``send_offsets_to_transaction()``: offsets and a group, in the form of any client.

Owns which forms are accepted, which values are refused, and the normal form that is returned. Reads objects
of kafka-python, aiokafka and confluent-kafka by their attributes, and imports none of these clients. Does not
own the named tuples (``structs``), the warning about a group that the broker can't check, or requests. Pure
functions without I/O; any thread may call them.
"""

from __future__ import annotations

import operator
import reprlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from cyproducer.errors import InvalidTopicError
from cyproducer.records.topic_names import legal_topic
from cyproducer.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_STRING_MAX = 2**15 - 1
"""Bytes of UTF-8. Brokers do not accept longer strings."""

_OFFSET_INVALID = -1001
"""librdkafka's offset of a partition without a position."""

_LOGICAL = {-1: "OFFSET_END", -2: "OFFSET_BEGINNING", -1000: "OFFSET_STORED"}
"""librdkafka's other special values, which are not offsets."""

_MAGIC = b"CGMDv2:"
"""What librdkafka's serialized group metadata starts with."""

_MISSING: Any = object()
"""The attribute does not exist."""

_OFFSETS = (
    "must be a mapping of TopicPartition to an offset or OffsetAndMetadata, "
    "or a list of confluent-kafka's TopicPartition"
)
_GROUP = (
    "must be a group id, ConsumerGroupMetadata, or what group_metadata() of kafka-python's or "
    "consumer_group_metadata() of confluent-kafka's consumer returns"
)

_texts = reprlib.Repr()
_texts.maxstring = _texts.maxother = 200


def read_offsets(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the offsets to commit, in the order given: ``{}`` if there are none.

    Accepts

    - a mapping. Keys are tuples (topic, partition): ``TopicPartition`` of this package, kafka-python and
      aiokafka. Values are whole numbers (also numpy's); objects with the attributes ``offset``, ``metadata``
      and perhaps ``leader_epoch``: ``OffsetAndMetadata`` of these packages; and aiokafka's plain tuples
      (offset, metadata);
    - a list or tuple of confluent-kafka's ``TopicPartition``: objects with the attributes ``topic``,
      ``partition``, ``offset``, ``metadata`` and perhaps ``leader_epoch``. An entry whose offset is -1001,
      OFFSET_INVALID, is left out: ``position()`` returns it for partitions from which nothing was read.
      librdkafka leaves out every negative offset. Here the others are errors, so that an OFFSET_BEGINNING,
      OFFSET_END or OFFSET_STORED does not appear to be committed.

    An offset is that of the next record to read. A record instead of a position has no attribute ``metadata``
    and is refused: after a commit of the record's own offset, the record would be processed twice. In the
    result, ``metadata`` is a str ("" for None), and ``leader_epoch`` is an int (-1 if it is None or missing).

    Negative offsets are refused here, because brokers accept them and commit them.

    Raises:
        TypeError: ``offsets``, a key or a value has another type. bool and float are not whole numbers.
        ValueError: an offset, a partition or a leader epoch is out of range, a text is too long for the
            protocol or can't be encoded, or a partition occurs twice.
        InvalidTopicError: no broker would accept the topic's name; a ValueError.

    Source: KIP-98, KIP-320 (leader epochs); the request is TxnOffsetCommit.
    """
    if issubclass(type(offsets), Mapping):
        entries = _of_mapping(offsets)
    elif issubclass(type(offsets), list | tuple):
        entries = _of_list(offsets)
    else:
        raise TypeError(f"offsets: {_OFFSETS}, not {_texts.repr(offsets)}")
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for entry, topic, partition, offset, metadata, leader_epoch in entries:
        try:
            place = TopicPartition(legal_topic(topic), _whole("partition", partition, 0, _INT32_MAX))
            if place in found:
                raise ValueError(f"partition {place.partition} of topic {place.topic!r} occurs twice")
            found[place] = OffsetAndMetadata(
                _whole("offset", offset, 0, _INT64_MAX),
                "" if metadata is None else _text("metadata", metadata, "a str or None"),
                -1 if leader_epoch is None else _whole("leader epoch", leader_epoch, -1, _INT32_MAX),
            )
        except InvalidTopicError as error:
            raise InvalidTopicError(f"{entry}: {error.args[0]}") from None
        except TypeError as error:
            raise TypeError(f"{entry}: {error}") from None
        except ValueError as error:
            raise ValueError(f"{entry}: {error}") from None
    return found


def read_group(group: Any) -> ConsumerGroupMetadata:
    """Returns the group whose offsets are committed, with its member, if ``group`` names one.

    Accepts

    - a group id, as with aiokafka: it names no member, so the broker can't refuse a former member's offsets
      (``is_fenced``);
    - objects with the attributes ``group_id``, ``generation_id``, ``member_id`` and ``group_instance_id``:
      ``ConsumerGroupMetadata`` of this package and kafka-python;
    - ``bytes`` from ``consumer_group_metadata()`` of confluent-kafka's consumer, made on a machine of the
      same byte order.

    All four fields are passed on unchanged: the broker decides whether the group still has this member.

    Raises:
        TypeError: ``group`` or one of its fields has another type.
        ValueError: the group id is empty, the generation is not from -1 to 2**31 - 1, a text is too long for
            the protocol or can't be encoded, or the bytes are not librdkafka's.

    Source: KIP-447, KIP-345 (``group_instance_id``), and librdkafka's format ``CGMDv2``.
    """
    if issubclass(type(group), str):
        return _checked_group(group, -1, "", None)
    if issubclass(type(group), bytes):
        return _checked_group(*_of_librdkafka(group))
    fields = [getattr(group, name, _MISSING) for name in ConsumerGroupMetadata._fields]
    if _MISSING in fields:
        lacks = ConsumerGroupMetadata._fields[fields.index(_MISSING)]
        raise TypeError(f"group: {_GROUP}, not {_texts.repr(group)}, which has no {lacks}")
    return _checked_group(*fields)


def is_fenced(group: ConsumerGroupMetadata) -> bool:
    """Whether the broker can refuse the offsets if another member has the partitions by now.

    A bare group id is not checked: the broker accepts it even if the group has live members, and a member
    that has lost its partitions commits over its successor's offsets (KIP-447).
    """
    return group.generation_id >= 0 or group.member_id != ""


def _of_mapping(offsets: Mapping[Any, Any]) -> Iterator[tuple[str, Any, Any, Any, Any, Any]]:
    """Yields the entry's name for messages, topic, partition, offset, metadata, leader epoch."""
    # A copy: another thread may change the mapping.
    for key, value in list(offsets.items()):
        entry = f"offsets[{_texts.repr(key)}]"
        if not issubclass(type(key), tuple) or len(key) != 2:
            raise TypeError(
                f"{entry}: the key must be a tuple (topic, partition), as TopicPartition is; of "
                "confluent-kafka's TopicPartition, which has an offset too, pass a list"
            )
        offset = getattr(value, "offset", _MISSING)
        metadata = getattr(value, "metadata", _MISSING)
        if offset is not _MISSING and metadata is not _MISSING and not hasattr(value, "partition"):
            yield entry, *key, offset, metadata, getattr(value, "leader_epoch", None)
        elif type(value) is tuple and len(value) == 2:
            yield entry, *key, *value, None
        elif hasattr(type(value), "__index__"):
            yield entry, *key, value, None, None
        else:
            raise TypeError(
                f"{entry}: must be a whole number or an OffsetAndMetadata, not {_texts.repr(value)}"
            )


def _of_list(offsets: list[Any] | tuple[Any, ...]) -> Iterator[tuple[str, Any, Any, Any, Any, Any]]:
    """Yields the same, without the entries that have no position."""
    # Also a copy.
    for index, value in enumerate(list(offsets)):
        entry = f"offsets[{index}], {_texts.repr(value)}"
        names = ("topic", "partition", "offset", "metadata")
        topic, partition, offset, metadata = fields = [getattr(value, name, _MISSING) for name in names]
        if _MISSING in fields:
            raise TypeError(
                f"{entry}: must have topic, partition, offset and metadata, as confluent-kafka's "
                "TopicPartition has"
            )
        if isinstance(offset, int) and offset in _LOGICAL:
            raise ValueError(
                f"{entry}: {_LOGICAL[offset]} is no offset; consumer.position(consumer.assignment()) "
                "returns offsets"
            )
        if not isinstance(offset, int) or offset != _OFFSET_INVALID:
            yield entry, topic, partition, offset, metadata, getattr(value, "leader_epoch", None)


def _of_librdkafka(data: bytes) -> tuple[str, int, str, str | None]:
    """Decodes group id, generation, member id and group instance id.

    The layout: ``CGMDv2:``, the generation as an int32 in native byte order, group id, NUL, member id, NUL, a
    byte that is 1 without an instance id, else 0 and followed by the instance id and NUL.
    """
    head = len(_MAGIC) + 4
    group_id, _, rest = data[head:].partition(b"\0")
    member_id, _, rest = rest.partition(b"\0")
    instance, end, after = rest[1:].partition(b"\0")
    static = rest[:1] == b"\0" and end and not after
    if not data.startswith(_MAGIC) or not (static or rest == b"\1"):
        raise ValueError(
            f"group: {_texts.repr(data)} is not what consumer_group_metadata() of confluent-kafka's consumer "
            "returns; a group id must be a str"
        )
    (generation_id,) = struct.unpack_from("=i", data, len(_MAGIC))
    try:
        return group_id.decode(), generation_id, member_id.decode(), instance.decode() if static else None
    except UnicodeDecodeError as error:
        raise ValueError(f"group: {_texts.repr(data)}: its ids must be UTF-8: {error}") from None


def _checked_group(
    group_id: Any, generation_id: Any, member_id: Any, instance_id: Any
) -> ConsumerGroupMetadata:
    """Returns the fields as plain ``str`` and ``int``; an error names the field that is wrong."""
    try:
        name = "" if group_id is None else _text("group_id", group_id, "a str")
        if not name:
            raise ValueError(f"group_id {group_id!r}: must be the id of a group, which is not empty")
        return ConsumerGroupMetadata(
            name,
            _whole("generation_id", generation_id, -1, _INT32_MAX),
            _text("member_id", member_id, "a str"),
            None if instance_id is None else _text("group_instance_id", instance_id, "a str or None"),
        )
    except TypeError as error:
        raise TypeError(f"group: {error}") from None
    except ValueError as error:
        raise ValueError(f"group: {error}") from None


def _whole(name: str, value: Any, minimum: int, maximum: int) -> int:
    """Returns a plain ``int``."""
    allowed = f"must be a whole number from {minimum} to {maximum}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} {_texts.repr(value)}: {allowed}, not {type(value).__name__}") from None
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} {_texts.repr(number)}: {allowed}")
    return number


def _text(name: str, value: Any, allowed: str) -> str:
    """Returns a plain ``str``, as a subclass may have methods of its own."""
    if not issubclass(type(value), str):
        raise TypeError(f"{name} {_texts.repr(value)}: must be {allowed}, not {type(value).__name__}")
    plain = str.__str__(value)
    try:
        size = len(plain.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} {_texts.repr(plain)}: can't be encoded as UTF-8: {error.reason}") from None
    if size > _STRING_MAX:
        raise ValueError(f"{name} {_texts.repr(plain)}: must have at most {_STRING_MAX} bytes, has {size}")
    return plain
