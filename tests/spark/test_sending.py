"""Tests the writing of a task's rows: division by topic, the summary, and rows that can't be written."""

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import (
    InvalidTopicError,
    KafkaTimeoutError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from cyproducer.producer import KafkaProducer
from cyproducer.spark import close_all, produce_partitions
from cyproducer.spark.columns import Columns
from cyproducer.spark.dead_letters import DeadLetterError, DeadLetters
from cyproducer.spark.sending import RowsFailedError, TaskWriter, write_all
from cyproducer.spark.summary import WriteSummary, WrittenRange, WrittenTransaction, merge, merge_ranges
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import Fetched, read_all
from tests.spark.writing import PLAIN, Picky, values

BY_TOPIC = Columns(value="value", key="key", topic="topic")
PRODUCE = 0
NOT_LEADER, REQUEST_TIMED_OUT = 6, 7


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    config: dict[str, Any] = {
        "allow_auto_create_topics": False,
        "max_request_size": 5000,
        "max_block_ms": 2000,
    }
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **config) as producer:
        yield producer


def rows(*given: tuple[str | None, str, bytes | None]) -> pa.RecordBatch:
    schema = pa.schema([("topic", pa.string()), ("key", pa.string()), ("value", pa.binary())])
    return pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in given], schema=schema
    )


def read(broker: EmbeddedBroker, topic: str, count: int) -> list[Fetched]:
    return read_all(broker.bootstrap_servers, topic, count)


