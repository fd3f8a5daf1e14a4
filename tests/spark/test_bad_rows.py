"""Tests that ``bad_rows()`` finds, in all rows at once, the rows that ``send_arrow()`` refuses one by one."""

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import KafkaError, RecordTooLargeError
from cyproducer.producer import KafkaProducer
from cyproducer.spark.batches import bad_rows
from cyproducer.spark.columns import Columns
from cyproducer.spark.dead_letters import DeadLetters
from cyproducer.spark.sending import TaskWriter, write_all
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import read_all

LIMIT = 9000
COLUMNS = Columns("value", "key", None, "headers", "partition", "timestamp")
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.large_binary())]))),
        ("partition", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    config: dict[str, Any] = {"allow_auto_create_topics": False, "max_request_size": LIMIT}
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **config) as producer:
        yield producer


def some_rows(seed: int, count: int) -> pa.RecordBatch:
    """Returns rows just below and above the size limit, and rows that are bad in other ways."""
    pick = random.Random(seed)
    made = []
    for _ in range(count):
        row: dict[str, Any] = {
            "key": pick.choice([None, "", "k" * pick.randrange(60, 70), "ü" * 4100]),
            "headers": pick.choice(
                [
                    None,
                    [],
                    [("a", None)],
                    [("b" * pick.randrange(60, 70), b"x" * pick.randrange(8180, 8200)), ("", b"")],
                    [("c", b"1")] * pick.randrange(60, 70),
                    [("d", b""), None, ("e", b"2")],
                    [("f", b"1"), (None, b"2")],
                ]
            ),
            "partition": pick.choice([None, 0, 1, 1, 2, -1, 2**40]),
            "timestamp": pick.choice([None, 0, 1, 1_000_000, -1, -(10**15)]),
        }
        beside = len((row["key"] or "").encode()) + 61 + 10
        for header in row["headers"] or []:
            name, content = header or (None, None)
            beside += len(name or "") + len(content or b"") + 2
        row["value"] = pick.choice([None, b"", bytes(max(0, LIMIT - beside + pick.randrange(-20, 20)))])
        made.append(row)
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


@pytest.mark.parametrize("seed", range(4))
def test_bad_rows_finds_exactly_the_rows_that_send_arrow_refuses(
    broker: EmbeddedBroker, producer: KafkaProducer, seed: int
) -> None:
    topic = f"judged-{seed}"
    broker.create_topic(topic, 2)
    columns = {"key": "key", "headers": "headers", "partition": "partition", "timestamp": "timestamp"}
    # A slice, so that array offsets are not 0.
    rows = some_rows(seed, 1000).slice(7)
    found = bad_rows(rows, COLUMNS, 2, LIMIT)
    kinds = set()
    for number in range(rows.num_rows):
        cause = found.get(number)
        refused = None
        with suppress(ValueError, KafkaError):
            try:
                producer.send_arrow(topic, rows.slice(number, 1), **columns)
            except Exception as error:
                refused = error
                raise
        assert type(cause) is type(refused), (number, cause, refused)
        # Equal except for the row number.
        assert str(refused).replace(", row 0", "") == str(cause)
        kinds.add(str(cause)[:20])
    # Six kinds of errors, and "None".
    assert len(kinds) == 7
    assert {type(each) for each in found.values()} >= {RecordTooLargeError, ValueError}
    # With an unknown partition count, no error mentions it: the topic may have grown.
    unsure = bad_rows(rows, COLUMNS, None, LIMIT)
    assert not [each for each in unsure.values() if "which has 2" in str(each)]


def test_ten_thousand_bad_rows_take_a_few_attempts(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small, because the embedded broker keeps only 5 MB per partition.
    limit = 2500
    for name in ("many", "many-dead"):
        broker.create_topic(name, 1)
    attempts: list[int] = []
    send = KafkaProducer.send_arrow

    def counted(self: KafkaProducer, topic: str, data: pa.RecordBatch, **columns: str | None) -> object:
        attempts.append(data.num_rows)
        return send(self, topic, data, **columns)

    monkeypatch.setattr(KafkaProducer, "send_arrow", counted)
    count = 10_000
    batch = pa.record_batch(
        {
            "key": pa.array([None if n % 4 == 1 else str(n) for n in range(count)]),
            "value": pa.array(
                [None if n % 4 == 1 else b"x" * (limit if n % 5 == 2 else 1) for n in range(count)]
            ),
            "partition": pa.array([3 if n % 4 == 2 else 0 for n in range(count)]),
        }
    )
    columns = Columns(value="value", key="key", partition="partition")
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, max_request_size=limit) as producer:
        dead = DeadLetters(producer, "many-dead")
        summary = write_all(TaskWriter(producer, columns, "many", dead), [batch])
    good = [n for n in range(count) if n % 4 not in (1, 2) and n % 5 != 2]
    assert (summary.rows, summary.dead_letters) == (len(good), count - len(good))
    assert attempts == [count, len(good)]
    assert [int(r.key or b"-1") for r in read_all(broker.bootstrap_servers, "many", len(good))] == good
    letters = read_all(broker.bootstrap_servers, "many-dead", count - len(good))
    causes = {(r.key, dict(r.headers)["cyproducer.error.class"]) for r in letters}
    assert (b"2", b"UnknownTopicOrPartitionError") in causes
    assert (b"7", b"RecordTooLargeError") in causes
    assert (None, b"ValueError") in causes
