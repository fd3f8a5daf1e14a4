"""Tests how elements of an RDD become records. Needs no Spark."""

import logging
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from cyproducer.producer import KafkaProducer
from cyproducer.records.hashing import partition_for_key
from cyproducer.spark import close_all, produce_partitions
from cyproducer.spark.sending import RowsFailedError
from cyproducer.structs import RecordMetadata
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import Fetched, read_all

PRODUCE = 0
TOPIC_AUTHORIZATION_FAILED = 29


class Row(tuple[Any, ...]):
    """Like PySpark's Row: a tuple with the names of its fields."""

    __fields__: list[str]


def rows(fields: list[str], *values: tuple[Any, ...]) -> list[Row]:
    made = [Row(each) for each in values]
    for row in made:
        row.__fields__ = fields
    return made


def creating(broker: EmbeddedBroker, topic: str, partitions: int = 1, **config: Any) -> Any:
    """Creates the topic; returns the function that writes a partition of an RDD to it."""
    broker.create_topic(topic, partitions)
    return produce_partitions(topic, bootstrap_servers=broker.bootstrap_servers, **config)


def sent(broker: EmbeddedBroker, topic: str, elements: list[Any], **config: Any) -> list[Fetched]:
    produce = creating(broker, topic, **config)
    told = list(produce(iter(elements)))
    found = read_all(broker.bootstrap_servers, topic, len(elements))
    assert [(each.topic, each.offset) for each in told] == [(topic, r.offset) for r in found]
    return found


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list of the number of records in each ``send_many()`` call. Switches the time limit off."""
    send_many = KafkaProducer.send_many
    counts: list[int] = []

    def counted(producer: KafkaProducer, topic: str, values: Any, *rest: Any, **options: Any) -> Any:
        future = send_many(producer, topic, values, *rest, **options)
        counts.append(len(values))
        return future

    monkeypatch.setattr(KafkaProducer, "send_many", counted)
    monkeypatch.setattr("cyproducer.spark.rows.CHUNK_NS", 1 << 60)
    return counts


def key_of(number: int) -> str | None:
    return None if number % 3 == 0 else f"schlüssel {number}"


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("row", lambda n, fields: rows(fields, (key_of(n), bytearray(b"%d" % n)))[0]),
        # Rows of different batches of Spark have different list objects.
        ("like-row", lambda n, fields: rows(list(fields), (key_of(n), b"%d" % n))[0]),
        ("turned-row", lambda n, _: rows(["value", "key"], (str(n), key_of(n)))[0]),
        ("pair", lambda n, _: (key_of(n), str(n) if n % 2 else b"%d" % n)),
    ],
)
def test_alike_rows_are_sent_together_and_each_has_metadata(
    broker: EmbeddedBroker, together: list[int], name: str, element: Callable[[int, list[str]], Any]
) -> None:
    produce = creating(broker, topic := f"together-{name}", 3)
    fields = ["key", "value"]
    told = list(produce(element(n, fields) for n in range(1200)))
    assert together == [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 189]
    found = {(r.partition, r.offset): r for r in read_all(broker.bootstrap_servers, topic, 1200)}
    assert len(found) == len(told) == 1200
    for n, metadata in enumerate(told):
        record, key = found[metadata.partition, metadata.offset], key_of(n)
        sizes = (-1 if key is None else len(key.encode()), len(str(n)), -1)
        assert (record.key, record.value) == (None if key is None else key.encode(), b"%d" % n)
        assert metadata.topic_partition == (metadata.topic, metadata.partition) == (topic, record.partition)
        assert metadata[6:] == sizes


@pytest.mark.parametrize("make", [bytes, bytearray, bytes.decode])
def test_plain_values_are_sent_together(
    broker: EmbeddedBroker, together: list[int], make: Callable[[bytes], Any]
) -> None:
    values = [b"%d" % n for n in range(20)]
    found = sent(broker, f"alone-{make.__name__}", [make(value) for value in values])
    assert [(r.key, r.value) for r in found] == [(None, value) for value in values]
    assert together == [1, 2, 4, 8, 5]


def counting(key: bytes | None, partitions: list[int], available: list[int]) -> int:
    return 0


@pytest.mark.parametrize(
    ("name", "elements", "config", "counts"),
    [
        ("kinds", [("k", "v"), ("k", "v"), ["k", "v"], ("k", "v")], {}, [1, 1, 1]),
        ("more", rows(["key", "value", "partition"], ("k", "v", 0), ("k", "v", 0)), {}, []),
        ("mappings", [{"key": "k", "value": "v"}] * 2, {}, []),
        ("lists", [["k", "v"]] * 2, {}, []),
        ("partitioner", [("k", "v")] * 2, {"partitioner": counting}, []),
        ("serializer", [("k", "v")] * 2, {"value_serializer": str.encode}, []),
    ],
)
def test_other_elements_are_sent_one_by_one(
    broker: EmbeddedBroker,
    together: list[int],
    name: str,
    elements: list[Any],
    config: dict[str, Any],
    counts: list[int],
) -> None:
    found = sent(broker, f"singly-{name}", elements, **config)
    assert [(r.key, r.value) for r in found] == [(b"k", b"v")] * len(elements)
    assert together == counts


def test_reused_elements_are_sent_with_their_original_content(broker: EmbeddedBroker) -> None:
    value, mapping = bytearray(1), {"value": b""}

    def elements() -> Iterator[Any]:
        for i in range(20):
            value[0], mapping["value"] = i, bytes([i])
            yield from (value, (b"k", value), mapping)

    list(creating(broker, "again")(elements()))
    found = read_all(broker.bootstrap_servers, "again", 60)
    assert [r.value for r in found] == [bytes([i]) for i in range(20) for _ in range(3)]


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


def test_each_element_may_have_its_own_topic(broker: EmbeddedBroker) -> None:
    for name in ("own-1", "own-2"):
        broker.create_topic(name, 1)
    produce = produce_partitions(bootstrap_servers=broker.bootstrap_servers)
    told: list[RecordMetadata] = list(
        produce(iter(rows(["topic", "value"], ("own-1", "a"), ("own-2", "b"), ("own-1", "c"))))
    )
    assert [(each.topic, each.offset) for each in told] == [("own-1", 0), ("own-2", 0), ("own-1", 1)]


def test_serializers_get_elements_unchanged(broker: EmbeddedBroker) -> None:
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
        ("t", None, "an element is NoneType"),
        (None, "v", "no topic: give one to the function"),
        (None, {"value": "v"}, "no topic"),
        ("t", {"key": "k"}, "no field 'value', only key: None is a tombstone's value"),
        ("t", rows(["key"], ("k",))[0], "no field 'value', only key"),
        ("t", rows(["value", "key", "value"], ("v", "k", "w"))[0], "a Row has a field twice: value, key"),
        # A string of two letters, as a mapping's key or in a list, is not a pair.
        ("t", {"value": "v", "headers": {"id": "7"}}, "headers={'id': '7'}: must be a list of pairs"),
        ("t", {"value": "v", "headers": ["ab"]}, "headers=['ab']: must be a list of pairs"),
        ("t", {"value": "v", "headers": "ab"}, "headers='ab': must be a list of pairs"),
        ("t", {"value": "v", "headers": [("a", b"", 1)]}, "must be a list of pairs (name, content)"),
    ],
)
def test_an_element_that_is_not_a_record_is_an_error(
    broker: EmbeddedBroker, topic: str | None, element: Any, says: str
) -> None:
    produce = produce_partitions(topic, bootstrap_servers=broker.bootstrap_servers)
    with pytest.raises(TypeError) as raised:
        list(produce(iter([element])))
    assert says in str(raised.value)


def test_a_row_without_a_value_is_not_a_tombstone(broker: EmbeddedBroker) -> None:
    produce = produce_partitions("t", bootstrap_servers=broker.bootstrap_servers)
    with pytest.raises(ValueError, match="a Row has 1 values, and 2 fields: key, value"):
        list(produce(iter(rows(["key", "value"], ("k",)))))


@pytest.mark.parametrize(
    ("name", "element", "cause"),
    [
        ("empty", (None, None), ValueError),
        ("value", "\ud800", UnicodeEncodeError),
        ("key", ("\ud800", "v"), UnicodeEncodeError),
        ("partition", {"value": "v", "partition": -1}, ValueError),
    ],
)
def test_the_error_of_an_invalid_record_names_its_topic(
    broker: EmbeddedBroker, name: str, element: Any, cause: type[Exception]
) -> None:
    produce = creating(broker, topic := f"unmade-{name}")
    with pytest.raises(RowsFailedError, match=f"topic '{topic}': {cause.__name__}: ") as raised:
        list(produce(iter([element])))
    assert isinstance(raised.value.cause, cause)


@pytest.mark.parametrize("name", ["mapping", "pair"])
def test_the_error_of_a_failed_record_names_its_partition(broker: EmbeddedBroker, name: str) -> None:
    produce = creating(broker, topic := f"placed-{name}", 2)
    broker.fail_next(PRODUCE, TOPIC_AUTHORIZATION_FAILED)
    key = next(key for key in map(str, range(9)) if partition_for_key("murmur2", key.encode(), 2) == 1)
    with pytest.raises(RowsFailedError, match=f"topic '{topic}', partition 1: .*TopicAuthorization"):
        list(produce(iter([(key, "v") if name == "pair" else MappingProxyType({"key": key, "value": "v"})])))


def test_a_failed_record_is_reported_while_no_more_elements_arrive(broker: EmbeddedBroker) -> None:
    produce = creating(broker, "slow", linger_ms=0)
    taken = []

    def elements() -> Iterator[Any]:
        for number in range(1000):
            taken.append(number)
            # The first record is refused, so no other element may be taken.
            yield ["k", b"x" * (2_000_000 if number == 0 else 1)]

    with pytest.raises(RowsFailedError, match="RecordTooLargeError"):
        list(produce(elements()))
    assert taken == [0]


@pytest.mark.parametrize("name", ["lists", "pairs"])
def test_closing_the_generator_raises_the_error_of_the_other_records(
    broker: EmbeddedBroker, together: list[int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cyproducer.spark.rows.WINDOW", 2)
    topic = f"few-{name}"
    produce = creating(broker, topic, batch_size=200, linger_ms=0, max_in_flight_requests_per_connection=1)
    broker.fail_next(PRODUCE, 0, TOPIC_AUTHORIZATION_FAILED)
    make = list if name == "lists" else tuple
    told: Any = produce(make((b"k", b"%d" % n * 150)) for n in range(6))
    assert next(told).offset == 0
    with pytest.raises(RowsFailedError, match=f"topic '{topic}', partition 0: .*TopicAuthorization"):
        told.close()
    close_all()


def test_timestamps_are_rounded_down_to_milliseconds(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        late = datetime(2025, 1, 2, 3, 4, 5, 999_900)
        found = sent(
            broker,
            "times",
            [{"value": "v", "timestamp": when} for when in (late, late.replace(tzinfo=UTC))],
        )
    finally:
        monkeypatch.undo()
        time.tzset()
    utc = 1_735_787_045_999
    assert [r.timestamp_ms for r in found] == [utc + 5 * 3_600_000, utc]


def test_the_first_record_that_fails_ends_the_partition(broker: EmbeddedBroker) -> None:
    produce = creating(broker, "failing", max_request_size=1000)
    told = produce(iter([b"fine", b"x" * 2000, b"after it"]))
    with pytest.raises(RowsFailedError, match="topic 'failing': RecordTooLargeError"):
        list(told)
    close_all()
    assert read_all(broker.bootstrap_servers, "failing", 1)[0].value == b"fine"


@pytest.mark.parametrize("results", [True, False])
@pytest.mark.parametrize(
    "row",
    [
        rows(["key", "value"], ("k", "v"))[0],
        ("k", "v"),
        ["k", "v"],
        {"value": "v"},
        b"v",
        "v",
        None,
    ],
    ids=lambda row: type(row).__name__,
)
def test_a_row_in_place_of_a_partition_is_an_error_in_the_call(row: Any, results: bool) -> None:
    """As ``foreach()`` does, which takes no notice of what the function returns."""
    produce = produce_partitions("t", results=results, bootstrap_servers="127.0.0.1:1", max_block_ms=1)
    says = rf"is called with {type(row).__name__}, and takes an iterator .* use foreachPartition\(\)"
    with pytest.raises(TypeError, match=says):
        produce(row)


def test_without_results_all_is_written_though_nobody_iterates(broker: EmbeddedBroker) -> None:
    produce = creating(broker, "dropped", results=False)
    produce(iter([b"1", b"2"]))
    assert [r.value for r in read_all(broker.bootstrap_servers, "dropped", 2)] == [b"1", b"2"]


def test_a_function_sent_by_spark_connect_writes_all_though_nobody_iterates(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = creating(broker, "connect", max_request_size=1000)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyspark.sql.utils", SimpleNamespace(is_remote=lambda: True))
        pickled = pickle.dumps(made)
    produce: Callable[[Iterator[Any]], Iterator[RecordMetadata]] = pickle.loads(pickled)
    told = produce(iter([b"1", b"2"]))
    assert [r.value for r in read_all(broker.bootstrap_servers, "connect", 2)] == [b"1", b"2"]
    assert [each.offset for each in told] == [0, 1]
    with pytest.raises(RowsFailedError, match="RecordTooLargeError"):
        produce(iter([b"x" * 2000]))


def test_results_that_nobody_takes_are_logged_as_not_written(caplog: pytest.LogCaptureFixture) -> None:
    produce = produce_partitions("t", bootstrap_servers="127.0.0.1:1")
    with caplog.at_level(logging.ERROR, "cyproducer.spark"):
        results = produce(iter([b"1"]))
        assert caplog.messages == []
        del results
    assert caplog.messages == [
        "produce_partitions(): nothing was written, as nothing has consumed the results"
    ]


@pytest.mark.parametrize("kind", [bytes, dict])
def test_without_results_nothing_is_yielded(broker: EmbeddedBroker, kind: type) -> None:
    topic = f"without-results-{kind.__name__}"
    produce = creating(broker, topic, results=False)
    values = [b"%d" % number for number in range(2000)]
    assert list(produce(iter(values if kind is bytes else [{"value": value} for value in values]))) == []
    assert [r.value for r in read_all(broker.bootstrap_servers, topic, 2000)] == values


@pytest.mark.parametrize("results", [True, False])
def test_records_before_a_refused_one_are_yielded(
    broker: EmbeddedBroker, together: list[int], results: bool
) -> None:
    topic = f"refusing-{results}"
    produce = creating(
        broker,
        topic,
        results=results,
        # One request per record, one after the other.
        batch_size=200,
        linger_ms=0,
        max_in_flight_requests_per_connection=1,
    )
    broker.fail_next(PRODUCE, 0, 0, TOPIC_AUTHORIZATION_FAILED)
    told: list[RecordMetadata] = []
    with pytest.raises(RowsFailedError, match=r"partition 0: .*TopicAuthorization") as raised:
        told.extend(produce(b"%d" % n * 150 for n in range(4)))
    # The last record is sent unless the failure is already known.
    assert together in ([1, 2], [1, 2, 1])
    assert (raised.value.topic, raised.value.partition) == (topic, 0)
    assert [metadata.offset for metadata in told] == ([0, 1] if results else [])


def test_rows_that_do_not_fit_together_are_sent_one_by_one(broker: EmbeddedBroker) -> None:
    large = b"x" * 600_000
    elements = [(b"k", b"v"), (large, b"v"), (b"k", large)]
    found = sent(broker, "beside", elements, buffer_memory=1_000_000, max_request_size=5_000_000)
    assert [(r.key, r.value) for r in found] == elements


def test_rows_of_which_some_were_accepted_are_not_sent_again(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_many = KafkaProducer.send_many

    def interrupted(producer: KafkaProducer, topic: str, values: Any, *rest: Any, **options: Any) -> Any:
        # As if interrupted by a signal handler.
        send_many(producer, topic, values[:1], **options)
        error = ValueError("meanwhile")
        error.accepted = 1  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(KafkaProducer, "send_many", interrupted)
    produce = creating(broker, "midway")
    with pytest.raises(RowsFailedError, match="topic 'midway': ValueError: meanwhile"):
        list(produce(iter([b"1", b"2", b"3"])))
    close_all()
    assert [r.value for r in read_all(broker.bootstrap_servers, "midway", 1)] == [b"1"]


@pytest.mark.slow
def test_elements_are_taken_no_faster_than_outcomes(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cyproducer.spark.rows.WINDOW", 20)
    monkeypatch.setattr("cyproducer.spark.rows.CHUNK", 5)
    # Linger long enough for twenty elements to be taken before the first outcome.
    produce = creating(broker, "window", linger_ms=20)
    taken = 0

    def elements() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(500):
            taken += 1
            yield b"%d" % taken

    ahead = [taken - told for told, _ in enumerate(produce(elements()))]
    assert 20 < max(ahead) <= 25
    found = read_all(broker.bootstrap_servers, "window", 500)
    assert [r.value for r in found] == [b"%d" % number for number in range(1, 501)]


def test_few_large_elements_are_taken_at_a_time(broker: EmbeddedBroker, together: list[int]) -> None:
    elements = [*[(b"k" * 125_000, b"v" * 125_000)] * 17, *[(b"k", b"v")] * 23]
    found = sent(broker, "large", elements, linger_ms=0)
    assert [(r.key, r.value) for r in found] == elements
    # The fifth element exceeds 1 MiB.
    assert together == [1, 2, 4, 5, 5, 8, 15]