def test_the_summary_has_rows_bytes_and_ranges(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    broker.create_topic("told", 1)
    writer = TaskWriter(producer, PLAIN, "told", None)
    empty = values()
    summary = write_all(writer, [values(b"12", b"345"), empty, values(b"6")])
    assert summary == WriteSummary(
        rows=3,
        bytes=6,
        ranges=(WrittenRange("told", 0, 0, 2, 3),),
        p99_ms=summary.p99_ms,
        tasks=1,
    )
    assert summary.p99_ms > 0
    assert pickle.loads(pickle.dumps(summary)) == summary


def test_the_summary_counts_retries(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    broker.create_topic("again", 1)
    # A retry of an earlier task with the same producer does not count.
    broker.fail_next(PRODUCE, REQUEST_TIMED_OUT)
    assert write_all(TaskWriter(producer, PLAIN, "again", None), [values(b"0")]).retries == 1
    broker.fail_next(PRODUCE, REQUEST_TIMED_OUT, NOT_LEADER, 0)
    summary = write_all(TaskWriter(producer, PLAIN, "again", None), [values(b"1", b"2", b"3")])
    assert (summary.rows, summary.retries) == (3, 6)
    assert ", 6 retries, p99 " in str(summary)
    found = read(broker, "again", 4)
    assert [r.value for r in found][-3:] == [b"1", b"2", b"3"]


@pytest.mark.slow
def test_the_p99_is_that_of_the_task(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    """The producer's own percentile covers its last 30 seconds: it still shows the slow task."""
    broker.create_topic("slow-once", 1)
    broker.delay(1, 300)
    assert write_all(TaskWriter(producer, PLAIN, "slow-once", None), [values(b"0")]).p99_ms > 290
    broker.delay(1, 0)
    assert 0 < write_all(TaskWriter(producer, PLAIN, "slow-once", None), [values(b"1")]).p99_ms < 150
    assert producer.metrics()["producer-metrics"]["acknowledgement-latency-p99"] > 290
    assert write_all(TaskWriter(producer, PLAIN, "slow-once", None), []).p99_ms == 0.0


def test_rows_that_were_accepted_are_not_sent_again(
    broker: EmbeddedBroker, producer: KafkaProducer, half_sent: UnknownTopicOrPartitionError
) -> None:
    for name in ("shrunk", "shrunk-dead"):
        broker.create_topic(name, 1)
    dead_letters = DeadLetters(producer, "shrunk-dead")
    with pytest.raises(RowsFailedError, match="lost partitions") as caught:
        write_all(TaskWriter(producer, PLAIN, "shrunk", dead_letters), [values(b"0", b"1", b"2", b"3")])
    assert caught.value.__cause__ is half_sent
    producer.flush(10)
    assert [r.value for r in read(broker, "shrunk", 2)] == [b"0", b"1"]


def test_a_task_does_not_linger_at_its_end(broker: EmbeddedBroker) -> None:
    """The linger is an hour: a task that waited for it would exceed the test's timeout."""
    for name in ("hasty", "hasty-dead"):
        broker.create_topic(name, 1)
    hour = 3_600_000
    config: dict[str, Any] = {"linger_ms": hour, "delivery_timeout_ms": 2 * hour, "max_request_size": 5000}
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **config) as producer:
        writer = TaskWriter(producer, PLAIN, "hasty", DeadLetters(producer, "hasty-dead"))
        summary = write_all(writer, [values(b"1", b"x" * 6000), values(b"2")])
    assert (summary.rows, summary.dead_letters) == (2, 1)
    produce = produce_partitions("hasty", bootstrap_servers=broker.bootstrap_servers, **config)
    assert len(list(produce(iter([b"3", b"4"])))) == 2
    close_all()


def test_rows_go_to_their_topics_in_order(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    for name in ("one", "two"):
        broker.create_topic(name, 1)
    batch = rows(*((("one", "two")[n % 3 == 0], str(n), b"%d" % n) for n in range(300)))
    # A slice of a batch whose topic column is a dictionary, which Spark may pass.
    topics = batch.column("topic").dictionary_encode()
    batch = pa.RecordBatch.from_arrays([topics, *batch.columns[1:]], names=batch.schema.names).slice(3)
    summary = write_all(TaskWriter(producer, BY_TOPIC, None, None), [batch])
    assert summary.rows == 297
    assert [int(r.value or b"") for r in read(broker, "two", 99)] == list(range(3, 300, 3))
    assert [int(r.value or b"") for r in read(broker, "one", 198)] == [n for n in range(3, 300) if n % 3]


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (("few-RecordTooLargeError", "k", b"x" * 6000), RecordTooLargeError),
        ((None, "k", b"v"), ValueError),
        (("not a name", "k", b"v"), InvalidTopicError),
    ],
)
def test_a_row_that_cannot_be_written_fails_the_task(
    broker: EmbeddedBroker,
    producer: KafkaProducer,
    bad: tuple[str | None, str, bytes],
    cause: type[Exception],
) -> None:
    broker.create_topic(f"few-{cause.__name__}", 1)
    with pytest.raises(RowsFailedError) as raised:
        write_all(
            TaskWriter(producer, BY_TOPIC, None, None), [rows((f"few-{cause.__name__}", "k", b"v"), bad)]
        )
    assert raised.value.topic == bad[0]
    assert isinstance(raised.value.cause, cause)
    assert cause.__name__ in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.slow
def test_only_rows_that_cannot_be_written_become_dead_letters(
    broker: EmbeddedBroker, producer: KafkaProducer
) -> None:
    broker.create_topic("alive", 1)
    broker.create_topic("dead", 1)
    given: list[tuple[str | None, str, bytes | None]]
    given = [("alive", str(n), b"%d" % n) for n in range(100)]
    given[10] = ("alive", "10", b"y" * 6000)
    given[11] = ("alive", "11", b"y" * 7000)
    given[99] = ("missing", "99", b"v")
    given[50] = (None, "50", None)
    dead = DeadLetters(producer, "dead")
    summary = write_all(TaskWriter(producer, BY_TOPIC, None, dead), [rows(*given)])
    assert (summary.rows, summary.dead_letters) == (96, 4)
    alive = [int(r.key or b"") for r in read(broker, "alive", 96)]
    assert alive == [n for n in range(100) if n not in (10, 11, 50, 99)]
    assert summary.bytes == sum(2 * len(str(n)) for n in alive)
    letters = {r.key: r for r in read(broker, "dead", 4)}
    assert set(letters) == {b"10", b"11", b"50", b"99"}
    about = {key: dict(r.headers) for key, r in letters.items()}
    assert about[b"11"]["cyproducer.error.bytes"] == b"7002"
    assert set(letters[b"11"].value or b"") == {ord("y")}
    assert about[b"99"]["cyproducer.error.topic"] == b"missing"
    assert letters[b"50"].value is None
    assert "cyproducer.error.bytes" not in about[b"50"]


def test_an_outage_creates_no_dead_letters(broker: EmbeddedBroker) -> None:
    with EmbeddedBroker() as gone:
        gone.create_topic("dead", 1)
        producer = KafkaProducer(
            bootstrap_servers=gone.bootstrap_servers,
            allow_auto_create_topics=False,
            max_block_ms=300,
            close_timeout_ms=100,
        )
        dead = DeadLetters(producer, "dead")
    with producer, pytest.raises(RowsFailedError) as raised:
        write_all(TaskWriter(producer, BY_TOPIC, None, dead), [rows(("unseen", "k", b"v"))])
    assert isinstance(raised.value.cause, KafkaTimeoutError)


@pytest.mark.slow
def test_a_missing_dead_letter_topic_is_an_error_at_once(producer: KafkaProducer) -> None:
    with pytest.raises(DeadLetterError, match=r"deadLetterTopic 'nowhere'.*UnknownTopicOrPartition"):
        DeadLetters(producer, "nowhere")


def test_dead_letters_accept_invalid_utf8_and_timestamps(
    broker: EmbeddedBroker, producer: KafkaProducer
) -> None:
    for name in ("odd", "odd-dead"):
        broker.create_topic(name, 1)
    bad = pa.array([b"\xff\xfe" * 4000]).view(pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, bad.buffers())
    batch = pa.record_batch({"value": text, "timestamp": pa.array([2**62], pa.timestamp("us"))})
    columns = Columns(value="value", timestamp="timestamp")
    summary = write_all(TaskWriter(producer, columns, "odd", DeadLetters(producer, "odd-dead")), [batch])
    assert (summary.rows, summary.dead_letters) == (0, 1)
    (letter,) = read(broker, "odd-dead", 1)
    assert (letter.value or b"").startswith(b"\xff\xfe")


def text(*given: bytes) -> pa.Array:
    """Returns strings that are not UTF-8. Spark makes such strings from bytes without checking them."""
    return pa.Array.from_buffers(pa.string(), len(given), pa.array(given, pa.binary()).buffers())


def test_headers_with_invalid_utf8_are_kept_in_a_dead_letter(
    broker: EmbeddedBroker, producer: KafkaProducer
) -> None:
    for name in ("odd-headers", "odd-headers-dead"):
        broker.create_topic(name, 1)
    pairs = pa.StructArray.from_arrays([text(b"\xff"), text(b"\xfe")], names=["name", "content"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs)
    batch = pa.record_batch({"value": pa.array([b"v" * 6000]), "headers": headers})
    columns = Columns(value="value", headers="headers")
    dead = DeadLetters(producer, "odd-headers-dead")
    summary = write_all(TaskWriter(producer, columns, "odd-headers", dead), [batch])
    assert (summary.rows, summary.dead_letters) == (0, 1)
    (letter,) = read(broker, "odd-headers-dead", 1)
    assert letter.headers[0] == ("\ufffd", b"\xfe")


@pytest.mark.parametrize("others", [0, 2])
def test_rows_whose_topic_is_invalid_utf8_are_not_written(
    broker: EmbeddedBroker, producer: KafkaProducer, others: int
) -> None:
    for name in (f"named-{others}", f"nameless-dead-{others}"):
        broker.create_topic(name, 1)
    names = text(b"\xff", *[b"named-%d" % others] * others)
    batch = rows(*[("", str(number), b"v") for number in range(1 + others)]).set_column(0, "topic", names)
    with pytest.raises(RowsFailedError, match="topic '\ufffd': UnicodeDecodeError"):
        write_all(TaskWriter(producer, BY_TOPIC, None, None), [batch.slice(0, 1)])
    dead = DeadLetters(producer, f"nameless-dead-{others}")
    summary = write_all(TaskWriter(producer, BY_TOPIC, None, dead), [batch])
    assert (summary.rows, summary.dead_letters) == (others, 1)
    (letter,) = read(broker, f"nameless-dead-{others}", 1)
    assert (letter.key, letter.value) == (b"0", b"v")


@pytest.mark.slow
def test_refused_batches_are_halved_repeatedly(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    broker.create_topic("picky-dead", 1)
    picky: Any = Picky(producer)
    dead = DeadLetters(producer, "picky-dead")
    given = [b"%d" % number for number in range(3000)]
    batches = [values(*given[first : first + 3]) for first in range(0, 3000, 3)]
    write_all(TaskWriter(picky, PLAIN, "picky", dead), batches)
    assert sorted(picky.taken) == sorted(given)
    # The halves of a batch are sent in the order of their rows, so each partition keeps its order.
    for first in range(0, 3000, 3):
        places = [picky.taken.index(value) for value in given[first : first + 3]]
        assert places == sorted(places)


def test_headers_are_dropped_if_they_leave_no_room(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    for name in ("heavy", "heavy-dead"):
        broker.create_topic(name, 1)
    headers = pa.array(
        [[("h", b"x" * 9000)]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    batch = pa.record_batch({"value": pa.array([b"v"]), "headers": headers})
    columns = Columns(value="value", headers="headers")
    write_all(TaskWriter(producer, columns, "heavy", DeadLetters(producer, "heavy-dead")), [batch])
    (letter,) = read(broker, "heavy-dead", 1)
    assert letter.value == b"v"
    assert {name.rpartition(".")[0] for name, _ in letter.headers} == {"cyproducer.error"}


def test_ranges_of_a_partition_are_merged() -> None:
    assert merge_ranges(
        [WrittenRange("b", 0, 5, 9, 5), WrittenRange("a", 1, 0, 3, 4), WrittenRange("b", 0, 1, 2, 2)]
    ) == (WrittenRange("a", 1, 0, 3, 4), WrittenRange("b", 0, 1, 9, 7))


@pytest.mark.parametrize(
    ("topics", "end"),
    [
        (12, "topic-0011-0 0..4 (5)"),
        (13, "topic-0011-0 0..4 (5); and 1 more partition of 1 topic"),
        (500, "topic-0011-0 0..4 (5); and 488 more partitions of 488 topics"),
    ],
)
def test_the_log_line_has_the_first_ranges_and_counts_the_rest(topics: int, end: str) -> None:
    ranges = tuple(WrittenRange(f"topic-{number:04}", 0, 0, 4, 5) for number in range(topics))
    line = str(WriteSummary(rows=5 * topics, ranges=ranges, tasks=1))
    assert line.endswith(end)
    assert "1 tasks: topic-0000-0 0..4 (5); topic-0001-0" in line
    assert len(line) < 500


def test_partitions_of_one_topic_are_counted_once() -> None:
    ranges = tuple(WrittenRange("t", number, 0, 4, 5) for number in range(20))
    assert str(WriteSummary(ranges=ranges)).endswith("; and 8 more partitions of 1 topic")


@pytest.mark.parametrize(
    ("count", "end"),
    [
        (0, "nowhere"),
        (1, "nowhere; 1 transaction: id-0"),
        (4, "nowhere; 4 transactions: id-0, id-1, id-2, id-3"),
        (200, "nowhere; 200 transactions: id-0, id-1, id-2, id-3 and 196 more"),
    ],
)
def test_the_log_line_names_transactions(count: int, end: str) -> None:
    found = tuple(WrittenTransaction(f"id-{number}", number, 0) for number in range(count))
    assert str(WriteSummary(transactions=found)).endswith(f": {end}")


def test_summaries_of_tasks_are_added() -> None:
    ids = (WrittenTransaction("x", 1, 0), WrittenTransaction("y", 2, 5))
    letters = (WrittenRange("d", 0, 7, 7, 1),)
    one = WriteSummary(3, 30, 1, (WrittenRange("a", 0, 0, 2, 3),), 2, 5.0, 1, letters, ids[:1])
    two = WriteSummary(2, 20, 0, (WrittenRange("a", 0, 3, 4, 2),), 1, 7.0, 1, (), ids[1:])
    ranges = (WrittenRange("a", 0, 0, 4, 5),)
    assert merge([one, two]) == WriteSummary(5, 50, 1, ranges, 3, 7.0, 2, letters, ids)
    assert merge([]) == WriteSummary()
