"""Tests the outcomes that ``produce_arrow`` returns, also for rows that can't be sent. Needs no Spark."""

from typing import Any

import pyarrow as pa
import pytest

from cyproducer.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from cyproducer.spark import mapping, produce_arrow
from cyproducer.testing import EmbeddedBroker
from tests.integration.consume import read_all
from tests.spark.writing import values
from tools.harness.rig import Rig

INVALID_TOPIC = 17
HOUR_MS = 3_600_000


@pytest.fixture(scope="module", autouse=True)
def _topic(broker: EmbeddedBroker) -> None:
    broker.create_topic("columns", 1)


def told(broker: EmbeddedBroker, topic: str, *batches: pa.RecordBatch, **config: Any) -> list[dict[str, Any]]:
    produce = produce_arrow(topic, bootstrap_servers=broker.bootstrap_servers, **config)
    return [row for batch in produce(iter(batches)) for row in batch.to_pylist()]


def test_each_row_has_its_partition_and_offset_or_its_error(broker: EmbeddedBroker) -> None:
    broker.create_topic("rows", 2)
    schema = pa.schema([("key", pa.string()), ("value", pa.binary()), ("partition", pa.int32())])
    given: list[tuple[str | None, bytes | None, int | None]] = [
        (None, b"first", 1),
        (None, None, 0),
        ("k", b"x" * 6000, 0),
        (None, b"second", 0),
        (None, b"third", 2),
        (None, b"fourth", -1),
        (None, b"fifth", 1),
    ]
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in given], schema=schema
    )
    # First a batch without bad rows, last a batch without rows.
    rows = told(broker, "rows", batch.slice(0, 1), batch, batch.slice(0, 0), max_request_size=5000)
    found = {(r.partition, r.offset): r.value for r in read_all(broker.bootstrap_servers, "rows", 4)}
    assert len(rows) == 8
    sent = {
        number: found.pop((row["partition"], row["offset"]))
        for number, row in enumerate(rows)
        if not row["error"]
    }
    assert sent == {0: b"first", 1: b"first", 4: b"second", 7: b"fifth"}
    assert not found
    for number, cause in {
        2: "is null, and so is the key",
        3: "6",
        5: "UnknownTopicOrPartitionError",
        6: "-1",
    }.items():
        assert cause in rows[number]["error"]
        assert rows[number]["offset"] is None


def test_it_does_not_linger_at_the_end(broker: EmbeddedBroker) -> None:
    """The linger is an hour: a task that waited for it would exceed the test's timeout."""
    broker.create_topic("soon", 1)
    rows = told(broker, "soon", values(b"1"), linger_ms=HOUR_MS, delivery_timeout_ms=2 * HOUR_MS)
    assert [row["error"] for row in rows] == [None]


@pytest.mark.parametrize(
    ("topic", "batch", "error", "says"),
    [
        ("columns", pa.record_batch({"text": ["a"]}), ValueError, "no column of that name; it has 'text'"),
        ("columns", pa.record_batch({"value": [1, 2]}), TypeError, "column 'value' is of type int64"),
        ("nowhere", values(b"1"), KafkaTimeoutError, "no metadata of topic 'nowhere'"),
    ],
)
@pytest.mark.slow
def test_an_error_that_concerns_all_rows_fails_the_task(
    broker: EmbeddedBroker, topic: str, batch: pa.RecordBatch, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        told(broker, topic, batch, max_block_ms=500)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (values(b"1"), "is called with RecordBatch, and takes an iterator"),
        (("k", "v"), "is called with tuple, and takes an iterator"),
        (iter([("k", "v")]), "gets tuple: must be pyarrow.RecordBatch"),
    ],
)
def test_what_is_no_partition_of_arrow_batches_is_an_error_in_the_call(given: Any, says: str) -> None:
    """``foreach()`` calls a function with each row, and ``foreachPartition()`` with an iterator of rows. They
    do not all consume what it returns."""
    produce = produce_arrow("t", bootstrap_servers="127.0.0.1:1")
    with pytest.raises(TypeError, match=says):
        produce(given)


def test_a_partition_without_batches_has_no_results() -> None:
    assert list(produce_arrow("t", bootstrap_servers="127.0.0.1:1")(iter([]))) == []


def test_rows_that_were_accepted_are_not_sent_again(
    broker: EmbeddedBroker, half_sent: UnknownTopicOrPartitionError
) -> None:
    broker.create_topic("shrunk", 1)
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        told(broker, "shrunk", values(b"0", b"1", b"2", b"3"))
    assert caught.value is half_sent
    assert [r.value for r in read_all(broker.bootstrap_servers, "shrunk", 2)] == [b"0", b"1"]


def test_rows_keep_their_numbers_over_several_rounds_of_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round finds other bad rows, numbered within the rows that the previous rounds have left."""
    rounds: list[dict[int, Exception]] = [{0: ValueError("first")}, {1: ValueError("second")}]
    sent: list[list[bytes]] = []

    class Refusing:
        def send_arrow(self, topic: str, rows: pa.RecordBatch, **columns: Any) -> str:
            if rounds:
                raise ValueError("refused")
            sent.append(rows.column("value").to_pylist())
            return "future"

    def refused_rows(*given: Any) -> dict[int, Exception]:
        return rounds.pop(0)

    monkeypatch.setattr(mapping, "refused_rows", refused_rows)
    task: Any = produce_arrow("t", bootstrap_servers="localhost:1")
    found = task._send(Refusing(), values(b"0", b"1", b"2", b"3", b"4"))
    assert sent == [[b"1", b"3", b"4"]]
    assert list(found.numbers) == [1, 3, 4]
    assert found.errors == {0: "ValueError: first", 2: "ValueError: second"}
    assert (found.total, found.future) == (5, "future")


def test_a_row_that_failed_at_the_broker_has_its_error_after_others_were_refused() -> None:
    with Rig({"t": [1, 1]}) as rig:
        rows = pa.table({"value": [b"1", b"3"], "p": [0, 1]})
        future = rig.path.send_arrow("t", rows, partition="p")
        (seen,) = rig.requests()
        rig.answer(seen, errors={("t", 1): INVALID_TOPIC})
        sent = mapping._Sent(4, [1, 3], {0: "it is null", 2: "it is large"}, future)
        found = mapping._outcomes(sent).to_pylist()
    assert [row["error"] for row in found[:3]] == ["it is null", None, "it is large"]
    assert "InvalidTopicError: t-1" in found[3]["error"]
    assert [(row["partition"], row["offset"]) for row in found[1:2]] == [(0, 0)]
    assert found[0]["partition"] is None


def test_a_consumer_that_stops_early_has_more_rows_written_than_reported(broker: EmbeddedBroker) -> None:
    broker.create_topic("limited", 1)
    batches = iter([values(b"0", b"1"), values(b"2", b"3")])
    # The window is open: both batches are sent before a result is yielded, unless the first is quickly
    # acknowledged, which the linger prevents.
    produce = produce_arrow(
        "limited",
        bootstrap_servers=broker.bootstrap_servers,
        linger_ms=HOUR_MS,
        delivery_timeout_ms=2 * HOUR_MS,
    )
    results = produce(batches)
    reported = next(results)
    results.close()  # type: ignore[attr-defined]
    assert reported.num_rows == 2
    assert [r.value for r in read_all(broker.bootstrap_servers, "limited", 4)] == [b"0", b"1", b"2", b"3"]
