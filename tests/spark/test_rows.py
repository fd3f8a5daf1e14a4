"""What an element of an RDD means as a record; Spark itself is not needed to say it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from cyproducer.spark import produce_partitions
from cyproducer.spark.sending import RowsFailedError
from cyproducer.structs import RecordMetadata
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import Fetched, read_all


class Row(tuple[Any, ...]):
    """As PySpark's: a tuple with the names of its fields."""

    __fields__: list[str]

    def asDict(self) -> dict[str, Any]:
        return dict(zip(self.__fields__, self, strict=True))


def rows(fields: list[str], *values: tuple[Any, ...]) -> list[Row]:
    made = [Row(each) for each in values]
    for row in made:
        row.__fields__ = fields
    return made


def sent(broker: EmbeddedBroker, topic: str, elements: list[Any], **config: Any) -> list[Fetched]:
    broker.create_topic(topic, 1)
    produce = produce_partitions(topic, bootstrap_servers=broker.bootstrap_servers, **config)
    told = list(produce(iter(elements)))
    found = read_all(broker.bootstrap_servers, topic, len(elements))
    assert [(each.topic, each.offset) for each in told] == [(topic, r.offset) for r in found]
    return found


@pytest.mark.parametrize(
    ("name", "elements", "records"),
    [
        ("values", [b"1", "zwölf", bytearray(b"3"), memoryview(b"4")], [b"1", "zwölf".encode(), b"3", b"4"]),
        ("pairs", [("k", "v"), (b"k", b"w"), (None, "x"), ["l", None]], [b"v", b"w", b"x", None]),
        ("rows", rows(["value", "key"], ("a", "k"), (b"b", None)), [b"a", b"b"]),
        ("lone", rows(["value"], ("a",), ("b",)), [b"a", b"b"]),
        ("mixed", [*rows(["key", "value"], ("k", "a")), *rows(["value", "key"], ("b", "k"))], [b"a", b"b"]),
        ("mappings", [{"value": "a"}, {"key": "k", "value": None}], [b"a", None]),
    ],
)
def test_elements_of_many_kinds(
    broker: EmbeddedBroker, name: str, elements: list[Any], records: list[bytes | None]
) -> None:
    assert [r.value for r in sent(broker, f"kinds-{name}", elements)] == records


def test_all_fields_of_a_row(broker: EmbeddedBroker) -> None:
    when = datetime(2025, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    fields = ["value", "key", "headers", "partition", "timestamp", "topic"]
    elements: list[Any] = rows(
        fields,
        ("v", "k", [("h", "1"), ("i", b"2"), ("j", None)], 0, when, "elsewhere"),
        ("w", None, None, None, 17, None),
    )
    first, second = sent(broker, "fields", elements)
    assert first.headers == [("h", b"1"), ("i", b"2"), ("j", None)]
    assert (first.key, first.timestamp_ms) == (b"k", round(when.timestamp() * 1000))
    assert (second.key, second.headers, second.timestamp_ms) == (None, [], 17)


def test_each_element_may_have_its_topic(broker: EmbeddedBroker) -> None:
    for name in ("own-1", "own-2"):
        broker.create_topic(name, 1)
    produce = produce_partitions(bootstrap_servers=broker.bootstrap_servers)
    told: list[RecordMetadata] = list(
        produce(rows(["topic", "value"], ("own-1", "a"), ("own-2", "b"), ("own-1", "c")))
    )
    assert [(each.topic, each.offset) for each in told] == [("own-1", 0), ("own-2", 0), ("own-1", 1)]


def test_serializers_get_elements_as_they_are(broker: EmbeddedBroker) -> None:
    serialize: Callable[[object], bytes | None] = repr_bytes
    found = sent(broker, "serialized", ["a", ("k", 1)], value_serializer=serialize, key_serializer=serialize)
    assert [(r.key, r.value) for r in found] == [(None, b"'a'"), (b"'k'", b"1")]


def repr_bytes(value: object) -> bytes | None:
    return None if value is None else repr(value).encode()


@pytest.mark.parametrize(
    ("topic", "element", "says"),
    [
        ("t", 5, "an element is int: must be bytes, str, a pair"),
        ("t", ("a", "b", "c"), "an element is tuple"),
        ("t", {"value": "v", "colour": 1}, "an element has the field 'colour'"),
        (None, "v", "no topic: give one to produce_partitions"),
        (None, {"value": "v"}, "no topic"),
    ],
)
def test_what_is_no_record_is_said(
    broker: EmbeddedBroker, topic: str | None, element: Any, says: str
) -> None:
    produce = produce_partitions(topic, bootstrap_servers=broker.bootstrap_servers)
    with pytest.raises(TypeError) as raised:
        list(produce([element]))
    assert says in str(raised.value)


def test_the_first_record_that_fails_ends_the_partition(broker: EmbeddedBroker) -> None:
    broker.create_topic("failing", 1)
    produce = produce_partitions("failing", bootstrap_servers=broker.bootstrap_servers, max_request_size=1000)
    told = produce(iter([b"fine", b"x" * 2000, b"never looked at"]))
    with pytest.raises(RowsFailedError, match="topic 'failing': RecordTooLargeError"):
        list(told)


def test_more_elements_than_may_be_under_way(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cyproducer.spark.rows.WINDOW", 10)
    elements = [b"%d" % number for number in range(500)]
    assert [r.value for r in sent(broker, "window", elements, linger_ms=1)] == elements
